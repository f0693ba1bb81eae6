"""Single lines that no formula of test_grpo.py can see: defaults, ranges, the block by itself."""

import math
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import advantages
import grpo
import tasks
from advantages import VARIANTS
from model import GPT
from tasks import ADD, TASKS
from test_grpo import MIXED, change, close, problem, random_rollout, sample, stale_rollout, tiny_gpt

TOKENIZER = tasks.build_tokenizer()


def test_a_block_is_the_usual_one():
    """Another scale of the scores, or a sign, would still sample and train, but not as well."""
    x = torch.randn(2, 7, 16)
    block = tiny_gpt().blocks[0]
    q, k, v = block.qkv(block.norm1(x)).split([16, 4, 4], dim=-1)
    q = q.view(2, 7, 4, 4).transpose(1, 2)
    k, v = (shared[:, None].expand_as(q) for shared in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    after = x + block.project(y.reshape(2, 7, 16))
    mask = torch.full((7, 7), -torch.inf).triu(1)
    first, _, last = block.mlp
    close(
        block(x, x.new_zeros(2, 0, 8), mask)[0],
        after + last(first(block.norm2(after)).relu()),
        1e-5,
    )


def test_the_first_weights():
    """Weights that are too large: the first responses are then far from random."""
    model = GPT(18, 60)
    assert all(0.018 < w.std() < 0.022 for w in model.parameters() if w.dim() == 2)
    assert model.unembed.bias is None


def test_numbers_are_of_their_level():
    """A task without zeros, or with leading ones, is another task."""
    rng = np.random.default_rng(0)
    two = range(10, 100)
    for name, first, last in (
        ("sum", range(10), range(10)),
        ("add", two, two),
        ("mul", two, range(2, 10)),
    ):
        prompts = [TASKS[name].problem(rng, 2).prompt.strip(" =") for _ in range(3000)]
        numbers = [[int(n) for n in re.split("[+*]", prompt)] for prompt in prompts]
        assert [set(drawn) for drawn in zip(*numbers)] == [set(first), set(last)]


def test_the_first_token_stands_in_the_first_column():
    """A cache that begins with a column of zeros: all tokens look at it, and stand one further."""
    model = tiny_gpt()
    tokens = torch.randint(18, (2, 5))
    x = model.embed_token(tokens) + model.embed_position.weight[:5]
    for block in model.blocks:
        x, _ = block(x, x.new_zeros(2, 0, 8), torch.full((5, 5), -torch.inf).triu(1))
    close(model(tokens)[0], model.norm(x), 1e-5)


def test_defaults(monkeypatch):
    """What a caller does not say: temperature 1, the longest solution, four mini-batches."""
    model = tiny_gpt()
    model.unembed.weight.data.zero_()  # all tokens are alike; of 100 responses one is full length
    rollout = grpo.sample_rollout(model, TOKENIZER, ADD, [problem(ADD, [11, 22], 2)] * 50, 8)
    assert rollout.temperature == 1.0
    assert rollout.mask.shape == (50, 8, len(ADD.longest.solution) + 1)
    steps = []
    monkeypatch.setattr(grpo, "descend", lambda *args: steps.append(1) or torch.tensor(0.0))
    grpo.update(model, None, rollout, torch.ones(rollout.mask.shape))
    assert len(steps) == 4


def test_an_equal_group_beside_another():
    """0.9 + 0.9 + 0.9 rounds: divided by eps, what is left would be a large advantage."""
    empty = torch.zeros(2, 3, 1)
    arguments = (empty.long(), empty == 0, torch.tensor([[0.9] * 3, [1.0, 0.0, 0.0]]))
    assert (advantages.grpo(grpo.Rollout(*arguments, *[empty] * 3))[0] == 0).all()


def test_a_missing_field_is_named():
    """The loop forgot to fill a field: the error would come far from its cause."""
    for name, field in (("critic", "token_bias"), ("likelihood", "answer_likelihood")):
        with pytest.raises(ValueError, match=f"^{name} needs rollout.{field}$"):
            VARIANTS[name](change(random_rollout([MIXED]), [field], lambda x: None))


def test_the_example_of_nthr():
    """The numbers in the docstring of nthr are not those of the code."""
    tokens = torch.tensor([[[0, 2], [0, 1]]])
    probs = torch.tensor([[0.2, 0.4, 0.4], [0.1, 0.3, 0.6]]).expand(1, 2, 2, 3)
    ones = torch.ones(1, 2, 2)
    rewards = torch.tensor([[1.0, 0.0]])
    x = grpo.Rollout(tokens, ones == 1, rewards, -ones, probs, ones[..., None])
    close(advantages.nthr_scores(x), torch.tensor([[[0.84, 0.14], [0.84, -0.56]]]), 1e-6)
    close(advantages.nthr(x), torch.tensor([[[1.0, 1.0], [0.0, -1.0]]]), 1e-4)


def test_tensors_are_made_where_the_model_is():
    """On a GPU a tensor that is made elsewhere stops the run; "meta" plays the other device."""
    runs = []
    for device in ("cpu", "meta"):
        model = tiny_gpt()
        with torch.device(device):
            x = sample(model)
            metrics = grpo.update(model, torch.optim.SGD(model.parameters()), x, x.logprobs)
            runs.append([x.rewards.tolist(), metrics, grpo.answer_likelihood(model, x).tolist()])
    assert runs[0] == runs[1]


def test_one_token_and_the_limit_of_the_ratio():
    """A response of one token counts whole; a ratio ends at exp(20) on both sides."""
    one = torch.ones(1, 1, 1)
    for aggregate, loss in (("response", -1), ("constant", -0.5)):
        inputs = (0 * one, 0 * one, one, one > 0)
        assert grpo.policy_loss(*inputs, aggregate=aggregate, max_length=2) == loss
    assert grpo.log_ratio(90 * one, 0 * one, one > 0) == 20
    assert grpo.log_ratio(0 * one, 90 * one, one > 0) == -20
    ratio = torch.tensor([0.79, 0.81, 1.19, 1.21])
    for A, stopped in ((ratio - 1, [True, False, False, True]), (1 - ratio, [False] * 4)):
        assert grpo.clipped_gain(ratio, A, 0.2, 0.2)[1].tolist() == stopped
    assert (grpo.k3(torch.linspace(-0.02, 0.02, 1001)) >= 0).all()  # rounding included


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_no_step_is_taken_that_is_not_finite(fault):
    """After one NaN in the weights nothing can be learned or explained."""
    model, _, rollout = stale_rollout()
    A = VARIANTS["grpo"](rollout)
    if fault == math.inf:  # the loss is finite, its gradient is not
        model.unembed.weight.register_hook(lambda grad: grad * fault)
    else:
        A[0, 0, 0] = fault
    with pytest.raises(FloatingPointError, match="not finite: loss"):
        grpo.update(model, torch.optim.Adam(model.parameters()), rollout, A)
    close([*model.parameters()], [*tiny_gpt().double().parameters()], 0)


def test_the_tokenizer_reads_characters():
    """A lost character, or padding that is taken for the end, would make other problems."""
    made = tasks.build_tokenizer()
    text = "12+34=5*6,7#8 90"
    rows = made.encode_batch([text, "1$"])
    assert [row.tokens for row in rows] == [list(text), ["1", "$", *["_"] * 14]]
    assert rows[1].ids[1:3] == [made.token_to_id(x) for x in ("$", "_")]
    assert [made.decode(row.ids) for row in rows] == [text, "1$" + "_" * 14]
    assert [row.attention_mask for row in rows] == [[1] * 16, [1] * 2 + [0] * 14]
    assert made.get_vocab() == TOKENIZER.get_vocab()
