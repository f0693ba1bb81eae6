"""Whole runs: what they leave and share, what each setting reaches, how they end, bad input."""

import csv
import json
import math
import sys
from copy import deepcopy
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
import torch

import train
from advantages import VARIANTS
from grpo import response_logprobs, sample_rollout
from model import GPT
from tasks import ADD, TASKS
from test_grpo import FAIL, MIXED, close, problem, random_rollout
from test_update import DEFAULTS

SMALL = "--layers 1 --width 16 --steps 2 --prompts 8 --group-size 4 --device cpu --out out".split()


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Few problems and a short warm-up. A response is correct if its length is odd."""
    monkeypatch.setattr(train, "WARM_UP", dict.fromkeys(TASKS, (0.0, 1.0)))  # 20 steps
    monkeypatch.setattr(train, "DRAWS", 40)
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: len(response) % 2.0)
    monkeypatch.chdir(tmp_path)


def parsed(arguments: str):
    return train.parse_arguments(SMALL + arguments.split())


def run(arguments: str = "") -> int:
    """The exit status of a small run, which leaves its files below out/."""
    try:
        train.main(SMALL + arguments.split())
    except SystemExit as stop:
        if isinstance(stop.code, int):
            return stop.code
        print(stop.code, file=sys.stderr)  # as Python does, which then exits with 1
        return 1
    return 0


def folder(arguments: str = "") -> Path:
    """That of this small run."""
    return Path("out", parsed(arguments).name)


def loop(arguments: str):
    """The loop over steps, from a model that has learned nothing."""
    args = parsed(arguments)
    return train.train(args, train.new_model(args))


# ---- What a run leaves, and what it shares with others
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_and_task_leaves_the_same_files(variant, task, capsys):
    """A variant or task that was never run, or a file or column that only some have."""
    arguments = f"--variant {variant} --task {task} --seed 3"
    assert run(arguments) == 0
    assert "final_sampled: " in capsys.readouterr().out
    files = {path.name: path for path in folder(arguments).iterdir()}
    assert files.keys() == {"metrics.csv", "model.pt", "summary.json"}
    first, last = csv.DictReader(files["metrics.csv"].read_text().splitlines())
    assert (first["step"], last["step"]) == ("1", "2")
    assert [name for name in first if not first[name]] == [x for x in last if "accuracy" in x]
    assert all(last.values())
    numbers = " ".join([*first.values(), *last.values()]).split()
    assert all(math.isfinite(float(x)) for x in numbers)
    summary = json.loads(files["summary.json"].read_text())
    asked = {"variant": variant, "task": task, "seed": 3, "steps": 2, "lr": 3e-4}
    assert asked.items() <= summary.items()
    assert str(summary["final_accuracy"]) == last["accuracy"]
    for name in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        by_level = summary[f"{name}_by_level"]
        assert list(by_level) == [str(level) for level in TASKS[task].levels]
        assert summary[name] == pytest.approx(sum(by_level.values()) / len(by_level))
    shares = [float(share) for share in last["accuracy_sampled_by_level"].split()]
    assert sum(shares) / len(shares) == pytest.approx(float(last["accuracy_sampled"]))


def test_the_base_model_is_made_on_one_thread_and_always_the_same(monkeypatch):
    """Rounding depends on the threads: variants, or machines, that start from other weights."""
    threads = []
    weights = []

    def count(*given):
        threads.append(torch.get_num_threads())
        return DEFAULT

    monkeypatch.setattr(train, "warm_up", Mock(wraps=train.warm_up, side_effect=count))
    for arguments in ("--steps 0 --seed 7 --variant nthr --threads 3", "--steps 0 --seed 8"):
        assert run(arguments) == 0
        threads.append(torch.get_num_threads())
        weights.append(torch.load(folder(arguments) / "model.pt", weights_only=True))
    assert threads == [1, 3, 1, 1]
    close(*weights, 0)
    other = train.base_model(parsed("--base-seed 1")).state_dict()
    assert not torch.equal(other["norm.weight"], weights[0]["norm.weight"])


def test_metrics_csv_grows_from_before_the_warm_up(monkeypatch):
    """A folder that is made after the warm-up; rows that are lost when a run is killed."""
    lines = []

    def count(*given, **more):
        lines.append(len((folder() / "metrics.csv").read_text().splitlines()))
        return DEFAULT

    for name in ("warm_up", "update"):
        monkeypatch.setattr(train, name, Mock(wraps=getattr(train, name), side_effect=count))
    assert run() == 0
    assert lines == [1, 1, 2]


def test_what_a_seed_decides():
    """Variants that are compared on other problems; randomness that no seed decides."""
    problems, metrics = [], []
    critic = "--variant critic --kl 0.1"
    for arguments in ("", critic, critic, "--variant likelihood", "--seed 1"):
        steps = [*loop(arguments)]
        problems.append([problem for rollout, *_ in steps for problem in rollout.problems])
        metrics.append([row | {"seconds": 0} for *_, row in steps])
    assert problems[0] == problems[1] == problems[3] != problems[4]
    assert metrics[1] == metrics[2]
    assert {*problems[0]} <= {*train.make_problems(ADD, held=False)}


def test_a_folder_names_what_differs_from_the_defaults():
    """A run with another setting that silently replaces an earlier one."""
    for arguments, name in {
        "--variant=nthr --task=mul --seed=7": "mul-nthr-seed7",
        "--minibatches=1 --max-grad-norm=9": "add-grpo-seed0-max_grad_norm9.0-minibatches1",
        "--threads=2 --device=cpu --out=elsewhere": "add-grpo-seed0",
        "--variant=ngrpo --clip-low=0.16": "add-ngrpo-seed0",  # its own default
        "--variant=ngrpo --clip-low=0.2": "add-ngrpo-seed0-clip_low0.2",
        "--variant=dr_grpo --aggregate=token": "add-dr_grpo-seed0-aggregatetoken",
    }.items():
        assert train.parse_arguments(arguments.split()).name == name


# ---- What a setting reaches
def test_what_reaches_the_update(monkeypatch):
    """A setting that is read and then forgotten, or the wrong clip range or schedule."""
    update = Mock(return_value={"loss": 0.0, "grad_norm": 0.0})
    monkeypatch.setattr(train, "update", update)
    rates = []
    for rollout, _, row in loop("--steps 20 --lr 0.5 --temperature 0.7"):
        rates.append(update.call_args.args[1].param_groups[0]["lr"])
        assert ("accuracy" in row) == (len(rates) == 20)
    assert rates == pytest.approx([0.5 * min(n / 10, (21 - n) / 20) for n in range(1, 21)])
    assert (rollout.temperature, rollout.mask.shape[:2]) == (0.7, (8, 4))
    for arguments, changed in {
        "": {},
        "--minibatches 3 --kl 0.25": {"minibatches": 3, "kl": 0.25},
        "--max-grad-norm 2": {"max_grad_norm": 2.0},
        "--variant ngrpo": {"clip_low": 0.16, "clip_high": 0.24},
        "--variant ngrpo --clip-low 0.05": {"clip_low": 0.05, "clip_high": 0.24},
        "--variant dr_grpo": {"aggregate": "constant"},
        "--variant dr_grpo --aggregate token --clip-high 0.3": {"clip_high": 0.3},
    }.items():
        next(loop(arguments))
        assert update.call_args.kwargs == DEFAULTS | changed


def test_the_norm_limit_is_of_the_policys_update_alone(monkeypatch):
    """A limit that changes the base model or the critic: runs differ in more than they say."""
    clip = Mock(wraps=torch.nn.utils.clip_grad_norm_)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    args = parsed("--variant critic --max-grad-norm 0.125")
    list(train.train(args, train.base_model(args)))
    limits = [call.args[1] for call in clip.call_args_list]
    assert limits == [1.0] * 20 + 2 * [1.0, 0.125, 0.125, 0.125, 0.125]


def test_the_kl_reference_is_a_copy_of_the_model_that_train_got():
    """A reference that learns too: their distance is always 0."""
    args = parsed("--kl 0.1 --lr 0.5")
    model = train.new_model(args)
    first = deepcopy(model)
    for rollout, *_ in train.train(args, model):
        close(rollout.reference_logprobs, response_logprobs(first, rollout).detach(), 1e-5)
    assert (response_logprobs(model, rollout) - rollout.reference_logprobs).abs().max() > 0.01


def test_the_critic_is_built_only_for_critic(monkeypatch):
    """Seconds, and a seed of the global generator, that go to a network that nobody asks."""
    model = train.new_model(parsed(""))
    for variant in VARIANTS:
        new_model = Mock(wraps=GPT)
        monkeypatch.setattr(train, "GPT", new_model)
        next(train.train(parsed(f"--variant {variant}"), model))
        assert new_model.call_count == (variant == "critic")


@pytest.mark.parametrize("easy, left", [(4, {5}), (5, {2, 3, 4, 5})])  # 5: all come again
def test_culling_drops_solved_prompts_and_keeps_its_budget(easy, left, monkeypatch):
    """A batch that shrinks with the pool; a prompt that goes though one response was wrong."""

    def sample(*given, **more):
        rollout = sample_rollout(*given, **more)
        levels = [p.level for p in rollout.problems]
        rollout.rewards = torch.tensor([[1.0, 1.0, level <= easy, 1.0] for level in levels])
        return rollout

    monkeypatch.setattr(train, "sample_rollout", sample)
    monkeypatch.setattr(train, "DRAWS", 6)
    steps = loop("--variant culling --prompts 200 --steps 4")
    for levels in ({2, 3, 4, 5}, left, left):
        rollout, *_ = next(steps)
        assert len(rollout.problems) == 200
        assert {p.level for p in rollout.problems} == levels


def test_the_warm_up(monkeypatch):
    """A warm-up that never ends or ends at once, another rate, levels otherwise than stated."""
    cross_entropy = Mock(wraps=train.cross_entropy)
    monkeypatch.setattr(train, "cross_entropy", cross_entropy)
    rates = []
    step = lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"])  # noqa: E731
    monkeypatch.setattr(train, "descend", step)
    model = train.new_model(parsed(""))
    assert train.warm_up(model, ADD, 0, 2.0, 2.0, 60, lambda step: 0.1 * step) == 60
    assert rates == [0.1 * n for n in range(1, 61)]
    targets = torch.cat([call.args[1] for call in cross_entropy.call_args_list])
    counts = (targets != cross_entropy.call_args.kwargs["ignore_index"]).sum(1).bincount()
    # Solutions of level 5 have 22 tokens with EOS, those of level 4 have 18 and come half as often.
    assert 1.6 < counts[22] / counts[18] < 2.5
    assert train.warm_up(model, ADD, 0, 0.0, 1.0) == 20


# ---- How a run ends
def test_the_report_marks_what_is_pushed(capsys):
    """A variant whose effect on the tokens cannot be seen; a group with nothing to compare."""
    rollout = random_rollout([FAIL, MIXED])
    rollout.problems = [problem(ADD, [33, 99], 2), problem(ADD, [44, 88], 2)]
    rollout.texts = [["1"] * 4, ["12,13#132", "1_", "", "12"]]
    A = torch.tensor([2.0, 1.0, 0.1, 0.0, -0.1, -1.0, -2.0, 1.2, -1.2, 2.0]).expand(2, 4, 10)
    train.report(rollout, A)
    group, mistakes = capsys.readouterr().out.split("Mistakes in the last step:\n")
    assert "   44+   88=" in group
    assert "\n  12,13#132$\n  *++.--=+-*\n  1_$\n  *++\n  $\n  *\n" in group
    assert mistakes.splitlines()[4] == "     44+   88=1_  correct: 12,13#132"
    train.report(rollout, 0 * A)  # not one advantage
    assert "12,13#132$\n  ..........\n" in capsys.readouterr().out


NAN = {"loss": math.nan, "grad_norm": 1.0}
INF = {"loss": 1.0, "grad_norm": math.inf}
STOPS = [  # a function; what its calls do, DEFAULT is the usual; exit status, line; rows that stay
    (train, "warm_up", [KeyboardInterrupt], 130, "stopped by Ctrl-C", 0),
    (train, "update", [DEFAULT, KeyboardInterrupt], 130, "stopped by Ctrl-C", 1),
    (train, "evaluate", [DEFAULT] * 5 + [KeyboardInterrupt], 130, "stopped by Ctrl-C", 2),
    (train, "update", [INF], 1, "error: step 1: loss or gradient not finite", 0),
    (train, "update", [DEFAULT, NAN], 1, "error: step 2: loss or gradient not finite", 1),
    (torch, "save", [OSError("disk full")], 1, "error: disk full", 2),
]


@pytest.mark.parametrize("module, name, calls, status, said, rows", STOPS)
def test_summary_json_is_there_only_if_the_run_finished(
    module, name, calls, status, said, rows, capsys, monkeypatch
):
    """Half a run that looks finished, a traceback, a lost row, an error that names no step."""
    assert run() == 0  # an earlier run, whose summary.json must go
    capsys.readouterr()
    monkeypatch.setattr(module, name, Mock(wraps=getattr(module, name), side_effect=calls))
    assert run() == status
    errors = capsys.readouterr().err.splitlines()
    assert errors[-1].startswith(f"train.py: {said}")
    assert len([line for line in errors if line and "%|" not in line]) == 1  # no progress bars
    assert len((folder() / "metrics.csv").read_text().splitlines()) == 1 + rows
    assert not (folder() / "summary.json").exists()


# ---- Bad input: one line on standard error, and nothing written or changed
BAD = {  # flags: values; an empty value is bad for all
    "variant task device aggregate": "wall GRPO Token cuda:99",
    "steps prompts group-size minibatches seed base-seed layers width threads": "-1 2.5 two 1e3 ²",
    "prompts minibatches layers threads lr max-grad-norm temperature": "0",
    "group-size": "1",
    "width": "6 4096",
    "temperature lr max-grad-norm clip-low clip-high kl": "-0.1 nan inf -inf x",
    "clip-low": "1.1",
    "steps": "99999999999999999999",
}


def refused(arguments: str, status: int, capsys) -> str:
    """The line on standard error."""
    capsys.readouterr()
    before = {path: path.is_dir() or path.read_bytes() for path in Path().rglob("*")}
    assert run(arguments) == status
    assert {path: path.is_dir() or path.read_bytes() for path in Path().rglob("*")} == before
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1), printed.err
    return printed.err


@pytest.mark.parametrize("flags", BAD)
def test_bad_arguments_are_refused(flags, capsys):
    """A traceback, a message without what is allowed, work before the check."""
    assert "--nope" in refused("--nope", 2, capsys)
    for flag in flags.split():
        for value in [*BAD[flags].split(), ""]:
            error = refused(f"--{flag}={value}", 2, capsys)
            assert f"--{flag}" in error and " from " in error


@pytest.mark.parametrize("place", ["file", "file/below", "folder", "metrics.csv"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_warm_up(place, capsys, monkeypatch):
    """Finding out only after the warm-up; a summary.json that is lost though nothing was run."""
    monkeypatch.setattr(train, "warm_up", None)  # calling it is another error
    Path("file").write_text("mine")
    if place == "folder":
        Path("out").mkdir()
        folder().write_text("mine")
    else:
        (folder() / "metrics.csv").mkdir(parents=True)
        (folder() / "summary.json").write_text("{}")
    out = place if "file" in place else "out"
    assert "train.py: error: " in refused(f"--out {out}", 1, capsys)
