"""Ticks the homework: python course/instructor/grade.py ../week-1/*

It prints a line for each folder, as soon as it knows it: which parts of the week pass, which
questions have an answer, what is missing or cannot be read, and what the first failing test
reports. A folder that is not in a folder week-1 to week-4 has the files of all weeks, and gets a
line for each of them.

An answer has at least two sentences and, except to question 1, a number.

A part passes if its command passes in a copy of the project with the student's five files of the
core. A student's loops and entries of FORMULAS go into the project's own test_grpo.py, so the tests
are the project's. The code of students can do whatever you can do on your machine, so run the
program in a container or as a user without rights.

--expected 472 prints the numbers that the answers of the student with this number should have.
Without a folder the program checks the assignment itself, by tests/wrong_solutions.py.
"""

import os
import re
import shlex
import shutil
import sys
from argparse import SUPPRESS, ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from glob import glob
from pathlib import Path
from subprocess import DEVNULL, TimeoutExpired, run
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from course.blank import WITHOUT, Part, assignment, read  # noqa: E402

FILES = ["tasks.py", "model.py", "grpo.py", "advantages.py", "train.py", "test_grpo.py"]
LIMIT = 120  # seconds of a command


def make(folder: Path, theirs: Path, part: Part) -> None:
    """Puts the project's code and tests into a folder, with what a student wrote in its place."""
    (folder / "tests").mkdir()
    for path in [*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), ROOT / "pyproject.toml"]:
        shutil.copy(path, folder / path.relative_to(ROOT))
    for file in [x for x in FILES[:5] if (theirs / x).is_file()]:
        shutil.copy(theirs / file, folder / file)
    names = part.files.get("test_grpo.py", [])
    if names:
        shutil.copy(theirs / "test_grpo.py", folder / "your_test_grpo.py")
        functions = ["FORMULAS as asked", *(x for x in names if "." not in x)]
        takes = f"\nfrom your_test_grpo import {', '.join(functions)}\n"
        entries = "".join(f"FORMULAS['{x[9:]}'] = asked['{x[9:]}']\n" for x in names if "." in x)
        # The table has some of the functions, and others are defined below it.
        ours = read(ROOT / "test_grpo.py").replace("\nFORMULAS = {", f"{takes}\nFORMULAS = {{")
        (folder / "test_grpo.py").write_text(ours + takes + entries, encoding="utf-8")


def failing(folder: Path, command: str) -> str:
    """The first test of a command that does not pass in this folder, and what it says."""
    command = [sys.executable, *shlex.split(command)[1:], "-x", "--junitxml=found.xml"]
    how = dict.fromkeys(("stdin", "stdout", "stderr"), DEVNULL) | {"cwd": folder, "timeout": LIMIT}
    how["env"] = os.environ | {"PYTHONBREAKPOINT": "0", "OMP_NUM_THREADS": "1"}
    code = None
    with suppress(TimeoutExpired):
        code = run(command, **how).returncode
    report = folder / "found.xml"  # not there if the tests ended early
    tests = [*ElementTree.parse(report).iter("testcase")] if report.exists() else []
    for test, found in [(test, found) for test in tests for found in test]:
        # A failed test begins with its docstring. A file that cannot be imported has none.
        finds = found.get("message").partition("\n\n")[0] if found.tag == "failure" else ""
        text = found.text or found.get("message")
        errors = re.findall(r"(?m)^E +(.+)", text) or text.splitlines()[-1:]
        said = [f"{test.get('name')}: {finds}", *errors[:1], *errors[1:][-1:]]
        return " ".join(" ".join(said).split())[:500]
    return "" if tests and code == 0 else f"The tests ended early, or took over {LIMIT} seconds."


def no_file(folder: Path, name: str) -> str:
    """That a file is not there, and where a file with nearly its name is."""
    near = sorted(str(x.relative_to(folder)) for x in folder.rglob(f"{Path(name).stem}*"))
    return f"There is no file {name}{''.join(f', but {x}' for x in near[:1])}."


def reason(theirs: Path, part: Part) -> str:
    """Why a part of a student's folder does not pass, or nothing if it passes."""
    missing = [file for file in part.files if not (theirs / file).is_file()]
    if missing:
        return no_file(theirs, missing[0])
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        make(Path(folder), theirs, part)
        return failing(Path(folder), part.command)


def faults(folder: Path, asked: list[str]) -> dict[str, str]:
    """What is wrong with the answer to each question, or nothing."""
    answers = folder / "answers.md"
    if not answers.is_file():
        return dict.fromkeys(asked, no_file(folder, "answers.md"))
    page = answers.read_text(encoding="utf-8-sig", errors="replace")
    if "\ufffd" in page or "\0" in page:
        return dict.fromkeys(asked, "answers.md is not a text in UTF-8.")
    page = re.sub(r"(?ms)^```.*?(^```|\Z)", lambda x: x[0].replace("\n##", "\n#"), page)
    found = dict(re.findall(r"(?ms)^## *(\d+|Week 4)\b(.*?)(?=^## *\w|\Z)", page))
    wrong = dict.fromkeys(asked, "")
    for x in asked:
        answer = found.get(x, "").strip()
        if x not in found:
            wrong[x] = f"There is no heading ## {x} outside of blocks of code."
        elif len(re.findall(r"[.!?][)*\"']*(?:\s|$)", answer)) < 2:
            wrong[x] = f"Answer {x} has fewer than two sentences."
        elif x != "1" and not re.search(r"\d", answer):
            wrong[x] = f"Answer {x} has no number."
    return wrong


def line(folder: Path, week: str, parts: list[Part]) -> str:
    """What a folder has of a week."""
    begins = f"{folder.parent.name}/{folder.name}, week {week}:"
    asked = [part.number for part in parts if part.week == week] + ["Week 4"] * (week == "4")
    if not asked or not folder.is_dir():
        return f"{begins} no tick. " + ("There is no such folder." if asked else "It has no parts.")
    try:
        why = {part.number: reason(folder, part) for part in parts if part.week == week}
        wrong = faults(folder, asked)
    except Exception as error:  # whatever is in this folder, the others get their lines
        return f"{begins} no tick. {error}"
    passed, good = ([x for x in faulty if not faulty[x]] for faulty in (why, wrong))
    tick = "tick" if len(passed) >= len(why) - 1 and good == asked else "no tick"
    facts = f"{tick}; parts {' '.join(passed) or 'none'}; answers {', '.join(good) or 'none'}."
    said = [f"Part {number}: {why[number]}" for number in why if why[number]][:1]
    return " ".join([begins, facts, *filter(None, dict.fromkeys(wrong.values())), *said])


def main() -> None:
    parser = ArgumentParser("grade.py", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=os.path.abspath, help="files of a student")
    parser.add_argument("--expected", type=int, metavar="S", help="what S's answers should have")
    parser.add_argument("--without", help="a part that the class does not do", **WITHOUT)
    options = parser.parse_args()
    os.chdir(ROOT)
    sys.stdout.reconfigure(errors="backslashreplace")  # a console that lacks letters of a name
    if options.expected is not None:
        from expected import expected

        print(*expected(options.expected), sep="\n")
    elif not options.folders:
        sys.exit(run([sys.executable, "-m", "pytest", "-q", "tests/wrong_solutions.py"]).returncode)
    weeks = re.compile(r"\bweek-([1-4])[\\/][^\\/]+$")
    there = [y for x in options.folders for y in sorted(glob(x)) or [x]]  # cmd leaves a * to us
    asked = [(Path(x), week) for x in there for week in weeks.findall(x) or "1234"]
    allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count()))(0)
    with ThreadPoolExecutor(len(allowed)) as pool:
        for found in pool.map(lambda x: line(*x, assignment(options.without)), asked):
            print(found, flush=True)


if __name__ == "__main__":
    main()
