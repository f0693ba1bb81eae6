"""What several studies need: options, CSV tables, jobs side by side, statistics, pages."""

import argparse
import csv
import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from threading import Thread
from typing import NamedTuple

import numpy as np
import torch
from scipy import stats

from tools import print_anything
from tools.rows import read_rows

TABLES = Path(__file__).parent / "results"
EXACT = 16  # base models: 65,536 settings of their signs


def options(text: str, seeds: range, tasks: tuple[str, ...]) -> argparse.ArgumentParser:
    """A command line with what studies of several base models share; text is their docstring."""
    print_anything()
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--tasks", nargs="+", choices=tasks, default=[*tasks])
    parser.add_argument("--seeds", nargs="+", type=int, default=[*seeds], help="of base and run")
    parser.add_argument("--jobs", type=int, choices=range(1, 65), default=2, metavar="N")
    # No shell expands --out=~/runs.
    parser.add_argument("--out", default="runs/studies", type=os.path.expanduser, help="of runs")
    parser.add_argument("--only-tables", action="store_true", help="measure nothing, make tables")
    return parser


# ---- Rows
def cells(row: dict) -> dict[str, str]:
    """A row as a CSV holds it: floats with five digits."""
    return {name: f"{x:.5g}" if isinstance(x, float) else str(x) for name, x in row.items()}


def write_rows(path: Path, rows: list[dict]) -> None:
    """Writes the rows; what a row does not have is empty.

    Other processes may read the file meanwhile: they find the old one or the new one, whole.
    """
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8", newline="") as file:
        columns = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(cells(row) for row in rows)
    part.replace(path)


def matching(rows: list[dict], **entries) -> list[dict]:
    """The rows with these entries."""
    return [row for row in rows if entries.items() <= row.items()]


def by_seed(rows: list[dict], column: str, **entries) -> dict[int, float]:
    """seed -> value of a column, of the rows with these entries; empty and NaN are left out."""
    values = {row["seed"]: row[column] for row in matching(rows, **entries)}
    return {seed: x for seed, x in values.items() if x != "" and not np.isnan(x)}


def paired(rows: list[dict], column: str, ours: dict, theirs: dict) -> np.ndarray:
    """A column of ours and of theirs, (2, n): of the base models that have both."""
    a = by_seed(rows, column, **ours)
    b = by_seed(rows, column, **theirs)
    return np.reshape([(a[seed], b[seed]) for seed in a if seed in b], (-1, 2)).T


# ---- Jobs
def begin(parent) -> None:
    """A new process: one thread, no Ctrl-C of its own, and an end when the parent's end is closed.

    The parent closes its end of this pipe when it stops, and the system does if it is killed.
    """
    signal(SIGINT, SIG_IGN)
    torch.set_num_threads(1)
    Thread(target=end_with, args=[parent], daemon=True).start()


def end_with(parent) -> None:
    with suppress(EOFError, OSError):
        parent.recv()  # nothing is ever sent
    os._exit(1)


def side_by_side(function, jobs: list, processes: int):
    """Yields function(*job) of each job when it is done. Jobs have one thread each, and AVX2.

    If the loop over it stops early, by Ctrl-C or an error, all processes end at once.
    """
    os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx2")  # read when a new process imports torch
    context = get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(processes, context, begin, [theirs])
    try:
        for done in as_completed([pool.submit(function, *job) for job in jobs]):
            yield done.result()
    finally:
        ours.close()
        pool.shutdown(cancel_futures=True)


def without_rows(path: Path, heads: list[tuple], first: int = 0) -> list[tuple]:
    """The heads that no row has; a head is what the columns from `first` on say of a row."""
    there = {tuple(row.values())[first : first + len(heads[0])] for row in read_rows(path)}
    return [head for head in dict.fromkeys(heads) if head not in there]


def say_what_is_missing(path: Path, missing: list[tuple]) -> None:
    """One line if rows are missing, before a page is made from those that are there."""
    if not read_rows(path):
        raise SystemExit(f"{path} has no rows, so no page is made from it.")
    if missing:
        first = " ".join(map(str, missing[0]))
        text = f"Rows missing in {path.name}: {len(missing)}. The first one is of {first}."
        print(text, file=sys.stderr)


def complete(path: Path, measure, names: list[str], args) -> list[dict]:
    """All rows, after adding those that are not there yet.

    The first three columns are a task, a seed and a name. measure(task, seed, out, names) returns
    the rows of some names.
    """
    heads = [*product(args.tasks, args.seeds, names)]
    jobs = {}
    for task, seed, name in without_rows(path, heads):
        jobs.setdefault((task, seed), (task, seed, args.out, []))[3].append(name)
    for new in side_by_side(measure, [] if args.only_tables else [*jobs.values()], args.jobs):
        write_rows(path, read_rows(path) + new)
    say_what_is_missing(path, without_rows(path, heads))
    return read_rows(path)


def complete_singly(path: Path, measure, heads: list[tuple], args) -> list[dict]:
    """The same, but a row is added when it is there: that of each head that has none yet.

    The first column is a task. A head is what the next ones have of a row: a seed, and so on.
    measure(*head, out) returns the row.
    """
    seeds = {seed for seed, *_ in heads}
    if not seeds >= {*args.seeds}:
        raise SystemExit(f"This study has the base models {', '.join(map(str, sorted(seeds)))}.")
    missing = [head for head in without_rows(path, heads, 1) if head[0] in args.seeds]
    jobs = [] if args.only_tables else [(*head, args.out) for head in missing]
    for new in side_by_side(measure, jobs, args.jobs):
        write_rows(path, [*read_rows(path), new])
    say_what_is_missing(path, without_rows(path, heads, 1))
    return read_rows(path)


# ---- Statistics
class Interval(NamedTuple):
    """A value with the two ends of its 95 % interval; they are NaN if there is none."""

    value: float
    low: float = np.nan
    high: float = np.nan

    def __format__(self, form: str) -> str:
        """For example +5.0 (+4.0 to +6.1); without an interval only the value."""
        value, low, high = (format(x, form) for x in self)
        return f"{value} ({low} to {high})" if self.low < self.high else value

    def times(self, factor: float) -> "Interval":
        return Interval(*(factor * x for x in self))


def interval(values) -> Interval:
    """Mean and its t interval; there is none if fewer than two values differ."""
    values = np.array([*values])
    mean = values.mean()
    if len(values) < 2 or values.std() == 0:
        return Interval(mean)
    return Interval(mean, *stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values)))


def differences(rows: list[dict], columns, ours: dict, theirs: dict) -> list[str]:
    """Means of ours minus theirs in points, with intervals, paired by base model."""
    pairs = [paired(rows, column, ours, theirs) for column in columns]
    return [f"{interval(np.subtract(*pair)).times(100):+.1f}" for pair in pairs]


def sign_flips(values) -> float:
    """The two-sided p of a mean that is 0 if each sign is as likely as the other.

    It is exact for EXACT values or fewer. Of more values as many settings of the signs are drawn.
    """
    if len(values) < 2:
        return 1.0
    settings = {"permutation_type": "samples", "n_resamples": 2**EXACT, "vectorized": True}
    return stats.permutation_test((values,), np.mean, random_state=0, **settings).pvalue


def holm(p: dict, comparisons: int, level: float = 0.05) -> set:
    """Which of p (name -> p) are significant after Holm's correction over this many comparisons."""
    ordered = sorted(p, key=p.get)
    failed = [p[name] > level / (comparisons - i) for i, name in enumerate(ordered)]
    return {*ordered[: [*failed, True].index(True)]}


# ---- Text
def markdown(header: list[str], lines: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def summary(rows: list[dict]) -> str:
    """Means over base models in %, with intervals: a line for each task and model or variant.

    The columns of rows: task, seed, what a row is of, and shares.
    """
    _, _, of, *columns = rows[0]
    lines = []
    for task, name in dict.fromkeys((row["task"], row[of]) for row in rows):
        line = [task, f"`{name}`"]
        for column in columns:
            shares = by_seed(rows, column, **{"task": task, of: name}).values()
            line.append(f"{interval(shares).times(100):.1f}" if shares else "")
        lines.append(line)
    return markdown(["task", of, *(f"{column.replace('_', ' ')}, %" for column in columns)], lines)


def publish(path: Path, text: str) -> None:
    """Writes the markdown that was made from this CSV beside it, and prints it."""
    path.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def study(text: str, path: Path, measure, names, tasks: tuple[str, ...], seeds) -> list[dict]:
    """The command of a study; returns all rows. text: its docstring, a question and the command
    on its first line, which becomes the page.
    """
    rows = complete(path, measure, names, options(text, seeds, tasks).parse_args())
    question, command, explanation = re.split(r"(?<=\?) |\n\n", text, maxsplit=2)
    page = f"# {question}\n\nMade with `{command}`.\n\n{explanation}\n{summary(rows)}\n"
    publish(path, page)
    return rows
