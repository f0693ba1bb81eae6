"""What the rows of studies.compare say: chosen rates, differences from grpo, speed of learning.

And the page that is made of it, results/compare.md. Rates are chosen on base models 1 to 3;
everything else is of the other base models.
"""

from itertools import product
from pathlib import Path

import numpy as np

from advantages import VARIANTS
from studies.common import TABLES, at, by_seed, holm, interval, markdown, paired, read_rows
from studies.common import resampled, shown, sign_flips
from studies.ablations import CONTROLS

ROWS = TABLES / "compare.csv"
TASKS = ("add", "mul")  # that variants are compared on
FIRST = range(1, 4)  # base models that rates are chosen on
GRID = (3e-4, 1.5e-4, 6e-4)
BEYOND = {1.5e-4: [7.5e-5], 6e-4: [1.2e-3]}  # tried if the best of the grid is this end of it
RATES = sorted(sum(BEYOND.values(), [*GRID]))
NAMES = [name for name in VARIANTS if name not in CONTROLS]  # grpo is the first
FORMS = ["substituted", "substituted_up", "dense", "log_likelihood"]  # of experiment 5
SEARCHED = [name for name in NAMES if name != "culling"] + FORMS + ["critic_bounded"]
SHARES = ("all_fail", "final_sampled_reasoning_correct", "scaled")
HEAD = ("task", "variant", "lr", "flags")  # and the seed: what a row is of
# Time of a step over grpo's, as text. Runs say less: on another day a machine has other work, too.
TIMES = {(row["task"], row["measured"]): row["ratio"] for row in read_rows(TABLES / "timing.csv")}


def by_rate(rows: list[dict], task: str, variant: str) -> dict[float, float]:
    """rate -> average accuracy during training in %, of rates that have all of FIRST."""
    found = {}
    for lr in RATES:
        values = by_seed(rows, "mean_sampled", task=task, variant=variant, lr=lr, flags="")
        if values.keys() >= {*FIRST}:
            found[lr] = 100 * np.mean([values[seed] for seed in FIRST])
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


def speed(steps, ours: np.ndarray, theirs: np.ndarray, share: float) -> tuple:
    """When ours has this share of what theirs gains in all, over when theirs has it; (n, steps).

    Of the mean curves; with an interval.
    """

    def ratio(seeds):
        a = ours[seeds].mean(0)
        b = theirs[seeds].mean(0)
        level = b[0] + share * (b.max() - b[0])
        return reached(steps, a, level) / reached(steps, b, level)

    return resampled(ratio, len(ours))


def effect(rows: list[dict], ours: dict, theirs: dict) -> dict:
    """A variant or control beside grpo, of the base models that both have; shares, not points."""
    a, b = paired(rows, "mean_sampled", ours, theirs)
    found = ours | {"n": len(a), "significant": False}
    found |= {"average": interval(a - b), "p": sign_flips(a - b)}
    found["end"] = interval(np.subtract(*paired(rows, "final_sampled", ours, theirs)))
    found |= {name: paired(rows, name, ours, theirs)[0].mean() for name in SHARES}
    steps = [int(name) for name in rows[0] if name.isdigit()]  # after which there is an accuracy
    # (n, steps) each
    a, b = np.transpose([paired(rows, str(step), ours, theirs) for step in steps], (1, 2, 0))
    found |= {"half": speed(steps, a, b, 0.5), "most": speed(steps, a, b, 0.9)}
    return found | {"steps": steps, "curves": a, "theirs": b}


def effects(rows: list[dict]) -> list[dict]:
    """An effect for each variant or control, task, rate and flags; of each task the best first.

    "own": without flags, at the rate that was chosen for it. "significant": of variants at their
    own rate, after Holm's correction over all of these, those that have no rows yet included.
    """
    later = [row for row in rows if int(row["seed"]) not in FIRST]
    found = []
    for head in dict.fromkeys(tuple(row[name] for name in HEAD) for row in later):
        ours = dict(zip(HEAD, head))
        theirs = ours | {"variant": "grpo", "lr": chosen(rows, ours["task"], "grpo")}
        if len(paired(later, "mean_sampled", ours, theirs)[0]):
            x = effect(later, ours, theirs)
            own = chosen(rows, ours["task"], ours["variant"])
            found.append(x | {"own": not ours["flags"] and float(ours["lr"]) == own})
    compared = [x for x in found if x["own"] and x["variant"] in NAMES[1:]]
    p = {(x["task"], x["variant"]): x["p"] for x in compared if x["task"] in TASKS}
    significant = holm(p, len(TASKS) * len(NAMES[1:]))
    for x in found:
        x["significant"] = x["own"] and (x["task"], x["variant"]) in significant
    return sorted(found, key=lambda x: (x["task"], -x["average"][0]))


# ---- The page
def average(x: dict) -> str:
    return f"**{shown(x['average'])}**" if x["significant"] else shown(x["average"])


COLUMNS = {  # heading -> the text of an effect
    "task": lambda x: x["task"],
    "variant": lambda x: f"`{x['variant']}`",
    "rate": lambda x: str(x["lr"]),
    "base models": lambda x: str(x["n"]),
    "average accuracy": average,
    "at the end": lambda x: shown(x["end"]),
    "steps to half": lambda x: shown(x["half"], 1, ".2f").replace("inf", "not reached"),
    "steps to 90 %": lambda x: shown(x["most"], 1, ".2f").replace("inf", "not reached"),
    "time of a step": lambda x: TIMES.get((x["task"], x["variant"]), ""),
    "all-fail": lambda x: f"{100 * x['all_fail']:.1f}",
    "reasoning correct": lambda x: f"{100 * x['final_sampled_reasoning_correct']:.1f}",
    "scaled": lambda x: f"{100 * x['scaled']:.1f}",
}


def table(found: list[dict]) -> str:
    """A line for each effect."""
    lines = [[text(x) for text in COLUMNS.values()] for x in found]
    return markdown([*COLUMNS], lines) if lines else "No rows yet."


def rates(rows: list[dict]) -> str:
    """The parameter study."""
    lines = []
    for task, variant in product(TASKS, SEARCHED):
        texts = {lr: f"{x:.1f}" for lr, x in by_rate(rows, task, variant).items()}
        best = chosen(rows, task, variant)
        texts |= {best: f"**{texts[best]}**"} if best else {}
        lines.append([task, f"`{variant}`", *(texts.get(lr, "") for lr in RATES)])
    return markdown(["task", "variant", *(f"{lr:g}" for lr in RATES)], lines)


def page(rows: list[dict], found: list[dict]) -> str:
    """compare.md, in which a table stands for each {name}; found: what effects() returns."""
    own = [x for x in found if x["own"]]
    both = [x for x in own if x["task"] in TASKS]
    parts = {
        "variants": table([x for x in both if x["variant"] in NAMES]),
        "same_rate": table([x for x in found if not x["own"] and not x["flags"]]),
        "controls": table([x for x in both if x["variant"] not in NAMES]),
        "free": table([x for x in found if x["flags"]]),
        "shortcut": table(at(own, task="sum")),
        "rates": rates(rows),
    }
    return Path(__file__).with_name("compare.template.md").read_text().format(**parts)
