"""Does a step make correct responses less likely? python -m studies.displacement [--seeds 1 2]

Lazy likelihood displacement, arXiv 2505.18830: pushing incorrect responses down can drag correct
ones along. Along grpo's run, at steps 0, 100, 200 and 400 (studies.runs keeps the weights),
100 mixed groups each. For each group and arm, anew from these weights: g is the direction of an
update on this group alone, minus the gradient of its loss; N+ is the number of correct responses i;

    slope      = <g, grad (1/N+) sum_{i correct} ln pi_theta(y_i|x)>
    Delta(x)   = (1/N+) sum_{i correct} [ln pi_theta'(y_i|x) - ln pi_theta(y_i|x)]          Eq. 2

with theta' = theta + rate g, plain SGD. A group is displaced if slope, or Delta, is negative. The
slope is Delta to first order: no rate has to be chosen.

Displacement depends on p, the share of correct responses, which grows during the run. So at the
other steps the groups are chosen such that as many have each p as at step 400 of the same run. If
300 rollouts have too few of a p, those that there are get more weight; a p without any is left out.

docs/tables/displacement.csv has a row a task, base seed, step, arm and number of correct responses;
docs/tables/displacement.md is made from it alone.
"""

from collections import Counter

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from tqdm import tqdm

from grpo import Rollout, response_logprobs
from studies.common import SEEDS, TABLES, at, commit, complete, options
from studies.common import percent, publish, settings
from studies.gradients import FUNCTIONS, gradient, sampled
from studies.runs import KEPT, kept
from tools.common import markdown, read_rows

ROWS = TABLES / "displacement.csv"
ARMS = ("grpo", "pos_only", "nthr", "nthr_eta0", "half", "random_sparing")
RATES = (1e-4, 1e-5)  # of SGD
GROUPS = 100  # of a base model and step
ROLLOUTS = 300  # at most, to find them in
SEED = 1004  # of rollouts
SHARES = ("slope", *(f"SGD {rate:g}" for rate in RATES))


def of_correct(model, rollout: Rollout, p: int) -> torch.Tensor:
    """The mean of ln pi(y_i|x) over the correct responses of group p, with gradient."""
    return response_logprobs(model, rollout, [p]).sum(-1)[0][rollout.rewards[p] == 1].mean()


def moved(model, rollout: Rollout, p: int, advantages: torch.Tensor) -> list[torch.Tensor]:
    """Of group p and advantages (arms, P, G, T): slope, then Delta for each rate, (arms,) each."""
    logprobs = response_logprobs(model, rollout, [p])[0]
    losses = (advantages[:, p] * logprobs).sum((1, 2)) / rollout.mask[p].sum()  # (arms,)
    before = of_correct(model, rollout, p)
    g = torch.stack([gradient(model, loss) for loss in losses])  # (arms, N)
    found = [g @ gradient(model, before)]
    theta = parameters_to_vector(model.parameters()).detach().clone()
    for rate in RATES:
        after = []
        for direction in g:
            vector_to_parameters(theta + rate * direction, model.parameters())
            after.append(of_correct(model, rollout, p).detach())
        found.append(torch.stack(after) - before.detach())
    vector_to_parameters(theta, model.parameters())
    return found


def groups(model, task: str, wanted: Counter | None = None):
    """Yields GROUPS mixed groups: their number of correct responses, rollout, index, advantages.

    wanted: how many of them with each number of correct responses; None: as they come.
    """
    left = Counter(wanted or {"of any number": GROUPS})
    for rollout in sampled(model, task, SEED, ROLLOUTS):
        advantages = torch.stack([FUNCTIONS[arm](rollout).A for arm in ARMS])  # (arms, P, G, T)
        for p, n in enumerate(rollout.rewards.sum(1).int().tolist()):
            kind = n if wanted else "of any number"
            if 0 < n < rollout.rewards.size(1) and left[kind] > 0:
                left[kind] -= 1
                yield n, rollout, p, advantages
        if not any(left.values()):
            return


def measure(task: str, seed: int, out: str):
    """The rows of one base model: shares of groups that are displaced."""
    late = None  # how many groups of step 400 have each number of correct responses
    for step in reversed(KEPT):
        model = kept(settings(task, seed, out), step)
        found = {}  # number of correct responses -> of each such group a tensor (1 + rates, arms)
        for n, *group in tqdm(groups(model, task, late), f"{task} {seed} {step}", GROUPS):
            found.setdefault(n, []).append(torch.stack(moved(model, *group)))
        late = late or Counter({n: len(values) for n, values in found.items()})
        head = {"task": task, "seed": seed, "step": step, "commit": commit()}
        for n, values in sorted(found.items()):
            displaced = (torch.stack(values) < 0).float().mean(0).T.tolist()  # arms x (1 + rates)
            for arm, numbers in zip(ARMS, displaced):
                row = {"arm": arm, "correct": n, "groups": len(values)}
                yield head | row | dict(zip(SHARES, numbers))


# ---- The table, from the CSV alone
def shares(task: str, arm: str, step: int, column="slope", least=1) -> dict[int, float]:
    """seed -> share of displaced groups, of those with at least so many correct responses."""
    found = {}
    for seed in SEEDS:
        rows = at(read_rows(ROWS), task=task, arm=arm, seed=seed)
        late = {row["correct"]: int(row["groups"]) for row in at(rows, step=400)}
        now = [row for row in at(rows, step=step) if int(row["correct"]) >= least]
        if now:
            weights = [late[row["correct"]] for row in now]
            found[seed] = np.average([float(row[column]) for row in now], weights=weights)
    return found


def table(task: str) -> str:
    """Means over base models in %, with 95 % intervals."""
    columns = {f"step {step}": {"step": step} for step in KEPT}
    columns |= {f"step 400, {rate}": {"step": 400, "column": rate} for rate in SHARES[1:]}
    columns["step 400, more than half correct"] = {"step": 400, "least": 5}
    cells = []
    for arm in ARMS:
        texts = [percent(shares(task, arm, **column).values()) for column in columns.values()]
        cells.append([f"`{arm}`", *texts])
    return markdown(["displaced, %", *columns], cells)


if __name__ == "__main__":
    complete(ROWS, measure, options(__doc__, SEEDS, ("add", "mul")).parse_args())
    tables = [f"## {task}\n\n{table(task)}\n" for task in ("add", "mul")]
    publish(ROWS, "\n".join(["# Does a step make correct responses less likely?\n", *tables]))
