"""The assignment, checked with the grader: python course/instructor/grade.py

Its name keeps it out of `pytest tests`, because it takes minutes.
"""

import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "course" / "instructor"))
import checks  # noqa: E402
import grade  # noqa: E402
from course.blank import assignment, blanked, read  # noqa: E402

PARTS = {part.title: part for part in assignment()}
FILES = [(title, file) for title in PARTS for file in PARTS[title].files]
WHERE = {name: (title, file) for title, file in FILES for name in PARTS[title].files[file]}
checks.LIMIT = 600  # seconds, only against a machine that hangs


def mistakes():
    """function, title, test, right lines, wrong lines of each entry of wrong_solutions.txt."""
    for entry in read(ROOT / "tests/wrong_solutions.txt").split("\n### ")[1:]:
        title, test, diff = entry.split("\n\n")[:3]
        right, wrong = ("".join(re.findall(rf"^[{x}](.*\n)", diff, re.M)) for x in "-+")
        yield title.split("`")[1], title, test.split("`")[1], right, wrong


WRONG = [*mistakes()]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A copy of the project's Python files, which the checks take for the project."""
    for path in [*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), ROOT / "pyproject.toml"]:
        (tmp_path / path.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    return tmp_path


def blank(path, name):
    path.write_text(blanked(read(path), name), encoding="utf-8")


@pytest.mark.parametrize("title", PARTS)
def test_a_part_needs_no_later_part(copy, title):
    """The solution fails, or a command needs functions that are asked for in a later part.

    Or a group of tests has no test, a test costs nothing, or the groups are not all points.
    """
    later = [*PARTS][[*PARTS].index(title) + 1 :]
    for name, (part, file) in WHERE.items():
        if part in later and PARTS[part].points:
            blank(copy / file, name)
    passed, failed, _ = checks.check(PARTS[title].command)
    assert passed and failed == {}
    part = PARTS[title]
    counted = [group for file in part.files for group in grade.groups(part, file, passed)]
    assert sum(group.points for group in counted) == part.points
    assert all(group.tests for group in counted)
    assert {*passed} == {test for group in counted for test in group.tests}


@pytest.mark.parametrize("title, file", FILES)
def test_blank_functions_fail(copy, title, file):
    """A command that does not look at what was to be written, so that nothing is graded."""
    for name in PARTS[title].files[file]:
        blank(copy / file, name)
    _, failed, _ = checks.check(PARTS[title].command)
    assert failed


@pytest.mark.parametrize("name, title, test, right, wrong", WRONG, ids=[x[1] for x in WRONG])
def test_each_mistake_is_found_by_the_test_named_there(tmp_path, name, title, test, right, wrong):
    """A mistake that is no longer found, or that quotes a line which the core no longer has."""
    part, file = WHERE[name]
    source = read(ROOT / file)
    assert source.count(right) == 1, f"quoted, but not once in {file}: {right}"
    mine = tmp_path / file
    mine.write_text(source.replace(right, wrong), encoding="utf-8")
    command = re.sub('-k "(.+)"', rf'-k "(\1) and {test}"', PARTS[part].command)
    _, found, _ = checks.check(command, mine, PARTS[part].files[file])
    assert test in found, f"{title}: {found}"


@pytest.mark.parametrize("title, file", FILES)
def test_every_part_has_mistakes(title, file):
    """Functions of which nobody has tried whether a mistake would be found."""
    assert sum(WHERE[name] == (title, file) for name, *_ in WRONG) >= 2
