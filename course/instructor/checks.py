"""Tries what a student wrote with the project's tests, in a separate process.

A test counts if it ran and passed. One that is skipped, expected to fail or not reached does not.
"""

import ast
import json
import multiprocessing
import os
import shlex
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from course.blank import bound, is_blank, locate, read

ROOT = Path(__file__).resolve().parents[2]
# No options and plugins but these, no output, and nothing that is kept after the check.
QUICK = "-c pyproject.toml --disable-plugin-autoload --noconftest -p no:cacheprovider --capture=no"
QUICK += " --assert=plain -p no:terminal -p no:unraisableexception --basetemp=made -o addopts="
# What a check may use: bytes of memory, and bytes of a file that it writes.
LIMITS = {"RLIMIT_DATA": 4 << 30, "RLIMIT_FSIZE": 100 << 20}
# Processes come from a server that has imported packages once, where there are such servers. An
# optimiser and assert_close would otherwise import torch._dynamo, or parts of it, in every check.
PROCESSES = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
PROCESSES.set_forkserver_preload(["numpy", "pytest", "tokenizers", "torch._dynamo", "tqdm"])


class Results:
    """A plugin of pytest: which tests pass, and why others do not."""

    def __init__(self):
        self.passed = []
        self.failed = {}  # test -> its docstring, and what its exception says

    def pytest_runtest_logreport(self, report):
        if report.when == "call" and report.passed:  # an expected failure is reported as skipped
            self.passed.append(report.nodeid)

    def pytest_exception_interact(self, node, call):  # node: a test, or a file that is collected
        words = (getattr(node, "function", lambda: 0).__doc__ or "").split()
        said = call.excinfo.exconly().splitlines()
        dump = len(said) > 1 and call.excinfo.errisinstance(AssertionError)  # of two tensors
        if not dump and said != ["AssertionError"]:
            words += ["Here:", said[-1].removeprefix("AssertionError: ")[:200]]
        name = getattr(node, "originalname", "The tests cannot be run")
        self.failed.setdefault(name, " ".join(words))


def combined(theirs: Path, names: list[str]) -> str:
    """The project's file with these functions from a student's, and what they need from there."""
    mine, theirs = ast.parse(read(ROOT / theirs.name)), ast.parse(theirs.read_bytes(), theirs.name)
    known = {name for statement in mine.body for name in bound(statement)}
    new = {name: x for x in theirs.body for name in bound(x) if name not in known}
    start = min(locate(mine, name.split(".")[0])[1] for name in names)
    taken = []
    for name in names:
        held, place = locate(mine, name)
        there, index = locate(theirs, name)
        if is_blank(there[index]):
            raise LookupError(f"{name} is blank.")
        held[place] = there[index]
        taken.append(there[index])
    for node in taken:  # grows by what its nodes need
        needed = [new.get(x.id) for x in ast.walk(node) if isinstance(x, ast.Name)]
        taken += [x for x in needed if x and x not in taken]
    mine.body[start:start] = [x for x in theirs.body if x in taken[len(names) :]]
    return ast.unparse(mine)


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
    try:
        if theirs:
            sources = {theirs.name: combined(theirs, names)}
        for file, source in sources.items():
            Path(file).write_text(source, encoding="utf-8")
        # The first three words are python -m pytest.
        pytest.main([*shlex.split(command)[3:], *QUICK.split()], [results])
    except Exception as error:  # a student's file may have anything in it
        said = getattr(error, "strerror", "") or str(error) or type(error).__name__
        results.failed = {"not checked": said[:200]}
    report.write_text(json.dumps([results.passed, results.failed]))


def check(command: str, limit: int, sources: dict[str, str] = {}, theirs=None, names=()):
    """Which tests of a part's command pass (list), and why others fail (dict).

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
            return json.loads(report.read_text())
    ended = f"It ended early, or took more than {limit} seconds: is there an endless loop?"
    return [], {"No result": ended}
