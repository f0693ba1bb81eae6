"""What two studies need: options, CSV tables, intervals, figures."""

import argparse
import csv
import subprocess
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import product, repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import train
from tools.common import ROOT, pyplot, read_rows

TABLES = ROOT / "docs" / "tables"
REPLICATES = 12  # base models with a seed each
SEEDS = range(1, REPLICATES + 1)


def options(text: str, seeds: range, tasks: tuple[str, ...]) -> argparse.ArgumentParser:
    """A command line with what studies of several base models share; text is their docstring."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=[*tasks])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*seeds], help="of base and run")
    parser.add_argument("--jobs", type=int, default=2, help="side by side, one thread each")
    parser.add_argument("--out", default="runs/studies", help="folder of the runs")
    return parser


def settings(task: str, seed: int, out: str, *more: str) -> train.Namespace:
    """train.py's settings on the processor; the runs of one seed share the folder of its base."""
    argv = ["--task", task, "--seed", str(seed), "--base-seed", str(seed), "--device", "cpu"]
    return train.parse_arguments([*argv, "--out", f"{out}/{task}-{seed}", *more])


def commit() -> str:
    """The short name of the commit that is checked out; "?" outside a repository."""
    command = ["git", "-C", ROOT, "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "?"


def write_rows(path: Path, rows: list[dict]) -> None:
    """Writes the rows, floats with five digits; what a row does not have is empty.

    Other processes may read the file meanwhile: they find the old one or the new one, whole.
    """
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="") as file:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({k: f"{x:.5g}" if isinstance(x, float) else x for k, x in row.items()})
    part.replace(path)


def fill(path: Path, measure, jobs, processes: int) -> None:
    """Adds the rows that measure(*job) yields, job by job. Jobs have one thread each."""
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, [1]) as pool:
        for rows in pool.map(listed, repeat(measure), jobs):
            write_rows(path, read_rows(path) + rows)


def listed(measure, job: tuple) -> list[dict]:
    """The rows of a job: another process cannot hand back a generator."""
    return [*measure(*job)]


def complete(path: Path, measure, args) -> None:
    """Adds the rows that measure(task, seed, args.out) yields, of what has no row yet."""
    there = {(row["task"], row["seed"]) for row in read_rows(path)}
    jobs = [(task, seed, args.out) for task, seed in product(args.tasks, args.seeds)]
    fill(path, measure, [job for job in jobs if (job[0], str(job[1])) not in there], args.jobs)


def at(rows: list[dict], **head) -> list[dict]:
    """The rows with these entries."""
    return [row for row in rows if all(row[name] == str(x) for name, x in head.items())]


def by_seed(rows: list[dict], column: str, **head) -> dict[int, float]:
    """seed -> value of a column, of the rows with these entries; empty and NaN are left out."""
    there = [row for row in at(rows, **head) if row.get(column, "") not in ("", "nan")]
    return {int(row["seed"]): float(row[column]) for row in there}


def interval(values) -> tuple[float, float, float]:
    """Mean and its t interval, without NaN among the values; NaN NaN if fewer than two differ."""
    from scipy import stats  # here, because some studies do without it

    values = np.array([*values], dtype=float)
    values = values[~np.isnan(values)]
    mean = values.mean()
    if len(values) < 2 or values.std() == 0:
        return mean, float("nan"), float("nan")
    return mean, *stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values))


def shown(values: tuple[float, float, float], scale: float = 100, form: str = "+.1f") -> str:
    """What interval() returns, as text; without an interval the mean alone."""
    mean, low, high = (format(scale * value, form) for value in values)
    return mean if np.isnan(values[1]) else f"{mean} ({low} to {high})"


def percent(values) -> str:
    """Mean and interval of shares, in %; nothing if there are none."""
    return shown(interval(values), form=".1f") if values else ""


def publish(path: Path, text: str) -> None:
    """Writes the markdown that was made from this CSV beside it, and prints it."""
    path.with_suffix(".md").write_text(text)
    print(text)


@contextmanager
def picture(name: str, panels: int = 1, **settings):
    """The axes to draw on, an array if there are several panels; then docs/<name> is written."""
    figure, axes = pyplot().subplots(1, panels, layout="constrained", **settings)
    yield axes
    figure.savefig(ROOT / "docs" / name, dpi=100)
