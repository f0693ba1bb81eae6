"""Grades the assignment: python course/instructor/grade.py ../week-*/* --table marks.csv

A folder week-2/anna has what Anna handed in for week 2, and any other folder has all weeks. A check
takes the functions of one part from a file of the part's week, and the student's own statements at
the top of this file. Everything else is the project's code, so a mistake costs only its own part.
If a test fails, the program prints its docstring, and what its assertion says with the number that
differs. The last column of the table names functions that are the project's, except for docstrings
and names. They keep their points: it is you who asks about them.

In place of grading, --draw WORD draws two questions for each student and prints the answers, and
what was handed in for week 4. --expected prints the numbers that each student's answers should
have. --talks WORD FOLDER prepares the talks (talk.py).

A check gives its points if all tests pass that pass with the project's own code. A test that is
skipped or not reached has not passed. If one fails, each function is tried without the student's
others, and loses the points of each group of tests that fails with it (groups). A function that
calls the other version of its formula is not checked. A check runs in a copy of the project, in a
separate process, with limited time and memory and without its output. This protects your files and
the points of the other students from accidents. It does not protect your machine from intent,
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
from checks import Found, graded, passing  # noqa: E402
from submissions import located, students, written  # noqa: E402
from talk import prepare  # noqa: E402
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


def shared(part: Part, theirs: Path, tests: list[str]) -> tuple[Found, list[Group]]:
    """What a file gives, and the groups whose points it loses, each function tried alone."""
    found = graded(part, theirs, tests)
    names = part.files[theirs.name]
    passed = dict.fromkeys(names, found.passed)
    if found.failed and len(names) > 1 and "No result" not in found.failed:
        for name in names:  # after an endless loop, none is tried again
            alone = part._replace(files={theirs.name: [name]})
            passed[name] = graded(alone, theirs, tests).passed
    of_file = groups(part, theirs.name, tests)
    right = [x for x in of_file if x.tests and {*x.tests} <= {*passed[x.function]}]
    return found, [x for x in of_file if found.failed and x not in right]


def grade(name: str, files: dict, parts: list[Part], tests: list[list[str]], pool) -> list:
    """Prints the points of a student, part by part, and why some are missing.

    files: a week -> the folder of it. tests: of each part those that have to pass. Returns the
    points, and the functions that are the project's except for names.
    """
    pairs = [(part, file, x) for part, x in zip(parts, tests) for file in part.files]
    results = pool.map(lambda p, file, x: shared(p, files[p.week] / file, x), *zip(*pairs))
    asked = {x.split(".")[0] for part in assignment() for x in sum(part.files.values(), [])}
    marks = []
    lines = []
    same = []
    refused = {}  # without a value: in their order, and each once
    for part in parts:
        points = float(part.points)
        items = []
        for file, (found, lost) in zip(part.files, results):
            points -= sum(group.points for group in lost)
            items += [f"{x.function}, {x.words or 'as a whole'}: -{x.points:g}" for x in lost]
            items += [f"{file}, {test}: {text}" for test, text in found.failed.items()]
            same += found.notes.get("same", [])
            left = [x for x in found.notes.get("refused", []) if x not in asked]
            refused |= dict.fromkeys(f"{x} ({file})" for x in left)
        marks.append(round(points, 2))
        lines.append(f"  {part.title}: {marks[-1]:g} of {part.points} points")
        lines += [fill(x, 98, initial_indent=" " * 6, subsequent_indent=" " * 8) for x in items]
    if refused:
        why = "the project's file has it, or it calls the other version of a formula"
        lines.append(f"  Not taken, because {why}: {', '.join(refused)}")
    print(f"{name}: {sum(marks):g} of {sum(part.points for part in parts)} points for code")
    print(*lines, sep="\n", end="\n\n", flush=True)
    return [*marks, " ".join(same)]


def draw(name: str, files: dict[str, Path], parts: list[Part], word: str) -> None:
    """Prints a student's questions, what a full answer has, and what the student wrote in time."""
    marked = read(ROOT / "course/instructor/model_answers.md")
    rubric = dict(re.findall(r"(?s)\n## (\d+)\n\n\*What 3 points need:\* (.+?)\n\n", marked))
    for part in sorted(random.Random(word + name).sample(parts, 2), key=parts.index):
        n = part.title.split(".")[0]
        first, text = written(files[part.week])
        answers = dict(re.findall(r"(?ms)^## *(\d+)\b(.*?)(?=^## |\Z)", text))
        answer = answers.get(n, f"Nothing is below a heading ## {n}.").strip()
        print(f"{name} ({first}): {part.title}\n\n{part.question}")
        print(f"\nA full answer: {rubric[n]}\n\nThe answer: {answer}\n", "-" * 98, sep="\n")
    if "4" in files:
        last = written(files["4"])[1].partition("## Week 4")[2]
        print(f"{name}: Week 4{last}", "-" * 98, sep="\n")


def main() -> None:
    parser = ArgumentParser("grade.py", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=os.path.abspath, help="files of a student")
    parser.add_argument("--table", default=os.devnull, metavar="FILE", help="points as CSV")
    parser.add_argument("--draw", metavar="WORD", help="two answers of each student")
    parser.add_argument("--expected", action="store_true", help="the numbers of each answer")
    parser.add_argument("--talks", nargs=2, metavar=("WORD", "FOLDER"), help="questions, mistakes")
    parser.add_argument("--without", help="a part that the class does not do", **WITHOUT)
    options = parser.parse_args()
    try:  # before hours of work are done for it
        file = open(options.table, "w", encoding="utf-8", errors="backslashreplace", newline="")
    except OSError as error:
        parser.error(str(error))
    table = csv.writer(file)
    out = Path(os.path.abspath(options.talks[1])) if options.talks else None
    os.chdir(ROOT)
    sys.stdout.reconfigure(errors="backslashreplace")  # a console that lacks letters of a name
    if not options.folders:
        sys.exit(pytest.main(["-q", "tests/wrong_solutions.py"]))
    names, parts = students(options.folders, assignment(options.without))
    titles = [f"{part.title} ({part.points})" for part in parts]
    table.writerow(["name", "code", *titles, "as in the project"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if not (options.draw or options.expected or options.talks):
            tests = [*pool.map(passing, parts)]
        for name, weeks in names.items():
            try:
                files = located(weeks, parts)
                if options.expected:
                    from expected import expected  # a check's process must not have test_grpo

                    lines = expected(written(files[max(weeks)])[0])
                    print(f"{name}:", *lines, sep="\n  ", end="\n\n")
                elif options.talks:
                    prepare(name, files, parts, options.talks[0], out)
                elif options.draw:
                    draw(name, files, parts, options.draw)
                else:
                    *marks, same = grade(name, files, parts, tests, pool)
                    cell = f"'{name}" if name[0] in "=+-@" else name  # else it is a formula
                    table.writerow([cell, round(sum(marks), 2), *marks, same])
            except Exception as error:  # whatever is in this folder, the others are graded
                print(f"{name} is skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
