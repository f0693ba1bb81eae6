"""What is compared, on which base models, and how a learning rate is chosen: methods.md in code.

Learning rates are chosen on base models 1 to 3, and everything that is reported is from others.
"""

import numpy as np

from advantages import VARIANTS
from studies.ablations import CONTROLS
from studies.common import TABLES, by_seed

ROWS = TABLES / "compare.csv"
HEAD = ("task", "variant", "lr", "flags", "seed")  # what a row is of
TASKS = ("add", "mul")  # that variants are compared on
FIRST = range(1, 4)  # base models that rates are chosen on
SIX = range(4, 10)
TWELVE = range(4, 16)
GRID = (3e-4, 1.5e-4, 6e-4)
BEYOND = {1.5e-4: [7.5e-5], 6e-4: [1.2e-3]}  # tried if the best of the grid is this end of it
OWN_GRID = {"cispo": (3e-4, 2.1e-4)}  # for all of its caps
RATES = sorted({*sum(BEYOND.values(), [*GRID]), *OWN_GRID["cispo"]})
NAMES = [*VARIANTS]  # grpo is the first
FINER = ["grpo", "half", "pos_only", "reinforce"]  # whose grid has 2.1e-4 as well
DIFFICULTY = ["focal", "flat_pos", "focal_half"]  # less push down, or weight on hard problems?
SEARCHED = [name for name in NAMES if name not in ("culling", "ppo")]
SEARCHED += ["dense", *DIFFICULTY, "process_by_step", "ppo_fast"]
USUAL = 3e-4  # the rate of grpo, which a variant takes ...
MARGIN = 1.5  # ... unless another one is better by more points than this (methods.md)
PAIR = ("dr_grpo", "rloo")  # two names of one algorithm: the first one's runs stand for both
COMPARED = [name for name in NAMES if name not in ("grpo", PAIR[1])]  # with grpo, for Holm

NARROW = "--clip-low 3e-4 --clip-high 4e-4"  # gspo's clip range in its paper
RESPONSE = "--aggregate response"  # as gspo has it
NORM = "--max-grad-norm"
LIMITS = {"0.01": "", "0.1": f"{NORM} 0.1", "1": f"{NORM} 1", "none": f"{NORM} 1e9"}  # -> flags
CAPS = [f"--clip-high {high}" for high in (0.2, 0.28, 1.0)]  # of cispo's ratio: 1.2, 1.28 and 2
UNCLIPPED = "--clip-low 1 --clip-high 1000"
DOSES = {2: "double", 1: "grpo", 0.5: "half", 0.25: "quarter", 0: "pos_only"}  # a weight: its rule
OTHERS = ["same_prefix", "double", "quarter", "ppo_fast"]  # have own sets
AT_USUAL = ["grpo", "half", "pos_only", "reinforce", "dr_grpo", "nthr", "likelihood", "verifree"]
SETS = {  # set: variants or controls, tasks, base models, flags
    "rates": ([name for name in NAMES if name in SEARCHED], TASKS, FIRST, [""]),
    "narrow": (["gspo"], TASKS, FIRST, [NARROW]),
    "variants": (NAMES, TASKS, TWELVE, [""]),
    "usual": (AT_USUAL, TASKS, SIX, [LIMITS["1"]]),
    "usual-later": (["grpo", "half", "pos_only"], TASKS, range(10, 16), [LIMITS["1"]]),
    "caps": (["cispo"], TASKS, FIRST, CAPS),
    "low-cap": (["cispo"], TASKS, TWELVE, CAPS[:1]),
    "unclipped": (["grpo"], ["add"], SIX, [UNCLIPPED]),
    "ladder": (["grpo", "half"], ["add"], SIX, [LIMITS["none"], LIMITS["0.1"]]),
    "response": (["grpo"], TASKS, TWELVE, [RESPONSE]),
    "dense": (["dense"], TASKS, [*FIRST, *SIX], [""]),
    "by-step": (["process_by_step"], TASKS, [*FIRST, *TWELVE], [""]),
    "same-prefix": (["same_prefix"], TASKS, TWELVE, [""]),
    "controls": ([x for x in CONTROLS if x not in SEARCHED + OTHERS], TASKS, SIX, [""]),
    "difficulty": (DIFFICULTY, TASKS, [*FIRST, *TWELVE], [""]),
    "finer": (FINER, TASKS, FIRST, [""]),
    "value-rate": (["ppo_fast"], TASKS, FIRST, [""]),
    "difficulty-usual": (DIFFICULTY[:2], ["mul"], SIX, [LIMITS["1"]]),
    "sum": (["grpo"], ["sum"], SIX, [""]),
}


def accuracy_by_rate(rows: list[dict], task: str, variant: str, flags="") -> dict[float, float]:
    """rate -> average accuracy during training in %, of rates that have all of FIRST."""
    accuracy = {}
    for lr in RATES:
        values = by_seed(rows, "mean_sampled", task=task, variant=variant, lr=lr, flags=flags)
        if values.keys() >= {*FIRST}:
            accuracy[lr] = 100 * np.mean([values[seed] for seed in FIRST])
    return accuracy


def rates_to_try(variant: str, accuracy: dict[float, float]) -> list[float]:
    """The grid, then, when all of it is there, the value beyond its end if the end is best."""
    grid = OWN_GRID.get(variant, GRID)
    if not accuracy.keys() >= {*grid}:
        return [*grid]
    return [*grid, *BEYOND.get(max(grid, key=accuracy.get), [])]


def chosen_rate(rows: list[dict], task: str, variant: str, flags: str = "") -> float | None:
    """The usual rate, or the best one if that is better by more than MARGIN.

    grpo has the usual one. None before all rates are there. What is not searched takes the rate of
    grpo, `sum` that of add. Of all flags only CAPS are searched for themselves.
    """
    variant = variant if variant in SEARCHED else "grpo"
    flags = flags if flags in CAPS else ""
    accuracy = accuracy_by_rate(rows, "add" if task == "sum" else task, variant, flags)
    if not accuracy.keys() >= {*rates_to_try(variant, accuracy)}:
        return None
    best = max(accuracy, key=accuracy.get)
    better = accuracy[best] > accuracy[USUAL] + MARGIN
    return best if better and variant != "grpo" else USUAL


def title(name: str) -> str:
    """The name in tables and pictures."""
    return " = ".join(PAIR) if name == PAIR[0] else name
