"""How studies draw, and the pictures of studies.compare.

A variant has one colour in all pictures, and its name is where its line ends. Blue is above
grpo and orange below. Pictures are made for a width of 800 pixels: there their letters are as large
as the text around them.
"""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import optimize

from studies.analysis import Effect, seconds_by_variant
from studies.common import TABLES
from studies.protocol import COMPARED, FORMS, SIX, TASKS, TWELVE, title

# Blue and orange are no variant's: they are signs, here and in the lectures.
UP = "#0072B2"
DOWN = "#D55E00"
NEUTRAL = "#6B6B6B"
COLOURS = {  # of what has a curve, dark enough for text on white
    "grpo": "#000000",
    "pos_only": "#A31515",
    "half": "#C2006B",
    "critic": "#8A5A00",
    "culling": "#4F5B66",
    "likelihood": "#7A3DB8",
    "verifree": "#007A4D",
    "substituted": "#B3394B",
    "substituted_up": "#4B7A0F",
    "dense": "#7C5C2E",
    "log_likelihood": "#2B5F6B",
}
WIDTH = 6.7  # inches: 804 pixels of two dots
EXAMPLES = {"add": "add: 347+285=", "mul": "mul: 347*8=", "sum": "sum: 7+8+5="}
LIMIT = 10.5  # points on either side of grpo in the forest plot
CURVES = ["grpo", "verifree", "likelihood", "half"]
ANSWERS = ["grpo", "likelihood", "verifree", *FORMS]


# ---- What all studies draw with
@contextmanager
def picture(path: Path, panels: int = 1, rows: int = 1, **settings):
    """The axes to draw on, an array if there are several panels; then the picture is written."""
    import matplotlib.pyplot as plt  # here, because most studies do without it

    plt.switch_backend("Agg")
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update({"axes.titlesize": 10.5, "axes.titleweight": "bold"})
    figure, axes = plt.subplots(rows, panels, layout="constrained", **settings)
    yield axes
    figure.savefig(path, dpi=240)


def look(name: str) -> dict:
    """The colour of a variant or form of experiment 5; what has no colour of its own is grey."""
    return {"color": COLOURS.get(name, NEUTRAL)}


def sign(x: Effect) -> dict:
    """Blue above grpo and orange below; grey if the difference is not significant."""
    if not x.significant:
        return {"color": NEUTRAL}
    return {"color": UP if x.average.value > 0 else DOWN}


def dot(x: Effect) -> dict:
    """The colour of a dot; hollow if the difference is not significant."""
    return sign(x) | {"markerfacecolor": sign(x)["color"] if x.significant else "white"}


def name_lines(ax, names: list[str] | None = None, apart: float = 0.08) -> None:
    """Writes the name of each line to the right of the axes, where the line ends.

    names: of all lines; else their labels, without those that begin with _. Names are at least
    `apart`, a share of the axes' height. A thin line joins a name that had to move and its line.
    """
    ax.autoscale_view()  # matplotlib would find the limits only when it draws
    to_axes = ax.transData + ax.transAxes.inverted()
    names = names or [line.get_label() for line in ax.lines]
    named = [pair for pair in zip(ax.lines, names) if not pair[1].startswith("_")]
    ends = [to_axes.transform(line.get_xydata()[-1])[1] for line, _ in named]
    for i, height in zip(np.argsort(ends), spread(np.sort(ends), apart)):
        line, name = named[i]
        colour = line.get_color()
        joined = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)}
        text = {"color": colour, "va": "center", "arrowprops": joined}
        ax.annotate(name, line.get_xydata()[-1], (1.04, height), textcoords="axes fraction", **text)


def spread(heights: np.ndarray, apart: float) -> np.ndarray:
    """Heights from 0 to 1 in order, moved as little as possible until they are `apart`."""
    steps = apart * np.arange(len(heights))
    return optimize.isotonic_regression(heights - steps).x + steps


# ---- Differences from grpo
def forest(path: Path, results: list[Effect], tasks=TASKS) -> None:
    """A dot and an interval for each variant, a panel a task; the best mean over tasks on top.

    The last effect of a variant counts.
    """
    found = {(x.task, x.variant): x for x in results if x.task in tasks}
    means = {}
    for name in dict.fromkeys(name for _, name in found):
        means[name] = np.mean([x.average.value for x in found.values() if x.variant == name])
    names = sorted(means, key=means.get)  # from the bottom
    size = {"figsize": (WIDTH, 1.1 + 0.27 * len(names)), "sharey": True, "squeeze": False}
    with picture(path, len(tasks), **size) as axes:
        for ax, task in zip(axes[0], tasks):
            ax.axvline(0, color="black", linewidth=1)
            ax.set(title=EXAMPLES[task], xlim=(-LIMIT, LIMIT), xlabel="points above grpo")
            ax.set_xticks([-10, -5, 0, 5, 10])
            ax.text(1.03, len(names) - 0.4, "time", transform=ax.get_yaxis_transform())
            ax.grid(axis="y", color="0.9", linewidth=0.6)
            ax.set_axisbelow(True)
            for y, name in enumerate(names):
                if (task, name) in found:
                    dot_and_interval(ax, y, found[task, name])
        ax.set_yticks(range(len(names)), [title(name) for name in names])
        ax.set_ylim(-0.6, len(names) - 0.4)


def dot_and_interval(ax, y: int, x: Effect) -> None:
    """One line of a panel, with an arrow where the value is outside, and the time of a step."""
    value, low, high = x.average.times(100)
    width = 2 if x.significant else 1
    ax.plot([low, high], [y, y], linewidth=width, solid_capstyle="butt", **sign(x))
    if abs(value) > LIMIT:
        edge = np.copysign(LIMIT, value)
        ax.plot(edge, y, "<" if value < 0 else ">", clip_on=False, markersize=7, **sign(x))
        ax.text(0.93 * edge, y + 0.12, f"{value:+.0f}", ha="left" if value < 0 else "right")
    else:
        ax.plot(value, y, "o", markersize=6, **dot(x))
    time = seconds_by_variant().get((x.task, x.variant))
    note = f"x{float(time):.1f}" if time else ""
    if x.n < len(TWELVE):
        note = f"{note} n={x.n}"
    ax.text(1.03, y, note, transform=ax.get_yaxis_transform(), va="center", color=NEUTRAL)


# ---- Learning curves
def curves_of(ax, results: list[Effect], names: list[str], task: str, n: int) -> None:
    """The mean curve of each variant, of the first n base models, and the accuracy at its end."""
    for x in results:
        if x.task == task and x.variant in names:
            mean = 100 * x.curves[0][:n].mean(0)
            label = f"{x.variant} {mean[-1]:.0f} %"
            ax.plot(x.steps, mean, linewidth=2, label=label, **look(x.variant))
    finish(ax, EXAMPLES[task])


def single_runs(ax, x: Effect) -> None:
    """Every run of a variant, and the mean of grpo's as a dotted line."""
    ours, of_grpo = 100 * x.curves
    ax.plot(x.steps, ours.T, linewidth=1, label="_run", **look(x.variant))
    ax.plot(x.steps, of_grpo.mean(0), ":", linewidth=2, label="grpo", color="black")
    finish(ax, f"{x.variant} on {x.task}, {x.n} single runs")


def finish(ax, heading: str) -> None:
    ax.set(title=heading, xlabel="training step", ylim=(0, 100), xlim=(0, 400))
    name_lines(ax)


def learning(path: Path, results: list[Effect]) -> None:
    """Above, what gains most; below, single runs of what splits on add."""
    with picture(path, 2, 2, figsize=(WIDTH, 5.6), sharey=True) as axes:
        for ax, task in zip(axes[0], TASKS):
            curves_of(ax, results, CURVES, task, len(TWELVE))
        for ax, name in zip(axes[1], ("critic", "culling")):
            for x in results:
                if (x.task, x.variant) == ("add", name):
                    single_runs(ax, x)
        for ax in axes[:, 0]:
            ax.set_ylabel("sampled accuracy, %")


def answers(path: Path, results: list[Effect]) -> None:
    """The forms of experiment 5, of the six base models that all of them have."""
    with picture(path, 2, figsize=(WIDTH, 3.6), sharey=True) as axes:
        axes[0].set_ylabel("sampled accuracy, %")
        for ax, task in zip(axes, TASKS):
            curves_of(ax, results, ANSWERS, task, len(SIX))


def draw(results: list[Effect]) -> None:
    """All pictures of studies.compare, if there are rows; results: what effects() returns."""
    chosen = [x for x in results if x.chosen]
    if chosen:
        forest(TABLES / "forest.png", [x for x in chosen if x.variant in COMPARED])
        learning(TABLES / "learning.png", chosen)
        answers(TABLES / "answers.png", chosen)
