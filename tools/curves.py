"""Curves of your own runs: python -m tools.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/add-grpo-seed0. A panel for each of some columns of
metrics.csv, which docs/files.md defines, with a line for each run: means over about ten steps, of
entropy and sampled accuracy the values themselves.
"""

import argparse
from pathlib import Path

import numpy as np

from tools.common import pyplot, read_rows

COLUMNS = {"reward": 10, "all_fail": 10, "entropy": 1, "reasoning_correct": 10, "sampled": 1}


def averaged(rows: list[dict], name: str, n: int) -> np.ndarray:
    """Steps and values of a column where it has some, as means over n or a few more in a row."""
    points = [(float(row["step"]), float(row[name])) for row in rows if row[name]]
    parts = np.array_split(points, max(len(points) // n, 1))
    return np.array([part.mean(0) for part in parts]).T


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--out", default="curves.png", help="the picture")
    options = parser.parse_args()
    figure, axes = pyplot().subplots(1, len(COLUMNS), figsize=(15, 3), layout="constrained")
    for run in options.runs:
        rows = read_rows(run / "metrics.csv")
        if not any(row["greedy"] for row in rows):
            parser.error(f"{run} is not the folder of a run that has measured its accuracy")
        for ax, (name, n) in zip(axes, COLUMNS.items()):
            ax.plot(*averaged(rows, name, n), label=run.name)
            ax.set(title=name, xlabel="step")
    figure.legend(handles=axes[0].lines, loc="outside lower center", frameon=False)
    figure.savefig(options.out, dpi=100)
