"""What two studies need: options, CSV tables, jobs side by side, intervals, pages."""

import argparse
import csv
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy import stats

import train

TABLES = Path(__file__).parent / "results"
SIX = range(4, 10)  # base models
TWELVE = range(4, 16)


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


# ---- Rows
def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none if there is no such file."""
    text = path.read_text() if path.exists() else ""
    return [*csv.DictReader(text.splitlines())]


def written(row: dict) -> dict[str, str]:
    """A row as it stands in a CSV: floats with five digits."""
    return {name: f"{x:.5g}" if isinstance(x, float) else str(x) for name, x in row.items()}


def write_rows(path: Path, rows: list[dict]) -> None:
    """Writes the rows; what a row does not have is empty.

    Other processes may read the file meanwhile: they find the old one or the new one, whole.
    """
    part = path.with_name(path.name + ".part")
    with open(part, "w", newline="") as file:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(written(row) for row in rows)
    part.replace(path)


def side_by_side(function, jobs, processes: int):
    """Yields function(*job) of each job when it is done. Jobs have one thread each, and AVX2."""
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")  # read when a new process imports torch
    os.environ.setdefault("TQDM_DISABLE", "1")
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, [1]) as pool:
        for done in as_completed([pool.submit(function, *job) for job in jobs]):
            yield done.result()


def complete(path: Path, measure, args) -> list[dict[str, str]]:
    """All rows, after adding measure(task, seed, args.out), a list, of what has no row yet."""
    there = {(row["task"], row["seed"]) for row in read_rows(path)}
    left = [job for job in product(args.tasks, args.seeds) if (job[0], str(job[1])) not in there]
    for rows in side_by_side(measure, [(*job, args.out) for job in left], args.jobs):
        write_rows(path, read_rows(path) + rows)
    return read_rows(path)


def at(rows: list[dict], **head) -> list[dict]:
    """The rows with these entries."""
    return [row for row in rows if all(str(row[name]) == str(x) for name, x in head.items())]


def by_seed(rows: list[dict], column: str, **head) -> dict[int, float]:
    """seed -> value of a column, of the rows with these entries; empty and NaN are left out."""
    there = [row for row in at(rows, **head) if str(row.get(column, "")) not in ("", "nan")]
    return {int(row["seed"]): float(row[column]) for row in there}


def paired(rows: list[dict], column: str, ours: dict, theirs: dict) -> tuple:
    """A column of ours and of theirs, (n,) each: of the base models that have both."""
    a = by_seed(rows, column, **ours)
    b = by_seed(rows, column, **theirs)
    both = [seed for seed in a if seed in b]
    return np.array([a[seed] for seed in both]), np.array([b[seed] for seed in both])


# ---- Statistics
def interval(values) -> tuple[float, float, float]:
    """Mean and its 95 % t interval; NaN NaN if fewer than two differ."""
    values = np.array([*values])
    mean = values.mean()
    if len(values) < 2 or values.std() == 0:
        return mean, np.nan, np.nan
    return mean, *stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values))


def resampled(statistic, n: int) -> tuple[float, float, float]:
    """statistic(indices) of all n, base models for one, and its 95 % interval by resampling."""
    rng = np.random.default_rng(0)
    found = [statistic(rng.integers(n, size=n)) for _ in range(1000)]
    return statistic(range(n)), *np.nanquantile(found, [0.025, 0.975], method="inverted_cdf")


def sign_flips(values) -> float:
    """The exact two-sided p of a mean that is 0 if each sign is as likely as the other.

    The share of all 2^n ways to set the signs whose sum is at least as far from 0.
    """
    signs = np.array([*product((1, -1), repeat=len(values))])  # (2^n, n); the first has no minus
    sums = abs(signs @ values)
    return np.mean(sums >= sums[0] - 1e-9)  # equal ones may differ by rounding


def holm(p: dict, comparisons: int, level: float = 0.05) -> set:
    """Which of p (name -> p) are significant after Holm's correction over this many comparisons."""
    significant = set()
    for i, name in enumerate(sorted(p, key=p.get)):
        if p[name] > level / (comparisons - i):
            break
        significant.add(name)
    return significant


# ---- Text
def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(values: tuple[float, float, float], scale: float = 100, form: str = "+.1f") -> str:
    """What interval() or resampled() returns, as text; without an interval the mean alone."""
    mean, low, high = (format(scale * value, form) for value in values)
    return f"{mean} ({low} to {high})" if values[1] < values[2] else mean


def summary(rows: list[dict]) -> str:
    """Means over base models in %, with intervals: a line for each task and model or variant.

    The columns of rows: task, seed, what a row is of, and shares.
    """
    _, _, of, *columns = rows[0]
    lines = []
    for task, name in dict.fromkeys((row["task"], row[of]) for row in rows):
        shares = [by_seed(rows, column, **{"task": task, of: name}) for column in columns]
        texts = [shown(interval(x.values()), form=".1f") if x else "" for x in shares]
        lines.append([task, f"`{name}`", *texts])
    return markdown(["task", of, *(f"{column.replace('_', ' ')}, %" for column in columns)], lines)


def publish(path: Path, text: str) -> None:
    """Writes the markdown that was made from this CSV beside it, and prints it."""
    path.with_suffix(".md").write_text(text)
    print(text)


def study(text: str, path: Path, measure, tasks: tuple[str, ...]) -> list[dict[str, str]]:
    """The command of a study of six base models; text: its docstring. Returns all rows."""
    rows = complete(path, measure, options(text, SIX, tasks).parse_args())
    publish(path, f"# {text}\n{summary(rows)}\n")
    return rows
