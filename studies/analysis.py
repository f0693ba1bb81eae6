"""What the rows of studies.compare say: differences from grpo, times, significance.

Everything here is from base models on which no learning rate was chosen.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import stats

from studies.common import TABLES, Interval, holm, interval, matching, paired, read_rows, sign_flips
from studies.protocol import COMPARED, FIRST, HEAD, PAIR, TASKS, USUAL, chosen_rate


@dataclass
class Effect:
    """A variant or control beside grpo, on the base models that both have; shares, not points."""

    task: str
    variant: str
    lr: float
    flags: str
    rows: list[dict]  # its own and grpo's are among these
    lr_of_grpo: float
    chosen: bool = False  # without flags, at the rate that was chosen for it
    significant: bool = False

    def minus_grpo(self, column: str) -> np.ndarray:
        """A column of the variant minus that of grpo, (n,)."""
        ours = {name: getattr(self, name) for name in HEAD[:-1]}
        of_grpo = ours | {"variant": "grpo", "lr": self.lr_of_grpo}
        return np.subtract(*paired(self.rows, column, ours, of_grpo))

    @property
    def average(self) -> Interval:
        """Average accuracy during training, minus grpo's."""
        return interval(self.minus_grpo("mean_sampled"))

    @property
    def n(self) -> int:
        return len(self.minus_grpo("mean_sampled"))


# ---- How long does a run take?
@cache
def run_times() -> dict[tuple[str, str], tuple[float, float]]:
    """(task, variant) -> two means over base models of results/timing.csv.

    The time of a whole run over that of grpo, and the training steps that fit into the latter.
    """
    rows = read_rows(TABLES / "timing.csv")
    heads = dict.fromkeys((row["task"], row["variant"]) for row in rows)
    some = {head: matching(rows, task=head[0], variant=head[1]) for head in heads}
    return {head: np.mean([(x["of_grpo"], x["same_time"]) for x in some[head]], 0) for head in some}


# ---- All effects
def effects(rows: list[dict]) -> list[Effect]:
    """One for each variant or control, task, rate and flags; of each task the best first."""
    reported = with_means_of_pair([row for row in rows if row["seed"] not in FIRST])
    results = []
    for head in dict.fromkeys(tuple(row[name] for name in HEAD[:-1]) for row in reported):
        x = Effect(*head, reported, chosen_rate(rows, head[0], "grpo"))
        x.chosen = not x.flags and x.lr == chosen_rate(rows, x.task, x.variant)
        if x.n:
            results.append(x)
    mark_significant(results, comparisons(rows))
    return sorted(results, key=lambda x: (x.task, -x.average.value))


def with_means_of_pair(rows: list[dict]) -> list[dict]:
    """The rows. Those of PAIR[0] are means of the two runs that PAIR has of a base model."""
    results = []
    for row in rows:
        about = {name: row[name] for name in HEAD} | {"variant": PAIR[1]}
        others = matching(rows, **about) if row["variant"] == PAIR[0] else []
        for other in others:  # one or none
            both = {name: (x, other[name]) for name, x in row.items() if name not in HEAD}
            numbers = {name: x for name, x in both.items() if str not in map(type, x)}
            row = row | {name: (x + y) / 2 for name, (x, y) in numbers.items()}
        results.append(row)
    return results


def comparisons(rows: list[dict]) -> int:
    """How many Holm's correction counts: variants of COMPARED that have rows, on both tasks."""
    return len(TASKS) * len({row["variant"] for row in rows} & {*COMPARED})


def mark_significant(results: list[Effect], comparisons: int) -> None:
    """By Holm's correction over this many comparisons, at the chosen rates, on both tasks."""
    compared = [x for x in results if x.chosen and x.variant in COMPARED and x.task in TASKS]
    p = {(x.task, x.variant): sign_flips(x.minus_grpo("mean_sampled")) for x in compared}
    significant = holm(p, comparisons)
    for x in compared:
        x.significant = (x.task, x.variant) in significant


# ---- How large is chance?
def noise_floor(rows: list[dict], task: str) -> float:
    """Standard deviation over base models of the difference of two runs of one algorithm.

    PAIR at one rate is an A/A test: rounding turns a token, and from there the two runs differ.
    """
    reported = [row for row in rows if row["seed"] not in FIRST]
    heads = [dict(zip(HEAD, (task, name, USUAL, ""))) for name in PAIR]
    differences = np.subtract(*paired(reported, "mean_sampled", *heads))
    return np.std(differences, ddof=1) if len(differences) > 1 else np.nan


def words_about_noise(rows: list[dict], task: str) -> str:
    """The smallest visible difference is half the 95 % t interval of a mean of such differences."""
    deviation = 100 * noise_floor(rows, task)
    sizes = {n: stats.t.ppf(0.975, n - 1) * deviation / n**0.5 for n in (3, 6, 12)}
    limits = ", ".join(f"{x:.1f} over {n}" for n, x in sizes.items())
    return (
        f"On {task}, two runs of one algorithm differ by chance, with a standard deviation of "
        f"{deviation:.2f} points.\nA mean over base models can only show differences larger than "
        f"these, in points: {limits}.\n"
    )
