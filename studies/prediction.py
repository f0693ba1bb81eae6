"""Does the base model foretell what training brings? python -m studies.prediction

x is `one` minus grpo's at the base model (studies.gradients); y is sampled accuracy, mean over the
run, minus grpo's (studies.compare). Both are means over base models. H10: x ranks y.

docs/tables/prediction.csv has the predicted y of the arms that are no variants, with its 95 %
interval, by a straight line through the trained variants. It is written once, before those arms are
trained and as soon as all rows of the variants are there; a file that is there is not changed.
docs/tables/prediction.md and docs/compare.png are made from it, if it is there, and from the files
of the two studies.
"""

import numpy as np
from scipy import stats

from advantages import VARIANTS
from studies import compare, gradients
from studies.common import REPLICATES, ROOT, TABLES, at, by_seed, interval, markdown, publish
from studies.common import pyplot, read_rows, shown, with_errors, write_rows

ROWS = TABLES / "prediction.csv"
TASKS = ("add", "mul")
LEFT_OUT = ("grpo", "critic", "rloo", "culling")  # see docs/results.md
TRAINED = [name for name in VARIANTS if name not in LEFT_OUT]
SEEN = ("no_baseline", "half", "nthr_eta0", "negative_0.1")  # in a sketch, before the rule
DRAWS = 50_000


def effects(task: str, arm: str) -> dict[int, float]:
    """seed -> y of an arm, from studies.compare."""
    return compare.differences(compare.rows_of(task), arm, "mean_sampled")


def axes_of(task: str, arms) -> tuple[np.ndarray, np.ndarray]:
    """x and y, (base models, arms) each; NaN where an arm was not measured or trained."""
    rows = at(read_rows(gradients.ROWS), task=task, step=0)
    x = [by_seed(rows, "one_minus_grpo", arm=arm) for arm in arms]
    y = [effects(task, arm) for arm in arms]
    seeds = range(1, REPLICATES + 1)
    return tuple(np.array([[of.get(n, np.nan) for of in axis] for n in seeds]) for axis in (x, y))


def means(values: np.ndarray) -> np.ndarray:
    """Of each arm over its base models, (..., base models, arms); NaN if it has none."""
    return np.ma.masked_invalid(values).mean(-2).filled(np.nan)


def rank(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's correlation over the arms that have both."""
    return stats.spearmanr(x, y, nan_policy="omit").statistic


def ranks(task: str, arms) -> list[str]:
    """The correlation of means, its 95 % interval by resampling base models; range of theirs."""
    x, y = axes_of(task, arms)
    rng = np.random.default_rng(0)
    draws = rng.integers(len(x), size=(DRAWS, len(x)))
    resampled = (stats.rankdata(means(z[draws]), axis=1) for z in (x, y))
    low, high = np.nanquantile(stats.pearsonr(*resampled, axis=1).statistic, [0.025, 0.975])
    each = [rank(a, b) for a, b in zip(x, y)]
    found = (rank(means(x), means(y)), low, high)
    return [shown(found, 1, ".2f"), f"{np.nanmin(each):.2f} to {np.nanmax(each):.2f}"]


def predictions(task: str) -> list[dict]:
    """Of each arm that is no variant: y by least squares through the variants, its interval."""
    x, y = (means(values) for values in axes_of(task, TRAINED))
    line = stats.linregress(x, y)
    n = len(x)
    residual = np.sqrt(((y - line.intercept - line.slope * x) ** 2).sum() / (n - 2))
    z = means(axes_of(task, compare.OTHERS)[0])
    far = (z - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half = stats.t.ppf(0.975, n - 2) * residual * np.sqrt(1 + 1 / n + far)
    middle = line.intercept + line.slope * z
    rows = zip(compare.OTHERS, z, middle, middle - half, middle + half)
    names = ("task", "arm", "one_minus_grpo", "predicted", "low", "high")
    return [dict(zip(names, (task, *row))) for row in rows]


def predicted(row: dict) -> tuple[float, float, float]:
    """Of a row: y and its interval."""
    return float(row["predicted"]), float(row["low"]), float(row["high"])


def rank_table(task: str) -> str:
    """Rank correlations over several sets of arms."""
    trained = [arm for arm in (*TRAINED, *compare.OTHERS) if effects(task, arm)]
    milder = [arm for arm in trained if arm != "negative"]
    sets = {"variants": TRAINED, "all arms": trained, "all but `negative`": milder}
    cells = [[name, *ranks(task, arms)] for name, arms in sets.items()]
    return markdown([f"Spearman, {task}", "means over base models", "of each base model"], cells)


def table(task: str) -> str:
    """For each other arm the predicted and the found effect, in points."""
    cells = []
    for row in at(read_rows(ROWS), task=task):
        arm = row["arm"]
        _, low, high = predicted(row)
        found = effects(task, arm).values()
        miss = "miss" if found and not low < np.mean([*found]) < high else ""
        texts = [shown(predicted(row)), shown(interval(found)) if found else "", miss]
        cells.append([f"`{arm}`", "seen" if arm in SEEN else "", *texts])
    return markdown(["arm", "", "predicted", "found", ""], cells)


def judged(task: str) -> str:
    """The line's mean squared error against that of "no effect", over the arms not seen before."""
    rows = [x for x in at(read_rows(ROWS), task=task) if x["arm"] not in SEEN]
    if not rows:
        return "No prediction is made yet."
    y = means(axes_of(task, [row["arm"] for row in rows])[1])
    line = np.array([float(row["predicted"]) for row in rows])
    error, none = (100**2 * np.mean(z**2) for z in (line - y, y))
    return f"{task}: the line's mean squared error is {error:.2f}, that of no effect {none:.2f}"


def times_as_fast(task: str, arm: str) -> list[float]:
    """Of each base model: steps that grpo needs for the arm's accuracy, over those of the arm.

    The median over the evaluations at steps 50 to 200; 0 below the base model's accuracy.
    """
    found = []
    for row in compare.rows_of(task, compare.CURVES, arm=arm):
        (reference,) = compare.rows_of(task, compare.CURVES, arm="grpo", seed=row["seed"])
        reached = np.maximum.accumulate(compare.curve(reference))
        steps = np.interp(compare.curve(row), reached, compare.EVALUATED)
        found.append(np.median(steps[2:9] / compare.EVALUATED[2:9]))
    return found


def speed_table(task: str) -> str:
    """If worth acts as that many times the samples, it says how much faster a variant learns."""
    rows = at(read_rows(gradients.ROWS), task=task, step=0)
    cells = []
    for arm, log_worth in gradients.means(rows, "log_worth").items():
        fast = times_as_fast(task, arm)
        if fast and arm != "grpo":
            pair = (np.exp(log_worth), interval(fast))
            cells.append([f"`{arm}`", *(shown(x, 1, ".2f") for x in pair)])
    return markdown(["arm", "worth at the base model", "times as fast as `grpo`"], cells)


def figure() -> None:
    """Effects of the variants with intervals; beside them x against y, and the predictions."""
    plt = pyplot()
    _, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for (left, right), task in zip(axes, TASKS):
        found = {x: interval(effects(task, x).values()) for x in VARIANTS if x != "grpo"}
        arms = sorted(found, key=found.get)
        mean, error = with_errors([found[arm] for arm in arms])
        left.errorbar(mean, arms, xerr=error, fmt="o")
        left.set(title=f"{task}: accuracy minus grpo's, points")
        left.axvline(0, color="grey", linewidth=0.8)
        rows = at(read_rows(ROWS), task=task)
        x = [float(row["one_minus_grpo"]) for row in rows]
        bars = with_errors(predicted(row) for row in rows)
        right.errorbar(x, *bars, fmt="_", color="0.8", label="other arms, predicted", zorder=0)
        x, y = (means(values) for values in axes_of(task, compare.OTHERS))
        right.plot(x, 100 * y, "C1o", label="other arms, found")
        x, y = (means(values) for values in axes_of(task, TRAINED))
        right.plot(x, 100 * y, "C0o", label="variants")
        for arm, *point in zip(TRAINED, x, 100 * y):
            side = "right" if arm == "nthr" else "left"  # it is next to pos_only
            right.annotate(f"  {arm}  ", point, ha=side, va="center")
        right.set(title=f"{task}: the same against alignment minus grpo's", xmargin=0.25)
        right.locator_params(nbins=5)
    axes[0, 1].legend(frameon=False, fontsize=8, loc="lower right")
    plt.savefig(ROOT / "docs" / "compare.png", dpi=100)


def ready(task: str) -> bool:
    """Whether all variants are trained, and all arms measured, on every base model."""
    x, y = axes_of(task, TRAINED)
    others, _ = axes_of(task, compare.OTHERS)
    return not any(np.isnan(values).any() for values in (x, y, others))


if __name__ == "__main__":
    if not ROWS.exists() and all(ready(task) for task in TASKS):
        write_rows(ROWS, [row for task in TASKS for row in predictions(task)])
    text = "# Does the base model foretell what training brings? studies/prediction.py says how.\n"
    for task in TASKS:
        text += f"\n## {task}\n\n{rank_table(task)}\n\n{table(task)}\n\n{judged(task)}\n"
        text += f"\n{speed_table(task)}\n"
    publish(ROWS, text)
    figure()
