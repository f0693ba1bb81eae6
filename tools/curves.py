"""Curves of your own runs: python -m tools.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/add-grpo-seed0. A panel for each of some columns of
metrics.csv, which tools/README.md defines, with a line for each run. The title, or the legend of
several runs, has sampled accuracy before and after training, as summary.json has it.
"""

import json
import sys
from argparse import SUPPRESS, ArgumentParser
from itertools import product
from pathlib import Path

import numpy as np

from tools import print_anything
from tools.rows import read_csv, stop

PANELS = {  # column: its title; what ends with % is a share
    "sampled": "Sampled accuracy (held-out), %",
    "greedy": "Greedy accuracy (held-out), %",
    "reward": "Mean reward (training), %",
    "all_fail": "All-fail groups, %",
    "reasoning_correct": "Responses with all steps correct, %",
    "entropy": "Entropy of a token, nats",
}
# Blue and orange mean up and down in this project, so no line has them.
COLOURS = ["#007A5A", "#000000", "#B0568C", "#881111", "#6a3d9a"]
LOOKS = [(colour, dashes) for dashes in ("-", "--", ":") for colour in COLOURS]
MEAN = 10  # training steps of the bold line


def read(run: Path) -> dict[str, list[tuple[float, float]]]:
    """The points of each panel: step and value, wherever the column has one."""
    curves = {name: [] for name in PANELS}
    rows = read_csv(run / "metrics.csv")
    for (n, row), (name, title) in product(enumerate(rows, 2), PANELS.items()):
        scale = 100 if title.endswith("%") else 1
        try:
            curves[name] += [(int(row["step"]), scale * float(row[name]))] if row[name] else []
        except ValueError as error:
            stop(row.path, n, error)
    return curves


def title_of(run: Path) -> str:
    """The run and its result in the last lines that it printed, if it is finished."""
    result = "sampled accuracy {base_sampled:.1%} -> {final_sampled:.1%}"
    try:
        result = result.format(**json.loads((run / "summary.json").read_text()))
    except (LookupError, OSError, TypeError, ValueError):  # missing, or not a run's
        result = "not finished"
    return f"{run}: {result}".replace("$", r"\$")  # a plain $ would begin a formula


def draw(runs: dict[Path, dict], out: Path) -> None:
    """A line for each run in each panel; the names of the runs are above or below.

    What is measured in every training step is faint, and its mean over ten steps is bold.
    """
    from matplotlib.figure import Figure  # here, so that --help does without it

    figure = Figure(figsize=(10.5, 6 + 0.2 * len(runs)), layout="constrained")
    for ax, (name, title) in zip(figure.subplots(2, 3).flat, PANELS.items()):
        ax.set(title=title, xlabel="training step")
        for (colour, dashes), curves in zip(LOOKS, runs.values()):
            points = np.reshape(curves[name], (-1, 2)).T  # (2, 0) if there are none
            if points.shape[1] > 2 * MEAN and name not in ("sampled", "greedy"):
                ax.plot(*points, color=colour, linewidth=0.8, alpha=0.25)
                ax.set_xlabel("training step (bold: mean of ten)")
                points = [np.convolve(x, np.full(MEAN, 1 / MEAN), "valid") for x in points]
            ax.plot(*points, color=colour, linewidth=2, linestyle=dashes)
        if title.endswith("%"):
            ax.set_ylim(-2, 102)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.3)
    titles = [title_of(run) for run in runs]
    if len(runs) == 1:
        figure.suptitle(*titles, fontweight="bold")
    else:
        figure.legend(figure.axes[0].lines, titles, loc="outside lower center")
    figure.savefig(out, dpi=150)


def main(argv: list[str]) -> None:
    # Without the usage an error is one line.
    parser = ArgumentParser("python -m tools.curves", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--out", default="curves.png", help="the picture: .png, .pdf or .svg")
    options = parser.parse_args(argv)
    out = Path(options.out).expanduser()  # some shells do not in --out=~/x.png
    out = out.with_suffix(out.suffix or ".png")
    if len(options.runs) > len(LOOKS):
        parser.error(f"at most {len(LOOKS)} runs can be told apart in one picture")
    runs = {}
    for run in options.runs:
        try:
            runs[run] = read(run)
        except OSError:
            parser.error(f"{run} is not the folder of a run: no metrics.csv of train.py is in it")
    try:
        draw(runs, out)
    except ImportError as error:
        parser.error(f"{error}; for the curves: python -m pip install matplotlib")
    except (OSError, ValueError) as error:
        parser.error(f"{out} cannot be written: {error}")
    print(f"The picture is {out}.")


if __name__ == "__main__":
    print_anything()
    main(sys.argv[1:])
