"""The pictures of studies.compare, from docs/tables/compare.csv and docs/tables/curves.csv alone.

A variant looks the same in all of them (studies.common); its name stands where its line ends.
"""

import numpy as np

from studies.common import at, interval, look, picture
from studies.effects import FORMS, HEAD, NAMES, RATES, TASKS, accuracies, by_rate
from studies.effects import evaluated

SPLIT = ("critic", "culling")  # some runs collapse, others do not: single runs are drawn
ANSWERS = ["grpo", "likelihood", "verifree", *FORMS]
DOTTED = {"color": "black", "linestyle": ":"}
GREY = {"color": "0.6", "linestyle": "-"}
WIDTH = 6.7  # inches: 804 pixels


def line(ax, curves: list[dict], head: dict, how: dict) -> float:
    """The mean curve in % with its 95 % t interval as a band; returns where it ends."""
    runs = 100 * np.array([*accuracies(curves, **head).values()])  # (base models, steps)
    mean, low, high = np.array([interval(values) for values in runs.T]).T
    ax.plot(evaluated(curves), mean, linewidth=1.5, **how)
    ax.fill_between(evaluated(curves), low, high, color=how["color"], alpha=0.2, linewidth=0)
    if head["variant"] in SPLIT:
        ax.plot(evaluated(curves), runs.T, linewidth=0.4, color=how["color"])
    return mean[-1]


def name_lines(ax, ends: dict[str, tuple], apart: float) -> None:
    """Writes names to the right of the axes, each at the height where its line ends.

    ends: name -> where the line ends (y, x) and its colour. Names that would touch move down until
    they are `apart`, a share of the axes' height. A thin line joins a name and its line.
    """
    low, high = ax.get_ylim()
    place = np.inf
    for name, (y, x, colour) in sorted(ends.items(), key=lambda item: -item[1][0]):
        place = min((y - low) / (high - low), place - apart)
        joined = {"arrowstyle": "-", "color": colour, "linewidth": 0.4, "relpos": (0, 0.5)}
        text = {"color": colour, "fontsize": 8, "va": "center", "arrowprops": joined}
        ax.annotate(name, (x, y), (1.05, place), textcoords="axes fraction", **text)


def grid(name, curves: list[dict], panels: dict[str, list], columns: int, height: float) -> None:
    """A picture of learning curves. panels: title -> (name of the line or "", effect, look)."""
    panels = {title: lines for title, lines in panels.items() if lines}
    if not panels:
        return
    rows = -(-len(panels) // columns)
    size = {"figsize": (WIDTH, height * rows), "sharey": True, "squeeze": False}
    with picture(name, min(columns, len(panels)), rows, **size) as axes:
        for ax, (title, lines) in zip(axes.flat, panels.items()):
            ends = {}
            for label, x, how in lines:
                end = line(ax, curves, {key: x[key] for key in HEAD}, how)
                ends[label] = (end, evaluated(curves)[-1], how["color"])
            ends.pop("", None)
            ax.set_title(title, fontsize=10)
            ax.set(xlabel="training step", ylim=(0, 100))
            ax.set_xticks(evaluated(curves)[[0, len(evaluated(curves)) // 2, -1]])
            name_lines(ax, ends, 0.14 / height)
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax in axes[:, 0]:
            ax.set_ylabel("sampled\naccuracy, %")


def named(found: list[dict], task: str, names: list[str]) -> list[tuple]:
    """The lines of these variants in a panel of one task."""
    found = [x for x in at(found, task=task) if x["variant"] in names]
    return [(x["variant"], x, look(x["variant"])) for x in found]


def alone(found: list[dict], variant: str) -> list[tuple]:
    """The lines of one variant on both tasks, grey if not significant, and grpo's, dotted."""
    lines = []
    for x in at(found, variant=variant):
        (grpo,) = at(found, variant="grpo", task=x["task"])
        lines.append((x["task"], x, look(variant) if x["significant"] else GREY))
        lines.append(("", grpo, DOTTED))
    return lines


def parameter_study(rows: list[dict]) -> None:
    """Learning rate against average accuracy during training, of the base models for it."""
    if not by_rate(rows, "mul", "grpo"):
        return
    with picture("rates.png", len(TASKS), figsize=(WIDTH, 4.5)) as axes:
        for ax, task in zip(axes, TASKS):
            ends = {}
            for name in [name for name in NAMES if by_rate(rows, task, name)]:
                found = by_rate(rows, task, name)
                how = look(name)
                y = [100 * x for x in found.values()]
                ax.plot([*found], y, marker=".", linewidth=1.2, **how)
                ends[name] = (y[-1], [*found][-1], how["color"])
            ax.set(title=task, xscale="log", xlabel="learning rate")
            ax.set_xticks(RATES, [f"{lr:g}" for lr in RATES], rotation=45)
            ax.minorticks_off()
            name_lines(ax, ends, 0.04)
        axes[0].set_ylabel("average accuracy during training, %")


def draw(rows: list[dict], curves: list[dict], found: list[dict]) -> None:
    """All of them, as far as there are rows."""
    found = [x for x in found if x["own"]]
    both = [x for x in found if x["task"] in TASKS]
    tasks = (*TASKS, "sum")
    pair = ["grpo", "verifree"]
    grid("learning.png", curves, {task: named(found, task, pair) for task in tasks}, 3, 2.8)
    grid("answers.png", curves, {task: named(both, task, ANSWERS) for task in TASKS}, 2, 3)
    grid("curves.png", curves, {name: alone(both, name) for name in NAMES[1:]}, 5, 1.7)
    parameter_study(rows)
