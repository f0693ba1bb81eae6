"""Without these tests a wrong solution of a part of the assignment could pass."""

from types import SimpleNamespace
from unittest.mock import ANY

import pytest
import torch
from test_core import close

import advantages
import test_grpo
from test_grpo import CASES, FAIL, FORMULAS, MIXED, ONE, apply, by_loops, random_rollout


@pytest.mark.parametrize("c", [0.0, 0.25, 2.0])
def test_negative_pushes_with_its_argument(c):
    """The argument c of `negative` is ignored, or it also changes a group that is not all-fail."""
    x = random_rollout([FAIL, MIXED, ONE])
    expected = torch.cat([torch.full((1, 4), -c), advantages.grpo(x)[1:]])
    close(advantages.negative(x, c), expected)


def test_verifree_pushes_nothing_where_the_mean_is_above_0_999():
    """Above a mean of 0.999 the advantages of `verifree` are not 0. The limit is lower or higher,
    or the two groups of the test decide together.
    """
    x = random_rollout([[0, 0], [0, 0]], T=2)
    x.mask[:] = True
    x.end[:] = torch.tensor([False, True])
    x.logprobs[..., 1] = torch.tensor([[0.9998, 0.9984], [0.9999, 0.9977]]).log()
    loops = by_loops(x, FORMULAS["verifree"])
    for form, A in (("loops", loops), ("tensors", apply("verifree", x).A)):
        means = "the means of L are 0.9991 and 0.9988"
        assert not A[0].any(), f"{form}: {means}, and the first gets {A[0].flatten().tolist()}"
        assert A[1].all(), f"{form}: {means}, and the second gets {A[1].flatten().tolist()}"


def steps_only(options, monkeypatch):
    """Compares an update with its steps by hand, except the numbers that it returns."""
    lenient = SimpleNamespace(MonkeyPatch=pytest.MonkeyPatch, approx=lambda *given, **more: ANY)
    monkeypatch.setattr(test_grpo, "pytest", lenient)
    test_grpo.test_update_equals_its_steps_by_hand(options)


NO_LIMIT = {"max_grad_norm": 1e9}  # a limit hides weights of one mini-batch
WITHOUT = [*(options for options in CASES if "kl" not in options), NO_LIMIT]


@pytest.mark.parametrize("options", WITHOUT, ids=str)
def test_update_without_a_kl_term_makes_these_steps(options, monkeypatch):
    """The update is wrong without the KL term: the weights of its tokens, the groups that it reads,
    the policy that sampled, the sign, the clip, or the norm limit.
    """
    steps_only(options, monkeypatch)


@pytest.mark.parametrize("options", [x for x in CASES if "kl" in x], ids=str)
def test_update_with_a_kl_term_makes_these_steps(options, monkeypatch):
    """The KL term is wrong: its two policies, its weights, or the groups that are read with it."""
    steps_only(options, monkeypatch)


@pytest.mark.parametrize("options", WITHOUT, ids=str)
def test_update_returns_these_numbers(options):
    """The metrics are wrong: they are divided by other weights, a true answer counts, or the loss
    is that of one mini-batch. If the steps are wrong, so are the metrics.
    """
    test_grpo.test_update_equals_its_steps_by_hand(options)
