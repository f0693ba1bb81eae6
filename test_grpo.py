"""The second half of the lesson: every formula a second time, and the bugs that the field knows.

In the core a formula is vectorised. Here it stands again as the literal sums of its paper, in loops
over groups, responses and tokens. A new variant needs one line here, its formula in FORMULAS, and
gets all tests that variants have in common. A test's docstring names the bug that it guards.
"""

import dataclasses
import math
import re
import zlib
from copy import deepcopy
from statistics import fmean as mean
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import advantages
import grpo
import tasks
import train
from advantages import LOSS, VARIANTS
from grpo import Rollout, policy_loss, response_logprobs, sample_rollout, update
from model import GPT
from tasks import ADD, SUM, TASKS, Problem, Task, from_columns, held_out

torch.set_num_threads(1)  # the tensors are tiny: more threads would only wait for each other
SEED = 0  # of all that is random here; any other number passes as well
TOKENIZER = tasks.build_tokenizer()
V = TOKENIZER.get_vocab_size()
TOKEN_FIELDS = ("tokens", "mask", "logprobs", "probs", "hidden", "token_bias")  # (P, G, T, ...)
FIELDS = TOKEN_FIELDS + ("rewards", "answer_likelihood")  # (P, G, ...)
MIXED = [1.0, 0.0, 0.0, 1.0]
ONE = [0.0, 0.0, 1.0, 0.0]
FAIL = [0.0, 0.0, 0.0, 0.0]
PASS = [1.0, 1.0, 1.0, 1.0]
REAL = [0.25, 1.0, 0.7, 0.0]  # no verifier here gives such rewards, but others do


def close(a, b, tolerance=1e-9):  # an absolute one; NaN equals NaN
    torch.testing.assert_close(a, b, rtol=0, atol=tolerance, equal_nan=True)


# ---- (1) Groups of random numbers
def random_rollout(rewards, T=5, seed=0, poison=None, dtype=torch.float64) -> Rollout:
    """Ragged groups with these rewards (P, G). poison: the number that the padding holds."""
    torch.manual_seed(SEED + seed)
    rewards = torch.tensor(rewards, dtype=dtype)
    P, G = rewards.size()
    lengths = torch.randint(1, T + 1, (P, G))
    lengths[0, -1] = T
    mask = torch.arange(T) < lengths[..., None]
    tokens = torch.randint(7, (P, G, T))
    probs = (2 * torch.randn(P, G, T, 7, dtype=dtype)).softmax(-1)
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log()
    rollout = Rollout(tokens, mask, rewards, logprobs, probs, torch.randn(P, G, T, 6, dtype=dtype))
    rollout.token_bias = torch.randn(P, G, T, dtype=dtype)
    rollout.answer_likelihood = torch.rand(P, G, dtype=dtype)
    if poison is not None:
        tokens[~mask] = 10**6
        for name in ("logprobs", "probs", "hidden", "token_bias"):
            getattr(rollout, name)[~mask] = poison
    return rollout


def change(rollout, names, function) -> Rollout:
    """A copy with the function applied to these fields."""
    changed = {name: function(getattr(rollout, name)) for name in names}
    return dataclasses.replace(rollout, **changed)


# ---- (2) The formulas, as sums over lists of numbers
def standardised(r, i):
    """(r_i - mu) / (sigma + eps), sigma divides by G; 0 if all rewards are equal."""
    if min(r) == max(r):
        return 0.0
    mu = mean(r)
    sigma = math.sqrt(mean([(r_j - mu) ** 2 for r_j in r]))
    return (r[i] - mu) / (sigma + 1e-6)


def compensation_at(x, i, t):  # A_{i,t}, as in FORMULAS below
    A = standardised(x.r, i)
    pi = [math.exp(logp) for logp in x.logprobs[i]]
    return A * (2 - pi[t] / max(pi)) if A > 0 else A


def score_at(x, j, t):
    """s_{j,t} = sum_{i correct} sum_k <g_{i,k}, g_{j,t}> <h_{i,k}, h_{j,t}>   (Eq. 7)"""

    def g(i, k):
        return [(v == x.tokens[i][k]) - p for v, p in enumerate(x.probs[i][k])]

    s = 0.0
    for i in [i for i, r in enumerate(x.r) if r == 1]:
        for k in range(len(x.tokens[i])):
            s += np.dot(g(i, k), g(j, t)) * np.dot(x.hidden[i][k], x.hidden[j][t])
    return s


def nthr_at(x, i, t, beta=1.0, eta=None):  # A_{i,t} by Algorithm 1
    A = standardised(x.r, i)
    correct = [j for j, r in enumerate(x.r) if r == 1]
    if i in correct or not correct:
        return A
    sbar = [mean([score_at(x, j, k) for k in range(len(x.tokens[j]))]) for j in correct]
    tau = -math.inf if beta == -math.inf else beta * min(sbar)  # Eq. 8
    eta = 2 * abs(len(correct) / len(x.r) - 0.5) if eta is None else eta
    return eta * A if score_at(x, i, t) > tau else A


FORMULAS = {  # of A_{i,t} in a group x: x.r[i], x.L[i], x.tokens[i][t] and so on, see by_loops
    "grpo": lambda x, i, t: standardised(x.r, i),
    "dr_grpo": lambda x, i, t: x.r[i] - mean(x.r),
    "rloo": lambda x, i, t: x.r[i] - mean(x.r[:i] + x.r[i + 1 :] or x.r),  # the others, if any
    "pos_only": lambda x, i, t: max(standardised(x.r, i), 0.0),
    "critic": lambda x, i, t: standardised(x.r, i) + x.token_bias[i][t],
    "compensation": compensation_at,
    "culling": lambda x, i, t: standardised(x.r, i),
    "negative": lambda x, i, t: standardised(x.r, i) if any(x.r) else -1.0,
    "ngrpo": lambda x, i, t: standardised(x.r + [1.0], i),
    "likelihood": lambda x, i, t: standardised(x.r if any(x.r) else x.L, i),
    "nthr": nthr_at,
}


def by_loops(rollout, formula):
    """formula(x, i, t) of every token; x is a group, as lists of tokens: x.r[i], x.probs[i][t]."""
    A = torch.zeros(rollout.mask.size(), dtype=torch.float64)
    for p, masks in enumerate(rollout.mask):
        x = SimpleNamespace(r=rollout.rewards[p].tolist(), L=rollout.answer_likelihood[p].tolist())
        for name in TOKEN_FIELDS:
            setattr(x, name, [row[m].tolist() for row, m in zip(getattr(rollout, name)[p], masks)])
        for i, t in masks.nonzero().tolist():
            A[p, i, t] = formula(x, i, t)
    return A


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_its_formula(name):
    """Statistics over the batch, another deviation or a lost sign would train on other numbers."""
    assert name in FORMULAS, f"write the formula of {name!r} into FORMULAS in test_grpo.py"
    groups = [[MIXED, FAIL, PASS, ONE, REAL], [[0, 1, 0, 0, 0, 0, 1, 0]], [[1], [0]], [[1, 0]]]
    for T, rewards in enumerate(groups, start=2):
        for rollout in (random_rollout(rewards, T), random_rollout(rewards, T=1)):
            close(VARIANTS[name](rollout), by_loops(rollout, FORMULAS[name]))


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0, -math.inf])
def test_nthr_equals_algorithm_1(beta):
    """A wrong score or threshold spares other tokens; -inf times a negative mean spares none."""
    rollout = random_rollout([MIXED, ONE, [0.1, 0.5, 0.2, 0.0], [1, 1, 0, 1]], T=4)
    rollout.mask[3, :, 1:] = False  # here all sums are exact, s = tau, and tau is negative
    rollout.tokens[3] = 1
    rollout.probs[3] = 0.25
    rollout.hidden[3] = torch.tensor([3.0, -1.0, -1.0, 3.0])[:, None, None]
    for eta in (None, 0.0, 0.3):
        A = by_loops(rollout, lambda x, i, t: nthr_at(x, i, t, beta, eta))
        close(advantages.nthr(rollout, beta=beta, eta=eta), A)
        close(advantages.nthr_scores(rollout), by_loops(rollout, score_at))


# ---- (3) What all variants have in common
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("name", VARIANTS)
def test_padding_reaches_no_advantage_and_no_input_changes(name, poison, dtype):
    """0 * NaN is NaN; changed rewards falsify the metrics; a gradient is another algorithm."""
    rollout = random_rollout([MIXED, FAIL, PASS, ONE], dtype=dtype, poison=poison)
    before = random_rollout([MIXED, FAIL, PASS, ONE], dtype=dtype, poison=poison)
    for field in ("rewards", "logprobs", "probs", "hidden", "token_bias", "answer_likelihood"):
        getattr(rollout, field).requires_grad_()
    A = VARIANTS[name](rollout)
    assert A.dtype == dtype
    assert not A.requires_grad
    assert torch.equal(A, VARIANTS[name](random_rollout([MIXED, FAIL, PASS, ONE], dtype=dtype)))
    for field in FIELDS:
        close(getattr(rollout, field), getattr(before, field), 0)
    for logp in (-1e4, 0.0):  # probabilities that underflow
        far = change(rollout, ["logprobs"], lambda x: torch.full_like(x, logp))
        assert VARIANTS[name](far).isfinite().all()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_group_does_not_depend_on_its_neighbours_or_its_order(name):
    """A batch mean, or a length that includes the padding, lets other groups in."""
    rollout = random_rollout([MIXED, FAIL, ONE, PASS, REAL], T=9, poison=math.nan)
    order = torch.tensor([2, 0, 3, 1])
    for p in range(5):
        T = int(rollout.mask[p].sum(-1).max())
        alone = change(rollout, FIELDS, lambda x: x[p : p + 1, order])
        alone = change(alone, TOKEN_FIELDS, lambda x: x[:, :, :T])
        close(VARIANTS[name](alone), VARIANTS[name](rollout)[p : p + 1, order, :T], 1e-12)


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_rewards_give_exactly_zero(name):
    """Rounding divided by eps would train on nothing; only what a formula states may depart."""
    for G in (1, 3, 7):
        rewards = [[r] * G for r in (0.0, 0.1, 0.7, 1.0)]
        rollout = random_rollout(rewards, T=1, dtype=torch.float32)
        rollout.token_bias[:] = 0.0  # which `critic` adds everywhere, by design
        by_design = by_loops(rollout, FORMULAS.get(name, FORMULAS["grpo"])).abs() > 1e-6
        assert torch.equal(VARIANTS[name](rollout) != 0, by_design)


# ---- (4) Numbers by hand
def test_numbers_by_hand():
    """A formula above could repeat the mistake of the code; these numbers do not."""
    rollout = random_rollout([[1] + [0] * 7, [0] * 8, [1] * 8], T=1)
    first = {name: VARIANTS[name](rollout)[..., 0].tolist() for name in VARIANTS}
    assert first["grpo"][0] == pytest.approx([math.sqrt(7)] + [-math.sqrt(1 / 7)] * 7, abs=1e-4)
    assert first["ngrpo"][0] == pytest.approx([1.871] + [-0.535] * 7, abs=5e-4)
    assert first["ngrpo"][1] == pytest.approx([-1 / math.sqrt(8)] * 8, abs=1e-5)
    close(advantages.negative(rollout, c=0.0), advantages.grpo(rollout))
    assert advantages.solved(rollout).tolist() == [False, False, True]
    assert LOSS["ngrpo"] == {"clip_low": 0.16, "clip_high": 0.24}
    assert LOSS["dr_grpo"] == {"aggregate": "constant"}
    assert {*(LOSS["ngrpo"] | LOSS["dr_grpo"])} >= {name for x in LOSS.values() for name in x}


# ---- (5) The loss
def loss_by_loops(logprobs, old, A, mask, low=0.2, high=0.2, aggregate="token", max_length=None):
    """- sum_{i,t} min(ratio A, clip(ratio, 1 - low, 1 + high) A) / sum_i |y_i|"""
    gains = {}  # of each response (g, i)
    for g, i, t in mask.nonzero().tolist():
        a = A[g, i, t]
        ratio = (logprobs[g, i, t] - old[g, i, t]).clamp(-20, 20).exp()  # kept finite
        gain = min(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
        gains.setdefault((g, i), []).append(gain)
    if aggregate == "response":
        return -sum(sum(response) / len(response) for response in gains.values()) / len(gains)
    tokens = [gain for response in gains.values() for gain in response]
    return -sum(tokens) / (len(tokens) if aggregate == "token" else len(gains) * max_length)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("distance", [0.4, 30.0, 1e4])  # 0.4: ratios of up to 2 or so
@pytest.mark.parametrize("aggregate", ["token", "response", "constant"])
def test_policy_loss_equals_its_formula(aggregate, distance, poison):
    """Another denominator weights long responses differently; one NaN makes every weight NaN."""
    rollout = random_rollout([MIXED, ONE, FAIL, REAL])
    mask = rollout.mask
    logprobs = rollout.logprobs + distance * rollout.token_bias
    rows = [logprobs, rollout.logprobs, VARIANTS["critic"](rollout)]
    rows = [x.masked_fill(~mask, poison).requires_grad_() for x in rows]
    how = {"aggregate": aggregate, "max_length": 24}
    for clip in ((), (0.16, 0.24), (0.3, 0.1)):
        losses = [f(*rows, mask, *clip, **how) for f in (policy_loss, loss_by_loops)]
        gradients = [torch.autograd.grad(loss, rows[0])[0] for loss in losses]
        torch.testing.assert_close(*losses)
        torch.testing.assert_close(*gradients)
    for name in ("Token", "mean", "constant"):  # the last one without max_length
        with pytest.raises(ValueError, match=f"token, response, constant .* not '{name}'"):
            policy_loss(*rows, mask, aggregate=name)


@pytest.mark.parametrize(
    "sign, ratio, value, slope",  # of min(...) and d value / d ratio, which is 0 if clipped
    [(+1, 0.5, +0.50, 1), (+1, 1.0, +1.00, 1), (+1, 1.2, +1.20, 1), (+1, 1.5, +1.24, 0)]
    + [(-1, 0.5, -0.84, 0), (-1, 0.9, -0.90, -1), (-1, 1.0, -1.00, -1), (-1, 1.5, -1.50, -1)],
)
def test_clip_truth_table(sign, ratio, value, slope):
    """max in place of min for A < 0: nothing stops the push down, and no push back is left."""
    old = torch.full((1, 1, 1), -1.5, dtype=torch.float64)
    logprobs = (old + math.log(ratio)).requires_grad_()
    loss = policy_loss(logprobs, old, 2.0 * sign + 0 * old, old < 0, clip_low=0.16, clip_high=0.24)
    loss.backward()
    assert loss.item() == pytest.approx(-2 * value)
    assert logprobs.grad.item() == pytest.approx(-2 * slope * ratio)  # d ratio / d logp = ratio


# ---- (6) Sampling
def tiny_gpt(seed=0, **options) -> GPT:
    """All weights far from where training starts, so that no part is idle."""
    torch.manual_seed(SEED + seed)
    model = GPT(V, 60, layers=2, width=16, **options)
    for weight in model.parameters():
        weight.data += 0.25 * torch.randn_like(weight)
    return model


def sample(model, levels=(2, 5, 4, 3), G=4, seed=0, task=ADD, **options) -> Rollout:
    problems = [task.problem(np.random.default_rng(SEED), level) for level in levels]
    rng = torch.Generator().manual_seed(SEED + seed)
    return sample_rollout(model, TOKENIZER, task, problems, G, generator=rng, **options)


def problem(task: Task, numbers, level: int) -> Problem:
    """The problem with these numbers."""
    drawn = iter(numbers)
    return task.problem(SimpleNamespace(integers=lambda low, high: next(drawn)), level)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


def scripted(problems, responses, T=None) -> Rollout:
    """A rollout whose drawn tokens are these texts. After the end of each come further ends."""
    rows = [iter(ids(text) + ids("$") * 99) for group in responses for text in group]
    with pytest.MonkeyPatch.context() as patch:
        draw = lambda *given, generator: torch.tensor([[next(row)] for row in rows])  # noqa: E731
        patch.setattr(torch, "multinomial", draw)
        G = len(responses[0])
        return sample_rollout(tiny_gpt(), TOKENIZER, SUM, problems, G, max_new_tokens=T)


def read_alone(model, rollout):
    """Each response as one row, no cache: g, i, tokens, hidden, outputs after prompt and tokens."""
    for g, i in np.ndindex(*rollout.rewards.shape):
        tokens = rollout.tokens[g, i, rollout.mask[g, i]].tolist()
        row = torch.tensor([ids(rollout.problems[g].prompt) + tokens])
        hidden = model(row)[0][0, -len(tokens) - 1 :]
        yield g, i, tokens, hidden, model.unembed(hidden)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_sampling_equals_the_teacher_forced_pass(task, temperature):
    """One position off, another temperature, repeat for repeat_interleave, padding that is read."""
    levels = [*reversed(task.levels), *task.levels]
    model = tiny_gpt().double()
    rollout = sample(model, levels, task=task, temperature=temperature)
    assert rollout.temperature == (temperature or 1)  # greedy: probabilities of temperature 1
    rollout.tokens[~rollout.mask] = V - 1  # any padding
    alone = torch.zeros_like(rollout.logprobs)
    for g, i, tokens, hidden, logits in read_alone(model, rollout):
        n = len(tokens)
        logp = (logits[:-1] / rollout.temperature).log_softmax(-1)
        alone[g, i, :n] = logp[range(n), tokens]
        close(rollout.hidden[g, i, :n], hidden[:-1])
        close(rollout.probs[g, i, :n], logp.exp())
        assert temperature or tokens == logp.argmax(-1).tolist()
    ours = response_logprobs(model, rollout)
    close(rollout.logprobs, ours)
    close(ours, alone)
    gradients = [torch.autograd.grad(x.square().sum(), model.parameters()) for x in (ours, alone)]
    close(*gradients)


def test_tokens_are_drawn_from_the_recorded_distribution():
    """With a top-k or at another temperature pi_old is not what is recorded."""
    rollout = sample(tiny_gpt(), (2,), G=8000, temperature=0.7, max_new_tokens=1)
    close(rollout.tokens.flatten().bincount(minlength=V) / 8000, rollout.probs[0, 0, 0], 0.03)
    assert sample(tiny_gpt()).texts == sample(tiny_gpt()).texts != sample(tiny_gpt(), seed=1).texts


def test_mask_and_rewards_of_given_responses():
    """A mask by token value, or without the end token: ending is never learned, _ ends."""
    problems = [problem(SUM, [7, 8], 2), problem(SUM, [1, 2, 9], 3)]
    responses = [["15#15$", "15#15,,,,,", "15#_15$", "$", "#15,_,,,,,"]]
    responses += [["3,6#12$", "__$", "3,6#12,,,,", "15#15$", "#12$"]]
    rollout = scripted(problems, responses, T=10)
    assert rollout.rewards.tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 1]]
    for g, i, tokens, _, _ in read_alone(tiny_gpt(), rollout):
        assert tokens == ids(responses[g][i])
        assert rollout.texts[g][i] == responses[g][i].removesuffix("$")
    assert (rollout.logprobs[~rollout.mask] == 0).all()
    assert scripted(problems[:1], [["15#15", "#15$"]], T=5).rewards.tolist() == [[0, 1]]
    assert scripted(problems, [["1$"], ["$"]]).mask.size(2) == 2  # T: of the longest


# ---- (7) Updates
def stale_rollout():
    """A model, one near it, a rollout whose policy was another; one group has no advantage."""
    model = tiny_gpt().double()
    rollout = sample(model)
    rollout.rewards = torch.tensor([MIXED, ONE, FAIL, [0.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    rollout.token_bias = torch.randn_like(rollout.logprobs)
    rollout.answer_likelihood = torch.rand_like(rollout.rewards)
    reference = tiny_gpt().double().requires_grad_(False)
    for weight in reference.parameters():
        weight += 0.03 * torch.randn_like(weight)
    rollout.reference_logprobs = response_logprobs(reference, rollout)
    rollout.logprobs += 0.8 * torch.rand(rollout.mask.size()) - 0.3  # lopsided: k3 has a sign
    return model, reference, rollout


@pytest.mark.parametrize(
    "minibatches, kl, scale, aggregate",
    [(1, 0, 1, "token"), (3, 0.02, 30, "token"), (2, 0, 1, "response"), (9, 0, 0.01, "constant")],
)
@pytest.mark.parametrize("name", VARIANTS)
def test_update_equals_its_steps_by_hand(name, minibatches, kl, scale, aggregate):
    """Groups that are left out but missed, mini-batches that count alike, gradients that add up."""
    model, _, rollout = stale_rollout()
    mask = rollout.mask
    weights = mask / mask.sum(-1, keepdim=True) if aggregate == "response" else mask.double()
    A = scale * VARIANTS[name](rollout)
    teaches = (A != 0).any(2).any(1) | (kl > 0)
    parts = [part for part in teaches.nonzero()[:, 0].tensor_split(minibatches) if len(part)]
    by_hand = tiny_gpt().double()
    expected = dict.fromkeys(("loss", "clip_fraction", "approx_kl", "grad_norm"), 0.0)
    for groups in parts:
        part = torch.zeros(4, 1, 1).index_fill(0, groups, 1.0)  # here every group is read
        logprobs = response_logprobs(by_hand, rollout)
        loss = policy_loss(logprobs, rollout.logprobs, A * part, mask, 0.1, 0.3, aggregate, 24)
        d = rollout.reference_logprobs - logprobs  # of KL(pi_theta || pi_ref)
        loss = loss + kl * ((d.exp() - d - 1) * part)[mask].mean()  # kl: with "token" alone
        gradients = torch.autograd.grad(loss, by_hand.parameters())
        norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
        for weight, gradient in zip(by_hand.parameters(), gradients):
            weight.data -= 0.01 * gradient * min(1.0, 1.0 / norm)
        d = (logprobs.detach() - rollout.logprobs).masked_fill(~mask, 0.0)  # KL(pi_old || pi_theta)
        stopped = (A > 0) & (d > math.log(1.3)) | (A < 0) & (d < math.log(0.9))
        moved = (d.exp() - d - 1) * part * weights
        expected["loss"] += loss.item()
        expected["clip_fraction"] += ((stopped * part * weights).sum() / weights.sum()).item()
        expected["approx_kl"] += (moved.sum() / weights[teaches].sum()).item()
        expected["grad_norm"] += norm / len(parts)
    rollout.tokens[~teaches] = 10**6  # an error if a group without an advantage is read
    rollout.max_length = 24
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    metrics = update(model, optimizer, rollout, A, minibatches, kl, (0.1, 0.3), aggregate)
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-7)
    close([*model.parameters()], [*by_hand.parameters()], 1e-7)


def test_without_advantages_nothing_is_learned():
    """AdamW's momentum moves the weights even where the gradient is 0."""
    model, _, rollout = stale_rollout()
    optimizer = torch.optim.AdamW(model.parameters())
    update(model, optimizer, rollout, VARIANTS["grpo"](rollout))
    before = deepcopy([model.state_dict(), optimizer.state_dict()["state"]])
    metrics = update(model, optimizer, rollout, torch.zeros_like(rollout.logprobs))
    assert metrics == dict.fromkeys(metrics, 0.0)
    close([model.state_dict(), optimizer.state_dict()["state"]], before, 0)


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


def test_the_critic():
    """A bias that is read before its token is only a baseline; without its minus a loss rises."""
    _, _, rollout = stale_rollout()
    critic = tiny_gpt(outputs=1).double()
    bias = grpo.token_bias(critic, rollout)
    assert (bias[~rollout.mask] == 0).all()
    for g, i, tokens, _, outputs in read_alone(critic, rollout):
        close(bias[g, i, : len(tokens)], outputs[1:, 0])
    terms = by_loops(rollout, lambda x, i, t: standardised(x.r, i) * x.token_bias[i][t])
    bias = rollout.token_bias.masked_fill(~rollout.mask, math.nan)
    loss = advantages.critic_loss(bias, advantages.grpo(rollout), rollout.mask)
    close(loss, -terms.sum() / rollout.rewards.numel())  # a mean over responses, not over tokens


# ---- (8) The tasks
STEPS = {  # step k: what the last k digits give, without the k - 1 digits that are written already
    "add": lambda k, a, b: (a % 10**k + b % 10**k) // 10 ** (k - 1),
    "mul": lambda k, a, b: a % 10**k * b // 10 ** (k - 1),
    "sum": lambda k, *terms: sum(terms[: k + 1]),  # the running total
}


@pytest.mark.parametrize("name", TASKS)
def test_every_problem(name, monkeypatch):
    """Incorrect arithmetic, a prompt of another width, a lost token, a problem on both sides."""
    task = TASKS[name]
    monkeypatch.setattr(train, "DRAWS", 100)
    for held in (True, False):
        problems = train.make_problems(task, held)
        assert len({p.prompt for p in problems}) == len(problems)  # none twice
        assert {p.level for p in problems} == {*task.levels}
        for p in problems:
            numbers = [int(number) for number in re.findall("[0-9]+", p.prompt)]
            sizes = {"add": [p.level] * 2, "mul": [p.level, 1], "sum": [1] * p.level}[name]
            assert [len(str(number)) for number in numbers] == sizes
            assert int(p.answer) == (math.prod if name == "mul" else sum)(numbers)
            count = p.level - 1 if name == "sum" else p.level
            steps = [f"{STEPS[name](k, *numbers):02}" for k in range(1, count + 1)]
            assert p.solution == ",".join(steps) + "#" + p.answer
            checks = (task.reward, task.coherent, task.steps_correct)
            assert [check(p, p.solution) for check in checks] == [1.0, True, True]
            assert all(len(text) <= len(longest) for text, longest in zip(p[:3], task.longest[:3]))
            assert len(p.prompt) == len(task.longest.prompt)
            prompt = p.prompt.replace(" ", "").encode()
            assert held == held_out(p.prompt) == (zlib.crc32(prompt) % 10 == 0)
            assert TOKENIZER.decode(ids(p.prompt + p.solution)) == p.prompt + p.solution
    seen = []
    monkeypatch.setattr(train, "encode", lambda *args: seen.extend(args[1]) or grpo.encode(*args))
    train.warm_up(tiny_gpt(), task, 1.0, 1.0, SEED, [2e-3])
    assert not any(held_out(text.split("=")[0] + "=") for text in seen)


def test_the_three_checks_compare_strings():
    """int() takes "+20" and " 20" and raises on others; coherence must not ask for the truth."""
    assert problem(TASKS["mul"], [347, 8], 3) == ("  347*8=", "56,37,27#2776", "2776", 3)
    p = problem(SUM, [7, 8, 5], 3)
    assert p == ("7+8+5=          ", "15,20#20", "20", 3)
    hostile = "|#|20|15,20|##20|#20#20|#20#|20#|#200|#٢٠|#２０|#020|#20 |# 20|#20\n|#20x|#20,"
    hostile += "|#+20|#20.0|#2_0|#-20|#²⁰|#20\x00|#20$|#20_|15,20＃20|\ud800#20#|#2|²0#²0"
    for y in [*hostile.split("|"), "#" * 10**4]:
        assert not (SUM.reward(p, y) or SUM.coherent(p, y) or SUM.steps_correct(p, y))
    assert [SUM.reward(p, y) for y in ("#20", "15,20#20", "99#20", "\ud800٣#20")] == [1.0] * 4
    assert all(SUM.coherent(p, y) for y in ("15,20#20", "15,21#21", "20#20", "07# 7", "00# 0"))
    assert not any(SUM.coherent(p, y) for y in ("15,20#21", "15,#", "20,#20", "20,15#20", "7#7"))
    p = problem(ADD, [347, 285], 3)
    assert p == ("  347+  285=", "12,13,06# 632", " 632", 3)
    right = "12,13,06# 632|12,13,06# 642|12,13,06#0632|12,13,06#632|12,13,06#|12,13,06#642#"
    wrong = "12,14,06# 642|12,14,06# 632|12,3,06# 632|12,13,6# 632|12, 3,06# 632|12,13,06"
    texts = [*right.split("|"), *wrong.split("|"), "012,13,06# 632", "12,13,06 # 632"]
    assert [y for y in texts if ADD.steps_correct(p, y)] == right.split("|")
    assert [y for y in texts if ADD.coherent(p, y)] == ["12,13,06# 632", "12,14,06# 642"]
    assert all(ADD.reward(p, y) == y.endswith("# 632") for y in texts)


# ---- (9) The loop, the folder of a run, the report
@pytest.mark.parametrize("easy, left", [(4, {5}), (5, {2, 3, 4, 5})])  # 5: all come again
def test_culling_drops_solved_prompts_and_keeps_its_budget(easy, left, monkeypatch):
    """A batch that shrinks with the pool: the budget goes with the prompts that are solved."""

    def solved(rollout):  # of the groups of an easy prompt only the first one is all-pass
        batch = rollout.problems
        done = [p.level <= easy and p not in batch[:i] for i, p in enumerate(batch)]
        return torch.tensor(done)

    monkeypatch.setattr(train, "solved", solved)
    monkeypatch.setattr(train, "DRAWS", 6)
    settings = "--variant culling --prompts 200 --group-size 2 --device cpu"
    steps = train.train(train.parse_arguments(settings.split()), tiny_gpt())
    for levels in ({2, 3, 4, 5}, left, left):
        rollout, _, _ = next(steps)
        assert len(rollout.problems) == 200
        assert {p.level for p in rollout.problems} == levels


def test_a_folder_names_what_differs_from_the_defaults():
    """A run with another setting that silently replaces an earlier one."""
    names = {
        "--variant=nthr --task=mul --seed=7": "mul-nthr-seed7",
        "--minibatches=1 --lr=0.001": "add-grpo-seed0-lr0.001-minibatches1",
        "--threads=2 --device=cpu --out=elsewhere": "add-grpo-seed0",
        "--variant=ngrpo --clip-low=0.16": "add-ngrpo-seed0",  # its own default
        "--variant=ngrpo --clip-low=0.2": "add-ngrpo-seed0-clip_low0.2",
        "--variant=dr_grpo --aggregate=token": "add-dr_grpo-seed0-aggregatetoken",
    }
    every = "steps=3 prompts=2 group-size=2 temperature=0.5 lr=1.0 minibatches=2 clip-low=0.1"
    every += " clip-high=0.1 aggregate=response kl=1.0 base-seed=1 layers=1 width=8"
    for setting in every.split():
        names[f"--{setting}"] = "add-grpo-seed0-" + setting.replace("-", "_").replace("=", "")
    for arguments, name in names.items():
        assert train.parse_arguments(arguments.split()).name == name


def test_the_report_marks_what_is_pushed(capsys):
    """A variant whose effect on the tokens cannot be seen; a group with nothing to compare."""
    rollout = random_rollout([FAIL, MIXED])
    rollout.problems = [problem(ADD, [33, 99], 2), problem(ADD, [44, 88], 2)]
    rollout.texts = [["1"] * 4, ["12,13#132", "1_", "", "12"]]
    A = torch.tensor([2.0, 1.0, 0.1, 0.0, -0.1, -1.0, -2.0, 1.2, -1.2, 2.0]).expand(2, 4, 10)
    train.report(rollout, A)
    group, mistakes = capsys.readouterr().out.split("Mistakes in the last step:\n")
    assert "   44+   88=" in group
    assert "\n  12,13#132$\n  *++.--=+-*\n  1_$\n  *++\n  $\n  *\n" in group
    assert mistakes.splitlines()[4] == "     44+   88=1_  correct: 12,13#132"
    train.report(rollout, 0 * A)  # not one advantage
    assert "12,13#132$\n  ..........\n" in capsys.readouterr().out


# ---- (10) A policy that learns
@pytest.mark.parametrize("sign", [+1, -1])
def test_the_policy_learns(sign):
    """Sampling, advantages or update do not fit together, although each does what it says."""

    def copy(level, draw):  # 7=07# 7
        n = draw(0, 10)
        return f"{n}=", [n], f"{n:2}"

    copy_a_digit = Task(copy, from_columns, range(1, 2))
    problems = [problem(copy_a_digit, [n], 1) for n in range(10)]
    torch.manual_seed(SEED)
    model = GPT(V, 12, layers=1, width=32)
    train.warm_up(model, copy_a_digit, 1.0, 1.0, SEED, [2e-3] * 60)  # or no reward would be found
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    rewards = []
    for _ in range(41):
        rollout = sample_rollout(model, TOKENIZER, copy_a_digit, problems, 20)
        rewards.append(rollout.rewards.mean().item())
        update(model, optimizer, rollout, sign * VARIANTS["grpo"](rollout))
    if sign > 0:
        assert rewards[-1] > rewards[0] + 0.3
    else:
        assert rewards[-1] < 0.03 < rewards[0]
