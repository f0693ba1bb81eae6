"""Grades the assignment: python course/instructor/grade.py ../submissions/* --table marks.csv

Each folder has the files of one student. A check takes the functions of one part from one of these
files, and the student's own functions and imports that they need. Everything else is the project's
code, so a mistake costs only its own part. If a test fails, the program prints the docstring of the
test, the message of its assertion if it has one, and the usual mistakes of the part.
With --draw WORD it draws two questions for each student and prints the answers in place of grading.
With --expected it prints the numbers that each student's answers should have.

A check gives its points if all tests pass that pass with the project's own code. A test that is
skipped or not reached has not passed. If one fails, each function is tried without the student's
others, and has an equal share of the points. A check runs in a copy of the project, in a separate
process, for --limit seconds at most, with limited memory and without its output. This protects your
files and the points of the other students from accidents. It does not protect your machine from
intent, because the code of a student can do whatever you can do there. A container is better.

Without a folder the program checks the assignment itself, by tests/wrong_solutions.py.
"""

import csv
import os
import random
import re
import sys
from argparse import SUPPRESS, ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import fill

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]
from checks import check  # noqa: E402
from course.blank import WITHOUT, Part, assignment, read  # noqa: E402


def graded(part: Part, theirs: Path, limit: int, tests: list[str]) -> dict[str, str]:
    """Why a student's file loses points of a part; empty if it gets all of them."""
    passed, failed = check(part.command, limit, theirs=theirs, names=part.files[theirs.name])
    missing = {*tests} - {*passed}
    ended = f"{len(missing)} of {len(tests)} tests were skipped or not reached."
    return (failed or {"not passed": ended}) if missing else {}


def shared(part: Part, theirs: Path, limit: int, tests: list[str]) -> tuple[dict[str, str], float]:
    """Why a file loses points, and which share it gets: that of its functions that are right."""
    why = graded(part, theirs, limit, tests)
    names = part.files[theirs.name]
    if not why or len(names) == 1 or "No result" in why:  # an endless loop is not tried again
        return why, float(not why)
    alone = [part._replace(files={theirs.name: [name]}) for name in names]
    return why, [graded(x, theirs, limit, tests) for x in alone].count({}) / len(names)


def located(folder: Path, parts: list[Part]) -> Path:
    """Where a student's files are: in the folder, or in the only folder in it that has some."""
    names = [file for part in parts for file in part.files]
    places = [*folder.glob("*.py"), *folder.glob("*/*.py")]
    found = {path.parent for path in places if path.name in names and path.is_file()}
    if folder not in found and len(found) != 1:
        raise LookupError("it has no files of the assignment, or two sets of them")
    return folder if folder in found else found.pop()


def passing(part: Part, limit: int) -> list[str]:
    """The tests of a part, which all pass with the project's own code."""
    passed, failed = check(part.command, limit)
    if failed or not passed:
        sys.exit(f"The project's own code fails in {part.title}, so nothing is graded: {failed}")
    return passed


def grade(name: str, files: Path, parts: list[Part], tests, pool, limit: int) -> list[float]:
    """Prints the points of a student, part by part, and why some are missing. Returns them.

    tests: a part's number in the list -> the tests that have to pass.
    """
    work = [(part, files / file, limit, x) for part, x in zip(parts, tests) for file in part.files]
    found = pool.map(shared, *zip(*work))
    marks = []
    lines = []
    for part in parts:
        results = {file: next(found) for file in part.files}
        why = {file: reasons for file, (reasons, _) in results.items()}
        share = sum(share for _, share in results.values()) / len(results)
        marks.append(round(part.points * share, 2))
        lines.append(f"  {part.title}: {marks[-1]:g} of {part.points} points")
        items = [f"{file}, {x}: {text}" for file in why for x, text in why[file].items()]
        items += [f"Usual mistakes: {part.mistakes}"] * (", test_" in str(items))
        lines += [fill(x, 98, initial_indent=" " * 6, subsequent_indent=" " * 8) for x in items]
    print(f"{name}: {sum(marks):g} of {sum(part.points for part in parts)} points for code")
    print(*lines, sep="\n", end="\n\n", flush=True)
    return marks


def short_names(folders: list[Path]) -> dict[Path, str]:
    """folder -> the shortest end of its path that no other folder has, so that namesakes differ."""
    names = {}
    for folder in folders:
        n = 1
        while [x.parts[-n:] for x in folders].count(folder.parts[-n:]) > 1:
            n += 1
        names[folder] = "/".join(folder.parts[-n:])
    return names


def written(files: Path) -> tuple[str, str]:
    """The first line of a student's answers.md, and all of it."""
    page = files / "answers.md"
    text = page.read_text(encoding="utf-8-sig", errors="replace") if page.is_file() else ""
    return (text.splitlines() or ["no answers.md"])[0], text


def draw(name: str, files: Path, parts: list[Part], word: str) -> None:
    """Prints a student's questions, what a full answer has, and what the student wrote."""
    marked = read(ROOT / "course/instructor/model_answers.md")
    rubric = dict(re.findall(r"(?s)\n## (\d+)\n\n\*What 3 points need:\* (.+?)\n\n", marked))
    first, text = written(files)
    answers = dict(re.findall(r"(?ms)^## *(\d+)\b(.*?)(?=^## |\Z)", text))
    numbered = {part.title.split(".")[0]: part for part in parts}
    drawn = [word] if word in numbered else random.Random(word + name).sample([*numbered], 2)
    for n in sorted(drawn, key=int):
        answer = answers.get(n, f"Nothing is below a heading ## {n}.").strip()
        print(f"{name} ({first}): {numbered[n].title}\n\n{numbered[n].question}")
        print(f"\nA full answer: {rubric[n]}\n\nThe answer: {answer}\n", "-" * 98, sep="\n")


def main() -> None:
    parser = ArgumentParser("grade.py", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a student's files")
    parser.add_argument("--table", type=os.path.abspath, metavar="FILE", help="points as CSV")
    parser.add_argument("--draw", metavar="WORD", help="two questions for each, or this number's")
    parser.add_argument("--expected", action="store_true", help="the numbers of each answer")
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="a check (60)")
    parser.add_argument("--without", help="a part that the class does not do", **WITHOUT)
    options = parser.parse_args()
    folders = dict.fromkeys(Path(os.path.abspath(x)) for x in options.folders)
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
    parts = [part for part in assignment(options.without) if part.points]
    rows = [["name", "code", *(f"{part.title} ({part.points})" for part in parts)]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if not (options.draw or options.expected):
            tests = [*pool.map(lambda part: passing(part, options.limit), parts)]
        for folder, name in short_names([*folders]).items():
            try:
                files = located(folder, parts)
                if options.expected:
                    from expected import expected  # a check's process must not have test_grpo

                    lines = expected(written(files)[0])
                    print(f"{name}:", *lines, sep="\n  ", end="\n\n")
                elif options.draw:
                    draw(name, files, parts, options.draw)
                else:
                    marks = grade(name, files, parts, tests, pool, options.limit)
                    cell = f"'{name}" if name[0] in "=+-@" else name  # else it is a formula
                    rows.append([cell, sum(marks), *marks])
            except Exception as error:  # whatever is in this folder, the others are graded
                print(f"{name} is skipped: {error}", file=sys.stderr)
    if options.table:
        part = f"{options.table}.part"
        with open(part, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            csv.writer(file).writerows(rows)
        os.replace(part, options.table)  # the table is there as a whole, or the old one is


if __name__ == "__main__":
    main()
