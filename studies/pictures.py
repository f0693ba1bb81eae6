"""How studies draw, and the picture of studies.compare.

Blue is above grpo and orange below. Pictures are made for a width of 700 pixels. There their
letters are as large as the text around them, and on a telephone they can still be read.
"""

from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy import optimize

from studies.analysis import Effect, run_times
from studies.common import TABLES, matching, read_rows
from studies.protocol import COMPARED, ROWS, TASKS, TWELVE, USUAL, title

# Blue and orange are no variant's: they are signs, here and in the lectures.
UP = "#0072B2"
DOWN = "#C24A00"
NEUTRAL = "#6B6B6B"
PAGE = np.array([13, 17, 23]) / 255  # a dark page
WIDTH = 5.6  # inches, shown 700 pixels wide
EXAMPLES = {"add": "add: 347+285=", "mul": "mul: 347*8=", "sum": "sum: 7+8+5="}
COLOURS = {"base": NEUTRAL, "grpo": "black", "half": "#007A5A"}
COLOURS |= {"pos_only": "#881111", "maxrl": "#5A2D91"}  # the same in every picture
LIMITS = (-14.0, 10.5)  # points from grpo in the forest plot
LOOKS = {"significantly above": {"color": UP}, "significantly below": {"color": DOWN}}  # than grpo
LOOKS |= {"not decided": {"color": NEUTRAL, "linewidth": 1, "markerfacecolor": "white"}}
SLOW = 1.2  # times as long as a run of grpo


# ---- What all studies draw with
@contextmanager
def picture(path: Path, panels: int = 1, rows: int = 1, **settings):
    """The axes to draw on, an array if there are several panels; then the picture is written."""
    import matplotlib.pyplot as plt  # here, because most studies do without it

    plt.switch_backend("Agg")
    plt.style.use("default")  # whatever somebody's matplotlibrc asks for
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    plt.rcParams.update({"axes.titlesize": 10.5, "axes.titleweight": "bold", "axes.grid": True})
    plt.rcParams.update({"axes.axisbelow": True, "grid.color": "0.9", "grid.linewidth": 0.6})
    figure, axes = plt.subplots(rows, panels, layout="constrained", **settings)
    yield axes
    figure.savefig(path, dpi=240)
    # For dark pages: lightness is turned round, and each hue stays.
    image = plt.imread(path)[..., :3]  # from 0 to 1
    turned = image + 1 - image.max(-1, keepdims=True) - image.min(-1, keepdims=True)
    plt.imsave(path.with_stem(f"{path.stem}-dark"), PAGE + (0.93 - PAGE) * turned)


def look(x: Effect) -> str:
    """A key of LOOKS."""
    side = "above" if x.average.value > 0 else "below"
    return f"significantly {side}" if x.significant else "not decided"


def is_slow(name: str) -> bool:
    """Whether a run takes at least SLOW times as long as one of grpo, on one of the tasks."""
    return any(x[0] >= SLOW for (_, variant), x in run_times().items() if variant == name)


def name_lines(ax, names: list[str], apart: float = 0.08) -> None:
    """Writes the names of the first lines to the right of the axes, where the lines end.

    Names are at least `apart`, a share of the axes' height. A thin line joins a name that had to
    move and its line.
    """
    ax.autoscale_view()  # matplotlib would find the limits only when it draws
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = [to_axes.transform(line.get_xydata()[-1])[1] for line in ax.lines[: len(names)]]
    for i, height in zip(np.argsort(ends), spread(np.sort(ends), apart)):
        end = ax.lines[i].get_xydata()[-1]
        colour = ax.lines[i].get_color()
        joined = {"arrowstyle": "-", "color": colour, "linewidth": 0.5, "relpos": (0, 0.5)}
        text = {"color": colour, "va": "center", "arrowprops": joined}
        ax.annotate(names[i], end, (1.04, height), textcoords="axes fraction", **text)


def spread(heights: np.ndarray, apart: float) -> np.ndarray:
    """Heights from 0 to 1 in order, moved as little as possible until they are `apart`."""
    steps = apart * np.arange(len(heights))
    return optimize.isotonic_regression(heights - steps).x + steps


# ---- Differences from grpo
def forest(path: Path, results: list[Effect], tasks=TASKS) -> None:
    """A dot and an interval for each variant, a panel a task; the best mean over tasks on top.

    Slow variants stand below the others. The last effect of a variant counts.
    """
    found = {(x.task, x.variant): x for x in results if x.task in tasks}
    of = {name: [x for x in found.values() if x.variant == name] for _, name in found}
    means = {name: np.mean([x.average.value for x in of[name]]) for name in of}
    names = sorted(means, key=lambda name: (not is_slow(name), means[name]))  # from the bottom
    slow = sum(map(is_slow, names))
    if slow:
        names.insert(slow, "cost more time:")
    size = {"figsize": (WIDTH, 1.3 + 0.27 * len(names)), "sharey": True, "squeeze": False}
    with picture(path, len(tasks), **size) as axes:
        for ax, task in zip(axes[0], tasks):
            ax.axvline(0, color="black", linewidth=1)
            ax.set(title=EXAMPLES.get(task, task), xlim=LIMITS, xlabel="points above grpo")
            ax.set_xticks([-10, -5, 0, 5, 10])
            for y, name in enumerate(names):
                if (task, name) in found:
                    dot_and_interval(ax, y, found[task, name])
        ax.set_yticks(range(len(names)), [title(name) for name in names])
        for label, name in zip(axes[0][0].get_yticklabels(), names):
            if [look(x) for x in of.get(name, [])] == ["significantly above"] * len(tasks):
                label.set(fontweight="bold", color=UP)
        for text, shape in LOOKS.items():
            ax.plot([], [], "o-", label=text, **shape)
        about = "Average accuracy minus that of grpo, and its 95 % interval"
        ax.figure.legend(loc="outside upper center", ncols=3, title=about, frameon=False)


def dot_and_interval(ax, y: int, x: Effect) -> None:
    """One line of a panel, with an arrow if the value is outside, and the time of a slow one."""
    value, low, high = x.average.times(100)
    shown = np.clip([low, value, high], *LIMITS)
    marker = {LIMITS[0]: "<", LIMITS[1]: ">"}.get(shown[1], "o")
    line = {"marker": marker, "markevery": [1], "solid_capstyle": "butt", "clip_on": False}
    ax.plot(shown, [y] * 3, **{"linewidth": 2} | line | LOOKS[look(x)])
    if value < LIMITS[0]:
        ax.text(shown[2] + 0.9, y, f"\N{MINUS SIGN}{-value:.0f}", va="center")  # beside the bar
    times = run_times().get((x.task, x.variant))
    slow = times is not None and is_slow(x.variant)
    note = f"{times[0]:.1f}\N{MULTIPLICATION SIGN}" if slow else ""
    few = f" n={x.n}" if x.n < len(TWELVE) else ""
    ax.text(1.03, y, note + few, transform=ax.get_yaxis_transform(), va="center", color=NEUTRAL)


# ---- Learning curves
def curves(path: Path, rows: list[dict]) -> None:
    """Sampled accuracy of twelve runs of grpo on add, and their mean."""
    steps = range(0, 401, 25)
    ours = matching(rows, task="add", variant="grpo", lr=USUAL, flags="")
    found = {row["seed"]: [100 * row[str(x)] for x in steps] for row in ours}
    shares = np.array([found[seed] for seed in TWELVE])  # in %, a row a base model
    mean = shares.mean(0)
    with picture(path, figsize=(WIDTH, 2.7)) as ax:
        ax.plot(steps, shares.T, color="0.55", linewidth=0.7)
        ax.plot(steps, mean, color="black", linewidth=2.5)
        ax.text(155, 45, "twelve runs of grpo and their mean", fontweight="bold")
        for x, y, side in ((4, 3, "left"), (400, mean[-1] - 14, "right")):
            ax.text(x, y, f"{mean[x // 25]:.0f} %", ha=side, fontweight="bold")
        ax.set(title="Sampled answers to new additions that are correct, %", ylim=(0, 100))
        ax.set(xlabel="training step", xlim=(0, 400))


def draw(results: list[Effect]) -> None:
    """The pictures of studies.compare, if there are rows; results: what effects() returns."""
    compared = [x for x in results if x.chosen and x.variant in COMPARED]
    if compared:
        forest(TABLES / "forest.png", compared)
        curves(TABLES / "learning.png", read_rows(ROWS))
