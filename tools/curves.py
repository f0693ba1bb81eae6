"""Curves of your own runs: python -m tools.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/add-grpo-seed0. A panel for each of some columns of
metrics.csv, which tools/README.md defines, with a line for each run.
"""

import argparse
import csv
import sys
from itertools import cycle
from pathlib import Path

PANELS = {  # column: its title; what ends with % is a share
    "sampled": "Sampled accuracy (held-out), %",
    "greedy": "Greedy accuracy (held-out), %",
    "reward": "Mean reward (training), %",
    "all_fail": "All-fail groups, %",
    "reasoning_correct": "Responses with all steps correct, %",
    "entropy": "Entropy of a token, nats",
}
# Blue and orange mean up and down in this project, so no line has them.
LOOKS = [("#000000", "o"), ("#009E73", "s"), ("#CC79A7", "^"), ("#881111", "D"), ("#6a3d9a", "v")]


def read(run: Path) -> dict[str, list[tuple[float, float]]]:
    """The points of each panel: step and value, wherever the column has one."""
    with open(run / "metrics.csv", newline="") as file:
        rows = [*csv.DictReader(file)]
    curves = {}
    for name, title in PANELS.items():
        scale = 100 if title.endswith("%") else 1
        curves[name] = [(int(x["step"]), scale * float(x[name])) for x in rows if x[name]]
    return curves


def draw(runs: dict[str, dict], out: str) -> None:
    """A line and its marks for each run in each panel; the names of the runs are below."""
    from matplotlib.figure import Figure  # here, so that --help does without it

    figure = Figure(figsize=(10.5, 6 + 0.2 * len(runs)), layout="constrained")
    for ax, (name, title) in zip(figure.subplots(2, 3).flat, PANELS.items()):
        ax.set(title=title, xlabel="training step")
        for (colour, marker), curves in zip(cycle(LOOKS), runs.values()):
            # At most about 16 marks a line, so that they do not touch.
            every = max(1, len(curves[name]) // 16)
            look = {"color": colour, "marker": marker, "markevery": every, "markersize": 4}
            ax.plot(*zip(*curves[name]), linewidth=1, **look)
        if title.endswith("%"):
            ax.set_ylim(-2, 102)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.3)
    figure.legend(figure.axes[0].lines, [*runs], loc="outside lower center")
    figure.savefig(out, dpi=150)


def main(argv: list[str]) -> None:
    about = __doc__.splitlines()[0]
    # Without the usage an error is one line.
    parser = argparse.ArgumentParser("python -m tools.curves", argparse.SUPPRESS, about)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--out", default="curves.png", help="the picture, or .pdf or .svg")
    options = parser.parse_args(argv)
    runs = {}
    for run in options.runs:
        try:
            runs[str(run)] = read(run)
        except (OSError, KeyError, ValueError, TypeError):
            parser.error(f"{run} is not the folder of a run: no metrics.csv of train.py is in it")
    try:
        draw(runs, options.out)
    except ImportError:
        parser.error("matplotlib is missing: python -m pip install matplotlib")
    except (OSError, ValueError) as error:
        parser.error(f"{options.out} cannot be written: {error}")
    print(f"The picture is {options.out}.")


if __name__ == "__main__":
    main(sys.argv[1:])
