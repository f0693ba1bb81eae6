"""What the rows of studies.gradients say: a table, and a picture beside the effects in training."""

from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from studies.analysis import Effect
from studies.common import TABLES, Interval, by_seed, markdown, matching, paired, resampled
from studies.pictures import WIDTH, dot, name_lines, picture, sign
from studies.protocol import COMPARED, PAIR, TASKS, title

COLUMNS = {"cosine": "cosine", "mean_cosine": "mean cosine", "snr": "signal-to-noise ratio"}
PARTS = ("signal", "bias", "scatter")
BOTTOM = -12  # points; what loses more is an arrow


# ---- The table
def mean(values) -> Interval:
    """Mean over base models, with an interval."""
    values = np.array([*values] or [np.nan])
    return resampled(lambda drawn: np.nanmean(values[drawn]), len(values))


def relative(rows: list[dict]) -> dict[str, Interval]:
    """variant -> signal-to-noise ratio over grpo's: geometric mean and interval; largest first.

    One name stands for PAIR.
    """
    ratios = {}
    for name in dict.fromkeys(row["variant"] for row in rows if row["variant"] != PAIR[1]):
        ours, of_grpo = paired(rows, "snr", {"variant": name}, {"variant": "grpo"})
        ratios[name] = Interval(*np.exp(mean(np.log(ours / of_grpo))))
    return dict(sorted(ratios.items(), key=lambda item: -item[1].value))


def parts(row: dict) -> tuple[float, float, float]:
    """The shares of E |g|^2, in the order of PARTS. They add up to 1.

    E |g|^2 = |E g|^2 + scatter, and E g has a part along grad J, the signal, and one across, the
    bias. A cosine that is estimated above 1 makes the bias negative.
    """
    signal = row["snr"] / (1 + row["snr"])
    of_mean = signal / row["cosine"] ** 2
    return signal, of_mean - signal, 1 - of_mean


def table(rows: list[dict]) -> str:
    """Means over base models of one task; the shares of PARTS in %, the others with intervals."""
    lines = []
    for name, ratio in relative(rows).items():
        means = [mean(by_seed(rows, column, variant=name).values()) for column in COLUMNS]
        shares = np.nanmean([parts(row) for row in matching(rows, variant=name)], axis=0)
        texts = [f"{100 * share:z.0f}" for share in shares]
        lines.append([f"`{title(name)}`", *texts, *(f"{x:.2f}" for x in (*means, ratio))])
    header = ["variant or control", *(f"{part}, %" for part in PARTS), *COLUMNS.values()]
    return markdown([*header, "relative to `grpo`"], lines)


def of_tasks(rows: list[dict], results: list[Effect]) -> str:
    """What the ratios say about training: one line for each task."""
    lines = []
    for task in TASKS:
        pairs = ratios_and_effects(rows, results, task)
        variants = [pair for pair in pairs if pair[1].variant in COMPARED]
        significant = [pair for pair in variants if pair[1].significant]
        same = [(ratio.value > 1) == (x.average.value > 0) for ratio, x in significant]
        texts = [f"{rank_correlation(some):.2f}" for some in (variants, pairs)]
        lines.append([task, *texts, f"{sum(same)} of {len(same)}"])
    header = ["task", "variants", "variants and controls", "significant: on the same side"]
    return markdown(header, lines)


def page(rows: list[dict], results: list[Effect]) -> str:
    tables = [f"\n## {task}\n\n{table(matching(rows, task=task))}\n" for task in TASKS]
    template = Path(__file__).with_name("gradients.template.txt").read_text(encoding="utf-8")
    return template.format(tables="\n".join(tables), of_tasks=of_tasks(rows, results))


# ---- Beside the effects in training
def ratios_and_effects(rows: list[dict], results: list[Effect], task: str) -> list[tuple]:
    """Of variants and controls the relative signal-to-noise ratio, and the effect in training."""
    ratios = relative(matching(rows, task=task))
    others = [x for x in results if x.task == task and x.chosen and x.variant != "grpo"]
    return [(ratios[x.variant], x) for x in others if x.variant in ratios]


def rank_correlation(pairs: list[tuple]) -> Interval:
    """Spearman's, with an interval that resamples variants."""
    points = np.array([(ratio.value, x.average.value) for ratio, x in pairs])  # (dots, 2)
    return resampled(lambda drawn: spearmanr(points[drawn]).statistic, len(points))


def cross(ax, ratio: Interval, x: Effect) -> None:
    """A dot with both intervals and a name; a triangle if it is below the picture."""
    value, low, high = x.average.times(100)
    name = title(x.variant)
    if value < BOTTOM:
        ax.plot(ratio.value, BOTTOM, "v", clip_on=False, label=f"{name} {value:+.0f}", **sign(x))
    else:
        ax.plot([ratio.low, ratio.high], [value, value], linewidth=1, **sign(x))
        ax.plot([ratio.value, ratio.value], [low, high], linewidth=1, **sign(x))
        ax.plot(ratio.value, value, "o", markersize=5, label=name, **dot(x))


def draw(rows: list[dict], results: list[Effect]) -> None:
    """Ratio against effect: a row a task, variants on the left and controls on the right."""
    size = {"figsize": (WIDTH, 7.2), "sharex": True, "sharey": True}
    with picture(TABLES / "gradients.png", 2, 2, **size) as axes:
        for line, task in zip(axes, TASKS):
            pairs = ratios_and_effects(rows, results, task)
            for ax, kind in zip(line, ("variants", "controls")):
                ax.axhline(0, color="black", linewidth=0.8)
                ax.axvline(1, color="black", linewidth=0.8)
                ax.set(title=f"{task}: {kind}", xscale="log", xlim=(0.12, 5), ylim=(BOTTOM, 10.5))
                ax.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", 1, 2, 4])
                ax.set_yticks([-10, -5, 0, 5, 10])
                ax.minorticks_off()
                shown = [pair for pair in pairs if (pair[1].variant in COMPARED) == (ax is line[0])]
                for ratio, x in shown:
                    cross(ax, ratio, x)
                name_lines(ax)
            line[0].set_ylabel("points above grpo in training")
        for ax in axes[1]:
            ax.set_xlabel("signal-to-noise ratio, times grpo's")
