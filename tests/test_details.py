"""Single lines that no formula of test_grpo.py can see: defaults, ranges, the block by itself."""

import math
from unittest.mock import Mock, call

import pytest
import torch

import advantages
import grpo
import tasks
from advantages import VARIANTS
from model import GPT
from test_grpo import MIXED, TOKENIZER, change, close, random_rollout, sample, stale_rollout
from test_grpo import tiny_gpt


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


def test_numbers_are_of_their_level():
    """A task without zeros, or with leading ones, is another task."""
    three = call(100, 1000)
    drawn = {"add": [three, three], "mul": [three, call(2, 10)], "sum": [call(0, 10)] * 3}
    for name, calls in drawn.items():
        draw = Mock(return_value=7)
        tasks.TASKS[name].work(3, draw)
        assert draw.call_args_list == calls


def test_defaults_and_limits(monkeypatch):
    """What a caller does not say; a response of one token, which counts whole."""
    model = tiny_gpt()
    rollout = sample(model, levels=[3] * 9)
    assert (rollout.temperature, rollout.max_length) == (1, len(tasks.ADD.longest.solution) + 1)
    descend = Mock(return_value=torch.tensor(0.0))
    monkeypatch.setattr(grpo, "descend", descend)
    grpo.update(model, None, rollout, torch.ones(rollout.mask.shape))
    assert descend.call_count == 4
    one = torch.ones(1, 1, 1)
    assert grpo.token_weights(one > 0, "response") == 1
    assert (grpo.k3(torch.linspace(-0.02, 0.02, 1001)) >= 0).all()  # rounding included


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
    x = grpo.Rollout(tokens, ones == 1, torch.tensor([[1.0, 0.0]]), -ones, probs, ones[..., None])
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


def test_no_step_is_taken_that_is_not_finite():
    """After one NaN in the weights nothing can be learned or explained."""
    model, _, rollout = stale_rollout()
    model.unembed.weight.register_hook(lambda gradient: gradient * math.inf)  # the loss is finite
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(FloatingPointError, match="not finite: loss"):
        grpo.update(model, optimizer, rollout, VARIANTS["grpo"](rollout))
    close([*model.parameters()], [*tiny_gpt().double().parameters()], 0)


def test_the_tokenizer_reads_characters():
    """A lost character, or padding that is taken for the end, would make other problems."""
    made = tasks.build_tokenizer()
    text = "12+34=5*6,7#8 90"
    whole, short = made.encode_batch([text, "1$"])
    assert [whole.tokens, short.tokens] == [[*text], ["1", "$", *["_"] * 14]]
    assert [made.decode(row.ids) for row in (whole, short)] == [text, "1$" + "_" * 14]
    assert made.get_vocab() == TOKENIZER.get_vocab()
