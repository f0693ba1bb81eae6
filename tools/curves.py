"""Curves of your own runs: python -m tools.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/add-grpo-seed0. A panel for each of some columns of
metrics.csv, which tools/README.md defines, with a line for each run.
"""

import argparse
import os
import sys
from itertools import product
from pathlib import Path

import numpy as np

from tools import print_anything
from tools.rows import Row, read_csv, stop

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


def left_out(path: Path, *_) -> None:
    """Says it of a last row that is torn: a full disk may leave one."""
    print(
        f"{path.parent}: the last row of metrics.csv is torn, so it is left out.", file=sys.stderr
    )


def metrics(run: Path) -> list[Row]:
    """The rows of a run's metrics.csv, with texts as cells."""
    return read_csv(run / "metrics.csv", left_out)


def read(run: Path) -> dict[str, list[tuple[float, float]]]:
    """The points of each panel: step and value, wherever the column has one."""
    curves = {name: [] for name in PANELS}
    for (n, row), (name, title) in product(enumerate(metrics(run), 2), PANELS.items()):
        scale = 100 if title.endswith("%") else 1
        try:
            curves[name] += [(int(row["step"]), scale * float(row[name]))] if row[name] else []
        except ValueError as error:
            stop(row.path, n, error)
    return curves


def title_of(run: str, curves: dict[str, list]) -> str:
    """The result in words: how sampled accuracy has changed in the rows of metrics.csv."""
    shares = [share for _, share in curves["sampled"]]
    name = Path(run).name.replace("$", r"\$")  # else it begins a formula
    if not shares:
        return name
    return f"{name}: sampled accuracy {shares[0]:.1f} -> {shares[-1]:.1f} % (one sample a problem)"


def draw(runs: dict[str, dict], out: Path) -> None:
    """A line for each run in each panel; the names of the runs are below.

    What is measured in every training step is faint, and its mean over ten steps is bold.
    """
    from matplotlib import style
    from matplotlib.figure import Figure  # here, so that --help does without it

    with style.context("default"):  # whatever somebody's matplotlibrc asks for
        figure = Figure(figsize=(10.5, 6 + 0.2 * len(runs)), layout="constrained")
        draw_panels(figure, runs)
        save(figure, out)


def draw_panels(figure, runs: dict[str, dict]) -> None:
    for ax, (name, title) in zip(figure.subplots(2, 3).flat, PANELS.items()):
        ax.set(title=title, xlabel="training step")
        for (colour, dashes), (run, curves) in zip(LOOKS, runs.items()):
            points = np.reshape(curves[name], (-1, 2)).T  # (2, 0) if there are none
            if points.shape[1] > 2 * MEAN and name not in ("sampled", "greedy"):
                ax.plot(*points, color=colour, linewidth=0.8, alpha=0.25, label="_every step")
                ax.set_xlabel("training step (bold: mean of ten)")
                points = [np.convolve(x, np.full(MEAN, 1 / MEAN), "valid") for x in points]
            ax.plot(*points, color=colour, linewidth=2, linestyle=dashes, label=run)
        if title.endswith("%"):
            ax.set_ylim(-2, 102)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.3)
    if len(runs) == 1:
        figure.suptitle(title_of(*[*runs.items()][0]), fontweight="bold")
        return
    names = [name.replace("$", r"\$") for name in runs]  # else it begins a formula
    lines = [line for line in figure.axes[0].lines if line.get_alpha() is None]
    figure.legend(lines, names, loc="outside lower center")


def save(figure, out: Path) -> None:
    """Writes the picture, which is whole or not there."""
    part = out.with_name(f"{out.name}.part")  # renamed when it is whole
    try:
        figure.savefig(part, dpi=150, format=out.suffix[1:])
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def main(argv: list[str]) -> None:
    about = __doc__.splitlines()[0]
    # Without the usage an error is one line.
    parser = argparse.ArgumentParser("python -m tools.curves", argparse.SUPPRESS, about)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--out", default="curves.png", help="the picture: .png, .pdf or .svg")
    options = parser.parse_args(argv)
    out = Path(os.path.expanduser(options.out))  # no shell does this in --out=~/x.png
    if not out.suffix:
        out = out.with_name(f"{out.name}.png")
    if len(options.runs) > len(LOOKS):
        parser.error(f"at most {len(LOOKS)} runs can be told apart in one picture")
    runs = {}
    for run in options.runs:
        name = os.fsencode(run).decode(errors="backslashreplace")  # no font has a half character
        try:
            runs[name] = read(run)
        except OSError:
            parser.error(f"{run} is not the folder of a run: no metrics.csv of train.py is in it")
        if not any(runs[name].values()):
            parser.error(f"{run} has no row yet: its run stopped before training")
    try:
        draw(runs, out)
    except ImportError:
        parser.error("matplotlib is missing: python -m pip install matplotlib")
    except (OSError, ValueError) as error:
        parser.error(f"{out} cannot be written: {error}")
    print(f"The picture is {out}.")


if __name__ == "__main__":
    print_anything()
    main(sys.argv[1:])
