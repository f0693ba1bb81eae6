"""Does worth say on which base model a rule helps? python -m studies.within     No run is made.

Of docs/tables/gradients.csv: ln worth at the base model (step 0), and `one` minus grpo's. Of
docs/tables/compare.csv: the effect, sampled accuracy, mean over the run, minus grpo's on the same
base model.

Between rules: a point a rule, means over base models. Within: a point for each base model of each
rule, minus the mean of its rule. Both over the seven variants that are trained as they are measured
on twelve base models.

Beside it H10: the rank correlation of `one` with the effect, with intervals that resample rules as
well as base models. And docs/tables/prediction.csv: the effects that were predicted for the arms
that are no variants, by least squares of the effect on `one` through the seven variants, with the
95 % interval of a single point. It was committed (da77494) before those arms were trained, and
never changes. docs/tables/within.md is made from the three CSV files alone.
"""

import numpy as np
from scipy import stats

from studies.common import SEEDS, TABLES, at, by_seed, interval, markdown, publish, read_rows, shown
from studies.ruler import between, draws, estimate, line, means, resampled, within

EFFECTS = TABLES / "compare.csv"
GRADIENTS = TABLES / "gradients.csv"
PREDICTION = TABLES / "prediction.csv"
SEVEN = ["dr_grpo", "pos_only", "compensation", "negative", "ngrpo", "likelihood", "nthr"]
OTHERS = ["no_baseline", "half", "random_sparing", "truth", "shuffled_L", "shared_prefix"]
OTHERS += ["prefix_baseline", "negative_0.1", "negative_0.3", "nthr_eta0"]
SETS = {  # of H10
    "seven variants": SEVEN,
    "these and ten others": SEVEN + OTHERS,
    "of these without `negative`": [arm for arm in SEVEN + OTHERS if arm != "negative"],
    "the 17, `critic`, `rloo`, `culling`": [*SEVEN, *OTHERS, "critic", "rloo", "culling"],
}
SEEN = ("no_baseline", "half", "nthr_eta0", "negative_0.1")  # in a sketch, before the rule
MEASURED = {"critic": "critic_160", "culling": "grpo"}  # their arms in GRADIENTS


def matrix(path, column: str, arms: list[str], **head) -> np.ndarray:
    """A column of a CSV as (base models, arms); NaN where an arm has no value."""
    rows = at(read_rows(path), **head)
    found = [by_seed(rows, column, arm=arm) for arm in arms]
    return np.array([[values.get(seed, np.nan) for values in found] for seed in SEEDS])


def log_worth(task: str, arms: list[str], step: int = 0) -> np.ndarray:
    """ln worth (base models, arms) at the weights after a step of grpo's run."""
    return matrix(GRADIENTS, "log_worth", arms, task=task, step=step)


def effects(task: str, arms: list[str]) -> np.ndarray:
    """Sampled accuracy, mean over the run, minus that of grpo (base models, arms)."""
    found = matrix(EFFECTS, "mean_sampled", ["grpo", *arms], task=task)
    return found[:, 1:] - found[:, :1]


def rank(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's correlation of the means over base models, in each draw."""
    return line(*(stats.rankdata(means(z), axis=-1) for z in (x, y)))[0]


def table(task: str) -> str:
    """Correlation and slope between rules, within a rule, and of each rule."""
    x = log_worth(task, SEVEN)
    y = effects(task, SEVEN)
    cells = []
    for name, rule in (("between rules", between), ("within a rule", within)):
        (r, slope), (_, rules_too) = (rule(*resampled(x, y, rules)) for rules in (False, True))
        texts = [shown(estimate(r), 1, ".2f"), *(shown(estimate(z)) for z in (slope, rules_too))]
        cells.append([name, *texts, ""])
    spread = ((x - means(x)) ** 2).sum(0)
    for arm, a, b, part in zip(SEVEN, x.T, y.T, spread / spread.sum()):
        rows = draws(len(a), np.random.default_rng(0))
        r, slope = (estimate(z) for z in line(a[rows], b[rows]))
        cells.append([f"`{arm}`", shown(r, 1, ".2f"), shown(slope), "", f"{part:.0%}"])
    header = ["", "r", "points a unit of ln worth", "the same, rules resampled too"]
    return markdown([*header, "share of the spread within"], cells)


def rank_table(task: str) -> str:
    """H10: the rank correlation of each set of arms, with both intervals, and of base models."""
    cells = []
    for name, arms in SETS.items():
        measured = [MEASURED.get(arm, arm) for arm in arms]
        x = matrix(GRADIENTS, "one_minus_grpo", measured, task=task, step=0)
        y = effects(task, arms)
        both = [estimate(rank(*resampled(x, y, rules))) for rules in (False, True)]
        alone = [stats.spearmanr(a, b, nan_policy="omit").statistic for a, b in zip(x, y)]
        reach = sum(r >= 0.7 for r in alone)
        each = f"{min(alone):.2f} to {max(alone):.2f}; {reach} of {len(alone)} reach 0.7"
        cells.append([name, *(shown(found, 1, ".2f") for found in both), each])
    header = ["", "base models resampled", "rules too", "each base model alone"]
    return markdown(header, cells)


def beside(row: dict, y: np.ndarray) -> list[str]:
    """The predicted effect, the found one, and "miss" if that is outside the interval."""
    predicted, low, high = (float(row[name]) for name in ("predicted", "low", "high"))
    found = interval(y)
    return [shown((predicted, low, high)), shown(found), "" if low < found[0] < high else "miss"]


def prediction_table(task: str) -> str:
    """For each arm the predicted and the found effect, in points; then the mean squared errors.

    Of the line, and of "no effect", over the arms that were not seen before.
    """
    cells = []
    errors = []
    for row in at(read_rows(PREDICTION), task=task):
        y = effects(task, [row["arm"]])
        seen = row["arm"] in SEEN
        cells.append([f"`{row['arm']}`", "seen" if seen else "", *beside(row, y)])
        if not seen:
            errors.append([np.nanmean(y) - float(row["predicted"]), np.nanmean(y)])
    line, none = 100**2 * np.square(errors).mean(0)
    squares = f"the line's mean squared error is {line:.2f}, that of no effect {none:.2f}"
    return markdown(["arm", "", "predicted", "found", ""], cells) + f"\n\n{task}: {squares}"


if __name__ == "__main__":
    text = "# Between rules and within a rule. studies/within.py says how.\n"
    for task in ("add", "mul"):
        text += f"\n## {task}: effect against ln worth\n\n{table(task)}\n"
        text += f"\n## {task}: H10, rank correlation of effect with `one`\n\n{rank_table(task)}\n"
        text += f"\n## {task}: H10, effects predicted from `one`\n\n{prediction_table(task)}\n"
    publish(TABLES / "within.csv", text)
