"""TRL is the one oracle of the loss that nobody here wrote; and the variants run inside it."""

import re
import runpy
import sys
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

pytest.importorskip("trl", reason="TRL is not installed: see tools/requirements-trl.txt")

from datasets import Dataset
from transformers import GenerationConfig, GPTBigCodeConfig, GPTBigCodeForCausalLM, LlamaConfig
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from advantages import VARIANTS, grpo, select_groups, with_advantages
from grpo import Rollout, response_logprobs, update
from model import read_responses
from tasks import ADD, EOS, PAD, TOKENIZER
from test_grpo import close, problem, tiny_gpt
from tools import language_model
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
    """Log-probabilities one position off; another temperature, clip, denominator or KL term.

    A product in place of the geometric mean; a cap that is 1 + cap, or a lower limit.
    """
    monkeypatch.setitem(study.LOSS, "half", {"clip_high": 0.3, "aggregate": "response"})
    model, trl = pair(variant, tmp_path, beta=beta)
    (loss, gradient), (their_loss, their_gradient) = losses(model, trl, away)
    assert loss == pytest.approx(their_loss, rel=1e-4)
    assert (gradient - their_gradient).norm() < 1e-4 * their_gradient.norm()


@pytest.mark.parametrize("away", [0, 1 / 3])
def test_the_kl_term_of_trl_is_another_one_by_default(tmp_path, away):
    """The setting could be left out. Where the ratio is 1, only the gradient shows it."""
    model, trl = pair("grpo", tmp_path, beta=0.5)
    trl.args.use_bias_correction_kl = study.GRPOConfig.use_bias_correction_kl
    (loss, gradient), (their_loss, their_gradient) = losses(model, trl, away)
    assert (loss == pytest.approx(their_loss, rel=1e-4)) == (away == 0)
    assert (gradient - their_gradient).norm() > 0.1 * their_gradient.norm()


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


def test_forking_keeps_the_tokens_of_top_entropy_quantile(tmp_path):
    """A threshold for each group, another quantile, tokens below it, or padding that counts."""
    model, trl = pair("forking", tmp_path)
    batch = trl._generate_and_score_completions([row for row in DATA for _ in range(G)])
    rollout = read(model, trl, batch)
    mixed = (rollout.rewards != rollout.rewards[:, :1]).any(1)
    assert mixed.sum() > 1
    rows = mixed.repeat_interleave(G)  # the paper's batch has no other groups
    every = with_advantages(rollout, grpo).A.flatten(0, 1)
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    T = batch["completion_ids"].size(1)
    read_by_trl = trl._get_per_token_logps_and_entropies
    _, entropies, _ = read_by_trl(trl.model, ids, seen, T, compute_entropy=True)
    kept = trl.get_high_entropy_mask(entropies[rows], batch["completion_mask"][rows], 1 - 0.2)
    sure = decided(rollout).flatten(0, 1)[rows]
    close(batch["advantages"][rows][sure], (every[rows] * kept)[sure], 1e-4)
    assert not batch["advantages"][~rows].any()
    assert 0 < (batch["advantages"] != 0).sum() < 0.3 * (every != 0).sum()


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
    assert {*study.ALSO} == {"critic", "culling", "likelihood", "process", "verifree"}
    with pytest.raises(ValueError, match=f"{variant} is refused: it also {study.ALSO[variant]}"):
        study.VariantTrainer(variant, "no model", ODD, study.GRPOConfig(bf16=False))


def test_rewards_that_a_formula_cannot_use_are_refused(tmp_path):
    """A formula that asks for a reward of 0 or 1 gets others; or a useful one is refused.

    What one of two functions does not judge becomes NaN.
    """
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


def test_a_device_has_whole_groups_and_another_version_gives_one_line(monkeypatch, caplog):
    """A device's rows that are no whole groups, which TRL allows on several; a silent new TRL."""
    monkeypatch.setattr(study.GRPOTrainer, "__init__", lambda self, *parts: None)
    config = study.GRPOConfig(bf16=False, **study.trl_settings("grpo"), num_generations=G)
    monkeypatch.setattr(study, "__version__", "1.17.0")
    study.VariantTrainer("grpo", None, ODD, config)
    assert caplog.messages == ["TRL 1.17.0: we tested only TRL 1.16"]
    config.per_device_train_batch_size = 2
    with pytest.raises(ValueError, match="2 rows a device: not whole groups of 4"):
        study.VariantTrainer("grpo", None, ODD, config)


# ---- tools.language_model, with a tiny model that has the vocabulary of SmolLM2
LETTERS = "Ċ0123456789+=Ġ"  # Ċ is the end of a line, Ġ a space


def small_model(folder, letters=LETTERS):
    """A folder with a Llama of random weights and 49,152 tokens; it has no token for an end."""
    size = {"vocab_size": 49152, "hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
    size |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    ids = {"bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": True}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**size, **ids, initializer_range=0.5)).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def small_run(tmp_path, monkeypatch):
    """Trains a small model on a few problems: small_run(variant, flags) -> its rows."""
    data, held = language_model.make_data()
    few = data.select(range(8)), held.select(range(2))
    monkeypatch.setattr(language_model, "make_data", lambda: few)
    right = lambda _, completion_ids, answer, **__: [sum(y) % 2.0 for y in completion_ids]  # noqa: E731
    monkeypatch.setattr(language_model, "reward", right)
    folder = str(small_model(tmp_path / "model"))

    def run(variant, flags=""):
        line = f"--variant {variant} --learning_rate 0.01 --output_dir {tmp_path} --bf16 False"
        line += " --per_device_train_batch_size 8 --steps_per_generation 2 --max_steps 2"
        line += f" --gradient_accumulation_steps 1 {flags}"
        rows = language_model.train(variant, folder, language_model.parse(line.split())[0])
        return [{name: x for name, x in row.items() if name != "minutes"} for row in rows]

    return run


MEASURED = {("forking", 1): [0, 1], ("compensation", 2): [0, 1], ("nthr", 5): [0, 1, 3]}
MEASURED[("ngrpo", 1)] = [0, 1]  # it has a clip range of its own, which is its default here


@pytest.mark.parametrize("variant, steps", MEASURED)
def test_each_rollout_has_its_row(small_run, capsys, variant, steps):
    """A variant reads padding or another kind of model wrongly; a row has the wrong number.

    A rollout is for two steps. The last one may end after the first of them.
    """
    rows = small_run(variant, f"--max_steps {steps}")
    numbers, measured = [*range((steps + 3) // 2)], MEASURED[variant, steps]
    assert [row["rollout"] for row in rows] == numbers
    assert [row["rollout"] for row in rows if "sampled" in row] == measured
    assert all(0 < row["reward"] < 1 for row in rows[1:])
    lines = capsys.readouterr().out.strip().splitlines()
    assert [len(line) > 50 for line in lines] == [True] + [x in measured for x in numbers]


def test_rows_do_not_depend_on_what_saves_memory_or_on_the_settings_of_a_model(small_run, tmp_path):
    """Responses that were written without the prompt; a model's top_k in the place of ours."""
    rows = small_run("nthr")
    assert small_run("nthr", "--activation_checkpointing True") == rows
    own = {"top_k": 1, "temperature": 0.01, "min_p": 0.9, "suppress_tokens": [*range(9)]}
    GenerationConfig(**own, do_sample=True).save_pretrained(tmp_path / "model")
    assert small_run("nthr") == rows


def test_prompts_that_are_read_once_give_the_same_responses(tmp_path):
    """Positions that count padding, the prompt of another group, or arguments in another order."""
    model, tokenizer = language_model.load(str(small_model(tmp_path)))
    tokenizer.pad_token = tokenizer.eos_token  # TRL does this
    prompts = [text for text in ("1+2=", "9+\n1+23=", "4+", "1+2=") for _ in range(3)]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    assert (batch["attention_mask"] == 0).any()
    how = {"max_new_tokens": 5, "do_sample": False}
    assert model.generate(**batch, **how).equal(type(model).generate(model, **batch, **how))
    other, _ = twin(tiny_gpt())
    once = language_model.generate(other, **batch, **how)
    assert once.equal(other.generate(**batch, **how))


def test_a_response_is_the_sum_and_the_end_of_its_line(tmp_path):
    """A sum that was cut off, or one with other digits beside it, is rewarded."""
    _, tokenizer = language_model.load(str(small_model(tmp_path)))
    texts = ["23\n", "23\n1+", "23", "123\n", "2\n", " 23\n"]
    ids = [tokenizer(text)["input_ids"] for text in texts]
    assert language_model.reward(tokenizer, ids, ["23"] * 6) == [1, 1, 0, 0, 0, 0]


def test_no_problem_is_in_two_places():
    """A held-out problem that is an example or is trained on."""
    training, held = language_model.make_data()
    *examples, _ = held[0]["prompt"].split("\n")
    last = [row["prompt"].split("\n")[-1] + row["answer"] for row in [*training, *held]]
    assert (len(examples), len(training), len(held)) == (6, 210, 54)
    assert len({*examples, *last}) == 270
    assert all(eval(line.replace("=", "==")) for line in [*examples, *last])


def test_the_reference_model_is_the_one_that_training_started_from(small_run, monkeypatch):
    """TRL cannot build the reference model, or takes another one."""
    made = []
    keep = lambda *parts, new=language_model.Table: made.append(new(*parts)) or made[0]  # noqa: E731
    monkeypatch.setattr(language_model, "Table", keep)
    small_run("negative", "--beta 0.04")
    base = made[0].ref_model.state_dict().values()
    first, _ = language_model.load(made[0].model.config._name_or_path)
    assert all(map(torch.equal, base, first.state_dict().values()))
    assert not any(map(torch.equal, base, made[0].model.state_dict().values()))


def command(monkeypatch, *flags) -> None:
    monkeypatch.setattr("sys.argv", ["language_model.py", *flags])
    monkeypatch.delitem(sys.modules, "tools.language_model", raising=False)
    runpy.run_module("tools.language_model", run_name="__main__")


BAD_LINES = {
    "--variant critic": "critic is refused: it also trains a network",
    "--variant gspo --epsilon 0.2": "gspo needs epsilon=0.03: see tools",
    "--num_iterations 2 --eval_on_start True": "needs num_iterations=1, eval_on_start=False: see",
    "--report_to wandb": "error: --report_to wandb: a package is not installed",
    "--gradient_accumulation_steps 3": "accumulation_steps must divide steps_per_generation",
    "--steps_per_generation 72": "generation_batch_size: there are only 210 problems",
    "--model nothing.gguf": "file or directory: 'nothing.gguf'. Get the default model: python",
    "--model README.md": "--model README.md: It looks like the config file at 'README.md' is not",
    "--model no-end": "its tokenizer has no token for the end of a line",
}


@pytest.mark.parametrize("flags", BAD_LINES)
def test_a_bad_command_ends_in_one_line(tmp_path, monkeypatch, capsys, flags):
    """A traceback; no word on how to get a model; a model that is blamed, or loaded for nothing."""
    line = flags.replace("no-end", str(small_model(tmp_path / "no-end", LETTERS[1:])))
    with pytest.raises(SystemExit, match="2"):
        command(monkeypatch, *line.split(), "--output_dir", str(tmp_path))
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("python -m tools.language_model: error: ")
    assert BAD_LINES[flags] in last


def test_a_missing_package_ends_in_one_line_with_the_command_that_installs_it(monkeypatch):
    """A traceback of nothing but imports."""
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "tools.trl_variants")
    line = "^The package trl is not installed. Run: python -m pip install .*requirements-trl.txt$"
    with pytest.raises(SystemExit, match=line):
        command(monkeypatch)


def test_the_study_has_a_row_for_each_run_and_pairs_them_by_seed(tmp_path, monkeypatch):
    """An average with the row before training, halfway for the end, or seeds that are mixed up."""
    from studies import language_model as compared

    table = [{"sampled": 0.1, "greedy": 0.2}, {"reward": 0.4}]
    table += [{"reward": 0.5, "sampled": 0.3, "greedy": 0.6}, {"reward": 0.6}]
    table.append({"reward": 0.9, "sampled": 0.7, "greedy": 0.8})
    asked = []

    def train(variant, model, config):
        asked.append((variant, config.seed, config.learning_rate))
        return table

    monkeypatch.setattr(language_model, "train", train)
    row = compared.measure(3, "half", str(tmp_path))
    assert asked == [("half", 3, 1e-5)]
    assert (row["seed"], row["variant"], row["average"]) == (3, "half", pytest.approx(0.6))
    shares = [row[x] for x in ("before", "halfway", "end", "before_greedy", "end_greedy")]
    assert shares == [0.1, 0.3, 0.7, 0.2, 0.8]
    gain = {1: 0.01, 2: 0.02, 3: 0.03}
    rows = [row | {"seed": seed, "variant": "grpo", "end": seed / 10} for seed in gain]
    rows += [row | {"seed": seed, "end": seed / 10 + gain[seed]} for seed in (3, 2, 1)]
    *_, line = compared.minus_grpo(rows).splitlines()
    assert line.split(" | ")[1] == "3" and "+2.0 (-0.5 to +4.5)" in line
