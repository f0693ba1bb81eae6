"""TRL is the one oracle of the loss that nobody here wrote; and the variants run inside it."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: see tools/requirements-trl.txt")

from advantages import VARIANTS
from grpo import Rollout, policy_loss, response_logprobs, token_weights
from model import read_responses
from tasks import ADD, EOS, PAD
from test_grpo import close, problem, tiny_gpt
from tools import trl_variants as study

G = 4
DATA = [problem(ADD, [10**level - 1] * 2, level)._asdict() for level in ADD.levels]
SETTINGS = {"num_generations": G, "per_device_train_batch_size": 4 * G, "temperature": 1.3}
SETTINGS |= {"max_completion_length": 22, "max_steps": 3, "learning_rate": 0.01, "bf16": False}
ODD = lambda completion_ids, **_: [len(ids) % 2.0 for ids in completion_ids]  # noqa: E731


def pair(variant, folder, **more):
    """A model with random weights, and the trainer of its twin."""
    model = tiny_gpt()
    twin, tokenizer = study.twin(model)
    config = study.GRPOConfig(str(folder), **study.trl_settings(variant) | SETTINGS | more)
    data = study.Dataset.from_list(DATA)
    return model, study.VariantTrainer(variant, twin, ODD, config, data, None, tokenizer)


@torch.no_grad()
def read(model, trl, batch) -> Rollout:
    """TRL's batch as a Rollout by this project's model, which gets the twin's weights."""
    model.load_state_dict(dict(zip(model.state_dict(), trl.model.state_dict().values())))
    prompts = batch["prompt_ids"][::G]
    tokens = batch["completion_ids"].unflatten(0, (-1, G))
    mask = batch["completion_mask"].unflatten(0, (-1, G)).bool()
    hidden = read_responses(model, prompts, tokens[..., :-1])
    probs = (model.unembed(hidden) / 1.3).softmax(-1)
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log()
    rewards = mask.sum(-1) % 2.0
    return Rollout(tokens, mask, rewards, logprobs, probs, hidden, temperature=1.3, prompts=prompts)


@pytest.mark.parametrize("aggregate, loss_type", study.LOSS_TYPE.items())
def test_log_probabilities_and_loss_are_those_of_trl(tmp_path, aggregate, loss_type):
    """Log-probabilities one position off; another temperature, clip or denominator."""
    model, trl = pair("ngrpo", tmp_path, loss_type=loss_type)
    trl.current_gradient_accumulation_steps = 1  # train() would set it
    batch = trl._generate_and_score_completions([row for row in DATA for _ in range(G)])
    rollout = read(model, trl, batch)
    A, noise = torch.randn(2, *rollout.mask.size())
    old = rollout.logprobs + noise / 3  # many ratios are beyond the clip
    batch |= {"advantages": A.flatten(0, 1), "old_per_token_logps": old.flatten(0, 1)}
    trl.max_completion_length = 25  # not the longest response's length
    their_loss = trl.compute_loss(trl.model, batch)
    weights = token_weights(rollout.mask, aggregate, max_length=25)
    loss = policy_loss(response_logprobs(model, rollout), old, A, weights, 0.16, 0.24)
    assert loss.item() == pytest.approx(their_loss.item(), rel=1e-4)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in study.ALSO])
def test_advantages_inside_trl_are_those_of_the_variant(tmp_path, variant):
    """What a variant reads is of another position, group or temperature, or of older weights."""
    model, trl = pair(variant, tmp_path)

    def checked(inputs):
        batch = type(trl)._generate_and_score_completions(trl, inputs)
        rollout = read(model, trl, batch)
        close(batch["advantages"], VARIANTS[variant](rollout).A.flatten(0, 1), 1e-4)
        return batch

    trl._generate_and_score_completions = checked
    trl.train()


def test_each_process_keeps_its_own_rewards(tmp_path, monkeypatch):
    """Rewards of another process, or of groups that are cut elsewhere."""
    _, trl = pair("grpo", tmp_path)
    given = ([{}] * 8, [""] * 8, [""] * 8, [[0]] + [[0, 0]] * 7)
    monkeypatch.setattr("accelerate.Accelerator.process_index", 1)
    monkeypatch.setattr("trl.trainer.grpo_trainer.gather", lambda r: torch.cat([r * 0 + 1, r]))
    trl._calculate_rewards(*given)
    assert [group.tolist() for group in trl.rewards] == [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert trl._pending_metrics["all_fail"] == [0.25]


def test_a_response_that_was_cut_off_gets_no_reward():
    """Nor does one with a padding token inside, which TRL's text does not show."""
    _, tokenizer = study.twin(tiny_gpt())
    ids = [tokenizer(y)["input_ids"] for y in ("1#5" + EOS, "1#5", f"1#{PAD}5" + EOS, "1#6" + EOS)]
    assert study.verifier(tokenizer, ids, ["5"] * 4) == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("variant", study.ALSO)
def test_what_cannot_work_in_trl_is_refused(tmp_path, variant):
    """A variant that trains without what it does beside its function, and says nothing."""
    assert {"critic", "culling", "likelihood", "verifree"} == {*study.ALSO} <= {*VARIANTS}
    with pytest.raises(ValueError, match=f"{variant} is refused: it also {study.ALSO[variant]}"):
        pair(variant, tmp_path)


def test_groups_and_rewards_that_cannot_work_are_refused(tmp_path, monkeypatch):
    """A device's rows that are no whole groups, which TRL allows on several; a reward of 0.5."""
    _, trl = pair("grpo", tmp_path)
    trl.reward_funcs = [lambda completion_ids, **_: [0.5] * len(completion_ids)]
    with pytest.raises(ValueError, match="rewards must be 0 or 1"):
        trl._calculate_rewards([{}] * 4, [""] * 4, [""] * 4, [[0]] * 4)

    def two_rows(self):
        self.args = SimpleNamespace(per_device_train_batch_size=2, steps_per_generation=1)
        self.num_generations = G

    monkeypatch.setattr(study.GRPOTrainer, "__init__", two_rows)
    with pytest.raises(ValueError, match="2 rows a device: not whole groups of 4"):
        study.VariantTrainer("grpo")
