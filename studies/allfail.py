"""What can be solved at all? python -m studies.allfail [--seeds 1 2 3]    after studies.compare

Where all N responses of a group fail, GRPO has no gradient. On `mul`: 1,024 responses, temperature
1, to each of 30 held-out problems a level, by the base models and by what studies.compare trained
from them. With c of n responses correct, the chance that a group of N is not all-fail is

    pass@N = 1 - C(n-c, N) / C(n, N)                                  arXiv 2107.03374, Eq. 1

without bias, which 1 - (1 - c/n)^N is not. A problem counts as solved if one of the n is correct.

"again" is the base model with other samples: gains and losses no larger than its own say nothing.

docs/tables/allfail.csv has a row a problem and a column a model: its correct responses. docs/tables/allfail.md is made from it alone. What is there is not sampled
again. A run that is missing is made.
"""

import numpy as np
import torch
from scipy import stats

import train
from grpo import sample_rollout
from studies.common import TABLES, at, commit, complete, finished, interval, markdown
from studies.common import options, percent, publish, read_rows, settings, shown
from studies.runs import run
from tasks import MUL, Problem

ROWS = TABLES / "allfail.csv"
MODELS = ("base", "again", "grpo", "pos_only", "negative", "likelihood")
PROBLEMS = 30  # of each level
SAMPLES = 1024
ROUND = 64  # of them at once


def pass_at(correct: np.ndarray, sizes: list[int]) -> np.ndarray:
    """pass@N of problems of whose SAMPLES responses some are correct: (problems, sizes)."""
    # The chance that N draws without replacement have no correct one.
    return 1 - stats.hypergeom.pmf(0, SAMPLES, np.asarray(correct)[:, None], np.array(sizes))


def count(model, problems: list[Problem], seed: int) -> list[int]:
    """How many of SAMPLES responses to each problem are correct."""
    rng = torch.Generator().manual_seed(seed)
    correct = torch.zeros(len(problems))
    for _ in range(SAMPLES // ROUND):
        rollout = sample_rollout(model, MUL, problems, ROUND, generator=rng)
        correct += rollout.rewards.sum(1)
    return correct.int().tolist()


def measure(task: str, seed: int, out: str):
    """The rows of one seed: all models on the first held-out problems of each level."""
    held = train.make_problems(MUL, held=True)
    levels = [[p for p in held if p.level == level][:PROBLEMS] for level in MUL.levels]
    problems = [p for level in levels for p in level]
    base = train.base_model(settings(task, seed, out))
    counts = {"base": count(base, problems, 0), "again": count(base, problems, 1)}
    for name in MODELS[2:]:
        _, model = finished(run(task, name, seed, out))
        counts[name] = count(model, problems, 0)
    for i, problem in enumerate(problems):
        row = {"task": task, "seed": seed, "commit": commit(), "level": problem.level}
        row["problem"] = problem.prompt.strip()
        yield row | {name: counts[name][i] for name in MODELS}


def by_model(name: str, levels) -> np.ndarray:
    """The correct responses of a model: (base models, problems)."""
    rows = [row for row in read_rows(ROWS) if int(row["level"]) in levels]
    seeds = sorted({row["seed"] for row in rows})
    return np.array([[int(row[name]) for row in at(rows, seed=seed)] for seed in seeds])


def level_table(N: int) -> str:
    """pass@N in %, mean over problems; with 95 % intervals over base models, by level."""
    cells = []
    for level in MUL.levels:
        means = [[pass_at(x, [N]).mean() for x in by_model(name, [level])] for name in MODELS]
        cells.append([str(level), *map(percent, means)])
    return markdown([f"level, pass@{N}", *(f"`{name}`" for name in MODELS)], cells)


def solved_table(levels) -> str:
    """Shares of problems that only the model solves, and that only the base model does."""
    before = by_model("base", levels) > 0
    cells = []
    for name in MODELS[1:]:
        after = by_model(name, levels) > 0  # solved
        won = (after & ~before).mean(1)
        lost = (before & ~after).mean(1)
        cells.append([f"`{name}`", *(shown(interval(x)) for x in (won - lost, won, lost))])
    return markdown(["after", "solved, minus base, points", "only after", "only before"], cells)


if __name__ == "__main__":
    complete(ROWS, measure, options(__doc__, range(1, 7), ("mul",)).parse_args())
    tables = [level_table(N) for N in (1, 8, SAMPLES)]
    for levels in (MUL.levels, MUL.levels[2:]):
        tables.append(f"Levels {levels[0]} to {levels[-1]}:\n\n{solved_table(levels)}")
    publish(ROWS, "\n\n".join(["# What can be solved at all", *tables]) + "\n")
