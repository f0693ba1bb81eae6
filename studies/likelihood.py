"""Does an update make correct responses likelier? python -m studies.likelihood [--tasks add] ...

The protocol of arXiv 2505.18830, section 3. A base model of studies.compare samples eight responses
to a training problem; mixed groups are kept, 100 of a base model. For each group and each arm, anew
from the base model's weights, one update on that group alone, its gradient not scaled down; then,
in nats, with N+ the number of correct responses i,

    Delta(x) = (1/N+) sum_{i correct} [ln pi_theta'(y_i|x) - ln pi_theta(y_i|x)]            Eq. 2

Arms: grpo; pos_only; nthr-0, which is nthr with eta = 0, as in the paper's figures; nthr with its
usual eta; random, which spares as many tokens of each incorrect response as nthr-0, but any. The
paper does not name its optimiser. Here: SGD with a small step, as the theory is about gradient
flow, and a fresh AdamW with the training's learning rate. H8 is about SGD and nthr-0.

docs/tables/likelihood.csv has a row a question: Delta of each optimiser and arm. Tables
(docs/tables/likelihood.md) and docs/likelihood.png are made from it alone. What is there is not
measured again.
"""

from copy import deepcopy
from functools import partial

import numpy as np
import torch
from torch import Tensor

import train
from advantages import VARIANTS, grpo, nthr
from grpo import Rollout, likelihood_change, policy_loss, response_logprobs
from model import GPT
from studies.common import REPLICATES, ROOT, TABLES, commit, fill, interval, markdown
from studies.common import mixed_groups, options, publish, pyplot, read_rows, settings, shown
from studies.common import verdict
from tasks import TASKS

ROWS = TABLES / "likelihood.csv"
QUESTIONS = 100  # of a base model
# The largest of 3e-5, 1e-4, 3e-4, 1e-3 at which Delta of grpo is nearly linear in the step, on base
# model 0 of add, which the study does not use: at the median question within a fifth of ten times
# what a tenth of the step gives.
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=1e-4),
    "AdamW": partial(torch.optim.AdamW, lr=train.NUMBERS["lr"][0], weight_decay=0.0),
}
ARMS = ("grpo", "pos_only", "nthr-0", "nthr", "random")


def random_tokens(rollout: Rollout, spared: Tensor, rng: torch.Generator) -> Tensor:
    """grpo's advantages (P, G, T), but 0 on as many random tokens of a response as are spared."""
    keys = torch.rand(spared.size(), generator=rng).masked_fill(~rollout.mask, torch.inf)
    rank = keys.argsort(-1).argsort(-1)  # of a response's tokens, in a random order
    return grpo(rollout).masked_fill(rank < spared.sum(-1, keepdim=True), 0.0)


def change(model: GPT, rollout: Rollout, advantages: Tensor, optimizer) -> float:
    """Delta of one update, made on a copy of the model."""
    model = deepcopy(model)
    logprobs = response_logprobs(model, rollout)
    policy_loss(logprobs, rollout.logprobs, advantages, rollout.mask).backward()
    optimizer(model.parameters()).step()
    return likelihood_change(model, rollout)


def measure(task: str, seed: int, out: str):
    """The rows of one base model."""
    torch.set_num_threads(1)
    model = train.base_model(settings(task, seed, out))
    for i, rollout in enumerate(mixed_groups(model, TASKS[task], QUESTIONS)):
        arms = {name: VARIANTS[name](rollout) for name in ("grpo", "pos_only", "nthr")}
        arms["nthr-0"] = nthr(rollout, eta=0.0)
        spared = rollout.mask & (arms["nthr-0"] == 0)  # in a mixed group grpo leaves no token at 0
        arms["random"] = random_tokens(rollout, spared, torch.Generator().manual_seed(i))
        row = {"task": task, "seed": seed, "commit": commit(), "question": i}
        row["spared"] = int(spared.sum())  # tokens
        for optimizer, new in OPTIMIZERS.items():
            for arm in ARMS:
                row[f"{optimizer} {arm}"] = change(model, rollout, arms[arm], new)
        yield row


def by_seed(task: str, name: str) -> dict[int, np.ndarray]:
    """seed -> this column of its questions."""
    rows = [row for row in read_rows(ROWS) if row["task"] == task]
    seeds = sorted({int(row["seed"]) for row in rows})
    return {s: np.array([float(x[name]) for x in rows if int(x["seed"]) == s]) for s in seeds}


def minus(task: str, optimizer: str, arm: str, other: str) -> dict[int, float]:
    """seed -> Delta of an arm minus that of another one, mean over the questions."""
    a, b = (by_seed(task, f"{optimizer} {name}") for name in (arm, other))
    return {seed: (a[seed] - b[seed]).mean() for seed in a}


def table(task: str) -> str:
    """Means over base models, with 95 % intervals; the last column: where nthr-0 spares a token."""
    cells = []
    spared = by_seed(task, "spared")
    for optimizer in OPTIMIZERS:
        usual = by_seed(task, f"{optimizer} grpo")
        for arm in ARMS:
            delta = by_seed(task, f"{optimizer} {arm}")
            effects = [minus(task, optimizer, arm, other) for other in ("grpo", "random")]
            values = [[x.mean() for x in delta.values()], *([*x.values()] for x in effects)]
            numbers = [shown(interval(x), 1, "+.4f") for x in values]
            above = [(x > usual[seed])[spared[seed] > 0].mean() for seed, x in delta.items()]
            cells.append([optimizer, f"`{arm}`", *numbers, shown(interval(above), form=".0f")])
    header = ["optimiser", "arm", "mean Delta, nats", "minus grpo", "minus random"]
    return markdown([*header, "above grpo, % of questions"], cells)


def figure(tasks: list[str]) -> None:
    """How much more each arm raises Delta than grpo: a dot a base model, a bar their mean."""
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for ax, optimizer in zip(axes, OPTIMIZERS):
        for i, task in enumerate(tasks):
            for x, arm in enumerate(ARMS[1:]):
                gains = [*minus(task, optimizer, arm, "grpo").values()]
                ax.plot([x + 0.3 * i] * len(gains), gains, f"C{i}.", label="" if x else task)
                ax.plot(x + 0.3 * i, np.mean(gains), "k_", markersize=16)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set(title=optimizer, xticks=range(len(ARMS) - 1), xticklabels=ARMS[1:])
    axes[0].set_ylabel("Delta minus grpo's, nats")
    axes[0].legend(frameon=False)
    plt.savefig(ROOT / "docs" / "likelihood.png", dpi=110)


if __name__ == "__main__":
    args = options(__doc__, range(1, REPLICATES + 1), ("add", "mul")).parse_args()
    fill(ROWS, args, measure)
    text = "# Likelihood change\n"
    for task in args.tasks:
        text += f"\n## {task}\n\n{table(task)}\n"
        for other in ("grpo", "random"):
            found = verdict(minus(task, "SGD", "nthr-0", other), +1, 0.003)  # nats
            text += f"\nH8, SGD, nthr-0 minus {other}: {'; '.join(found)} replicates.\n"
    publish(ROWS, text)
    figure(args.tasks)
