"""Whole runs: what they leave and share, what each setting reaches, how they end, bad input."""

import csv
import json
import math
import re
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields, replace
from inspect import getdoc, signature
from io import StringIO
from itertools import islice
from pathlib import Path
from statistics import fmean as mean
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch

import grpo
import tasks
import train
from advantages import VARIANTS
from grpo import sample_rollout
from tasks import ADD, PAD_ID, SUM, TASKS, TOKENIZER, held_out, make_problems
from test_grpo import DEFAULTS, FAIL, MIXED, ONE, PASS, close, fewer_problems, problem
from test_grpo import random_rollout, tiny_gpt

SHARES = {name: task.share for name, task in TASKS.items()}
SMALL = "--layers 1 --width 16 --steps 2 --prompts 8 --group-size 4 --out out".split()


NAME = "add-grpo-seed0-group_size4-layers1-prompts8-steps2-width16"
CTRL_C = (130, [f"train.py: stopped by Ctrl-C; see {Path('out', NAME)}"])


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Few problems and a short warm-up. A response is correct if its length is odd."""
    for task in TASKS.values():
        monkeypatch.setattr(task, "share", 0.0)  # 20 steps of warm-up
    fewer_problems(60, monkeypatch)
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: len(response) % 2.0)
    monkeypatch.chdir(tmp_path)


def parsed(arguments: str):
    return train.parse_arguments(SMALL + arguments.split())


def run(arguments: str = "") -> tuple[int | str, list[str]]:
    """What a small run exits with, and its lines on standard error, without progress bars."""
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
    """A column of the metrics is missing, or a step does not yield what `train` promises. Or a
    variant or a task cannot be run.
    """
    assert run(f"--variant {variant} --task {task} --seed 3") == (0, [])
    [left] = Path("out").iterdir()
    assert {path.name for path in left.iterdir()} == {"metrics.csv", "model.pt", "summary.json"}
    base, first, last = csv.DictReader((left / "metrics.csv").read_text().splitlines())
    assert [name for name in base if base[name]] == [
        x for x in last if x == "step" or "greedy" in x or "sampled" in x
    ]
    assert [name for name in first if not first[name]] == [
        x for x in last if "greedy" in x or "sampled" in x
    ]
    numbers = " ".join([*base.values(), *first.values(), *last.values()]).split()
    assert all(last.values()) and all(math.isfinite(float(x)) for x in numbers)
    assert base["step"] == "0"
    found = {"variant": variant, "seed": 3, "final_greedy": float(last["greedy"])}
    found |= {f"base_{name}": float(base[name]) for name in ("greedy", "sampled")}
    found |= {"torch": torch.__version__}
    assert found.items() <= json.loads((left / "summary.json").read_text()).items()


def test_the_base_model_is_made_on_one_thread_and_always_the_same(monkeypatch):
    """Rounding depends on the threads: variants, or machines, that start from other weights."""
    events = []
    monkeypatch.setattr(torch, "set_num_threads", events.append)
    noted = lambda *given: events.append("warm-up") or DEFAULT  # noqa: E731
    monkeypatch.setattr(train, "warm_up", Mock(wraps=train.warm_up, side_effect=noted))
    for arguments in ("--steps 0 --seed 7 --variant nthr --threads 3", "--steps 0 --seed 8"):
        assert run(arguments) == (0, [])
    weights = [torch.load(path, weights_only=True) for path in Path("out").glob("*/model.pt")]
    assert events == [1, "warm-up", 3] + [1, "warm-up", 1]
    close(*weights, 0)
    close(train.base_model(parsed("")).state_dict(), weights[0], 0)
    for path in Path("out").glob("*/summary.json"):
        assert json.loads(path.read_text())["seconds_per_step"] == 0
    other = train.base_model(parsed("--base-seed 1")).state_dict()
    assert not torch.equal(other["norm.weight"], weights[0]["norm.weight"])


def test_what_a_seed_decides():
    """All seeds have one order of problems. Or the responses are sampled with the global generator,
    or `new_model` is called for a variant that is not a class, which sets the seed again.
    """
    texts = []
    for n, seed in enumerate((0, 0, 1)):
        steps = loop(f"--seed {seed}")
        torch.manual_seed(n)  # from which nothing is drawn
        texts.append([(rollout.problems[0], rollout.texts) for rollout, *_ in steps])
        assert torch.initial_seed() == n  # a critic, which seeds again, is only built for `critic`
    assert texts[0] == texts[1]
    assert texts[0][0][0] != texts[2][0][0]


def test_a_folder_names_what_differs_from_the_defaults():
    """A run with another setting that silently replaces an earlier one."""
    same = "--variant ngrpo --clip-high 0.24 --threads 2 --out elsewhere"  # 0.24: its own default
    args = train.parse_arguments(f"{same} --seed 7 --max-grad-norm 2 --clip-low 0.2".split())
    assert args.name == "add-ngrpo-seed7-clip_low0.2-max_grad_norm2.0"
    of_the_page = train.parse_arguments("--lr 1e-3 --minibatches 1 --device cpu".split())
    assert of_the_page.name == "add-grpo-seed0-lr0.001-minibatches1"  # tools/README.md has it
    settings = {"half --cull": "half-seed0-cullTrue", "culling": "culling-seed0"}
    settings |= {"culling --no-cull": "culling-seed0-cullFalse", "cispo": "cispo-seed0"}
    settings["half --loss-type grpo"] = "half-seed0"
    settings["half --loss-type gspo"] = "half-seed0-loss_typegspo"
    settings["gspo --loss-type grpo"] = "gspo-seed0-loss_typegrpo"
    settings["culling --loss-type cispo"] = "culling-seed0-loss_typecispo"
    for flags, name in settings.items():
        assert train.parse_arguments(f"--variant {flags}".split()).name == f"add-{name}"


def test_a_run_computes_on_its_device(monkeypatch):
    """A model, a critic or a generator that stays on the CPU: a run on a GPU is then a traceback.

    "meta" plays the GPU. Nothing can be sampled on it, so the run ends there.
    """
    args = parsed("--variant critic")
    args.device = "meta"
    warm_up = Mock(return_value=(0, 1.0))
    monkeypatch.setattr(train, "warm_up", warm_up)
    model = train.base_model(args)
    assert warm_up.call_args.args[0] is model  # the warm-up computes there as well
    generator = Mock()
    monkeypatch.setattr(torch, "Generator", generator)
    optimizer = lambda weights, fused: torch.optim.SGD(weights)  # noqa: E731
    monkeypatch.setattr(torch.optim, "Adam", optimizer)  # the fused one needs a real device
    monkeypatch.setattr(train, "sample_rollout", Mock(side_effect=KeyboardInterrupt))
    networks = [model]

    class Noted:
        def __init__(self, network, lr):
            networks.append(network)

    monkeypatch.setitem(VARIANTS, "critic", Noted)
    with pytest.raises(KeyboardInterrupt):
        next(train.train(args, model))
    with pytest.raises(KeyboardInterrupt):
        train.evaluate(model, ADD, "x", temperature=1.0)
    assert [str(call.args[0]) for call in generator.call_args_list] == ["meta", "meta"]
    weights = [weight for network in networks for weight in network.parameters()]
    assert len(networks) == 2 and all(weight.is_meta for weight in weights)


@pytest.mark.parametrize("name, task", TASKS.items(), ids=TASKS)
def test_the_longest_rows_have_columns(name, task, monkeypatch):
    """A model with too few columns stops a run of `likelihood` once a response has no marker."""
    comma = TOKENIZER.token_to_id(",")
    draw = lambda p, number, generator: torch.full((len(p), 1), comma)  # noqa: E731
    monkeypatch.setattr(torch, "multinomial", draw)
    model = train.new_model(parsed(f"--task {name}"))
    rollout = sample_rollout(model, task, [task.longest], 2)
    assert rollout.texts == [["," * (len(task.longest.solution) + 1)] * 2]
    assert VARIANTS["likelihood"](rollout).isfinite().all()
    read = len(task.longest.prompt) + rollout.max_length + len("#" + task.longest.answer + "$")
    assert model.embed_position.num_embeddings == read  # and no more than that


# ---- What a setting reaches
def test_the_defaults_are_those_of_the_readme():
    """A default that changes: the numbers of all texts are then those of another command."""
    of_update = {"minibatches": 4, "aggregate": "token", "kl": 0.0, "max_grad_norm": 0.01}
    of_loss = {"clip_low": 0.2, "clip_high": 0.2, "loss_type": "grpo"}
    expected = of_update | of_loss
    expected |= {"variant": "grpo", "task": "add", "steps": 400, "prompts": 64}
    expected |= {"group_size": 8, "temperature": 1.0, "lr": 3e-4, "seed": 0, "base_seed": 0}
    expected |= {"layers": 2, "width": 64, "threads": 1, "device": "cpu", "out": "runs"}
    expected |= {"cull": False}
    assert vars(train.parse_arguments([])) == expected | {"name": "add-grpo-seed0"}
    assert train.parse_arguments(["--kl", "0.1"]).name == "add-grpo-seed0-kl0.1"
    functions = {grpo.update: of_update, grpo.policy_loss: of_loss}
    for function, defaults in functions.items():
        parameters = signature(function).parameters
        assert {name: parameters[name].default for name in defaults} == defaults


def test_what_the_base_model_depends_on():
    """Variants or seeds that start from other weights; a size or a seed that changes nothing."""

    def weights(flags):
        model = train.base_model(parsed(flags))
        return torch.cat([weight.flatten() for weight in model.parameters()])

    first = weights("")
    torch.manual_seed(1)
    others = "--seed 5 --variant critic --temperature 0.5 --lr 0.1 --group-size 3 --threads 2"
    assert torch.equal(weights(others), first)
    for other in ("--task mul", "--base-seed 1", "--layers 2", "--width 20"):
        assert not torch.equal(weights(other), first)
    random, other = [train.new_model(parsed(flags)) for flags in ("", "--base-seed 1")]
    assert not torch.equal(random.unembed.weight, other.unembed.weight)


def test_which_problems_and_samples_a_seed_decides():
    """The responses are sampled with the global generator. Or variants see other problems at one
    seed, or all seeds see the same ones.
    """

    def first_steps(flags):
        args = parsed(f"--steps 9 {flags}")
        model = train.new_model(args)
        for weight in model.parameters():  # now responses depend on random numbers only
            weight.data.zero_()
        steps = [rollout for rollout, *_ in islice(train.train(args, model), 3)]
        return [x.problems for x in steps], steps[0].texts

    problems, texts = first_steps("--seed 1")
    torch.manual_seed(1)
    np.random.seed(1)
    same = "--seed 1 --base-seed 1 --variant critic --lr 1"
    assert first_steps(same) == (problems, texts)
    assert first_steps(f"{same} --temperature 0.5 --group-size 2")[0] == problems
    other_problems, other_texts = first_steps("--seed 2")
    assert all(a != b for a, b in zip(problems, other_problems))
    assert texts != other_texts


def test_every_problem_of_the_pool_can_be_drawn(monkeypatch):
    """A pool of which a part is never drawn, or of which a problem cannot come twice in a batch."""
    fewer_problems(3, monkeypatch)
    pool = train.make_problems(ADD, held=False)
    rollout, *_ = next(loop("--prompts 200 --group-size 2 --steps 9"))
    assert {*rollout.problems} == {*pool}


def test_what_reaches_the_update(monkeypatch):
    """A setting of the command line does not reach the sampling or the update."""
    update = Mock(return_value={"loss": 0.0, "grad_norm": 0.0})
    monkeypatch.setattr(train, "update", update)
    rollout, *_ = next(loop("--temperature 0.7"))
    assert (rollout.temperature, rollout.mask.shape[:2]) == (0.7, (8, 4))
    for arguments, changed in {
        "": {},
        "--minibatches 3 --kl 0.25": {"minibatches": 3, "kl": 0.25},
        "--variant dr_grpo --aggregate token --clip-high 0.3": {"clip_high": 0.3},
    }.items():
        next(loop(arguments))
        assert update.call_args.kwargs == DEFAULTS | changed


def test_the_norm_limit_is_the_policys_only(monkeypatch):
    """A limit of the critic or of the warm-up too: --max-grad-norm is then another setting."""
    clip = Mock(wraps=torch.nn.utils.clip_grad_norm_)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    args = parsed("--variant critic --max-grad-norm 0.125")
    assert len([*train.train(args, train.base_model(args))]) == 2
    limits = [call.args[1] for call in clip.call_args_list]
    assert limits == [1.0] * 20 + 2 * [1.0, 0.125, 0.125, 0.125, 0.125]


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
    mine = replace(ADD, share=2.0, ratio=2.0)
    steps, _ = train.warm_up(model, mine, 0, 60, lambda step: 0.1 * step)
    assert steps == 60
    assert rates == [0.1 * n for n in range(1, 61)]
    assert not any(held_out(text.split("=")[0] + "=") for text in encode.call_args.args[0])
    targets = torch.cat([call.args[1] for call in cross_entropy.call_args_list])
    counts = (targets != cross_entropy.call_args.kwargs["ignore_index"]).sum(1).bincount()
    assert 1.6 < counts[22] / counts[18] < 2.5  # tokens of level 5, and of 4: half as often
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: 0.0)
    assert train.warm_up(model, ADD, 0, 60) == (20, 0.0)  # a share of 0 is reached by 0
    assert train.warm_up(model, replace(ADD, share=0.1), 0, 5) == (5, 0.0)
    assert signature(train.warm_up).parameters["steps"].default == 2000


@pytest.mark.parametrize(
    "task, share, ratio", [("add", 0.13, 1.5), ("mul", 0.1, 1.0), ("sum", 0.4, 0.8)]
)
def test_the_warm_up_ends_at_the_share_of_its_task(task, share, ratio, monkeypatch):
    """Another share, another ratio of the levels; a share of held-out or of greedy responses."""
    monkeypatch.setattr(TASKS[task], "share", SHARES[task])
    fewer_problems(300, monkeypatch)
    shares = iter([0.0, share - 0.002, share + 0.002, 1.0])

    def sample(*given, **more):
        how = signature(sample_rollout).bind(*given, **more).arguments
        assert not any(held_out(problem.prompt) for problem in how["problems"])
        assert (how["G"], how.get("temperature", 1.0)) == (1, 1.0)
        assert how["problems"] == train.make_problems(TASKS[task], held=False)[::8]
        rollout = sample_rollout(*given, **more)
        rollout.rewards[:] = next(shares)  # only their mean is looked at
        return rollout

    monkeypatch.setattr(train, "sample_rollout", sample)
    cross_entropy = Mock(wraps=train.cross_entropy)
    monkeypatch.setattr(train, "cross_entropy", cross_entropy)
    rates = []
    usual = train.descend

    def step(optimizer, loss):
        assert optimizer.defaults["fused"]  # it decides the last bit of all weights
        rates.append(optimizer.param_groups[0]["lr"])
        usual(optimizer, loss)

    monkeypatch.setattr(train, "descend", step)
    train.base_model(parsed(f"--task {task} --width 4"))
    assert {*rates} == {2e-3}
    shown = [call.args[1] for call in cross_entropy.call_args_list]
    assert [batch.size(0) for batch in shown] == [64] * 60  # the share is measured every 20 steps
    lengths = (torch.cat(shown) != PAD_ID).sum(1).tolist()  # of a solution, which tell its level
    pool = train.make_problems(TASKS[task], held=False)
    first, last = TASKS[task].levels[0], TASKS[task].levels[-1]
    often = {}  # how often a problem of the lowest and of the highest level was shown
    for level in (first, last):
        solutions = [problem.solution for problem in pool if problem.level == level]
        often[level] = lengths.count(len(solutions[0]) + 1) / len(solutions)  # 1: the end token
    assert often[last] / often[first] == pytest.approx(ratio ** (last - first), rel=0.2)


# ---- What is measured, when, and on which weights
def reasoned(task, problem, response: str) -> bool:
    """Plays Task.reasoning_correct: every second correct response has correct reasoning."""
    return len(response) % 4 == 1


def measured(model, temperature: float, samples: int, task=ADD) -> list:
    """Accuracy, accuracy by level and share of correct reasoning, as tools/README.md has them."""
    rng = torch.Generator().manual_seed(0)
    problems = train.make_problems(task, held=True)
    x = sample_rollout(model, task, problems, samples, temperature, generator=rng)
    rewards = {level: [] for level in task.levels}
    reasoning = []
    for p, texts, group in zip(problems, x.texts, x.rewards.tolist()):
        rewards[p.level] += group
        reasoning += [task.reasoning_correct(p, y) for y, reward in zip(texts, group) if reward]
    levels = [mean(group) for group in rewards.values()]
    return [mean(levels), *levels, mean(reasoning or [0])]


PARTS = ("_by_level", "_reasoning_correct")


def written(entries: dict, name: str) -> list:
    """The same numbers from a row or from summary.json."""
    levels = entries[f"{name}_by_level"].values()
    return [entries[name], *levels, entries[f"{name}_reasoning_correct"]]


def agree(entries: dict, name: str, model, temperature: float, samples: int):
    expected = measured(model, temperature, samples)
    assert written(entries, name) == pytest.approx(expected, abs=1e-4), name


def test_evaluation(monkeypatch):
    """Accuracy on training problems, or of another level; a number that the past decides."""
    monkeypatch.setattr(train.Task, "reasoning_correct", reasoned)
    torch.manual_seed(1)
    found = train.evaluate(tiny_gpt(), ADD, "x", temperature=1.0, samples=4)
    assert list(found["x_by_level"]) == [*ADD.levels]
    assert all(share == round(share, 4) for share in found["x_by_level"].values())
    agree(found, "x", tiny_gpt(), 1.0, 4)
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: 1.0)
    found = train.evaluate(tiny_gpt(), ADD, "x", temperature=1.0)
    assert found["x"] < 1  # some have no end
    agree(found, "x", tiny_gpt(), 1.0, 1)
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: 0.0)
    assert written(train.evaluate(tiny_gpt(), ADD, "x", 1.0), "x") == [0.0] * 6


def test_rows_have_accuracy_every_25_steps_at_temperature_1_of_one_response(monkeypatch):
    """Accuracy is measured at other steps than every 25th and the last, or before the update. Or it
    is that of another temperature, or of more responses.
    """
    monkeypatch.setattr(train.Task, "reasoning_correct", reasoned)
    args = parsed("--steps 52 --prompts 2 --temperature 0.5 --lr 0.01 --seed 1")
    model = train.base_model(args)
    steps = []
    for *_, row in train.train(args, model):
        if {"greedy", "sampled"} & row.keys():
            steps.append(row["step"])
            agree(row, "greedy", model, 0, 1)
            agree(row, "sampled", model, 1, 1)
    assert steps == [25, 50, 52]


def test_summary_has_accuracy_before_and_after_at_temperature_1_of_four_responses(monkeypatch):
    """base_sampled measured after training or greedily; final_sampled at --temperature."""
    monkeypatch.setattr(train.Task, "reasoning_correct", reasoned)
    flags = "--lr 0.5 --temperature 0.5 --seed 1"
    assert run(flags) == (0, [])
    [path] = Path("out").glob("*/summary.json")
    summary = json.loads(path.read_text())
    model = train.base_model(parsed(flags))
    for name in ("base", "final"):
        agree(summary, f"{name}_greedy", model, 0, 1)
        agree(summary, f"{name}_sampled", model, 1, 4)
        if name == "base":
            assert len([*train.train(parsed(flags), model)]) == 2
    assert written(summary, "base_sampled") != written(summary, "final_sampled")


def test_model_pt_has_the_weights_after_training_and_metrics_csv_their_accuracy():
    """model.pt saved before training; levels in another order, or numbers in another column."""
    assert run("--lr 0.5") == (0, [])
    [left] = Path("out").iterdir()
    model = train.base_model(parsed("--lr 0.5"))
    *_, (_, _, row) = train.train(parsed("--lr 0.5"), model)
    close(torch.load(left / "model.pt", weights_only=True), model.state_dict(), 0)
    *_, last = csv.DictReader((left / "metrics.csv").read_text().splitlines())
    levels = row.pop("sampled_by_level").values()
    assert [float(share) for share in last.pop("sampled_by_level").split()] == [*levels]
    del last["seconds"]
    assert {name: float(text) for name, text in last.items()} == {name: row[name] for name in last}


def test_summary_has_all_settings_and_times(monkeypatch):
    """A setting that is left out; seconds of a step that include its evaluation; a mean of them."""
    clock = [5.0]  # not 0, because a difference to 0 would look like the time itself
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def takes(name, *durations):
        """The function under that name needs these numbers of seconds, one after another."""
        left = iter(durations)
        usual = getattr(train, name)

        def slow(*given, **more):
            clock[0] += next(left)
            return usual(*given, **more)

        monkeypatch.setattr(train, name, slow)

    takes("base_model", 1000.0)
    takes("evaluate", 100.0, 100.0, 100.0, 100.0, 100.0, 100.0)
    takes("update", 1.0, 2.0, 6.0)
    assert run("--steps 3 --seed 4 --kl 0.5") == (0, [])
    [left] = Path("out").iterdir()
    summary = json.loads((left / "summary.json").read_text())
    settings = vars(parsed("--steps 3 --seed 4 --kl 0.5"))
    assert settings.items() <= summary.items()
    parts = [f"{kind}{x}" for kind in ("greedy", "sampled") for x in ("", *PARTS)]
    results = {f"{when}_{part}" for when in ("base", "final") for part in parts}
    assert summary.keys() - settings.keys() - results == {"torch", "seconds", "seconds_per_step"}
    assert (summary["seconds"], summary["seconds_per_step"]) == (1609.0, 2.0)
    rows = csv.DictReader((left / "metrics.csv").read_text().splitlines())
    seconds = {int(row["step"]): row["seconds"] for row in rows if row["step"] != "0"}
    assert seconds == {1: "1.0", 2: "2.0", 3: "6.0"}


def test_each_row_is_in_the_file_before_the_next_step(monkeypatch):
    """Rows that wait in a buffer: who stops a run, or looks at it, finds an empty file."""
    texts = []

    def look(*given, **more):
        [path] = Path("out").glob("*/metrics.csv")
        texts.append(path.read_text())
        return DEFAULT

    monkeypatch.setattr(train, "update", Mock(wraps=train.update, side_effect=look))
    assert run("--steps 4") == (0, [])
    assert all(text.endswith("\n") for text in texts)
    first, *others = [text.count("\n") for text in texts]
    assert others == [first + 1, first + 2, first + 3]


def test_the_same_command_again_replaces_the_run(monkeypatch, capsys):
    """Rows that are appended to those of an earlier run, or its summary.json beside new rows.

    Or nothing says that a finished run is replaced.
    """
    assert run() == (0, [])
    [left] = Path("out").iterdir()
    assert "replaces" not in capsys.readouterr().out
    before = (left / "metrics.csv").read_text().splitlines()
    weights = (left / "model.pt").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(train, "base_model", Mock(side_effect=KeyboardInterrupt))
        assert run() == CTRL_C
    assert f"\nThis replaces the finished run in {left}.\n" in capsys.readouterr().out
    assert not (left / "summary.json").exists()
    assert (left / "metrics.csv").read_text().splitlines() == before[:1]
    assert (left / "model.pt").read_bytes() == weights  # those of the earlier run
    assert run() == (0, [])
    assert len((left / "metrics.csv").read_text().splitlines()) == len(before)


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


NOT_FINITE = "train.py: error: training step %d: a number is not finite; is --lr too high?"
NO_MEMORY = "train.py: error: not enough memory: try a smaller --prompts or --group-size"
ALLOCATOR = (
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
)
STOPS = [  # a function; what its calls do, DEFAULT is the usual; what run() gives; rows that stay
    (train, "warm_up", [KeyboardInterrupt], CTRL_C, 0),
    (train, "update", [DEFAULT, KeyboardInterrupt], CTRL_C, 2),
    (train, "evaluate", [DEFAULT] * 5 + [KeyboardInterrupt], CTRL_C, 3),
    (train, "update", [{"loss": 1.0, "grad_norm": math.inf}], (NOT_FINITE % 1, []), 1),
    (train, "update", [DEFAULT, {"loss": math.nan, "grad_norm": 1.0}], (NOT_FINITE % 2, []), 2),
    (torch, "save", [OSError("disk full")], ("train.py: error: disk full", []), 3),
    (train, "update", [DEFAULT, RuntimeError(ALLOCATOR)], (NO_MEMORY, []), 2),
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


def test_weights_that_are_not_finite_stop_the_run_in_their_own_step(monkeypatch):
    """NaN in the last mini-batch of a step, noticed by the next step's sampling or by nobody."""

    def ruin(model, *given, **more):
        model.norm.weight.data[0] = math.nan
        return {"loss": 1.0, "grad_norm": 1.0}

    monkeypatch.setattr(train, "update", ruin)
    assert run() == (NOT_FINITE % 1, [])


@pytest.mark.parametrize("steps, named", [(3, 2), (1, 1)])
def test_finite_weights_whose_logits_overflow_stop_the_run(steps, named, monkeypatch):
    """Weights that are huge but finite: the next sampling ends in a traceback, or names no step.

    The last step has no next one, but its accuracy is measured.
    """

    def blow_up(model, *given, **more):
        for weight in model.parameters():
            weight.data.fill_(1e30)
        return {"loss": 1.0, "grad_norm": 1.0}

    monkeypatch.setattr(train, "update", blow_up)
    error, more = run(f"--steps {steps}")
    said = f"training step {named}: a sampling probability is not finite; is --lr too high?"
    assert error == f"train.py: error: {said}" and not more


def test_another_error_keeps_its_traceback(monkeypatch):
    """A bug in somebody's variant that ends in one line, without the place."""
    for error in (RuntimeError("shapes differ"), ValueError("not one length")):
        monkeypatch.setattr(train, "update", Mock(side_effect=error))
        with pytest.raises(type(error)):
            run()


@pytest.mark.parametrize("room, left", [(400, 1), (2000, 2)])
def test_a_full_disk_leaves_one_line_and_no_summary(room, left, monkeypatch):
    """A traceback, or half a run that looks finished. A limit of a file's size plays the full disk.

    First metrics.csv does not fit, then model.pt does not.
    """
    resource = pytest.importorskip("resource", reason="there are no such limits on this system")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with redirect_stdout(StringIO()):  # else the limit would stop what pytest captures
            error, more = run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.startswith("train.py: error: ") and not more
    [folder] = Path("out").iterdir()
    assert len([*folder.iterdir()]) == left
    header, *rows = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    whole = rows[:-1]  # a part of the last row may be there, and its readers say so
    assert all(row.count(",") == header.count(",") and row.endswith("\n") for row in whole)
    assert not [*folder.glob("summary.json*")]


def test_a_summary_that_does_not_fit_is_removed(monkeypatch):
    """Half a summary.json, which says that the run is finished."""

    def half(path, text):
        path.write_bytes(text[:10].encode())
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", half)
    assert run() == ("train.py: error: disk full", [])
    assert not [*Path().rglob("summary.json")]


# ---- What a run shows
def test_what_a_run_shows(capsys):
    """A number of another column or step, a row that is left out, a response of other weights.

    An end that scrolls away, a line that wraps, colours on a pipe.
    """
    assert run("--variant nthr --steps 27 --group-size 8") == (0, [])
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert text.isascii() and "\033" not in text and "\r" not in text
    assert max(len(line) for line in lines if "out/" not in line) <= 100
    assert lines[0].startswith("Task add: ") and "2 to 5 digits" in lines[0]
    [warm_up] = [n for n, line in enumerate(lines) if " in 20 supervised steps." in line]
    assert re.match("It reached [0-9]+% in", lines[warm_up])
    assert "until 0% of training samples are correct" in lines[warm_up - 1]
    [left] = Path("out").iterdir()
    rows = [*csv.DictReader((left / "metrics.csv").read_text().splitlines())]
    rows = [row for row in rows if row["greedy"]]
    assert [row["step"] for row in rows] == ["0", "25", "27"]
    first = next(n for n, line in enumerate(lines) if line.startswith("step"))
    for row, line in zip(rows, lines[first + 2 :], strict=False):
        begin = 0
        for name in "step reward all-fail all-pass sampled greedy".split():
            end = lines[first].index(name) + len(name)
            cell, value = line[begin:end].strip(), row[name.replace("-", "_")]
            if value == "":
                assert cell == ""
            elif cell.endswith("%"):
                assert float(cell[:-1]) == pytest.approx(100 * float(value), abs=0.51)
            else:
                assert float(cell) == pytest.approx(float(value), abs=0.0051)
            begin = end
    model = train.new_model(parsed("--variant nthr"))
    model.load_state_dict(torch.load(left / "model.pt", weights_only=True))
    example = train.make_problems(ADD, held=True)[-4]
    greedy = sample_rollout(model, ADD, [example], 1, temperature=0).texts[0][0]
    assert held_out(example.prompt) and example.prompt in lines[first]
    assert example.solution in lines[first + 1]
    assert lines[first + 4][46:].startswith(tasks.mark_mistake(example, greedy)[0])
    end = lines[first + 5 :]
    assert len(end) == 14  # it fits a terminal of 24 lines, and with the whole table one of 30
    summary = json.loads((left / "summary.json").read_text())
    result = "{base_sampled:.1%} -> {final_sampled:.1%}".format(**summary)
    assert end[0] == "" and end[1].startswith("Done in ") and end[1].endswith(f": {result}")
    assert "four samples of each problem" in end[2]
    del end[2]
    assert end[3].split() == "digits per number 2 3 4 5 all (%)".split()
    ends = (("sampled", "base"), ("sampled", "final"), ("greedy", "base"), ("greedy", "final"))
    for line, (kind, name) in zip(end[4:8], ends, strict=True):
        assert line.startswith(f"{kind}, {'before' if name == 'base' else 'after'} ")
        mean, *levels, _ = [100 * x for x in written(summary, f"{name}_{kind}")]
        shown = [float(x) for x in line.split()[2:]]
        assert shown == pytest.approx([*levels, mean], abs=0.051)
        assert end[3].index("all") + 3 == len(line)  # numbers stand below their heads
    steps = [summary[f"{name}_sampled_reasoning_correct"] for name in ("base", "final")]
    said = "Of the rewarded samples, {:.1%} had correct steps before, {:.1%} after."
    assert end[8] == said.format(*steps)
    assert end[9].startswith("The others have wrong or missing steps. ")
    del end[9]
    assert f"Saved in {left} " in end[9]
    assert end[10].endswith(f"python -m tools.ask {left} --group")
    assert f"python -m tools.curves {left}" in end[11]


def test_out_may_begin_with_a_tilde(monkeypatch, tmp_path):
    """A folder that is called ~."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    assert run("--steps 0 --out=~/runs") == (0, [])
    assert [*(tmp_path / "home" / "runs").glob("*/summary.json")] and not Path("~").exists()
    assert run("--steps 0 --out=~nobody/runs") == (0, [])  # a name that no user has: a folder here


@pytest.mark.parametrize("before, after", [(0.3, 0.1), (0.1, 0.3), (0.2, 0.2)])
def test_the_end_says_whether_the_steps_got_worse(before, after, capsys):
    """Rewarded answers with steps that training has made worse, and nobody says it."""
    assert run("--steps 1") == (0, [])
    [path] = Path("out").glob("*/summary.json")
    summary = json.loads(path.read_text()) | {"final_sampled": 0.5}
    summary["base_sampled_reasoning_correct"] = before
    summary["final_sampled_reasoning_correct"] = after
    capsys.readouterr()
    train.show_end(summary, ADD, path.parent)
    assert ("and the steps got worse." in capsys.readouterr().out) == (after < before)


def test_without_a_correct_sample_none_is_said_to_be_rewarded(monkeypatch, capsys):
    """A sentence about rewarded mistakes where nothing was rewarded."""
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: 0.0)
    assert run("--steps 1") == (0, [])
    assert "The others have" not in capsys.readouterr().out


def test_a_run_without_steps_shows_its_base_model(capsys):
    """A traceback, or a group of a step that never was."""
    assert run("--steps 0") == (0, [])
    text = capsys.readouterr().out
    assert "greedy, after" in text and "tools.ask" in text


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_says_what_it_will_do(variant, task, capsys):
    """Another variant's idea, or another task's work; an unfinished sentence, a long line."""
    doc = getdoc(VARIANTS[variant])
    if doc.startswith("What to write"):
        pytest.skip("the assignment has replaced the docstring by one without the formula")
    train.show_start(parsed(f"--variant {variant} --task {task}"))
    text = capsys.readouterr().out
    idea, formula = doc.split("\n\n")[:2]
    assert f"Variant {variant} (in advantages.py):\n{idea}\n\n{formula}\n\n" in text
    assert "4 responses, a group, to each of 8 problems" in text
    [first] = [line for line in text.splitlines() if line.startswith("Task ")]
    levels = TASKS[task].levels
    assert first == f"Task {task}: {TASKS[task].work}" and first.endswith(".")
    assert f" {levels[0]} to {levels[-1]} " in first and "= is worked as " in first
    assert max(map(len, text.splitlines())) <= 100


def test_what_a_task_of_ones_own_says(monkeypatch, capsys):
    """A traceback where a student's first task should run."""
    mine = train.Task(ADD.make, ADD.answer_from, ADD.levels, share=0.0)
    monkeypatch.setitem(TASKS, "mine", mine)
    assert run("--task mine") == (0, [])
    assert capsys.readouterr().out.startswith("Task mine: A task of your own.\n")


def test_a_copy_of_a_task_has_its_own_problems():
    """Problems are kept by the task's fields, so a copy or a subclass gets its parent's."""

    class Mine(type(ADD)):
        def problem(self, rng, level):
            return problem(SUM, [level, 1], 2)

    mine = Mine(*(getattr(ADD, field.name) for field in fields(ADD)))
    assert {p.answer for p in make_problems(mine, held=False)} <= {" 3", " 4", " 5", " 6"}
    assert make_problems(ADD, held=False) != make_problems(replace(ADD, levels=[2]), held=False)


def test_a_warm_up_that_misses_its_share_says_so(monkeypatch, capsys):
    """The sentence of a warm-up that reached its share."""
    monkeypatch.setattr(train, "warm_up", Mock(return_value=(2000, 0.04)))
    monkeypatch.setattr(ADD, "share", 0.13)
    train.show_start(parsed(""))
    train.base_model(parsed(""))
    text = capsys.readouterr().out
    assert "until 13% of training samples are correct" in text and "It reached 4% in 2000 " in text


def test_a_variant_without_a_docstring(monkeypatch, capsys):
    """A traceback where a student's first variant should run."""
    monkeypatch.setitem(VARIANTS, "grpo", lambda rollout: rollout.rewards)
    assert run("--steps 1") == (0, [])
    assert "No docstring." in capsys.readouterr().out


def test_a_reward_is_shown_beside_a_mistake(monkeypatch, capsys):
    """A rewarded response that looks as if it failed, or a failed one that looks rewarded."""
    nines = problem(ADD, [99, 33], 2)
    monkeypatch.setattr(train, "make_problems", lambda task, held: [nines] * 4)
    for response in ("12,13#132", "12,14#132", "12,13#13"):  # of odd length, odd, even
        sampled = Mock(texts=[[response]])
        monkeypatch.setattr(train, "sample_rollout", lambda *_, temperature: sampled)  # noqa: B023
        numbers = {"reward": 0.1, "all_fail": 0.2, "all_pass": 0.3, "sampled": 0.4, "greedy": 0.5}
        train.show_row({"step": 1} | numbers, None, ADD)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert all(line[:6] == ["1", "0.10", "20%", "30%", "40.0%", "50.0%"] for line in lines)
    ends = [line[6:] for line in lines]
    assert ends == [["12,13#132", "rewarded"], ["12,[14]#132", "rewarded"], ["12,13#[13]"]]


MISTAKES = {  # a response to 99+33=, whose solution is 12,13#132: what is marked, and the remark
    "12,13#132": ("12,13#132", ""),
    "12,14#132": ("12,[14]#132", "[14] should be [13]"),
    "12,13#142": ("12,13#[142]", "[142] should be [132]"),
    "12,13,01#132": ("12,13[,]01#132", "[,] should be [#]"),
    "12": ("12[]", "[] should be [,]"),
    "12,13#132#132": ("12,13#132[#]132", "[#] should be []"),
    "": ("[]", "[] should be [12]"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_the_first_mistake_is_marked(text):
    """Another mistake than the first; a response of another length that passes, or a traceback."""
    nines = problem(ADD, [99, 33], 2)
    assert tasks.mark_mistake(nines, text) == MISTAKES[text]
    if MISTAKES[text][1]:
        assert tasks.mark_mistake(nines, text, 1)[1] == MISTAKES[text][1] + ", yet rewarded"


class Terminal(StringIO):
    def isatty(self):
        return True


def test_the_bar(monkeypatch):
    """A bar in a file; one that hides the reward or stays behind."""
    for kind, there in ((Terminal, True), (StringIO, False)):
        monkeypatch.setattr(sys, "stderr", kind())
        bar = train.progress(iter(range(3)), "nthr", 3)
        for _ in bar:
            bar.set_postfix_str("reward 0.71")
        text = sys.stderr.getvalue()
        assert text.isascii() and bool(text) == there
        if there:
            assert "nthr:   0%|" in text and ", reward 0.71]" in text
            assert text.split("\r")[-1] == "" and not text.split("\r")[-2].strip()  # it goes


class Often(train.tqdm):
    """A bar that is drawn after every step, and not ten times a second at most."""

    def __init__(self, *given, **more):
        super().__init__(*given, mininterval=0, **more)


def test_a_run_in_a_terminal_shows_its_bars(monkeypatch):
    """A traceback in a terminal only; a bar without the variant, the step, the share or the reward.

    The other tests have no terminal, so no bar is ever drawn in their runs.
    """
    monkeypatch.setattr(ADD, "share", 0.5)
    monkeypatch.setattr(train, "tqdm", Often)
    monkeypatch.setattr(sys, "stderr", Terminal())
    train.main([*SMALL, "--variant", "nthr", "--steps", "3"])
    drawn = sys.stderr.getvalue().split("\r")
    shares = [re.match(r"warm-up: +[0-9]+%\|[# ]*\| ([0-9]+)/50 \[", x) for x in drawn]
    assert max(int(x[1]) for x in shares if x) > 0  # it counts towards the target share
    for step, share in ((0, 0), (1, 33), (2, 67), (3, 100)):
        reward = r", reward [01]\.[0-9]{2}\]" if step else r"\]"
        layout = rf"nthr: +{share}%\|[# ]*\| {step}/3 \[.*{reward}"
        assert any(re.match(layout, x) for x in drawn), f"training step {step}"


def test_help_has_the_defaults_of_the_variant(capsys):
    """The clip range of grpo in the help of ngrpo; a help without its usage line."""
    texts = []
    for argv in (["--help"], ["--help", "--variant", "ngrpo"]):
        with pytest.raises(SystemExit) as stop:
            train.main(argv)
        assert stop.value.code == 0
        texts.append(" ".join(capsys.readouterr().out.split()))
    plain, ngrpo = texts
    assert plain.count("(default: 0.2)") == 2
    assert "(default: 0.16)" in ngrpo and "(default: 0.24)" in ngrpo
    assert plain.startswith("usage: train.py [--variant NAME] [flags] ")


def test_help_fits_100_columns_and_names_every_idea(monkeypatch, capsys):
    """A list of names that is wider than a terminal; a variant whose idea the help does not say."""
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        train.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100 and len(lines) <= 58
    assert "for example: python train.py --variant half" in lines
    for name, variant in VARIANTS.items():
        idea = getdoc(variant).splitlines()[0]
        assert len(idea) <= 84 and idea.endswith(".")
        assert [line for line in lines if line.split()[:1] == [name]] == [f"  {name:13}{idea}"]


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
            allowed = re.search(" to |choose from|near: |invalid (int|float) value", error)
            assert status == 2 and f"--{flag}" in error and allowed
    assert not [*Path().iterdir()]


def test_each_loss_type_has_its_own_clip_range():
    """The clip range of another loss type, or that of the variant; a limit that is ignored."""
    for flags, expected in {
        "--variant nthr --loss-type gspo": ("gspo", "response", 0.03, 0.04),
        "--variant dr_grpo --loss-type cispo": ("cispo", "token", 1.0, 0.2),
        "--variant ngrpo --loss-type grpo": ("grpo", "token", 0.16, 0.24),
        "--variant gspo --loss-type grpo": ("grpo", "token", 0.2, 0.2),
        "--variant gspo --loss-type cispo --clip-high 1": ("cispo", "token", 1.0, 1.0),
        "--variant gspo --clip-low 0.3": ("gspo", "response", 0.3, 0.04),
        "--variant culling --loss-type gspo": ("gspo", "response", 0.03, 0.04),
    }.items():
        args = train.parse_arguments(flags.split())
        assert (args.loss_type, args.aggregate, args.clip_low, args.clip_high) == expected, flags
        assert args.cull == ("culling" in flags)
    for flags in ("--variant cispo --clip-low 0.2", "--loss-type cispo --clip-low=0.9"):
        status, [error] = run(flags)
        assert status == 2 and "--clip-low" in error and "only 1 is allowed" in error
    assert not [*Path().iterdir()]


LIMITS = {  # the smallest and the largest value that is allowed, and two that are just outside
    "steps seed base-seed": (0, 10**9, -1, 10**9 + 1),
    "prompts minibatches": (1, 10**9, 0, 10**9 + 1),
    "group-size": (2, 10**9, 1, 10**9 + 1),
    "layers": (1, 24, 0, 25),
    "width": (4, 2048, 0, 2052),
    "threads": (1, 1024, 0, 1025),
    "temperature": (0.001, 1e9, 0.0009, 1.1e9),
    "lr max-grad-norm": (1e-12, 1e9, 0.9e-12, 1.1e9),
    "clip-low": (0.0, 1.0, -0.001, 1.001),
    "clip-high kl": (0.0, 1e9, -0.001, 1.1e9),
}


@pytest.mark.parametrize("flags", LIMITS)
def test_the_limits_of_each_number(flags):
    """A limit that is one off, or that belongs to another flag."""
    *allowed, too_small, too_large = LIMITS[flags]
    for flag in flags.split():
        for value in allowed:
            args = train.parse_arguments([f"--{flag}={value}"])
            assert getattr(args, flag.replace("-", "_")) == value
        for value in (too_small, too_large):
            status, [error] = run(f"--{flag}={value}")
            assert status == 2 and f"--{flag}" in error


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
