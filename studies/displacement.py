"""Does a step make correct responses less likely? python -m studies.displacement [--seeds 4 5]

Lazy likelihood displacement, arXiv 2505.18830: pushing incorrect responses down can drag correct
ones along. With the weights at the end of grpo's run on `add`, 100 mixed groups of each base model.
For each group and variant: g is the direction of an update on this group alone, minus the gradient
of its loss at ratio 1; N+ is the number of correct responses i. A small step along g changes their
mean log-likelihood, Eq. 2 there, in proportion to

    slope = <g, grad (1/N+) sum_{i correct} ln pi_theta(y_i|x)>

A group is displaced if its slope is negative. No learning rate has to be chosen for that.

docs/tables/displacement.csv has a row a base seed and variant or control: the share of its groups
that are displaced. What is there is not measured again; a run of grpo that is missing is made.
docs/tables/displacement.md is made from it alone.
"""

import torch
from tqdm import tqdm

from grpo import Rollout, response_logprobs
from studies.common import TABLES, at, by_seed, commit, complete, interval, options
from studies.common import percent, publish, shown
from studies.gradients import FUNCTIONS, gradient, sampled
from studies.runs import model_after
from tools.common import markdown, read_rows

ROWS = TABLES / "displacement.csv"
SEEDS = range(4, 10)  # base models
NAMES = ("grpo", "pos_only", "nthr", "nthr_eta0", "half", "random_sparing")
GROUPS = 100  # of a base model
ROLLOUTS = 300  # at most, to find them in
SEED = 1004  # of rollouts


def slopes(model, rollout: Rollout, p: int, advantages: torch.Tensor) -> torch.Tensor:
    """Of group p: (names,); advantages (names, P, G, T)."""
    logprobs = response_logprobs(model, rollout, [p])[0]  # (G, T)
    uphill = gradient(model, logprobs.sum(-1)[rollout.rewards[p] == 1].mean())
    # At ratio 1, up to the denominator.
    return torch.stack([gradient(model, (A[p] * logprobs).sum()) @ uphill for A in advantages])


def groups(model, task: str):
    """Yields GROUPS mixed groups, or as many as there are: rollout, index, advantages."""
    found = 0
    for rollout in sampled(model, task, SEED, ROLLOUTS):
        advantages = torch.stack([FUNCTIONS[name](rollout).A for name in NAMES])
        share = rollout.rewards.mean(1)
        for p in ((share > 0) & (share < 1)).nonzero()[:, 0].tolist():
            yield rollout, p, advantages
            found += 1
            if found == GROUPS:
                return


def measure(task: str, seed: int, out: str):
    """The rows of one base model."""
    model = model_after(task, "grpo", seed, out)
    rows = tqdm(groups(model, task), f"{task} {seed}", GROUPS)
    found = torch.stack([slopes(model, *group) for group in rows])
    displaced = (found < 0).float().mean(0).tolist()
    for name, share in zip(NAMES, displaced):
        head = {"task": task, "seed": seed, "variant": name, "commit": commit()}
        yield head | {"groups": len(found), "displaced": share}


def table(rows: list[dict]) -> str:
    """Means over base models with 95 % t intervals, and paired differences from grpo."""
    of_grpo = by_seed(rows, "displaced", variant="grpo")
    cells = []
    for name in NAMES:
        shares = by_seed(rows, "displaced", variant=name)
        beside = shown(interval([share - of_grpo[seed] for seed, share in shares.items()]))
        cells.append([f"`{name}`", percent(shares.values()), beside if name != "grpo" else ""])
    return markdown(["variant or control", "displaced, %", "minus `grpo`, points"], cells)


if __name__ == "__main__":
    complete(ROWS, measure, options(__doc__, SEEDS, ("add",)).parse_args())
    text = table(at(read_rows(ROWS), task="add"))
    publish(ROWS, f"# Does a step make correct responses less likely?\n\n{text}\n")
