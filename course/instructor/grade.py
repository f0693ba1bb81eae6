"""Checks course/README.md, or grades: python course/instructor/grade.py [FOLDER OF A STUDENT]

Without a folder, for each part, while all later parts are blank: its command passes; it finds each
mistake of wrong_solutions.md by the test named there; on blank functions it fails. All in one
process, in a copy of the project, whose modules are imported anew each time.
"""

import os
import re
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

sys.path.insert(0, ".")
from course.blank import assignment, blanked

CORE = ("tasks", "model", "grpo", "advantages", "train")
PARTS = assignment()  # function -> file, command
COMMANDS = [*dict.fromkeys(command for _, command in PARTS.values())]


class Failed(set):
    """A plugin of pytest: the names of the tests that fail."""

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.add(report.location[2].split("[")[0])


def failed(command: str) -> Failed:
    """What fails of a part's command. Not empty, too, if its tests cannot be run."""
    for name in (*CORE, "test_grpo", "test_core", "test_train"):
        sys.modules.pop(name, None)
    found = Failed()
    arguments = shlex.split(command)[3:]  # after python -m pytest
    status = pytest.main([*arguments, "-p", "no:terminal", "-p", "no:cacheprovider"], [found])
    if status not in (0, 1):
        found.add(f"pytest ends with {status!r}")
    return found


def mistakes(text: str):
    """function, title, test, right lines, wrong lines of each entry of wrong_solutions.md."""
    for entry in text.split("\n### ")[1:]:
        title, test, diff = entry.split("\n\n")[:3]
        right, wrong = ("".join(re.findall(rf"^[{x}](.*\n)", diff, re.M)) for x in "-+")
        yield title.split("`")[1], title, test.split("`")[1], right, wrong


def amiss(wrong: list[tuple]):
    """What is not as it should be, from the last part to the first."""
    for command in reversed(COMMANDS):
        names = [name for name in PARTS if PARTS[name][1] == command]
        path = Path(PARTS[names[0]][0])
        source = path.read_text()
        yield from (f"{names}: {test} fails on the solution" for test in failed(command))
        here = [mistake for mistake in wrong if mistake[0] in names]
        for _, title, test, right, bad in here:
            path.write_text(source.replace(right, bad))
            found = failed(command)
            if source.count(right) != 1 or test not in found:
                yield f"{title}: not in {path}, or {test} is not among what fails: {found}"
        for name in names:
            source = blanked(source, name)
        path.write_text(source)
        if len(here) < 2 or not failed(command):
            yield f"{names}: fewer than two mistakes, or blank functions pass"
        print(*names, f"{len(here)} mistakes", flush=True)


if __name__ == "__main__":
    sys.dont_write_bytecode = True  # two versions of a file may have the same size and second
    points = re.findall(r"^### .*\((\d+) points", Path("course/README.md").read_text(), re.M)
    handed_in = [Path(folder, f"{name}.py").resolve() for folder in sys.argv[1:2] for name in CORE]
    mistaken = Path("course/instructor/wrong_solutions.md").read_text()
    wrong = [] if handed_in else [*mistakes(mistaken)]
    with tempfile.TemporaryDirectory() as copy:
        left_out = shutil.ignore_patterns(".*", "__p*", "runs")
        shutil.copytree(".", copy, ignore=left_out, dirs_exist_ok=True)
        os.chdir(copy)
        for path in handed_in:
            shutil.copy(path, copy)
        if handed_in:
            marks = [0 if failed(command) else int(n) for command, n in zip(COMMANDS, points)]
            print(sys.argv[1], "has", sum(marks), "points, by part", *marks)
        else:
            sys.exit("\n".join(amiss(wrong)) or 0)
