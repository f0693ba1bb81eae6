"""Does the base model foretell what training brings? python -m studies.prediction

x is `one` minus grpo's at the base model (studies.gradients); y is sampled accuracy, mean over the
run, minus grpo's (studies.compare). Both are means over base models. H10: x ranks y.

docs/tables/prediction.csv has the predicted y of the arms that are no variants, with its 95 %
interval, by a straight line through the trained variants. It is written once, before those arms are
trained; a file that is there is not changed. docs/tables/prediction.md and docs/compare.png are
made from it and from the files of the two studies.
"""

import numpy as np
from scipy import stats

from advantages import VARIANTS
from studies import compare, gradients
from studies.common import ROOT, TABLES, interval, markdown, publish, pyplot, read_rows
from studies.common import write_rows

ROWS = TABLES / "prediction.csv"
TASKS = ("add", "mul")
LEFT_OUT = ("grpo", "critic", "rloo", "culling")  # see docs/results.md
SEEN = ("no_baseline", "half", "nthr_eta0", "negative_0.1")  # in a sketch, before the rule
DRAWS = 2000


def axes_of(task: str, arms) -> tuple[np.ndarray, np.ndarray]:
    """x and y, (base models, arms) each; NaN where an arm was not measured or trained."""
    seeds = range(1, 13)
    rows = gradients.at(read_rows(gradients.ROWS), task=task, step=0)
    one = {(row["arm"], int(row["seed"])): float(row["one_minus_grpo"]) for row in rows}
    trained = compare.rows_of(task)
    effects = {arm: compare.differences(trained, arm, "mean_sampled") for arm in arms}
    x = [[one.get((arm, seed), np.nan) for arm in arms] for seed in seeds]
    y = [[effects[arm].get(seed, np.nan) for arm in arms] for seed in seeds]
    return np.array(x), np.array(y)


def means(values: np.ndarray) -> np.ndarray:
    """Of each arm over its base models; NaN if it has none."""
    return np.array([np.mean(column[~np.isnan(column)]) for column in values.T])


def rank(task: str, arms) -> tuple[float, float, float]:
    """Spearman's correlation of x and y over the arms; its 95 % interval resamples base models."""
    x, y = axes_of(task, arms)
    rng = np.random.default_rng(0)
    found = [stats.spearmanr(means(x), means(y)).statistic]
    for _ in range(DRAWS):
        i = rng.integers(len(x), size=len(x))
        found.append(stats.spearmanr(means(x[i]), means(y[i]), nan_policy="omit").statistic)
    return found[0], *np.nanquantile(found[1:], [0.025, 0.975])


def predictions(task: str) -> list[dict]:
    """Of each arm that is no variant: y by least squares through the variants, its interval."""
    variants = [name for name in VARIANTS if name not in LEFT_OUT]
    x, y = (means(values) for values in axes_of(task, variants))
    line = stats.linregress(x, y)
    n = len(x)
    residual = np.sqrt(((y - line.intercept - line.slope * x) ** 2).sum() / (n - 2))
    others = [name for name in gradients.ARMS if name not in VARIANTS]
    rows = []
    for arm, at in zip(others, means(axes_of(task, others)[0])):
        far = (at - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
        half = stats.t.ppf(0.975, n - 2) * residual * np.sqrt(1 + 1 / n + far)
        predicted = line.intercept + line.slope * at
        row = {"task": task, "arm": arm, "one_minus_grpo": at, "predicted": predicted}
        rows.append(row | {"low": predicted - half, "high": predicted + half})
    return rows


def table(task: str) -> str:
    """Rank correlations; then for each other arm the predicted and the found effect, in points."""
    variants = [name for name in VARIANTS if name not in LEFT_OUT]
    trained = {arm for arm, _ in compare.rows_of(task)} - {*LEFT_OUT}
    measured = [arm for arm in gradients.ARMS if arm in trained]
    milder = [arm for arm in measured if arm != "negative"]
    cells = []
    sets = {"variants": variants, "all arms": measured, "all but `negative`": milder}
    for what, arms in sets.items():
        x, y = axes_of(task, arms)
        each = [stats.spearmanr(a, b, nan_policy="omit").statistic for a, b in zip(x, y)]
        numbers = ["{:.2f} ({:.2f} to {:.2f})".format(*rank(task, arms))]
        cells.append([what, *numbers, f"{np.nanmin(each):.2f} to {np.nanmax(each):.2f}"])
    text = markdown([f"Spearman, {task}", "means over base models", "of each base model"], cells)
    cells = []
    for row in [row for row in read_rows(ROWS) if row["task"] == task]:
        effects = compare.differences(compare.rows_of(task), row["arm"], "mean_sampled").values()
        low, high = (100 * float(row[x]) for x in ("low", "high"))
        found = (
            "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * x for x in interval([*effects])))
            if effects
            else ""
        )
        miss = "miss" if effects and not low < 100 * np.mean([*effects]) < high else ""
        predicted = f"{100 * float(row['predicted']):+.1f} ({low:+.1f} to {high:+.1f})"
        cells.append(
            [f"`{row['arm']}`", "seen" if row["arm"] in SEEN else "", predicted, found, miss]
        )
    return text + "\n\n" + markdown(["arm", "", "predicted", "found", ""], cells)


def judged(task: str) -> str:
    """The line's mean squared error against that of "no effect", over the arms not seen before."""
    rows = [x for x in read_rows(ROWS) if x["task"] == task and x["arm"] not in SEEN]
    y = means(axes_of(task, [row["arm"] for row in rows])[1])
    line = np.array([float(row["predicted"]) for row in rows])
    errors = [100**2 * np.mean(z**2) for z in (line - y, y)]
    return "{}: the line's mean squared error is {:.2f}, that of no effect {:.2f}".format(
        task, *errors
    )


def figure() -> None:
    """Effects of the variants with intervals; beside them x against y, and the predictions."""
    plt = pyplot()
    _, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for (left, right), task in zip(axes, TASKS):
        rows = compare.rows_of(task)
        found = {
            arm: interval([*compare.differences(rows, arm, "mean_sampled").values()])
            for arm in VARIANTS
        }
        arms = sorted((arm for arm in VARIANTS if arm != "grpo"), key=lambda arm: found[arm][0])
        mean, low, high = 100 * np.array([found[arm] for arm in arms]).T
        left.errorbar(mean, arms, xerr=[mean - low, high - mean], fmt="o")
        left.axvline(0, color="grey", linewidth=0.8)
        left.set(title=f"{task}: minus grpo, points", xlabel="sampled accuracy, mean over the run")
        variants = [name for name in VARIANTS if name not in LEFT_OUT]
        x, y = (means(values) for values in axes_of(task, variants))
        right.plot(x, 100 * y, "o", label="variants")
        for arm, *at in zip(variants, x, 100 * y):
            right.annotate(f" {arm}", at, fontsize=8)
        others = [row for row in read_rows(ROWS) if row["task"] == task]
        x = [float(row["one_minus_grpo"]) for row in others]
        low, middle, high = (
            np.array([100 * float(row[k]) for row in others]) for k in ("low", "predicted", "high")
        )
        right.errorbar(
            x,
            middle,
            [middle - low, high - middle],
            fmt="_",
            color="0.7",
            label="predicted",
            zorder=0,
        )
        y = 100 * means(axes_of(task, [row["arm"] for row in others])[1])
        right.plot(x, y, "x", color="C1", label="other arms, found")
        right.set(
            title=task,
            xlabel="alignment at the base model, minus grpo's",
            ylabel="minus grpo, points",
        )
    axes[0, 1].legend(frameon=False, fontsize=8)
    plt.savefig(ROOT / "docs" / "compare.png", dpi=100)


def main() -> None:
    if not ROWS.exists():
        write_rows(ROWS, [row for task in TASKS for row in predictions(task)])
    text = (
        "# Does the base model foretell what training brings?\n\nstudies/prediction.py says how.\n"
    )
    for task in TASKS:
        text += f"\n## {task}\n\n{table(task)}\n\n{judged(task)}\n"
    publish(ROWS, text)
    figure()


if __name__ == "__main__":
    main()
