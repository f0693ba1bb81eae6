"""Does the base model foretell what training brings? python -m studies.prediction

x is `one` minus grpo's at the base model (studies.gradients); y is sampled accuracy, mean over the
run, minus grpo's (studies.compare). Both are means over base models. H10: x ranks y; the rank
correlations are in docs/tables/within.md.

docs/tables/prediction.csv has the predicted y of the arms that are no variants, with its 95 %
interval, by a straight line through the trained variants. It was written before those arms were
trained; a file that is there is not changed. docs/tables/prediction.md and docs/compare.png are made
from it and from the files of the two studies.
"""

import numpy as np
from scipy import stats

from advantages import VARIANTS
from studies.arms import RULES
from studies.common import ROOT, TABLES, at, interval, markdown, publish, pyplot, read_rows, shown
from studies.common import with_errors, write_rows
from studies.ruler import means
from studies.within import GRADIENTS, effects, matrix

ROWS = TABLES / "prediction.csv"
TASKS = ("add", "mul")
LEFT_OUT = ("grpo", "critic", "rloo", "culling")  # see docs/results.md
TRAINED = [name for name in VARIANTS if name not in LEFT_OUT]
SEEN = ("no_baseline", "half", "nthr_eta0", "negative_0.1")  # in a sketch, before the rule


def axes_of(task: str, arms) -> tuple[np.ndarray, np.ndarray]:
    """x and y, (base models, arms) each; NaN where an arm was not measured or trained."""
    return matrix(GRADIENTS, "one_minus_grpo", arms, task=task, step=0), effects(task, arms)


def found(task: str, arm: str) -> np.ndarray:
    """y of the base models that the arm was trained on."""
    y = effects(task, [arm])
    return y[~np.isnan(y)]


def predictions(task: str) -> list[dict]:
    """Of each arm that is no variant: y by least squares through the variants, its interval."""
    x, y = (means(values) for values in axes_of(task, TRAINED))
    line = stats.linregress(x, y)
    n = len(x)
    residual = np.sqrt(((y - line.intercept - line.slope * x) ** 2).sum() / (n - 2))
    z = means(axes_of(task, RULES)[0])
    far = (z - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum()
    half = stats.t.ppf(0.975, n - 2) * residual * np.sqrt(1 + 1 / n + far)
    middle = line.intercept + line.slope * z
    rows = zip(RULES, z, middle, middle - half, middle + half)
    names = ("task", "arm", "one_minus_grpo", "predicted", "low", "high")
    return [dict(zip(names, (task, *row))) for row in rows]


def predicted(row: dict) -> tuple[float, float, float]:
    """Of a row: y and its interval."""
    return float(row["predicted"]), float(row["low"]), float(row["high"])


def table(task: str) -> str:
    """For each other arm the predicted and the found effect, in points."""
    cells = []
    for row in at(read_rows(ROWS), task=task):
        arm = row["arm"]
        _, low, high = predicted(row)
        y = found(task, arm)
        miss = "" if low < y.mean() < high else "miss"
        seen = "seen" if arm in SEEN else ""
        cells.append([f"`{arm}`", seen, shown(predicted(row)), shown(interval(y)), miss])
    return markdown(["arm", "", "predicted", "found", ""], cells)


def judged(task: str) -> str:
    """The line's mean squared error against that of "no effect", over the arms not seen before."""
    rows = [x for x in at(read_rows(ROWS), task=task) if x["arm"] not in SEEN]
    y = means(axes_of(task, [row["arm"] for row in rows])[1])
    line = np.array([float(row["predicted"]) for row in rows])
    error, none = (100**2 * np.mean(z**2) for z in (line - y, y))
    return f"{task}: the line's mean squared error is {error:.2f}, that of no effect {none:.2f}"


def figure() -> None:
    """Effects of the variants with intervals; beside them x against y, and the predictions."""
    plt = pyplot()
    _, axes = plt.subplots(2, 2, figsize=(9, 7), layout="constrained")
    for (left, right), task in zip(axes, TASKS):
        effect = {x: interval(found(task, x)) for x in VARIANTS if x != "grpo"}
        arms = sorted(effect, key=effect.get)
        mean, error = with_errors([effect[arm] for arm in arms])
        left.errorbar(mean, arms, xerr=error, fmt="o")
        left.set(title=f"{task}: accuracy minus grpo's, points")
        left.axvline(0, color="grey", linewidth=0.8)
        rows = at(read_rows(ROWS), task=task)
        x = [float(row["one_minus_grpo"]) for row in rows]
        bars = with_errors(predicted(row) for row in rows)
        right.errorbar(x, *bars, fmt="_", color="0.8", label="other arms, predicted", zorder=0)
        x, y = (means(values) for values in axes_of(task, RULES))
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


if __name__ == "__main__":
    if not ROWS.exists():
        write_rows(ROWS, [row for task in TASKS for row in predictions(task)])
    text = "# Does the base model foretell what training brings? studies/prediction.py says how.\n"
    for task in TASKS:
        text += f"\n## {task}\n\n{table(task)}\n\n{judged(task)}\n"
    publish(ROWS, text)
    figure()
