"""How studies draw, and the picture of studies.compare.

Blue is above grpo and orange below. Pictures are made for a width of 700 pixels. There their
letters are as large as the text around them, and on a telephone they can still be read.
"""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import optimize

from studies.analysis import Effect, run_times
from studies.common import TABLES, interval, matching, read_rows
from studies.protocol import COMPARED, ROWS, TASKS, TWELVE, USUAL, title

# Blue and orange are no variant's: they are signs, here and in the lectures.
UP = "#0072B2"
DOWN = "#D55E00"
NEUTRAL = "#6B6B6B"
PAGE = np.array([13, 17, 23]) / 255  # a dark page
WIDTH = 5.6  # inches, shown 700 pixels wide
EXAMPLES = {"add": "add: 347+285=", "mul": "mul: 347*8=", "sum": "sum: 7+8+5="}
LEARNERS = {"half": "#007A5A", "nthr": "#B0568C"}
LIMITS = (-14.0, 10.5)  # points from grpo in the forest plot
ADVISED = ("half", "pos_only", "reinforce")  # in bold


# ---- What all studies draw with
@contextmanager
def picture(path: Path, panels: int = 1, rows: int = 1, **settings):
    """The axes to draw on, an array if there are several panels; then the picture is written."""
    import matplotlib.pyplot as plt  # here, because most studies do without it

    plt.switch_backend("Agg")
    plt.style.use("default")  # whatever somebody's matplotlibrc asks for
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update({"axes.titlesize": 10.5, "axes.titleweight": "bold"})
    figure, axes = plt.subplots(rows, panels, layout="constrained", **settings)
    yield axes
    figure.savefig(path, dpi=240)
    # For dark pages: lightness is turned round, and each hue stays.
    image = plt.imread(path)[..., :3]  # from 0 to 1
    turned = image + 1 - image.max(-1, keepdims=True) - image.min(-1, keepdims=True)
    plt.imsave(path.with_stem(f"{path.stem}-dark"), PAGE + (0.93 - PAGE) * turned)


def sign(x: Effect) -> dict:
    """Blue above grpo and orange below; grey if the difference is not significant."""
    if not x.significant:
        return {"color": NEUTRAL}
    return {"color": UP if x.average.value > 0 else DOWN}


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
            ax.set(title=EXAMPLES.get(task, task), xlim=LIMITS, xlabel="points above grpo")
            ax.set_xticks([-10, -5, 0, 5, 10])
            if any(of == task for of, _ in run_times()):
                ax.text(1.03, len(names) - 0.4, "time", transform=ax.get_yaxis_transform())
            ax.grid(axis="y", color="0.9", linewidth=0.6)
            ax.set_axisbelow(True)
            for y, name in enumerate(names):
                if (task, name) in found:
                    dot_and_interval(ax, y, found[task, name])
        ax.set_yticks(range(len(names)), [title(name) for name in names])
        ax.set_ylim(-0.6, len(names) - 0.4)
        for label, name in zip(axes[0][0].get_yticklabels(), names):
            label.set_fontweight("bold" if name in ADVISED else "normal")
        if {*TASKS} <= {*tasks}:
            ax.figure.suptitle(
                "Filled dots differ significantly from grpo: blue above, orange below"
            )


def dot_and_interval(ax, y: int, x: Effect) -> None:
    """One line of a panel, with an arrow if the value is outside on the left, and the time."""
    value, low, high = x.average.times(100)
    width = 2 if x.significant else 1
    fill = None if x.significant else "white"  # a hollow dot is not significant
    ax.plot([low, high], [y, y], linewidth=width, solid_capstyle="butt", **sign(x))
    if value < LIMITS[0]:
        ax.plot(LIMITS[0], y, "<", clip_on=False, markersize=7, **sign(x))
        number = f"{value:+.0f}".replace("-", "\N{MINUS SIGN}")
        ax.text(max(high, LIMITS[0]) + 0.9, y, number, va="center")  # beside the bar
    else:
        ax.plot(value, y, "o", markersize=6, markerfacecolor=fill, **sign(x))
    times = run_times().get((x.task, x.variant))
    note = f"{times[0]:.1f}" if times is not None else ""
    if x.n < len(TWELVE):
        note = f"{note} n={x.n}"
    ax.text(1.03, y, note, transform=ax.get_yaxis_transform(), va="center", color=NEUTRAL)


# ---- Learning curves
def curves(path: Path, rows: list[dict]) -> None:
    """Sampled accuracy of twelve runs of grpo on add, and how far LEARNERS are above their mean."""
    steps = range(0, 401, 25)
    shares = {}  # of a variant: in %, a row a base model
    for name in ("grpo", *LEARNERS):
        ours = matching(rows, task="add", variant=name, lr=USUAL, flags="")
        found = {row["seed"]: [100 * row[str(x)] for x in steps] for row in ours}
        shares[name] = np.array([found[seed] for seed in TWELVE])
    mean = shares["grpo"].mean(0)
    with picture(path, rows=2, figsize=(WIDTH, 4.2), sharex=True, height_ratios=[5, 2]) as axes:
        axes[0].plot(steps, shares["grpo"].T, color="0.75", linewidth=0.8)
        axes[0].plot(steps, mean, color="black", linewidth=2.5)
        axes[0].text(130, 45, "grpo: twelve runs and their mean", fontweight="bold")
        for x, y, side in ((0, 4, "left"), (400, mean[-1] - 12, "right")):
            axes[0].text(x + 4 * (x == 0), y, f"{mean[x // 25]:.0f} %", ha=side, fontweight="bold")
        axes[0].set(title="Correct answers to new problems of add", ylabel="%", ylim=(0, 100))
        axes[1].axhline(0, color="black", linewidth=1, label="_")
        for name, colour in LEARNERS.items():
            found = [interval(x) for x in (shares[name] - shares["grpo"]).T]
            means, lows, highs = np.nan_to_num(found).T
            axes[1].fill_between(steps, lows, highs, color=colour, alpha=0.18, linewidth=0)
            axes[1].plot(steps, means, color=colour, linewidth=2, label=name)
        axes[1].set(xlabel="training step", ylabel="points\nabove grpo", xlim=(0, 400))
        for ax in axes:
            ax.grid(color="0.9", linewidth=0.6)
            ax.set_axisbelow(True)
        name_lines(axes[1], apart=0.3)


def draw(results: list[Effect]) -> None:
    """The pictures of studies.compare, if there are rows; results: what effects() returns."""
    compared = [x for x in results if x.chosen and x.variant in COMPARED]
    if compared:
        forest(TABLES / "forest.png", compared)
        curves(TABLES / "learning.png", read_rows(ROWS))
