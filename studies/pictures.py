"""How studies draw, and the pictures of studies.compare.

A variant looks the same in all pictures; its name stands where its line ends.
"""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from studies.analysis import Effect
from studies.common import TABLES, interval
from studies.protocol import FORMS, NAMES, RATES, TASKS, accuracy_by_rate

SPLIT = ("critic", "culling")  # some runs collapse, others do not: single runs are drawn
PAIR = ["grpo", "verifree"]
ANSWERS = ["grpo", "likelihood", "verifree", *FORMS]
# A colour for each name, dark enough for text on white. Blue and orange are no variant's: they are
# signs, here and in the lectures.
UP, DOWN, NEUTRAL = "#0072B2", "#D55E00", "#767676"
COLOURS = {
    "grpo": "#000000",
    "dr_grpo": "#5A5A5A",
    "rloo": "#757575",
    "maxrl": "#9B26AF",
    "pos_only": "#A31515",
    "reinforce": "#5E6E00",
    "half": "#C2006B",
    "critic": "#8A5A00",
    "compensation": "#6B4A2B",
    "culling": "#4F5B66",
    "negative": "#7D1D3F",
    "ngrpo": "#A0476B",
    "likelihood": "#7A3DB8",
    "verifree": "#007A4D",
    "forking": "#2F6B2F",
    "nthr": "#00727A",
    "substituted": "#B3394B",
    "substituted_up": "#4B7A0F",
    "dense": "#7C5C2E",
    "log_likelihood": "#2B5F6B",
}
WIDTH = 6.7  # inches: 804 pixels


# ---- What all studies draw with
def pyplot():
    """matplotlib's pyplot, drawing to files."""
    import matplotlib.pyplot as plt  # here, because most studies do without it

    plt.switch_backend("Agg")
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    return plt


@contextmanager
def picture(name: str | Path, panels: int = 1, rows: int = 1, **settings):
    """The axes to draw on, an array if there are several panels; then results/<name> is written."""
    figure, axes = pyplot().subplots(rows, panels, layout="constrained", **settings)
    yield axes
    figure.savefig(TABLES / name, dpi=120)


def look(name: str) -> dict:
    """The colour of a variant or form of experiment 5; what has no colour of its own is grey."""
    return {"color": COLOURS.get(name, NEUTRAL)}


def band(ax, x, runs: np.ndarray, **how) -> None:
    """The mean of runs (base models, len(x)), in %, and its 95 % t interval as a band."""
    mean, low, high = 100 * np.array([interval(values) for values in runs.T]).T
    ax.plot(x, mean, **how)
    ax.fill_between(x, low, high, color=how["color"], alpha=0.2, linewidth=0)


def name_lines(ax, apart: float) -> None:
    """Writes the label of each line that has one to the right of the axes, where the line ends.

    Names that would touch move down until they are `apart`, a share of the axes' height. A thin
    line joins a name and its line.
    """
    low, high = ax.get_ylim()
    named = [line for line in ax.lines if not line.get_label().startswith("_")]
    place = np.inf
    for line in sorted(named, key=lambda line: -line.get_ydata()[-1]):
        x, y = line.get_xydata()[-1]
        place = min((y - low) / (high - low), place - apart)
        colour = line.get_color()
        joined = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "relpos": (0, 0.5)}
        text = {"color": colour, "fontsize": 8, "va": "center", "arrowprops": joined}
        ax.annotate(line.get_label(), (x, y), (1.05, place), textcoords="axes fraction", **text)


# ---- What studies.compare draws
def grid(name: str | Path, panels: dict[str, list], columns: int, height: float) -> None:
    """Learning curves. panels: title -> lines, each a label, an effect and a look.

    As in matplotlib, a label that begins with _ is not shown.
    """
    rows = -(-len(panels) // columns)
    size = {"figsize": (WIDTH, height * rows), "sharey": True, "squeeze": False}
    with picture(name, columns, rows, **size) as axes:
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax in axes[:, 0]:
            ax.set_ylabel("sampled\naccuracy, %")
        for ax, (title, lines) in zip(axes.flat, panels.items()):
            for label, x, how in lines:
                band(ax, x.steps, x.curves, label=label, linewidth=1.5, **how)
                if x.variant in SPLIT:
                    ax.plot(x.steps, 100 * x.curves.T, linewidth=0.4, color=how["color"])
            ax.set(title=title, xlabel="training step", ylim=(0, 100))
            ax.locator_params(axis="x", nbins=2)
            name_lines(ax, 0.14 / height)


def lines_of(results: list[Effect], task: str, names: list[str]) -> list[tuple]:
    """The lines of these variants in a panel of one task: base models 4 to 9, which all have."""
    lines = []
    for x in results:
        if x.task == task and x.variant in names:
            lines.append((x.variant, replace(x, curves=x.curves[:6]), look(x.variant)))
    return lines


def beside_grpo(results: list[Effect], variant: str) -> list[tuple]:
    """The lines of one variant on both tasks, grey if not significant; dotted, grpo's beside it."""
    lines = []
    for x in results:
        if x.variant == variant and x.task in TASKS:
            grpo = replace(x, variant="grpo", curves=x.curves_of_grpo)
            lines.append((x.task, x, look(variant) if x.significant else {"color": "0.6"}))
            lines.append(("_grpo", grpo, {"color": "black", "linestyle": ":"}))
    return lines


def parameter_study(rows: list[dict]) -> None:
    """Learning rate against average accuracy during training, of the base models for it."""
    with picture("rates.png", len(TASKS), figsize=(WIDTH, 4.5)) as axes:
        axes[0].set_ylabel("average accuracy during training, %")
        for ax, task in zip(axes, TASKS):
            for name in NAMES:
                accuracy = accuracy_by_rate(rows, task, name)
                if accuracy:
                    how = {"marker": ".", "label": name} | look(name)
                    ax.plot([*accuracy], [*accuracy.values()], **how)
            ax.set(title=task, xscale="log", xlabel="learning rate")
            ax.set_xticks(RATES, [f"{lr:g}" for lr in RATES], rotation=45)
            ax.minorticks_off()
            name_lines(ax, 0.04)


def draw(rows: list[dict], results: list[Effect]) -> None:
    """All of them, as far as there are rows; results: what effects() returns."""
    if accuracy_by_rate(rows, "add", "grpo"):
        parameter_study(rows)
    chosen = [x for x in results if x.chosen]
    there = {x.variant for x in chosen}
    if chosen:
        learning = {task: lines_of(chosen, task, PAIR) for task in (*TASKS, "sum")}
        grid("learning.png", learning, 3, 2.8)
        answers = {task: lines_of(chosen, task, ANSWERS) for task in TASKS}
        grid("answers.png", answers, 2, 3)
        curves = {name: beside_grpo(chosen, name) for name in NAMES[1:] if name in there}
        grid("curves.png", curves, 5, 1.7)
