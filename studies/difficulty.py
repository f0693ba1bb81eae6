"""Less push down, or more weight on hard problems? python -m studies.difficulty

Let p be the probability that a response to a problem is correct. A rule that gives incorrect
responses w times the advantage of grpo has, in expectation, the update of grpo times 1 - (1 - w) p.
So half and pos_only push down less, and they also give more weight to hard problems. Controls take
the two apart (ablations.py). "Hard : easy" is the weight of a problem with p = 1/8 over that of one
with p = 7/8, in groups of eight. It is 1 for grpo.

The first table has points above grpo: sampled accuracy as a mean over training, sampled and greedy
accuracy at the end, and the share of all-fail groups as a mean over training, where less is better.
In expectation, reinforce has the update of dr_grpo times a constant, so their difference is not one
of weights. The second table takes grpo, focal, flat_pos and pos_only as a design of two factors, on
the base models that have all four, with our norm limit of 0.01 and with the usual one of 1. The
effect of the weight is the mean of focal minus grpo and of pos_only minus flat_pos. That of no push
down is the mean of flat_pos minus grpo and of pos_only minus focal. Their interaction is pos_only
minus flat_pos minus focal plus grpo. Intervals are 95 % t intervals over base models.

methods.md has the rule by which the end decides, which was declared before. It does not name a norm
limit. The intervals of shares are from drawing the base models again, with replacement. A verdict
that most draws do not share is undecided.
"""

from itertools import product
from math import comb
from types import SimpleNamespace

import numpy as np
import torch

from studies.analysis import with_means_of_pair
from studies.common import TABLES, by_seed, interval, markdown, publish, read_rows
from studies.protocol import DIFFICULTY, FIRST, LIMITS, ROWS, TASKS, chosen_rate, title
from studies.runs import TRAINED

MEASURES = {"mean_sampled": "average", "final_sampled": "sampled end"}
MEASURES |= {"final_greedy": "greedy end", "all_fail": "all-fail"}
FACTORS = ("grpo", "focal", "flat_pos", "pos_only")
PUSH_DOWN = dict.fromkeys(("dr_grpo", "reinforce", "half", "maxrl", "pos_only", *DIFFICULTY), "yes")
PUSH_DOWN |= {"half": "half as hard"} | dict.fromkeys(("reinforce", "pos_only", "flat_pos"), "no")
G = 8  # responses of a group


def weight(name: str, p: float) -> float:
    """The expected update of a problem under a rule, in units of u. The sum over groups is exact.

    u is the mean of grad ln pi over correct responses. Over all responses its mean is 0, so over
    incorrect ones it is -p / (1 - p) u.
    """
    rewards = torch.ones(G + 1, G).tril(-1)  # group k has k correct responses
    A = TRAINED[name](SimpleNamespace(rewards=rewards))  # (G + 1, G)
    update = torch.where(rewards == 1, A, -p / (1 - p) * A).mean(1).tolist()
    return sum(comb(G, k) * p**k * (1 - p) ** (G - k) * x for k, x in enumerate(update))


def hard_to_easy(name: str) -> float:
    """The weight at p = 1/8 over that at 7/8, relative to grpo's."""
    hard, easy = (weight(name, p) / weight("grpo", p) for p in (1 / 8, 7 / 8))
    return hard / easy


def values(rows: list[dict], task: str, variant: str, column: str) -> dict[int, float]:
    """seed -> a column of the runs at the rate that was chosen; empty if none is."""
    lr = chosen_rate(rows, task, variant)
    found = by_seed(rows, column, task=task, variant=variant, lr=lr, flags="")
    return {seed: x for seed, x in found.items() if seed not in FIRST}


def above_grpo(rows: list[dict], task: str, variant: str, column: str) -> np.ndarray:
    """A column of a rule minus that of grpo, on the base models that have both."""
    ours, theirs = (values(rows, task, name, column) for name in (variant, "grpo"))
    return np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs])


def of_four(rows: list[dict], task: str, column: str) -> np.ndarray:
    """A column of FACTORS, (4, n), on the base models that have all four."""
    found = [values(rows, task, name, column) for name in FACTORS]
    seeds = sorted(set.intersection(*map(set, found)))
    return np.array([[x[seed] for seed in seeds] for x in found])


def factors(rows: list[dict], task: str, column: str) -> dict[str, np.ndarray]:
    """The effects of the weight and of no push down, and their interaction, of each base model."""
    grpo, focal, flat_pos, pos_only = of_four(rows, task, column)
    return {
        "more weight on hard problems": ((focal - grpo) + (pos_only - flat_pos)) / 2,
        "no push down": ((flat_pos - grpo) + (pos_only - focal)) / 2,
        "interaction": pos_only - flat_pos - focal + grpo,
    }


def points(differences) -> str:
    """A mean in points with its interval; empty if there are no runs."""
    return f"{interval(differences).times(100):+.1f}" if len(differences) else ""


def verdict(gains: np.ndarray) -> tuple[np.ndarray, str]:
    """The shares of focal and flat_pos in the gain of pos_only, and what methods.md says of them.

    gains (measures, 3, n) are above grpo. The shares are (2, measures).
    """
    focal, flat_pos, pos_only = gains.mean(-1).T
    shares = np.array([focal, flat_pos]) / pos_only
    causes = {"the weight on hard problems": shares, "the push down": shares[::-1]}
    found = [name for name, (x, y) in causes.items() if x.min() >= 2 / 3 and y.max() <= 1 / 3]
    return shares, found[0] if found else "both"


def decided(rows: list[dict], task: str, columns: list[str], draws: int = 10000) -> str:
    """The verdict on these measures, and how it varies if the base models are drawn again."""
    of_all = np.array([of_four(rows, task, column) for column in columns])  # (measures, 4, n)
    gains = of_all[:, 1:] - of_all[:, :1]
    shares, said = verdict(gains)
    n = gains.shape[-1]
    rng = np.random.default_rng(0)
    drawn = [verdict(gains[..., rng.integers(n, size=n)]) for _ in range(draws)]
    low, high = np.quantile([x for x, _ in drawn], [0.025, 0.975], axis=0)  # (2, measures)
    parts = []
    for name, *ends in zip(("focal", "flat_pos"), shares, low, high):
        texts = [f"{x:.0%} ({a:.0%} to {b:.0%})" for x, a, b in zip(*ends)]
        parts.append(f"{name} has {', '.join(texts)}")
    of = " and ".join(MEASURES[column] for column in columns)
    again = np.mean([x == said for _, x in drawn])
    said = f"{said}, as in {again:.0%} of the draws" if again > 0.5 else "undecided"
    return f"On {task}, {of}: of the gain of pos_only, {' and '.join(parts)}. So it is {said}."


def with_limit(rows: list[dict], limit: str) -> list[dict]:
    """The rows with this norm limit, without its flag, and those that chose the learning rates."""
    flags = LIMITS[limit]
    ours = [row for row in rows if row["seed"] not in FIRST and row["flags"] == flags]
    return [row for row in rows if row["seed"] in FIRST] + [row | {"flags": ""} for row in ours]


def page(rows: list[dict]) -> str:
    reported = [row for row in rows if row["seed"] not in FIRST]
    rows = [row for row in rows if row["seed"] in FIRST] + with_means_of_pair(reported)
    lines = []
    for task, (name, down) in product(TASKS, PUSH_DOWN.items()):
        found = [above_grpo(rows, task, name, column) for column in MEASURES]
        if len(found[0]):
            ratio = f"{hard_to_easy(name):.1f}"
            about = [task, f"`{title(name)}`", down, ratio, str(len(found[0]))]
            lines.append([*about, *map(points, found)])
    head = ["task", "rule", "pushes down", "hard : easy", "base models", *MEASURES.values()]
    effects = []
    verdicts = []
    for task, limit in product(TASKS, ("0.01", "1")):
        tables = [factors(with_limit(rows, limit), task, column) for column in MEASURES]
        for name, found in tables[0].items() if len(tables[0]["interaction"]) else ():
            about = [task, limit, name, str(len(found))]
            effects.append([*about, *(points(table[name]) for table in tables)])
        if len(tables[0]["interaction"]):
            for columns in (["final_greedy", "all_fail"], ["mean_sampled"]):
                verdicts.append(
                    f"Limit {limit}. " + decided(with_limit(rows, limit), task, columns)
                )
    head_of_second = ["task", "norm limit", "effect of", "base models", *MEASURES.values()]
    second = markdown(head_of_second, effects)
    said = "\n".join(f"- {line}" for line in verdicts)
    return f"# {__doc__}\n{markdown(head, lines)}\n\n{second}\n\n{said}\n"


if __name__ == "__main__":
    publish(TABLES / "difficulty.csv", page(read_rows(ROWS)))
