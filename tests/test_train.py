"""Without these tests a setting could be ignored, a column wrong, or a run end in a traceback."""

import csv
import json
import math
import os
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stderr
from dataclasses import replace
from functools import partial
from inspect import getdoc, signature
from io import StringIO
from itertools import islice
from pathlib import Path
from statistics import fmean as mean
from unittest.mock import DEFAULT, MagicMock, Mock

import numpy as np
import pytest
import torch

import grpo
import train
from advantages import VARIANTS
from grpo import sample_rollout
from tasks import ADD, COMMA_ID, EOS, PAD_ID, TASKS, mark_mistake
from test_grpo import DEFAULTS, FAIL, MIXED, ONE, PASS, close, fewer_problems, problem
from test_grpo import random_rollout

SHARES = {name: task.share for name, task in TASKS.items()}
SMALL = "--layers 1 --width 16 --steps 2 --prompts 8 --group-size 4 --out out".split()
HEADER = """step reward all_fail all_pass entropy length coherence reasoning_correct
mean_abs_advantage loss grad_norm clip_fraction approx_kl seconds greedy sampled sampled_by_level
sampled_reasoning_correct""".split()  # of metrics.csv, as tools/README.md has it


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


def run(arguments: str = ""):
    """Does a small run and returns its folder, its summary and the rows of its metrics."""
    train.main(SMALL + arguments.split())
    folder = Path("out", parsed(arguments).name)
    rows = [*csv.DictReader((folder / "metrics.csv").read_text().splitlines())]
    return folder, json.loads((folder / "summary.json").read_text()), rows


def refused(arguments: str) -> str:
    """The only line on standard error, of a command line that is bad."""
    with redirect_stderr(StringIO()) as errors, pytest.raises(SystemExit) as stop:
        run(arguments)
    [error] = errors.getvalue().splitlines()
    assert stop.value.code == 2 and not [*Path().iterdir()]
    return error


# ---- What a run leaves, and what it shares with others
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_and_task_leaves_the_same_files(variant, task, capsys):
    """A column of the metrics is missing, or a step does not yield what `train` promises. Or a
    variant or a task cannot be run. Or a run says another task's work or another variant's idea,
    has a line that is wider than a terminal (those with its folder apart), or a bar in a file.
    """
    left, summary, (base, first, last) = run(f"--variant {variant} --task {task} --seed 3")
    assert {path.name for path in left.iterdir()} == {"metrics.csv", "model.pt", "summary.json"}
    assert [*base] == HEADER and base["step"] == "0"
    evaluated = {name for name in HEADER if "greedy" in name or "sampled" in name}
    assert {name for name in HEADER if base[name]} == evaluated | {"step"}
    assert {name for name in HEADER if not first[name]} == evaluated
    numbers = " ".join([*base.values(), *first.values(), *last.values()]).split()
    assert all(last.values()) and all(math.isfinite(float(x)) for x in numbers)
    found = {"variant": variant, "seed": 3, "final_greedy": float(last["greedy"])}
    found |= {f"base_{name}": float(base[name]) for name in ("greedy", "sampled")}
    assert (found | {"torch": torch.__version__}).items() <= summary.items()
    screen, errors = capsys.readouterr()
    assert screen.startswith(f"Task {task}: {TASKS[task].work}\n\nVariant {variant}") and not errors
    assert "\n\n".join(getdoc(VARIANTS[variant]).split("\n\n")[:2]) + "\n\n" in screen
    assert not [x for x in screen.splitlines() if len(x) > 100 and not re.search("out/|--out", x)]


def test_a_folder_names_what_differs_from_the_defaults():
    """A run with another setting that silently replaces an earlier one."""
    same = "--variant ngrpo --clip-high 0.24 --every 5 --out elsewhere"  # 0.24: its own default
    args = train.parse_arguments(f"{same} --seed 7 --max-grad-norm 2 --clip-low 0.2".split())
    assert args.name == "add-ngrpo-seed7-clip_low0.2-max_grad_norm2.0"


def test_a_run_computes_on_its_device(monkeypatch):
    """A model, a critic or a generator stays on the CPU, so a run on a GPU is a traceback."""
    args = parsed("--variant critic")
    args.device = "meta"  # it plays the GPU, but nothing can be sampled on it
    warm_up = Mock(return_value=(0, 1.0))
    monkeypatch.setattr(train, "warm_up", warm_up)
    model = train.base_model(args)
    assert warm_up.call_args.args[0] is model  # the warm-up computes there as well
    generator = Mock()
    monkeypatch.setattr(torch, "Generator", generator)
    monkeypatch.setattr(torch.optim, "Adam", MagicMock())  # the fused one needs a real device
    monkeypatch.setattr(train, "sample_rollout", Mock(side_effect=KeyboardInterrupt))
    networks = [model]
    init = lambda self, network, lr: networks.append(network)  # noqa: E731
    monkeypatch.setitem(VARIANTS, "critic", type("Noted", (), {"__init__": init}))
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
    draw = lambda p, number, generator: torch.full((len(p), 1), COMMA_ID)  # noqa: E731
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
    expected = {"minibatches": 4, "aggregate": "token", "kl": 0.0, "max_grad_norm": 0.01}
    expected |= {"clip_low": 0.2, "clip_high": 0.2, "loss_type": "grpo", "cull": False}
    expected |= {"variant": "grpo", "task": "add", "steps": 400, "prompts": 64}
    expected |= {"group_size": 8, "temperature": 1.0, "lr": 3e-4, "seed": 0, "base_seed": 0}
    expected |= {"layers": 2, "width": 64, "every": 25, "device": "cpu", "out": "runs"}
    expected |= {"save": True}
    assert vars(train.parse_arguments([])) == expected | {"name": "add-grpo-seed0"}


def test_what_the_base_model_depends_on(monkeypatch):
    """Variants or seeds that start from other weights; a size or a seed that changes nothing. Or a
    warm-up on other threads than one: their number decides how it rounds.
    """
    events = []
    monkeypatch.setattr(torch, "set_num_threads", events.append)
    noted = lambda *given: events.append("warm-up") or DEFAULT  # noqa: E731
    monkeypatch.setattr(train, "warm_up", Mock(wraps=train.warm_up, side_effect=noted))

    def weights(flags):
        model = train.base_model(parsed(flags))
        return torch.cat([weight.flatten() for weight in model.parameters()])

    first = weights("")
    torch.manual_seed(1)
    others = "--seed 5 --variant critic --temperature 0.5 --lr 0.1 --group-size 3"
    assert torch.equal(weights(others), first)
    assert events == [1, "warm-up"] * 2
    for other in ("--task mul", "--base-seed 1", "--layers 2", "--width 32"):
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
    assert all(a != b for a, b in zip(problems, other_problems)) and texts != other_texts


def test_what_reaches_the_update(monkeypatch):
    """A setting of the command line does not reach the sampling or the update. Or a reference model
    is copied though there is no KL term.
    """
    update = Mock(return_value={"loss": 0.0, "grad_norm": 0.0})
    monkeypatch.setattr(train, "update", update)
    copy = Mock(wraps=train.deepcopy)
    monkeypatch.setattr(train, "deepcopy", copy)
    for flags, changed in {
        "--variant dr_grpo --aggregate token --clip-high 0.3": {"clip_high": 0.3},
        "--temperature 0.7": {},
        "--minibatches 3 --kl 0.25": {"minibatches": 3, "kl": 0.25},
    }.items():
        args = parsed(flags)
        rollout, *_ = next(train.train(args, train.new_model(args)))
        assert (rollout.temperature, rollout.mask.shape[:2]) == (args.temperature, (8, 4))
        assert update.call_args.kwargs == DEFAULTS | changed
        assert copy.called == ("kl" in changed)


@pytest.mark.parametrize(
    "task, share, ratio", [("add", 0.13, 1.5), ("mul", 0.1, 1.0), ("sum", 0.4, 0.8)]
)
def test_the_warm_up_ends_at_the_share_of_its_task(task, share, ratio, monkeypatch, capsys):
    """Another share, another ratio of the levels; a share of held-out or of greedy responses. Or it
    learns what is held out.
    """
    monkeypatch.setattr(TASKS[task], "share", SHARES[task])
    fewer_problems(300, monkeypatch)
    shares = iter([0.0, share - 0.002, share + 0.002, 0.0, 0.0])
    pool = train.make_problems(TASKS[task], held=False)

    def sample(model, task, problems, G):  # at temperature 1
        assert problems == pool[::8] and G == 1
        rollout = sample_rollout(model, task, problems, G)
        rollout.rewards[:] = next(shares)  # only their mean is looked at
        return rollout

    def step(optimizer, loss):
        assert optimizer.defaults["fused"]  # it decides the last bit of all weights
        assert optimizer.param_groups[0]["lr"] == 2e-3

    monkeypatch.setattr(train, "sample_rollout", sample)
    monkeypatch.setattr(train, "descend", step)
    encode = Mock(wraps=train.encode)
    monkeypatch.setattr(train, "encode", encode)
    cross_entropy = Mock(wraps=train.cross_entropy)
    monkeypatch.setattr(train, "cross_entropy", cross_entropy)
    model = train.base_model(parsed(f"--task {task} --width 4"))
    said = f"Base model: 60 steps of imitation, {share:.0%} correct on training problems."
    assert said in capsys.readouterr().out
    assert encode.call_args.args[0] == [p.prompt + p.solution + EOS for p in pool]
    shown = [call.args[1] for call in cross_entropy.call_args_list]
    assert [batch.size(0) for batch in shown] == [64] * 60
    lengths = (torch.cat(shown) != PAD_ID).sum(1).tolist()  # of a solution, which tell its level
    often = []  # how often a problem of the lowest and of the highest level was shown
    for level in (first := TASKS[task].levels[0], last := TASKS[task].levels[-1]):
        solutions = [problem.solution for problem in pool if problem.level == level]
        often.append(lengths.count(len(solutions[0]) + 1) / len(solutions))  # 1: the end token
    assert often[1] / often[0] == pytest.approx(ratio ** (last - first), rel=0.2)
    assert train.warm_up(model, TASKS[task], 0, 40)[0] == 40  # and no more
    assert signature(train.warm_up).parameters["steps"].default == 2000


# ---- What is measured, when, and on which weights
def reasoned(task, problem, response: str) -> bool:
    """Plays Task.reasoning_correct: every second correct response has correct reasoning."""
    return len(response) % 4 == 1


def agree(entries: dict, name: str, model, temperature: float, samples: int, task=ADD):
    """These numbers are those of the model, as tools/README.md defines them."""
    rng = torch.Generator().manual_seed(0)
    problems = train.make_problems(task, held=True)
    x = sample_rollout(model, task, problems, samples, temperature, generator=rng)
    rewards = {level: [] for level in task.levels}
    reasoning = []
    for p, texts, group in zip(problems, x.texts, x.rewards.tolist()):
        rewards[p.level] += group
        reasoning += [task.reasoning_correct(p, y) for y, reward in zip(texts, group) if reward]
    levels = [mean(group) for group in rewards.values()]
    expected = [mean(levels), *levels, mean(reasoning or [0])]
    by_level = entries[f"{name}_by_level"].values()
    found = [entries[name], *by_level, entries[f"{name}_reasoning_correct"]]
    assert found == pytest.approx(expected, abs=1e-4), name
    assert all(share == round(share, 4) for share in by_level)


@pytest.mark.parametrize("every, expected", [(25, [25, 50, 52]), (20, [20, 40, 52])])
def test_rows_have_accuracy_at_temperature_1_of_one_response(every, expected, monkeypatch):
    """Accuracy is measured at other steps than every 25th and the last, or before the update. Or it
    is that of another temperature, or of more responses.
    """
    monkeypatch.setattr(train.Task, "reasoning_correct", reasoned)
    flags = f"--steps 52 --prompts 2 --temperature 0.5 --lr 0.01 --seed 1 --every {every}"
    args = parsed(flags)
    model = train.base_model(args)
    steps = []
    for *_, row in train.train(args, model):
        if {"greedy", "sampled"} & row.keys():
            steps.append(row["step"])
            agree(row, "greedy", model, 0, 1)
            agree(row, "sampled", model, 1, 1)
    assert steps == expected


def test_the_files_have_what_the_loop_gives(monkeypatch):
    """Accuracy or model.pt of the weights before training, or at --temperature, or of another
    number of responses; levels in another order, or numbers in another column.
    """
    monkeypatch.setattr(train.Task, "reasoning_correct", reasoned)
    flags = "--lr 0.5 --temperature 0.5 --seed 1"
    left, summary, (*_, last) = run(flags)
    model = train.base_model(parsed(flags))
    for name in ("base", "final"):
        agree(summary, f"{name}_greedy", model, 0, 1)
        agree(summary, f"{name}_sampled", model, 1, 4)
        if name == "base":
            *_, (_, _, row) = train.train(parsed(flags), model)
    assert summary["base_sampled"] != summary["final_sampled"]
    close(torch.load(left / "model.pt", weights_only=True), model.state_dict(), 0)
    levels = row.pop("sampled_by_level").values()
    assert [float(share) for share in last.pop("sampled_by_level").split()] == [*levels]
    del last["seconds"]
    assert {name: float(text) for name, text in last.items()} == {name: row[name] for name in last}


def test_summary_has_all_settings_and_results():
    """A setting or a result that is left out."""
    _, summary, _ = run("--steps 3 --seed 4 --kl 0.5")
    settings = vars(parsed("--steps 3 --seed 4 --kl 0.5"))
    assert settings.items() <= summary.items()
    endings = ("", "_by_level", "_reasoning_correct")
    parts = [f"{kind}{ending}" for kind in ("greedy", "sampled") for ending in endings]
    results = {f"{when}_{part}" for when in ("base", "final") for part in parts}
    assert summary.keys() - settings.keys() - results == {"torch", "seconds"}
    assert all([*summary[x]] == ["2", "3", "4", "5"] for x in results if "by_level" in x)


def test_the_same_command_again_gives_the_same_run(monkeypatch):
    """Rows that are appended to those of an earlier run, or numbers that something else decides. Or
    rows that wait in a buffer: who stops a run, or looks at it, finds an empty file.
    """
    flags = "--variant critic --lr 0.01 --seed 3 --steps 3"
    path = Path("out", parsed(flags).name, "metrics.csv")
    lines = []
    look = lambda *given, **more: lines.append(path.read_text().count("\n")) or DEFAULT  # noqa: E731
    monkeypatch.setattr(train, "update", Mock(wraps=train.update, side_effect=look))
    runs = []
    for n in range(2):
        torch.manual_seed(n)
        np.random.seed(n)
        left, _, rows = run(flags)
        runs.append([{**row, "seconds": ""} for row in rows])
        runs.append(torch.load(left / "model.pt", weights_only=True))
    assert runs[0] == runs[2] and lines == [2, 3, 4] * 2
    close(runs[1], runs[3], 0)


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


# ---- How a run ends
@pytest.mark.parametrize(
    "module, name, calls",  # a function, and what its calls do: DEFAULT is the usual
    [
        (train, "base_model", [KeyboardInterrupt()]),
        (train, "update", [DEFAULT, MemoryError()]),
        (train, "evaluate", [DEFAULT] * 5 + [RuntimeError("shapes differ")]),
        (torch, "save", [OSError("disk full")]),
    ],
)
def test_only_a_finished_run_has_summary_json(module, name, calls, monkeypatch):
    """Half a run that looks finished, or an exception that the run hides."""
    left, *_ = run()  # an earlier run, whose summary.json must go
    monkeypatch.setattr(module, name, Mock(wraps=getattr(module, name), side_effect=calls))
    with pytest.raises(type(calls[-1])) as stop:
        run()
    assert stop.value is calls[-1]
    assert not (left / "summary.json").exists()


@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("number", [math.nan, 1e30])
def test_weights_that_are_not_finite_stop_the_run_at_the_next_sampling(number, bad, monkeypatch):
    """NaN in the weights, noticed by nobody. Or the message names no step, or not --lr."""
    calls = []

    def update(model, *given, **more):
        calls.append(1)
        for weight in model.parameters():
            if len(calls) == bad:
                weight.data.fill_(number)
        return {"loss": 1.0, "grad_norm": 1.0}

    monkeypatch.setattr(train, "update", update)
    steps = 2 * bad - 1  # 1 or 3
    named = bad + (steps > bad)  # the last step evaluates, so it samples itself
    with pytest.raises(FloatingPointError, match=rf"^step {named}: .*probability.*--lr"):
        run(f"--steps {steps}")
    [left] = Path("out").iterdir()
    assert not (left / "summary.json").exists()
    assert len((left / "metrics.csv").read_text().splitlines()) == 1 + named  # steps before it


# ---- What a run shows
SHOWN = """Task add: School addition
Variant nthr
Base model:
step reward all-fail all-pass sampled greedy  response to {example.prompt}
                                              {example.solution} solution
   0
  25
  27
the group
On problems that training never saw, before -> after:
  sampled accuracy   {base_sampled:6.1%} -> {final_sampled:6.1%}
  greedy accuracy    {base_greedy:6.1%} -> {final_greedy:6.1%}
  of the rewarded samples, {shares[0]:.1%} -> {shares[1]:.1%} have correct steps
The files are in {left}
See a group of it:  python -m tools.ask "{left}" --group"""  # how lines begin, in this order


def test_what_a_run_shows(monkeypatch, capsys):
    """A number of another column or step, a row that is left out, a response of other weights, a
    part that is missing or in another place, colours on a pipe.
    """
    show_group = Mock(side_effect=lambda trained: print("the group"))
    monkeypatch.setattr(train, "show_group", show_group)
    update = Mock(wraps=train.update)
    monkeypatch.setattr(train, "update", update)
    left, summary, rows = run("--variant nthr --steps 27 --group-size 8")
    assert show_group.call_args.args[0] is update.call_args.args[2]  # of the last step
    text = capsys.readouterr().out
    assert text.isascii() and "\033" not in text and "\r" not in text
    example = train.make_problems(ADD, held=True)[-4]
    shares = [summary[f"{when}_sampled_reasoning_correct"] for when in ("base", "final")]
    shown = SHOWN.format(example=example, shares=shares, left=left, **summary).splitlines()
    lines = text.splitlines()
    found = [[n for n, line in enumerate(lines) if line.startswith(begin)] for begin in shown]
    assert all(len(places) == 1 for places in found) and found == sorted(found), found
    rows = [row for row in rows if row["greedy"]]
    formats = {"step": ".0f", "reward": ".2f", "all_fail": ".0%", "all_pass": ".0%"}
    formats |= {"sampled": ".1%", "greedy": ".1%"}
    for row, [n] in zip(rows, found[5:8], strict=True):
        cells = [f"{float(row[name]):{form}}" for name, form in formats.items() if row[name]]
        assert lines[n][:44].split() == cells
        assert len(lines[n][:44].rstrip()) == 44 and lines[n][44:46] == "  "  # below their heads
    model = train.new_model(parsed("--variant nthr"))
    model.load_state_dict(torch.load(left / "model.pt", weights_only=True))
    greedy = sample_rollout(model, ADD, [example], 1, temperature=0).texts[0][0]
    assert lines[n][46:] == mark_mistake(example, greedy)[0] + " rewarded" * (len(greedy) % 2)


def made_up(problems, groups, rewards) -> grpo.Rollout:
    """The rollout of these responses, with their ends, and with advantages from -2.6 to 2.6."""
    tokens, mask = train.encode([y for group in groups for y in group], None)
    tokens, mask = (x.view(len(groups), -1, x.size(1)) for x in (tokens, mask))
    A = torch.linspace(-2.6, 2.6, mask.numel()).view(mask.size())
    A[..., [1, 2, 4]] = -0.04
    A[~mask] = math.nan
    x = grpo.Rollout(tokens, mask, torch.tensor(rewards), *[None] * 3, problems=problems, A=A)
    return replace(x, texts=[[y.removesuffix(EOS) for y in group] for group in groups])


@pytest.mark.parametrize("size", [1, 40])  # of advantages: up to 2.6, and of a rule of one's own
@pytest.mark.parametrize("task", TASKS)
def test_a_group_is_shown_token_by_token(task, size, capsys):
    """The advantage of another token, two numbers without a space between them, or a line that
    wraps with the longest responses there are.
    """
    p = TASKS[task].longest
    cut_off = "," * len(p.solution + EOS)
    x = made_up([p], [[cut_off, p.solution + EOS]], [[0.0, 1.0]])
    x.A *= size
    train.show_group(x)
    title, *shown = capsys.readouterr().out.splitlines()[1:]
    assert p.prompt.replace(" ", "") in title and max(map(len, shown)) <= 100
    half = len(shown) // 2
    for i, lines in {1: shown[:half], 0: shown[half:]}.items():
        assert lines[0] == f"reward {i}"
        tokens = "".join(line[5::6] for line in lines[1::2])
        assert tokens == [cut_off, p.solution + EOS][i]
        read = []
        for cell in " ".join(lines[2::2]).split():
            read.append(read[-1] if cell == "." else float(cell))
        assert "-0.0" not in " ".join(lines).split()
        assert read == pytest.approx(x.A[0, i].tolist(), abs=0.051)


def test_the_group_that_is_shown_is_nearest_to_half_correct(capsys):
    """A group or a response that shows less than another; padding. Or a traceback without one."""
    problems = [problem(ADD, [99, n], 2) for n in (11, 22, 33)]
    groups = [["#1$", "#2$", "#3$", "#1234$"]] * 3
    x = made_up(problems, groups, [ONE, PASS, [0.0, 1.0, 0.0, 1.0]])
    x.A[2, 1:3] *= 3  # the advantages of these two differ most
    train.show_group(x)
    _, title, right, text, A, wrong, other, _ = capsys.readouterr().out.splitlines()
    assert title.startswith("2 of 4 responses to 99+33=") and (right, wrong) == (
        "reward 1",
        "reward 0",
    )
    assert text.split() == ["#", "2", "$"] and len(A) == len(text)
    assert other.split() == ["#", "3", "$"]
    train.show_group(made_up(problems, groups, [FAIL, PASS, FAIL]))
    _, title, reward, *_ = capsys.readouterr().out.splitlines()
    assert title.startswith("0 of 4 responses to 99+11=") and reward == "reward 0"


def test_every_row_is_there_at_once_in_a_pipe():
    """Output waits in a buffer, so who looks at a long run, or stops it, sees nothing."""
    flags = "--steps 100000 --every 1 --layers 1 --width 4 --prompts 1 --group-size 2 --out out"
    code = "import sys, train; train.warm_up = lambda *given: (0, 1.0); train.main(sys.argv[1:])"
    environment = {x: y for x, y in os.environ.items() if x != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = str(Path(train.__file__).parent)
    command = [sys.executable, "-c", code, *flags.split()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("   2 ") for line in lines)
        process.kill()


def test_a_run_without_steps_and_with_a_tilde(monkeypatch, tmp_path, capsys):
    """A traceback where a group of the last step should be shown, or a folder that is called ~."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    train.main([*SMALL, "--steps", "0", "--out=~/runs"])
    assert [*(tmp_path / "home" / "runs").glob("*/summary.json")] and not Path("~").exists()
    assert "tools.ask" in capsys.readouterr().out


def test_a_task_and_a_variant_of_ones_own(monkeypatch, capsys):
    """A traceback where a student's first task or variant should run: they have no texts, and the
    task has one held-out problem, which is never solved. Or a command that does not know the task.
    """
    make = lambda *given: ADD.make(*given)  # noqa: E731
    mine = train.Task(make, ADD.answer_from, range(2, 3), share=0.0)
    monkeypatch.setitem(TASKS, "mine", mine)
    monkeypatch.setitem(VARIANTS, "grpo", lambda rollout: rollout.rewards)
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: 0.0)
    usual = train.make_problems
    one = lambda task, held: usual(task, held)[: 1 if held else None]  # noqa: E731
    monkeypatch.setattr(train, "make_problems", one)
    _, summary, _ = run("--task mine")
    assert summary["final_greedy_by_level"] == {"2": 0.0}
    assert summary["final_greedy"] == summary["final_greedy_reasoning_correct"] == 0.0
    screen = capsys.readouterr().out
    assert screen.startswith("Task mine: A task of your own.\n") and "tools.ask" not in screen


def test_a_run_in_a_terminal_shows_its_bars(monkeypatch):
    """A traceback in a terminal only; a bar without the variant or the step, or one that stays."""
    bar = partial(train.tqdm, mininterval=0)  # draws every step
    bar.write = train.tqdm.write
    monkeypatch.setattr(train, "tqdm", bar)
    monkeypatch.setattr(sys, "stderr", StringIO())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    run("--variant nthr --steps 3")
    drawn = sys.stderr.getvalue().split("\r")
    for bar in (r"warm-up: +1%\|.* 19/2000 \[", r"nthr: +67%\|.* 2/3 \[", r"nthr: 100%\|.* 3/3 \["):
        assert any(re.match(bar, x) for x in drawn), bar
    assert not drawn[-1] and not drawn[-2].strip()


def test_help_fits_100_columns_and_has_every_flag_default_and_idea(monkeypatch, capsys):
    """A list that is wider than a terminal; a flag without its default, a variant without its idea.
    Or `python train.py` does not read the command line.
    """
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "argv", ["train.py", "--help"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(train.__file__, run_name="__main__")
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert stop.value.code == 0 and max(map(len, lines)) <= 100 and len(lines) <= 58
    said = " ".join(text.split()).split(" names (")[0]
    for name, value in vars(train.parse_arguments([])).items():
        flag = name.replace("_", "-")
        default = re.escape(f"(default: {value})")
        settings = ("name", "loss_type", "cull", "save")  # without a flag
        assert name in settings or re.search(rf" --{flag} [^()]*{default}", said), flag
    for name, variant in VARIANTS.items():
        idea = getdoc(variant).splitlines()[0]
        assert len(idea) <= 84 and idea.endswith(".")
        assert [line for line in lines if line.split()[:1] == [name]] == [f"  {name:13}{idea}"]


# ---- Bad input: one line on standard error, and nothing written or changed
BAD = {  # the smallest value of these flags that is allowed, and others that are not
    "steps seed base-seed": (0, "-1 ² 1.5"),
    "prompts minibatches layers every": (1, "0 1.5 nan"),
    "group-size": (2, "1"),
    "temperature": (1e-6, "0.9e-6 0 nan inf -inf x"),
    "lr max-grad-norm": (1e-12, "0.9e-12 0 nan inf -inf x"),
    "clip-low clip-high kl": (0.0, "-0.001 nan inf -inf x"),
    "variant task device aggregate width": (None, "wall GRPO Token cuda:99 2 6"),
}


@pytest.mark.parametrize("flags", BAD)
def test_bad_arguments_are_refused(flags):
    """A limit that is one off or another flag's. Or a bad value ends in a traceback or a message
    without what is allowed, or is noticed after something was written.
    """
    smallest, bad = BAD[flags]
    for flag in flags.split():
        if smallest is not None:
            args = train.parse_arguments([f"--{flag}={smallest}"])
            assert getattr(args, flag.replace("-", "_")) == smallest
        allowed = "choose from|invalid int value"
        allowed = allowed if smallest is None else rf"must be {smallest:g} |invalid .* value"
        for value in [*bad.split(), ""]:
            assert re.search(rf" --{flag}: .*({allowed})", refused(f"--{flag}={value}"))


def test_a_variant_has_its_own_settings():
    """The settings of another variant, or a limit that is ignored."""
    args = train.parse_arguments("--variant gspo --clip-low 0.3".split())
    own = (args.loss_type, args.aggregate, args.clip_low, args.clip_high)
    assert own == ("gspo", "response", 0.3, 0.04)
    assert train.parse_arguments(["--variant", "culling"]).cull
    assert "--clip-low: cispo has no lower limit" in refused("--variant cispo --clip-low 0.9")
