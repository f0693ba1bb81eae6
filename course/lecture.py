"""What the two lectures load, sample and compute with. figures.py draws for them.

A notebook puts the repository on sys.path before it imports these two files.
"""

import torch

from grpo import Rollout, response_logprobs, sample_rollout
from studies.gradients import gradient
from studies.group import load  # noqa: F401 (the notebooks load models with it)


def numbers(x):
    """The numbers of a tensor as one line of text."""
    return "  ".join(f"{value:+.2f}" for value in x.flatten().tolist())


def generator(seed):
    """A source of random numbers that begins anew, so a cell draws the same whenever it runs."""
    return torch.Generator().manual_seed(seed)


def sample(model, task, problems, G=8, **options):
    """A rollout. It is the same whenever it is sampled from the same model."""
    return sample_rollout(model, task, problems, G, generator=generator(0), **options)


def most_mixed(rollout):
    """The number of the group whose share of correct responses is nearest to one half."""
    return int((rollout.rewards.mean(1) - 0.5).abs().argmin())


def characters(rollout):
    """Which characters of the reasoning are the solution's, and which are not: masks (P, G, T)."""
    correct = torch.zeros_like(rollout.mask)
    incorrect = torch.zeros_like(rollout.mask)
    for p, (problem, texts) in enumerate(zip(rollout.problems, rollout.texts)):
        true = problem.solution.split("#")[0]
        for i, text in enumerate(texts):
            for t, (x, y) in enumerate(zip(text.split("#")[0], true)):
                correct[p, i, t] = x == y
                incorrect[p, i, t] = x != y
    return correct, incorrect


def two_tokens(first, after_b):
    """A rollout of ba, which is correct, and bb; first, after_b: probabilities of a and of b.

    h says which pair of logits a token used: (1, 0) for the first token, (0, 1) for the second.
    """
    return Rollout(
        tokens=torch.tensor([[[1, 0], [1, 1]]]),
        mask=torch.ones(1, 2, 2, dtype=torch.bool),
        rewards=torch.tensor([[1.0, 0.0]]),
        logprobs=None,
        probs=torch.tensor([first, after_b]).expand(1, 2, 2, 2),
        hidden=torch.eye(2).expand(1, 2, 2, 2),
    )


def squared_lengths(model, rollout, p):
    """The squared length of the gradient of ln pi of each response of group p: (G,)."""
    logprobs = response_logprobs(model, rollout, [p])[0].sum(-1)  # (G,)
    return torch.stack([gradient(model, logprob).square().sum() for logprob in logprobs])
