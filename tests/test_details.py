"""Single lines that no formula of test_grpo.py can see: the block, the tasks, defaults, ranges."""

import math
import re
import zlib
from unittest.mock import Mock, call

import pytest
import torch

import advantages
import grpo
import train
from advantages import LOSS
from model import GPT
from tasks import ADD, SUM, TASKS, TOKENIZER
from test_grpo import MIXED, ONE, by_loops, close, ids, nthr_at, problem, random_rollout
from test_grpo import sample, score_at, scripted, tiny_gpt


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
    assert first.unembed.bias is None


def test_defaults_and_limits():
    """What a caller does not say; a response of one token, which counts whole."""
    rollout = sample(tiny_gpt())
    assert (rollout.temperature, rollout.max_length) == (1, len(ADD.longest.solution) + 1)
    ended = scripted([problem(SUM, [7, 8], 2)], [["1$", "$"]])
    assert ended.mask.size(2) == 2  # T is that of the longest response
    assert grpo.token_weights(torch.ones(1, 1, 1) > 0, "response") == 1
    assert (grpo.k3(torch.linspace(-0.02, 0.02, 1001)) >= 0).all()  # rounding included
    assert LOSS["ngrpo"] == {"clip_low": 0.16, "clip_high": 0.24}
    assert LOSS["dr_grpo"] == {"aggregate": "constant"}


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


def test_the_example_of_nthr():
    """The numbers in the docstring of nthr are not those of the code."""
    tokens = torch.tensor([[[0, 2], [0, 1]]])
    probs = torch.tensor([[0.2, 0.4, 0.4], [0.1, 0.3, 0.6]]).expand(1, 2, 2, 3)
    ones = torch.ones(1, 2, 2)
    x = grpo.Rollout(tokens, ones == 1, torch.tensor([[1.0, 0.0]]), -ones, probs, ones[..., None])
    close(advantages.nthr_scores(x), torch.tensor([[[0.84, 0.14], [0.84, -0.56]]]), 1e-6)
    close(advantages.nthr(x), torch.tensor([[[1.0, 1.0], [0.0, -1.0]]]), 1e-4)


def test_tensors_are_made_where_the_model_is(monkeypatch):
    """On a GPU a tensor that is made elsewhere stops the run; "meta" plays the other device."""
    judge = grpo.judge

    def judged(*given):  # on the processor; its result is sent
        with torch.device("cpu"):
            return judge(*given)

    monkeypatch.setattr(grpo, "judge", judged)
    runs = []
    for device in ("cpu", "meta"):
        model = tiny_gpt()
        with torch.device(device):
            x = sample(model)
            metrics = grpo.update(model, torch.optim.SGD(model.parameters()), x, x.logprobs)
            runs.append([x.rewards.tolist(), metrics, grpo.answer_likelihood(model, x).tolist()])
    assert runs[0] == runs[1]


# ---- The tasks
def test_numbers_are_of_their_level():
    """A task without zeros, or with leading ones, is another task."""
    three = call(100, 1000)
    drawn = {"add": [three, three], "mul": [three, call(2, 10)], "sum": [call(0, 10)] * 3}
    for name, calls in drawn.items():
        draw = Mock(return_value=7)
        TASKS[name].work(3, draw)
        assert draw.call_args_list == calls


STEPS = {  # step k: what the last k digits give, without the k - 1 digits that are written already
    "add": lambda k, a, b: (a % 10**k + b % 10**k) // 10 ** (k - 1),
    "mul": lambda k, a, b: a % 10**k * b // 10 ** (k - 1),
    "sum": lambda k, *terms: sum(terms[: k + 1]),  # the running total
}


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", TASKS)
def test_every_problem(name, held, monkeypatch):
    """Incorrect arithmetic, a prompt of another width, a lost token, a problem on both sides."""
    task = TASKS[name]
    monkeypatch.setattr(train, "DRAWS", 100)
    problems = train.make_problems(task, held)
    assert len({p.prompt for p in problems}) == len(problems)  # none twice
    assert {p.level for p in problems} == {*task.levels}
    for p in problems:
        numbers = [int(number) for number in re.findall("[0-9]+", p.prompt)]
        sizes = {"add": [p.level] * 2, "mul": [p.level, 1], "sum": [1] * p.level}[name]
        assert [len(str(number)) for number in numbers] == sizes
        assert int(p.answer) == (math.prod if name == "mul" else sum)(numbers)
        count = p.level - (name == "sum")
        steps = [f"{STEPS[name](k, *numbers):02}" for k in range(1, count + 1)]
        assert p.solution == ",".join(steps) + "#" + p.answer
        assert task.reward(p, p.solution) == 1.0
        assert task.coherent(p, p.solution) and task.steps_correct(p, p.solution)
        assert all(len(text) <= len(longest) for text, longest in zip(p[:3], task.longest[:3]))
        assert len(p.prompt) == len(task.longest.prompt)
        assert held == (zlib.crc32(p.prompt.replace(" ", "").encode()) % 10 == 0)
        assert TOKENIZER.decode(ids(p.prompt + p.solution)) == p.prompt + p.solution


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
