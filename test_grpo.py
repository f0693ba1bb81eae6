"""The tests: pytest test_grpo.py

Every formula is written twice: vectorised in the core, and here as the literal sums of its paper,
in plain Python loops over groups, responses and tokens. Both get the same random groups in float64
and must agree. The other tests each name the bug that they guard against.
"""

import contextlib
import copy
import csv
import dataclasses
import errno
import io
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import advantages
import grpo
import model as model_module
import tasks
import train
from advantages import LOSS, VARIANTS
from grpo import policy_loss, response_logprobs, sample_rollout, update
from model import GPT, GPTConfig
from studies import allfail, compare, credit, speed
from studies import likelihood as likelihood_study
from tasks import TASKS, Problem

torch.set_num_threads(1)  # the tensors are tiny; more threads only wait for each other
TOKENIZER = tasks.build_tokenizer()
V, PAD, EOS = TOKENIZER.get_vocab_size(), *map(TOKENIZER.token_to_id, (tasks.PAD, tasks.EOS))
SUM = TASKS["sum"]
TOKEN_FIELDS = ("tokens", "mask", "logprobs", "probs", "hidden", "token_bias")  # (P, G, T, ...)
FIELDS = TOKEN_FIELDS + ("rewards", "answer_likelihood")  # (P, G, ...)
MIXED, ONE, FAIL, PASS = [1, 0, 0, 1], [0, 0, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]  # groups of four
REAL = [0.25, 1.0, 0.7, 0.0]
EPS = 1e-6


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=0, atol=tolerance)


# ---------------------------------------------------------------- rollouts made of random numbers


def random_rollout(seed, rewards, T=5, poison=None, dtype=torch.float64) -> grpo.Rollout:
    """Random ragged groups with these rewards (P, G). The last response of each group fills T.

    poison is what the padding holds: (any number, any token id).
    """
    rewards, rng = torch.tensor(rewards, dtype=dtype), torch.Generator().manual_seed(seed)
    (P, G), V, D = rewards.size(), 7, 6

    def normal(*size):
        return torch.randn(*size, generator=rng, dtype=torch.float64).to(dtype)

    lengths = torch.randint(1, T + 1, (P, G), generator=rng)
    lengths[:, -1] = T
    mask = torch.arange(T) < lengths[..., None]
    tokens = torch.randint(V, (P, G, T), generator=rng)
    probs = (2 * normal(P, G, T, V)).softmax(-1)
    rollout = grpo.Rollout(
        tokens=tokens,
        mask=mask,
        rewards=rewards,
        logprobs=probs.gather(-1, tokens[..., None])[..., 0].log(),
        probs=probs,
        hidden=normal(P, G, T, D),
        answer_likelihood=torch.rand(P, G, generator=rng, dtype=torch.float64).to(dtype),
        token_bias=normal(P, G, T),
    )
    if poison is not None:
        number, token = poison
        for name in ("logprobs", "probs", "hidden", "token_bias"):
            getattr(rollout, name)[~mask] = number
        tokens[~mask] = token
    return rollout


def change(rollout, names, function):
    """A copy of the rollout with the function applied to these fields."""
    return dataclasses.replace(rollout, **{n: function(getattr(rollout, n)) for n in names})


# ------------------------------------------------ the formulas again, as sums over lists of numbers


def groups_of(rollout):
    """The groups as lists, one entry a response and, in it, one a token; without any padding."""
    for g, lengths in enumerate(rollout.mask.sum(-1).tolist()):
        x = SimpleNamespace(r=rollout.rewards[g].tolist(), G=len(lengths))
        x.L = rollout.answer_likelihood[g].tolist()
        for name in TOKEN_FIELDS:
            rows = getattr(rollout, name)[g]
            setattr(x, name, [row[:n].tolist() for row, n in zip(rows, lengths)])
        yield x


def mean(values):
    return sum(values) / len(values)


def standardised(r, i):
    """(r_i - mu) / (sigma + eps); sigma divides by G; 0 if all rewards are equal."""
    mu = mean(r)
    sigma = math.sqrt(mean([(r_j - mu) ** 2 for r_j in r]))
    return 0.0 if max(r) == min(r) else (r[i] - mu) / (sigma + EPS)


def grpo_at(x, i, t):
    return standardised(x.r, i)


def dr_grpo_at(x, i, t):
    return x.r[i] - mean(x.r)


def rloo_at(x, i, t):
    return x.r[i] - mean([x.r[j] for j in range(x.G) if j != i])


def pos_only_at(x, i, t):
    return max(grpo_at(x, i, t), 0.0)


def critic_at(x, i, t):
    return grpo_at(x, i, t) + x.token_bias[i][t]


def compensation_at(x, i, t):
    A, pi = grpo_at(x, i, t), [math.exp(logp) for logp in x.logprobs[i]]
    return A * (2 - pi[t] / max(pi)) if A > 0 else A


def negative_at(x, i, t, c=1.0):
    return -c if all(r == 0 for r in x.r) else grpo_at(x, i, t)


def ngrpo_at(x, i, t):
    return standardised(x.r + [1.0], i)


def likelihood_at(x, i, t):
    return standardised(x.L if all(r == 0 for r in x.r) else x.r, i)


def dot(a, b):
    return sum(a_n * b_n for a_n, b_n in zip(a, b))


def score_at(x, j, k):
    """s_{j,k} = sum_{i correct} sum_m <g_{i,m}, g_{j,k}> <h_{i,m}, h_{j,k}>   (Eq. 7)"""

    def g(i, m):
        return [(v == x.tokens[i][m]) - p for v, p in enumerate(x.probs[i][m])]

    s = 0.0
    for i in range(x.G):
        if x.r[i] == 1:
            for m in range(len(x.tokens[i])):
                s += dot(g(i, m), g(j, k)) * dot(x.hidden[i][m], x.hidden[j][k])
    return s


def nthr_at(x, i, t, beta=1.0, eta=None):
    A, correct = grpo_at(x, i, t), [j for j in range(x.G) if x.r[j] == 1]
    if i in correct or not correct:
        return A
    sbar = [mean([score_at(x, j, k) for k in range(len(x.tokens[j]))]) for j in correct]
    tau = -math.inf if beta == -math.inf else beta * min(sbar)  # Eq. 8
    if eta is None:
        eta = 2 * abs(len(correct) / x.G - 0.5)
    return eta * A if score_at(x, i, t) > tau else A


ORACLES = {name: globals()[f"{name}_at"] for name in VARIANTS if name != "culling"}
ORACLES["culling"] = grpo_at


def by_loops(rollout, formula):
    """formula(group, i, t) at every token, 0 at the padding, as a tensor (P, G, T)."""
    out = torch.zeros(rollout.mask.size(), dtype=torch.float64)
    for g, x in enumerate(groups_of(rollout)):
        for i in range(x.G):
            for t in range(len(x.tokens[i])):
                out[g, i, t] = formula(x, i, t)
    return out


def some_rollouts(**options):
    """Mixed, all-fail, all-pass, one correct, real-valued; one prompt; one token; one response."""
    yield random_rollout(0, [MIXED, FAIL, PASS, ONE, REAL], **options)
    yield random_rollout(1, [ONE], T=1, **options)
    yield random_rollout(2, [[0, 1, 0, 0, 0, 0, 1, 0]], T=3, **options)
    yield random_rollout(3, [[1, 0], [0, 0], [0.1, 0.1]], T=4, **options)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_its_formula(name):
    """Guards against statistics over the batch, another deviation, a changed sign or token."""
    for rollout in some_rollouts():
        close(VARIANTS[name](rollout), by_loops(rollout, ORACLES[name]))


@pytest.mark.parametrize("beta", [0.0, 0.1, 1.0, 2.0, -math.inf])
@pytest.mark.parametrize("eta", [None, 0.0, 0.3, 1.0])
def test_nthr_equals_algorithm_1(beta, eta):
    """Guards against a wrong threshold, a wrong selection, and sbar summed instead of averaged."""
    changed = 0
    for seed in range(3):
        rollout = random_rollout(seed, [MIXED, ONE, FAIL, PASS, [1, 1, 0, 1]], T=4)
        A = advantages.nthr(rollout, beta=beta, eta=eta)
        close(A, by_loops(rollout, lambda x, i, t: nthr_at(x, i, t, beta, eta)))
        changed += (A != advantages.grpo(rollout)).sum().item()
    assert changed > 0 or eta == 1


def test_nthr_scores_equal_the_double_sum():
    """Guards against a score without the hidden vectors, or summed over incorrect responses too."""
    for rollout in some_rollouts():
        rollout.hidden.requires_grad_()
        scores, s = advantages.nthr_scores(rollout), by_loops(rollout, score_at)
        assert not scores.requires_grad
        close(scores, s, 1e-9 * float(s.abs().max()) + 1e-12)


def test_nthr_scores_in_float32_on_a_sampled_rollout():
    """Guards against scores from other vectors than those that sampling used (Eq. 7 to 1e-4)."""
    rollout = sample(tiny_gpt(), levels=(3, 6), G=4)
    rollout.rewards = torch.tensor([MIXED, ONE], dtype=torch.float32)
    rollout.answer_likelihood, rollout.token_bias = rollout.rewards, rollout.logprobs
    s = by_loops(rollout, score_at).float()
    close(advantages.nthr_scores(rollout), s, 1e-4 * float(s.abs().max()))


def test_critic_loss_equals_its_formula():
    """Guards against a mean over tokens, a sum over responses, padding inside, a lost minus."""
    for rollout in some_rollouts():
        terms = []
        for x in groups_of(rollout):
            for i in range(x.G):
                terms.append(standardised(x.r, i) * sum(x.token_bias[i]))
        bias = rollout.token_bias.masked_fill(~rollout.mask, math.nan).requires_grad_()
        loss = advantages.critic_loss(bias, advantages.grpo(rollout), rollout.mask)
        close(loss.detach(), torch.tensor(-mean(terms), dtype=torch.float64))
        loss.backward()
        assert bias.grad.isfinite().all() and (bias.grad[~rollout.mask] == 0).all()


def test_solved_means_every_response_is_correct():
    """Guards against culling a prompt that is only sometimes solved, or has rewards below 1."""
    rollout = random_rollout(0, [MIXED, FAIL, PASS, ONE, REAL, [0.5] * 4])
    assert advantages.solved(rollout).tolist() == [False, False, True, False, False, False]


# ------------------------------------------------------------- what every variant has in common


@pytest.mark.parametrize("poison", [(math.nan, -1), (math.inf, 10**6), (-math.inf, 3), (1e30, -9)])
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_never_sees_the_padding(name, poison):
    """Guards against NaN or infinity in the padding reaching a result (0 * NaN is NaN)."""
    for clean, poisoned in zip(some_rollouts(), some_rollouts(poison=poison)):
        A = VARIANTS[name](poisoned)
        assert A.isfinite().all() and (A[~clean.mask] == 0).all()
        assert torch.equal(A, VARIANTS[name](clean))


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_the_same_beside_a_longer_neighbour(name):
    """Guards against statistics over all prompts, and against a length that depends on others."""
    rollout = random_rollout(5, [MIXED, FAIL, ONE], poison=(math.nan, -1))
    longer = random_rollout(6, [[1, 1, 0, 0]], T=9)

    def widen(x):
        return torch.cat([x, x.new_full((*x.shape[:2], 4, *x.shape[3:]), 10**6)], 2)

    wide = change(rollout, TOKEN_FIELDS, widen)
    wide.mask[:, :, 5:] = False
    both = change(wide, FIELDS, lambda x: x)
    for field in FIELDS:
        setattr(both, field, torch.cat([getattr(wide, field), getattr(longer, field)]))
    close(VARIANTS[name](both)[:3, :, :5], VARIANTS[name](rollout), 1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_does_not_depend_on_order(name):
    """Guards against a result that knows the place of a prompt or of a response."""
    rollout = random_rollout(7, [MIXED, FAIL, ONE, PASS, REAL])
    p, i = torch.tensor([3, 0, 4, 2, 1]), torch.tensor([2, 0, 3, 1])
    moved = change(rollout, FIELDS, lambda x: x[p][:, i])
    close(VARIANTS[name](moved), VARIANTS[name](rollout)[p][:, i], 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", VARIANTS)
def test_variant_leaves_its_input_alone(name, dtype):
    """Guards against a changed input, a gradient through an advantage, a changed dtype."""
    rollout = random_rollout(8, [MIXED, FAIL, PASS, ONE], dtype=dtype, poison=(math.nan, -1))
    before = copy.deepcopy(rollout)
    for field in ("rewards", "logprobs", "probs", "hidden", "answer_likelihood", "token_bias"):
        getattr(rollout, field).requires_grad_()
    A = VARIANTS[name](rollout)
    assert A.dtype == dtype and A.size() == (4, 4, 5) and not A.requires_grad
    for field in FIELDS:
        now, old = getattr(rollout, field), getattr(before, field)
        torch.testing.assert_close(now.detach(), old, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_finite_at_any_log_probability(name):
    """Guards against exp() underflow: 0 / 0 where all probabilities of a response are 0."""
    for logp in (-1e4, -1e3, 0.0):
        rollout = random_rollout(9, [MIXED, FAIL, PASS, ONE])
        rollout.logprobs = rollout.logprobs + logp
        assert VARIANTS[name](rollout).isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_rewards_give_exactly_zero(name):
    """Guards against rounding blown up by 1 / eps, and against a lone response with an advantage.

    Departures by design: negative, ngrpo and likelihood in all-fail groups, critic everywhere.
    ngrpo's virtual reward of 1 makes other equal rewards unequal.
    """
    for r in (0.0, 0.1, 0.7, 1.0):
        for G in (1, 3):
            rewards = [[r] * G, [0.0] + [1.0] * (G - 1)]  # the second group is not in question
            rollout = change(random_rollout(0, rewards), ["token_bias"], torch.zeros_like)
            departs = name == "negative" and r == 0 or name == "ngrpo" and r < 1
            departs |= name == "likelihood" and r == 0 and G > 1
            assert bool((VARIANTS[name](rollout)[0] != 0).any()) == departs


@pytest.mark.parametrize(
    "name, field", [("critic", "token_bias"), ("likelihood", "answer_likelihood")]
)
def test_a_missing_field_is_named(name, field):
    """Guards against an unclear error far from its cause."""
    with pytest.raises(ValueError, match=field):
        VARIANTS[name](dataclasses.replace(random_rollout(0, [MIXED]), **{field: None}))


def test_tables():
    """Guards against a variant that is missing, or trained with another's clip or aggregation."""
    names = "grpo dr_grpo rloo pos_only critic compensation culling negative ngrpo likelihood nthr"
    assert " ".join(VARIANTS) == names
    clip = {"clip_low": 0.16, "clip_high": 0.24}
    assert LOSS == {"ngrpo": clip, "dr_grpo": {"aggregate": "constant"}}


# -------------------------------------------------------------- stated numbers, and limits of grpo


@pytest.mark.parametrize("correct", range(1, 8))
def test_grpo_gives_the_numbers_of_lemma_4_2(correct):
    """Guards against the sample deviation: dividing by G - 1 is a factor 1.07 at G = 8."""
    p, rollout = correct / 8, random_rollout(0, [[1] * correct + [0] * (8 - correct)])
    A = VARIANTS["grpo"](rollout)[0, :, 0]
    close(A[:correct], torch.full((correct,), math.sqrt((1 - p) / p)).double(), 1e-5)
    close(A[correct:], torch.full((8 - correct,), -math.sqrt(p / (1 - p))).double(), 1e-5)


def test_ngrpo_gives_the_stated_numbers():
    """Guards against the authors' sample deviation, which would give +1.764 and -0.504."""
    rollout = random_rollout(0, [[1] + [0] * 7, [0] * 8, [1] * 8])
    A = VARIANTS["ngrpo"](rollout)[:, :, 0]
    assert A[0].tolist() == pytest.approx([1.871] + [-0.535] * 7, abs=5e-4)
    assert A[1].tolist() == pytest.approx([-1 / math.sqrt(8)] * 8, abs=1e-5)
    assert (A[2] == 0).all()


def test_negative_gives_minus_c_on_all_fail_groups_only():
    """Guards against punishing mixed groups, or dividing c by a deviation of 0."""
    rollout = random_rollout(0, [MIXED, FAIL, PASS])
    A, base = advantages.negative(rollout, c=0.25), advantages.grpo(rollout)
    assert (A[1][rollout.mask[1]] == -0.25).all()
    assert torch.equal(A[[0, 2]], base[[0, 2]])
    assert (advantages.negative(rollout)[1][rollout.mask[1]] == -1).all()


def test_compensation_factor_is_between_1_and_2():
    """Guards against pi_max over the group, or over the padding: the factor would leave [1, 2]."""
    for shift in (0.0, -1e4):
        rollout = random_rollout(0, [MIXED, ONE], T=8, poison=(0.0, 0))
        rollout.logprobs[rollout.mask] += shift
        A, base = VARIANTS["compensation"](rollout), VARIANTS["grpo"](rollout)
        factor = (A / base)[rollout.mask & (rollout.rewards == 1)[..., None]]
        assert factor.min() == 1 and 1.5 < factor.max() <= 2
        wrong = rollout.rewards == 0
        assert torch.equal(A[wrong], base[wrong])


LIMITS = {
    "nthr, eta = 1": lambda r: advantages.nthr(r, eta=1.0),
    "negative, c = 0": lambda r: advantages.negative(r, c=0.0),
    "critic, bias 0": lambda r: advantages.critic(change(r, ["token_bias"], torch.zeros_like)),
    "compensation, factor 1": lambda r: advantages.compensation(
        change(r, ["logprobs"], torch.zeros_like)
    ),
    "culling": advantages.culling,
    "likelihood, no all-fail": advantages.likelihood,
    "negative, no all-fail": advantages.negative,
}


@pytest.mark.parametrize("limit", LIMITS)
def test_variant_reduces_to_grpo(limit):
    """Guards against a variant that changes more than its idea."""
    groups = [MIXED, ONE, PASS] if "no all-fail" in limit else [MIXED, ONE, PASS, FAIL]
    rollout = random_rollout(3, groups)
    close(LIMITS[limit](rollout), advantages.grpo(rollout), 1e-12)


def test_rloo_is_dr_grpo_but_for_a_factor():
    """Guards against a baseline that includes the response itself."""
    rollout = random_rollout(3, [MIXED, ONE, FAIL, PASS])
    close(advantages.rloo(rollout), 4 / 3 * advantages.dr_grpo(rollout), 1e-12)


# --------------------------------------------------------------------------------------- the loss


def loss_by_loops(logprobs, old, A, mask, low=0.2, high=0.2, aggregate="token", max_length=None):
    """loss = -sum_{i,t} min(ratio A, clip(ratio, 1 - low, 1 + high) A) / sum_i |y_i|"""
    responses = []
    for g, i in np.ndindex(*mask.shape[:2]):
        gains = []
        for t in range(int(mask[g, i].sum())):
            a, ratio = A[g, i, t].item(), math.exp(logprobs[g, i, t].item() - old[g, i, t].item())
            gains.append(min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a))
        responses.append(gains)
    tokens = [gain for gains in responses for gain in gains]
    if aggregate == "token":
        return -mean(tokens)
    if aggregate == "response":
        return -mean([mean(gains) for gains in responses])
    return -sum(tokens) / (len(responses) * max_length)


def off_policy(seed):
    """A rollout, and log-probabilities of a policy that has moved by up to a factor 2 or so."""
    rollout = random_rollout(seed, [MIXED, ONE, FAIL, REAL])
    rng = torch.Generator().manual_seed(seed)
    moved = torch.randn(rollout.mask.size(), generator=rng, dtype=torch.float64) * 0.4
    return rollout, (rollout.logprobs + moved).requires_grad_()


@pytest.mark.parametrize("aggregate", ["token", "response", "constant"])
@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.16, 0.24), (0.3, 0.1)])
def test_policy_loss_equals_its_formula(aggregate, low, high):
    """Guards against a wrong denominator, and against one clip bound used for both sides."""
    for seed in range(3):
        rollout, logprobs = off_policy(seed)
        inputs = (logprobs, rollout.logprobs, VARIANTS["critic"](rollout), rollout.mask)
        options = (low, high, aggregate, 24)
        expected = loss_by_loops(*inputs, *options)
        assert policy_loss(*inputs, *options).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("aggregate", ["token", "response", "constant"])
def test_padding_reaches_neither_loss_nor_gradient(aggregate, poison):
    """Guards against NaN gradients: a NaN multiplied by a mask of 0 is NaN."""
    rollout, logprobs = off_policy(1)
    inputs, results = (logprobs, rollout.logprobs, VARIANTS["grpo"](rollout)), []
    for number in (0.0, poison):
        x, old, a = (v.detach().masked_fill(~rollout.mask, number) for v in inputs)
        x.requires_grad_()
        loss = policy_loss(x, old, a, rollout.mask, aggregate=aggregate, max_length=9)
        loss.backward()
        assert x.grad.isfinite().all() and (x.grad[~rollout.mask] == 0).all()
        results.append((loss.item(), x.grad))
    assert results[0][0] == results[1][0] and torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("aggregate", ["Token", "mean", "", "constant"])
def test_unknown_aggregation_is_refused(aggregate):
    """Guards against a silent default, and constant aggregation without its length."""
    rollout, logprobs = off_policy(0)
    with pytest.raises(ValueError):
        policy_loss(logprobs, rollout.logprobs, logprobs, rollout.mask, aggregate=aggregate)


TRUTH = [  # sign of A, ratio, value of min(...), d value / d ratio, did the clip stop it?
    (+1, 0.5, +0.50, +1, False),
    (+1, 1.0, +1.00, +1, False),
    (+1, 1.2, +1.20, +1, False),
    (+1, 1.5, +1.24, 0, True),
    (-1, 0.5, -0.84, 0, True),
    (-1, 0.9, -0.90, -1, False),
    (-1, 1.0, -1.00, -1, False),
    (-1, 1.5, -1.50, -1, False),
    (0, 1.5, 0.0, 0, False),
]


@pytest.mark.parametrize("sign, ratio, value, slope, stopped", TRUTH)
def test_clip_truth_table(sign, ratio, value, slope, stopped):
    """Guards against max for A < 0: a published course shipped it, and fell from 33 % to 0.4 %."""
    old = torch.full((1, 1, 1), -1.5, dtype=torch.float64)
    logprobs = (old + math.log(ratio)).requires_grad_()
    A, mask = torch.full_like(old, 2.0 * sign), torch.ones(1, 1, 1, dtype=torch.bool)
    loss = policy_loss(logprobs, old, A, mask, clip_low=0.16, clip_high=0.24)
    loss.backward()
    assert loss.item() == pytest.approx(-2 * value)
    assert logprobs.grad.item() == pytest.approx(-2 * slope * ratio)  # d ratio / d logp = ratio
    assert grpo.clipped((logprobs - old).exp(), A, 0.16, 0.24).item() == stopped


@pytest.mark.parametrize("distance", [30.0, 1e3, 1e4])
def test_a_policy_far_away_gives_finite_loss_and_gradient(distance):
    """Guards against exp() overflow, and against 0 * inf where the advantage is 0."""
    old, mask = torch.full((1, 2, 3), -distance), torch.ones(1, 2, 3, dtype=torch.bool)
    logprobs = torch.tensor([[[0.0] * 3, [-2 * distance] * 3]], requires_grad=True)
    A = torch.tensor([[[1.0, 0.0, -1.0]] * 2])
    loss = policy_loss(logprobs, old, A, mask)
    loss.backward()
    assert loss.isfinite() and logprobs.grad.isfinite().all()


def test_k3_is_never_negative():
    """Guards against the estimator -d, whose values may be negative, and lost digits near 0."""
    for dtype, reach in ((torch.float64, 8), (torch.float32, 0.02)):
        d = torch.linspace(-reach, reach, 10_001, dtype=dtype)
        assert (grpo.k3(d) >= 0).all() and grpo.k3(0 * d).max() == 0
        expected = [math.exp(x) - x - 1 for x in d.tolist()]
        assert grpo.k3(d).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-7)


# ---------------------------------------------------------------------- a small model, and sampling


def tiny_gpt(seed=7, block=80, **options) -> GPT:
    """Random weights, all far from their start, so that no part of the model is idle."""
    torch.manual_seed(seed)
    model = GPT(GPTConfig(V, block, layers=2, width=16, **options))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.25 * torch.randn_like(weight))
    return model


def some_problems(*levels, task=SUM):
    rng = np.random.default_rng(0)
    return [task.problem(rng, level) for level in levels]


def sample(model, levels=(2, 8, 4, 3), G=3, seed=0, **options):
    rng = torch.Generator().manual_seed(seed)
    problems = some_problems(*levels)
    return sample_rollout(model, TOKENIZER, SUM, problems, G, generator=rng, **options)


def ids(text):
    return TOKENIZER.encode(text).ids


def scripted(model, problems, responses, **options) -> grpo.Rollout:
    """A rollout with these responses, texts in lists; only the draw of the tokens is replaced."""
    rows = [ids(text) for group in responses for text in group]
    batch, t = list(range(len(rows))), 0  # ended rows leave it now and then

    def draw(p, generator):
        nonlocal batch, t
        live = [b for b in batch if EOS not in rows[b][:t]]
        batch, t = live if len(p) < len(batch) else batch, t + 1
        assert len(p) == len(batch)
        return torch.tensor([[rows[b][t - 1] if b in live else PAD] for b in batch])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "draw", draw)
        return sample_rollout(model, TOKENIZER, SUM, problems, len(responses[0]), **options)


def responses_of(rollout):
    """Every response: its group g, its place i there, the problem, and its tokens as a list."""
    for g, problem in enumerate(rollout.problems):
        for i, (tokens, mask) in enumerate(zip(rollout.tokens[g], rollout.mask[g])):
            yield g, i, problem, tokens[mask].tolist()


def read_alone(model, problem, tokens):
    """hidden (n, D) and logits (n, V) in front of each token: one row, no cache and no padding."""
    row = ids(problem.prompt) + tokens
    hidden = model.hidden(torch.tensor([row[:-1]]))[0, len(problem.prompt) - 1 :]
    return hidden, model.unembed(hidden)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_sampling_equals_the_teacher_forced_pass(temperature):
    """Guards against a cache or position off by one, another temperature (a greedy response keeps
    the probabilities of temperature 1), and rows that a longer prompt or other neighbours change.
    """
    model = tiny_gpt()
    rollout = sample(model, temperature=temperature)
    for g, i, problem, tokens in responses_of(rollout):
        h, logits = read_alone(model, problem, tokens)
        logp, n = (logits / (temperature or 1.0)).log_softmax(-1), len(tokens)
        close(rollout.hidden[g, i, :n], h, 1e-4)
        close(rollout.probs[g, i, :n], logp.exp(), 1e-4)
        close(rollout.logprobs[g, i, :n], logp[range(n), tokens], 1e-4)
    assert not temperature or len(rollout.mask.sum(-1).unique()) > 2, (
        "the responses should differ in length"
    )
    close(response_logprobs(model, rollout), rollout.logprobs, 1e-4)
    many = sample(model, (3, 2, 5), G=60, temperature=temperature)  # for several forward passes
    close(response_logprobs(model, many), many.logprobs, 1e-4)


def test_tokens_are_drawn_from_the_recorded_distribution():
    """Guards against sampling at another temperature, or with a top-k, than is recorded."""
    rollout = sample(tiny_gpt(), levels=(2,), G=8000, temperature=0.7, max_new_tokens=1)
    drawn = torch.bincount(rollout.tokens.flatten(), minlength=V) / 8000
    close(drawn, rollout.probs[0, 0, 0], 0.03)


def test_mask_ends_with_the_end_of_sequence():
    """Guards against an end token outside the mask, tokens after it inside, and padding that is
    not 0."""
    rollout, ended = sample(tiny_gpt(), levels=(2, 5, 8), G=8), 0
    for g, i, _, tokens in responses_of(rollout):
        n = len(tokens)
        assert n >= 1 and rollout.mask[g, i, :n].all() and not rollout.mask[g, i, n:].any()
        assert EOS not in tokens[:-1]
        assert tokens[-1] == EOS or n == len(SUM.longest.solution) + 1
        ended += tokens[-1] == EOS
    assert 3 < ended < 24
    for x in (rollout.tokens, rollout.logprobs, rollout.probs, rollout.hidden):
        assert (x[~rollout.mask] == 0).all()
    assert rollout.tokens.dtype == torch.int64 and rollout.mask.dtype == torch.bool
    assert rollout.rewards.dtype == rollout.logprobs.dtype == torch.float32


def test_rewards_of_scripted_responses():
    """Guards against a mask by token value (a sampled padding token is an ordinary wrong
    character), rewards for responses that were cut off, and an end token in the text."""
    problems = [SUM.write([7, 8], 2), SUM.write([1, 2, 3], 3)]
    responses = [
        ["15#15<eos>", "15#15,,,,,", "15#<pad>15<eos>", "<eos>", "15#15<pad>,,,,"],
        ["3,6#6<eos>", "<pad><pad><eos>", "3,6#6,,,,,", "15#15<eos>", "#6<eos>"],
    ]
    rollout = scripted(tiny_gpt(), problems, responses, max_new_tokens=10)
    assert rollout.rewards.tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 1]]
    assert rollout.mask.sum(-1).tolist() == [[6, 10, 7, 1, 10], [6, 3, 10, 6, 3]]
    assert rollout.texts[0][2] == "15#<pad>15" and rollout.texts[0][3] == ""


def test_right_text_that_was_cut_off_gets_no_reward():
    """Guards against teaching the model never to end: only the end token earns the reward."""
    model, problems = tiny_gpt(), [SUM.write([7, 8], 2)]
    rollout = scripted(model, problems, [["15#15<eos>", "#15<eos>"]], max_new_tokens=5)
    assert rollout.texts == [["15#15", "#15"]] and rollout.rewards.tolist() == [[0, 1]]
    responses = ["15#15<eos>", "15#15<pad>", "15#15,"]
    rollout = scripted(model, problems, [responses], max_new_tokens=6)
    assert rollout.rewards.tolist() == [[1, 0, 0]]
    rollout = scripted(model, problems, [["15#15<eos>", "<eos>"]])
    assert rollout.mask.tolist() == [[[True] * 6, [True] + [False] * 5]]  # T: the longest response


def test_groups_stand_together():
    """Guards against repeat in place of repeat_interleave: responses under another's prompt."""
    model, problems = tiny_gpt(), some_problems(2, 6, 3, 8)
    together = sample_rollout(model, TOKENIZER, SUM, problems, 3, temperature=0.0)
    for g, problem in enumerate(problems):
        alone = sample_rollout(model, TOKENIZER, SUM, [problem], 1, temperature=0.0)
        assert together.texts[g] == alone.texts[0] * 3  # greedy: always the same
        n = int(alone.mask.sum())
        close(together.logprobs[g, :, :n], alone.logprobs[0].expand(3, n), 1e-5)
        assert (alone.tokens[0, 0] == alone.probs[0, 0].argmax(-1)).all()
    assert len({texts[0] for texts in together.texts}) > 1 and together.temperature == 1.0


def test_sampling_is_repeatable():
    """Guards against randomness that the generator does not govern."""
    model, a = tiny_gpt(), sample(tiny_gpt())
    torch.manual_seed(123)
    b, c = sample(model), sample(model, seed=1)
    assert all(torch.equal(getattr(a, f), getattr(b, f)) for f in ("tokens", "mask", "logprobs"))
    assert a.texts == b.texts and a.texts != c.texts


@pytest.mark.parametrize("G, T", [(1, 1), (1, None), (4, 1)])
def test_the_smallest_rollouts(G, T):
    """Guards against squeezed dimensions: one problem, one response, one token."""
    model = tiny_gpt()
    rollout = sample(model, levels=(2,), G=G, max_new_tokens=T)
    assert rollout.tokens.size()[:2] == (1, G) and (T is None or rollout.mask.size(2) == T)
    close(response_logprobs(model, rollout), rollout.logprobs, 1e-4)
    rollout.answer_likelihood = grpo.answer_likelihood(model, rollout)
    rollout.token_bias = grpo.token_bias(tiny_gpt(outputs=1), rollout).detach()
    for variant in VARIANTS.values():
        A = variant(rollout)
        assert A.size() == rollout.mask.size() and A.isfinite().all()


def test_a_row_does_not_depend_on_padding_or_neighbours():
    """Guards against a longer neighbour changing a row's log-probabilities or gradient."""
    model = tiny_gpt()
    rollout = sample(model, levels=(2, 8, 3))
    rollout.tokens[~rollout.mask] = V - 1  # any padding
    close(response_logprobs(model, rollout), rollout.logprobs, 1e-4)
    for g in range(3):
        n, Lp, grads = int(rollout.mask[g].sum(-1).max()), rollout.lengths[g], []
        alone = dataclasses.replace(
            rollout,
            tokens=rollout.tokens[g : g + 1, :, :n],
            mask=rollout.mask[g : g + 1, :, :n],
            prompts=rollout.prompts[g : g + 1, :Lp],
            lengths=rollout.lengths[g : g + 1],
        )
        selected = response_logprobs(model, rollout, torch.tensor([g]))
        whole = response_logprobs(model, rollout)[g : g + 1]
        for logp in (response_logprobs(model, alone), selected[..., :n], whole[..., :n]):
            close(logp, rollout.logprobs[g : g + 1, :, :n], 1e-4)
            grads.append(torch.autograd.grad(logp.sum(), list(model.parameters())))
        for a, *others in zip(*grads):
            for b in others:
                close(a, b, 1e-5 * float(a.abs().max()) + 1e-4)


def test_response_logprobs_follow_the_model_and_the_temperature():
    """Guards against returning the old log-probabilities, and against scores at temperature 1."""
    rollout, other = sample(tiny_gpt(), temperature=0.6), tiny_gpt(seed=1)
    logp = response_logprobs(other, rollout)
    assert (logp[~rollout.mask] == 0).all() and logp.requires_grad
    for g, i, problem, tokens in responses_of(rollout):
        alone = (read_alone(other, problem, tokens)[1] / 0.6).log_softmax(-1)
        close(logp[g, i, : len(tokens)], alone[range(len(tokens)), tokens], 1e-4)


RESPONSES = [  # to three problems
    ["9,8#8<eos>", "9,8<eos>", "1#2#3<eos>", "#1<eos>", "<eos>", "1<pad>2#4<eos>", ",,,,,,,,"],
    ["3,6#6<eos>", "3#1<eos>", "<eos>", "#<eos>", "1<eos>", "2<eos>", "3<eos>"],  # not all-fail
    ["7<eos>", "5,5#5#5<eos>", "#<eos>", "##<eos>", "<pad><eos>", "1,1,1,1<eos>", "########"],
]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_answer_likelihood_equals_one_token_at_a_time(temperature):
    """Guards against a wrong end of the reasoning, a forgotten end token, another temperature, and
    groups that are not all-fail."""
    model = tiny_gpt()
    problems = [SUM.write([3, 4], 2), SUM.write([1, 2, 3], 3), SUM.write([9] * 8, 8)]
    rollout = scripted(model, problems, RESPONSES, max_new_tokens=8, temperature=temperature)
    L = grpo.answer_likelihood(model, rollout)
    assert not L.requires_grad and (L[[0, 2]] > 0).all() and (L <= 1).all()
    for g, i, problem, tokens in responses_of(rollout):
        row, p = ids(problem.prompt), 1.0
        for token in tokens:
            if token in ids("#<eos>"):
                break
            row.append(token)
        for token in ids("#" + problem.answer + "<eos>"):
            p *= model(torch.tensor([row]))[0, -1].softmax(-1)[token].item()
            row.append(token)
        assert L[g, i].item() == pytest.approx(0 if g == 1 else p, rel=1e-3)


def test_answer_likelihood_needs_room_in_the_block():
    """Guards against reading past the last position of a block that is too short."""
    problem = [SUM.write([7, 8], 2)]
    rollout = scripted(tiny_gpt(), problem, [[",,,,,,,,"]], max_new_tokens=8)
    assert grpo.answer_likelihood(tiny_gpt(block=15), rollout) > 0
    with pytest.raises(IndexError):
        grpo.answer_likelihood(tiny_gpt(block=14), rollout)


def test_token_bias_is_read_where_the_token_has_been_read():
    """Guards against the position before, where the bias could not depend on the token."""
    critic, rollout = tiny_gpt(outputs=1), sample(tiny_gpt())
    bias = grpo.token_bias(critic, rollout)
    assert (bias[~rollout.mask] == 0).all() and bias.requires_grad
    for g, i, problem, tokens in responses_of(rollout):
        row = ids(problem.prompt)
        for t, token in enumerate(tokens):
            row.append(token)
            close(bias[g, i, t], critic(torch.tensor([row]))[0, -1, 0], 1e-4)


def test_entropy_equals_its_formula():
    """Guards against padding in the mean, and 0 log 0."""
    rollout = random_rollout(0, [MIXED, FAIL], poison=(math.nan, -1))
    rollout.probs[0, 0, 0] = torch.eye(7, dtype=torch.float64)[2]
    terms = []
    for x in groups_of(rollout):
        for response in x.probs:
            for pi in response:
                terms.append(-sum(p * math.log(p) for p in pi if p > 0))
    assert grpo.entropy(rollout).item() == pytest.approx(mean(terms))


def test_likelihood_change_equals_its_formula():
    """Guards against incorrect responses, or those of all-pass groups, in the mean."""
    rollout, other = sample(tiny_gpt(), levels=(2, 5, 3, 8), G=4), tiny_gpt(seed=1)
    rollout.rewards = torch.tensor([MIXED, PASS, FAIL, ONE], dtype=torch.float32)
    changes = []
    for g, i, problem, tokens in responses_of(rollout):
        if (g, i) in [(0, 0), (0, 3), (3, 2)]:  # the correct ones of the mixed groups
            logp = read_alone(other, problem, tokens)[1].log_softmax(-1)
            new = sum(logp[t, token].item() for t, token in enumerate(tokens))
            changes.append(new - rollout.logprobs[g, i, : len(tokens)].sum().item())
    assert grpo.likelihood_change(other, rollout) == pytest.approx(mean(changes), abs=1e-3)
    assert grpo.likelihood_change(tiny_gpt(), rollout) == pytest.approx(0, abs=1e-4)
    rollout.rewards = torch.tensor([PASS, PASS, FAIL, FAIL], dtype=torch.float32)
    assert grpo.likelihood_change(other, rollout) is None


# -------------------------------------------------------------------------------------- one update


def stale_rollout():
    """A model, a rollout whose old log-probabilities differ from its own, and advantages."""
    model = tiny_gpt()
    rollout = sample(model, levels=(2, 8, 3, 5), G=4)
    rollout.rewards = torch.tensor([MIXED, ONE, FAIL, [0, 1, 1, 1]], dtype=torch.float32)
    rollout.token_bias = torch.zeros_like(rollout.logprobs)
    noise = torch.randn(rollout.mask.size(), generator=torch.Generator().manual_seed(0)) * 0.3
    rollout.logprobs = rollout.logprobs + noise
    return model, rollout, VARIANTS["grpo"](rollout)


def sgd(model, lr=0.0):
    return torch.optim.SGD(model.parameters(), lr=lr)


@pytest.mark.parametrize("minibatches", [1, 2, 4, 9])
@pytest.mark.parametrize("low, high", [(0.2, 0.2), (0.1, 0.3)])
@pytest.mark.parametrize("kl", [0.0, 0.7])
def test_update_reports_means_over_all_tokens(minibatches, low, high, kl):
    """Guards against mini-batches that count alike although one has more tokens, a clip fraction
    that ignores sign or range, and the KL term or approx_kl the wrong way round."""
    (model, rollout, A), reference = stale_rollout(), tiny_gpt(seed=1)
    m, logprobs = rollout.mask, response_logprobs(model, rollout).detach()
    loss = loss_by_loops(logprobs, rollout.logprobs, A, m, low, high)
    approx_kl, to_reference, stopped = [], [], []
    new, ref = logprobs[m].tolist(), response_logprobs(reference, rollout)[m].tolist()
    for logp, old, logp_ref, a in zip(new, rollout.logprobs[m].tolist(), ref, A[m].tolist()):
        d, d_ref, ratio = old - logp, logp_ref - logp, math.exp(logp - old)
        approx_kl.append(math.exp(d) - d - 1)
        to_reference.append(math.exp(d_ref) - d_ref - 1)
        stopped.append(ratio > 1 + high if a > 0 else ratio < 1 - low if a < 0 else False)
    options = {"minibatches": minibatches, "clip_low": low, "clip_high": high}
    metrics = update(model, sgd(model), rollout, A, kl=kl, reference=reference, **options)
    assert metrics["loss"] == pytest.approx(loss + kl * mean(to_reference), rel=1e-3, abs=1e-4)
    assert metrics["clip_fraction"] == pytest.approx(mean(stopped), abs=1e-5)
    assert metrics["approx_kl"] == pytest.approx(mean(approx_kl), rel=1e-3)
    assert 0 < metrics["clip_fraction"] < 1 and metrics["approx_kl"] > 0


@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_update_is_one_step_a_mini_batch_of_whole_groups(scale):
    """Guards against accumulated gradients, split groups, a gradient that is not shortened."""
    model, rollout, A = stale_rollout()
    by_hand, norms = copy.deepcopy(model), []
    for groups in ([0, 1], [2, 3]):
        parts = (x[groups] for x in (rollout.logprobs, scale * A, rollout.mask))
        loss = policy_loss(response_logprobs(by_hand, rollout)[groups], *parts)
        grads = torch.autograd.grad(loss, list(by_hand.parameters()))
        norm = math.sqrt(sum((grad**2).sum().item() for grad in grads))
        norms.append(norm * int(rollout.mask[groups].sum()) / int(rollout.mask.sum()))
        with torch.no_grad():
            for weight, grad in zip(by_hand.parameters(), grads):
                weight -= 0.1 * grad * min(1.0, 1.0 / norm)
    metrics = update(model, sgd(model, lr=0.1), rollout, scale * A, minibatches=2)
    assert metrics["grad_norm"] == pytest.approx(sum(norms), rel=1e-3)
    for a, b in zip(model.parameters(), by_hand.parameters()):
        close(a.detach(), b.detach(), 1e-5)


def test_the_loss_at_the_first_update():
    """Guards against a ratio other than 1: the loss is then -sum A_i |y_i| / sum |y_i|, and exactly
    0 if each response is averaged first."""
    model = tiny_gpt()
    rollout = sample(model, levels=(2, 8, 3, 5), G=4)
    rollout.rewards = torch.tensor([MIXED, ONE, FAIL, [0, 1, 1, 1]], dtype=torch.float32)
    A, n = VARIANTS["grpo"](rollout), rollout.mask.sum(-1)
    metrics = update(model, sgd(model), rollout, A, minibatches=2)
    expected = -sum(A[g, i, 0].item() * n[g, i].item() for g in range(4) for i in range(4))
    assert metrics["loss"] == pytest.approx(expected / n.sum().item(), abs=1e-4)
    assert metrics["clip_fraction"] == 0 and metrics["approx_kl"] == pytest.approx(0, abs=1e-6)
    metrics = update(model, sgd(model), rollout, A, aggregate="response")
    assert metrics["loss"] == pytest.approx(0, abs=1e-5)


def test_the_kl_term_pulls_towards_the_reference():
    """Guards against a KL term of the wrong sign, and against one that moves the reference."""
    model, rollout, A = stale_rollout()
    reference = tiny_gpt(seed=1)
    before = copy.deepcopy(reference.state_dict())
    options = {"kl": 1.0, "reference": reference, "minibatches": 1}
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = [update(model, optimizer, rollout, 0 * A, **options)["loss"] for _ in range(8)]
    assert losses[-1] < 0.9 * losses[0]
    assert all(torch.equal(before[name], weight) for name, weight in reference.state_dict().items())


@pytest.mark.parametrize("fault", [math.nan, math.inf, "gradient"])
def test_no_step_is_taken_that_is_not_finite(fault):
    """Guards against NaN in the weights, after which nothing can be learnt or explained."""
    model, rollout, A = stale_rollout()
    before, optimizer = copy.deepcopy(model.state_dict()), torch.optim.Adam(model.parameters())
    if fault == "gradient":
        next(model.parameters()).register_hook(lambda grad: grad * math.nan)
    else:
        A = A.masked_fill(rollout.mask, fault)
    with pytest.raises(FloatingPointError):
        update(model, optimizer, rollout, A)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def learn(sign, steps):
    """Mean reward of the first and the last five steps of training a new model on 25 sums."""
    torch.manual_seed(0)
    rng, model = np.random.default_rng(0), GPT(GPTConfig(V, 32, layers=1, width=32))
    problems = [SUM.write([a, b], 2) for a in range(5) for b in range(5)]
    rows, _ = grpo.encode(TOKENIZER, [p.prompt + p.solution + tasks.EOS for p in problems], "cpu")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(60):  # a little supervised learning first, or no reward would ever be found
        logits = model(rows[:, :-1]).transpose(1, 2)  # (B, V, L - 1)
        grpo.descend(optimizer, F.cross_entropy(logits, rows[:, 1:], ignore_index=PAD))
    options = {"max_new_tokens": 6, "generator": torch.Generator().manual_seed(0)}
    rewards, optimizer = [], torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(steps):
        batch = [problems[i] for i in rng.permutation(len(problems))[:16]]
        rollout = sample_rollout(model, TOKENIZER, SUM, batch, 8, **options)
        update(model, optimizer, rollout, sign * VARIANTS["grpo"](rollout))
        rewards.append(rollout.rewards.mean().item())
    return mean(rewards[:5]), mean(rewards[-5:])


def test_the_policy_learns():
    """Guards against everything else: sampling, advantages and update must work together."""
    before, after = learn(+1, steps=200)
    assert before < 0.4 and after > before + 0.25
    before, after = learn(-1, steps=20)
    assert after <= before


# ------------------------------------------------------------------------------------------- tasks


EXAMPLES = [("sum", "7+8+5=", "15,20#20", "20"), ("add", "347+285=", "12,132,632#632", "632"),
            ("mul", "347*8=", "56,320,376,2400,2776#2776", "2776")]  # fmt: skip


@pytest.mark.parametrize("name, prompt, solution, answer", EXAMPLES)
def test_worked_examples(name, prompt, solution, answer):
    """Guards against a solution that teaches wrong steps."""
    numbers = [int(n) for n in prompt[:-1].split(TASKS[name].sign)]
    assert TASKS[name].write(numbers, 3) == Problem(prompt, solution, answer, 3)


@pytest.mark.parametrize("name", TASKS)
def test_every_problem_is_solved_by_its_solution(name):
    """Guards against wrong answers, numbers of the wrong size, tokens that do not round-trip."""
    task, rng, longest = TASKS[name], np.random.default_rng(0), TASKS[name].longest
    for level in task.levels:
        for _ in range(60):
            p = task.problem(rng, level)
            numbers = p.prompt[:-1].split(task.sign)
            assert p.level == level and p.prompt[-1] == "="
            assert int(p.answer) == (math.prod if name == "mul" else sum)(map(int, numbers))
            sizes = {"sum": [1] * level, "add": [level] * 2, "mul": [level, 1]}[name]
            assert [len(n) for n in numbers] == sizes and all(str(int(n)) == n for n in numbers)
            assert task.reward(p, p.solution) == 1.0 and task.coherent(p, p.solution)
            for text in (p.prompt, p.solution):
                assert len(ids(text)) == len(text) and TOKENIZER.decode(ids(text)) == text
                assert not {PAD, EOS} & set(ids(text))
            assert len(p.prompt) <= len(longest.prompt) and len(p.solution) <= len(longest.solution)


def test_tokenizer():
    """Guards against one token for padding and end, and against unknown characters passing."""
    assert PAD != EOS and TOKENIZER.get_vocab_size() == len(TOKENIZER.get_vocab())
    assert ids("1<eos>") == [*ids("1"), EOS] and len(ids("1234567890+*=,#")) == 15
    for text in ("a", "٣", "1\n2", " "):
        with pytest.raises(Exception):  # noqa: B017, the package has no narrower one
            TOKENIZER.encode(text)
    tokens, lengths = grpo.encode(TOKENIZER, ["1+2=", "1<pad>", "1"], "cpu")
    assert lengths.tolist() == [4, 2, 1] and tokens[2].tolist() == [*ids("1"), PAD, PAD, PAD]


HOSTILE = [
    "", "#", "20", "15,20", "##20", "#20#20", "#20#", "20#", "15,20#20#20", "1" * 10_000,
    "#" * 10_000, "#" + "20" * 5_000, "#٢٠", "#２０", "#020", "#0020", "#20 ", "# 20", "#20\n",
    "#20x", "#20,", "#20=", "#+20", "#20.0", "#2e1", "#2_0", "#-20", "#0x14", "#²⁰", "#20\x00",
    "#20<eos>", "#20<pad>", "#2 0", "15,20＃20", "\ud800#20#", "#21", "#2", "#200",
]  # fmt: skip


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
def test_verifier_refuses_all_that_is_not_the_answer(response):
    """Guards against int(), which takes "+20", " 20", "2_0" and foreign digits, and raising."""
    problem = SUM.write([7, 8, 5], 3)
    assert SUM.reward(problem, response) == 0.0
    assert SUM.coherent(problem, response) in (True, False)


@pytest.mark.parametrize("response", ["#20", "15,20#20", "99#20", "\n\ud800٣#20"])
def test_verifier_takes_the_answer_behind_one_marker(response):
    """Guards against judging the steps: the reward is for the answer alone."""
    assert SUM.reward(SUM.write([7, 8, 5], 3), response) == 1.0


COHERENT = {
    "15,20#20": True, "15,20#21": False, "15,21#21": True, "20#20": True, "#20": False, "20": False,
    "": False, "#": False, "15,#": False, "15,20#": False, "15,20#20#20": False, "15,20#0": False,
    "15,20#20,": False, "15,20,#20": False, "20,15#20": False,
}  # fmt: skip


@pytest.mark.parametrize("response", COHERENT)
def test_coherence(response):
    """Guards against comparing with the right answer in place of the response's own last step."""
    assert SUM.coherent(SUM.write([7, 8, 5], 3), response) is COHERENT[response]


def test_held_out_prompts_are_never_trained_on():
    """Guards against training on what is evaluated: the split is a matter of the prompt alone."""
    for task in TASKS.values():
        for p in some_problems(*30 * list(task.levels), task=task):
            assert tasks.held_out(p.prompt) is (zlib.crc32(p.prompt.encode()) % 10 == 0)
        for held in (True, False):
            prompts = [p.prompt for p in train.make_problems(task, 100, held)]
            assert {tasks.held_out(prompt) for prompt in prompts} == {held}
            assert len(set(prompts)) == len(prompts) > 20


# ------------------------------------------------------------------------------------ whole runs


METRICS = """step reward all_fail all_pass loss grad_norm clip_fraction approx_kl entropy length
    coherence seconds accuracy likelihood_change""".split()
FILES = {"config.json", "metrics.csv", "model.pt", "summary.json", "tokenizer.json"}


def run_train(out, *arguments) -> int:
    """train.main with few problems, almost no warm-up and a very small model."""
    small = "--layers 1 --width 16 --steps 2 --prompts 4 --group-size 4 --device cpu --out".split()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "WARMUP_STEPS", dict.fromkeys(TASKS, 2))
        patch.setattr(train, "TRAIN_SIZE", 84)
        patch.setattr(train, "EVAL_SIZE", 14)
        return train.main([*small, str(out), *map(str, arguments)])


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """The base checkpoint that all runs here start from, made once."""
    out = tmp_path_factory.mktemp("base")
    assert run_train(out, "--steps", 0) == 0
    (path,) = out.glob("*.pt")
    return path


def with_base(base, out) -> Path:
    out.mkdir()
    shutil.copy(base, out)
    return out


def read_metrics(folder):
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_runs(variant, base, tmp_path, capsys):
    """Guards against a variant that was never run, or leaves other files or columns."""
    out = with_base(base, tmp_path / "out")
    checkpoint = (out / base.name).read_bytes()
    assert run_train(out, "--variant", variant, "--seed", 3) == 0
    folder = out / f"sum-{variant}-seed3"
    assert {path.name for path in out.iterdir()} == {base.name, folder.name}
    assert {path.name for path in folder.iterdir()} == FILES
    assert (out / base.name).read_bytes() == checkpoint
    rows, summary = read_metrics(folder), json.loads((folder / "summary.json").read_text())
    assert len(rows) == 2
    assert list(rows[0]) == METRICS + ["mean_abs_advantage", "mean_abs_bias", "prompts_left"]
    assert [row["step"] for row in rows] == ["1", "2"] and rows[1]["accuracy"]
    for row in rows:
        assert all(math.isfinite(float(value)) for value in row.values() if value)
        assert all(row[name] for name in METRICS[:12])
        assert bool(row["prompts_left"]) == (variant == "culling")
        assert bool(row["mean_abs_bias"]) == (variant == "critic")
    assert summary["variant"] == variant and summary["steps"] == 2 and summary["seed"] == 3
    names = """task base_accuracy final_accuracy base_sampled final_sampled base_accuracy_by_level
        final_accuracy_by_level seconds seconds_per_step"""
    assert set(names.split()) <= set(summary)
    assert json.loads((folder / "config.json").read_text())["variant"] == variant
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["--variant", "critic"], ["--variant", "nthr", "--kl", "0.1"]]
)
def test_the_same_seed_gives_the_same_metrics(arguments, base, tmp_path):
    """Guards against hidden randomness, and against a run that sees what an earlier one left."""
    out, runs = with_base(base, tmp_path / "out"), []
    for seed in (0, 0, 1):
        assert run_train(out, *arguments, "--seed", seed) == 0
        rows = read_metrics(out / f"sum-{arguments[1]}-seed{seed}")
        runs.append([{k: v for k, v in row.items() if k != "seconds"} for row in rows])
    assert runs[0] == runs[1] != runs[2]


def test_the_base_model_is_made_once(base, tmp_path):
    """Guards against variants that start from different weights."""
    new = tmp_path / "new"
    assert run_train(new, "--steps", 0, "--seed", 7, "--variant", "nthr") == 0
    made = (new / base.name).read_bytes()
    assert run_train(new, "--steps", 0, "--seed", 8) == 0 and (new / base.name).read_bytes() == made
    folders = (base.parent / "sum-grpo-seed0", new / "sum-nthr-seed7", new / "sum-grpo-seed8")
    first, *others = (torch.load(folder / "model.pt", weights_only=True) for folder in folders)
    for weights in others:
        assert all(torch.equal(first[name], weights[name]) for name in first)


@pytest.mark.parametrize("task", ["add", "mul"])
def test_other_tasks_run(task, tmp_path):
    """Guards against a block that is too short for another task's numbers."""
    assert run_train(tmp_path / "out", "--task", task, "--variant", "likelihood") == 0
    assert {path.name for path in (tmp_path / f"out/{task}-likelihood-seed0").iterdir()} == FILES


def test_culling_ends_when_every_prompt_is_solved(base, tmp_path, capsys, monkeypatch):
    """Guards against an endless loop, or a crash, when no prompt is left."""

    def end_at_once(*arguments):
        tokens, mask, *rest = model_module.generate(*arguments)
        tokens[:, 0], mask[:, 1:] = EOS, False
        return tokens, mask, *rest

    monkeypatch.setattr(grpo, "generate", end_at_once)
    monkeypatch.setattr(tasks.Task, "reward", lambda self, problem, response: 1.0)
    out = with_base(base, tmp_path / "out")
    assert run_train(out, "--variant", "culling", "--steps", 50, "--prompts", 16) == 0
    rows = read_metrics(out / "sum-culling-seed0")
    assert [row["prompts_left"] for row in rows] == ["68", "52", "36", "20", "4", "0"]
    assert "no prompt is left" in capsys.readouterr().out
    assert json.loads((out / "sum-culling-seed0/summary.json").read_text())["steps"] == 6


@pytest.mark.parametrize("fault, status", [("nan", 1), ("ctrl-c", 130)])
def test_an_interrupted_run_keeps_its_metrics(fault, status, base, tmp_path, capsys, monkeypatch):
    """Guards against a lost run, a traceback, and a summary.json that says it had finished."""
    calls = []

    def faulty(rollout):
        calls.append(1)
        if len(calls) == 3 and fault == "ctrl-c":
            raise KeyboardInterrupt
        return advantages.grpo(rollout) * (math.nan if len(calls) == 3 else 1)

    out = with_base(base, tmp_path / "out")
    assert run_train(out, "--steps", 5) == 0  # what an earlier run left must not look like ours
    monkeypatch.setitem(VARIANTS, "grpo", faulty)
    assert run_train(out, "--steps", 5) == status
    error = capsys.readouterr().err
    assert "Traceback" not in error and (fault == "ctrl-c" or "step 3" in error)
    assert len(read_metrics(out / "sum-grpo-seed0")) == 2
    assert not (out / "sum-grpo-seed0" / "summary.json").exists()


@pytest.mark.parametrize("prompts", [1, 8])
def test_ruined_weights_stop_the_run(prompts, base, tmp_path, capsys):
    """Guards against a traceback when a learning rate has ruined the weights: one prompt gives one
    mini-batch, and then sampling is the first to meet them."""
    out = with_base(base, tmp_path / "out")
    options = ["--variant", "negative", "--lr", "1e12", "--steps", 20, "--prompts", prompts]
    assert run_train(out, *options) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error and "step" in error and "negative" in error
    assert not (out / "sum-negative-seed0" / "summary.json").exists()


BAD = [
    "--variant nope", "--variant GRPO", "--variant", "--task nope", "--task sum2", "--device tpu",
    "--device cuda:99", "--group-size 1", "--group-size 0", "--group-size -8", "--group-size 2.5",
    "--group-size two", "--steps -1", "--steps 1.5", "--steps nan", "--steps", "--steps ²",
    "--lr 0", "--lr -1", "--lr nan", "--lr inf", "--lr -inf", "--lr x", "--lr 1e999", "--seed -1",
    "--seed 1e3", "--seed x", "--seed 99999999999999999999999", "--prompts 0", "--prompts -1",
    "--prompts x", "--kl -1", "--kl nan", "--kl inf", "--layers 0", "--layers -1", "--layers x",
    "--width 0", "--width 6", "--width -4", "--width 3.5", f"--width {2**44}", "--nope", "7",
]  # fmt: skip


def refused(status, capsys) -> str:
    """The one line on standard error that bad input gets."""
    error = capsys.readouterr().err
    assert status == 2 and error.count("\n") == 1 and error.endswith("\n"), error
    assert "Traceback" not in error and len(error) < 600
    return error


@pytest.mark.parametrize("arguments", BAD)
def test_bad_arguments_are_refused(arguments, tmp_path, capsys):
    """Guards against a traceback, work before the check, and files left behind."""
    error = refused(run_train(tmp_path / "out", *arguments.split()), capsys)
    assert not (tmp_path / "out").exists()
    flag, *value = arguments.split()
    assert flag in error or "memory" in error
    choices = {"--variant": VARIANTS, "--task": TASKS, "--device": ["cpu"]}.get(flag, [])
    assert not value or all(choice in error for choice in choices)


def damage(kind, base, tmp_path) -> bytes:
    """What stands in a damaged or foreign file in place of the base checkpoint."""
    data = base.read_bytes()
    if kind == "weights alone":
        return (base.parent / "sum-grpo-seed0" / "model.pt").read_bytes()
    if kind in ("list", "dict", "none"):
        torch.save({"list": [1, 2], "dict": {"a": 1}, "none": None}[kind], tmp_path / "foreign")
        return (tmp_path / "foreign").read_bytes()
    return {
        "truncated": data[: len(data) // 2],
        "almost whole": data[:-1000],
        "empty": b"",
        "text": "not a checkpoint\n".encode(),
        "zeros": bytes(len(data)),
        "code": f"cos\nsystem\n(S'touch {tmp_path}/executed'\ntR.".encode(),
    }[kind]


DAMAGE = ["truncated", "almost whole", "empty", "text", "zeros", "code", "list", "dict", "none",
          "weights alone"]  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_base_models_are_refused(kind, base, tmp_path, capsys):
    """Guards against running code from a file, and against overwriting what cannot be read."""
    out = with_base(base, tmp_path / "out")
    data = damage(kind, base, tmp_path)
    (out / base.name).write_bytes(data)
    assert base.name in refused(run_train(out), capsys)
    assert [path.name for path in out.iterdir()] == [base.name]
    assert (out / base.name).read_bytes() == data
    assert not (tmp_path / "executed").exists()


def test_a_base_model_of_another_shape_is_refused(base, tmp_path, capsys):
    """Guards against training on weights that were made for another model."""
    out = with_base(base, tmp_path / "out")
    other = out / base.name.replace("1x16", "1x32")
    (out / base.name).rename(other)
    assert other.name != base.name and other.name in refused(run_train(out, "--width", 32), capsys)
    assert other.read_bytes() == base.read_bytes() and len(list(out.iterdir())) == 1


@pytest.mark.parametrize("name", ["file", "file/below", "file/far/below"])
def test_an_output_folder_that_cannot_be_is_refused(name, tmp_path, capsys):
    """Guards against finding out only after the warm-up."""
    (tmp_path / "file").write_text("mine")
    refused(run_train(tmp_path / name), capsys)
    assert (tmp_path / "file").read_text() == "mine" and len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_refused(tmp_path, capsys, monkeypatch):
    """Guards against a traceback where no folder can be made."""

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    assert "No space left" in refused(run_train(tmp_path / "out"), capsys)


def test_bad_input_in_a_real_process(tmp_path):
    """Guards against a status that main returns but the process does not."""
    command = [sys.executable, "train.py", "--variant", "nope", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=Path(train.__file__).parent, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert "nthr" in done.stderr and not (tmp_path / "out").exists()


def test_colours_of_the_tokens():
    """Guards against wrong colours, which no log shows: green is positive, red negative."""
    green, red, white = (
        "\x1b[30;48;2;100;255;100m",
        "\x1b[30;48;2;255;178;178m",
        "\x1b[30;48;2;255;255;255m",
    )
    assert train.coloured("1#_", [5.0, -1.0, 0.0]) == f"{green}1{red}#{white}_\x1b[0m"


def test_the_report_on_a_terminal(base, tmp_path, capsys, monkeypatch):
    """Guards against a traceback where output is coloured, that is, on every terminal."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert run_train(with_base(base, tmp_path / "out"), "--variant", "negative") == 0
    assert "\x1b[30;48;2;255;178;178m" in capsys.readouterr().out


# ------------------------------------------- what every variant has in common: beside its fellows


def shaped_rollout(seed, poison=None) -> grpo.Rollout:
    """P, G and T from 1; now and then an empty response; log-probabilities from 0 to -1e4.

    Rewards are 0 or 1, or, for every third seed, any numbers.
    """
    rng = np.random.default_rng(seed)
    P, G, T = rng.integers(1, [5, 7, 9]).tolist()
    rewards = rng.integers(2, size=(P, G)) if seed % 3 else rng.normal(size=(P, G)).round(1) * 10
    rollout = random_rollout(seed, rewards.tolist(), T, poison)
    if seed % 5 == 4:
        rollout.mask[:, 0] = False
        if poison is not None:
            rollout.logprobs[:, 0] = rollout.probs[:, 0] = rollout.hidden[:, 0] = poison[0]
    lowest = rollout.logprobs[rollout.mask].min() if rollout.mask.any() else 1.0
    rollout.logprobs = rollout.logprobs * (-(10.0 ** rng.uniform(0, 4)) / lowest)
    return rollout


def together(*rollouts) -> grpo.Rollout:
    """The groups of several rollouts as one; shorter ones get more padding, of 1e6."""
    T, joined = max(r.mask.size(2) for r in rollouts), copy.copy(rollouts[0])
    for name in FIELDS:
        parts = [getattr(r, name) for r in rollouts]
        if name in TOKEN_FIELDS:
            parts = [
                torch.cat([x, x.new_full((*x.shape[:2], T - x.size(2), *x.shape[3:]), 10**6)], 2)
                for x in parts
            ]
            if name == "mask":  # 10**6 is True
                parts = [x & (torch.arange(T) < r.mask.size(2)) for x, r in zip(parts, rollouts)]
        setattr(joined, name, torch.cat(parts))
    return joined


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_on_random_shapes(name):
    """Guards against a shape, a reward or a log-probability that no hand-made rollout has."""
    for seed in range(40):
        clean = shaped_rollout(seed)
        poisoned = shaped_rollout(
            seed, [(math.nan, -1), (math.inf, 10**6), (-math.inf, 3)][seed % 3]
        )
        before, A = copy.deepcopy(poisoned), VARIANTS[name](poisoned)
        assert A.isfinite().all() and (A[~clean.mask] == 0).all(), seed
        assert torch.equal(A, VARIANTS[name](clean)), seed
        for field in FIELDS:
            now, old = getattr(poisoned, field), getattr(before, field)
            torch.testing.assert_close(now, old, rtol=0, atol=0, equal_nan=True)
        P, G, T = A.size()
        rng = np.random.default_rng(seed)
        p, i = torch.tensor(rng.permutation(P)), torch.tensor(rng.permutation(G))
        moved = change(poisoned, FIELDS, lambda x: x[p][:, i])
        close(VARIANTS[name](moved), A[p][:, i])
        longer = random_rollout(seed, rng.integers(2, size=(1, G)).tolist(), T=T + 3)
        close(VARIANTS[name](together(poisoned, longer))[:P, :, :T], A)


@pytest.mark.parametrize("aggregate", ["token", "response", "constant"])
def test_policy_loss_on_random_shapes(aggregate):
    """Guards against a loss or gradient that padding, order or distance of the policies upsets."""
    options = {"aggregate": aggregate, "max_length": 9}
    for seed in range(40):
        rollout, other = shaped_rollout(seed), shaped_rollout(seed + 3)
        mask, A = rollout.mask, VARIANTS["critic"](rollout)
        far = other.logprobs.flatten().repeat(mask.numel())[: mask.numel()].view(mask.shape)
        results = []
        for fill in (0.0, math.nan, -math.inf):
            old, new, a = (x.masked_fill(~mask, fill) for x in (rollout.logprobs, far, A))
            kept = [x.clone() for x in (old, new, a)]
            new.requires_grad_()
            loss = policy_loss(new, old, a, mask, **options)
            loss.backward()
            assert loss.isfinite() and new.grad.isfinite().all() and (new.grad[~mask] == 0).all()
            for x, before in zip((old, new.detach(), a), kept):
                torch.testing.assert_close(x, before, rtol=0, atol=0, equal_nan=True)
            results.append((loss.item(), new.grad))
        assert all(loss == results[0][0] and torch.equal(g, results[0][1]) for loss, g in results)
        scale = max(1.0, abs(results[0][0]))
        wide = [F.pad(x, (0, 4), value=math.nan) for x in (new.detach(), old, a)]
        again = policy_loss(*wide, F.pad(mask, (0, 4)), **options)
        close(again / scale, loss.detach() / scale)
        p = torch.tensor(np.random.default_rng(seed).permutation(len(mask)))
        moved = (x.detach()[p].flip(1) for x in (new, old, a, mask))
        close(policy_loss(*moved, **options) / scale, loss.detach() / scale)


# ----------------------------------------------------------- what mutation testing found unguarded


def test_nthr_spares_only_what_is_above_the_threshold():
    """Guards against >= in Algorithm 1: a wrong token that equals the only right one is no more
    entangled with it than it is itself."""
    rollout = random_rollout(0, [[1, 0]], T=1)
    rollout.tokens[:], rollout.hidden[:] = 1, 1.0
    rollout.probs[:] = torch.tensor([0.5, 0.25, 0.25, 0, 0, 0, 0])  # so that all sums are exact
    assert torch.equal(advantages.nthr(rollout, eta=0.0), advantages.grpo(rollout))


def test_nthr_selects_in_groups_with_a_correct_response_only():
    """Guards against a correct response elsewhere in the batch: the first group has none."""
    rollout = random_rollout(0, [[0.1, 0.5, 0.2, 0.0], MIXED])
    expected = by_loops(rollout, lambda x, i, t: nthr_at(x, i, t, -math.inf, 0.3))
    close(advantages.nthr(rollout, beta=-math.inf, eta=0.3), expected)


@pytest.mark.parametrize(
    "name, field", [("critic", "token_bias"), ("likelihood", "answer_likelihood")]
)
def test_the_message_on_a_missing_field(name, field):
    """Guards against a message that no longer says who needs what."""
    rollout = dataclasses.replace(random_rollout(0, [MIXED]), **{field: None})
    with pytest.raises(ValueError, match=f"^{name} needs rollout.{field}$"):
        VARIANTS[name](rollout)


def test_the_log_ratio_is_held_within_its_limits():
    """Guards against approx_kl of infinity, where exp() of a policy far away overflows."""
    new, mask = torch.tensor([[[-1e4, 1e4, 0.5, math.nan]]]), torch.ones(1, 1, 4, dtype=torch.bool)
    mask[..., 3] = False
    limit = grpo.MAX_LOG_RATIO
    assert grpo.log_ratio(new, 0 * new, mask).tolist() == [[[-limit, limit, 0.5, 0.0]]]


def test_the_ends_of_the_clip_range_are_inside():
    """Guards against counting a token whose gradient the clip lets through."""
    mask = torch.ones(1, 1, 2, dtype=torch.bool)
    ratio, A = torch.tensor([[[1.25, 0.75]]]), torch.tensor([[[1.0, -1.0]]])
    assert not grpo.clipped(ratio, A, 0.25, 0.25).any()
    assert grpo.clipped(ratio, A, 0.24, 0.24).all() and not grpo.clipped(ratio, -A, 0.1, 0.1).any()


@pytest.mark.parametrize("aggregate", ["Token", "constant"])
def test_the_message_on_an_unknown_aggregation(aggregate):
    """Guards against a message without the valid choices."""
    rollout, logprobs = off_policy(0)
    with pytest.raises(ValueError, match=f"token, response, or constant .* not '{aggregate}'"):
        policy_loss(logprobs, rollout.logprobs, logprobs, rollout.mask, aggregate=aggregate)


def test_draws_follow_probabilities_whatever_their_sum(monkeypatch):
    """Guards against a draw that takes for granted a sum of 1 (rounding makes it another), that
    takes a token of probability 0, or that has no place for NaN."""
    p = torch.tensor([[0.0, 0.1, 0.3, 0.0, 0.1, 0.0]]).repeat(8000, 1)
    for scale in (0.5, 1.0, 5.0):
        drawn = model_module.draw(scale * p, torch.Generator().manual_seed(0))
        assert drawn.size() == (8000, 1)
        close(torch.bincount(drawn[:, 0], minlength=6) / 8000, 2 * p[0], 0.03)
    assert model_module.draw(math.nan * p[:3], None).max() < 6
    for u, token in ((0.0, 4), (1 - 2**-24, 1)):  # the ends of what torch.rand gives
        monkeypatch.setattr(torch, "rand", lambda *size, u=u, **_: torch.full(size, u))
        assert model_module.draw(p[:1], None).item() == token


def test_all_is_computed_on_the_models_device():
    """Guards against a tensor made on the default device, which would fail only on a GPU. Here the
    default is the device "meta", on which nothing can be computed with the model's numbers."""
    model, reference, critic = tiny_gpt(), tiny_gpt(seed=1), tiny_gpt(outputs=1)
    optimizer, problems = sgd(model, lr=0.1), some_problems(2, 8, 3)
    with torch.device("meta"):
        rollout = sample_rollout(model, TOKENIZER, SUM, problems, 4)
        rollout.rewards[:2, 1] = 1.0
        rollout.answer_likelihood = grpo.answer_likelihood(model, rollout)
        rollout.token_bias = grpo.token_bias(critic, rollout).detach()
        for variant in VARIANTS.values():
            assert variant(rollout).isfinite().all()
        A = advantages.grpo(rollout)
        grpo.descend(
            sgd(critic), advantages.critic_loss(grpo.token_bias(critic, rollout), A, rollout.mask)
        )
        metrics = update(model, optimizer, rollout, A, kl=0.1, reference=reference)
        values = [*metrics.values(), grpo.likelihood_change(model, rollout), grpo.entropy(rollout)]
    assert all(math.isfinite(value) for value in values)


# ------------------------------------------------------------------------------------- golden runs

# Means over 20 steps of the columns GOLDEN_COLUMNS. A change that is meant to alter training is the
# only reason to print them anew: python -c "import test_grpo; test_grpo.print_golden()"
GOLDEN_COLUMNS = "reward loss grad_norm clip_fraction approx_kl entropy mean_abs_advantage".split()
GOLDEN = {
    "grpo": (0.24687, 0.0030939, 1.0115, 0.0031054, 0.0025056, 0.58038, 0.37383),
    "dr_grpo": (0.33854, 0.0015596, 0.57022, 0.0038173, 0.0033353, 0.57313, 0.26355),
    "rloo": (0.31146, 0.0057957, 1.0074, 0.0041249, 0.005905, 0.59987, 0.38959),
    "pos_only": (0.31979, -0.30621, 0.8043, 0.0016288, 0.003586, 0.58012, 0.30652),
    "critic": (0.23854, 0.23179, 1.7917, 0.013883, 0.0061888, 0.59551, 0.63896),
    "compensation": (0.28542, -0.07085, 1.8876, 0.0047627, 0.0029795, 0.60934, 0.61297),
    "culling": (0.26562, 0.007642, 1.1242, 0.0031719, 0.0028458, 0.60619, 0.50381),
    "negative": (0.29687, 0.30661, 2.3677, 0.016926, 0.0036607, 0.59259, 0.93218),
    "ngrpo": (0.28021, 0.33241, 1.8877, 0.017255, 0.0022092, 0.60485, 0.76123),
    "likelihood": (0.29896, 0.00011463, 2.3488, 0.016136, 0.0087908, 0.5901, 0.8482),
    "nthr": (0.29583, -0.013572, 1.4827, 0.0052351, 0.004223, 0.59994, 0.51968),
    "grpo --kl 0.5": (0.30312, 0.035353, 2.0443, 0.013502, 0.0045856, 0.58371, 0.58121),
}  # fmt: skip


def golden_run(variant, out) -> list[float]:
    """Means of the metrics over 20 steps behind a short warm-up, in float64 on one thread.

    Processors round differently, and a rounding may change a draw, and that all that follows. In
    float64, and with few and large steps of the warm-up, the metrics of two instruction sets differ
    by 1e-8, so that the draws are the same.
    """
    small = "--layers 1 --width 16 --steps 20 --prompts 6 --group-size 4 --lr 4e-3 --device cpu"
    variant, _, options = variant.partition(" ")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()):
        patch.setitem(TASKS, "sum", dataclasses.replace(SUM, levels=range(2, 3)))
        for name, value in {"TRAIN_SIZE": 40, "EVAL_SIZE": 8, "WARMUP_LR": 2e-2}.items():
            patch.setattr(train, name, value)
        patch.setattr(train, "WARMUP_STEPS", {"sum": 60})
        torch.set_default_dtype(torch.float64)
        try:
            arguments = [*small.split(), "--variant", variant, *options.split(), "--out", str(out)]
            assert train.main(arguments) == 0
        finally:
            torch.set_default_dtype(torch.float32)
    rows = read_metrics(Path(out) / f"sum-{variant}-seed0")
    assert len(rows) == 20
    return [mean([float(row[name]) for row in rows]) for name in GOLDEN_COLUMNS]


def print_golden():
    with tempfile.TemporaryDirectory() as out:
        numbers = {v: golden_run(v, out) for v in (*VARIANTS, "grpo --kl 0.5")}
    for variant, values in numbers.items():
        print(f'    "{variant}": ({", ".join(f"{x:.5g}" for x in values)}),')


@pytest.mark.parametrize("variant", GOLDEN)
def test_golden_run(variant, tmp_path_factory):
    """Guards against a change that alters training unsaid: sampling, loss, update, schedule."""
    out = tmp_path_factory.getbasetemp() / "golden"  # the first to come makes the base model
    numbers = golden_run(variant, out)
    assert numbers == pytest.approx(GOLDEN[variant], rel=1e-4, abs=1e-6)


def test_every_variant_has_a_golden_run():
    """Guards against a new variant that is left out."""
    assert {name.split()[0] for name in GOLDEN} == set(VARIANTS)


def test_the_same_metrics_in_two_processes_one_beside_a_busy_core(tmp_path):
    """Guards against metrics that depend on timing, on an order of hashes, on what is in memory."""
    code = """import sys, train
train.WARMUP_STEPS, train.TRAIN_SIZE, train.EVAL_SIZE = {"sum": 20}, 84, 14
sys.exit(train.main(sys.argv[1:]))"""
    settings = "--layers 1 --width 16 --prompts 4 --group-size 4 --lr 0.01 --kl 0.1 --device cpu"
    runs, busy = [], None
    try:
        for name in ("alone", "busy"):
            if name == "busy":
                busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            arguments = f"{settings} --variant critic --steps 10 --out {tmp_path / name}".split()
            subprocess.run(
                [sys.executable, "-c", code, *arguments],
                cwd=Path(train.__file__).parent,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                capture_output=True,
                check=True,
            )
            rows = read_metrics(tmp_path / name / "sum-critic-seed0")
            runs.append([{k: v for k, v in row.items() if k != "seconds"} for row in rows])
    finally:
        if busy is not None:
            busy.kill()
            busy.wait()
    assert runs[0] == runs[1] and len(runs[0]) == 10


# ----------------------------------------------------------------------------- bad input and faults


def contents(folder) -> dict:
    """Every file below a folder, and what is in it."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("kind", ["nan", "missing", "additional", "warm-up", "task", "code"])
def test_foreign_base_models_are_refused(kind, base, tmp_path, capsys):
    """Guards against a checkpoint that is whole, and yet of another model, or would run code."""
    out = with_base(base, tmp_path / "out")
    assert run_train(out) == 0  # a run is there already, which must stay as it is
    settings, weights = torch.load(base, weights_only=True)
    name = next(iter(weights))
    if kind == "nan":
        weights[name][0, 0] = math.nan
    elif kind == "missing":
        del weights[name]
    elif kind == "additional":
        weights["more"] = weights[name]
    elif kind == "code":
        settings = Bomb(tmp_path / "executed")
    else:
        settings |= {"warmup_steps": 3} if kind == "warm-up" else {"task": "add"}
    torch.save((settings, weights), out / base.name)
    before = contents(out)
    capsys.readouterr()
    assert base.name in refused(run_train(out), capsys)
    assert contents(out) == before and not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "arguments", ["--lr 0", "--variant nope", "--steps -1", "--width 6", "--x"]
)
def test_a_finished_run_survives_a_bad_command(arguments, base, tmp_path, capsys):
    """Guards against clearing the folder of a run before the command line has been checked."""
    out = with_base(base, tmp_path / "out")
    assert run_train(out) == 0
    before = contents(out)
    capsys.readouterr()
    refused(run_train(out, *arguments.split()), capsys)
    assert contents(out) == before


@pytest.mark.parametrize(
    "name", ["sum-grpo-seed0", "sum-grpo-seed0/metrics.csv/file", "{base}/file"]
)
def test_what_stands_in_the_way_is_refused(name, base, tmp_path, capsys):
    """Guards against a traceback where a file stands for a folder, or a folder for a file."""
    out = tmp_path / "out"
    path = out / name.replace("{base}", base.name)
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    refused(run_train(out), capsys)
    assert contents(out) == {path: b"mine"}


@pytest.mark.parametrize("name", train.NUMBERS)
def test_the_limits_of_each_number(name, tmp_path, capsys):
    """Guards against a limit that is off by one, that is not checked, or that is not named."""
    default, low, high, _ = train.NUMBERS[name]
    for value in (low, default, high):
        args = train.parse_arguments([f"--{name}", str(value)])
        assert getattr(args, name.replace("-", "_")) == value
    outside = [low - 1, high + 1]
    if isinstance(default, float):
        outside = [math.nextafter(low, -math.inf), math.inf]
    for value in outside:
        error = refused(run_train(tmp_path / "out", f"--{name}={value}"), capsys)
        assert f"--{name}" in error and f"{low:g} to {high:g}" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["truncated", "parent is a file"])
def test_more_bad_input_in_a_real_process(kind, base, tmp_path):
    """Guards against a traceback that only a real process would show."""
    path = tmp_path / ("file" if kind == "parent is a file" else base.name)
    path.write_bytes(base.read_bytes()[:1000])
    out = path / "below" if kind == "parent is a file" else tmp_path
    command = [sys.executable, "train.py", "--layers", "1", "--width", "16", "--out", str(out)]
    done = subprocess.run(command, cwd=Path(train.__file__).parent, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert path.name in done.stderr and contents(tmp_path) == {path: base.read_bytes()[:1000]}


@pytest.mark.parametrize("when", ["base", "row 3", "model", "summary"])
def test_a_disk_that_fills_up_stops_the_run(when, base, tmp_path, capsys, monkeypatch):
    """Guards against a traceback, a file that is there in part, a lost row, a false summary."""

    def filling(function, full):
        calls = []

        def patched(*arguments, **options):
            calls.append(1)
            if full(calls, *arguments):
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*arguments, **options)

        return patched

    out = tmp_path / "out"
    if when != "base":
        with_base(base, out)
        assert run_train(out, "--steps", 5) == 0  # what an earlier run left must not look like ours
    writerow = filling(csv.DictWriter.writerow, lambda calls, *_: len(calls) == 4)  # a header first
    if when == "row 3":
        monkeypatch.setattr(csv.DictWriter, "writerow", writerow)
    elif when == "summary":
        write = filling(Path.write_text, lambda _, path, text: "summary" in path.name)
        monkeypatch.setattr(Path, "write_text", write)
    else:
        monkeypatch.setattr(torch, "save", filling(torch.save, lambda *_: True))
    capsys.readouterr()
    assert run_train(out, "--steps", 5) == 1
    error = capsys.readouterr().err
    assert "Traceback" not in error and "No space left" in error
    folder = out / "sum-grpo-seed0"
    if when == "base":
        assert not (out / base.name).exists()
    else:
        assert len(read_metrics(folder)) == (2 if when == "row 3" else 5)
        assert (folder / "config.json").exists()
    assert (folder / "model.pt").exists() == (when == "summary")
    assert not (folder / "summary.json").exists()


FAULTS = [("grpo", math.nan), ("nthr", -math.inf), ("negative", "gradient"), ("critic", "critic")]


@pytest.mark.parametrize("variant, fault", FAULTS)
def test_what_is_not_finite_is_named(variant, fault, base, tmp_path, capsys, monkeypatch):
    """Guards against a bare error: the message names the step, the variant and the likely cause,
    and the steps before it are kept."""
    compute, steps = VARIANTS[variant], []

    def faulty(rollout):
        A = compute(rollout)
        steps.append(1)
        return A * fault if len(steps) == 3 and not isinstance(fault, str) else A

    def faulty_logprobs(*arguments):
        logprobs = response_logprobs(*arguments)
        if len(steps) == 3 and fault == "gradient":
            logprobs.register_hook(lambda grad: grad * math.nan)
        return logprobs

    def faulty_loss(*arguments):
        loss = advantages.critic_loss(*arguments)
        return loss * math.nan if len(steps) == 2 and fault == "critic" else loss

    monkeypatch.setitem(VARIANTS, variant, faulty)
    monkeypatch.setattr(grpo, "response_logprobs", faulty_logprobs)
    monkeypatch.setattr(train, "critic_loss", faulty_loss)
    out = with_base(base, tmp_path / "out")
    capsys.readouterr()
    assert run_train(out, "--variant", variant, "--steps", 5) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert "step 3" in error and variant in error.replace(str(out), "") and "lr" in error
    folder = out / f"sum-{variant}-seed0"
    assert len(read_metrics(folder)) == 2 and (folder / "config.json").exists()
    assert not (folder / "summary.json").exists() and not (folder / "model.pt").exists()


# ---- the studies' arithmetic ----


def test_multiply_adds_of_a_step_by_hand():
    """Guards against counting a prompt once a response, or a last token that nothing is asked of.

    One layer of width 4, a vocabulary of 5: a token costs 12 * 16 and 8 for each column it sees.
    """
    prompt = 3 * 192 + (1 + 2 + 3) * 8  # columns 1 to 3
    long, short = 192 + 4 * 8 + 2 * 4 * 5, 4 * 5  # two tokens: one is read; one token: none is
    step = speed.step_multiply_adds([3], [[2, 1]], layers=1, width=4, vocab=5)
    assert step == (prompt + long + short, 3 * (prompt + long + short))
    twice = speed.step_multiply_adds([3, 3], [[2, 1], [2, 1]], layers=2, width=4, vocab=5)
    assert twice[0] == 4 * (prompt + 192 + 4 * 8) + 2 * (3 * 4 * 5)


def test_ratios_are_taken_pair_by_pair():
    """Guards against a ratio of medians, which would keep the machine's drift."""
    assert speed.ratios([1.0, 6.0], [2.0, 3.0]) == [0.5, 2.0]
    row = speed.row("a", "b", speed.ratios([1.0, 6.0, 9.0], [2.0, 3.0, 3.0]), "x")
    assert (row["median"], row["min"], row["max"], row["pairs"]) == (2.0, 0.5, 3.0, 3)
    with pytest.raises(ValueError):
        speed.ratios([1.0], [1.0, 2.0])


def gwhes_at(x):
    """Eq. 5 of arXiv 2505.18830 as it is printed: sums over pairs of responses and of tokens."""

    def pair(i, j):
        total = 0.0
        for k, a in enumerate(x.tokens[i]):
            for m, b in enumerate(x.tokens[j]):
                e, f = ([float(v == t) for v in range(len(x.probs[i][k]))] for t in (a, b))
                g = sum(
                    (e[v] - x.probs[i][k][v]) * (f[v] - x.probs[j][m][v]) for v in range(len(e))
                )
                total += g * sum(c * d for c, d in zip(x.hidden[i][k], x.hidden[j][m]))
        return total

    p, right = mean(x.r), [i for i in range(x.G) if x.r[i] == 1]
    wrong = [j for j in range(x.G) if x.r[j] == 0]
    push, pull = ((1 - p) / math.sqrt(p * (1 - p)), p / math.sqrt(p * (1 - p)))
    return mean(
        [
            pull * sum(pair(i, j) for j in wrong) - push * sum(pair(i, j) for j in right)
            for i in right
        ]
    )


@pytest.mark.parametrize("seed", range(3))
def test_gwhes_is_the_printed_sum(seed):
    """Guards against p+ and p- exchanged, a sign, a sum for a mean, and padding in the sums."""
    rollout = random_rollout(seed, [MIXED, ONE, [1, 1, 1, 0]], T=3, poison=(math.nan, 10**9))
    expected = [gwhes_at(x) for x in groups_of(rollout)]
    close(likelihood_study.gwhes(rollout), torch.tensor(expected, dtype=torch.float64))


def test_overlap_and_its_chance_by_enumeration():
    """Guards against the wrong end of a ranking, and a tail that leaves out its first term."""
    scores, changes = np.array([5.0, 4, 3, 2, 1, 0]), np.array([-3.0, 9, -2, -1, 8, 7])
    assert [likelihood_study.overlap(scores, changes, K) for K in (1, 2, 3, 6)] == [1, 1, 2, 6]
    n, K = 7, 3
    draws = [len({0, 1, 2} & set(draw)) for draw in itertools.combinations(range(n), K)]
    for least in range(K + 1):
        share = mean([float(x >= least) for x in draws])
        close(likelihood_study.chance_of_overlap(least, K, n), share)


def test_intervals():
    """Guards against a Wald interval (0 wide at 0 of n) and intervals of something else."""
    close(likelihood_study.wilson(8, 10), (0.49016, 0.94332), 1e-4)  # as statsmodels and R give it
    close(likelihood_study.wilson(0, 10), (0.0, 0.27753), 1e-4)
    values = np.random.default_rng(1).normal(3.0, 2.0, 400)
    half = 1.96 * values.std() / 20
    close(likelihood_study.bootstrap(values), (values.mean() - half, values.mean() + half), 0.02)


def test_random_spares_as_many_tokens_as_nthr():
    """Guards against tokens of correct responses or padding being spared, and favoured places."""
    rollout = random_rollout(2, [MIXED], T=6)
    A, sparing = VARIANTS["grpo"](rollout), advantages.nthr(rollout, eta=0.0)
    counts = (rollout.mask & (sparing == 0)).sum(-1)
    assert (counts > 0).any() and (counts < rollout.mask.sum(-1)).any()
    total, draws = torch.zeros_like(A), 200
    for seed in range(draws):
        arms = likelihood_study.arms(rollout, torch.Generator().manual_seed(seed))
        spared = rollout.mask & (arms["random"] == 0)
        assert spared.sum(-1).tolist() == counts.tolist()
        close(arms["random"], A.masked_fill(spared, 0.0))
        total += spared
    expected = (counts / rollout.mask.sum(-1))[..., None] * rollout.mask
    close(total / draws, expected.double(), 0.14)  # four standard deviations
    assert (counts[rollout.rewards == 1] == 0).all()


def test_ablations_are_what_the_table_calls_them():
    """Guards against another beta or eta than the label says, and arms without a line."""
    rollout = random_rollout(
        0, [[1, 0, 0, 1, 0]], T=6
    )  # p = 2/5; the three beta select 10, 9, 5 tokens
    arms = likelihood_study.arms(rollout, torch.Generator())
    assert not arms["nthr"].equal(arms["grpo"])
    expected = {"beta 0": (0.0, 0.0), "beta 0.1": (0.1, 0.0), "pos_only": (-math.inf, 0.0)}
    expected |= {"nthr": (1.0, 0.0), "eta p": (1.0, 0.4), "eta 1-p": (1.0, 0.6)}
    for arm, (beta, eta) in (expected | {"eta 2|p-1/2|": (1.0, None)}).items():
        close(arms[arm], advantages.nthr(rollout, beta, eta), 1e-6)
    assert set(likelihood_study.ABLATIONS.values()) | set(likelihood_study.ARMS) == set(arms)


def small_policy():
    """A model in float64 and a rollout of one group; its second and third response are correct."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(V, 40, layers=1, width=8)).double()
    problem, rng = SUM.problem(np.random.default_rng(0), 2), torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, TOKENIZER, SUM, [problem], 4, max_new_tokens=6, generator=rng)
    rollout.rewards = torch.tensor([[0.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    return model, rollout


def test_change_is_equation_2_and_the_model_is_reset():
    """Guards against wrong responses in the mean, a mean over tokens, and steps that add up."""
    model, rollout = small_policy()
    start, lr = copy.deepcopy(model), 1e-3
    before, by_arm, ascent = likelihood_study.gradients(
        model, rollout, {"a": VARIANTS["pos_only"](rollout)}
    )
    # Pos Only pushes what Delta measures: its loss is -(A N+ / tokens) times that, and A is 1.
    scale = 0.5 / (0.5 + EPS) * 2 / rollout.mask.sum().item()
    norm = sum((a * a).sum().item() for a in ascent)
    arguments = (model, rollout, before, by_arm["a"], ascent)
    sgd = [
        likelihood_study.change(*arguments, lambda p: torch.optim.SGD(p, lr=x))
        for x in (lr, 10 * lr, lr)
    ]
    close(sgd[0], (lr * scale * norm,) * 2, 1e-3 * lr * scale * norm)
    assert sgd[0] == sgd[2] != sgd[1]
    likelihood_study.change(*arguments, lambda p: torch.optim.AdamW(p, lr=0.1))
    pairs = list(zip(model.parameters(), start.parameters(), ascent))
    assert all(p.equal(q) and p.grad is None for p, q, _ in pairs)

    def loglikelihood(model):  # of the two correct responses, token by token, without a cache
        n, total = rollout.lengths.item(), 0.0
        for i in (1, 2):
            y = rollout.tokens[0, i][rollout.mask[0, i]]
            row = torch.cat([rollout.prompts[0, :n], y])[None]
            logp = model(row)[0].log_softmax(-1)
            total += sum(logp[n - 1 + t, token].item() for t, token in enumerate(y))
        return total

    moved = copy.deepcopy(start)
    with torch.no_grad():
        for p, (_, q, a) in zip(moved.parameters(), pairs):
            p.copy_(q + 10 * lr * scale * a)
    close(sgd[1][0], (loglikelihood(moved) - loglikelihood(start)) / 2, 1e-12)


def test_a_killed_study_goes_on(tmp_path, monkeypatch):
    """Guards against half a row being kept, finished rows being measured again, stale settings."""
    asked, full = [], tmp_path / "full"
    monkeypatch.setattr(
        likelihood_study, "mixed_groups", lambda model, count, seed: list(range(count))
    )

    def measure(model, rollout, seed):
        if len(asked) == 3:
            raise OSError
        asked.append(rollout - likelihood_study.CALIBRATION)
        return {"prompt": "1+2=", "delta": rollout / 7, "seed": seed}

    monkeypatch.setattr(likelihood_study, "measure", measure)
    model, csv, part = torch.nn.Linear(1, 1), tmp_path / "likelihood.csv", "likelihood.csv.part"
    with pytest.raises(OSError):
        likelihood_study.measure_all(model, 5, 1, tmp_path)
    assert not csv.exists()
    text = (tmp_path / part).read_text()
    (tmp_path / part).write_text(text[:-3])  # killed within its third row
    asked.clear()
    likelihood_study.measure_all(model, 5, 1, tmp_path)
    assert asked == [2, 3, 4]
    full.mkdir()
    with pytest.raises(OSError):
        asked.clear(), likelihood_study.measure_all(model, 5, 1, full)
    asked.clear()
    data = likelihood_study.measure_all(model, 5, 1, full)
    assert csv.read_text() == (full / "likelihood.csv").read_text()
    assert data["delta"].tolist() == [(likelihood_study.CALIBRATION + i) / 7 for i in range(5)]
    asked.clear()
    likelihood_study.measure_all(model, 5, 1, tmp_path)
    assert asked == []  # all is there
    likelihood_study.measure_all(model, 2, 1, tmp_path)
    assert asked == [0, 1]  # other settings: from the start


def test_paired_interval():
    """Guards against a deviation that divides by n, sd in place of sd / sqrt(n), t at n degrees of
    freedom, unpaired samples. Student's sleep data: t.test of R prints -1.58, -2.4599 to -0.7001.
    """
    ours = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    theirs = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    interval = compare.paired_interval(ours, theirs)
    assert interval == pytest.approx((-1.58, -2.4598858, -0.7001142), abs=1e-3)
    for n in (2, 5):
        d = [a - b for a, b in zip(ours[:n], theirs[:n])]
        centre = sum(d) / n
        variance = sum((x - centre) ** 2 for x in d) / (n - 1)
        half = {2: 12.706, 5: 2.776}[n] * math.sqrt(variance / n)
        expected = (centre, centre - half, centre + half)
        assert compare.paired_interval(ours[:n], theirs[:n]) == pytest.approx(expected)
    mean, low, high = compare.paired_interval([3.0], [1.0])
    assert mean == 2 and math.isnan(low) and math.isnan(high)
    many = compare.paired_interval([*range(40)], [0] * 40)  # more than the table has
    assert 0 < many[1] < many[0] < many[2]


def test_pairing_by_seed_matters():
    """Guards against differences of unpaired seeds: what both arms share must cancel."""
    grpo = [70.0, 80.0, 75.0, 90.0, 85.0]
    ours = [x + 1 + 0.1 * (-1) ** i for i, x in enumerate(grpo)]
    mean, low, high = compare.paired_interval(ours, grpo)
    assert 0.8 < low < mean < high < 1.3
    shuffled, low, high = compare.paired_interval(ours[1:] + ours[:1], grpo)
    assert shuffled == pytest.approx(mean) and low < -5 and high > 7


def test_t_quantiles():
    """Guards against a wrong or shifted entry: 2.5 % of the distribution lie above each."""
    for n, t in enumerate(compare.T_QUANTILES, 1):
        x = np.linspace(0, t, 5001)
        log_constant = math.lgamma((n + 1) / 2) - math.lgamma(n / 2) - math.log(n * math.pi) / 2
        density = np.exp(log_constant - (n + 1) / 2 * np.log1p(x * x / n))
        below = 0.5 + float(((density[1:] + density[:-1]) / 2 * np.diff(x)).sum())
        assert abs(below - 0.975) / density[-1] < 0.0006, n  # three decimals of t are right


@pytest.mark.parametrize("total, size", [(23, 5), (20, 5), (7, 64)])
def test_batch_sizes_are_those_of_training(total, size):
    """Guards against an epoch that begins with the wrong number of prompts, a full last batch."""
    problems = [SimpleNamespace(prompt=f"{i}") for i in range(total)]
    rng, culled, sizes, left = np.random.default_rng(total), set(), [], []
    for batch in train.batches(problems, size, 0, culled):
        sizes.append(len(batch))
        culled |= {p.prompt for p in batch if rng.random() < 0.3}
        left.append(total - len(culled))
    assert left[-1] == 0 and len(set(sizes)) > 2
    for steps in range(1, len(left) + 1):  # a run may end anywhere
        assert compare.batch_sizes(total, size, left[:steps]) == sizes[:steps]
    assert compare.batch_sizes(7, 3, [7] * 5) == [3, 3, 1, 3, 3]  # nothing is culled


def test_a_run_is_skipped_only_if_it_is_whole_and_the_same(tmp_path):
    """Guards against a study that keeps runs of other settings, or runs all of them again."""
    argv = compare.arguments(tmp_path, "grpo-1", 3, 20)
    folder = compare.folder_of(argv)
    folder.mkdir(parents=True)
    assert folder == tmp_path / "one-update" / "sum-grpo-seed3" and not compare.finished(argv)
    config = vars(train.parse_arguments(argv)) | {"warmup_steps": train.WARMUP_STEPS["sum"]}
    (folder / "config.json").write_text(json.dumps(config | {"out": "elsewhere"}))
    for name in ("sampled.json", "summary.json"):
        assert not compare.finished(argv)
        (folder / name).write_text("{}")
    assert compare.finished(argv)
    assert not compare.finished(compare.arguments(tmp_path, "grpo", 3, 20))
    others = {
        "variant": "nthr",
        "seed": 4,
        "steps": 21,
        "prompts": 32,
        "group_size": 16,
        "lr": 1e-3,
    }
    others |= {"kl": 0.1, "layers": 2, "width": 32, "warmup_steps": 10, "new": 0, "task": "add"}
    for name, value in others.items():
        (folder / "config.json").write_text(json.dumps(config | {name: value}))
        assert not compare.finished(argv), name


def test_arms_with_one_update(tmp_path, monkeypatch):
    """Guards against an arm of one update that makes four, or the reverse."""
    seen = []
    monkeypatch.setattr(train, "main", lambda argv: seen.append(train.update) or 1)
    monkeypatch.setattr(train, "update", original := train.update)
    for arm in ("grpo", "grpo-1"):
        assert compare.work(arm, compare.arguments(tmp_path, arm, 1, 1)) == 1
    assert seen[0] is original and seen[1].keywords == {"minibatches": 1}
    assert seen[1].func is original


def test_what_is_measured_of_a_run():
    """Guards against wrong windows of steps, wrong levels, and a variance over the first steps."""
    step = np.arange(1.0, 31)
    empty = np.full(30, np.nan)
    metrics = dict.fromkeys(("mean_abs_bias", "likelihood_change", "prompts_left"), empty)
    metrics |= {
        "entropy": step,
        "coherence": step,
        "mean_abs_advantage": step,
        "all_fail": step / 30,
    }
    metrics["grad_norm"] = np.where(step <= 10, 1e6, step % 2)
    metrics["accuracy"] = np.where(step == 20, 0.3, np.where(step == 30, 0.6, np.nan))
    by_level = {str(k): 0.1 * k for k in range(2, 9)}
    summary = {"final_accuracy": 0.6, "final_sampled": 0.5, "final_accuracy_by_level": by_level}
    summary |= {"steps": 30, "seconds": 9.0, "seconds_per_step": 0.3}
    sampled = {k: v / 2 for k, v in by_level.items()}
    row = compare.measure(compare.Run(summary, metrics, sampled), total=100)
    assert (row["hard_accuracy"], row["hard_sampled"]) == pytest.approx((0.75, 0.375))
    assert (row["all_fail_first"], row["all_fail_last"]) == pytest.approx((5.5 / 30, 25.5 / 30))
    assert row["all_fail_change"] == pytest.approx(20 / 30)
    assert row["entropy"] == 25.5 and row["lowest_accuracy"] == 0.3
    assert row["grad_norm_mean"] == 0.5 and row["grad_norm_variance"] == pytest.approx(5 / 19)
    assert row["grad_norm_spread"] == pytest.approx(math.sqrt(5 / 19) / 0.5)
    assert (row["easiest_accuracy"], row["second_accuracy"]) == pytest.approx((0.2, 0.3))
    assert row["other_accuracy"] == pytest.approx(0.55)  # levels 3 to 8
    assert (row["all_fail_mean"], row["entropy_mean"]) == pytest.approx((15.5 / 30, 15.5))
    assert row["responses"] == 8 * 15 * 100  # 15 epochs of 64 and 36 prompts


def test_verdicts_and_whole_seeds():
    """Guards against a verdict that the interval does not give, and a seed that lacks a variant."""
    cases = {(0.1, 3): "better", (-3, -0.1): "worse", (-0.5, 0.9): "no change"}
    cases |= {(-1.1, 0.5): "not decided", (math.nan, math.nan): "not decided"}
    for interval, word in cases.items():
        assert compare.outcome(*interval) == word
    agrees = [compare.agrees(r, 0.1, 3) for r in ("better", "worse", "no change")]
    assert agrees == ["yes", "no", "no"] and compare.agrees("worse", -3, 3) == "not decided"
    there = {(arm, seed) for arm in ("grpo", "nthr") for seed in (1, 2)} | {("grpo", 3)}
    whole = compare.whole_seeds(["grpo", "nthr", "grpo-1"], [1, 2, 3], there)
    assert whole == {"grpo": [1, 2], "nthr": [1, 2]}


# ---- the arithmetic of studies/allfail and studies/credit ----


def near(a, b, tolerance=1e-9):
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance)


def test_all_fail_is_the_share_of_all_subsets():
    """Guards against drawing with replacement (a biased pass@N), and a wrong N at either end."""
    n = 6
    subsets = [list(itertools.combinations(range(n), N)) for N in range(1, n + 1)]
    shares = [
        [sum(min(s) >= c for s in some) / len(some) for some in subsets]  # the first c are correct
        for c in range(n + 1)
    ]
    near(allfail.all_fail(np.arange(n + 1), n), shares, 1e-12)
    n, c = 1024, [0, 1, 3, 512, 1023, 1024]
    fails = allfail.all_fail(np.array(c), n)
    assert (fails[0] == 1).all() and (fails[5] == 0).all() and (fails[1:, -1] == 0).all()
    sizes = (1, 2, 64, 500, 1023)
    exact = [[float(Fraction(math.comb(n - k, N), math.comb(n, N))) for N in sizes] for k in c]
    near(fails[:, [N - 1 for N in sizes]], exact, 1e-10)
    near(fails[:, 0], [1 - k / n for k in c], 1e-12)


def test_the_size_at_which_half_of_the_groups_fail():
    """Guards against N off by one, 1/2 missed by rounding, and an N where half is never reached."""
    fails = np.array([[0.9, 0.6, 0.4, 0.1], [0.9, 0.8, 0.7, 0.6], [0.5, 0.4, 0.2, 0.1]])
    assert allfail.half(fails).tolist() == [3, math.inf, 1]
    assert [allfail.number(N, 4) for N in allfail.half(fails)] == ["3", "> 4", "1"]
    assert allfail.half(allfail.all_fail(np.array([512]), 1024)) == 1  # 1/2, but for rounding
    mixture = allfail.all_fail(np.array([0, 0, 1024]), 1024).mean(0)
    assert allfail.half(mixture) == math.inf  # two of three prompts are never solved
    for p in (0.5, 0.1, 0.001):
        near((1 - p) ** allfail.exponential_half(p), 0.5)
    assert (allfail.exponential_half(0.0), allfail.exponential_half(1.0)) == (math.inf, 0)
    again = allfail.resampled(fails[[1, 1, 1]])
    near(again, np.broadcast_to(fails[1], again.shape))


def test_counts_are_kept_for_the_same_model_and_settings(tmp_path, monkeypatch):
    """Guards against counts of another model, of other settings, or of a killed run."""
    asked, problems = [], [SUM.problem(np.random.default_rng(i), 2) for i in range(3)]

    def sample(model, tokenizer, task, some, n, generator):
        asked.extend(some)
        if len(asked) == 2 and kill:
            raise KeyboardInterrupt
        tokens = torch.ones(1, n, 4)
        return SimpleNamespace(rewards=(torch.arange(n) < len(asked)).float(), mask=tokens)

    monkeypatch.setattr(allfail, "sample_rollout", sample)
    model, kill = torch.nn.Linear(1, 1), True
    with pytest.raises(KeyboardInterrupt):
        allfail.count("base", model, problems, 8, 1, tmp_path)
    assert not list(tmp_path.iterdir())
    kill = False
    for n, seed, again in ((8, 1, 3), (8, 1, 0), (9, 1, 3), (9, 2, 3), (9, 2, 0)):
        asked.clear()
        assert allfail.count("base", model, problems, n, seed, tmp_path) == [1, 2, 3]
        assert len(asked) == again
    torch.nn.init.zeros_(model.weight)
    asked.clear()
    allfail.count("base", model, problems, 9, 2, tmp_path)
    assert len(asked) == 3


def written(pairs) -> grpo.Rollout:
    """A rollout of these (prompt's solution, response text), one response each; "$" ends it."""
    problems = [Problem("7+8+5=", solution, solution.split("#")[-1], 3) for solution, _ in pairs]
    texts = [text.replace("$", "<eos>").replace("_", "<pad>") for _, text in pairs]
    ids = [TOKENIZER.encode(text).ids for text in texts]
    T = max(map(len, ids)) + 2
    tokens = torch.tensor([[i + [PAD] * (T - len(i))] for i in ids])
    mask = torch.tensor([[[True] * len(i) + [False] * (T - len(i))] for i in ids])
    rewards = torch.tensor([[float(text.endswith("20$"))] for _, text in pairs])
    zeros = torch.zeros(*tokens.size())
    rest = {"logprobs": zeros, "probs": zeros, "hidden": zeros, "tokenizer": TOKENIZER}
    return grpo.Rollout(tokens=tokens, mask=mask, rewards=rewards, problems=problems, **rest)


def test_stages_of_hand_made_responses():
    """Guards against right tokens behind a wrong one, and a solution's padding taken for tokens.

    0: still right, 1: the first wrong token, 2: behind it.
    """
    cases = {
        "15,20#20$": "000000000",  # the solution, end-of-sequence included
        "15,21#20$": "000012222",  # the same characters as the solution again, but too late
        "15,20#2$": "00000001",  # ends too early
        "15,20#20_$": "0000000012",  # a sampled padding token, where a longer solution is padded
        "15,20": "00000",  # cut off
        "$": "1",
        "5": "1",
    }
    pairs = [("15,20#20", text) for text in cases] + [("15,20,29,30#30", "15,20#20$")]
    rollout = written(pairs)
    stage, right = credit.stages(rollout), credit.still_right(rollout)
    for i, expected in enumerate([*cases.values(), "000001222"]):
        n = len(expected)
        assert "".join(map(str, stage[i, 0, :n].tolist())) == expected
        assert (stage[i, 0, n:] == -1).all() and not right[i, 0, n:].any()
        assert right[i, 0, :n].tolist() == [x == "0" for x in expected]


@pytest.mark.parametrize("eta", [0.0, 0.3, 0.9])
def test_spared_tokens_are_those_that_eta_changes(eta):
    """Guards against frames round tokens of correct responses, padding, or other tokens."""
    rollout = random_rollout(6, [MIXED, ONE, FAIL, PASS], T=6, poison=(math.nan, 10**9))
    spared = credit.spared_tokens(rollout)
    assert spared.equal(advantages.nthr(rollout, eta=eta) != VARIANTS["grpo"](rollout))
    assert spared[:2].any((1, 2)).all() and not spared[2:].any()
    assert not spared[rollout.rewards == 1].any() and not spared[~rollout.mask].any()


def test_shares_of_spared_tokens():
    """Guards against a mean of shares for a share of sums, and resampling of single tokens.

    [tokens, spared ones][stage]; then 100 groups that are alike, and 100 that are not.
    """
    group = np.array([[10.0, 2.0, 6.0], [1.0, 1.0, 3.0]])
    near(credit.shares(group), [0.1, 0.5, 0.5, 0.1 - 4 / 8])
    other = np.array([[30.0, 2.0, 6.0], [30.0, 1.0, 3.0]])
    near(credit.shares(group + other)[0], 31 / 40)
    alike = credit.intervals(np.stack([group] * 100))
    near(alike, np.stack([credit.shares(group)] * 3))
    zeros, ones = group * 0 + [[8.0], [0.0]], group * 0 + [[8.0], [8.0]]
    half = 1.96 * 0.5 / math.sqrt(100)  # groups of eight tokens, all spared or none
    mean, low, high = credit.intervals(np.stack([zeros, ones] * 50))[:, 0]
    near([mean, low, high], [0.5, 0.5 - half, 0.5 + half], 0.015)


def test_counts_leave_out_correct_responses():
    """Guards against correct responses in the table, and weights of pi for 1 - pi."""
    rollout = written([("15,20#20", "15,21#21$"), ("15,20#20", "15,20#20$")])
    for name in ("tokens", "mask", "rewards", "logprobs"):  # two groups of one -> one of two
        setattr(rollout, name, getattr(rollout, name).transpose(0, 1))
    rollout.problems, T = rollout.problems[:1], rollout.mask.size(2)
    rollout.logprobs = torch.full((1, 2, T), math.log(0.25))
    rollout.probs, rollout.hidden = torch.rand(1, 2, T, V), torch.rand(1, 2, T, 3)
    plain, weighted = credit.counts(rollout)
    assert plain[0].tolist() == [4, 1, 4]
    spared = credit.spared_tokens(rollout)[0, 0]
    assert plain[1].tolist() == [spared[:4].sum(), spared[4], spared[5:].sum()]
    near(torch.tensor(weighted), torch.tensor(0.75 * plain), 1e-5)


def test_the_critic_is_that_of_train(base, tmp_path, monkeypatch):
    """Guards against a critic trained otherwise than `train.py --variant critic` trains it."""
    RATE = 0.1  # so large that the policy's change is seen in what the critic learns from
    out, seen, original = with_base(base, tmp_path / "out"), [], train.token_bias
    monkeypatch.setattr(type(SUM), "reward", lambda task, problem, text: len(text) % 2.0)
    monkeypatch.setattr(train, "token_bias", lambda c, r: (seen.append(c), original(c, r))[1])
    assert run_train(out, "--variant", "critic", "--seed", 3, "--steps", 3, "--lr", RATE) == 0
    for name, value in {"PROMPTS": 4, "GROUP": 4, "STEPS": 3, "RATE": RATE}.items():
        monkeypatch.setattr(credit, name, value)
    monkeypatch.setattr(train, "TRAIN_SIZE", 84)
    columns = len(SUM.longest.prompt) + 2 * (len(SUM.longest.solution) + 1)
    model, path = GPT(GPTConfig(V, columns, 1, 16)), tmp_path / "critic.pt"
    model.load_state_dict(torch.load(base, weights_only=True)[1])
    critics = [credit.trained_critic(model, 3, 3, path)]
    monkeypatch.setattr(credit, "sample_rollout", None)  # the second time it is read
    critics.append(credit.trained_critic(model, 3, 3, path))
    for critic in critics:
        for a, b in zip(critic.parameters(), seen[-1].parameters(), strict=True):
            assert a.equal(b)
