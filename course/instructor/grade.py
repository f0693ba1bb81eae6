"""Grades the assignment: python course/instructor/grade.py ../submissions/*

Each folder has the files of one student. A check takes the functions of one part from one of these
files, and the student's own functions and imports that they need. Everything else is the project's
code, so a mistake costs only its own part. If a test fails, the program prints the docstring of the
test, which names the mistake, and then the usual mistakes of the part.

A check runs in a copy of the project, in a separate process, for --limit seconds at most. This
protects your files from accidents. It does not protect your machine from intent, because the code
of a student can do whatever you can do there. A container is better.

Without a folder the program checks the assignment itself, by tests/wrong_solutions.py.
"""

import ast
import multiprocessing
import os
import shlex
import shutil
import sys
from argparse import SUPPRESS, ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

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
    """A plugin of pytest. Test that fails -> its docstring, and an exception that is no assert."""

    def pytest_exception_interact(self, node, call):  # node: a test, or a file that is collected
        words = (getattr(node, "function", lambda: 0).__doc__ or "").split()
        if not call.excinfo.errisinstance(AssertionError):
            words.append(call.excinfo.exconly().splitlines()[-1][:100])
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


def grade(folder: Path, parts: list[Part], pool, limit: int) -> None:
    """Prints a student's points, in all and by part, and why some are missing."""
    files = located(folder)
    if not files:
        return print(f"{folder.name:20} skipped: it has no files of the assignment, or two sets")
    work = [(part, file) for part in parts for file in part.files]
    marks = dict.fromkeys((part.title for part in parts), 0.0)
    why = []
    failed = pool.map(lambda x: graded(files, *x, limit), work)
    for (part, file), failures in zip(work, failed):
        marks[part.title] += 0 if failures else part.points / len(part.files)
        # A file that cannot be read is the same line for all its parts.
        where = file if "not checked" in failures else f"{part.title} | {file}"
        why += [f"  {where} | {test}: {text}" for test, text in failures.items()]
        why += [f"  {part.title} | usual mistakes: {part.mistakes}"] * ("test_" in str([*failures]))
    print(f"{folder.name:20} {sum(marks.values()):4g}", *(f"{n:4g}" for n in marks.values()))
    print(*dict.fromkeys(why), sep="\n", end="\n" * bool(why), flush=True)


def main() -> None:
    parser = ArgumentParser("grade.py", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="a student's files")
    parser.add_argument("--limit", type=int, default=60, metavar="SECONDS", help="a check (60)")
    parser.add_argument("--without", help="a part that the class does not do", **WITHOUT)
    options = parser.parse_args()
    folders = [folder.resolve() for folder in options.folders]
    os.chdir(ROOT)
    if not folders:
        sys.exit(pytest.main(["-q", "tests/wrong_solutions.py"]))
    parts = [part for part in assignment(options.without) if part.points]
    points = [part.points for part in parts]
    print(f"{'points by part':20} {sum(points):4}", *(f"{n:4}" for n in points))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for folder in folders:
            grade(folder, parts, pool, options.limit)


if __name__ == "__main__":
    main()
