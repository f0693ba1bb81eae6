"""What two studies need: options, base models, groups, CSV tables, intervals, markdown, figures."""

import argparse
import ast
import csv
import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import train
from grpo import Rollout, sample_rollout
from model import GPT
from tasks import TASKS, Task

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "docs" / "tables"
CORE = ("tasks.py", "model.py", "grpo.py", "advantages.py", "train.py")


def core_checksum() -> str:
    """Eight characters that change when the core's code does; its comments and docstrings may."""
    text = ""
    for name in CORE:
        tree = ast.parse((ROOT / name).read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                node.body = node.body[ast.get_docstring(node) is not None :]
        text += ast.unparse(tree)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def options(text: str, seeds: range) -> argparse.ArgumentParser:
    """A command line with what studies of several base models share; text is their docstring."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=("wall", "sum"), default=["wall", "sum"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*seeds], help="of base and run")
    parser.add_argument("--out", default="runs/compare", help="folder of studies.compare")
    return parser


def settings(task: str, seed: int, out: Path) -> train.Namespace:
    """train.py's settings for a base model on the processor; `out` is made."""
    out.mkdir(parents=True, exist_ok=True)
    argv = ["--task", task, "--base-seed", str(seed), "--device", "cpu", "--out", str(out)]
    return train.parse_arguments(argv)


def base_model(args, settle: int = 0) -> GPT:
    """The base model of these settings, which is made and kept in args.out if it is not there."""
    model = train.new_model(args)
    path = train.base_path(args)
    if not path.exists():
        steps = train.WARMUP_STEPS[args.task]
        train.warm_up(model, TASKS[args.task], steps, args.base_seed, settle)
        train.save(path, lambda part: torch.save({part.stem: model.state_dict()}, part))
    train.load_base(path, model)
    return model


def mixed_groups(model: GPT, task: Task, count: int, seed: int = 0) -> list[Rollout]:
    """The first `count` mixed groups of eight, of training problems in a random order; P = 1."""
    problems = train.make_problems(task, held=False)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(problems)))
    rng = torch.Generator().manual_seed(seed)
    found = []
    for batch in order.split(64):
        chosen = [problems[i] for i in batch]
        rollout = sample_rollout(model, train.TOKENIZER, task, chosen, 8, generator=rng)
        for i in (rollout.rewards.std(1) > 0).nonzero()[:, 0].tolist():
            parts = {k: v for k, v in vars(rollout).items() if isinstance(v, torch.Tensor | list)}
            found.append(replace(rollout, **{k: v[i : i + 1] for k, v in parts.items()}))
        if len(found) >= count:
            break
    return found[:count]


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none if there is no such file."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def rows_of_last_core(path: Path) -> list[dict[str, str]]:
    """The rows that the core of the last row made: tables never mix two."""
    rows = read_rows(path)
    return [row for row in rows if row["core"] == rows[-1]["core"]]


def write_rows(path: Path, rows: list[dict]) -> None:
    """Writes the rows, whole or not at all; the first one names the columns."""
    names = list(rows[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)
    part.replace(path)


def interval(values, level: float = 0.95) -> tuple[float, float, float]:
    """Mean and its t interval, NaN NaN if fewer than two values differ; pairs as differences."""
    from scipy import stats  # here, because studies.speed does without it

    values = np.asarray(values, dtype=float)
    mean = float(values.mean())
    if len(values) < 2 or values.std() == 0:
        return mean, float("nan"), float("nan")
    low, high = stats.t.interval(level, len(values) - 1, mean, stats.sem(values))
    return mean, float(low), float(high)


def shown(values: tuple[float, float, float], scale: float = 100, form: str = "+.1f") -> str:
    """What interval() returns, as text; without an interval the mean alone."""
    mean, low, high = (format(scale * value, form) for value in values)
    return mean if np.isnan(values[1]) else f"{mean} ({low} to {high})"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pyplot():
    """matplotlib's pyplot, drawing to files. Says what to install where it is missing."""
    try:
        import matplotlib
    except ImportError:
        sys.exit("figures need matplotlib: python -m pip install -r studies/requirements.txt")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    return plt
