"""The training runs that studies rest on. This file has no command.

The runs of one seed have that seed for the base model as well, so all variants and controls of a
seed start from the same weights. (Another processor makes other weights, so runs that are compared
are made on one processor.) A finished run is used again if its settings are the same and the code
that made it is the same. For this purpose its folder has a file code.txt with a hash of that code,
in which comments and docstrings do not count. It has train.py, and the files that train.py and the
rules import from beside it, but no packages and no data. Of the functions and classes of
advantages.py and ablations.py it has those that the variant uses, and all else of the two files. A
rule from another file adds that file and the program that was started, which may have registered
it, with what the two import from beside them.
"""

import ast
import hashlib
import json
import re
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
from itertools import product
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import advantages
import train
from studies import ablations
from studies.common import read_rows
from studies.protocol import ROWS, chosen_rate
from tools.ask import finished

TRAINED = advantages.VARIANTS | ablations.CONTROLS
ROOT = Path(train.__file__).parent
RULES = ("advantages.py", "studies/ablations.py")  # the files of rules


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
    with patch.dict(advantages.VARIANTS, ablations.CONTROLS):
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
        return train.parse_arguments([*argv, f"--out={out}/{task}-{seed}", *more])


def settings_of(run: Run, out: str) -> train.Namespace:
    more = ["--variant", run.variant, "--lr", str(run.lr), *run.flags.split()]
    return settings(run.task, run.seed, out, *more)


# ---- Which code made a run
@cache
def statements(path: Path) -> list[ast.stmt]:
    """The top-level statements of a file when it is first read, without comments and docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for x in ast.walk(tree):
        if isinstance(x, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(x):
            x.body = x.body[1:]
    return tree.body


def own_files(variant: str) -> tuple[Path, ...]:
    """For a rule from another file than RULES: that file and the program that was started."""
    rule = (TRAINED | advantages.VARIANTS)[variant]
    rule = getattr(rule, "func", rule)  # of functools.partial
    names = (getattr(rule, "__module__", ""), "__main__")
    paths = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    if paths[0] is None or Path(paths[0]) in [ROOT / name for name in RULES]:
        return ()
    return tuple(Path(path).absolute() for path in paths if path)


@cache
def files(root: Path, own: tuple[Path, ...] = ()) -> list[Path]:
    """What makes a run beside RULES: train.py, what all these import from beside it, and so on."""
    found = [*(root / name for name in RULES), root / "train.py", *dict.fromkeys(own)]
    for path in found:  # the list grows
        for x in ast.walk(ast.Module(statements(path))):
            for y in x.names if isinstance(x, (ast.Import, ast.ImportFrom)) else []:
                module = getattr(x, "module", None) or y.name
                for folder, name in product((root, path.parent), (module, f"{module}.{y.name}")):
                    file = folder.joinpath(*name.split(".")).with_suffix(".py")
                    if file.is_file() and not {file, file.parent} & {*found, root / "studies"}:
                        found.append(file)
    return found[len(RULES) :]


def names_in(nodes: list[ast.AST]) -> set[str]:
    """All that may name a function or class: names, attributes, and texts, as in VARIANTS["a"]."""
    parts = [vars(x) for node in nodes for x in ast.walk(node)]
    named = [part.get(field) for part in parts for field in ("id", "attr", "value")]
    return {x for x in named if isinstance(x, str)}


def bound(x: ast.stmt) -> set[str]:
    """What a top-level statement defines or assigns; of some statements, all that they name."""
    if hasattr(x, "name"):
        return {x.name}
    return names_in(getattr(x, "targets", [getattr(x, "target", x)]))


def code_hash(variant: str, root: Path = ROOT) -> str:
    """A hash of the code that makes a run of this variant or control; root: the repository."""
    rules = {x: bound(x) for name in RULES for x in statements(root / name)}
    other = [x for path in files(root, own_files(variant)) for x in statements(path)]
    # In these two tables train.py finds the rule, and settings that are saved with the run.
    used = [variant, *names_in(other).difference(("VARIANTS", "LOSS"))]
    used.append(getattr((TRAINED | advantages.VARIANTS)[variant], "__name__", variant))
    for name in used:  # the list grows
        named = [x for x, names in rules.items() if name in names]
        used += names_in(named).difference(used)
    counted = [x for x in rules if not hasattr(x, "name") or x.name in used]
    # Other versions of Python write other quotes.
    texts = [re.sub("[\"']+", "'", ast.unparse(x)) for x in other + counted]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


code_hash("grpo")  # all files are read now, as they are imported


# ---- Runs and their models
def is_finished(run: Run, out: str) -> bool:
    """Whether this run has been made to its end by this code, wherever that was."""
    args = settings_of(run, out)
    folder = Path(args.out, args.name)
    try:
        summary = json.loads((folder / "summary.json").read_text())
        code = (folder / "code.txt").read_text()
    except (OSError, ValueError):  # a file is not there, or it is torn
        return False
    # Another PyTorch may round differently.
    wanted = vars(args) | {"torch": train.torch.__version__, "out": summary.get("out")}
    summary = {"every": 25, "save": True} | summary  # runs of earlier editions do not say these
    return wanted.items() <= summary.items() and code == code_hash(run.variant)


def folder_of(run: Run, out: str) -> Path:
    """The folder of a run. A run that is not finished is made, and prints nothing."""
    args = settings_of(run, out)
    folder = Path(args.out, args.name)
    if not is_finished(run, out):
        (folder / "code.txt").unlink(missing_ok=True)
        code = code_hash(run.variant)  # a rule's own file may change while it trains
        with controls(), silence():
            train.run(args)
        (folder / "code.txt").write_text(code)
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
