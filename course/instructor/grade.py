"""Grades the assignment: python course/instructor/grade.py ../submissions/* --table marks.csv

Each folder has the files of one student. A check takes the functions of one part from one of these
files, and the student's own functions and imports that they need. Everything else is the project's
code, so a mistake costs only its own part. If a test fails, the program prints the docstring of the
test, the message of its assertion if it has one, and the usual mistakes of the part.
With --draw WORD it draws two questions for each student and prints the answers in place of grading.

A check runs in a copy of the project, in a separate process, for --limit seconds at most. This
protects your files from accidents. It does not protect your machine from intent, because the code
of a student can do whatever you can do there. A container is better.

Without a folder the program checks the assignment itself, by tests/wrong_solutions.py.
"""

import ast
import csv
import multiprocessing
import os
import random
import re
import shlex
import shutil
import sys
from argparse import SUPPRESS, ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from course.blank import WITHOUT, Part, assignment, bound, locate, read  # noqa: E402

LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "runs", "course", "studies", "tools")
QUICK = "--assert=plain -p no:terminal -p no:cacheprovider -p no:unraisableexception".split()
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
# Processes come from a server that has imported torch once, where there are such servers.
PROCESSES = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
PROCESSES.set_forkserver_preload(["numpy", "pytest", "tokenizers", "torch", "tqdm"])


class Failures(dict):
    """A plugin of pytest. Test that fails -> its docstring, and what its exception says."""

    def pytest_exception_interact(self, node, call):  # node: a test, or a file that is collected
        words = (getattr(node, "function", lambda: 0).__doc__ or "").split()
        said = call.excinfo.exconly().splitlines()
        dump = len(said) > 1 and call.excinfo.errisinstance(AssertionError)  # of two tensors
        if not dump and said != ["AssertionError"]:
            words += ["Here:", said[-1].removeprefix("AssertionError: ")[:200]]
        self.setdefault(getattr(node, "originalname", "The tests cannot be run"), " ".join(words))


def run(folder: str, command: str, limit: int) -> None:
    """In a separate process: runs a part's command, and writes what fails."""
    os.chdir(folder)
    if os.name == "posix":  # Windows does not limit the processor time
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    failures = Failures()
    # The first three words are python -m pytest.
    status = pytest.main([*shlex.split(command)[3:], *QUICK], [failures])
    failures = failures or {"pytest": f"It ended with status {status}."} if status else {}
    Path("failures").write_text(repr(failures), encoding="utf-8")


def check(sources: dict[str, str], command: str, limit: int) -> dict[str, str]:
    """What fails of a part's command with these sources in place of the project's."""
    with TemporaryDirectory() as folder:
        shutil.copytree(ROOT, folder, ignore=LEFT_OUT, dirs_exist_ok=True)
        for file, source in sources.items():
            Path(folder, file).write_text(source, encoding="utf-8")
        process = PROCESSES.Process(target=run, args=(folder, command, limit))
        process.start()
        process.join(10 * limit)  # seconds on the clock: a busy machine needs more of them
        process.kill()
        process.join()
        left = Path(folder, "failures")
        ended = f"It ended early, or took more than {limit} seconds: is there an endless loop?"
        return ast.literal_eval(read(left)) if left.exists() else {"No result": ended}


def combined(file: str, source: str, names: list[str]) -> str:
    """The project's file with these functions from another source, and what they need from it."""
    mine, theirs = ast.parse(read(ROOT / file)), ast.parse(source, file)
    known = {name for statement in mine.body for name in bound(statement)}
    new = {name: x for x in theirs.body for name in bound(x) if name not in known}
    start = min(locate(mine, name.split(".")[0])[1] for name in names)
    taken = []
    for name in names:
        held, place = locate(mine, name)
        there, index = locate(theirs, name)
        if ast.unparse(there[index]).endswith("raise NotImplementedError"):
            raise LookupError(f"{name} is blank.")
        held[place] = there[index]
        taken.append(there[index])
    for node in taken:  # grows by what its nodes need
        needed = [new.get(x.id) for x in ast.walk(node) if isinstance(x, ast.Name)]
        taken += [x for x in needed if x and x not in taken]
    mine.body[start:start] = [x for x in theirs.body if x in taken[len(names) :]]
    return ast.unparse(mine)


def graded(folder: Path, part: Part, file: str, limit: int) -> dict[str, str]:
    """What fails of a part with the functions that a student wrote in one file."""
    try:
        source = (folder / file).read_text(encoding="utf-8-sig")
        return check({file: combined(file, source, part.files[file])}, part.command, limit)
    except (SyntaxError, OSError, ValueError, LookupError) as error:
        return {"not checked": str(error)}


def located(folder: Path) -> Path | None:
    """Where a student's files are: in the folder, or in the only folder in it that has Python."""
    found = {path.parent for path in [*folder.glob("[a-z]*.py"), *folder.glob("*/[a-z]*.py")]}
    return folder if folder in found else found.pop() if len(found) == 1 else None


def grade(name: str, files: Path, parts: list[Part], pool, limit: int) -> list[float]:
    """Prints the points of a student, part by part, and why some are missing. Returns them."""
    work = [(part, file) for part in parts for file in part.files]
    failed = pool.map(lambda x: graded(files, *x, limit), work)
    marks = []
    lines = []
    for part in parts:
        why = {file: next(failed) for file in part.files}
        marks.append(part.points * list(why.values()).count({}) / len(why))
        lines.append(f"  {part.title}: {marks[-1]:g} of {part.points} points")
        items = [f"{file}, {x}: {text}" for file in why for x, text in why[file].items()]
        items += [f"Usual mistakes: {part.mistakes}"] * (", test_" in str(items))
        lines += [fill(x, 98, initial_indent=" " * 6, subsequent_indent=" " * 8) for x in items]
    print(f"{name}: {sum(marks):g} of {sum(part.points for part in parts)} points for code")
    print(*lines, sep="\n", end="\n\n", flush=True)
    return marks


def draw(name: str, files: Path, parts: list[Part], word: str) -> None:
    """Prints a student's questions, what a full answer has, and what the student wrote."""
    rubric = read(ROOT / "course/instructor/README.md").split("## Rubric")[1]
    rubric = dict(re.findall(r"(?s)\n(\d+)\. (.+?)(?=\n\d+\. |\n\n|$)", rubric))
    page = files / "answers.md"
    text = page.read_text(encoding="utf-8-sig", errors="replace") if page.exists() else ""
    first, *_ = text.splitlines() or ["no answers.md"]
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
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="a check (60)")
    parser.add_argument("--without", help="a part that the class does not do", **WITHOUT)
    options = parser.parse_args()
    found = {x.resolve(): located(x.resolve()) for x in options.folders}
    os.chdir(ROOT)
    if not found:
        sys.exit(pytest.main(["-q", "tests/wrong_solutions.py"]))
    parts = [part for part in assignment(options.without) if part.points]
    rows = [["name", "code", *(f"{part.title} ({part.points})" for part in parts)]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for folder, files in found.items():
            if not files:
                why = "it has no files of the assignment, or two sets of them"
                print(f"{folder.name} is skipped: {why}", file=sys.stderr)
            elif options.draw:
                draw(folder.name, files, parts, options.draw)
            else:
                marks = grade(folder.name, files, parts, pool, options.limit)
                rows.append([folder.name, sum(marks), *marks])
    if options.table:
        with open(options.table, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)


if __name__ == "__main__":
    main()
