"""The second half of the lesson: every formula a second time, and the well-known bugs of the field.

In the core a formula is vectorised. Here it is written as the sums of its paper, with loops over
groups, responses and tokens. A new variant needs one line here, its formula in FORMULAS. It then
gets all tests that are common to the variants. The docstring of a test describes the bug that it
finds.
"""

import dataclasses
import math
from copy import deepcopy
from itertools import islice
from statistics import fmean as mean
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import Tensor

import advantages
import tasks
import train
from advantages import VARIANTS, with_advantages
from grpo import Rollout, k3, policy_loss, response_logprobs, sample_rollout, token_weights, update
from model import GPT
from tasks import ADD, SUM, TASKS, TOKENIZER, Problem, Task, from_columns, held_out
from tasks import make_problems

torch.set_num_threads(1)  # the tensors are tiny: more threads would only wait for each other
SEED = 0  # the seed of everything random here; every other number passes as well
V = TOKENIZER.get_vocab_size()
TOKEN_FIELDS = ("tokens", "mask", "logprobs", "probs", "hidden", "bias", "end")  # (P, G, T, ...)
FIELDS = TOKEN_FIELDS + ("rewards", "L")  # (P, G, ...)
MIXED = [1.0, 0.0, 0.0, 1.0]
ONE = [0.0, 0.0, 1.0, 0.0]
FAIL = [0.0, 0.0, 0.0, 0.0]
PASS = [1.0, 1.0, 1.0, 1.0]
REAL = [0.25, 1.0, 0.7, 0.0]  # other verifiers give rewards between 0 and 1
POISON = [math.nan, math.inf, -math.inf, 1e30]  # numbers that padding may hold


def close(a, b, tolerance=1e-9):  # the tolerance is absolute, and NaN equals NaN
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance, equal_nan=True)


# ---- (1) Groups of random numbers
@dataclasses.dataclass
class Numbers(Rollout):
    """A rollout with random numbers in place of those that forward passes would give."""

    bias: Tensor | None = None  # (P, G, T), a critic's
    L: Tensor | None = None  # (P, G), the true answer's likelihood
    end: Tensor | None = None  # (P, G, T) bool, True on a true answer, for `verifree`


def random_rollout(rewards, T=5, poison=None, dtype=torch.float64) -> Numbers:
    """Ragged groups with these rewards (P, G). poison: the number that the padding holds."""
    torch.manual_seed(SEED)
    rewards = torch.tensor(rewards, dtype=dtype)
    P, G = rewards.size()
    lengths = torch.randint(1, T + 1, (P, G))
    lengths[0, -1] = T
    mask = torch.arange(T) < lengths[..., None]
    tokens = torch.randint(7, (P, G, T))
    begin = torch.arange(T) < torch.randint(T + 1, (P, G, 1))
    tokens = torch.where(begin, tokens[:, :1], tokens)  # responses begin as the first one does
    probs = (2 * torch.randn(P, G, T, 7, dtype=dtype)).softmax(-1)
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log()
    hidden = torch.randn(P, G, T, 6, dtype=dtype)
    x = Numbers(tokens, mask, rewards, logprobs, probs, hidden)
    x.bias = torch.randn(P, G, T, dtype=dtype)
    x.L = torch.rand(P, G, dtype=dtype)
    x.end = mask & (torch.arange(T) >= torch.randint(T + 1, (P, G, 1)))
    # The first response is its group's solution. Steps end at "#" and "$", wherever these stand.
    solutions = [TOKENIZER.decode(first[m].tolist()) for first, m in zip(tokens[:, 0], mask[:, 0])]
    x.problems = [Problem("", solution, "", 0) for solution in solutions]
    if poison is not None:
        tokens[~mask] = 10**6
        for name in ("logprobs", "probs", "hidden", "bias"):
            getattr(x, name)[~mask] = poison
    return x


def apply(name, x) -> Rollout:
    """Calls the variant with the numbers of x in place of forward passes."""
    variant = VARIANTS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(advantages, "token_bias", lambda network, x: x.bias)
        values = lambda network, x, groups=slice(None): x.bias[groups]  # noqa: E731
        patch.setattr(advantages, "token_values", values)
        patch.setattr(advantages, "descend", lambda optimizer, loss: None)
        patch.setattr(advantages, "answer_likelihood", lambda x: x.L)
        patch.setattr(advantages, "answered", lambda x: dataclasses.replace(x, given=x.end))
        if isinstance(variant, type):
            variant = variant(torch.nn.Linear(1, 1), lr=0.1)
        return with_advantages(x, variant)


# ---- (2) The formulas, as sums over lists of numbers
def standardised(r, i):
    """(r_i - mu) / (sigma + eps), where sigma divides by G. It is 0 if all rewards are equal."""
    if min(r) == max(r):
        return 0.0
    mu = mean(r)
    sigma = math.sqrt(mean([(r_j - mu) ** 2 for r_j in r]))
    return (r[i] - mu) / (sigma + 1e-6)


def compensation_at(x, i, t):  # A_{i,t}, as in FORMULAS below
    A = standardised(x.r, i)
    pi = [math.exp(logp) for logp in x.logprobs[i]]
    return A * (2 - pi[t] / max(pi)) if A > 0 else A


def entropy(pi):
    return -sum(p * math.log(p) for p in pi)


def forking_at(x, i, t):  # A_i if the entropy of this token is in the batch's top fifth
    A = standardised(x.r, i)
    mixed = [group for group in x.groups if min(group.r) < max(group.r)]
    ordered = sorted(entropy(pi) for group in mixed for y in group.probs for pi in y)
    if not ordered:
        return 0.0
    place = 0.8 * (len(ordered) - 1)  # of the quantile, between two of them
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    threshold = ordered[below] + (place - below) * (ordered[above] - ordered[below])
    return A if entropy(x.probs[i][t]) >= threshold - 1e-12 else 0.0


def score_at(x, j, t):
    """s_{j,t} = sum_{i correct} sum_k <g_{i,k}, g_{j,t}> <h_{i,k}, h_{j,t}>   (Eq. 7)"""

    def g(i, k):
        return [(v == x.tokens[i][k]) - p for v, p in enumerate(x.probs[i][k])]

    s = 0.0
    for i in [i for i, r in enumerate(x.r) if r == 1]:
        for k in range(len(x.tokens[i])):
            s += np.dot(g(i, k), g(j, t)) * np.dot(x.hidden[i][k], x.hidden[j][t])
    return s


def nthr_at(x, i, t, eta=None):  # A_{i,t} by Algorithm 1
    A = standardised(x.r, i)
    correct = [j for j, r in enumerate(x.r) if r == 1]
    if i in correct or not correct:
        return A
    sbar = [mean([score_at(x, j, k) for k in range(len(x.tokens[j]))]) for j in correct]
    tau = min(sbar)  # Eq. 8
    eta = 2 * abs(len(correct) / len(x.r) - 0.5) if eta is None else eta
    return eta * A if score_at(x, i, t) > tau else A


def verifree_at(x, i, t):
    """L_i / sd on the true answer, elsewhere (L_i - mean of the others) / sd."""
    ends = [[lp for lp, end in zip(*y) if end] for y in zip(x.logprobs, x.end)]
    L = [math.exp(sum(y)) if y else 0.0 for y in ends]
    mu = mean(L)
    sd = math.sqrt(mu * (1 - mu)) + 1e-6
    others = mean(L[:i] + L[i + 1 :] or L)
    return 0.0 if mu > 0.999 else (L[i] if x.end[i][t] else L[i] - others) / sd


def process_at(x, i, t):
    """The sum of the standardised R_{i,k} over the steps of the solution that end at t or later."""
    ends = ids(",#$")
    places = [k for k, token in enumerate(x.solution) if token in ends]  # where its steps end
    judged = [(j, k) for j in range(len(x.tokens)) for k in places]
    R = [float(x.tokens[j][: k + 1] == x.solution[: k + 1]) for j, k in judged]
    return sum(standardised(R, n) for n, (j, k) in enumerate(judged) if j == i and k >= t)


FORMULAS = {  # A_{i,t} in a group x, which has x.r[i], x.L[i], x.tokens[i][t], ...: see by_loops
    "grpo": lambda x, i, t: standardised(x.r, i),
    "dr_grpo": lambda x, i, t: x.r[i] - mean(x.r),
    "rloo": lambda x, i, t: x.r[i] - mean(x.r[:i] + x.r[i + 1 :] or x.r),  # the others, if any
    "maxrl": lambda x, i, t: (x.r[i] - mean(x.r)) / mean(x.r) if any(x.r) else 0.0,
    "pos_only": lambda x, i, t: max(standardised(x.r, i), 0.0),
    "reinforce": lambda x, i, t: x.r[i],
    "half": lambda x, i, t: max(standardised(x.r, i), standardised(x.r, i) / 2),
    "critic": lambda x, i, t: standardised(x.r, i) + x.bias[i][t],
    "ppo": lambda x, i, t: x.r[i] - x.bias[i][t],
    "compensation": compensation_at,
    "culling": lambda x, i, t: standardised(x.r, i),
    "negative": lambda x, i, t: standardised(x.r, i) if any(x.r) else -1.0,
    "ngrpo": lambda x, i, t: standardised(x.r + [1.0], i),
    "likelihood": lambda x, i, t: standardised(x.r if any(x.r) else x.L, i),
    "verifree": verifree_at,
    "forking": forking_at,
    "process": process_at,
    "nthr": nthr_at,
    "gspo": lambda x, i, t: standardised(x.r, i),
    "cispo": lambda x, i, t: standardised(x.r, i),
}


def by_loops(rollout, formula):
    """formula(x, i, t) of every token. x is a group as lists of tokens: x.r[i], x.probs[i][t].

    x.groups is the list of all groups, for a formula that needs more than its own.
    """
    groups = []
    for p, masks in enumerate(rollout.mask):
        x = SimpleNamespace(r=rollout.rewards[p].tolist(), L=rollout.L[p].tolist(), groups=groups)
        x.solution = ids(rollout.problems[p].solution + "$")
        for name in TOKEN_FIELDS:
            rows = getattr(rollout, name)[p]
            setattr(x, name, [row[m].tolist() for row, m in zip(rows, masks)])
        groups.append(x)
    A = torch.zeros(rollout.mask.size(), dtype=torch.float64)
    for p, i, t in rollout.mask.nonzero().tolist():
        A[p, i, t] = formula(groups[p], i, t)
    return A


BY_HAND = {  # rewards of a group, advantages, what is wrong if they are others
    "grpo": [
        ([1, 0, 0, 0, 0, 0, 0, 0], [2.6457] + [-0.378] * 7, "sigma divides by G, not by G - 1"),
        ([1e-6, 0, 0, 0], [0.5234] + [-0.1745] * 3, "eps is added to sigma, not under the root"),
    ],
    "maxrl": [
        ([1, 0, 0, 0], [3, -1, -1, -1], "r_i - mu is divided by mu"),
        (FAIL, FAIL, "mu is 0"),
    ],
    "reinforce": [(ONE, ONE, "the advantage is the reward itself, without a baseline")],
    "dr_grpo": [
        ([1, 0, 0, 0], [0.75] + [-0.25] * 3, "the group's mean is subtracted, and nothing divides")
    ],
    "rloo": [
        ([1, 0, 0, 0], [1] + [-1 / 3] * 3, "the baseline is the mean of the others, without r_i"),
        ([1], [0], "a response without others gets 0"),
    ],
    "negative": [
        (FAIL, [-1] * 4, "in an all-fail group every response gets -1"),
        (ONE, [-0.5773, -0.5773, 1.732, -0.5773], "a mixed group gets what it gets from grpo"),
    ],
    "ngrpo": [
        ([1] + [0] * 7, [1.8708] + [-0.5345] * 7, "mu and sigma contain the imagined reward, 1"),
        (FAIL, [-0.5] * 4, "mu and sigma contain the imagined reward, also if all fail"),
    ],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_variant_gives_numbers_computed_by_hand(name):
    """The equation is misread. If loops and tensors misread it in the same way, they agree."""
    for rewards, expected, said in BY_HAND[name]:
        x = random_rollout([rewards], T=1)
        loops = by_loops(x, FORMULAS[name]).flatten().tolist()
        assert loops == pytest.approx(expected, abs=1e-4), f"loops, rewards {rewards}: {said}"
        tensors = apply(name, x).A.flatten().tolist()
        assert tensors == pytest.approx(expected, abs=1e-4), f"tensors, rewards {rewards}: {said}"


SOLUTION = "12,13,06# 632$"  # of 347+285=. Its steps end at the places 2, 5, 8 and 13.
PROCESS = {  # a response: R, whether it is the solution up to each of these places
    "12,13,06# 632$": [1, 1, 1, 1],
    "12,14,06# 632$": [1, 0, 0, 0],  # nothing behind a mistake is rewarded, right or not
    "12,13,06# 642$": [1, 1, 1, 0],
    "12,13,": [1, 1, 0, 0],  # cut off behind a step
    "12,13": [1, 0, 0, 0],  # cut off within a step
    "12,13$": [1, 0, 0, 0],  # the end in place of a comma
    "12,13,$": [1, 1, 0, 0],
    "121306# 632$": [0, 0, 0, 0],  # no comma
    "12,1306# 632$": [1, 0, 0, 0],  # two steps in one
    "12,13,06,01# 632$": [1, 1, 0, 0],  # a step too many, and longer than the solution
    "12,13,06 632$": [1, 1, 0, 0],  # no marker
    "12,13,06# 632,,,": [1, 1, 1, 0],  # no end, and longer than the solution
    "# 632$": [0, 0, 0, 0],
    "$": [0, 0, 0, 0],
}
PROCESS_GROUPS = {
    "all kinds": [*PROCESS],
    "shorter than the solution": ["12,13,", "12,13", "12,13$", "$"],
    "all have step 1, none step 4": ["12,13,$", "12,14,06# 632$", "12,13,06# 642$"],
    "all right": [SOLUTION] * 3,
    "all wrong": ["121306# 632$", "# 632$", "$"],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("texts", PROCESS_GROUPS.values(), ids=PROCESS_GROUPS)
def test_process_judges_responses_at_the_places_of_the_solution(texts, dtype):
    """A response is judged where it ends its own steps, so it pays nothing for a step that it never
    ends. A step after a mistake is rewarded. Padding counts, here the rest of the solution. The sum
    has only the places of the response, or it begins at the first step. Or the mean is that of one
    step or of one response.
    """
    T = max(map(len, texts))
    x = random_rollout([[0] * len(texts)], T, dtype=dtype)  # the rewards are not read
    x.mask = torch.tensor([[[t < len(text) for t in range(T)] for text in texts]])
    rows = [(text + SOLUTION[len(text) :]).ljust(T, ",")[:T] for text in texts]
    x.tokens = torch.tensor([[ids(row) for row in rows]])
    x.problems = [problem(ADD, [347, 285], 3)]
    mu = mean(r for text in texts for r in PROCESS[text])
    sigma = math.sqrt(mean((r - mu) ** 2 for text in texts for r in PROCESS[text]))
    expected = torch.zeros(x.mask.size(), dtype=dtype)
    for _, i, t in x.mask.nonzero().tolist():
        later = [r for r, place in zip(PROCESS[texts[i]], (2, 5, 8, 13)) if place >= t]
        expected[0, i, t] = sum((r - mu) / (sigma + 1e-6) for r in later)
    close(by_loops(x, process_at), expected.double(), 1e-5)
    A = apply("process", x).A
    close(A, expected, 1e-5)
    assert A.any() == (sigma > 0)  # exactly 0 if all steps are right or all are wrong


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_its_formula(name):
    """Loops and tensors differ: a sign is lost, a neighbour is read, padding counts, a case is
    forgotten, or a token is selected that should not be.
    """
    assert name in FORMULAS, f"write the formula of {name!r} into FORMULAS in test_grpo.py"
    groups = [[MIXED, FAIL, PASS, ONE, REAL], [[0, 1, 0, 0, 0, 0, 1, 0]], [[1], [0]], [[1, 0]]]
    groups.append([[0.0, 0.5, 1.0], [1.0, 0.0, 0.0]])  # one response is at the mean: A_i = 0
    for T, rewards in enumerate(groups, start=3):
        for rollout in (random_rollout(rewards, T), random_rollout(rewards, T=1)):
            close(apply(name, rollout).A, by_loops(rollout, FORMULAS[name]))


# ---- (3) Properties of all variants
@pytest.mark.parametrize("name", [name for name in VARIANTS if name != "forking"])
def test_statistics_are_of_the_group_and_not_of_the_batch(name):
    """Other groups have an influence: a mean is over the whole batch and not over the group. Or a
    mean over T counts padding, and then a longer neighbour changes it.
    """
    rollout = random_rollout([PASS, FAIL, ONE, MIXED, REAL], T=20, poison=math.nan)
    rollout.mask[1:, :, 5:] = False  # so most of T is padding, except in the first group
    rollout.end &= rollout.mask
    order = torch.tensor([2, 0, 3, 1])
    for p in range(5):
        T = int(rollout.mask[p].sum(-1).max())
        fields = {name: getattr(rollout, name)[p : p + 1, order] for name in FIELDS}
        fields |= {name: fields[name][:, :, :T] for name in TOKEN_FIELDS}
        fields["problems"] = rollout.problems[p : p + 1]
        alone = dataclasses.replace(rollout, **fields)
        close(apply(name, alone).A, apply(name, rollout).A[p : p + 1, order, :T], 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("poison", POISON)
@pytest.mark.parametrize("name", VARIANTS)
def test_nan_in_the_padding_reaches_no_advantage(name, poison, dtype):
    """NaN in the padding is multiplied by 0, which gives NaN, and not replaced."""
    poisoned = random_rollout([MIXED, FAIL, PASS, ONE], dtype=dtype, poison=poison)
    clean = random_rollout([MIXED, FAIL, PASS, ONE], dtype=dtype)
    A = apply(name, poisoned).A
    assert A.dtype == dtype
    assert torch.equal(A, apply(name, clean).A)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_changes_no_input_and_has_no_gradient(name):
    """A variant changes the rewards, so the metrics are wrong. Or the loss also has a gradient
    through A, and that is another algorithm.
    """
    rollout = random_rollout([MIXED, FAIL, PASS, ONE])
    before = random_rollout([MIXED, FAIL, PASS, ONE])
    for field in ("rewards", "logprobs", "probs", "hidden", "bias", "L"):
        getattr(rollout, field).requires_grad_()
    assert not apply(name, rollout).A.requires_grad
    assert rollout.A is None and rollout.given is None
    for field in FIELDS:
        close(getattr(rollout, field), getattr(before, field), 0)


# ---- (4) The loss
def loss_by_loops(logprobs, old, A, mask, low, high, aggregate, loss_type="grpo"):
    """- sum_{i,t} min(ratio A, clip(ratio, 1 - low, 1 + high) A) / sum_i |y_i|

    gspo: ratio is sg[s_i] pi_theta / sg[pi_theta], where s_i is the response's geometric mean.
    cispo: a term is sg[min(ratio, 1 + high)] A ln pi_theta.  sg: as a number, without gradient.
    """
    gains = {}  # of each response (g, i)
    for g, i, t in mask.nonzero().tolist():
        a = A[g, i, t]
        logp = logprobs[g, i, t]
        ratio = (logp - old[g, i, t]).clamp(-20, 20).exp()  # kept finite
        if loss_type == "gspo":
            row = [(logprobs[g, i, k] - old[g, i, k]).item() for k in mask[g, i].nonzero()[:, 0]]
            ratio = (mean(row) + logp - logp.item()).clamp(-20, 20).exp()
        gain = min(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
        if loss_type == "cispo":
            gain = min(ratio.item(), 1 + high) * a * logp
        gains.setdefault((g, i), []).append(gain)
    if aggregate == "response":
        return -sum(sum(response) / len(response) for response in gains.values()) / len(gains)
    tokens = [gain for response in gains.values() for gain in response]
    return -sum(tokens) / (len(tokens) if aggregate == "token" else len(gains) * 24)


@pytest.mark.parametrize(
    "aggregate, value", [("token", 0.5), ("response", 0.0), ("constant", 1 / 24)]
)
def test_policy_loss_of_two_responses_by_hand(aggregate, value):
    """The mean is taken over the wrong number of tokens. Here the responses have 1 and 3 tokens."""
    x = random_rollout([[1, 0]], T=3)
    x.mask = torch.tensor([[[True, False, False], [True, True, True]]])
    A = torch.tensor([[[1.0, 0.0, 0.0], [-1.0, -1.0, -1.0]]], dtype=torch.float64)
    said = "all ratios are 1 and the sum of A is -2, over 4 tokens, 2 responses or 2 times 24"
    loops = loss_by_loops(x.logprobs, x.logprobs, A, x.mask, 0.2, 0.2, aggregate)
    assert loops.item() == pytest.approx(value, abs=1e-6), f"loops, {aggregate}: {said}"
    weights = token_weights(x.mask, aggregate, 24)
    tensors, _ = policy_loss(x.logprobs, x.logprobs, A, weights)
    assert tensors.item() == pytest.approx(value, abs=1e-6), f"tensors, {aggregate}: {said}"


@pytest.mark.parametrize("loss_type", ["grpo", "gspo", "cispo"])
@pytest.mark.parametrize("distance", [0.4, 30.0, 1e4])  # 0.4 gives ratios up to about 2
@pytest.mark.parametrize("aggregate", ["token", "response", "constant"])
def test_policy_loss_equals_its_formula(aggregate, distance, loss_type):
    """The loss only keeps the clipped product, it takes the max where A is negative, its clip has
    other bounds, or the mean is taken over the wrong number of tokens. Or the loss is not finite:
    padding that holds NaN is multiplied by 0, or a ratio is too large.

    gspo: the ratio is the product and not the geometric mean, the mean counts padding, or all
    tokens get the mean of A. cispo: a ratio has a lower limit, or the gradient also flows through
    the weight.
    """
    rollout = random_rollout([MIXED, ONE, FAIL, REAL], poison=math.nan)
    rollout.mask[0, 0, 1:] = False  # a response of one token
    logprobs = (rollout.logprobs + distance * rollout.bias).requires_grad_()
    A = apply("critic", rollout).A
    weights = token_weights(rollout.mask, aggregate, max_length=24)
    for low, high in ((0.2, 0.2), (0.16, 0.24), (0.3, 0.1)):
        how = (low, high, loss_type)
        loss, _ = policy_loss(logprobs, rollout.logprobs, A, weights, *how)
        how = (low, high, aggregate, loss_type)
        oracle = loss_by_loops(logprobs, rollout.logprobs, A, rollout.mask, *how)
        assert oracle.isfinite(), f"loss_by_loops gives {oracle.item()}"
        said = "a token of weight 0 is not replaced before exp, or a ratio is too large"
        assert loss.isfinite(), f"policy_loss gives {loss.item()}: {said}"
        torch.testing.assert_close(loss, oracle)
        gradients = [torch.autograd.grad(x, logprobs)[0] for x in (loss, oracle)]
        torch.testing.assert_close(*gradients)


def test_at_ratio_1_all_loss_types_have_one_gradient():
    """A loss type changes more than what ratio and clip do, for example the credit of a token."""
    rollout = random_rollout([MIXED, ONE, FAIL, REAL], poison=math.nan)
    A = apply("critic", rollout).A  # it differs from token to token
    logprobs = rollout.logprobs.clone().requires_grad_()
    weights = token_weights(rollout.mask)
    for loss_type in ("grpo", "gspo", "cispo"):
        loss, cut = policy_loss(logprobs, rollout.logprobs, A, weights, loss_type=loss_type)
        close(torch.autograd.grad(loss, logprobs)[0], -weights * A)
        assert not cut.any()


@pytest.mark.parametrize(
    "sign, ratio, value, slope",  # value of min(...), and d value / d ratio, which is 0 if clipped
    [(+1, 0.5, +0.50, 1), (+1, 1.0, +1.00, 1), (+1, 1.2, +1.20, 1), (+1, 1.5, +1.24, 0)]
    + [(-1, 0.5, -0.84, 0), (-1, 0.9, -0.90, -1), (-1, 1.0, -1.00, -1), (-1, 1.5, -1.50, -1)],
)
def test_clip_truth_table(sign, ratio, value, slope):
    """The loss only keeps the clipped product, so a token that has moved the wrong way is not
    pushed back. Or it takes the max where A is negative, and then nothing stops the push down.
    """
    old = torch.full((1, 1, 1), -1.5, dtype=torch.float64)
    logprobs = (old + math.log(ratio)).requires_grad_()
    A = 2.0 * sign * torch.ones_like(old)
    weights = torch.ones_like(old)
    loss, cut = policy_loss(logprobs, old, A, weights, clip_low=0.16, clip_high=0.24)
    loss.backward()
    assert loss.item() == pytest.approx(-2 * value)
    assert logprobs.grad.item() == pytest.approx(-2 * slope * ratio)  # d ratio / d logp = ratio
    assert cut.item() == (slope == 0)  # clip_fraction counts these
    _, cut = policy_loss(logprobs, old, A, weights, 0.16, 0.24, "cispo")
    assert cut.item() == (ratio > 1.24)  # cispo cuts the weight, whatever the sign of A is


def test_the_kl_term_has_the_value_of_one_divergence_and_the_gradient_of_the_other():
    """The KL term has ln pi - ln pi_ref in place of its negative, so value and gradient are wrong.

    The test enumerates all six tokens that can be sampled, each weighted by its probability.
    """
    torch.manual_seed(SEED)
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(6, dtype=torch.float64).log_softmax(0)
    logp = logits.log_softmax(0)
    pi = logp.exp()
    found = (pi.detach() * k3(reference - logp)).sum()  # the mean over samples of pi
    named = (pi * (logp - reference)).sum()  # KL(pi || reference)
    other = (reference.exp() * (reference - logp)).sum()  # KL(reference || pi)
    close(found, named)
    assert abs(found - other) > 1e-4
    means = (found, named, other)
    gradients = [torch.autograd.grad(x, logits, retain_graph=True)[0] for x in means]
    close(gradients[0], gradients[2])
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


# ---- (5) Sampling
def tiny_gpt(vocabulary=V, **options) -> GPT:
    """A GPT whose weights are far from their start values, so that every part has an effect."""
    torch.manual_seed(SEED)
    model = GPT(vocabulary, 60, layers=2, width=16, **options)
    for weight in model.parameters():
        weight.data += 0.25 * torch.randn_like(weight)
    return model


def sample(model, levels=(2, 5, 4, 3), G=4, seed=0, task=ADD, **options) -> Rollout:
    rng = np.random.default_rng(SEED)
    problems = [task.problem(rng, level) for level in levels]
    generator = torch.Generator().manual_seed(SEED + seed)
    return sample_rollout(model, task, problems, G, generator=generator, **options)


def problem(task: Task, numbers, level: int) -> Problem:
    drawn = iter(numbers)
    return task.problem(SimpleNamespace(integers=lambda low, high: next(drawn)), level)


def fewer_problems(draws: int, monkeypatch) -> None:
    """Lowers DRAWS, and turns off the cache of make_problems."""
    monkeypatch.setattr(tasks, "DRAWS", draws)
    for module in (tasks, train):
        monkeypatch.setattr(module, "make_problems", make_problems.__wrapped__)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


class Script(torch.nn.Module):
    """Takes the place of a GPT and writes given texts: each next token has the probability 1."""

    def __init__(self, texts: list[str]):
        super().__init__()
        rows = torch.tensor([ids(text.ljust(99, "$")) for text in texts])  # (B, 99)
        self.columns = iter(torch.nn.functional.one_hot(rows.T, V).float().log())  # (B, V) each
        self.norm = torch.nn.LayerNorm(1)  # generate reads its dtype
        self.unembed = torch.nn.Identity()  # the hidden vectors are the logits

    def forward(self, tokens, cache=None):
        """Reads a prompt, and then has no cache. Or gives the logits of each row's next token."""
        return (None, []) if cache is None else (next(self.columns)[:, None], cache)


def scripted(problems, responses, T=None, model=None, **options) -> Rollout:
    """The rollout whose responses are these texts. They end with "$", or are cut off at T tokens.

    model: the one that a variant then finds in the rollout, and reads the texts with.
    """
    writer = Script([text for group in responses for text in group])
    G = len(responses[0])
    rollout = sample_rollout(writer, SUM, problems, G, max_new_tokens=T, **options)
    return dataclasses.replace(rollout, model=model)


def masked(rollout) -> list[list[str]]:
    """The responses as texts, up to the end of their mask."""
    groups = zip(rollout.tokens, rollout.mask)
    return [[TOKENIZER.decode(y[m].tolist()) for y, m in zip(*group)] for group in groups]


def read_alone(model, rollout):
    """Reads each response as one row, without a cache: g, i, tokens, hidden, outputs.

    hidden and outputs begin after the last token of the prompt.
    """
    for g, i in np.ndindex(*rollout.rewards.shape):
        tokens = rollout.tokens[g, i, rollout.mask[g, i]].tolist()
        row = torch.tensor([ids(rollout.problems[g].prompt) + tokens])
        hidden = model(row)[0][0, -len(tokens) - 1 :]
        yield g, i, tokens, hidden, model.unembed(hidden)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_kv_cache_gives_what_the_teacher_forced_pass_gives(task, temperature):
    """The temperature is forgotten, the cache is not kept or belongs to another prompt, or a
    position or a mask is wrong. Sampling is then from another policy than the one that is trained.
    """
    model = tiny_gpt().double()
    levels = [*reversed(task.levels), *task.levels]
    rollout = sample(model, levels, task=task, temperature=temperature)
    assert rollout.temperature == (temperature or 1)  # greedy: probabilities of temperature 1
    for g, i, tokens, hidden, logits in read_alone(model, rollout):
        p = (logits[:-1] / rollout.temperature).softmax(-1)
        close(rollout.hidden[g, i, : len(tokens)], hidden[:-1])
        close(rollout.probs[g, i, : len(tokens)], p)
        assert temperature or tokens == p.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_of_this_position_and_temperature(temperature):
    """A token is scored by the hidden vector after it and not by the one before it, the temperature
    is forgotten, or other groups are read than `groups` says. The first ratio is then not 1.
    """
    model = tiny_gpt().double()
    rollout = sample(model, temperature=temperature)
    found = response_logprobs(model, rollout)
    assert (found[~rollout.mask] == 0).all()
    close(rollout.logprobs, found.detach())
    close(response_logprobs(model, rollout, [2, 0]), found[[2, 0]])
    for g, i, tokens, _, logits in read_alone(model, rollout):
        logp = (logits[:-1] / temperature).log_softmax(-1)
        close(found[g, i, : len(tokens)], logp[range(len(tokens)), tokens])


def test_the_mask_has_the_end_token_and_nothing_after_it():
    """Sampling ends with the first response that ends, and the others are cut off.

    Or the mask is wrong. Without the end token in it, a model never learns to end. With tokens
    after the end, the model is trained on text that nobody reads.
    """
    problems = [problem(SUM, [7, 8], 2), problem(SUM, [1, 2, 9], 3)]
    responses = [["15#15$", "15#15$7,", "15#1,5,"], ["$", "$$3$", "3,12#12$"]]
    rollout = scripted(problems, responses, T=7)
    assert masked(rollout) == [["15#15$", "15#15$", "15#1,5,"], ["$", "$", "3,12#12"]]
    assert rollout.texts == [["15#15", "15#15", "15#1,5,"], ["", "", "3,12#12"]]
    assert rollout.rewards.tolist() == [[1, 1, 0], [0, 0, 0]]  # cut off before its end: 0


def test_the_mask_is_by_position_and_not_by_token_value():
    """The mask hides padding tokens by their value. A sampled padding token is an error, and nobody
    would punish it.
    """
    rollout = scripted([problem(SUM, [7, 8], 2)], [["15#_15$", "__$", "_15#15$", "15#15_"]], T=7)
    assert masked(rollout) == [["15#_15$", "__$", "_15#15$", "15#15_$"]]
    assert rollout.rewards.tolist() == [[0, 0, 1, 0]]


def test_attention_is_the_usual_one():
    """Scores are divided by d and not by its root. Or the cache is put after the new tokens."""
    model = tiny_gpt().double()
    tokens = torch.randint(V, (2, 7))
    x = model.embed_token(tokens) + model.embed_position.weight[:7]
    for block in model.blocks:
        q, k, v = block.qkv(block.norm1(x)).split([16, 4, 4], dim=-1)
        q = q.view(2, 7, 4, 4).transpose(1, 2)
        k, v = (shared[:, None].expand_as(q) for shared in (k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + block.project(y.transpose(1, 2).reshape(2, 7, 16))
        x = x + block.mlp[2](block.mlp[0](block.norm2(x)).relu())
    close(model(tokens)[0], model.norm(x))
    _, cache = model(tokens[:, :3])
    close(model(tokens[:, 3:], cache)[0], model.norm(x)[:, 3:])


def test_the_three_checks_ask_three_things():
    """The reward asks for the steps, it accepts several guesses, or a text raises an exception.
    Or coherence asks for the truth.
    """
    p = problem(ADD, [347, 285], 3)
    assert p == ("  347+  285=", "12,13,06# 632", " 632", 3)
    right = "12,13,06# 632|12,13,06# 642|12,13,06#632|12,13,06#|12,13,06# 632#|12,13,06#642# 632"
    wrong = "12,14,06# 642|12,14,06# 632|12,3,06# 632|12,13,6# 632|12, 3,06# 632|12,13,06"
    texts = [*right.split("|"), *wrong.split("|"), "012,13,06# 632", "12,13,06 # 632"]
    assert [y for y in texts if ADD.reasoning_correct(p, y)] == right.split("|")
    assert [y for y in texts if ADD.coherent(p, y)] == ["12,13,06# 632", "12,14,06# 642"]
    for y in texts:
        said = f"the reward of {y!r}: the answer is {p.answer!r}, "
        if y.count("#") != 1:
            assert not ADD.reward(p, y), said + "and a response needs exactly one marker"
        elif y.endswith("# 632"):
            assert ADD.reward(p, y), said + "and the reasoning does not count"
        else:
            assert not ADD.reward(p, y), said + "and every character behind the marker counts"


# ---- (6) One update
SETTINGS = "minibatches aggregate kl max_grad_norm clip_low clip_high loss_type".split()
GIVEN = vars(train.parse_arguments([]))  # what the command line says if nobody says anything
DEFAULTS = {name: GIVEN[name] for name in SETTINGS}  # tests/test_train.py has the numbers
CASES = [
    {},
    {"minibatches": 3, "kl": 0.02, "clip_low": 0.1, "clip_high": 0.3, "max_grad_norm": 1.0},
    {"minibatches": 2, "aggregate": "response", "max_grad_norm": 0.05},
    {"minibatches": 9, "aggregate": "constant", "kl": 0.5, "max_grad_norm": 1e9},
    {"loss_type": "gspo", "aggregate": "response", "clip_low": 0.03, "clip_high": 0.1},
    {"loss_type": "cispo", "minibatches": 2, "clip_high": 0.3},
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_update_equals_its_steps_by_hand(options):
    """One of many things in update is wrong. If only the cases with `kl` fail, it is the KL term.

    The weights are computed from one mini-batch, the two policies of the KL term are swapped, a
    sign is lost, gradients add up over mini-batches, or a step is too long. Groups are read that
    teach nothing, or with a KL term not all groups are read. Shares and means are divided by other
    weights. A true answer counts in the KL term. A NaN of the padding reaches the weights.
    """
    how = DEFAULTS | options
    low, high = how["clip_low"], how["clip_high"]
    model = tiny_gpt().double()
    x = sample(model, levels=(2, 5, 4, 3, 2, 3))
    x.rewards = torch.tensor([MIXED, ONE, FAIL, REAL, REAL, ONE], dtype=torch.float64)
    x.max_length = 24  # the shifts below are one-sided, so the sign of d matters
    x.reference_logprobs = x.logprobs - 0.5 * torch.rand(x.mask.size())
    x.logprobs = x.logprobs + 0.8 * torch.rand(x.mask.size()) - 0.3
    x.A = 10 * apply("grpo", x).A  # the third group has none
    x.given = (torch.rand(x.mask.size()) < 0.4) & x.mask if how["minibatches"] < 4 else None
    weights = token_weights(x.mask, how["aggregate"], 24)
    sampled = weights if x.given is None else weights * ~x.given
    read = torch.tensor([0, 1, 2, 3, 4, 5] if how["kl"] else [0, 1, 3, 4, 5])
    parts = [part for part in read.tensor_split(how["minibatches"]) if len(part)]
    by_hand = tiny_gpt().double()
    expected = dict.fromkeys(("loss", "clip_fraction", "approx_kl", "grad_norm"), 0.0)
    for part in parts:
        here = torch.zeros_like(weights)  # every group is read, but others do not count
        here[part] = 1.0
        logprobs = response_logprobs(by_hand, x)
        how_clipped = (low, high, how["loss_type"])
        loss, _ = policy_loss(logprobs, x.logprobs, x.A, here * weights, *how_clipped)
        d = x.reference_logprobs - logprobs  # of KL(pi_theta || pi_ref)
        loss = loss + how["kl"] * (here * sampled * (d.exp() - d - 1)).sum()
        gradients = torch.autograd.grad(loss, by_hand.parameters())
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm().item()
        for weight, gradient in zip(by_hand.parameters(), gradients):
            weight.data -= 0.01 * gradient * min(1.0, how["max_grad_norm"] / norm)
        w = here * sampled / sampled[read].sum()
        d = logprobs - x.logprobs  # of KL(pi_old || pi_theta)
        ratio = d.exp()
        if how["loss_type"] == "gspo":
            s = (d * x.mask).sum(-1, keepdim=True) / x.mask.sum(-1, keepdim=True)
            ratio = s.exp().expand_as(d)
        stopped = (x.A > 0) & (ratio > 1 + high) | (x.A < 0) & (ratio < 1 - low)
        if how["loss_type"] == "cispo":
            stopped = ratio > 1 + high  # no gradient is stopped, but these weights are cut
        expected["loss"] += loss.item()
        expected["clip_fraction"] += w[stopped].sum().item()
        expected["approx_kl"] += (w * (d.exp() - d - 1)).sum().item()
        expected["grad_norm"] += norm / len(parts)
    for padded in (x.logprobs, x.reference_logprobs, x.A):
        padded[~x.mask] = math.nan
    metrics = update(model, torch.optim.SGD(model.parameters(), 0.01), x, **how)
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-5)
    close([*model.parameters()], [*by_hand.parameters()], 1e-7)
    x.A = 0 * x.A
    assert how["kl"] or not any(update(model, None, x, **how).values())  # no group: no step


# ---- (7) The loop over steps
def steps_of(arguments: str):
    """train.train with small settings, of a model with random weights."""
    small = "--width 8 --prompts 4 --group-size 4"
    args = train.parse_arguments(f"{small} {arguments}".split())
    return train.train(args, train.new_model(args))


@pytest.fixture
def no_update(monkeypatch):
    """Uses few problems and an update that changes no weight and only records its arguments."""
    fewer_problems(100, monkeypatch)
    update = Mock(return_value={"loss": 0.0, "grad_norm": 0.0})
    monkeypatch.setattr(train, "update", update)
    return update


def test_the_learning_rate_rises_and_falls(no_update):
    """The learning rate does not fall to 0, so a run ends wherever noise has taken it.

    The test also finds an update that gets the sampled rollout and not the one with A.
    """
    rates = []
    for rollout, trained, _ in steps_of("--steps 20 --lr 0.5 --prompts 2"):
        assert no_update.call_args.args[2] is trained
        assert trained.A is not None and rollout.A is None
        rates.append(no_update.call_args.args[1].param_groups[0]["lr"])
    assert rates == pytest.approx([0.5 * min(n / 10, (21 - n) / 20) for n in range(1, 21)])


def test_one_optimiser_lasts_the_whole_run(no_update):
    """The optimiser is made anew in every step, so Adam silently forgets its moments."""
    args = train.parse_arguments("--width 8 --prompts 2".split())
    model = train.new_model(args)
    assert len([*islice(train.train(args, model), 3)]) == 3
    first, *others = [call.args[1] for call in no_update.call_args_list]
    assert all(optimizer is first for optimizer in others)
    assert type(first) is torch.optim.Adam  # AdamW would also pull the weights to 0
    assert first.defaults["fused"]  # it decides the last bit of all weights
    assert [*map(id, first.param_groups[0]["params"])] == [*map(id, model.parameters())]
    assert all(call.args[0] is model for call in no_update.call_args_list)


@pytest.mark.parametrize("name", ["critic", "ppo"])
def test_one_network_lasts_the_whole_run(name, no_update, monkeypatch):
    """A second network is made anew in every step, so it has learned nothing. Or it has another
    learning rate than the policy.
    """
    made = []
    called = []

    class Noted(VARIANTS[name]):
        def __init__(self, network, lr):
            super().__init__(network, lr)
            made.append((network.unembed.out_features, lr))

        def __call__(self, rollout):
            called.append(self)
            return super().__call__(rollout)

    monkeypatch.setitem(VARIANTS, name, Noted)
    steps = steps_of(f"--variant {name} --lr 0.5")
    assert len([*islice(steps, 3)]) == 3
    assert made == [(1, 0.5)]
    assert called == [called[0]] * 3


def test_each_step_draws_new_problems_and_new_responses(no_update):
    """Each training step makes a new generator, so all steps have the same problems or samples."""
    args = train.parse_arguments("--width 8 --prompts 8 --group-size 4".split())
    model = train.new_model(args)
    for weight in model.parameters():  # now all tokens are equally likely after every prompt
        weight.data.zero_()
    steps = [rollout for rollout, *_ in islice(train.train(args, model), 3)]
    for field in ("problems", "texts"):
        first, second, third = [getattr(rollout, field) for rollout in steps]
        assert first != second != third != first, f"two training steps have the same {field}"


@pytest.mark.parametrize("task", TASKS)
def test_nothing_held_out_is_trained_on(task, no_update):
    """Held-out problems are in the training pool, so accuracy on them measures memory."""
    rollout, *_ = next(steps_of(f"--task {task} --prompts 300 --group-size 2"))
    assert len(rollout.problems) == 300
    assert not any(held_out(problem.prompt) for problem in rollout.problems)


@pytest.mark.parametrize("name", ["negative", "verifree"])  # verifree trains other tokens
def test_the_reference_of_the_kl_term_is_the_model_before_training(name):
    """The reference policy is the model itself and not a copy, so the KL term is about 0."""
    flags = f"--variant {name} --width 8 --prompts 4 --kl 0.1 --lr 0.1"
    args = train.parse_arguments(flags.split())
    model = train.new_model(args)
    first = deepcopy(model)
    for _, trained, _ in islice(train.train(args, model), 3):
        before_training = response_logprobs(first, trained).detach()
        close(trained.reference_logprobs, before_training, 1e-5)
        assert not trained.reference_logprobs.requires_grad  # nothing learns through it
    assert (response_logprobs(model, trained) - before_training).abs().max() > 0.01


OWN_LOSS = {  # as in the README's table; all other variants have the settings of grpo
    "dr_grpo": {"aggregate": "constant"},
    "reinforce": {"aggregate": "constant"},
    "ngrpo": {"clip_low": 0.16, "clip_high": 0.24},
    "gspo": {"loss_type": "gspo", "aggregate": "response", "clip_low": 0.03, "clip_high": 0.04},
    "cispo": {"loss_type": "cispo", "clip_high": 4.0},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_each_variant_trains_with_its_own_loss(name, no_update):
    """An entry of LOSS is missing or wrong, so another algorithm runs under the variant's name."""
    _, trained, _ = next(steps_of(f"--variant {name} --prompts 2 --group-size 2"))
    assert trained.reference_logprobs is None  # without a KL term it is not computed
    assert no_update.call_args.kwargs == DEFAULTS | OWN_LOSS.get(name, {})


def test_culling_draws_from_what_is_not_solved(no_update, monkeypatch):
    """Culling keeps solved problems. Or it drops a problem that has one incorrect response, in a
    group of its own or in one of several groups of the same problem. Or the batch shrinks with the
    pool, or a run ends when the pool is empty.
    """
    fewer_problems(6, monkeypatch)
    pool = train.make_problems(ADD, held=False)
    hard = {p for p in pool if p.level == 5}
    easy = pool[0]
    first_step = iter([True, False, False])

    def solve(model, task, problems, *sizes, **options):
        rollout = sample_rollout(model, task, problems, *sizes, **options)
        rollout.rewards = torch.ones(200, 4)
        if next(first_step):
            rollout.rewards[[p in hard for p in problems], 2] = 0.0
            rollout.rewards[problems.index(easy), 1] = 0.0  # one of the groups of this problem
        return rollout

    monkeypatch.setattr(train, "sample_rollout", solve)
    steps = steps_of("--variant culling --prompts 200")
    first, second, third = [rollout.problems for rollout, *_ in islice(steps, 3)]
    assert len(first) == len(second) == len(third) == 200
    assert {*first} == {*pool} and first.count(easy) > 1
    assert {*second} == {easy, *hard}  # all of these are solved now, so all problems come back
    assert {*third} == {*pool}


# ---- (8) Forward passes of some variants
def test_answer_likelihood_equals_one_row_at_a_time():
    """L is a mean and no product, or the reasoning ends elsewhere, or the end token is missing."""
    problems = [problem(SUM, [3, 4], 2), problem(SUM, [9] * 8, 8)]
    responses = [["9,8#8$", "9,8$", "1#2#3$", "#1$", "$", "1_2#4$"]]
    responses += [["5,5#5#5$", "#$", "##$", "_$", "########", ",,,,,,,,"]]
    model = tiny_gpt().double()
    x = scripted(problems, responses, T=8, model=model, temperature=0.5)
    L = advantages.answer_likelihood(x)
    for g, i in np.ndindex(2, 6):
        answer = ids("#" + problems[g].answer + "$")
        row = ids(problems[g].prompt + responses[g][i].removesuffix("$").split("#")[0]) + answer
        hidden = model(torch.tensor([row]))[0][0, -len(answer) - 1 : -1]
        p = model.unembed(hidden).softmax(-1)[range(len(answer)), answer]
        close(L[g, i], p.prod())


def test_likelihood_reads_only_all_fail_groups():
    """All groups are read, although L is used in all-fail groups only, or L is of another group."""
    model = tiny_gpt().double()
    x = sample(model, levels=(2, 5, 4, 3, 2))
    x.rewards = torch.tensor([MIXED, FAIL, PASS, FAIL, ONE], dtype=torch.float64)
    L = advantages.answer_likelihood(x)  # of all groups
    read = []
    model.register_forward_pre_hook(lambda model, given: read.append(len(given[0])))
    found = with_advantages(x, advantages.likelihood).A
    assert max(read) == 2 * 4  # the longest batch has the responses of two groups
    for p, i, t in x.mask.nonzero().tolist():
        values = (x.rewards if x.rewards[p].any() else L)[p].tolist()
        assert found[p, i, t].item() == pytest.approx(standardised(values, i), abs=1e-9)
    read.clear()
    x.rewards[[1, 3]] = torch.tensor([MIXED, ONE], dtype=torch.float64)
    close(advantages.likelihood(x), advantages.grpo(x), 0)
    assert not read


@pytest.mark.parametrize("name, parts", [("critic", [range(5)]), ("ppo", [[0, 1], [2, 3], [4]])])
def test_a_second_network_reads_at_its_place_and_learns_by_its_loss(name, parts):
    """The critic is read one token too early, where its output is a baseline, or the value network
    of ppo one token too late. It judges the tokens after it has learned from them. Its loss has
    lost the minus, contains A + b, counts padding, or has the rewards of other groups. Or Adam's
    moments are forgotten.
    """
    network = tiny_gpt(outputs=1).double()
    by_hand = deepcopy(network)
    variant = VARIANTS[name](network, lr=2e-3)
    optimizer = torch.optim.Adam(by_hand.parameters(), lr=2e-3)
    rewards = [MIXED, ONE, FAIL, REAL, PASS]
    for step in range(2):
        x = sample(tiny_gpt().double(), levels=(2, 5, 4, 3, 2), seed=step)
        x.rewards = torch.tensor(rewards, dtype=torch.float64)
        A = variant(x)
        assert name == "critic" or not A.requires_grad
        for g, i, tokens, _, y in read_alone(by_hand, x):
            b = standardised(rewards[g], i) + y[1:, 0]
            expected = b if name == "critic" else rewards[g][i] - y[:-1, 0]
            close(A[g, i, : len(tokens)], expected.detach())
        for part in parts:
            rows = [(g, i, y[:, 0]) for g, i, _, _, y in read_alone(by_hand, x) if g in part]
            errors = torch.cat([y[:-1] - rewards[g][i] for g, i, y in rows])
            push = sum(standardised(rewards[g], i) * y[1:].sum() for g, i, y in rows)
            loss = -push / len(rows) if name == "critic" else (errors**2).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
            optimizer.step()
    close([*network.parameters()], [*by_hand.parameters()], 1e-7)


def test_ppo_has_a_true_baseline():
    """The value network has read the token, as the critic, so it biases the gradient.

    The test enumerates all responses, each weighted by its probability.
    """
    model, network = tiny_gpt(vocabulary=5).double(), tiny_gpt(vocabulary=5, outputs=1).double()
    _, x = every_response(model)
    x.rewards = torch.rand(x.rewards.size(), dtype=torch.float64)
    pi = response_logprobs(model, x).sum(-1).exp()  # (1, G)
    true = torch.autograd.grad((pi * x.rewards).sum(), model.parameters())
    apart = []
    for outputs in (advantages.token_values, advantages.token_bias):
        x.A = (x.rewards[..., None] - outputs(network, x)).detach()
        found = ascent(model, x, pi.detach()[..., None] * x.mask)
        apart.append(max((a - b).abs().max() for a, b in zip(found, true)))
    assert apart[0] < 1e-9 and apart[1] > 1e-4


def every_response(model) -> tuple[list[str], Rollout]:
    """All responses of a model that knows five tokens, to a prompt of one; at most two tokens."""
    known = TOKENIZER.decode([0, 1, 2, 3, 4])
    texts = ["$"] + [a + b for a in known.replace("$", "") for b in known]
    x = scripted([Problem("0", "", "1", 0)], [texts], T=2, model=model)
    x.logprobs = response_logprobs(model, x).detach()
    return texts, x


def verifree_rows(model, x):
    """Yields g, i, the number of tokens, ln pi(z#) and L, with gradient, for each response as one
    row.
    """
    for g, i in np.ndindex(*x.rewards.shape):
        z, marker, _ = masked(x)[g][i].partition("#")
        kept = ids(z + marker)
        answer = ids(x.problems[g].answer + "$") if marker else []
        n = len(kept + answer)
        row = torch.tensor([ids(x.problems[g].prompt) + kept + answer])
        logits = model.unembed(model(row)[0][0, -n - 1 : -1]) / x.temperature
        logp = logits.log_softmax(-1)[range(n), kept + answer]
        yield g, i, n, logp[: len(kept)].sum(), logp[len(kept) :].sum().exp() * bool(marker)


def ascent(model, x, weights):
    """The direction in which update goes at ratio 1, without scaling."""
    loss, _ = policy_loss(response_logprobs(model, x), x.logprobs, x.A, weights)
    return torch.autograd.grad(-loss, model.parameters())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_of_verifree_is_that_of_its_objective(temperature):
    """The sampled answer is trained, L is of another temperature, or the baseline contains L_i."""
    model = tiny_gpt().double()
    problems = [problem(SUM, [3, 5], 2), problem(SUM, [5, 7], 2), problem(SUM, [9] * 8, 8)]
    texts = [["9,8#8$", "9,8$", "1#2#3$", "08# 8$", "8$"]]  # G is not T: rows are not columns
    texts += [["12#12$", "####", ",,,,", "12#11$", "1#2$"]]
    texts += [["1$", "2$", ",,,,", "$", "3$"]]  # no marker: all L are 0
    x = scripted(problems, texts, T=4, model=model, temperature=temperature)
    trained = with_advantages(x, advantages.verifree)
    expected = [["9,8# 8$", "9,8$", "1# 8$", "08# 8$", "8$"]]
    expected += [["12#12$", "#12$", ",,,,", "12#12$", "1#12$"]]
    assert masked(trained) == [*expected, texts[2]]  # without a marker as sampled, cut off or not
    rows = [*verifree_rows(model, x)]
    objective = 0.0
    for g, i, _, ln_z, L in rows:
        group = [row[4].item() for row in rows if row[0] == g]
        sd = math.sqrt(mean(group) * (1 - mean(group))) + 1e-6
        push = (L.item() - mean(group[:i] + group[i + 1 :])) / sd
        objective = objective + push * ln_z + L / sd
    objective = objective / sum(n for _, _, n, *_ in rows)
    found = ascent(model, trained, token_weights(trained.mask))
    torch.testing.assert_close(found, torch.autograd.grad(objective, model.parameters()))


def test_verifree_is_an_exact_gradient_in_expectation():
    """The expected gradient of verifree is not grad J, so it has a bias.

    The test enumerates all groups of two responses, each weighted by its probability.
    """
    model = tiny_gpt(vocabulary=5).double()
    texts, alone = every_response(model)
    pi = response_logprobs(model, alone)[0].sum(-1).exp()
    close(pi.sum(), torch.ones_like(pi[0]))  # there are no other responses
    L = torch.stack([row[-1] for row in verifree_rows(model, alone)])
    J = (pi * L).sum()
    pairs = [[a, b] for a in texts for b in texts]
    x = scripted(alone.problems * len(pairs), pairs, T=2, model=model)
    trained = with_advantages(x, advantages.verifree)
    mu = torch.cartesian_prod(L, L).mean(1)
    sd = (mu * (1 - mu)).sqrt() + 1e-6  # without this division the gradient is exact
    weights = torch.cartesian_prod(pi, pi).prod(1) * sd / 2
    found = ascent(model, trained, weights.detach()[:, None, None] * trained.mask)
    torch.testing.assert_close(found, torch.autograd.grad(J, model.parameters()))


@pytest.mark.parametrize("G", [2, 4])
def test_maxrl_is_an_exact_gradient_in_expectation(G):
    """The mean is over other rewards, so the gradient is not that of sum_k pass@k / k.

    The test enumerates all groups of G responses of one token, each weighted by its probability.
    Token 0 is the correct one.
    """
    torch.manual_seed(SEED)
    logits = torch.randn(3, dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(0)
    tokens = torch.cartesian_prod(*[torch.arange(3)] * G)[..., None]  # (3**G, G, 1)
    rewards = (tokens[..., 0] == 0).double()
    x = Rollout(tokens, tokens >= 0, rewards, None, None, None)
    often = logp[tokens].sum((1, 2), keepdim=True).exp().detach()  # the probability of each group
    push = (often * advantages.maxrl(x)[..., None] * logp[tokens]).sum() / G
    p = logp[0].exp()  # pass@k is 1 - (1 - p)^k
    J = sum((1 - (1 - p) ** k) / k for k in range(1, G))
    close(*[torch.autograd.grad(y, logits, retain_graph=True)[0] for y in (push, J)])


# ---- (9) A policy that learns
@pytest.mark.parametrize("sign", [+1, -1])
def test_the_policy_learns(sign):
    """A sign is lost. Or sampling, advantages and update do not fit together, although each of them
    is right.
    """

    def copy(level, draw):  # 7=07# 7
        n = draw(0, 10)
        return f"{n}=", [n]

    copy_a_digit = Task(copy, from_columns, range(1, 2), share=1.0)
    problems = [problem(copy_a_digit, [n], 1) for n in range(10)]
    torch.manual_seed(SEED)
    model = GPT(V, 12, layers=1, width=32)
    train.warm_up(model, copy_a_digit, SEED, steps=60)  # else no response is correct
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rewards = []
    for _ in range(61):
        rollout = sample_rollout(model, copy_a_digit, problems, 20)
        rewards.append(rollout.rewards.mean().item())
        trained = with_advantages(rollout, advantages.grpo)
        trained.A *= sign
        update(model, optimizer, trained)
    if sign > 0:
        assert rewards[-1] > rewards[0] + 0.3
    else:
        assert rewards[-1] < 0.03 < rewards[0]
