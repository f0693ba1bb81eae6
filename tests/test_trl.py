"""TRL is the one oracle of the loss that nobody here wrote; and the variants run inside it."""

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: see studies/requirements-trl.txt")

import train
from advantages import VARIANTS, grpo
from conftest import SMALL
from grpo import Rollout, policy_loss, response_logprobs
from studies import trl_variants as study
from tasks import ADD, EOS, PAD

G = 4
PROBLEMS = {p.level: p for p in train.make_problems(ADD, held=False)}  # one of each level
DATA = [p._asdict() for p in PROBLEMS.values()]
SIZE = {"num_generations": G, "per_device_train_batch_size": 4 * G, "max_completion_length": 22}
RUN = {"max_steps": 3, "learning_rate": 0.01, "temperature": 1.3, "bf16": False}
ODD = lambda completion_ids, **_: [len(ids) % 2.0 for ids in completion_ids]  # noqa: E731


def pair(variant, folder, reward=ODD, **more):
    """A model with random weights, and the trainer of its twin."""
    model = train.new_model(train.parse_arguments(SMALL))
    model.unembed.weight.data *= 20  # so that it is surer of some tokens than of others
    twin, tokenizer = study.twin(model)
    config = study.GRPOConfig(str(folder), **study.trl_settings(variant) | SIZE | RUN | more)
    parts = (twin, reward, config, study.Dataset.from_list(DATA), None, tokenizer)
    return model, study.VariantTrainer(variant, *parts)


@torch.no_grad()
def read(model, trl, batch) -> Rollout:
    """TRL's batch as a Rollout by this project's model, which gets the twin's weights."""
    model.load_state_dict(dict(zip(model.state_dict(), trl.model.state_dict().values())))
    tokens = batch["completion_ids"]
    mask = batch["completion_mask"].bool()
    columns = slice(batch["prompt_ids"].size(1) - 1, -1)  # the logits at t - 1 score token t
    hidden = model(torch.cat([batch["prompt_ids"], tokens], dim=1))[0][:, columns]
    probs = (model.unembed(hidden) / 1.3).softmax(-1)
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log()
    parts = (tokens, mask, mask.sum(1) % 2.0, logprobs, probs, hidden)
    groups = (part.unflatten(0, (-1, G)) for part in parts)
    return Rollout(*groups, temperature=1.3, prompts=batch["prompt_ids"][::G])


@pytest.mark.parametrize("aggregate, loss_type", [*study.LOSS_TYPE.items(), ("token", "dapo")])
def test_log_probabilities_loss_and_gradient_are_those_of_trl(tmp_path, aggregate, loss_type):
    """Log-probabilities one position off; another temperature, clip or denominator."""
    model, trl = pair("ngrpo", tmp_path, loss_type=loss_type)
    trl.current_gradient_accumulation_steps = 1  # train() would set it
    batch = trl._generate_and_score_completions([row for row in DATA for _ in range(G)])
    rollout = read(model, trl, batch)
    mask = rollout.mask
    rows = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    parts = (trl.model, rows, torch.ones_like(rows), mask.size(-1))
    theirs = trl._get_per_token_logps_and_entropies(*parts)[0].view(mask.size())
    logprobs = response_logprobs(model, rollout)
    torch.testing.assert_close(logprobs[mask], theirs[mask], atol=1e-4, rtol=0)
    A = torch.randn(mask.size())
    old = rollout.logprobs + torch.randn(mask.size()) / 3  # many ratios are beyond the clip
    batch |= {"advantages": A.flatten(0, 1), "old_per_token_logps": old.flatten(0, 1)}
    trl.max_completion_length = 25  # not the longest response's length
    their_loss = trl.compute_loss(trl.model, batch)
    loss = policy_loss(logprobs, old, A, mask, 0.16, 0.24, aggregate, max_length=25)
    torch.testing.assert_close(loss, their_loss, atol=0, rtol=1e-4)
    their_gradient = torch.autograd.grad(their_loss, trl.model.parameters())
    for g, their_g in zip(torch.autograd.grad(loss, model.parameters()), their_gradient):
        assert (g - their_g).norm() <= 1e-4 * their_g.norm()


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in study.ALSO])
def test_advantages_inside_trl_are_those_of_the_variant(tmp_path, variant):
    """What a variant reads is of another position, group or temperature, or of older weights."""
    model, trl = pair(variant, tmp_path)

    def checked(inputs):
        batch = type(trl)._generate_and_score_completions(trl, inputs)
        rollout = read(model, trl, batch)
        A = VARIANTS[variant](rollout).flatten(0, 1)
        torch.testing.assert_close(batch["advantages"], A, atol=1e-4, rtol=0)
        r = rollout.rewards  # TRL's sigma divides by G - 1, and its eps is 1e-4
        theirs = torch.tensor(trl._logs["advantages"]).view(r.size()) * (r.std(1)[:, None] + 1e-4)
        ours = grpo(rollout)[..., 0] * (r.std(1, correction=0)[:, None] + 1e-6)
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
        return batch

    trl._generate_and_score_completions = checked
    trl.train()


def test_each_process_keeps_its_own_rewards(tmp_path, monkeypatch):
    """Rewards of another process, or of groups that are cut elsewhere."""
    _, trl = pair("grpo", tmp_path)
    monkeypatch.setattr("trl.trainer.grpo_trainer.gather", lambda r: torch.cat([r * 0 + 1, r]))
    monkeypatch.setattr("accelerate.Accelerator.process_index", 1)
    trl._calculate_rewards([{}] * 8, [""] * 8, [""] * 8, [[0]] + [[0, 0]] * 7)
    assert [group.tolist() for group in trl.rewards] == [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert trl._pending_metrics["all_fail"] == [0.25]


def test_what_cannot_work_is_refused(tmp_path, monkeypatch):
    """Training on advantages that a variant does not mean, or that mix two groups."""
    for variant in study.ALSO:
        with pytest.raises(ValueError, match=f"{variant} is refused: it also "):
            pair(variant, tmp_path)
    _, trl = pair("grpo", tmp_path, reward=lambda completion_ids, **_: [0.5] * len(completion_ids))
    with pytest.raises(ValueError, match="rewards must be 0 or 1"):
        trl.train()
    monkeypatch.setattr(study.GRPOConfig, "world_size", 2)
    with pytest.raises(ValueError, match="6 rows a device: not whole groups of 4"):
        pair("grpo", tmp_path, per_device_train_batch_size=6)


def test_a_response_that_was_cut_off_gets_no_reward():
    """Nor does one with a padding token inside, which TRL's text does not show."""
    _, tokenizer = study.twin(train.new_model(train.parse_arguments(SMALL)))
    ids = [tokenizer(y)["input_ids"] for y in ("1#5" + EOS, "1#5", f"1#{PAD}5" + EOS, "1#6" + EOS)]
    assert study.verifier(tokenizer, ids, ["5"] * 4) == [1.0, 0.0, 0.0, 0.0]
