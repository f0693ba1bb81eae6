"""Whole runs: what they leave, what they share, what each setting reaches, what is printed."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import advantages
import grpo
import train
from advantages import LOSS, VARIANTS
from conftest import read_metrics
from tasks import ADD, TASKS
from test_grpo import problem

FILES = {"config.json", "metrics.csv", "model.pt", "summary.json", "tokenizer.json"}
MEASURED = """accuracy accuracy_sampled accuracy_sampled_by_level
    accuracy_sampled_steps_correct""".split()
METRICS = """step reward all_fail all_pass entropy length coherence steps_correct mean_abs_advantage
    loss grad_norm clip_fraction approx_kl seconds""".split()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_and_task_leaves_the_same_files(variant, task, run, folder, capsys):
    """A variant or task that was never run, or a file or column that only some have."""
    arguments = f"--variant {variant} --task {task} --seed 3"
    assert run(arguments) == 0
    done = folder(arguments)
    assert {path.name for path in done.iterdir()} == FILES
    rows = read_metrics(done)
    header = (done / "metrics.csv").read_text().split("\n")[0].strip().split(",")
    assert header == METRICS + MEASURED
    for number, row in enumerate(rows):
        assert all(math.isfinite(float(x)) for text in row.values() for x in text.split())
        assert [name for name in row if not row[name]] == (MEASURED if number == 0 else [])
    summary = json.loads((done / "summary.json").read_text())
    assert [summary[x] for x in ("variant", "task", "seed", "steps")] == [variant, task, 3, 2]
    assert str(summary["final_accuracy"]) == rows[1]["accuracy"]
    for name in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        by_level = summary[f"{name}_by_level"]
        assert list(by_level) == [str(level) for level in TASKS[task].levels]
        assert summary[name] == pytest.approx(sum(by_level.values()) / len(by_level))
    shares = [float(share) for share in rows[1]["accuracy_sampled_by_level"].split()]
    assert sum(shares) / len(shares) == pytest.approx(float(rows[1]["accuracy_sampled"]))
    config = json.loads((done / "config.json").read_text())
    assert (config["variant"], config["seed"], config["lr"]) == (variant, 3, 3e-4)
    assert "final_sampled: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["--variant critic", "--variant nthr --kl 0.1"])
def test_the_same_seed_gives_the_same_metrics(arguments, run, out, folder):
    """Randomness that no seed decides, or a run that sees what an earlier one left in memory."""
    runs = []
    for seed in (0, 0, 1):
        assert run(f"{arguments} --seed {seed}") == 0
        runs.append(read_metrics(folder(f"{arguments} --seed {seed}")))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_a_folder_names_what_differs_from_the_defaults():
    """A run with another setting that silently replaces an earlier one."""
    names = {
        "": "add-grpo-seed0",
        "--variant nthr --task mul --seed 7": "mul-nthr-seed7",
        "--minibatches 1 --lr 0.001": "add-grpo-seed0-lr0.001-minibatches1",
        "--threads 2 --device cpu --out elsewhere": "add-grpo-seed0",
        "--variant ngrpo --clip-low 0.16": "add-ngrpo-seed0",  # its own default
        "--variant ngrpo --clip-low 0.2": "add-ngrpo-seed0-clip_low0.2",
        "--variant dr_grpo --aggregate token": "add-dr_grpo-seed0-aggregatetoken",
    }
    for arguments, name in names.items():
        assert train.parse_arguments(arguments.split()).name == name
    other = "--steps 3|--prompts 2|--group-size 2|--temperature 0.5|--lr 1|--minibatches 2|--kl 1"
    other += (
        "|--clip-low 0.1|--clip-high 0.1|--aggregate response|--base-seed 1|--layers 1|--width 8"
    )
    assert len({train.parse_arguments(flags.split()).name for flags in other.split("|")}) == 13


def test_the_base_model_is_made_once(base, run, folder, tmp_path, monkeypatch):
    """Variants that start from different weights; a run of no steps that fails, or trains."""
    new = tmp_path / "out"
    runs = ("--steps 0 --seed 7 --variant nthr", "--steps 0 --seed 8")
    assert run(runs[0]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(train, "warm_up", None)  # a second warm-up would fail
        assert run(runs[1]) == 0
    folders = [next(base.parent.glob("add-grpo-seed0*")), *map(folder, runs)]
    first, *others = [torch.load(path / "model.pt", weights_only=True) for path in folders]
    assert all(torch.equal(first[name], weights[name]) for weights in others for name in first)
    assert {path.name for path in folders[1].iterdir()} == FILES
    summary = json.loads((folders[1] / "summary.json").read_text())
    assert summary["final_sampled_by_level"] == summary["base_sampled_by_level"]
    for settings in ("--base-seed 1", "--width 8", "--layers 2", "--task mul"):
        assert run(f"--steps 0 {settings}") == 0
    assert len(list(new.glob("*.pt"))) == 5
    read_text = Path.read_text
    changed = lambda path: read_text(path) + "#" * (path.name == "tasks.py")  # noqa: E731
    monkeypatch.setattr(Path, "read_text", changed)
    assert run("--steps 0") == 0  # a learner has edited a task: its base model is another one
    assert len(list(new.glob("*.pt"))) == 6


def test_variants_see_the_same_problems(loop):
    """Variants with one seed that are compared on other problems, or in another order."""
    seen = {}
    for arguments in ("--variant grpo", "--variant critic", "--variant likelihood", "--seed 1"):
        _, steps = loop(f"--steps 5 --prompts 32 {arguments}")
        seen[arguments] = [problem for rollout, *_ in steps for problem in rollout.problems]
    assert seen["--variant grpo"] == seen["--variant critic"] == seen["--variant likelihood"]
    assert seen["--variant grpo"] != seen["--seed 1"]
    assert {*seen["--variant grpo"]} <= {*train.make_problems(ADD, held=False)}


@pytest.mark.parametrize("solved, left", [(4, {5}), (9, {2, 3, 4, 5})])
def test_culling_drops_solved_prompts_and_keeps_its_budget(solved, left, loop, monkeypatch):
    """A batch that shrinks with the pool: the budget goes with the prompts that are solved."""
    sample = train.sample_rollout

    def sample_rollout(*given, **options):
        rollout = sample(*given, **options)
        levels = torch.tensor([problem.level for problem in rollout.problems])
        # A prompt is solved if one of its groups is all-pass: here only its last one is.
        last = [p not in rollout.problems[i + 1 :] for i, p in enumerate(rollout.problems)]
        passed = (levels <= solved) & torch.tensor(last)
        rollout.rewards = passed.float()[:, None].expand(rollout.rewards.size())
        return rollout

    _, steps = loop("--variant culling --steps 3 --prompts 1500 --group-size 2")
    monkeypatch.setattr(train, "sample_rollout", sample_rollout)
    batches = [rollout.problems for rollout, *_ in steps]
    assert [len(batch) for batch in batches] == [1500] * 3
    assert {p.level for p in batches[0]} == {2, 3, 4, 5}
    # 1,500 draws have all of the 150 problems or nearly; if all are solved, all come again.
    later = [p for batch in batches[1:] for p in batch if p in batches[0]]
    assert {p.level for p in later} == left


def test_what_reaches_the_update(loop, monkeypatch):
    """A setting that is read and then forgotten, or the wrong reference, clip range or schedule."""
    calls = []

    def update(model, optimizer, rollout, advantages, *options):
        calls.append([optimizer.param_groups[0]["lr"], rollout, *options])
        return {"loss": 0.0}

    monkeypatch.setattr(train, "update", update)
    model, steps = loop("--steps 20 --lr 0.5 --kl 0.25 --minibatches 3 --temperature 0.7")
    assert ["accuracy" in row for *_, row in steps] == [False] * 19 + [True]
    rates = [0.5 * min((step + 1) / 10, (20 - step) / 20) for step in range(20)]
    assert [call[0] for call in calls] == pytest.approx(rates)
    rollout = calls[0][1]
    assert rollout.temperature == 0.7
    assert rollout.max_length == len(ADD.longest.solution) + 1
    # The reference is the base model, which samples here, for nothing is learned.
    torch.testing.assert_close(rollout.reference_logprobs, rollout.logprobs, atol=1e-4, rtol=0)
    assert calls[0][2:] == [3, 0.25, (0.2, 0.2), "token"]
    for variant in VARIANTS:
        own = {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "token"} | LOSS.get(variant, {})
        given = {"clip_low": 0.05, "aggregate": "response"}
        for flags, o in (("", own), ("--clip-low 0.05 --aggregate response", own | given)):
            calls.clear()
            list(loop(f"--steps 1 --variant {variant} {flags}")[1])
            assert calls[0][2:] == [4, 0.0, (o["clip_low"], o["clip_high"]), o["aggregate"]]


def test_the_warm_up(monkeypatch):
    """A warm-up that never ends or ends at once, another rate, levels otherwise than stated."""
    rates = []
    step = lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"])  # noqa: E731
    monkeypatch.setattr(train, "descend", step)
    drawn = []
    cross_entropy = torch.nn.functional.cross_entropy

    def watched(logits, targets, ignore_index):
        drawn.extend((targets != ignore_index).sum(1).tolist())
        return cross_entropy(logits, targets, ignore_index=ignore_index)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", watched)
    model = train.new_model(train.parse_arguments("--width 8 --device cpu".split()))
    given = [0.1 * n for n in range(60)]
    assert train.warm_up(model, ADD, 2.0, 2.0, 0, given) == 60
    assert rates == given
    lengths = [len(problem(ADD, [10**n - 1] * 2, n).solution) + 1 for n in (4, 5)]  # EOS included
    counts = [drawn.count(length) for length in lengths]
    assert 1.6 < counts[1] / counts[0] < 2.5  # a level comes twice as often as the one below
    assert train.warm_up(model, ADD, 0.0, 1.0, 0, given) == 20


@pytest.mark.parametrize("variant, function", [("grpo", "standardise"), ("critic", "critic_loss")])
@pytest.mark.parametrize("second, status, said", [(math.nan, 1, "step 2: "), (0, 130, "Ctrl-C")])
def test_a_run_that_stops(
    second, status, said, variant, function, run, out, folder, capsys, monkeypatch
):
    """NaN in every weight, a traceback, a lost row, a summary.json of a run that did not end."""
    arguments = f"--variant {variant}"
    assert run(arguments) == 0  # an earlier run must not look like this one
    owner = train if function == "critic_loss" else advantages
    original = getattr(owner, function)
    factors = iter([1.0, second])

    def failing(*given):
        factor = next(factors)
        if factor == 0:  # stands for Ctrl-C
            raise KeyboardInterrupt
        return factor * original(*given)

    monkeypatch.setattr(owner, function, failing)
    assert run(arguments) == status
    assert said in capsys.readouterr().err
    assert len(read_metrics(folder(arguments))) == 1
    assert not (folder(arguments) / "summary.json").exists()


@pytest.mark.parametrize("name", ["base", "config.json", "model.pt", "summary.json"])
def test_a_run_that_is_killed_while_it_writes(name, run, folder, tmp_path, monkeypatch):
    """Half a file under its own name, or a summary.json beside it: a study would count the run."""
    replace = Path.replace

    def killed(part, path):
        if path.name.startswith(name):
            part.write_bytes(part.read_bytes()[:100])
            raise GeneratorExit  # which nothing catches
        return replace(part, path)

    with monkeypatch.context() as patch, pytest.raises(GeneratorExit):
        patch.setattr(Path, "replace", killed)
        run()
    left = [path for path in tmp_path.rglob("*.*") if path.is_file() and path.suffix != ".part"]
    left = {path.name.split("-")[0] for path in left}
    order = ["base", "config.json", "metrics.csv", "model.pt", "tokenizer.json", "summary.json"]
    assert left == set(order[: order.index(name)])
    assert run() == 0  # the same command, run again to its end
    assert {path.name for path in folder().iterdir()} == FILES


def test_the_report_marks_what_is_pushed(capsys):
    """A variant whose effect on the tokens cannot be seen; a group with nothing to compare."""
    problems = [problem(ADD, [33, 99], 2), problem(ADD, [44, 88], 2)]
    texts = [["1"] * 4, ["12,13#132", "1_", "", "12"]]
    rewards = torch.tensor([[0.0] * 4, [1.0, 0.0, 0.0, 1.0]])
    rollout = grpo.Rollout(*[rewards] * 6, problems=problems, texts=texts)
    A = np.resize([2.0, 1.0, 0.1, 0.0, -0.1, -1.0, -2.0, 1.2, -1.2, 2.0], (2, 4, 10))
    train.report(rollout, torch.tensor(A))
    group, mistakes = capsys.readouterr().out.split("Mistakes in the last step:\n")
    assert "   44+   88=" in group
    assert "\n  12,13#132$\n  *++.--=+-*\n  1_$\n  *++\n  $\n  *\n" in group
    assert mistakes.splitlines()[4] == "     44+   88=1_  correct: 12,13#132"
    train.report(rollout, torch.zeros(2, 4, 10))  # not one advantage
    assert "12,13#132$\n  ..........\n" in capsys.readouterr().out
