"""What the rows of studies.compare say: differences from grpo, speed of learning, significance.

It also makes the page results/compare.md. Everything here is from base models on which no learning
rate was chosen.
"""

from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from scipy import stats

from studies.common import TABLES, Interval, holm, markdown, paired, read_rows
from studies.common import resampled, sign_flips, interval
from studies.protocol import COMPARED, FIRST, HEAD, NAMES, PAIR, RATES, SEARCHED, TASKS, USUAL
from studies.protocol import accuracy_by_rate, chosen_rate, title


@dataclass
class Effect:
    """A variant or control beside grpo, on the base models that both have; shares, not points."""

    task: str
    variant: str
    lr: float
    flags: str
    n: int  # base models
    average: Interval  # minus grpo's: average accuracy during training
    p: float  # of that
    end: Interval  # minus grpo's: accuracy at the end
    all_fail: float
    reasoning_correct: float  # of the correct responses at the end
    scaled: float
    steps: list[int]  # after which there is an accuracy
    curves: np.ndarray  # (n, steps)
    curves_of_grpo: np.ndarray  # (n, steps)
    chosen: bool = False  # without flags, at the rate that was chosen for it
    significant: bool = False

    def speed(self, share: float) -> Interval:
        """Steps to this share of what grpo gains, over grpo's steps."""
        return speed(self.steps, self.curves, self.curves_of_grpo, share)


# ---- One effect
def reached(steps: list[int], curve: np.ndarray, level: float) -> float:
    """The training step at which a curve, made monotone, has this level; infinity if it never has.

    Between two evaluations the curve is a straight line.
    """
    curve = np.maximum.accumulate(curve)
    if curve[-1] < level:
        return np.inf
    k = int(np.argmax(curve >= level))  # the first evaluation that has it
    around = slice(max(k - 1, 0), k + 1)
    return np.interp(level, curve[around], steps[around])


def speed(steps, ours: np.ndarray, theirs: np.ndarray, share: float) -> Interval:
    """When ours has this share of what theirs gains in all, over when theirs has it; (n, steps).

    Of the mean curves; with an interval.
    """

    def ratio(seeds):
        a = ours[seeds].mean(0)
        b = theirs[seeds].mean(0)
        level = b[0] + share * (b.max() - b[0])
        return reached(steps, a, level) / reached(steps, b, level)

    return resampled(ratio, len(ours))


def effect(rows: list[dict], ours: dict, theirs: dict) -> Effect:
    """ours and theirs: the entries of HEAD, but the seed, of a variant and of grpo beside it."""
    a, b = paired(rows, "mean_sampled", ours, theirs)
    ends = paired(rows, "final_sampled", ours, theirs)

    def mean(column):
        return paired(rows, column, ours, theirs)[0].mean()

    steps = [int(name) for name in rows[0] if name.isdigit()]
    curves = [paired(rows, str(step), ours, theirs) for step in steps]
    of_ours, of_grpo = np.transpose(curves, (1, 2, 0))  # (n, steps) each
    return Effect(
        **ours,
        n=len(a),
        average=interval(a - b),
        p=sign_flips(a - b),
        end=interval(np.subtract(*ends)),
        all_fail=mean("all_fail"),
        reasoning_correct=mean("final_sampled_reasoning_correct"),
        scaled=mean("scaled"),
        steps=steps,
        curves=of_ours,
        curves_of_grpo=of_grpo,
    )


# ---- All effects
def effects(rows: list[dict]) -> list[Effect]:
    """One for each variant or control, task, rate and flags; of each task the best first."""
    reported = [row for row in rows if row["seed"] not in FIRST]
    results = []
    for head in dict.fromkeys(tuple(row[name] for name in HEAD[:-1]) for row in reported):
        ours = dict(zip(HEAD, head))
        theirs = ours | {"variant": "grpo", "lr": chosen_rate(rows, ours["task"], "grpo")}
        if len(paired(reported, "mean_sampled", ours, theirs)[0]):
            x = effect(reported, ours, theirs)
            x.chosen = not x.flags and x.lr == chosen_rate(rows, x.task, x.variant)
            results.append(x)
    mark_significant(results)
    return sorted(results, key=lambda x: (x.task, -x.average.value))


def mark_significant(results: list[Effect]) -> None:
    """By Holm's correction over COMPARED, at their chosen rates, on both tasks.

    Variants that have no rows yet are counted as comparisons.
    """
    compared = [x for x in results if x.chosen and x.variant in COMPARED and x.task in TASKS]
    p = {(x.task, x.variant): x.p for x in compared}
    significant = holm(p, len(TASKS) * len(COMPARED))
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


def smallest_visible(rows: list[dict], task: str) -> dict[int, float]:
    """n -> half the 95 % interval, in points, of a mean of such differences over n base models."""
    deviation = 100 * noise_floor(rows, task)
    return {n: stats.t.ppf(0.975, n - 1) * deviation / n**0.5 for n in (3, 6, 12)}


def words_about_noise(rows: list[dict], task: str) -> str:
    deviation = 100 * noise_floor(rows, task)
    limits = [f"{x:.1f} over {n}" for n, x in smallest_visible(rows, task).items()]
    return (
        f"On {task}, two runs of one algorithm differ by chance, with a standard deviation of "
        f"{deviation:.2f} points.\nA mean over base models can only show differences larger than "
        f"these, in points: {', '.join(limits)}.\n"
    )


# ---- The page
@cache
def seconds_by_variant() -> dict[tuple[str, str], str]:
    """(task, variant) -> time of a step over grpo's, as text.

    Runs say less: on another day a machine has other work.
    """
    rows = read_rows(TABLES / "timing.csv")
    return {(row["task"], row["measured"]): str(row["ratio"]) for row in rows}


def times_of_grpo(ratio: Interval) -> str:
    return f"{ratio:.2f}".replace("inf", "not reached")


def in_points(x: Interval) -> str:
    return f"{x.times(100):+.1f}"


def in_percent(share: float) -> str:
    return f"{100 * share:.1f}"


def average(x: Effect) -> str:
    return f"**{in_points(x.average)}**" if x.significant else in_points(x.average)


COLUMNS = {  # heading -> the text of an effect
    "task": lambda x: x.task,
    "variant": lambda x: f"`{title(x.variant)}`",
    "rate": lambda x: str(x.lr),
    "base models": lambda x: str(x.n),
    "average accuracy": average,
    "at the end": lambda x: in_points(x.end),
    "steps to half": lambda x: times_of_grpo(x.speed(0.5)),
    "steps to 90 %": lambda x: times_of_grpo(x.speed(0.9)),
    "time of a step": lambda x: seconds_by_variant().get((x.task, x.variant), ""),
    "all-fail": lambda x: in_percent(x.all_fail),
    "reasoning correct": lambda x: in_percent(x.reasoning_correct),
    "scaled": lambda x: in_percent(x.scaled),
}


def table(results: list[Effect]) -> str:
    """A line for each effect."""
    lines = [[text(x) for text in COLUMNS.values()] for x in results]
    return markdown([*COLUMNS], lines) if lines else "No rows yet."


def table_of_rates(rows: list[dict]) -> str:
    """The parameter study; what was chosen has a frame."""
    lines = []
    for task, variant in product(TASKS, SEARCHED):
        texts = {lr: f"{x:.1f}" for lr, x in accuracy_by_rate(rows, task, variant).items()}
        chosen = chosen_rate(rows, task, variant)
        if chosen:
            texts[chosen] = f"<kbd>{texts[chosen]}</kbd>"
        lines.append([task, f"`{variant}`", *(texts.get(lr, "") for lr in RATES)])
    return markdown(["task", "variant", *(f"{lr:g}" for lr in RATES)], lines)


def page(rows: list[dict], results: list[Effect]) -> str:
    """compare.md, in which a table stands for each {name}; results: what effects() returns."""
    chosen = [x for x in results if x.chosen]
    both = [x for x in chosen if x.task in TASKS]
    parts = {
        "comparisons": len(TASKS) * len(COMPARED),
        "variants": table([x for x in both if x.variant in ("grpo", *COMPARED)]),
        "noise": "\n".join(words_about_noise(rows, task) for task in TASKS),
        "other_rates": table([x for x in results if not x.chosen and not x.flags]),
        "controls": table([x for x in both if x.variant not in NAMES]),
        "free": table([x for x in results if x.flags]),
        "shortcut": table([x for x in chosen if x.task == "sum"]),
        "rates": table_of_rates(rows),
    }
    return Path(__file__).with_name("compare.template.txt").read_text().format(**parts)
