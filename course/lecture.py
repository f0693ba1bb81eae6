"""What the lectures load, sample and compute with; they put the repository on sys.path first."""

from pathlib import Path

import torch

import train
from advantages import VARIANTS, grpo
from grpo import sample_rollout
from studies.common import TABLES, paired, read_rows
from studies.group import first_correct
from tasks import ADD
from tools.ask import asked


def load(task, name):
    """A model whose weights are kept in course/weights, as 16-bit numbers."""
    model = train.new_model(train.parse_arguments(["--task", task]))
    weights = torch.load(Path(__file__).parent / "weights" / f"{name}.pt", weights_only=True)
    model.load_state_dict({key: weight.float() for key, weight in weights.items()})
    return model


def numbers(x):
    """The numbers of a tensor as one line of text."""
    return "  ".join(f"{value:+.2f}" for value in x.flatten().tolist())


def generator(seed):
    """A source of random numbers that begins anew, so a cell draws the same whenever it runs."""
    return torch.Generator().manual_seed(seed)


def sample(model, task, problems, G=8):
    """A rollout. It is the same whenever it is sampled from the same model."""
    return sample_rollout(model, task, problems, G, generator=generator(0))


def one_of_eight(model, prompt):
    """A rollout of one group of eight responses to this prompt of add; the first is correct."""
    return first_correct(model, asked(ADD, prompt))


def most_mixed(rollout):
    """The number of the group whose share of correct responses is nearest to one half."""
    return int((rollout.rewards.mean(1) - 0.5).abs().argmin())


def print_pushes(rollout):
    """Prints how many characters of the reasoning grpo pushes up and down, and their sum.

    A character is correct if the solution has the same one in the same place.
    """
    A = grpo(rollout)  # (P, G)
    pushes = {"correct": [], "incorrect": []}
    for advantages, problem, texts in zip(A.tolist(), rollout.problems, rollout.texts):
        true = problem.solution.split("#")[0]
        for a, text in zip(advantages, texts):
            for x, y in zip(text.split("#")[0], true):
                pushes["correct" if x == y else "incorrect"].append(a)
    print(f"{'characters':14}{'pushed up':>11}{'pushed down':>14}{'all pushes':>13}")
    for name, found in pushes.items():
        up, down = (sum(a * sign > 0 for a in found) for sign in (1, -1))
        print(f"{name:14}{up:11,}{down:14,}{sum(found):+13.0f}")


def print_advantages(rollout, p, L, variants):
    """Prints the responses of group p, the largest L (P, G) first, with their advantages."""
    columns = [VARIANTS[name](rollout)[p] for name in variants]
    print(f"{'response':17}{'L':>7}", *(f"{name:>10}" for name in variants))
    for i in L[p].argsort(descending=True):
        print(f"{rollout.texts[p][i]:17}{L[p, i]:7.3f}", *(f"{A[i]:+10.2f}" for A in columns))


# ---- Two tokens, each a or b; only ba has a reward
RESPONSES = ["aa", "ab", "ba", "bb"]  # as numbers: 0, 1, 2, 3
EVERY = torch.arange(4)
REWARDS = torch.tensor([0.0, 0.0, 1.0, 0.0])
BEGIN = torch.tensor([[0.7, 0.3], [0.6, 0.4], [0.2, 0.8]]).log()  # first; after a; after b


def ln_pi_tokens(weights, y):
    """ln pi of both tokens (N, 2) of responses y (N,), from the logits (3, 2)."""
    ln_pi = weights.log_softmax(1)
    return torch.stack([ln_pi[0, y // 2], ln_pi[1 + y // 2, y % 2]], dim=1)


def climb(steps, rate=0.5):
    """The logits along steps in the direction of grad J: steps + 1 tensors (3, 2)."""
    path = [BEGIN]
    for _ in range(steps):
        z = path[-1].clone().requires_grad_()
        J = ln_pi_tokens(z, EVERY).sum(1).exp() @ REWARDS
        path.append((z + rate * torch.autograd.grad(J, z)[0]).detach())
    return path


# ---- The bandit: pi of three arms, of which only the first has a reward
PI = torch.tensor([0.2, 0.3, 0.5])


def ascend(r, baseline=0.0, pulls=None, seed=0):
    """pi along fifty steps (51, 3). pulls: how many a step; None: the exact gradient."""
    z = PI.log()
    rng = generator(seed)
    path = [PI]
    for _ in range(50):
        p = z.softmax(0)
        share = p  # of the pulls; a mean over pulls is a sum over arms
        if pulls:
            arms = torch.multinomial(p, pulls, replacement=True, generator=rng)
            share = torch.bincount(arms, minlength=3) / pulls
        z = z + 0.5 * (share * (r - baseline)) @ (torch.eye(3) - p)
        path.append(z.softmax(0))
    return torch.stack(path)


# ---- The rows of a study
def differences(task, ours, theirs):
    """ours minus theirs in points of average accuracy, at one learning rate: (twelve,)."""
    rows = [row for row in read_rows(TABLES / "compare.csv") if row["seed"] > 3]
    both = [{"task": task, "variant": name, "lr": 3e-4, "flags": ""} for name in (ours, theirs)]
    a, b = paired(rows, "mean_sampled", *both)
    return 100 * (a - b)
