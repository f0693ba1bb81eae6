"""Curves of your own runs: python -m tools.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/add-grpo-seed0. A panel for each of some columns of
metrics.csv, which docs/files.md defines, with a line for each run: means over about ten steps, of
entropy and accuracy the values themselves. And a panel for each run: its accuracy by level.
"""

import argparse
from pathlib import Path

import numpy as np

from studies.common import pyplot, read_rows
from tasks import TASKS

COLUMNS = {"reward": 10, "all_fail": 10, "entropy": 1, "steps_correct": 10, "accuracy_sampled": 1}


def averaged(rows: list[dict], name: str, n: int) -> np.ndarray:
    """Steps and values of a column where it has some, as means over n or a few more in a row."""
    points = [(float(row["step"]), float(row[name])) for row in rows if row[name]]
    parts = np.array_split(points, max(len(points) // n, 1))
    return np.array([part.mean(0) for part in parts]).T


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--out", default="curves.png", help="the picture")
    options = parser.parse_args()
    lines = -(-(len(COLUMNS) + len(options.runs)) // 3)
    figure, axes = pyplot().subplots(lines, 3, figsize=(10, 2.2 * lines), layout="constrained")
    for run, by_level in zip(options.runs, axes.flat[len(COLUMNS) :]):
        rows = read_rows(run / "metrics.csv")
        if not any(row["accuracy"] for row in rows):
            parser.error(f"{run} is not the folder of a run that has measured its accuracy")
        for ax, (name, n) in zip(axes.flat, COLUMNS.items()):
            ax.plot(*averaged(rows, name, n), label=run.name)
            ax.set(title=name, xlabel="step")
        shares = [row["accuracy_sampled_by_level"].split() for row in rows if row["accuracy"]]
        task = run.resolve().name.split("-")[0]
        levels = [f"level {level}" for level in TASKS[task].levels]
        by_level.plot(averaged(rows, "accuracy", 1)[0], np.array(shares, dtype=float), label=levels)
        by_level.set(title=f"by level, {run.name}", xlabel="step")
        by_level.legend(frameon=False, fontsize=7)
    axes.flat[0].legend(frameon=False, fontsize=7)
    for unused in axes.flat[len(COLUMNS) + len(options.runs) :]:
        unused.remove()
    figure.savefig(options.out, dpi=100)


if __name__ == "__main__":
    main()
