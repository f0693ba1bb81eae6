"""Grades the assignment: python course/instructor/grade.py ../week-*/* --table marks.csv

A folder week-2/anna has what Anna handed in for week 2, and any other folder has all weeks. A check
takes the functions of one part from a file of the part's week, and the student's own statements at
the top of this file. Everything else is the project's code, so a mistake costs only its own part.
If a test fails, the program prints its docstring, what its assertion says, the number that differs,
and the usual mistakes of the part. The last column of the table names functions that are the
project's, except for docstrings and names. They keep their points: it is you who asks about them.
With --draw WORD it draws two questions for each student and prints the answers in place of grading,
and what was handed in for week 4.
With --expected it prints the numbers that each student's answers should have.

A check gives its points if all tests pass that pass with the project's own code. A test that is
skipped or not reached has not passed. If one fails, each function is tried without the student's
others, and loses the points of each group of tests that fails with it (groups). The two versions
of a formula cannot call each other. A check runs in a copy of the project, in a separate process,
for --limit seconds at most, with limited memory and without its output. This protects your files
and the points of the other students from accidents. It does not protect your machine from intent,
because the code of a student can do whatever you can do there. A container is better.

Without a folder the program checks the assignment itself, by tests/wrong_solutions.py.
"""

import csv
import os
import random
import re
import sys
from argparse import SUPPRESS, ArgumentParser
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import fill

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
from checks import Found, check  # noqa: E402
from submissions import located, students, written  # noqa: E402
from course.blank import WITHOUT, Part, assignment, read  # noqa: E402


Group = namedtuple("Group", "function points words tests")  # points of a function for these tests


def groups(part: Part, file: str, tests: list[str]) -> list[Group]:
    """What the points of a file are given for: the table of the page, else the functions alike.

    tests: all that pass with the project's code.
    """
    rows = re.findall(r"\n\| `(\w+)` \| (\d) \| (.+?) \| `(.+)` \|", read("course/README.md"))
    found = []
    for name in part.files[file]:
        equal = part.points / len(part.files) / len(part.files[file])
        for _, points, words, which in [x for x in rows if x[0] == name] or [("", equal, "", "_")]:
            counted = [test for test in tests if any(x in test for x in which.split())]
            found.append(Group(name, float(points), words, counted))
    return found


def graded(part: Part, theirs: Path, limit: int, tests: list[str]) -> Found:
    """What a student's file gives for a part; a reason is in failed unless all tests passed."""
    found = check(part.command, limit, theirs=theirs, names=part.files[theirs.name])
    missing = {*tests} - {*found.passed}
    ended = f"{len(missing)} of {len(tests)} tests were skipped or not reached."
    return found._replace(failed=(found.failed or {"not passed": ended}) if missing else {})


def shared(part: Part, theirs: Path, limit: int, tests: list[str]) -> tuple[Found, list[Group]]:
    """What a file gives, and the groups whose points it loses, each function tried alone."""
    found = graded(part, theirs, limit, tests)
    names = part.files[theirs.name]
    passed = dict.fromkeys(names, found.passed)
    if found.failed and len(names) > 1 and "No result" not in found.failed:
        for name in names:  # after an endless loop, none is tried again
            alone = part._replace(files={theirs.name: [name]})
            passed[name] = graded(alone, theirs, limit, tests).passed
    of_file = groups(part, theirs.name, tests)
    right = [x for x in of_file if x.tests and {*x.tests} <= {*passed[x.function]}]
    return found, [x for x in of_file if found.failed and x not in right]


def passing(part: Part, limit: int) -> list[str]:
    """The tests of a part, which all pass with the project's own code."""
    passed, failed, _ = check(part.command, limit)
    if failed or not passed:
        sys.exit(f"The project's own code fails in {part.title}, so nothing is graded: {failed}")
    return passed


def grade(name: str, files: dict, parts: list[Part], tests, pool, limit: int) -> list:
    """Prints the points of a student, part by part, and why some are missing.

    files: a week -> the folder of it. tests: a part's number in the list -> those that have to
    pass. Returns the points, and the functions that are the project's except for names.
    """
    work = [
        (part, files[part.week] / x, limit, y) for part, y in zip(parts, tests) for x in part.files
    ]
    results = pool.map(shared, *zip(*work))
    marks = []
    lines = []
    same = []
    refused = {}
    for part in parts:
        points = float(part.points)
        items = []
        for file, (found, lost) in zip(part.files, results):
            points -= sum(group.points for group in lost)
            items += [f"{x.function}, {x.words or 'as a whole'}: -{x.points:g}" for x in lost]
            items += [f"{file}, {test}: {text}" for test, text in found.failed.items()]
            same += found.notes.get("same", [])
            refused |= {(file, x): 0 for x in found.notes.get("refused", [])}
        marks.append(round(points, 2))
        lines.append(f"  {part.title}: {marks[-1]:g} of {part.points} points")
        items += [f"Usual mistakes: {part.mistakes}"] * (", test_" in str(items))
        lines += [fill(x, 98, initial_indent=" " * 6, subsequent_indent=" " * 8) for x in items]
    asked = {
        x.split(".")[0] for part in assignment() for names in part.files.values() for x in names
    }
    left = [f"{x} ({file})" for file, x in refused if x not in asked]
    if left:
        lines.append(f"  Not taken, because the project's file has it: {', '.join(left)}")
    print(f"{name}: {sum(marks):g} of {sum(part.points for part in parts)} points for code")
    print(*lines, sep="\n", end="\n\n", flush=True)
    return [*marks, " ".join(same)]


def draw(name: str, files: dict[str, Path], parts: list[Part], word: str) -> None:
    """Prints a student's questions, what a full answer has, and what the student wrote in time."""
    marked = read(ROOT / "course/instructor/model_answers.md")
    rubric = dict(re.findall(r"(?s)\n## (\d+)\n\n\*What 3 points need:\* (.+?)\n\n", marked))
    numbered = {part.title.split(".")[0]: part for part in parts}
    drawn = [word] if word in numbered else random.Random(word + name).sample([*numbered], 2)
    for n in sorted(drawn, key=int):
        first, text = written(files[numbered[n].week])
        answers = dict(re.findall(r"(?ms)^## *(\d+)\b(.*?)(?=^## |\Z)", text))
        answer = answers.get(n, f"Nothing is below a heading ## {n}.").strip()
        print(f"{name} ({first}): {numbered[n].title}\n\n{numbered[n].question}")
        print(f"\nA full answer: {rubric[n]}\n\nThe answer: {answer}\n", "-" * 98, sep="\n")
    if "4" in files:
        print(
            f"{name}: Week 4{written(files['4'])[1].partition('## Week 4')[2]}", "-" * 98, sep="\n"
        )


def main() -> None:
    parser = ArgumentParser("grade.py", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a student's files")
    parser.add_argument("--table", type=os.path.abspath, metavar="FILE", help="points as CSV")
    parser.add_argument("--draw", metavar="WORD", help="two questions for each, or this number's")
    parser.add_argument("--expected", action="store_true", help="the numbers of each answer")
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="a check (60)")
    parser.add_argument("--without", help="a part that the class does not do", **WITHOUT)
    options = parser.parse_args()
    folders = [Path(os.path.abspath(x)) for x in options.folders]
    if not __debug__:
        parser.error("without -O and PYTHONOPTIMIZE, which take the assertions out of tests")
    try:  # the table can be written, before hours of work are done for it
        open(options.table or os.devnull, "a").close()
    except OSError as error:
        parser.error(str(error))
    os.chdir(ROOT)
    sys.stdout.reconfigure(errors="backslashreplace")  # a console that lacks letters of a name
    if not folders:
        sys.exit(pytest.main(["-q", "tests/wrong_solutions.py"]))
    names, parts = students(folders, assignment(options.without))
    titles = [f"{part.title} ({part.points})" for part in parts]
    rows = [["name", "code", *titles, "as in the project"]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if not (options.draw or options.expected):
            tests = [*pool.map(lambda part: passing(part, options.limit), parts)]
        for name, weeks in names.items():
            try:
                files = located(weeks, parts)
                if options.expected:
                    from expected import expected  # a check's process must not have test_grpo

                    lines = expected(written(files[max(weeks)])[0])
                    print(f"{name}:", *lines, sep="\n  ", end="\n\n")
                elif options.draw:
                    draw(name, files, parts, options.draw)
                else:
                    *marks, same = grade(name, files, parts, tests, pool, options.limit)
                    cell = f"'{name}" if name[0] in "=+-@" else name  # else it is a formula
                    rows.append([cell, round(sum(marks), 2), *marks, same])
            except Exception as error:  # whatever is in this folder, the others are graded
                print(f"{name} is skipped: {error}", file=sys.stderr)
    if options.table:
        part = f"{options.table}.part"
        with open(part, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            csv.writer(file).writerows(rows)
        os.replace(part, options.table)  # the table is there as a whole, or the old one is


if __name__ == "__main__":
    main()
