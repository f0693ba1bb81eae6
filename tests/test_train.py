"""Whole runs: what they leave and share, what each setting reaches, how they end, bad input."""

import csv
import json
import math
from contextlib import redirect_stderr
from copy import deepcopy
from dataclasses import replace
from io import StringIO
from pathlib import Path
from statistics import fmean as mean
from unittest.mock import DEFAULT, Mock

import pytest
import torch

import train
from advantages import VARIANTS
from grpo import response_logprobs, sample_rollout
from tasks import ADD, TASKS, held_out
from test_grpo import DEFAULTS, FAIL, MIXED, ONE, PASS, close, problem, random_rollout, tiny_gpt

SMALL = "--layers 1 --width 16 --steps 2 --prompts 8 --group-size 4 --out out".split()


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Few problems and a short warm-up. A response is correct if its length is odd."""
    monkeypatch.setattr(train, "WARM_UP", dict.fromkeys(TASKS, (0.0, 1.0)))  # 20 steps
    monkeypatch.setattr(train, "DRAWS", 60)
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: len(response) % 2.0)
    monkeypatch.chdir(tmp_path)


def parsed(arguments: str):
    return train.parse_arguments(SMALL + arguments.split())


def run(arguments: str = "") -> tuple[int | str, list[str]]:
    """What a small run exits with, and its lines on standard error, but for progress bars."""
    code = 0
    with redirect_stderr(StringIO()) as errors:
        try:
            train.main(SMALL + arguments.split())
        except SystemExit as stop:
            code = stop.code  # of a text Python makes a line on standard error, and exits with 1
    return code, [x for x in errors.getvalue().splitlines() if x and "[00:" not in x]


def loop(arguments: str):
    """The loop over steps, from a model that has learned nothing."""
    args = parsed(arguments)
    return train.train(args, train.new_model(args))


# ---- What a run leaves, and what it shares with others
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_and_task_leaves_the_same_files(variant, task):
    """A variant or task that was never run, or a file or column that only some have."""
    assert run(f"--variant {variant} --task {task} --seed 3") == (0, [])
    [left] = Path("out").iterdir()
    assert {path.name for path in left.iterdir()} == {"metrics.csv", "model.pt", "summary.json"}
    first, last = csv.DictReader((left / "metrics.csv").read_text().splitlines())
    assert [name for name in first if not first[name]] == [
        x for x in last if "greedy" in x or "sampled" in x
    ]
    numbers = " ".join([*first.values(), *last.values()]).split()
    assert all(last.values()) and all(math.isfinite(float(x)) for x in numbers)
    found = {"variant": variant, "seed": 3, "final_greedy": float(last["greedy"])}
    assert found.items() <= json.loads((left / "summary.json").read_text()).items()


def test_the_base_model_is_made_on_one_thread_and_always_the_same(monkeypatch):
    """Rounding depends on the threads: variants, or machines, that start from other weights."""
    events = []
    monkeypatch.setattr(torch, "set_num_threads", events.append)
    monkeypatch.setattr(torch, "get_num_threads", lambda: events[-1])
    noted = lambda *given: events.append("warm-up") or DEFAULT  # noqa: E731
    monkeypatch.setattr(train, "warm_up", Mock(wraps=train.warm_up, side_effect=noted))
    for arguments in ("--steps 0 --seed 7 --variant nthr --threads 3", "--steps 0 --seed 8"):
        assert run(arguments) == (0, [])
    weights = [torch.load(path, weights_only=True) for path in Path("out").glob("*/model.pt")]
    assert events == [3, 1, "warm-up", 3] + [1, 1, "warm-up", 1]
    close(*weights, 0)
    other = train.base_model(parsed("--base-seed 1")).state_dict()
    assert not torch.equal(other["norm.weight"], weights[0]["norm.weight"])


def test_what_a_seed_decides():
    """One order of problems for all seeds; randomness that no seed decides."""
    texts = []
    for n, seed in enumerate((0, 0, 1)):
        steps = loop(f"--seed {seed}")
        torch.manual_seed(n)  # from which nothing is drawn
        texts.append([(rollout.problems[0], rollout.texts) for rollout, *_ in steps])
        assert torch.initial_seed() == n  # a critic, which seeds again, is built for `critic` alone
    assert texts[0] == texts[1]
    assert texts[0][0][0] != texts[2][0][0]


def test_a_folder_names_what_differs_from_the_defaults():
    """A run with another setting that silently replaces an earlier one."""
    same = "--variant ngrpo --clip-high 0.24 --threads 2 --out elsewhere"  # 0.24: its own default
    args = train.parse_arguments(f"{same} --seed 7 --max-grad-norm 2 --clip-low 0.2".split())
    assert args.name == "add-ngrpo-seed7-clip_low0.2-max_grad_norm2.0"


# ---- What a setting reaches
def test_what_reaches_the_update(monkeypatch):
    """A setting that is read and then forgotten, or the wrong clip range."""
    update = Mock(return_value={"loss": 0.0, "grad_norm": 0.0})
    monkeypatch.setattr(train, "update", update)
    rollout, *_ = next(loop("--temperature 0.7"))
    assert (rollout.temperature, rollout.mask.shape[:2]) == (0.7, (8, 4))
    for arguments, changed in {
        "": {},
        "--minibatches 3 --kl 0.25": {"minibatches": 3, "kl": 0.25},
        "--variant ngrpo": {"clip_low": 0.16, "clip_high": 0.24},
        "--variant dr_grpo": {"aggregate": "constant"},
        "--variant reinforce": {"aggregate": "constant"},
        "--variant dr_grpo --aggregate token --clip-high 0.3": {"clip_high": 0.3},
    }.items():
        next(loop(arguments))
        assert update.call_args.kwargs == DEFAULTS | changed


def test_norm_limit_and_kl_reference(monkeypatch):
    """A limit of the critic too, or another rate of it; a reference that learns: distance 0."""
    critic = VARIANTS["critic"]
    rates = []
    judge = critic.__call__
    noted = lambda self, x: rates.append(self.optimizer.defaults["lr"]) or judge(self, x)  # noqa: E731
    monkeypatch.setattr(critic, "__call__", noted)
    clip = Mock(wraps=torch.nn.utils.clip_grad_norm_)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    args = parsed("--variant critic --kl 0.1 --lr 0.5 --max-grad-norm 0.125")
    model = train.base_model(args)
    first = deepcopy(model)
    for _, x, _ in train.train(args, model):
        close(x.reference_logprobs, response_logprobs(first, x).detach(), 1e-5)
    assert (response_logprobs(model, x) - x.reference_logprobs).abs().max() > 0.01
    assert rates == [0.5, 0.5]
    limits = [call.args[1] for call in clip.call_args_list]
    assert limits == [1.0] * 20 + 2 * [1.0, 0.125, 0.125, 0.125, 0.125]  # 1.0: not the policy's


@pytest.mark.parametrize("easy, left", [(4, {5}), (5, {2, 3, 4, 5})])  # 5: all come again
def test_culling_drops_solved_prompts_and_keeps_its_budget(easy, left, monkeypatch):
    """A batch that shrinks with the pool; a prompt that goes though one response was wrong."""

    def sample(*given, **more):
        rollout = sample_rollout(*given, **more)
        rollout.rewards = torch.ones(200, 4)
        rollout.rewards[:, 2] = torch.tensor([p.level <= easy for p in rollout.problems])
        return rollout

    monkeypatch.setattr(train, "sample_rollout", sample)
    monkeypatch.setattr(train, "DRAWS", 6)
    steps = loop("--variant culling --prompts 200 --steps 4")
    for levels in ({2, 3, 4, 5}, left, left):
        rollout, *_ = next(steps)
        assert len(rollout.problems) == 200
        assert {p.level for p in rollout.problems} == levels


def test_the_warm_up(monkeypatch):
    """A warm-up that never ends or sees what is held out; another rate or share of the levels."""
    encode = Mock(wraps=train.encode)
    monkeypatch.setattr(train, "encode", encode)
    cross_entropy = Mock(wraps=train.cross_entropy)
    monkeypatch.setattr(train, "cross_entropy", cross_entropy)
    rates = []
    step = lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"])  # noqa: E731
    monkeypatch.setattr(train, "descend", step)
    model = train.new_model(parsed(""))
    assert train.warm_up(model, ADD, 0, 2.0, 2.0, 60, lambda step: 0.1 * step) == 60
    assert rates == [0.1 * n for n in range(1, 61)]
    assert not any(held_out(text.split("=")[0] + "=") for text in encode.call_args.args[0])
    targets = torch.cat([call.args[1] for call in cross_entropy.call_args_list])
    counts = (targets != cross_entropy.call_args.kwargs["ignore_index"]).sum(1).bincount()
    assert 1.6 < counts[22] / counts[18] < 2.5  # tokens of level 5, and of 4: half as often
    assert train.warm_up(model, ADD, 0, 0.0, 1.0, 60) == 20


def test_evaluation(monkeypatch):
    """Accuracy on training problems, or of another level; a number that the past decides."""
    monkeypatch.setattr(train.Task, "reasoning_correct", lambda task, problem, y: len(y) % 4 == 1)
    problems = train.make_problems(ADD, held=True)
    x = sample_rollout(tiny_gpt(), ADD, problems, 4, generator=torch.Generator().manual_seed(0))
    found = train.evaluate(tiny_gpt(), ADD, "x", temperature=1.0, samples=4)
    assert found["x"] == pytest.approx(mean(found["x_by_level"].values()))
    for level, share in found["x_by_level"].items():
        groups = [mean(r) for p, r in zip(problems, x.rewards.tolist()) if p.level == level]
        assert share == pytest.approx(mean(groups), abs=1e-4)
    correct = [y for texts, r in zip(x.texts, x.rewards) for y, one in zip(texts, r) if one]
    assert found["x_reasoning_correct"] == pytest.approx(mean(len(y) % 4 == 1 for y in correct))


def test_metrics_of_a_rollout():
    """Padding that counts, a mean over tokens for one over responses, groups that are mixed up."""
    x = random_rollout([MIXED, FAIL, ONE, PASS, FAIL])  # its padding is not 0
    x.problems = [problem(ADD, [99, 33], 2)] * 5  # 12,13#132
    x.texts = [["12,13#132", "12,13#133", "12,14#142", "12,15#152"]] * 5
    expected = {"reward": 7 / 20, "all_fail": 2 / 5, "all_pass": 1 / 5, "coherence": 3 / 4}
    expected |= {"reasoning_correct": 1 / 2, "length": x.mask.sum().item() / 20}
    expected["entropy"] = mean(-sum(p * math.log(p) for p in pi) for pi in x.probs[x.mask].tolist())
    trained = replace(x, mask=~x.mask, A=x.bias)
    expected["mean_abs_advantage"] = mean(abs(a) for a in x.bias[~x.mask].tolist())
    assert train.rollout_metrics(x, trained, ADD) == pytest.approx(expected, rel=1e-5)


CTRL_C = (130, ["train.py: stopped by Ctrl-C"])
NOT_FINITE = "train.py: error: step %d: loss or gradient not finite; is --lr too high?"
STOPS = [  # a function; what its calls do, DEFAULT is the usual; what run() gives; rows that stay
    (train, "warm_up", [KeyboardInterrupt], CTRL_C, 0),
    (train, "update", [DEFAULT, KeyboardInterrupt], CTRL_C, 1),
    (train, "evaluate", [DEFAULT] * 5 + [KeyboardInterrupt], CTRL_C, 2),
    (train, "update", [{"loss": 1.0, "grad_norm": math.inf}], (NOT_FINITE % 1, []), 0),
    (train, "update", [DEFAULT, {"loss": math.nan, "grad_norm": 1.0}], (NOT_FINITE % 2, []), 1),
    (torch, "save", [OSError("disk full")], ("train.py: error: disk full", []), 2),
]


@pytest.mark.parametrize("module, name, calls, said, rows", STOPS)
def test_only_a_finished_run_has_summary_json(module, name, calls, said, rows, monkeypatch):
    """Half a run that looks finished, a traceback, a lost row, an error that names no step."""
    run()  # an earlier run, whose summary.json must go
    [left] = Path("out").iterdir()
    assert (left / "summary.json").exists()
    monkeypatch.setattr(module, name, Mock(wraps=getattr(module, name), side_effect=calls))
    assert run() == said
    assert len((left / "metrics.csv").read_text().splitlines()) == 1 + rows
    assert not (left / "summary.json").exists()


# ---- Bad input: one line on standard error, and nothing written or changed
BAD = {  # flags: values; an empty value is bad for all
    "variant task device aggregate": "wall GRPO Token cuda:99",
    "steps prompts group-size minibatches seed base-seed layers width threads": "-1 ² 9876543210",
    "prompts minibatches layers threads lr max-grad-norm temperature": "0",
    "temperature lr max-grad-norm clip-low clip-high kl": "-0.1 nan inf -inf x",
    "group-size": "1",
    "clip-low": "1.1",
    "width": "6 4096",
}


@pytest.mark.parametrize("flags", BAD)
def test_bad_arguments_are_refused(flags):
    """A traceback, a message without what is allowed, work before the check."""
    for flag in flags.split():
        for value in [*BAD[flags].split(), ""]:
            status, [error] = run(f"--{flag}={value}")
            assert status == 2 and f"--{flag}" in error and " from " in error
    assert not [*Path().iterdir()]


@pytest.mark.parametrize("out", ["file", "out"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_warm_up(out, monkeypatch):
    """Finding out only after the warm-up; a summary.json that is lost though nothing was run."""
    monkeypatch.setattr(train, "warm_up", None)  # calling it is another error
    Path("file").write_text("mine")
    left = Path("out", parsed("").name)
    (left / "metrics.csv").mkdir(parents=True)  # in the way, too
    (left / "summary.json").write_text("{}")
    error, _ = run(f"--out {out}")
    assert error.startswith("train.py: error: ")
    assert (left / "summary.json").exists()
