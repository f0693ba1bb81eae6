"""Curves of your own runs: python -m studies.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/sum-grpo-seed0. A panel for each of reward, all-fail,
entropy, coherence and accuracy, a line for each run (reward and coherence as means over ten steps);
and a panel for each run with its accuracy by level.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from studies.common import pyplot, read_rows
from tasks import TASKS

COLUMNS = {"reward": 10, "all_fail": 10, "entropy": 1, "coherence": 10, "accuracy": 1}


def column(rows: list[dict], name: str, steps: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values where the run has them, both as means over some rows in a row."""
    there = np.array([(float(r["step"]), float(r[name])) for r in rows if r[name]])
    steps = min(steps, len(there))
    return tuple(np.convolve(x, np.full(steps, 1 / steps), "valid") for x in there.T)


def draw(runs: list[Path], out: str) -> None:
    plt = pyplot()
    count = len(COLUMNS) + len(runs)
    _, axes = plt.subplots(-(-count // 3), 3, figsize=(10, 8), layout="constrained")
    for run, ax in zip(runs, axes.flat[len(COLUMNS) :]):
        rows = read_rows(run / "metrics.csv")
        for panel, (name, steps) in zip(axes.flat, COLUMNS.items()):
            panel.plot(*column(rows, name, steps), label=run.name)
            panel.set_title(name, fontsize=10)
        task = json.loads((run / "config.json").read_text())["task"]
        shares = [row["accuracy_by_level"].split() for row in rows if row["accuracy"]]
        for level, values in zip(TASKS[task].levels, np.array(shares, dtype=float).T):
            ax.plot(column(rows, "accuracy")[0], values, label=f"level {level}")
        ax.set_title(f"accuracy by level, {run.name}", fontsize=10)
        ax.legend(frameon=False, fontsize=7)
    axes.flat[0].legend(frameon=False, fontsize=7)
    plt.setp(axes.flat[count:], visible=False)
    plt.savefig(out, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--out", default="curves.png", help="the picture")
    options = parser.parse_args()
    for run in options.runs:
        if not (run / "metrics.csv").exists():
            parser.error(f"{run} is not the folder of a run: it has no metrics.csv")
    draw(options.runs, options.out)


if __name__ == "__main__":
    main()
