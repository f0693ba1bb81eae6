"""Does training teach what the base model cannot do? python -m studies.passes [--seeds 4 5]

pass@k on `mul`: the share of 120 held-out problems, 30 a level, to which at least one of k
responses is correct. 1,024 are sampled, at temperature 1. If c of n are correct, the estimate

    pass@k = 1 - C(n-c, k) / C(n, k)                                  arXiv 2107.03374, Eq. 1

has no bias, while 1 - (1 - c/n)^k has one. k = 1 is accuracy. At a large k it is what the model can
reach at all; arXiv 2504.13837 found on language models that there base models overtake what was
made of them by reinforcement learning.

docs/tables/passes.csv has a row a model, a column a k; what is there is not sampled again, and a
run that is missing is made. docs/tables/passes.md and docs/passes.png are made from it alone.
"""

import numpy as np
import torch
from tqdm import trange

import train
from grpo import sample_rollout
from studies.common import TABLES, at, commit, complete, interval, options, percent
from studies.common import look, picture, publish, settings
from studies.pictures import WIDTH, name_lines
from studies.runs import model_after
from tasks import TASKS
from tools.common import markdown, read_rows

ROWS = TABLES / "passes.csv"
SEEDS = range(4, 10)  # base models
AFTER = ("grpo", "pos_only", "verifree")  # variants
MODELS = ("base", *AFTER)
PROBLEMS = 30  # of each level
SAMPLES = 1024
SIZES = [2**i for i in range(11)]  # k
ROUND = 64  # samples of a problem at once


def pass_at(k: int, correct: np.ndarray, n: int = SAMPLES) -> float:
    """The mean over problems; correct: how many of n samples are, for each problem."""
    j = np.arange(1, n + 1)
    # C(n-c, k) / C(n, k) is the product of 1 - k / j over j from n-c+1 to n.
    factors = np.where(j > n - correct[:, None], 1 - k / j, 1.0)  # (problems, n)
    return float(np.mean(1 - factors.prod(1)))


def count(model, task: str) -> np.ndarray:
    """How many of SAMPLES responses to each problem are correct."""
    held = train.make_problems(TASKS[task], held=True)
    levels = [[p for p in held if p.level == level][:PROBLEMS] for level in TASKS[task].levels]
    problems = sum(levels, [])
    rng = torch.Generator().manual_seed(0)
    correct = 0
    for _ in trange(SAMPLES // ROUND):
        rollout = sample_rollout(model, TASKS[task], problems, ROUND, generator=rng)
        correct = correct + rollout.rewards.sum(1).numpy()
    return correct


def measure(task: str, seed: int, out: str):
    """The rows of one seed: of its base model and of the runs that began there."""
    models = {"base": train.base_model(settings(task, seed, out))}
    models |= {name: model_after(task, name, seed, out) for name in AFTER}
    for name, model in models.items():
        head = {"task": task, "seed": seed, "model": name, "commit": commit()}
        correct = count(model, task)
        yield head | {str(k): pass_at(k, correct) for k in SIZES}


# ---- Table and picture, from the CSV alone
def column(name: str, k: int) -> list[float]:
    """pass@k of a model, a number for each base model."""
    return [float(row[str(k)]) for row in at(read_rows(ROWS), model=name)]


def table() -> str:
    """Means over base models in %, with 95 % t intervals."""
    cells = [[f"`{name}`", *(percent(column(name, k)) for k in SIZES)] for name in MODELS]
    return markdown(["pass@k, %; k =", *map(str, SIZES)], cells)


def draw(ax) -> None:
    """A curve a model, and its 95 % t interval over base models."""
    ends = {}
    for name in MODELS:
        how = look(name) if name in AFTER else {"color": "0.6", "linestyle": "--"}
        y, low, high = (100 * np.array([interval(column(name, k)) for k in SIZES])).T
        ax.plot(SIZES, y, **how)
        ax.fill_between(SIZES, low, high, color=how["color"], alpha=0.2, linewidth=0)
        ends[name] = (y[-1], SIZES[-1], how["color"])
    ax.set_xscale("log", base=2)
    ax.set_xticks(SIZES, SIZES)
    ax.set(xlabel="k, responses to a problem", ylabel="pass@k, %", ylim=(0, 100))
    name_lines(ax, ends, 0.05)


if __name__ == "__main__":
    complete(ROWS, measure, options(__doc__, SEEDS, ("mul",)).parse_args())
    publish(ROWS, f"# Does training teach what the base model cannot do?\n\n{table()}\n")
    with picture("passes.png", figsize=(WIDTH, 3.8)) as ax:
        draw(ax)
