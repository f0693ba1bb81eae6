"""What the rows of studies.compare say: chosen rates, differences from grpo, speed of learning.

rows are those of docs/tables/compare.csv, curves those of docs/tables/curves.csv, as read_rows
returns them. Rates are chosen on base models 1 to 3; everything else is of the other base models.
"""

import numpy as np

from advantages import VARIANTS
from studies.common import at, by_seed, holm, interval, sign_flips
from studies.controls import CONTROLS

TASKS = ("add", "mul")  # that variants are compared on
FIRST = range(1, 4)  # base models that rates are chosen on
GRID = (3e-4, 1.5e-4, 6e-4)
BEYOND = {1.5e-4: [7.5e-5], 6e-4: [1.2e-3]}  # tried if the best of the grid is this end of it
RATES = sorted(sum(BEYOND.values(), [*GRID]))
NAMES = [name for name in VARIANTS if name not in CONTROLS]  # grpo is the first
FORMS = ["substituted", "substituted_up", "dense", "log_likelihood"]  # of experiment 5
SEARCHED = [name for name in NAMES if name != "culling"] + FORMS + ["critic_bounded"]
HEAD = ("task", "variant", "lr", "flags")  # and the seed: what a row is of


def by_rate(rows: list[dict], task: str, variant: str) -> dict[float, float]:
    """rate -> average accuracy during training, of rates that have all of FIRST."""
    found = {}
    for lr in RATES:
        values = by_seed(rows, "mean_sampled", task=task, variant=variant, lr=lr, flags="")
        if values.keys() >= {*FIRST}:
            found[lr] = np.mean([values[seed] for seed in FIRST])
    return found


def to_try(found: dict[float, float]) -> list[float]:
    """The rates to try, given what by_rate has found: the grid, then one value beyond its end."""
    complete = found.keys() >= {*GRID}
    return [*GRID] + (BEYOND.get(max(GRID, key=found.get), []) if complete else [])


def chosen(rows: list[dict], task: str, variant: str) -> float | None:
    """The best rate; None before all are there. What is not searched takes grpo's, `sum` add's."""
    variant = variant if variant in SEARCHED else "grpo"
    found = by_rate(rows, "add" if task == "sum" else task, variant)
    return max(found, key=found.get) if found.keys() >= {*to_try(found)} else None


def differences(rows: list[dict], column: str, ours: dict, theirs: dict) -> list[float]:
    """The first minus the second, of each base model that has both."""
    a = by_seed(rows, column, **ours)
    b = by_seed(rows, column, **theirs)
    return [a[seed] - b[seed] for seed in a if seed in b]


def evaluated(curves: list[dict]) -> np.ndarray:
    """The training steps after which accuracy was measured, 0 first."""
    return np.array([int(name) for name in curves[0] if name.isdigit()])


def accuracies(curves: list[dict], **head) -> dict[int, np.ndarray]:
    """seed -> sampled accuracy at each evaluation."""
    found = {}
    for row in at(curves, **head):
        found[int(row["seed"])] = np.array([float(row[str(n)]) for n in evaluated(curves)])
    return found


def reached(steps: np.ndarray, curve: np.ndarray, level: float) -> float:
    """The training step at which a curve, made monotone, has this level; infinity if it never has.

    Between two evaluations the curve is a straight line.
    """
    curve = np.maximum.accumulate(curve)
    if curve[-1] < level:
        return np.inf
    k = int(np.argmax(curve >= level))  # the first evaluation that has it
    around = slice(max(k - 1, 0), k + 1)
    return float(np.interp(level, curve[around], steps[around]))


def speed(steps, ours: np.ndarray, theirs: np.ndarray, share: float) -> tuple:
    """When ours has this share of what theirs gains in all, over when theirs has it; (n, steps).

    Of the mean curves; then its 95 % interval by resampling the n base models.
    """

    def ratio(seeds):
        a = ours[seeds].mean(0)
        b = theirs[seeds].mean(0)
        level = b[0] + share * (b.max() - b[0])
        return reached(steps, a, level) / reached(steps, b, level)

    n = len(ours)
    rng = np.random.default_rng(0)
    ratios = [ratio(rng.integers(n, size=n)) for _ in range(1000)]
    return ratio(range(n)), *np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")


def effect(rows: list[dict], curves: list[dict], ours: dict, theirs: dict) -> dict:
    """A variant or control beside grpo. "rows" are its own; shares, not points."""
    found = ours | {"rows": at(rows, **ours)}
    average = differences(rows, "mean_sampled", ours, theirs)
    found |= {"n": len(average), "p": sign_flips(average), "average": interval(average)}
    found["end"] = interval(differences(rows, "final_sampled", ours, theirs))
    a = accuracies(curves, **ours)
    b = accuracies(curves, **theirs)
    both = [seed for seed in a if seed in b]
    a, b = (np.array([x[seed] for seed in both]) for x in (a, b))
    found["half"] = speed(evaluated(curves), a, b, 0.5)
    found["most"] = speed(evaluated(curves), a, b, 0.9)
    a = by_seed(rows, "seconds_per_step", **ours)
    b = by_seed(rows, "seconds_per_step", **theirs)
    found["seconds"] = np.median([a[seed] / b[seed] for seed in a if seed in b])
    return found


def effects(rows: list[dict], curves: list[dict]) -> list[dict]:
    """An effect for each variant or control, task, rate and flags; of each task the best first.

    "own": without flags, at the rate that was chosen for it. "significant": of variants at their
    own rate, after Holm's correction over all of these, those that have no rows yet included.
    """
    later = [row for row in rows if int(row["seed"]) not in FIRST]
    curves = [row for row in curves if int(row["seed"]) not in FIRST]
    found = []
    for head in dict.fromkeys(tuple(row[name] for name in HEAD) for row in later):
        ours = dict(zip(HEAD, head))
        theirs = ours | {"variant": "grpo", "lr": chosen(rows, ours["task"], "grpo")}
        if differences(later, "mean_sampled", ours, theirs):
            x = effect(later, curves, ours, theirs)
            own = chosen(rows, ours["task"], ours["variant"])
            found.append(x | {"own": not ours["flags"] and float(ours["lr"]) == own})
    of_variants = [
        x for x in found if x["own"] and x["task"] in TASKS and x["variant"] in NAMES[1:]
    ]
    p = {(x["task"], x["variant"]): x["p"] for x in of_variants}
    significant = holm(p, len(TASKS) * len(NAMES[1:]))
    for x in found:
        x["significant"] = x["own"] and (x["task"], x["variant"]) in significant
    return sorted(found, key=lambda x: (x["task"], -x["average"][0]))
