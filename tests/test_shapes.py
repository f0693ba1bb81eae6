"""Variants and loss on groups of random shapes, from one response of one token, some empty."""

import copy
import math

import numpy as np
import pytest
import torch

from advantages import VARIANTS
from grpo import Rollout

FIELDS = "tokens mask rewards logprobs probs hidden token_bias answer_likelihood".split()
POISON = [(math.nan, -1), (math.inf, 10**6), (-math.inf, 3)]  # a number and a token id


def ragged(seed: int, poison: tuple | None = None, V: int = 7, D: int = 5) -> Rollout:
    """P groups of G responses of at most T tokens; every fifth seed has an empty response a group.

    Log-probabilities reach down to -1e4. Every third seed has rewards other than 0 and 1.
    """
    rng = np.random.default_rng(seed)
    P, G, T = rng.integers(1, [5, 7, 9]).tolist()
    lengths = rng.integers(1, T + 1, (P, G))
    if seed % 5 == 4:
        lengths[:, 0] = 0
    mask = torch.arange(T) < torch.tensor(lengths)[..., None]
    rewards = rng.integers(2, size=(P, G))
    if seed % 3 == 0:
        rewards = rng.normal(size=(P, G)).round(1) * 10
    rollout = Rollout(
        tokens=torch.tensor(rng.integers(V, size=(P, G, T))),
        mask=mask,
        rewards=torch.tensor(rewards, dtype=torch.float64),
        logprobs=torch.tensor(-(10 ** rng.uniform(-3, 4, (P, G, T)))),
        probs=torch.tensor(rng.dirichlet([0.5] * V, (P, G, T))),
        hidden=torch.tensor(rng.normal(size=(P, G, T, D))),
        token_bias=torch.tensor(rng.normal(size=(P, G, T))),
        answer_likelihood=torch.tensor(rng.uniform(size=(P, G))),
    )
    if poison is not None:
        number, token = poison
        for name in ("logprobs", "probs", "hidden", "token_bias"):
            getattr(rollout, name)[~mask] = number
        rollout.tokens[~mask] = token
    return rollout


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_on_random_shapes(name):
    """A shape, reward or probability that no rollout made by hand has; a changed input."""
    variant = VARIANTS[name]
    for seed in range(40):
        clean = ragged(seed)
        poisoned = ragged(seed, POISON[seed % 3])
        before = copy.deepcopy(poisoned)
        A = variant(poisoned)
        assert A.isfinite().all(), seed
        assert A.dtype == torch.float64
        assert (A[~clean.mask] == 0).all(), seed
        assert torch.equal(A, variant(clean)), seed
        for field in FIELDS:
            pair = (getattr(x, field) for x in (poisoned, before))
            torch.testing.assert_close(*pair, rtol=0, atol=0, equal_nan=True)
