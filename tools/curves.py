"""Curves of your own runs: python -m tools.curves RUN [RUN ...] [--out curves.png]

RUN is the folder of a run, for example runs/add-grpo-seed0. A panel for each of some columns of
metrics.csv, which tools/README.md defines, with a line for each run.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np

PANELS = {  # column: its title; what ends with % is a share
    "sampled": "Sampled accuracy (held-out), %",
    "greedy": "Greedy accuracy (held-out), %",
    "reward": "Mean reward (training), %",
    "all_fail": "All-fail groups, %",
    "reasoning_correct": "Responses with all steps correct, %",
    "entropy": "Entropy of a token, nats",
}
# Blue and orange mean up and down in this project, so no line has them.
COLOURS = ["#000000", "#009E73", "#CC79A7", "#881111", "#6a3d9a"]
LOOKS = [(*look, dashes) for dashes in ("-", "--", ":") for look in zip(COLOURS, "os^Dv")]


def metrics(run: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics.csv. A last row that is torn is left out, and a line says so."""
    text = (run / "metrics.csv").read_text(encoding="utf-8-sig")
    whole, newline, torn = text.rpartition("\n")
    if torn:
        print(f"{run}: the last row of metrics.csv is torn, so it is left out.", file=sys.stderr)
    return [*csv.DictReader(whole.splitlines())]


def read(run: Path) -> dict[str, list[tuple[float, float]]]:
    """The points of each panel: step and value, wherever the column has one."""
    rows = metrics(run)
    curves = {}
    for name, title in PANELS.items():
        scale = 100 if title.endswith("%") else 1
        curves[name] = [(int(x["step"]), scale * float(x[name])) for x in rows if x[name]]
    return curves


def draw(runs: dict[str, dict], out: Path) -> None:
    """A line and its marks for each run in each panel; the names of the runs are below."""
    from matplotlib.figure import Figure  # here, so that --help does without it

    figure = Figure(figsize=(10.5, 6 + 0.2 * len(runs)), layout="constrained")
    for ax, (name, title) in zip(figure.subplots(2, 3).flat, PANELS.items()):
        ax.set(title=title, xlabel="training step")
        for (colour, marker, dashes), curves in zip(LOOKS, runs.values()):
            # At most about 16 marks a line, so that they do not touch.
            every = max(1, len(curves[name]) // 16)
            look = {"color": colour, "marker": marker, "markevery": every, "markersize": 4}
            points = np.reshape(curves[name], (-1, 2)).T  # (2, 0) if there are none
            ax.plot(*points, linewidth=1, linestyle=dashes, **look)
        if title.endswith("%"):
            ax.set_ylim(-2, 102)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(alpha=0.3)
    names = [name.replace("$", r"\$") for name in runs]  # else it begins a formula
    figure.legend(figure.axes[0].lines, names, loc="outside lower center")
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
    out = Path(options.out)
    if not out.suffix:
        out = out.with_name(f"{out.name}.png")
    if len(options.runs) > len(LOOKS):
        parser.error(f"at most {len(LOOKS)} runs can be told apart in one picture")
    runs = {}
    for run in options.runs:
        try:
            runs[str(run)] = read(run)
        except (OSError, KeyError, ValueError, TypeError):
            parser.error(f"{run} is not the folder of a run: no metrics.csv of train.py is in it")
        if not any(runs[str(run)].values()):
            parser.error(f"{run} has no row yet: its run stopped before training")
    try:
        draw(runs, out)
    except ImportError:
        parser.error("matplotlib is missing: python -m pip install matplotlib")
    except (OSError, ValueError) as error:
        parser.error(f"{out} cannot be written: {error}")
    print(f"The picture is {out}.")


if __name__ == "__main__":
    main(sys.argv[1:])
