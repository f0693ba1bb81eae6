"""The assignment, checked with the grader: python course/instructor/grade.py

Its name keeps it out of `pytest tests`, because it takes minutes.
"""

import multiprocessing
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "course" / "instructor"))
import grade  # noqa: E402
from course.blank import assignment, blanked, read  # noqa: E402

PARTS = {part.title: part for part in assignment()}
FILES = [(title, file) for title in PARTS for file in PARTS[title].files]
WHERE = {name: (title, file) for title, file in FILES for name in PARTS[title].files[file]}
# Processes come from a server that has imported packages once, where there are such servers. An
# optimiser and assert_close would otherwise import torch._dynamo, or parts of it, in every check.
PROCESSES = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
PROCESSES.set_forkserver_preload(["numpy", "pytest", "tokenizers", "torch._dynamo", "tqdm"])


def mistakes():
    """function, title, test, right lines, wrong lines of each entry of wrong_solutions.txt."""
    for entry in read(ROOT / "tests/wrong_solutions.txt").split("\n### ")[1:]:
        title, test, diff = entry.split("\n\n")[:3]
        right, wrong = ("".join(re.findall(rf"^[{x}](.*\n)", diff, re.M)) for x in "-+")
        yield title.split("`")[1], title, test.split("`")[1], right, wrong


WRONG = [*mistakes()]


def child(folder: Path, arguments: list[str]) -> None:
    """In a separate process: runs the tests of a folder, without output."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    os.chdir(folder)
    sys.exit(pytest.main(arguments))


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The grader starts its tests in such a process."""

    def run(command, cwd, **more):
        process = PROCESSES.Process(target=child, args=(cwd, command[3:]))
        process.start()
        process.join()
        return SimpleNamespace(returncode=process.exitcode)

    monkeypatch.setattr(grade, "run", run)


def made(tmp_path: Path, part, sources: dict[str, str]) -> Path:
    """What the grader tests if somebody hands in these files, and the others are the project's."""
    theirs, folder = tmp_path / "theirs", tmp_path / "made"
    theirs.mkdir()
    folder.mkdir()
    for file in {*part.files, *sources}:
        (theirs / file).write_text(sources.get(file) or read(ROOT / file), encoding="utf-8")
    grade.make(folder, theirs, part)
    return folder


@pytest.mark.parametrize("title", PARTS)
def test_a_part_needs_no_later_part(tmp_path, title):
    """The solution fails, or a command needs functions that are asked for in a later part."""
    later = [*PARTS][[*PARTS].index(title) + 1 :]
    sources = {file: read(ROOT / file) for _, file in FILES}
    for name, (part, file) in WHERE.items():
        if part in later:
            sources[file] = blanked(sources[file], name)
    part = PARTS[title]
    assert grade.failing(made(tmp_path, part, sources), part.command) == ""


@pytest.mark.parametrize("title, file", FILES)
def test_blank_functions_fail(tmp_path, title, file):
    """A command that does not look at what was to be written, so that nothing is checked."""
    part, source = PARTS[title], read(ROOT / file)
    for name in part.files[file]:
        source = blanked(source, name)
    assert grade.failing(made(tmp_path, part, {file: source}), part.command)


@pytest.mark.parametrize("name, title, test, right, wrong", WRONG, ids=[x[1] for x in WRONG])
def test_each_mistake_is_found_by_the_test_named_there(tmp_path, name, title, test, right, wrong):
    """A mistake that is no longer found, or that quotes a line which the core no longer has."""
    part, file = WHERE[name]
    source = read(ROOT / file)
    assert source.count(right) == 1, f"quoted, but not once in {file}: {right}"
    folder = made(tmp_path, PARTS[part], {file: source.replace(right, wrong)})
    command = re.sub('-k "(.+)"', rf'-k "(\1) and {test}"', PARTS[part].command)
    found = grade.failing(folder, command)
    assert found.startswith(test), f"{title}: {found}"


@pytest.mark.parametrize("title, file", FILES)
def test_every_part_has_mistakes(title, file):
    """Functions of which nobody has tried whether a mistake would be found."""
    assert sum(WHERE[name] == (title, file) for name, *_ in WRONG) >= 2
