"""Without these tests course/one_file.py could have another algorithm than the core."""

import os
import re
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import ModuleType

import pytest
import torch

import grpo
from advantages import VARIANTS, with_advantages
from course import one_file
from tasks import EOS_ID
from test_grpo import FAIL, MIXED, ONE, PASS, close, random_rollout, sample, tiny_gpt

NAMES = ["grpo", "half", "pos_only", "dr_grpo"]
REWARDS = [MIXED, ONE, FAIL, MIXED, PASS, ONE, MIXED]  # five groups teach


def changed_to(name: str) -> ModuleType:
    """The file as a reader changes it: of the four lines of variants, only this one is code."""
    source = Path(one_file.__file__).read_text(encoding="utf-8")
    line = re.compile(r"^    (?:# )?(return .+  # (grpo|half|pos_only|dr_grpo).*)$", re.MULTILINE)
    assert [found[2] for found in line.finditer(source)] == NAMES
    source = line.sub(lambda found: f"    {'# ' * (found[2] != name)}{found[1]}", source)
    one = ModuleType("one_file")
    exec(source, vars(one))
    return one


class Policy(torch.nn.Module):
    """A GPT of the core in the form of the file: tokens -> logits."""

    def __init__(self, gpt):
        super().__init__()
        self.gpt = gpt

    def forward(self, tokens):
        return self.gpt.unembed(self.gpt(tokens)[0])


@pytest.mark.parametrize("name", NAMES)
def test_advantages_of_one_file(name):
    """A sign is wrong, or a comment beside the variant's line has another formula."""
    rollout = random_rollout(REWARDS)
    close(changed_to(name).advantages(rollout.rewards), VARIANTS[name](rollout))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reward", [0.35, 0.1, 1 / 3])
def test_equal_rewards_teach_nothing(name, reward):
    """A reader's own reward is the same for a whole group, and rounding trains the policy on it."""
    assert not changed_to(name).advantages(torch.full((2, 8), reward)).any()


def test_imitation_ends(monkeypatch, capsys):
    """With a mistake in `reward` the file imitates for ever, and says nothing."""
    monkeypatch.setattr(one_file, "reward", lambda problem, response: 0.0)
    monkeypatch.setattr(one_file, "draw", lambda n, held_out: [one_file.solve(347, 285)])
    one_file.imitate(one_file.GPT())
    assert "did not make 13 % of the responses correct" in capsys.readouterr().out


SHORT = """
import os
from course import one_file as one

one.P, one.G, one.STEPS = 2, 2, 30
one.imitate = one.update = lambda *_: None
one.main()
os._exit(0)  # what is still in a buffer is lost
"""


def test_every_row_is_there_at_once():
    """A run into a pipe is stopped, and its rows are lost; or the last step has no row."""
    environment = {x: y for x, y in os.environ.items() if x != "PYTHONUNBUFFERED"}
    root = Path(one_file.__file__).parents[1]
    command = [sys.executable, "-c", SHORT]
    rows = subprocess.check_output(command, cwd=root, env=environment, text=True).splitlines()
    assert [row.split()[0] for row in rows] == ["step", "0", "25", "30"]


def test_mask_of_one_file():
    """The mask goes by the token's value: it leaves out the end, or has what comes after it."""
    end = one_file.END
    tokens = torch.tensor([[[5, 1, 5, end, 7, end], [end, end, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6]]])
    mask = torch.tensor([[[1, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]]) == 1
    assert torch.equal(one_file.up_to_end(tokens), mask)


def test_loss_of_one_file():
    """The ratio lacks the old log-probabilities, or the clip or the sign is wrong."""
    rollout = with_advantages(random_rollout(REWARDS), VARIANTS["grpo"])
    logprobs = (rollout.logprobs + 0.5 * torch.randn_like(rollout.logprobs)).requires_grad_()
    numbers = (logprobs, rollout.logprobs, rollout.A, grpo.token_weights(rollout.mask))
    loss, cut = grpo.policy_loss(*numbers)
    assert all(cut[side].any() and not cut[side].all() for side in (rollout.A > 0, rollout.A < 0))
    ours = one_file.grpo_loss(*numbers)
    close(ours, loss)
    close(*[torch.autograd.grad(x, logprobs)[0] for x in (ours, loss)])


@pytest.mark.parametrize("name", NAMES)
def test_update_of_one_file(name):
    """Old log-probabilities are read anew in each mini-batch, weights are those of a mini-batch,
    padding is trained, groups are read or split otherwise, or the norm limit is missing.
    """
    gpt = tiny_gpt().double()
    rollout = sample(gpt, levels=(2, 5, 4, 3, 2, 3, 4))
    rollout.rewards = torch.tensor(REWARDS).double()
    one, policy = changed_to(name), Policy(deepcopy(gpt))
    one.END, one.START = EOS_ID, rollout.prompts.size(1)
    prompts = rollout.prompts[:, None].expand(-1, rollout.tokens.size(1), -1)
    rows = torch.cat([prompts, rollout.tokens], dim=-1)
    one.update(policy, torch.optim.SGD(policy.parameters(), 5.0), rows, rollout.rewards)
    metrics = grpo.update(
        gpt, torch.optim.SGD(gpt.parameters(), 5.0), with_advantages(rollout, VARIANTS[name])
    )
    assert metrics["clip_fraction"] > 0 and not rollout.mask.all()
    for ours, weight in zip(policy.parameters(), gpt.parameters(), strict=True):
        close(ours, weight)
