"""Curves of your own runs: python -m tools.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/add-grpo-seed0. A panel for each of some columns of
metrics.csv, which tools/README.md defines, with a line for each run.
"""

import argparse
import csv
from pathlib import Path

import matplotlib.pyplot as plt

COLUMNS = ("reward", "all_fail", "entropy", "reasoning_correct", "sampled")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--out", default="curves.png", help="the picture")
    options = parser.parse_args()
    plt.switch_backend("Agg")
    figure, axes = plt.subplots(1, len(COLUMNS), figsize=(15, 3), layout="constrained")
    for run in options.runs:
        rows = [*csv.DictReader((run / "metrics.csv").read_text().splitlines())]
        if not any(row["greedy"] for row in rows):
            parser.error(f"{run} is not the folder of a run that has measured its accuracy")
        for ax, name in zip(axes, COLUMNS):
            points = [(float(row["step"]), float(row[name])) for row in rows if row[name]]
            ax.plot(*zip(*points), linewidth=1, label=run.name)
            ax.set(title=name, xlabel="training step")
    figure.legend(handles=axes[0].lines, loc="outside lower center", frameon=False)
    figure.savefig(options.out, dpi=100)
