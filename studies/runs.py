"""The training runs that studies rest on. Trust them again: python -m studies.runs FOLDER

The runs of one seed have that seed for the base model as well, so all variants and controls of a
seed start from the same weights. (Another processor makes other weights, so runs that are compared
are made on one processor.) A finished run is used again if its settings are the same and the code
that made it is the same. For this purpose its folder has a file code.txt with a hash of that code,
in which comments and docstrings do not count. It has what the variant's rule uses, and so on:
functions, constants, tables and the project's own files, but no packages and no data.

A change of the code can leave all numbers as they are. When a comparison of whole runs, bit for
bit, has said so, saved runs need not be made anew: the command writes the hash of the present code
beside the finished runs in FOLDER, the --out of a study. It takes those that have a row in
results/compare.csv and the settings that train.py gives to the command of this row, but not those
of process and cispo, whose rules have changed.
"""

import ast
import hashlib
import json
import re
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO
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
CHANGED = ("process", "cispo")  # since the ninth edition
RULES = {"advantages.py": advantages, "studies/ablations.py": ablations}


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
    """The top-level statements of a file when it is first read, without comments and docstrings.

    An import of several names is several statements.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for x in ast.walk(tree):
        if isinstance(x, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(x):
            x.body = x.body[1:]
    parts = [(node, one) for node in tree.body for one in getattr(node, "names", [None])]
    return [type(x)(**vars(x) | {"names": [one]}) if one else x for x, one in parts]


def names_in(*nodes: ast.AST) -> set[str]:
    return {x.id for node in nodes for x in ast.walk(node) if isinstance(x, ast.Name)}


def changed(node: ast.stmt) -> set[str]:
    """The names that a top-level statement binds or changes; "*" if these can be any."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return {x.asname or x.name.split(".")[0] for x in node.names}
        case ast.FunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            return names_in(*getattr(node, "targets", None) or [node.target])
        case ast.Expr(ast.Call(ast.Attribute())):  # for example TABLE.update(a=2)
            return names_in(node)
    return {"*"}


def file_of(folder: Path, module: str) -> Path | None:
    """The file of a module of the project; None for other modules."""
    path = folder.joinpath(*module.strip(".").split("."))
    return next((x for x in (path.with_suffix(".py"), path / "__init__.py") if x.is_file()), None)


def imports(node: ast.AST, path: Path, root: Path):
    """Yields what code of a file imports from the project: a file and a name in it; "" is all."""
    for x in ast.walk(node):
        for y in x.names if isinstance(x, (ast.Import, ast.ImportFrom)) else []:
            folder = [root, *path.parents][getattr(x, "level", 0)]
            module = getattr(x, "module", None) or ""
            file = file_of(folder, f"{module}.{y.name}")
            # In these two train.py finds the rule, and settings that are saved with the run.
            if path.name != "train.py" or y.name not in ("VARIANTS", "LOSS"):
                yield file or file_of(folder, module), "" if file or y.name == "*" else y.name


def code(waiting: list[tuple], root: Path) -> list[str]:
    """The statements that bind or change these names, and all names that they use, and so on.

    A name is a file and a name in it, or "" for all of the file.
    """
    texts = {}
    for path, name in waiting:  # the list grows
        for i, node in enumerate(statements(path)):
            if (path, i) not in texts and (not name or {name, "*"} & changed(node)):
                # Other versions of Python write other quotes.
                texts[path, i] = re.sub("[\"']+", "'", ast.unparse(node))
                used = {*imports(node, path, root), *((path, x) for x in names_in(node))}
                waiting += [x for x in used.difference(waiting) if x[0]]
    return [texts[place] for place in sorted(texts)]


def code_hash(variant: str, root: Path = ROOT) -> str:
    """A hash of the code that makes a run of this variant or control; root: the repository.

    A rule that has no name in a file of RULES may be anything there, so all of them count.
    """
    rule = TRAINED[variant]
    files = {root / name: module for name, module in RULES.items()}
    named = [(path, name) for path, y in files.items() for name, x in vars(y).items() if x is rule]
    start = named[:1] or [(path, "") for path in files]
    texts = code([(root / "train.py", ""), *start], root)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


code([(ROOT / name, "") for name in ("train.py", *RULES)], ROOT)  # read now, as they are imported


# ---- Runs and their models
def is_finished(run: Run, out: str, by_any: bool = False) -> bool:
    """Whether this run has been made to its end, by this code or by_any, wherever that was."""
    args = settings_of(run, out)
    folder = Path(args.out, args.name)
    try:
        summary = json.loads((folder / "summary.json").read_text())
        code = (folder / "code.txt").read_text()
    except (OSError, ValueError):  # a file is not there, or it is torn
        return False
    # Another PyTorch may round differently.
    wanted = vars(args) | {"torch": train.torch.__version__, "out": summary.get("out")}
    return wanted.items() <= summary.items() and (by_any or code == code_hash(run.variant))


def trust(out: str) -> None:
    """Writes the hash of the present code beside finished runs: see the top of this file."""
    for run in map(Run.of, read_rows(ROWS)):
        if run.variant not in CHANGED and is_finished(run, out, by_any=True):
            args = settings_of(run, out)
            Path(args.out, args.name, "code.txt").write_text(code_hash(run.variant))


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


if __name__ == "__main__":
    trust(*sys.argv[1:])
