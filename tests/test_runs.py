"""Whole runs: what they leave and share, what each setting reaches, how they end, bad input."""

import csv
import json
import math
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import train
from advantages import VARIANTS
from tasks import ADD, TASKS
from test_grpo import close

SMALL = "--layers 1 --width 16 --steps 2 --prompts 8 --group-size 4 --device cpu --out out".split()
STOPS = [(FloatingPointError("NaN"), 1, "step 2: NaN"), (KeyboardInterrupt(), 130, "Ctrl-C")]
FILES = {"config.json", "metrics.csv", "model.pt", "summary.json", "tokenizer.json"}


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path, tmp_path_factory):
    """A folder with base models in out/. A response is correct if its length is odd."""
    monkeypatch.setattr(train, "WARM_UP", dict.fromkeys(TASKS, (0.0, 1.0)))  # 20 steps
    monkeypatch.setattr(train, "DRAWS", 40)
    monkeypatch.setattr(train.Task, "reward", lambda task, problem, response: len(response) % 2.0)
    monkeypatch.chdir(tmp_path)
    kept = tmp_path_factory.getbasetemp() / "kept"
    if not kept.exists():  # the first test makes them for all
        for task in TASKS:
            train.base_model(train.parse_arguments([*SMALL, "--task", task, "--out", str(kept)]))
    shutil.copytree(kept, "out")


def run(arguments: str = "") -> int:
    """The exit status of a small run, which leaves its files below out/."""
    return train.main(SMALL + arguments.split())


def folder(arguments: str = "") -> Path:
    """That of this small run."""
    return Path("out", train.parse_arguments(SMALL + arguments.split()).name)


def loop(arguments: str):
    """The loop over steps that trains a small base model."""
    args = train.parse_arguments(SMALL + arguments.split())
    return train.train(args, train.base_model(args))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_and_task_leaves_the_same_files(variant, task, capsys):
    """A variant or task that was never run, or a file or column that only some have."""
    arguments = f"--variant {variant} --task {task} --seed 3"
    done = folder(arguments)
    assert run(arguments) == 0
    assert "final_sampled: " in capsys.readouterr().out
    assert {path.name for path in done.iterdir()} == FILES
    first, last = csv.DictReader((done / "metrics.csv").read_text().splitlines())
    assert (first["step"], last["step"]) == ("1", "2")
    assert [name for name in first if not first[name]] == [x for x in last if "accuracy" in x]
    numbers = [x for text in [*first.values(), *last.values()] for x in text.split()]
    assert all(last.values()) and all(math.isfinite(float(x)) for x in numbers)
    config, summary = (json.loads((done / f"{x}.json").read_text()) for x in ("config", "summary"))
    asked = {"variant": variant, "task": task, "seed": 3, "steps": 2, "lr": 3e-4}
    assert asked.items() <= config.items() <= summary.items()
    assert str(summary["final_accuracy"]) == last["accuracy"]
    for name in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        by_level = summary[f"{name}_by_level"]
        assert list(by_level) == [str(level) for level in TASKS[task].levels]
        assert summary[name] == pytest.approx(sum(by_level.values()) / len(by_level))
    shares = [float(share) for share in last["accuracy_sampled_by_level"].split()]
    assert sum(shares) / len(shares) == pytest.approx(float(last["accuracy_sampled"]))


def test_the_base_model_is_made_once(monkeypatch):
    """Variants that start from different weights; a run of no steps that fails, or trains."""
    path = next(Path("out").glob("base-add*"))
    weights = torch.load(path, weights_only=True)[path.name]
    shutil.rmtree("out")  # it is made a second time, and gets the same weights
    for arguments in ("--steps 0 --seed 7 --variant nthr", "--steps 0 --seed 8"):
        assert run(arguments) == 0
        close(torch.load(folder(arguments) / "model.pt", weights_only=True), weights, 0)
        summary = json.loads((folder(arguments) / "summary.json").read_text())
        assert summary["final_sampled_by_level"] == summary["base_sampled_by_level"]
        monkeypatch.setattr(train, "warm_up", lambda *given: 0)  # what is made now has not learned
    for settings in ("--base-seed 1", "--width 8", "--layers 2", "--task mul"):
        loop(settings)
    read_text = Path.read_text
    for name in ("tasks.py", "model.py"):  # a learner edits it: the base model is another one
        monkeypatch.setattr(Path, "read_text", lambda x: read_text(x) + "#" * (x.name == name))
        loop("")
    assert len(list(Path("out").glob("*.pt"))) == 7


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


def test_what_reaches_the_update(monkeypatch):
    """A setting that is read and then forgotten, or the wrong reference, clip range or schedule."""
    update = Mock(return_value={"loss": 0.0})
    monkeypatch.setattr(train, "update", update)
    rates = []
    for rollout, _, row in loop("--steps 20 --lr 0.5 --kl 0.25 --temperature 0.7"):
        rates.append(update.call_args.args[1].param_groups[0]["lr"])
        assert ("accuracy" in row) == (len(rates) == 20)
    assert rates == pytest.approx([0.5 * min(n / 10, (21 - n) / 20) for n in range(1, 21)])
    assert rollout.temperature == 0.7
    assert rollout.max_length == len(ADD.longest.solution) + 1
    # The reference is the base model, which samples here, for nothing is learned.
    close(rollout.reference_logprobs, rollout.logprobs, 1e-4)
    for arguments, options in {
        "--minibatches 3 --kl 0.25": (3, 0.25, (0.2, 0.2), "token"),
        "--variant ngrpo": (4, 0, (0.16, 0.24), "token"),
        "--variant ngrpo --clip-low 0.05 --aggregate response": (4, 0, (0.05, 0.24), "response"),
        "--variant dr_grpo": (4, 0, (0.2, 0.2), "constant"),
        "--variant dr_grpo --clip-high 0.3 --aggregate token": (4, 0, (0.2, 0.3), "token"),
    }.items():
        list(loop(f"--steps 1 {arguments}"))
        assert update.call_args.args[4:] == options


def test_the_warm_up(monkeypatch):
    """A warm-up that never ends or ends at once, another rate, levels otherwise than stated."""
    rates = []
    step = lambda optimizer, loss: rates.append(optimizer.param_groups[0]["lr"])  # noqa: E731
    monkeypatch.setattr(train, "descend", step)
    cross_entropy = Mock(wraps=torch.nn.functional.cross_entropy)
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
    model = train.new_model(train.parse_arguments(SMALL))
    given = [0.1 * n for n in range(60)]
    assert train.warm_up(model, ADD, 2.0, 2.0, 0, given) == 60
    assert rates == given
    targets = torch.cat([call.args[1] for call in cross_entropy.call_args_list])
    counts = (targets != cross_entropy.call_args.kwargs["ignore_index"]).sum(1).bincount()
    # Solutions of level 5 have 22 tokens with EOS, those of level 4 have 18 and come half as often.
    assert 1.6 < counts[22] / counts[18] < 2.5
    assert train.warm_up(model, ADD, 0.0, 1.0, 0, given) == 20


@pytest.mark.parametrize("second, status, said", STOPS)
def test_a_run_that_stops(second, status, said, capsys, monkeypatch):
    """A traceback, a lost row, a summary.json of a run that did not end."""
    assert run() == 0  # an earlier run must not look like this one
    monkeypatch.setattr(train, "update", Mock(side_effect=[{"loss": 0.0}, second]))
    assert run() == status
    assert said in capsys.readouterr().err
    assert len((folder() / "metrics.csv").read_text().splitlines()) == 2  # the header and a row
    assert not (folder() / "summary.json").exists()


@pytest.mark.parametrize("name", ["base", "config.json", "model.pt", "summary.json"])
def test_a_run_that_is_killed_while_it_writes(name, monkeypatch):
    """Half a file under its own name, or a summary.json beside it: a study would count the run."""
    shutil.rmtree("out")  # there is no base model either
    replace = Path.replace

    def killed(part, path):
        if path.name.startswith(name):
            raise GeneratorExit  # which nothing catches
        return replace(part, path)

    with monkeypatch.context() as patch, pytest.raises(GeneratorExit):
        patch.setattr(Path, "replace", killed)
        run()
    names = [path.name for path in [*Path("out").glob("base*"), *folder().glob("*")]]
    left = {name.split("-")[0] for name in names if not name.endswith(".part")}
    order = ["base", "config.json", "metrics.csv", "model.pt", "tokenizer.json", "summary.json"]
    assert left == set(order[: order.index(name)])


# ---- Bad input: one line on standard error, exit status 2, and nothing written or changed
BAD = {  # flags: values; an empty value is bad for all
    "variant task device aggregate nope": "wall GRPO Token cuda:99",
    "steps prompts group-size minibatches seed base-seed layers width threads": "-1 2.5 two",
    "prompts minibatches layers threads lr temperature": "0",
    "group-size": "1",
    "width": "6 17592186044416",
    "steps seed": "nan 1e3 ² 99999999999999999999",
    "temperature lr clip-low clip-high kl": "-0.1 nan inf -inf x",
    "clip-low": "1.1",
}
VALID = {"variant": "nthr", "task": "mul", "device": "cpu", "aggregate": "response"}


def refused(arguments: str, capsys) -> str:
    """The line on standard error."""
    capsys.readouterr()
    before = {path: path.is_dir() or path.read_bytes() for path in Path().rglob("*")}
    assert run(arguments) == 2
    assert {path: path.is_dir() or path.read_bytes() for path in Path().rglob("*")} == before
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1), printed.err
    return printed.err


@pytest.mark.parametrize("flags", BAD)
def test_bad_arguments_are_refused(flags, capsys):
    """A traceback, a message without the valid choices, work before the check."""
    for flag in flags.split():
        for value in [*BAD[flags].split(), ""]:
            error = refused(f"--{flag} {value}", capsys)
            assert flag in error and (value == "" or VALID.get(flag, "") in error)


def test_damaged_base_models_are_refused(capsys):
    """Training on foreign or broken weights, or overwriting a file that cannot be read."""
    assert run() == 0  # a finished run, which must stay as it is
    path = next(Path("out").glob("base-add*"))
    weights = torch.load(path, weights_only=True)[path.name]
    nan = weights | {"embed_token.weight": weights["embed_token.weight"] * math.nan}
    missing = dict([*weights.items()][1:])
    for damaged in ({path.name: nan}, {path.name: missing}, {"another name": weights}):
        torch.save(damaged, path)
        assert path.name in refused("", capsys)
    path.write_bytes(path.read_bytes()[:9999])
    assert path.name in refused("", capsys)


@pytest.mark.parametrize("out", ["file", "file/below", "out"])
def test_an_output_folder_that_cannot_be_is_refused(out, capsys, monkeypatch):
    """Finding out only after the warm-up."""
    monkeypatch.setattr(train, "warm_up", None)  # calling it is another error
    Path("file").write_text("mine")
    folder().write_text("mine")  # stands where the run's folder would be
    refused(f"--out {out}", capsys)
