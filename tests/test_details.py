"""What no formula of test_grpo.py can see: the update by hand, the block, the tasks, ranges."""

import dataclasses
import math
import re
import zlib
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch

import advantages
import grpo
import train
from grpo import is_clipped, policy_loss, response_logprobs, token_weights, update
from model import GPT
from tasks import ADD, SUM, TASKS
from test_grpo import FAIL, MIXED, ONE, REAL, by_loops, close, ids, nthr_at, problem, read_alone
from test_grpo import random_rollout, sample, score_at, scripted, standardised, tiny_gpt

DEFAULTS = {"minibatches": 4, "aggregate": "token", "kl": 0.0, "max_grad_norm": 1.0}
DEFAULTS |= {"clip_low": 0.2, "clip_high": 0.2}
CASES = [
    {},
    {"minibatches": 3, "kl": 0.02, "clip_low": 0.1, "clip_high": 0.3},
    {"minibatches": 2, "aggregate": "response", "max_grad_norm": 0.05},
    {"minibatches": 9, "aggregate": "constant", "kl": 0.5, "max_grad_norm": 1e9},
]


def test_the_model_is_the_usual_one():
    """Another scale of the scores, or a cache with a column of zeros: it still trains, but less."""
    model = tiny_gpt().double()
    tokens = torch.randint(18, (2, 7))
    x = model.embed_token(tokens) + model.embed_position.weight[:7]
    for block in model.blocks:
        q, k, v = block.qkv(block.norm1(x)).split([16, 4, 4], dim=-1)
        q = q.view(2, 7, 4, 4).transpose(1, 2)
        k, v = (shared[:, None].expand_as(q) for shared in (k, v))
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + block.project(y.transpose(1, 2).reshape(2, 7, 16))
        x = x + block.mlp[2](block.mlp[0](block.norm2(x)).relu())
    close(model(tokens)[0], model.norm(x))
    first = GPT(18, 60)  # weights that are larger: the first responses are then far from random
    assert all(0.018 < w.std() < 0.022 for w in first.parameters() if w.dim() == 2)
    assert (len(first.blocks), first.unembed.in_features, first.unembed.bias) == (2, 64, None)


def test_defaults_and_limits():
    """What a caller does not say; a response of one token, which counts whole."""
    rollout = sample(tiny_gpt())
    assert (rollout.temperature, rollout.max_length) == (1, len(ADD.longest.solution) + 1)
    ended = scripted([problem(SUM, [7, 8], 2)], [["1$", "$23"]])
    assert ended.mask.size(2) == 2  # T is that of the longest response
    assert grpo.token_weights(torch.ones(1, 1, 1) > 0, "response") == 1
    assert (grpo.k3(torch.linspace(-0.02, 0.02, 1001)) >= 0).all()  # rounding included
    close(grpo.k3(torch.tensor([-1e4, 1e4])).log(), torch.tensor([math.log(19.0), 20.0]), 1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0, -math.inf])
def test_nthr_equals_algorithm_1(beta):
    """A wrong score or threshold spares other tokens; -inf times a negative mean spares none."""
    rollout = random_rollout([MIXED, ONE, [0.1, 0.5, 0.2, 0.0], [1, 1, 0, 1]], T=4)
    rollout.mask[3, :, 1:] = False  # here all sums are exact, s = tau, and tau is negative
    rollout.tokens[3] = 1
    rollout.probs[3] = 0.25
    rollout.hidden[3] = torch.tensor([3.0, -1.0, -1.0, 3.0])[:, None, None]
    close(advantages.nthr_scores(rollout), by_loops(rollout, score_at))
    for eta in (None, 0.0, 0.3):
        A = by_loops(rollout, lambda x, i, t: nthr_at(x, i, t, beta, eta))
        close(advantages.nthr(rollout, beta=beta, eta=eta), A)
    close(advantages.negative(rollout, c=0.0), advantages.grpo(rollout))


def test_tensors_are_made_where_the_model_is(monkeypatch):
    """On a GPU a tensor that is made elsewhere stops the run; "meta" plays the other device."""
    monkeypatch.setattr(grpo, "judge", lambda *given: torch.ones(4, 4, device="cpu"))  # is sent
    runs = []
    for device in ("cpu", "meta"):
        model = tiny_gpt()
        with torch.device(device):
            x = sample(model)
            metrics = grpo.update(model, torch.optim.SGD(model.parameters()), x, x.logprobs)
            runs.append([x.rewards.tolist(), metrics, grpo.answer_likelihood(model, x).tolist()])
    assert runs[0] == runs[1]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_update_equals_its_steps_by_hand(options, monkeypatch):
    """An argument that is not used, or used for another; gradients that pile up; a wrong mean.

    A group without advantage that is read though it has no gradient, or not read for the KL term.
    """
    how = DEFAULTS | options
    clip = how["clip_low"], how["clip_high"]
    model = tiny_gpt().double()
    rollout = sample(model, levels=(2, 5, 4, 3, 2, 3))
    rollout.rewards = torch.tensor([MIXED, ONE, FAIL, REAL, REAL, ONE], dtype=torch.float64)
    rollout.max_length = 24  # what follows is lopsided, so that k3 has a sign
    rollout.reference_logprobs = rollout.logprobs - 0.5 * torch.rand(rollout.mask.size())
    rollout.logprobs = rollout.logprobs + 0.8 * torch.rand(rollout.mask.size()) - 0.3
    A = 10 * advantages.grpo(rollout)  # gradients are longer than 1; the third group has none
    weights = token_weights(rollout.mask, how["aggregate"], 24)
    read = torch.tensor([0, 1, 2, 3, 4, 5] if how["kl"] else [0, 1, 3, 4, 5])
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
    reads = Mock(wraps=response_logprobs)
    monkeypatch.setattr(grpo, "response_logprobs", reads)
    metrics = update(model, torch.optim.SGD(model.parameters(), 0.01), rollout, A, **options)
    close([call.args[2] for call in reads.call_args_list], parts)
    assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-5)
    close([*model.parameters()], [*by_hand.parameters()], 1e-7)
    assert not any(update(model, None, rollout, 0 * A).values())  # nothing to learn: no step


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


# ---- The tasks
def test_numbers_are_of_their_level():
    """A task without zeros, or with leading ones, is another task."""
    draw = Mock(return_value=7)
    for task in TASKS.values():
        task.work(3, draw)
    three = call(100, 1000)
    assert draw.call_args_list == [three, three] + [three, call(2, 10)] + [call(0, 10)] * 3


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", TASKS)
def test_every_problem(name, held, monkeypatch):
    """Incorrect arithmetic, a prompt of another width, a problem on both sides of the split."""
    task = TASKS[name]
    monkeypatch.setattr(train, "DRAWS", 100)
    problems = train.make_problems(task, held)
    assert len({p.prompt for p in problems}) == len(problems)  # none twice
    assert {p.level for p in problems} == {*task.levels}
    for p in problems:
        numbers = [int(number) for number in re.findall("[0-9]+", p.prompt)]
        assert int(p.answer) == (math.prod if name == "mul" else sum)(numbers)
        assert task.reward(p, p.solution) == 1.0
        assert task.coherent(p, p.solution) and task.steps_correct(p, p.solution)
        assert all(len(text) <= len(longest) for text, longest in zip(p[:3], task.longest[:3]))
        assert held == (zlib.crc32(p.prompt.replace(" ", "").encode()) % 10 == 0)


def test_hostile_responses():
    """int() takes "+20" and " 20" and others, and raises on more."""
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


def test_the_three_checks_ask_three_things():
    """Coherence that asks for the truth, a reward that asks for the steps."""
    p = problem(ADD, [347, 285], 3)
    assert p == ("  347+  285=", "12,13,06# 632", " 632", 3)
    right = "12,13,06# 632|12,13,06# 642|12,13,06#0632|12,13,06#632|12,13,06#|12,13,06#642#"
    wrong = "12,14,06# 642|12,14,06# 632|12,3,06# 632|12,13,6# 632|12, 3,06# 632|12,13,06"
    texts = [*right.split("|"), *wrong.split("|"), "012,13,06# 632", "12,13,06 # 632"]
    assert [y for y in texts if ADD.steps_correct(p, y)] == right.split("|")
    assert [y for y in texts if ADD.coherent(p, y)] == ["12,13,06# 632", "12,14,06# 642"]
    assert all(ADD.reward(p, y) == y.endswith("# 632") for y in texts)
