"""The training runs that studies rest on. This file has no command.

The runs of one seed have that seed for the base model as well, so all variants and controls of a
seed start from the same weights. (Another processor makes other weights, so runs that are compared
are made on one processor.) A finished run is used again if its settings are the same and the code
that made it is the same. For this purpose its folder has a file code.txt with a hash of that code,
in which comments and docstrings do not count.
"""

import ast
import hashlib
import json
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import train
from advantages import VARIANTS
from studies.ablations import CONTROLS
from studies.common import read_rows
from studies.protocol import ROWS, chosen_rate
from tools.ask import finished

TRAINED = VARIANTS | CONTROLS
ROOT = Path(train.__file__).parent
CORE = ("tasks.py", "model.py", "grpo.py", "train.py")  # all of these files made a run
RULES = ("advantages.py", "studies/ablations.py")  # of these what the variant needs


class Run(NamedTuple):
    """What a run is of: train.py's settings, where they are not its defaults. A place in order."""

    task: str
    variant: str  # or a control
    lr: float
    flags: str
    seed: int

    @classmethod
    def of(cls, row: dict) -> "Run":
        return cls(*(row[name] for name in cls._fields))


@contextmanager
def controls():
    """Within it, train.py takes controls as well: they are in the table of advantages.py."""
    with patch.dict(VARIANTS, CONTROLS):
        yield


@contextmanager
def silence():
    """Within it, train.py prints nothing and draws no bar: several processes share a terminal."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def settings(task: str, seed: int, out: str, *more: str) -> train.Namespace:
    """train.py's settings on the processor; the runs of one seed share the folder of its base."""
    argv = ["--task", task, "--seed", str(seed), "--base-seed", str(seed), "--device", "cpu"]
    with controls():
        return train.parse_arguments([*argv, "--out", f"{out}/{task}-{seed}", *more])


def settings_of(run: Run, out: str) -> train.Namespace:
    more = ["--variant", run.variant, "--lr", str(run.lr), *run.flags.split()]
    return settings(run.task, run.seed, out, *more)


# ---- Which code made a run
def syntax(path: Path) -> ast.Module:
    """The syntax tree of a file. Comments and docstrings are not in it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        documented = isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef))
        if documented and ast.get_docstring(node):
            node.body = node.body[1:]
    return tree


def needed(names: list[str], definitions: dict[str, ast.AST]) -> dict[str, ast.AST]:
    """The definitions of these names, and of all that they mention, and so on."""
    reached = {}
    waiting = [*names]
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in reached:
            reached[name] = definitions[name]
            waiting += [node.id for node in ast.walk(reached[name]) if isinstance(node, ast.Name)]
    return reached


def code_hash(variant: str, root: Path = ROOT) -> str:
    """A hash of the code that makes a run of this variant or control; root: the repository."""
    trees = [syntax(root / name) for name in CORE]
    rules = [node for name in RULES for node in syntax(root / name).body]
    definitions = {node.name: node for node in rules if hasattr(node, "name")}
    parts = needed([TRAINED[variant].__name__, "with_advantages"], definitions)
    texts = [ast.unparse(tree) for tree in [*trees, *(parts[name] for name in sorted(parts))]]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


# ---- Runs and their models
def is_finished(run: Run, out: str) -> bool:
    """Whether this run has been made to its end, by this code, wherever that was."""
    args = settings_of(run, out)
    folder = Path(args.out, args.name)
    try:
        summary = json.loads((folder / "summary.json").read_text())
        code = (folder / "code.txt").read_text()
    except (OSError, ValueError):  # a file is not there, or it is torn
        return False
    same = all(summary.get(name) == x for name, x in vars(args).items() if name != "out")
    made_by = (summary.get("torch"), code)  # another PyTorch may round differently
    return same and made_by == (train.torch.__version__, code_hash(run.variant))


def folder_of(run: Run, out: str) -> Path:
    """The folder of a run. A run that is not finished is made, and prints nothing."""
    args = settings_of(run, out)
    folder = Path(args.out, args.name)
    if not is_finished(run, out):
        (folder / "code.txt").unlink(missing_ok=True)
        with controls(), silence():
            train.run(args)
        (folder / "code.txt").write_text(code_hash(run.variant))
    return folder


def model_after(task: str, variant: str, seed: int, out: str):
    """The model that a run ended with, at the rate chosen for it; "base" is the base model."""
    if variant == "base":
        with silence():
            return train.base_model(settings(task, seed, out))
    rate = chosen_rate(read_rows(ROWS), task, variant)
    return finished(folder_of(Run(task, variant, rate, "", seed), out))[1]


def rows_of_models(measured, task: str, seed: int, out: str, names: list[str]) -> list[dict]:
    """Rows measured(model, task) of a seed: of its base model and of what variants made of it."""
    found = {name: measured(model_after(task, name, seed, out), task) for name in names}
    return [{"task": task, "seed": seed, "model": name} | row for name, row in found.items()]
