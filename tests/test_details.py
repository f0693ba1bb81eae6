"""Single lines that no formula of test_grpo.py can see: defaults, ranges, the block by itself."""

import numpy as np
import torch
import torch.nn.functional as F

import advantages
import grpo
import tasks
from model import GPT, GPTConfig
from tasks import SUM

TOKENIZER = tasks.build_tokenizer()
CONFIG = GPTConfig(TOKENIZER.get_vocab_size(), 60, layers=1, width=16)


def test_a_block_is_the_usual_one():
    """Another scale of the scores, or a sign, would still sample and train, but not as well."""
    model = GPT(CONFIG)
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    tokens = torch.randint(5, (2, 7))
    x = model.embed_token(tokens) + model.embed_position(torch.arange(7))
    block = model.blocks[0]
    q, k, v = block.qkv(x).split([16, 4, 4], dim=-1)
    q = q.view(2, 7, 4, 4).transpose(1, 2)
    k, v = (shared[:, None].expand_as(q) for shared in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    x = x + block.project(y.reshape(2, 7, 16))
    torch.testing.assert_close(model.hidden(tokens), model.norm(x + block.mlp(x)))


def test_numbers_have_the_digits_of_their_level():
    """A task without zeros, or with leading ones, is another task."""
    rng = np.random.default_rng(0)
    for task, level, low, high in ((SUM, 3, 0, 9), (tasks.TASKS["add"], 2, 10, 99)):
        prompts = [task.problem(rng, level).prompt.strip(" =") for _ in range(2000)]
        numbers = {int(number) for prompt in prompts for number in prompt.split(task.sign)}
        assert numbers == set(range(low, high + 1))


def test_defaults(monkeypatch):
    """What a caller does not say: temperature 1, the longest solution, four mini-batches."""
    model = GPT(CONFIG)
    model.unembed.weight.data[TOKENIZER.token_to_id(tasks.EOS)] = -100 * torch.ones(16)
    model.norm.weight.data.zero_()
    model.norm.bias.data.fill_(1.0)  # every hidden vector is 1, so EOS is never drawn
    problems = [SUM.write([1, 2], 2)] * 10
    rollout = grpo.sample_rollout(model, TOKENIZER, SUM, problems, 2)
    assert rollout.temperature == 1.0
    assert rollout.mask.shape == (10, 2, len(SUM.longest.solution) + 1)
    steps = []
    monkeypatch.setattr(grpo, "descend", lambda *args: steps.append(1) or torch.tensor(0.0))
    grpo.update(model, None, rollout, torch.ones(rollout.mask.shape))
    assert len(steps) == 4


def test_an_equal_group_beside_another():
    """0.9 + 0.9 + 0.9 rounds: divided by eps, what is left would be a large advantage."""
    empty = torch.zeros(2, 3, 1)
    arguments = (empty.long(), empty == 0, torch.tensor([[0.9] * 3, [1.0, 0.0, 0.0]]))
    assert (advantages.grpo(grpo.Rollout(*arguments, *[empty] * 3))[0] == 0).all()
    pair = (empty[:1, :2].long(), empty[:1, :2] == 0, torch.tensor([[1.0, 0.0]]))
    assert advantages.rloo(grpo.Rollout(*pair, *[empty] * 3)).flatten().tolist() == [1.0, -1.0]


def test_tensors_are_made_where_the_model_is():
    """On a GPU a tensor that is made elsewhere stops the run; here "meta" plays the other device."""
    model = GPT(CONFIG)
    with torch.device("meta"):
        rollout = grpo.sample_rollout(model, TOKENIZER, SUM, [SUM.write([1, 2], 2)], 2)
        likelihood = grpo.answer_likelihood(model, rollout)
    assert rollout.rewards.device.type == likelihood.device.type == "cpu"


def test_likelihood_change_of_no_mixed_group():
    """Groups that are all correct or all incorrect say nothing of the displacement."""
    model = GPT(CONFIG)
    rollout = grpo.sample_rollout(model, TOKENIZER, SUM, [SUM.write([1, 2], 2)] * 2, 2)
    rollout.rewards = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert np.isnan(grpo.likelihood_change(model, rollout))
    assert (grpo.token_bias(model, rollout)[~rollout.mask] == 0).all()


def test_one_token_and_the_limit_of_the_ratio():
    """A response of one token counts whole; a ratio ends at exp(20) on both sides."""
    one = torch.ones(1, 1, 1)
    loss = grpo.policy_loss(0 * one, 0 * one, one, one > 0, aggregate="response")
    assert loss == -1
    options = {"aggregate": "constant", "max_length": 2}
    assert grpo.policy_loss(0 * one, 0 * one, one, one > 0, **options) == -0.5
    assert grpo.log_ratio(90 * one, 0 * one, one > 0) == 20
    assert grpo.log_ratio(0 * one, 90 * one, one > 0) == -20
