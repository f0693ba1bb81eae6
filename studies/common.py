"""What two studies need: options, CSV tables, intervals, verdicts, markdown, figures."""

import argparse
import csv
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import torch

import train
from model import GPT

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "docs" / "tables"
REPLICATES = 12  # base models with a seed each


def options(text: str, seeds: range, tasks: tuple[str, ...]) -> argparse.ArgumentParser:
    """A command line with what studies of several base models share; text is their docstring."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=[*tasks])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*seeds], help="of base and run")
    parser.add_argument("--out", default="runs/studies", help="folder of the runs")
    return parser


def settings(task: str, seed: int, out: str, *more: str) -> train.Namespace:
    """train.py's settings on the processor; the runs of one seed share the folder of its base."""
    argv = ["--task", task, "--seed", str(seed), "--base-seed", str(seed), "--device", "cpu"]
    return train.parse_arguments([*argv, "--out", f"{out}/{task}-{seed}", *more])


def trained(task: str, seed: int, out: str, variant: str) -> GPT:
    """The model of a finished run of studies.compare, or, if the variant is "base", its base."""
    flags = [] if variant == "base" else ["--variant", variant]
    args = settings(task, seed, out, *flags)
    model = train.base_model(args)
    if variant != "base":
        path = Path(args.out, args.name, "model.pt")
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model


def commit() -> str:
    """The short name of the commit that is checked out; "?" outside a repository."""
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "?"


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none if there is no such file."""
    if not path.exists():
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict]) -> None:
    """Writes the rows, whole or not at all, with five digits; what a row does not have is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row))
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{x:.5g}" if isinstance(x, float) else x for k, x in row.items()})
    part.replace(path)


def fill(path: Path, args, measure) -> None:
    """Adds the rows of measure(task, seed, args.out) for every task and seed that has none yet."""
    for task, seed in product(args.tasks, args.seeds):
        rows = read_rows(path)
        if (task, str(seed)) not in {(row["task"], row["seed"]) for row in rows}:
            write_rows(path, [*rows, *measure(task, seed, args.out)])


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


def publish(path: Path, text: str) -> None:
    """Writes the markdown that was made from this CSV beside it, and prints it."""
    path.with_suffix(".md").write_text(text)
    print(text)


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
