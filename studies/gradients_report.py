"""What the rows of studies.gradients say, and whether it goes with the effects in training."""

from pathlib import Path

import numpy as np
from scipy import stats

from studies.analysis import Effect
from studies.common import Interval, by_seed, markdown, matching, paired
from studies.protocol import COMPARED, PAIR, TASKS, title

COLUMNS = {"cosine": "cosine", "snr": "signal-to-noise ratio"}
PARTS = ("signal", "bias", "scatter")


# ---- The table
def mean(values) -> Interval:
    """Mean over base models, and its interval by resampling them."""
    values = np.array([*values] or [np.nan])
    rng = np.random.default_rng(0)
    draws = [np.nanmean(rng.choice(values, len(values))) for _ in range(1000)]
    ends = np.nanquantile(draws, [0.025, 0.975], method="inverted_cdf")
    return Interval(np.nanmean(values), *ends)


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


def rank_correlation(rows: list[dict], results: list[Effect], task: str) -> float:
    """Spearman's, over variants, of the relative ratio and the effect in training."""
    ratios = relative(matching(rows, task=task))
    chosen = [x for x in results if x.chosen and x.task == task and x.variant in COMPARED]
    pairs = [(ratios[x.variant].value, x.average.value) for x in chosen if x.variant in ratios]
    return stats.spearmanr(pairs).statistic


def page(rows: list[dict], results: list[Effect]) -> str:
    tables = [f"\n## {task}\n\n{table(matching(rows, task=task))}\n" for task in TASKS]
    template = Path(__file__).with_name("gradients.template.txt").read_text(encoding="utf-8")
    correlations = {task: rank_correlation(rows, results, task) for task in TASKS}
    return template.format(tables="\n".join(tables), **correlations)
