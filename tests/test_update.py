"""The update by hand, with all its arguments; the forward passes that some variants need."""

import dataclasses
from copy import deepcopy
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import advantages
import grpo
from grpo import is_clipped, policy_loss, response_logprobs, token_weights, update
from tasks import SUM
from test_grpo import FAIL, MIXED, ONE, REAL, by_loops, close, ids, problem, random_rollout
from test_grpo import read_alone, sample, scripted, standardised, tiny_gpt

DEFAULTS = {"minibatches": 4, "aggregate": "token", "kl": 0.0, "max_grad_norm": 1.0}
DEFAULTS |= {"clip_low": 0.2, "clip_high": 0.2}
CASES = [
    {},
    {"minibatches": 3, "kl": 0.02, "clip_low": 0.1, "clip_high": 0.3},
    {"minibatches": 2, "aggregate": "response", "max_grad_norm": 0.05},
    {"minibatches": 9, "aggregate": "constant", "kl": 0.5, "max_grad_norm": 1e9},
]


def stale_rollout():
    """A model, a rollout whose policy was another, advantages; the third group has none."""
    model = tiny_gpt().double()
    rollout = sample(model)
    rollout.rewards = torch.tensor([MIXED, ONE, FAIL, REAL], dtype=torch.float64)
    rollout.max_length = 24
    # Lopsided changes, so that k3 has a sign.
    rollout.reference_logprobs = rollout.logprobs - 0.5 * torch.rand(rollout.mask.size())
    rollout.logprobs = rollout.logprobs + 0.8 * torch.rand(rollout.mask.size()) - 0.3
    return model, rollout, advantages.grpo(rollout)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_update_equals_its_steps_by_hand(options):
    """An argument that is not used, or used for another; gradients that pile up; a wrong mean."""
    how = DEFAULTS | options
    clip = how["clip_low"], how["clip_high"]
    model, rollout, A = stale_rollout()
    weights = token_weights(rollout.mask, how["aggregate"], 24)
    read = torch.tensor([0, 1, 2, 3] if how["kl"] else [0, 1, 3])
    parts = [part for part in read.tensor_split(how["minibatches"]) if len(part)]
    by_hand = tiny_gpt().double()
    expected = dict.fromkeys(("loss", "clip_fraction", "approx_kl", "grad_norm"), 0.0)
    for part in parts:
        w = torch.zeros_like(weights)  # here every group is read, but others do not count
        w[part] = weights[part]
        logprobs = response_logprobs(by_hand, rollout)
        loss = policy_loss(logprobs, rollout.logprobs, A, w, *clip)
        d = rollout.reference_logprobs - logprobs  # of KL(pi_theta || pi_ref)
        loss = loss + how["kl"] * (w * (d.exp() - d - 1)).sum()
        gradients = torch.autograd.grad(loss, by_hand.parameters())
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        for weight, gradient in zip(by_hand.parameters(), gradients):
            weight.data -= 0.01 * gradient * min(1.0, how["max_grad_norm"] / norm)
        stopped = is_clipped(logprobs, rollout.logprobs, A, *clip)
        d = logprobs - rollout.logprobs  # of KL(pi_old || pi_theta)
        expected["loss"] += loss.item()
        expected["clip_fraction"] += (w[stopped].sum() / weights.sum()).item()
        expected["approx_kl"] += ((w * (d.exp() - d - 1)).sum() / weights[read].sum()).item()
        expected["grad_norm"] += norm / len(parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = update(model, optimizer, rollout, A, **options)
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)
    close([*model.parameters()], [*by_hand.parameters()], 1e-7)


@pytest.mark.parametrize("kl, read", [(0.0, [[0, 1], [3]]), (0.1, [[0, 1], [2, 3]])])
def test_groups_without_advantage_are_read_only_for_the_kl_term(kl, read, monkeypatch):
    """Time spent on what has no gradient; a KL term that leaves groups out; an input changed."""
    model, rollout, A = stale_rollout()
    given = [x for x in [*vars(rollout).values(), A] if torch.is_tensor(x)]
    before = deepcopy(given)
    spy = Mock(wraps=response_logprobs)
    monkeypatch.setattr(grpo, "response_logprobs", spy)
    update(model, torch.optim.SGD(model.parameters()), rollout, A, minibatches=2, kl=kl)
    assert [call.args[2].tolist() for call in spy.call_args_list] == read
    close(given, before, 0)


def test_without_advantages_nothing_is_learned():
    """Adam's momentum moves the weights even where the gradient is 0."""
    model, rollout, A = stale_rollout()
    optimizer = torch.optim.Adam(model.parameters())
    update(model, optimizer, rollout, A)
    before = deepcopy(model.state_dict())
    metrics = update(model, optimizer, rollout, 0 * A)
    assert metrics == dict.fromkeys(metrics, 0.0)
    close(model.state_dict(), before, 0)


def test_answer_likelihood_equals_one_row_at_a_time():
    """Reasoning that ends elsewhere, or no end token, is the likelihood of something else."""
    problems = [problem(SUM, [3, 4], 2), problem(SUM, [9] * 8, 8)]
    responses = [["9,8#8$", "9,8$", "1#2#3$", "#1$", "$", "1_2#4$"]]
    responses += [["5,5#5#5$", "#$", "##$", "_$", "########", ",,,,,,,,"]]
    rollout = dataclasses.replace(scripted(problems, responses, T=8), temperature=0.5)
    model = tiny_gpt()
    L = grpo.answer_likelihood(model, rollout)
    for g, i in np.ndindex(2, 6):
        answer = ids("#" + problems[g].answer + "$")
        row = ids(problems[g].prompt + responses[g][i].removesuffix("$").split("#")[0]) + answer
        hidden = model(torch.tensor([row]))[0][0, -len(answer) - 1 : -1]
        p = model.unembed(hidden).softmax(-1)[range(len(answer)), answer]
        assert L[g, i].item() == pytest.approx(p.prod().item(), rel=1e-3)


def test_the_critic_judges_the_token_it_has_read():
    """A bias that is read before its token is only a baseline; without its minus a loss rises."""
    critic = tiny_gpt(outputs=1).double()
    rollout = sample(tiny_gpt().double())
    bias = grpo.token_bias(critic, rollout)
    assert (bias[~rollout.mask] == 0).all()
    for g, i, tokens, _, outputs in read_alone(critic, rollout):
        close(bias[g, i, : len(tokens)], outputs[1:, 0])
    x = random_rollout([MIXED, ONE, FAIL, REAL], poison=np.nan)
    terms = by_loops(x, lambda x, i, t: standardised(x.r, i) * x.token_bias[i][t])
    loss = advantages.critic_loss(x.token_bias, advantages.grpo(x), x.mask)
    close(loss, -terms.sum() / x.rewards.numel())  # a mean over responses, not over tokens
