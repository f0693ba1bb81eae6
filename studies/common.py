"""What two studies need: options, CSV tables, intervals, figures."""

import argparse
import csv
import os
import subprocess
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import train
from tools.common import ROOT, pyplot, read_rows

TABLES = ROOT / "docs" / "tables"
FAMILIES = {  # matplotlib's colour map: what has shades of it, in every picture
    "Blues": ["rloo", "dr_grpo", "reinforce", "prefix_baseline"],
    "Greens": ["pos_only", "half", "nthr", "nthr_eta0", "random_sparing"],
    "Oranges": ["negative", "ngrpo", "culling"],
    "Purples": ["critic", "critic_bounded", "compensation"],
    "Reds": ["verifree", "log_likelihood", "verifree_undivided"],
    "RdPu": ["likelihood", "dense", "shuffled_L"],
    "YlOrBr": ["substituted", "substituted_up"],
}


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


def commit(*paths: str) -> str:
    """The short name of the last commit, or of the last that touched these paths; "?" if none."""
    command = ["git", "-C", ROOT, "log", "-1", "--format=%h", "--", *paths]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "?"


def written(row: dict) -> dict[str, str]:
    """A row as it stands in a CSV: floats with five digits."""
    return {name: f"{x:.5g}" if isinstance(x, float) else str(x) for name, x in row.items()}


def write_rows(path: Path, rows: list[dict]) -> None:
    """Writes the rows, floats with five digits; what a row does not have is empty.

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


def fill(path: Path, measure, jobs, processes: int) -> None:
    """Adds the rows that measure(*job) yields, job by job."""
    for rows in side_by_side(listed, [(measure, job) for job in jobs], processes):
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


def sign_flips(values) -> float:
    """The exact two-sided p of a mean that is 0 if each sign is as likely as the other.

    The share of all 2^n ways to set the signs whose mean is at least as far from 0.
    """
    from scipy import stats  # here, because some studies do without it

    how = {"permutation_type": "samples", "n_resamples": np.inf}
    return stats.permutation_test([[*values]], np.mean, **how).pvalue


def holm(p: dict, comparisons: int, level: float = 0.05) -> set:
    """Which of p (name -> p) are significant after Holm's correction over this many comparisons."""
    significant = set()
    for i, name in enumerate(sorted(p, key=p.get)):
        if p[name] > level / (comparisons - i):
            break
        significant.add(name)
    return significant


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
def picture(name: str | Path, panels: int = 1, rows: int = 1, **settings):
    """The axes to draw on, an array if there are several panels; then docs/<name> is written."""
    figure, axes = pyplot().subplots(rows, panels, layout="constrained", **settings)
    yield axes
    figure.savefig(ROOT / "docs" / name, dpi=120)


def look(name: str) -> dict:
    """Colour and line style of a variant or control; grpo is black, an unknown one magenta."""
    for colours, names in FAMILIES.items():
        if name in names:
            i = names.index(name)
            colour = pyplot().get_cmap(colours)(0.9 - 0.15 * i)
            return {"color": colour, "linestyle": ["-", "--", "-.", ":", (0, (1, 3))][i]}
    return {"color": "black" if name == "grpo" else "magenta", "linestyle": "-"}
