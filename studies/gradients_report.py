"""What the rows of studies.gradients say: a table, and a picture beside the effects in training."""

import numpy as np
from scipy.stats import spearmanr

from studies.analysis import Effect
from studies.common import Interval, by_seed, markdown, matching, paired, resampled
from studies.pictures import WIDTH, look, name_lines, picture
from studies.protocol import NAMES, TASKS

COLUMNS = {"cosine": "cosine", "mean_cosine": "mean cosine", "snr": "signal-to-noise ratio"}


# ---- The table
def mean(values) -> Interval:
    """Mean over base models, with an interval."""
    values = np.array([*values] or [np.nan])
    return resampled(lambda drawn: np.nanmean(values[drawn]), len(values))


def relative(rows: list[dict]) -> dict[str, Interval]:
    """variant -> signal-to-noise ratio over grpo's: geometric mean and interval; largest first."""
    ratios = {}
    for name in dict.fromkeys(row["variant"] for row in rows):
        ours, of_grpo = paired(rows, "snr", {"variant": name}, {"variant": "grpo"})
        ratios[name] = Interval(*np.exp(mean(np.log(ours / of_grpo))))
    return dict(sorted(ratios.items(), key=lambda item: -item[1].value))


def table(rows: list[dict]) -> str:
    """Means over base models of one task, with intervals."""
    lines = []
    for name, ratio in relative(rows).items():
        means = [mean(by_seed(rows, column, variant=name).values()) for column in COLUMNS]
        lines.append([f"`{name}`", *(f"{x:.2f}" for x in (*means, ratio))])
    return markdown(["variant or control", *COLUMNS.values(), "relative to `grpo`"], lines)


def page(rows: list[dict]) -> str:
    tables = [f"\n## {task}\n\n{table(matching(rows, task=task))}\n" for task in TASKS]
    return "\n".join(["# Bias and noise. studies/gradients.py has the formulas", *tables])


# ---- The picture
def ratios_and_effects(rows: list[dict], results: list[Effect], task: str) -> list[tuple]:
    """Of variants and controls the relative signal-to-noise ratio, and the effect in training."""
    ratios = relative(matching(rows, task=task))
    pairs = []
    for x in results:
        if x.task == task and x.chosen and x.variant != "grpo" and x.variant in ratios:
            pairs.append((ratios[x.variant], x))
    return pairs


def draw_task(ax, pairs: list[tuple], task: str) -> None:
    """A dot a variant, a cross a control; grpo is where lines cross; in colour the significant.

    What loses more than 25 points is left out of the picture, but not of the correlation.
    """
    for ratio, x in pairs:
        how = look(x.variant) if x.significant else {"color": "0.5"}
        mark = "o" if x.variant in NAMES else "x"
        ax.plot(ratio.value, 100 * x.average.value, mark, label=x.variant, **how)
    ax.set_title(task)
    if len(pairs) > 2:
        points = np.array([(ratio.value, x.average.value) for ratio, x in pairs])  # (dots, 2)
        correlation = resampled(lambda drawn: spearmanr(points[drawn]).statistic, len(points))
        ax.set_title(f"{task}\nSpearman {correlation:.2f}", fontsize=10)
    ax.axhline(0, color="0.8", zorder=0)
    ax.axvline(1, color="0.8", zorder=0)
    ax.set(xlabel="signal-to-noise ratio, over grpo's", xscale="log", ylim=(-25, None))
    ax.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", 1, 2, 4])
    ax.minorticks_off()
    name_lines(ax, 0.05)


def draw(rows: list[dict], results: list[Effect]) -> None:
    with picture("gradients.png", 2, figsize=(WIDTH, 5)) as axes:
        axes[0].set_ylabel("average accuracy during training\nminus grpo's, points")
        for ax, task in zip(axes, TASKS):
            draw_task(ax, ratios_and_effects(rows, results, task), task)
