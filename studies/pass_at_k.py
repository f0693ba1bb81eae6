"""Does training teach what the base model cannot do? python -m studies.pass_at_k [--seeds 4 5]

pass@k on `mul` is the share of 120 held-out problems, 30 of each level, for which at least one of k
responses is correct. We sample n = 1,024 responses at temperature 1. If c of them are correct, the
estimate

    pass@k = 1 - C(n-c, k) / C(n, k)                                  arXiv 2107.03374, Eq. 1

has no bias, while 1 - (1 - c/n)^k has one. k = 1 is the accuracy. A large k shows what the model
can reach at all. arXiv 2504.13837 found for language models that with a large k, base models
overtake what reinforcement learning made of them.

The table and the picture are made from results/pass_at_k.csv, which has one row for each model and
one column for each k. The numbers are means over base models with 95 % t intervals. What has a row
is not sampled again, and a run that is missing is made.
"""

from functools import partial

import numpy as np
import torch
from scipy.stats import hypergeom

from grpo import sample_rollout
from studies.common import TABLES, by_seed, study
from studies.pictures import COLOURS, EXAMPLES, WIDTH, name_lines, picture
from studies.protocol import SIX
from studies.runs import rows_of_models
from tasks import TASKS, make_problems

AFTER = """grpo half pos_only maxrl verifree process reinforce focal flat_pos""".split()
PROBLEMS = 30  # of each level
SAMPLES = 1024
SIZES = [2**i for i in range(11)]  # k
SHOWN = ("base", "grpo", "half", "pos_only", "maxrl")  # in the picture, base first
ROUND = 64  # samples of a problem at once


def pass_at(k: int, correct: np.ndarray, n: int = SAMPLES) -> float:
    """The mean over problems; correct: how many of n samples are, for each problem."""
    none_correct = hypergeom.pmf(0, n, correct, k)  # of k that are drawn from these n
    return float(np.mean(1 - none_correct))


def accuracy_by_k(model, task: str) -> dict[str, float]:
    """k -> pass@k of one model."""
    held = make_problems(TASKS[task], held=True)
    levels = [[p for p in held if p.level == level][:PROBLEMS] for level in TASKS[task].levels]
    rng = torch.Generator().manual_seed(0)
    correct = 0  # responses to each problem
    for _ in range(SAMPLES // ROUND):
        rollout = sample_rollout(model, TASKS[task], sum(levels, []), ROUND, generator=rng)
        correct = correct + rollout.rewards.sum(1).numpy()
    return {str(k): pass_at(k, correct) for k in SIZES}


def draw(ax, rows: list[dict]) -> None:
    """The curves of SHOWN, with a ring where one crosses that of the base model."""
    x = np.linspace(0, len(SIZES) - 1, 1001)  # log2 k, and what is between
    curves = {}
    for name in SHOWN:
        means = [100 * np.mean([*by_seed(rows, str(k), model=name).values()]) for k in SIZES]
        curves[name] = np.interp(x, range(len(SIZES)), means)
        rings = np.flatnonzero(np.diff(curves[name] < curves["base"]))
        look = {"color": COLOURS[name], "markevery": [*rings], "markerfacecolor": "white"}
        ax.plot(x, curves[name], "o--" if name == "base" else "o-", linewidth=2, **look)
    ax.set_title(f"With many tries, the base model solves more\n{EXAMPLES['mul']}")
    ax.set(xlabel="number of tries, k", ylabel="solved at least once, %", ylim=(0, 100))
    ax.set_xticks(range(0, len(SIZES), 2), SIZES[::2])
    name_lines(ax, ["base model", *SHOWN[1:]])


if __name__ == "__main__":
    measure = partial(rows_of_models, accuracy_by_k)
    rows = study(__doc__, TABLES / "pass_at_k.csv", measure, ("base", *AFTER), ("mul",), SIX)
    with picture(TABLES / "pass_at_k.png", figsize=(WIDTH, 3.4)) as ax:
        draw(ax, rows)
