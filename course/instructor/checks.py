"""Tries what a student wrote with the project's tests, in a separate process.

A test counts if it ran and passed. One that is skipped, expected to fail or not reached does not.
"""

import ast
import multiprocessing
import os
import re
import shlex
import shutil
import sys
from collections import namedtuple
from contextlib import suppress
from copy import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from course.blank import Part, bound, is_blank, locate, read

ROOT = Path(__file__).resolve().parents[2]
# No options and plugins but these, no output, and nothing that is kept after the check.
QUICK = "-c pyproject.toml --disable-plugin-autoload --noconftest -p no:cacheprovider --capture=no"
QUICK += " -p no:terminal -p no:unraisableexception --basetemp=made -o addopts="
LIMIT = 120  # seconds of a check
# Processes come from a server that has imported packages once, where there are such servers. An
# optimiser and assert_close would otherwise import torch._dynamo, or parts of it, in every check.
PROCESSES = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
PROCESSES.set_forkserver_preload(["numpy", "pytest", "tokenizers", "torch._dynamo", "tqdm"])
# Code that calls the version which it is compared with: the loops, and the functions of the core.
LOOPS = re.compile("'test_(?:core|grpo|parts|train)'")
CORE = re.compile(
    r"(?:module=|Attribute\(value=Name\(id=)'(?:advantages|grpo|train)'"
    r"|id='(?:apply|policy_loss|with_advantages|VARIANTS)'"
)

Found = namedtuple("Found", "passed failed notes")


class Results:
    """A plugin of pytest: which tests pass, and why others do not."""

    def __init__(self):
        self.passed = []
        self.failed = {}  # test -> its docstring, and what its exception says

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:  # an expected failure is reported as skipped
            self.passed.append(report.nodeid)

    def pytest_exception_interact(self, node, call):  # node: a test, or a file that is collected
        finds = getattr(node, "function", Results).__doc__ or ""
        said = call.excinfo.exconly().removeprefix("AssertionError: ").split("\n +  where")[0]
        if len(said) > 400:  # numbers that differ are at the end
            said = f"{said[:150]} ... {said[-250:]}"
        name = getattr(node, "originalname", "The tests cannot be run")
        self.failed.setdefault(name, " ".join(f"{finds} Here: {said}".split()))


def merge(mine: list[ast.stmt], theirs: list[ast.stmt], forbidden: re.Pattern) -> list[str]:
    """Puts a student's own statements among the project's, in the student's order.

    What binds a name that the project's file has, or calls what it is compared with, is left out.
    Returns the names that are left out. Imports come first, so the project's names win.
    """
    place = {name: i for i, statement in enumerate(mine) for name in bound(statement)}
    same = {plain(statement) for statement in mine}
    after = {i: [statement] for i, statement in enumerate(mine)}
    last = 0  # behind which of the project's statements the next one comes
    imports = []
    refused = []
    for statement in theirs:
        names = bound(statement)
        taken = [name for name in names if name in place]
        last = max([last, *(place[name] for name in taken)])
        if plain(statement) in same:
            continue
        if forbidden.search(plain(statement)):
            refused += names
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            imports.append(statement)
        elif taken:
            refused += taken
        else:
            after[last].append(statement)
    mine[:] = imports + sum(after.values(), [])
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

    Also, under "refused", the names that merge leaves out, and under "same", which of the functions
    are the project's, except for docstrings and names.
    """
    forbidden = CORE if theirs.name == "test_grpo.py" else LOOPS
    mine, theirs = ast.parse(read(ROOT / theirs.name)), ast.parse(theirs.read_bytes(), theirs.name)
    same = []
    for name in names:
        held, place = locate(mine, name)
        there, index = locate(theirs, name)
        if is_blank(there[index]):
            raise LookupError(f"{name} is blank.")
        if forbidden.search(plain(there[index])):
            raise LookupError(f"{name} calls what it is compared with.")
        long = len([*ast.walk(held[place])]) > 60  # a shorter one is easily found twice
        if long and plain(held[place], renamed=True) == plain(there[index], renamed=True):
            same.append(name)
        held[place] = there[index]
    refused = merge(mine.body, theirs.body, forbidden)
    for name in {name.split(".")[0] for name in names}:
        holders = [x for tree in (mine, theirs) for x in tree.body if name in bound(x)]
        if isinstance(holders[0], ast.ClassDef):
            refused += [f"{name}.{x}" for x in merge(*(x.body for x in holders), forbidden)]
    return ast.unparse(mine), {"refused": refused, "same": same}


def run(sender, folder: str, command: str, theirs: Path | None, names: list[str]) -> None:
    """In a separate process: tries a part's command, and sends what passes and what fails."""
    for stream in (1, 2):  # it prints nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    with suppress(ImportError, ValueError):  # not on Windows; or the limit is lower already
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, 4 << 30))  # bytes
    os.chdir(folder)
    results = Results()
    notes = {}
    try:
        if theirs:
            source, notes = combined(theirs, names)
            Path(theirs.name).write_text(source, encoding="utf-8")
        # The first three words are python -m pytest.
        pytest.main([*shlex.split(command)[3:], *QUICK.split()], [results])
    except Exception as error:  # a student's file may have anything in it
        said = getattr(error, "strerror", "") or str(error) or type(error).__name__
        results.failed = {"not checked": said[:200]}
    sender.send(Found(results.passed, results.failed, notes))


def check(command: str, theirs: Path | None = None, names: list[str] = []) -> Found:
    """Which tests of a part's command pass (list), why others fail (dict), and combined's notes.

    theirs: a student's file, from which the functions with these names are taken.
    """
    receiver, sender = PROCESSES.Pipe(duplex=False)
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder, "tests").mkdir()
        for path in [*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), ROOT / "pyproject.toml"]:
            shutil.copy(path, Path(folder, path.relative_to(ROOT)))
        process = PROCESSES.Process(target=run, args=(sender, folder, command, theirs, names))
        process.start()
        sender.close()
        ended = f"It ended early, or took more than {LIMIT} seconds: is there an endless loop?"
        found = Found([], {"No result": ended}, {})
        with suppress(EOFError):  # it ended early
            found = receiver.recv() if receiver.poll(LIMIT) else found
        process.join(1)  # it ends by itself, except if there is a loop
        process.kill()
    return found


def passing(part: Part) -> list[str]:
    """The tests of a part, which all pass with the project's own code."""
    passed, failed, _ = check(part.command)
    if failed or not passed:
        sys.exit(f"The project's own code fails in {part.title}, so nothing is graded: {failed}")
    return passed


def graded(part: Part, theirs: Path, tests: list[str]) -> Found:
    """What a student's file gives for a part; a reason is in failed unless all tests passed."""
    found = check(part.command, theirs, part.files[theirs.name])
    missing = {*tests} - {*found.passed}
    ended = f"{len(missing)} of {len(tests)} tests were skipped or not reached."
    return found._replace(failed=(found.failed or {"not passed": ended}) if missing else {})
