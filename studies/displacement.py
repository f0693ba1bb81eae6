"""Does a step make correct responses less likely? python -m studies.displacement [--seeds 4 5]

Pushing incorrect responses down can drag correct ones along. This is called lazy likelihood
displacement (arXiv 2505.18830). We take the weights at the end of a run of grpo on `add` and 100
mixed groups for each base model. For each group and variant, g is the direction of an update on
only this group: minus the gradient of its loss at ratio 1. N+ is the number of its correct
responses. A small step along g changes their mean log-likelihood (Eq. 2 there) in proportion to

    slope = <g, grad (1/N+) sum_{i correct} ln pi_theta(y_i|x)>

We call a group displaced if its slope is negative. This needs no learning rate.

The table shows the share of displaced groups, and that share minus the one of grpo. It is made from
results/displacement.csv, which has one row for each base seed and variant or control. What has a
row is not measured again, and a run of grpo that is missing is made. The numbers are means over
base models with 95 % t intervals.
"""

from itertools import islice

import torch

from advantages import with_advantages
from grpo import Rollout, response_logprobs
from studies.common import TABLES, study
from studies.gradients import FUNCTIONS, gradient, sampled
from studies.protocol import SIX
from studies.runs import model_after

NAMES = ("grpo", "pos_only", "nthr", "nthr_eta0", "half", "random_sparing")  # grpo is the first
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
    """Yields the mixed groups of some rollouts: rollout, index, advantages."""
    for rollout in sampled(model, task, SEED, ROLLOUTS):
        trained = [with_advantages(rollout, FUNCTIONS[name]) for name in NAMES]
        advantages = torch.stack([x.A for x in trained])
        share = rollout.rewards.mean(1)
        for p in ((share > 0) & (share < 1)).nonzero()[:, 0].tolist():
            yield rollout, p, advantages


def measure(task: str, seed: int, out: str, names: list[str]) -> list[dict]:
    """The rows of one base model."""
    model = model_after(task, "grpo", seed, out)
    of_groups = [slopes(model, *group) for group in islice(groups(model, task), GROUPS)]
    shares = (torch.stack(of_groups) < 0).double().mean(0)  # (NAMES,)
    columns = [{"displaced": x, "minus_grpo": x - shares[0].item()} for x in shares.tolist()]
    about = {"task": task, "seed": seed}
    rows = [about | {"variant": name} | row for name, row in zip(NAMES, columns)]
    return [row for row in rows if row["variant"] in names]


if __name__ == "__main__":
    study(__doc__, TABLES / "displacement.csv", measure, NAMES, ("add",), SIX)
