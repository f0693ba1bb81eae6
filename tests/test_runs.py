"""Whole runs: what they leave, what they share, what each setting reaches, what is printed."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

import advantages
import grpo
import train
from advantages import LOSS, VARIANTS
from conftest import read_metrics
from tasks import ADD, TASKS

FILES = {"config.json", "metrics.csv", "model.pt", "summary.json", "tokenizer.json"}
METRICS = """step reward all_fail all_pass loss grad_norm clip_fraction approx_kl entropy length
    coherence steps_correct seconds accuracy accuracy_sampled likelihood_change""".split()


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_and_task_leaves_the_same_files(variant, task, run, tmp_path, capsys):
    """A variant or task that was never run, or a file or column that only some have."""
    assert run(f"--variant {variant} --task {task} --seed 3") == 0
    folder = tmp_path / "out" / f"{task}-{variant}-seed3"
    assert {path.name for path in folder.iterdir()} == FILES
    rows = read_metrics(folder)
    header = (folder / "metrics.csv").read_text().split("\n")[0].strip().split(",")
    assert header == train.COLUMNS.split()
    assert header[: len(METRICS)] == METRICS
    for number, row in enumerate(rows):
        texts = [text for name, text in row.items() if name != "likelihood_change"]  # may be NaN
        assert all(math.isfinite(float(value)) for text in texts for value in text.split())
        empty = {name for name in METRICS if not row.get(name, "seconds")}
        assert empty == (set(METRICS[-3:]) if number == 0 else set())  # not measured there
        assert bool(row["mean_abs_bias"]) == (variant == "critic")
    summary = json.loads((folder / "summary.json").read_text())
    assert [summary[x] for x in ("variant", "task", "seed", "steps")] == [variant, task, 3, 2]
    assert str(summary["final_accuracy"]) == rows[1]["accuracy"]
    for name in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        by_level = summary[f"{name}_by_level"]
        assert list(by_level) == [str(level) for level in TASKS[task].levels]
        assert summary[name] == pytest.approx(sum(by_level.values()) / len(by_level))
    shares = [float(share) for share in rows[1]["accuracy_by_level"].split()]
    assert shares == list(summary["final_accuracy_by_level"].values())
    config = json.loads((folder / "config.json").read_text())
    assert (config["variant"], config["seed"], config["lr"]) == (variant, 3, 3e-4)
    assert "final_sampled: " in capsys.readouterr().out


@pytest.mark.parametrize("arguments", ["--variant critic", "--variant nthr --kl 0.1"])
def test_the_same_seed_gives_the_same_metrics(arguments, run, out):
    """Randomness that no seed decides, or a run that sees what an earlier one left in memory."""
    runs = []
    for seed in (0, 0, 1):
        assert run(f"{arguments} --seed {seed}") == 0
        runs.append(read_metrics(out / f"add-{arguments.split()[1]}-seed{seed}"))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_base_model_is_made_once(base, run, tmp_path, monkeypatch):
    """Variants that start from different weights; a run of no steps that fails, or trains."""
    new = tmp_path / "out"
    assert run("--steps 0 --seed 7 --variant nthr") == 0
    with monkeypatch.context() as patch:
        patch.setattr(train, "warm_up", None)  # a second warm-up would fail
        assert run("--steps 0 --seed 8") == 0
    folders = (base.parent / "add-grpo-seed0", new / "add-nthr-seed7", new / "add-grpo-seed8")
    first, *others = [torch.load(folder / "model.pt", weights_only=True) for folder in folders]
    assert all(torch.equal(first[name], weights[name]) for weights in others for name in first)
    assert {path.name for path in folders[1].iterdir()} == FILES
    summary = json.loads((folders[1] / "summary.json").read_text())
    assert summary["final_sampled_by_level"] == summary["base_sampled_by_level"]
    for settings in ("--base-seed 1", "--width 8", "--layers 2", "--task mul"):
        assert run(f"--steps 0 {settings}") == 0
    assert len(list(new.glob("*.pt"))) == 5


def test_variants_see_the_same_problems(loop):
    """Variants with one seed that are compared on other problems, or in another order."""
    seen = {}
    for arguments in ("--variant grpo", "--variant critic", "--variant likelihood", "--seed 1"):
        _, steps = loop(f"--steps 5 --prompts 32 {arguments}")  # 80 problems: 3 steps are an epoch
        seen[arguments] = [problem for rollout, *_ in steps for problem in rollout.problems]
    assert seen["--variant grpo"] == seen["--variant critic"] == seen["--variant likelihood"]
    assert seen["--variant grpo"] != seen["--seed 1"]
    problems = train.make_problems(ADD, held=False)
    assert sorted(seen["--variant grpo"][:80]) == sorted(problems)
    assert seen["--variant grpo"][:80] != problems


def test_what_reaches_the_update(loop, monkeypatch):
    """A setting that is read and then forgotten, or the wrong reference, clip range or schedule."""
    calls = []

    def update(model, optimizer, rollout, advantages, **options):
        calls.append(options | {"lr": optimizer.param_groups[0]["lr"], "rollout": rollout})
        return {"loss": 0.0}

    monkeypatch.setattr(train, "update", update)
    model, steps = loop("--steps 20 --lr 0.5 --kl 0.25 --minibatches 3 --temperature 0.7")
    assert ["accuracy" in row for *_, row in steps] == [False] * 19 + [True]
    rates = [0.5 * min((step + 1) / 10, (20 - step) / 20) for step in range(20)]
    assert [call["lr"] for call in calls] == pytest.approx(rates)
    assert (calls[0]["kl"], calls[0]["minibatches"]) == (0.25, 3)
    assert calls[0]["rollout"].temperature == 0.7
    assert calls[0]["reference"] is not model
    assert all(map(torch.equal, calls[0]["reference"].parameters(), model.parameters()))
    for variant in VARIANTS:
        own = {"clip_low": 0.2, "clip_high": 0.2, "aggregate": "token", "reference": None}
        own |= {"max_length": len(ADD.longest.solution) + 1} | LOSS.get(variant, {})
        given = {"clip_low": 0.05, "aggregate": "response"}
        for flags, options in (("", own), ("--clip-low 0.05 --aggregate response", own | given)):
            calls.clear()
            list(loop(f"--steps 1 --variant {variant} {flags}")[1])
            assert calls[0].items() >= options.items()


def test_the_warm_up(monkeypatch):
    """A warm-up that never ends or ends at once, another rate, levels otherwise than stated."""
    prompts = []
    rates = []
    problem = train.Task.problem
    watched = lambda *given: prompts.append(problem(*given)) or prompts[-1]  # noqa: E731
    monkeypatch.setattr(train.Task, "problem", watched)
    step = lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"])  # noqa: E731
    monkeypatch.setattr(train, "descend", step)
    monkeypatch.setattr(train, "make_problems", lambda *given, **_: [ADD.longest])
    model = train.new_model(train.parse_arguments("--width 8 --device cpu".split()))
    given = [0.1 * n for n in range(60)]
    assert train.warm_up(model, ADD, 2.0, 2.0, 0, given) == 60
    assert rates == given
    counts = [sum(p.level == level for p in prompts) for level in (4, 5)]
    assert 1.6 < counts[1] / counts[0] < 2.5  # a level comes twice as often as the one below
    assert train.warm_up(model, ADD, 0.0, 1.0, 0, given) == 20


@pytest.mark.parametrize("solved, left", [(3, [4, 5]), (9, [2, 3, 4, 5])])
def test_solved_problems_leave_after_the_epoch(solved, left, loop, monkeypatch):
    """Culling that drops nothing, unsolved problems, problems of this epoch, or all problems."""
    sample = train.sample_rollout

    def sample_rollout(*given, **options):
        rollout = sample(*given, **options)
        levels = torch.tensor([problem.level for problem in rollout.problems])
        rollout.rewards = (levels <= solved).float()[:, None].expand(rollout.rewards.size())
        return rollout

    _, steps = loop("--variant culling --steps 3 --prompts 40")
    monkeypatch.setattr(train, "sample_rollout", sample_rollout)
    levels = [[problem.level for problem in rollout.problems] for rollout, *_ in steps]
    assert sorted(levels[0] + levels[1]) == sorted([2, 3, 4, 5] * 20)
    assert sorted(set(levels[2])) == left  # if all are solved, it goes on with what it has


@pytest.mark.parametrize("variant, function", [("grpo", "standardise"), ("critic", "critic_loss")])
@pytest.mark.parametrize("second, status, said", [(math.nan, 1, "step 2: "), (0, 130, "Ctrl-C")])
def test_a_run_that_stops(second, status, said, variant, function, run, out, capsys, monkeypatch):
    """NaN in every weight, a traceback, a lost row, a summary.json of a run that did not end."""
    assert run(f"--variant {variant}") == 0  # an earlier run must not look like this one
    owner = train if function == "critic_loss" else advantages
    original = getattr(owner, function)
    factors = iter([1.0, second])

    def failing(*given):
        factor = next(factors)
        if factor == 0:  # stands for Ctrl-C
            raise KeyboardInterrupt
        return factor * original(*given)

    monkeypatch.setattr(owner, function, failing)
    assert run(f"--variant {variant}") == status
    assert said in capsys.readouterr().err
    assert len(read_metrics(out / f"add-{variant}-seed0")) == 1
    assert not (out / f"add-{variant}-seed0" / "summary.json").exists()


@pytest.mark.parametrize("name", ["base", "config.json", "model.pt", "summary.json"])
def test_a_run_that_is_killed_while_it_writes(name, run, tmp_path, monkeypatch):
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
    left = {path.name.split("-")[0] for path in tmp_path.rglob("*.*") if path.suffix != ".part"}
    order = ["base", "config.json", "metrics.csv", "model.pt", "tokenizer.json", "summary.json"]
    assert left == set(order[: order.index(name)])
    assert run() == 0  # the same command, run again to its end
    assert {path.name for path in (tmp_path / "out" / "add-grpo-seed0").iterdir()} == FILES


def test_the_report(capsys, monkeypatch):
    """A group with nothing to compare, pages of mistakes, escape sequences in a log file."""
    problems = [ADD.write([33, 99], 2), ADD.write([44, 88], 2)]
    texts = [["1"] * 4, ["12,13#132", "1<pad>", "", "12"]]
    rewards = torch.tensor([[0.0] * 4, [1.0, 0.0, 0.0, 1.0]])
    rollout = grpo.Rollout(*[rewards] * 6, problems=problems, texts=texts)
    A = torch.tensor([1.0, -1.0, -1.0, 1.0])[None, :, None].expand(2, 4, 10)
    train.report(rollout, A)
    group, mistakes = capsys.readouterr().out.split("Mistakes in the last step:\n")
    assert "   44+   88= ($ is the end):\n  +1.00 12,13#132$\n  -1.00 1_$\n" in group
    assert mistakes.splitlines()[4] == "     44+   88=1<pad>  correct: 12,13#132"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert train.coloured("1", -5.0) == "\x1b[30;48;2;255;100;100m1\x1b[0m"
