"""Tries what a student wrote with the project's tests, in a separate process.

A test counts if it ran and passed. One that is skipped, expected to fail or not reached does not.
"""

import ast
import json
import multiprocessing
import os
import shlex
import re
import shutil
import signal
import sys
import traceback
from collections import namedtuple
from contextlib import suppress
from copy import copy
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FunctionType

import pytest

from course.blank import bound, is_blank, locate, read

ROOT = Path(__file__).resolve().parents[2]
# No options and plugins but these, no output, and nothing that is kept after the check.
QUICK = "-c pyproject.toml --disable-plugin-autoload --noconftest -p no:cacheprovider --capture=no"
QUICK += " -p no:terminal -p no:unraisableexception --basetemp=made -o addopts="
# What a check may use: bytes of memory, and bytes of a file that it writes.
LIMITS = {"RLIMIT_DATA": 4 << 30, "RLIMIT_FSIZE": 100 << 20}
# Processes come from a server that has imported packages once, where there are such servers. An
# optimiser and assert_close would otherwise import torch._dynamo, or parts of it, in every check.
PROCESSES = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
PROCESSES.set_forkserver_preload(["numpy", "pytest", "tokenizers", "torch._dynamo", "tqdm"])


# A number that differs, in what an assertion says: of tensors, a single one, a table's first row.
DIFFERS = re.compile(
    r"(?m)^(Greatest absolute .+ at index .+?) \(|^(Expected .+ but got .+)\.$"
    r"|(Obtained: .+)\n.*(Expected: .+)|(Index .+)\n(.+)"
)
CORE = ("tasks.py", "model.py", "grpo.py", "advantages.py", "train.py")
LOOPS = {"by_loops", "loss_by_loops"}  # what computes the first versions
Found = namedtuple("Found", "passed failed notes")


class Results:
    """A plugin of pytest: which tests pass, and why others do not."""

    def __init__(self):
        self.passed = []
        self.failed = {}  # test -> its docstring, and what its exception says

    def pytest_collection_finish(self):
        """From now on the two versions of a formula cannot call each other."""
        modules = [x for name, x in sys.modules.items() if name.startswith("test_")]
        tables = [*map(vars, modules), vars(sys.modules["advantages"]), vars(sys.modules["grpo"])]
        tables += [sys.modules["test_grpo"].FORMULAS, sys.modules["advantages"].VARIANTS]
        for table in tables:
            for name, x in [*table.items()]:
                given = getattr(x, "__module__", "") in ("test_grpo", "advantages", "grpo")
                if isinstance(x, FunctionType) and given and not name.startswith("test_"):
                    table[name] = compared(x)

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:  # an expected failure is reported as skipped
            self.passed.append(report.nodeid)

    def pytest_exception_interact(self, node, call):  # node: a test, or a file that is collected
        words = (getattr(node, "function", lambda: 0).__doc__ or "").split()
        said = call.excinfo.exconly().removeprefix("AssertionError").removeprefix(": ")
        number = DIFFERS.search(said)
        if not re.match("assert|Tensor-likes|Scalars", said) or not number:
            words += ["Here:", said.split("\n")[0][:200]]
        if number:
            parts = [part for part in number.groups() if part]
            words += (
                ["Here:", *parts] if len(parts) < 3 else ["Here: {}: {} is not {}".format(*parts)]
            )
        name = getattr(node, "originalname", "The tests cannot be run")
        self.failed.setdefault(name, " ".join(words))


def compared(function):
    """A function that refuses to be called by the other version of what it computes."""

    @wraps(function)
    def called(*given, **more):
        frame = sys._getframe(1)
        other = Path(frame.f_code.co_filename).name in CORE
        if function.__module__ != "test_grpo":
            other = any(x.f_code.co_name in LOOPS for x, _ in traceback.walk_stack(frame))
        assert not other, f"The function calls {function.__name__}, which it is compared with."
        return function(*given, **more)

    return called


def merge(mine: list[ast.stmt], theirs: list[ast.stmt]) -> list[str]:
    """Puts a student's own statements among the project's, in the student's order.

    What binds a name that the project's file has is left out, and these names are returned.
    """
    place = {name: i for i, statement in enumerate(mine) for name in bound(statement)}
    same = {plain(statement) for statement in mine}
    after = {i: [statement] for i, statement in enumerate(mine)}
    last = 0  # behind which of the project's statements the next one comes
    refused = []
    for statement in theirs:
        taken = sorted({*bound(statement)} & place.keys())
        last = max([last, *(place[name] for name in taken)])
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            news = [x for x in statement.names if (x.asname or x.name.split(".")[0]) not in place]
            if not news:
                continue
            statement.names, taken = news, []
        if plain(statement) in same:
            continue
        refused += taken
        after[last] += [] if taken else [statement]
    mine[:] = sum(after.values(), [])
    return refused


def plain(node: ast.AST, renamed=False) -> str:
    """The syntax of a statement without its docstring; renamed: with numbers in place of names."""
    node = copy(node)
    if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
        node.body = node.body[1:]
    numbers = {}
    text = ast.dump(node)
    if renamed:
        number = lambda name: str(numbers.setdefault(name[1], len(numbers)))  # noqa: E731
        text = re.sub(r"\b(?:id|arg|name)='(\w+)'", number, text)
    return text


def combined(theirs: Path, names: list[str]) -> tuple[str, dict[str, list[str]]]:
    """The project's file with these functions and all own statements of a student's file.

    Also, under "refused", the names of what is not taken, because the project's file has it, and
    under "same", which of the functions are the project's, except for docstrings and names.
    """
    mine, theirs = ast.parse(read(ROOT / theirs.name)), ast.parse(theirs.read_bytes(), theirs.name)
    same = []
    for name in names:
        held, place = locate(mine, name)
        there, index = locate(theirs, name)
        if is_blank(there[index]):
            raise LookupError(f"{name} is blank.")
        long = len([*ast.walk(held[place])]) > 60  # a shorter one is easily found twice
        if long and plain(held[place], renamed=True) == plain(there[index], renamed=True):
            same.append(name)
        held[place] = there[index]
    refused = merge(mine.body, theirs.body)
    for name in {name.split(".")[0] for name in names}:
        holders = [x for tree in (mine, theirs) for x in tree.body if name in bound(x)]
        if isinstance(holders[0], ast.ClassDef):
            refused += [f"{name}.{x}" for x in merge(*(x.body for x in holders))]
    return ast.unparse(mine), {"refused": refused, "same": same}


def confine(limit: int) -> None:
    """In a separate process: it prints nothing, gets no options, and ends itself at a limit."""
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    for name in [name for name in os.environ if name.startswith("PYTEST")]:
        del os.environ[name]
    if os.name == "posix":  # Windows has neither groups of processes nor these limits
        import resource

        os.setsid()
        for name, most in LIMITS.items() | {("RLIMIT_CPU", limit)}:
            with suppress(ValueError):  # the machine's own limit is lower
                resource.setrlimit(getattr(resource, name), (most, most))


def run(report: Path, folder: str, command: str, limit: int, sources: dict, theirs, names) -> None:
    """In a separate process: tries a part's command, and writes what passes and what fails."""
    confine(limit)
    os.chdir(folder)
    results = Results()
    notes = {}
    try:
        if theirs:
            source, notes = combined(theirs, names)
            sources = {theirs.name: source}
        for file, source in sources.items():
            Path(file).write_text(source, encoding="utf-8")
        # The first three words are python -m pytest.
        pytest.main([*shlex.split(command)[3:], *QUICK.split()], [results])
    except Exception as error:  # a student's file may have anything in it
        said = getattr(error, "strerror", "") or str(error) or type(error).__name__
        results.failed = {"not checked": said[:200]}
    report.write_text(json.dumps([results.passed, results.failed, notes]))


def check(command: str, limit: int, sources: dict[str, str] = {}, theirs=None, names=()) -> Found:
    """Which tests of a part's command pass (list), why others fail (dict), and combined's notes.

    sources take the place of the project's files. Or theirs is a student's file, from which the
    functions with these names are taken.
    """
    temporary = TemporaryDirectory(ignore_cleanup_errors=True)
    with temporary as folder, TemporaryDirectory() as elsewhere:
        Path(folder, "tests").mkdir()
        for path in [*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), ROOT / "pyproject.toml"]:
            shutil.copy(path, Path(folder, path.relative_to(ROOT)))
        report = Path(elsewhere, "report")  # where the code that is tried does not look
        arguments = (report, folder, command, limit, sources, theirs, names)
        process = PROCESSES.Process(target=run, args=arguments)
        process.start()
        process.join(3 * limit)  # seconds on the clock: a busy machine needs more of them
        process.kill()
        with suppress(AttributeError, OSError):  # on Windows, or if it has started nothing
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        with suppress(OSError, ValueError):  # there is no report, or only a part of it
            return Found(*json.loads(report.read_text()))
    ended = f"It ended early, or took more than {limit} seconds: is there an endless loop?"
    return Found([], {"No result": ended}, {})
