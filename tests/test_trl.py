"""Without these tests VariantTrainer could train another loss than this project, unnoticed."""

import re
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

pytest.importorskip("trl", reason="TRL is not installed: see tools/requirements-trl.txt")

from datasets import Dataset
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM, PreTrainedTokenizerFast

from advantages import VARIANTS, select_groups, with_advantages
from grpo import Rollout, response_logprobs, update
from model import read_responses
from tasks import ADD, EOS, PAD, TOKENIZER
from test_grpo import problem, tiny_gpt
from tools import trl_variants as study

G = 4
PROBLEMS = [problem(ADD, [10**level - 1] * 2, level) for level in ADD.levels]
DATA = [p._asdict() for p in PROBLEMS]
SETTINGS = {"num_generations": G, "per_device_train_batch_size": 4 * G, "temperature": 1.3}
SETTINGS |= {"max_completion_length": 22, "max_steps": 3, "learning_rate": 0.01, "bf16": False}
TRAINED = [name for name in VARIANTS if name not in study.ALSO]
ODD = lambda completion_ids, **_: [len(ids) % 2.0 for ids in completion_ids]  # noqa: E731
SOME = lambda completion_ids, **_: [JUDGE[len(ids) % 10] for ids in completion_ids]  # noqa: E731
JUDGE = [None, 1.0, 0.0, 1.0, 0.0, None, 0.0, 1.0, 0.0, 1.0]  # as ODD, but not each fifth length


def twin(model) -> tuple[GPTBigCodeForCausalLM, PreTrainedTokenizerFast]:
    """GPTBigCode with our weights, and its tokenizer; the tests compare the two."""
    # transformers must know which tokens pad and end a text.
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, pad_token=PAD, eos_token=EOS)
    V, D = model.embed_token.weight.size()
    size = {"vocab_size": V, "n_embd": D, "n_positions": model.embed_position.num_embeddings}
    depth = {"n_layer": len(model.blocks), "n_head": model.blocks[0].heads}
    kind = {"activation_function": "relu", "tie_word_embeddings": False}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    theirs = GPTBigCodeForCausalLM(GPTBigCodeConfig(**size, **depth, **kind, **off, **ids))
    weights = model.state_dict().values()  # they come in the same order
    theirs.load_state_dict(dict(zip(theirs.state_dict(), weights, strict=True)))
    return theirs, tokenizer


def pair(variant, folder, reward=ODD, **more):
    """A model with random weights, and the trainer of its twin, which TRL reads from a folder."""
    model = tiny_gpt()
    theirs, tokenizer = twin(model)
    theirs.save_pretrained(folder / "base")
    config = study.GRPOConfig(str(folder), **study.trl_settings(variant) | SETTINGS | more)
    data = Dataset.from_list(DATA)
    base = str(folder / "base")
    trl = study.VariantTrainer(variant, base, reward, config, data, None, tokenizer)
    trl.model.train()  # as in training
    return model, trl


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
    if trl.reward_funcs == [SOME]:
        rewards[mask.sum(-1) % 5 == 0] = torch.nan
    return Rollout(tokens, mask, rewards, logprobs, probs, hidden, temperature=1.3, prompts=prompts)


def losses(model, trl, away) -> list:
    """(loss, its gradient) of update, and the same of TRL, for one rollout with random advantages.

    The weights are others than the reference model's. ln ratio is normal with deviation `away`.
    """
    reference = deepcopy(model)
    for weight in trl.model.parameters():
        weight.data += 0.1 * torch.randn_like(weight)
    trl.current_gradient_accumulation_steps = 1  # train() would set it
    batch = trl._generate_and_score_completions([row for row in DATA for _ in range(G)])
    trl.max_completion_length = 25  # not the longest response's length
    rollout = read(model, trl, batch)
    rollout.max_length = 25
    rollout.reference_logprobs = response_logprobs(reference, rollout).detach()
    rollout.A, noise = torch.randn(2, *rollout.mask.size())
    if trl.variant == "gspo":  # where tokens differ, TRL has no form of it
        rollout.A = rollout.A[..., :1].expand_as(rollout.A).clone()
    rollout.logprobs = rollout.logprobs + away * noise
    batch["advantages"] = rollout.A.flatten(0, 1)
    batch["old_per_token_logps"] = rollout.logprobs.flatten(0, 1)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    how = {"minibatches": 1, "max_grad_norm": torch.inf} | study.LOSS.get(trl.variant, {})
    ours = update(model, still, rollout, kl=trl.beta, **how)
    theirs = trl.compute_loss(trl.model, batch)
    theirs.backward()
    gradients = [torch.cat([w.grad.flatten() for w in x.parameters()]) for x in (model, trl.model)]
    return list(zip((ours["loss"], theirs.item()), gradients))


AWAY = {"grpo": 1 / 3, "half": 1 / 3, "ngrpo": 1 / 3, "dr_grpo": 1 / 3, "reinforce": 1 / 3}
AWAY |= {"gspo": 2 / 3, "cispo": 4 / 3}


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("variant, away", AWAY.items())
def test_loss_and_gradient_are_those_of_trl(tmp_path, monkeypatch, variant, away, beta):
    """Log-probabilities one position off; another temperature, clip, mean, cap or KL term."""
    monkeypatch.setitem(study.LOSS, "half", {"clip_high": 0.3, "aggregate": "response"})
    model, trl = pair(variant, tmp_path, beta=beta)
    (loss, gradient), (their_loss, their_gradient) = losses(model, trl, away)
    assert loss == pytest.approx(their_loss, rel=1e-4)
    assert (gradient - their_gradient).norm() < 1e-4 * their_gradient.norm()


def decided(rollout) -> torch.Tensor:
    """(P, G, T), True where rounding does not decide whether `forking` keeps a token."""
    H = torch.special.entr(rollout.probs).sum(-1)
    mixed = rollout.mask & (rollout.rewards != rollout.rewards[:, :1]).any(1)[:, None, None]
    return (H - H[mixed].quantile(0.8)).abs() > 1e-4 if mixed.any() else rollout.mask


def parts(rollout, variant) -> list:
    """[(where, rollout)]: the judged rows of a group; for `forking` all groups of judged rows."""
    judged = ~rollout.rewards.isnan()
    if variant == "forking":
        return [(judged.all(1), select_groups(rollout, judged.all(1)))]
    names = ("tokens", "mask", "rewards", "logprobs", "probs", "hidden")
    where = [(slice(p, p + 1), rows) for p, rows in enumerate(judged) if rows.any()]
    return [(w, replace(rollout, **{x: vars(rollout)[x][w] for x in names})) for w in where]


@pytest.mark.parametrize("variant", TRAINED)
def test_advantages_inside_trl_are_those_of_the_variant(tmp_path, variant):
    """What a variant reads is of another position, group or temperature, or of older weights.

    A response that no reward function judges counts as wrong.
    """
    model, trl = pair(variant, tmp_path, SOME)

    def checked(inputs):
        batch = type(trl)._generate_and_score_completions(trl, inputs)
        rollout = read(model, trl, batch)
        A = batch["advantages"].unflatten(0, (-1, G))
        for where, part in parts(rollout, variant):
            sure = decided(part) if variant == "forking" else part.mask
            difference = A[where] - with_advantages(part, VARIANTS[variant]).A
            assert difference[sure].abs().max() < 1e-4
        assert not A[rollout.rewards.isnan()].any()
        judged = rollout.rewards[~rollout.rewards.isnan().all(1)]
        all_fail = (judged.nan_to_num() == 0).all(1).float().mean().item()
        assert trl._metrics["train"]["all_fail"][-1] == all_fail
        return batch

    trl._generate_and_score_completions = checked
    trl.train()


def test_each_process_keeps_its_own_rewards(tmp_path, monkeypatch):
    """Rewards of another process; groups that are cut elsewhere; all_fail if nobody judged one."""
    _, trl = pair("grpo", tmp_path, SOME)
    given = ([{}] * 8, [""] * 8, [""] * 8, [[0]] + [[0, 0]] * 3 + [[0] * 5] * 4)
    monkeypatch.setattr("accelerate.Accelerator.process_index", 1)
    monkeypatch.setattr("trl.trainer.grpo_trainer.gather", lambda r: torch.cat([r * 0 + 1, r]))
    trl._calculate_rewards(*given)
    assert trl.rewards[0].tolist() == [1, 0, 0, 0] and trl.rewards[1].isnan().all()
    assert trl._pending_metrics["all_fail"] == [0.0]


@pytest.mark.parametrize("variant", study.ALSO)
def test_what_cannot_work_in_trl_is_refused(variant):
    """A variant that trains without what it does beside its function, and says nothing."""
    assert {*study.ALSO} == {"critic", "culling", "likelihood", "ppo", "process", "verifree"}
    with pytest.raises(ValueError, match=f"{variant} is refused: it also {study.ALSO[variant]}"):
        study.VariantTrainer(variant, "no model", ODD, study.GRPOConfig(bf16=False))


def test_rewards_that_a_formula_cannot_use_are_refused(tmp_path):
    """A formula gets a reward that it cannot use, or NaN; or a useful reward is refused."""
    _, trl = pair("grpo", tmp_path, [ODD, lambda completion_ids, **_: given])
    for trl.variant in TRAINED:
        binary = trl.variant in ("maxrl", "negative", "ngrpo", "nthr")
        for bad in [-torch.inf, -2.0, -0.5] if binary else [-torch.inf]:
            given = [None, None, None, bad]
            with pytest.raises(ValueError, match=f"^{trl.variant}: a reward is not (0 or 1|a fin)"):
                trl._calculate_rewards([{}] * 4, [""] * 4, [""] * 4, [[0]] * 4)
        given = [-1.0] * 4 + [0.0, -1.0] if binary else [-1.0, -2.0, -1.0, -4.0, 6.0]
        given += [None] * (8 - len(given))
        trl._calculate_rewards([{}] * 8, [""] * 8, [""] * 8, [[0]] * 8)
        assert torch.cat(trl.rewards).tolist() == [1 + (x or 0) for x in given]
    assert trl._pending_metrics["all_fail"] == [0.5] * len(TRAINED)


@pytest.mark.parametrize("variant", TRAINED)
def test_a_config_with_another_loss_is_refused_before_the_model_is_loaded(variant):
    """VariantTrainer("gspo", ..., GRPOConfig()) trains another loss, or an option does nothing."""
    settings = study.trl_settings(variant)
    plain = vars(study.GRPOConfig(bf16=False))
    assert {"scale_rewards", "multi_objective_aggregation", "delta"} < {*study.KEPT}
    cases = {name: {name: "other"} for name in {*settings, *study.KEPT}}
    cases[" ".join(name for name in settings if plain[name] != settings[name])] = {}
    for names, change in cases.items():
        config = study.GRPOConfig(bf16=False, **settings if change else {})
        vars(config).update(change)
        with pytest.raises(ValueError, match=f"^{variant} needs .*: see tools/trl") as line:
            study.VariantTrainer(variant, "no model", ODD, config)
        assert {*re.findall(r"(\w+)=", str(line.value))} == {*names.split()}


def test_a_device_has_whole_groups():
    """A device's rows that are no whole groups, which TRL allows on several."""
    config = study.GRPOConfig(bf16=False, **study.trl_settings("grpo"), num_generations=G)
    config.per_device_train_batch_size = 2
    with pytest.raises(ValueError, match="2 rows a device: not whole groups of 4"):
        study.VariantTrainer("grpo", None, ODD, config)
