"""Whole runs: what they leave, what they share, what each setting reaches, what is printed."""

import json
import math
import sys
from pathlib import Path

import pytest
import torch
from crash import FILES, read_metrics

import grpo
import tasks
import train
from advantages import LOSS, VARIANTS
from grpo import Rollout, answer_likelihood
from train import TASKS, TOKENIZER

METRICS = """step reward all_fail all_pass loss grad_norm clip_fraction approx_kl entropy length
    coherence seconds accuracy likelihood_change accuracy_by_level""".split()
SUMMARY = """variant task seed steps base_accuracy final_accuracy base_sampled final_sampled
    base_accuracy_by_level final_accuracy_by_level base_sampled_by_level final_sampled_by_level
    seconds seconds_per_step""".split()
WHERE_EVALUATED = ["accuracy", "likelihood_change", "accuracy_by_level"]


def rollout_of(problems, rewards, texts) -> Rollout:
    """As much of a rollout as the report and answer_likelihood read: what was said, in words."""
    rewards = torch.tensor(rewards)
    mask = torch.zeros(*rewards.size(), 1, dtype=torch.bool)
    return Rollout(mask, mask, rewards, mask, mask, mask, problems=problems, texts=texts)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_leaves_the_same_files(variant, base, run, out, capsys):
    """A variant that was never run, or a file or column that only some variants have."""
    assert run(f"--variant {variant} --seed 3") == 0
    folder = out / f"sum-{variant}-seed3"
    assert {path.name for path in out.iterdir()} == {base.name, folder.name}
    assert {path.name for path in folder.iterdir()} == FILES
    assert (out / base.name).read_bytes() == base.read_bytes()

    header = (folder / "metrics.csv").read_text().split("\n")[0].strip().split(",")
    assert header == train.COLUMNS.split()
    assert header[: len(METRICS)] == METRICS
    rows = read_metrics(folder / "metrics.csv")
    assert [row["step"] for row in rows] == ["1", "2"]
    for row in rows:
        texts = [text for name, text in row.items() if name != "likelihood_change"]  # may be NaN
        assert all(math.isfinite(float(value)) for text in texts for value in text.split())
        assert all(row[name] for name in METRICS if name not in ["seconds", *WHERE_EVALUATED])
        assert bool(row["mean_abs_bias"]) == (variant == "critic")
    levels = TASKS["sum"].levels
    assert [rows[0][name] for name in WHERE_EVALUATED] == ["", "", ""]
    assert len(rows[1]["accuracy_by_level"].split()) == len(levels)

    summary = json.loads((folder / "summary.json").read_text())
    assert set(summary) == set(SUMMARY)
    assert [summary[name] for name in SUMMARY[:4]] == [variant, "sum", 3, 2]
    assert str(summary["final_accuracy"]) == rows[1]["accuracy"]
    for name in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        by_level = summary[f"{name}_by_level"]
        assert list(by_level) == [str(level) for level in levels]
        assert summary[name] == pytest.approx(sum(by_level.values()) / len(levels))
    config = json.loads((folder / "config.json").read_text())
    assert (config["variant"], config["seed"], config["lr"]) == (variant, 3, 4e-4)
    assert "Before: " in capsys.readouterr().out


@pytest.mark.parametrize("task", TASKS)
def test_every_task_runs(task, run, tmp_path):
    """A task that was never run; a full response without a marker, for which no column is left."""
    assert run(f"--task {task} --variant likelihood") == 0
    folder = tmp_path / "out" / f"{task}-likelihood-seed0"
    assert {path.name for path in folder.iterdir()} == FILES
    model = train.new_model(train.parse_arguments(["--task", task, "--device", "cpu"]))
    longest = TASKS[task].longest
    rollout = rollout_of([longest], [[0.0]], [["1" * (len(longest.solution) + 1)]])
    rollout.prompts = grpo.encode(TOKENIZER, [longest.prompt], "cpu")
    rollout.tokenizer = TOKENIZER
    assert 0 < answer_likelihood(model, rollout).item() < 1


@pytest.mark.parametrize("arguments", ["--variant critic", "--variant nthr --kl 0.1"])
def test_the_same_seed_gives_the_same_metrics(arguments, run, out):
    """Randomness that no seed decides, or a run that sees what an earlier one left in memory."""
    runs = []
    for seed in (0, 0, 1):
        assert run(f"{arguments} --seed {seed}") == 0
        runs.append(read_metrics(out / f"sum-{arguments.split()[1]}-seed{seed}" / "metrics.csv"))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_the_base_model_is_made_once(base, run, tmp_path, monkeypatch):
    """Variants that start from different weights; a run of no steps that fails, or trains."""
    new = tmp_path / "out"
    assert run("--steps 0 --seed 7 --variant nthr") == 0
    with monkeypatch.context() as patch:
        patch.setattr(train, "warm_up", None)  # a second warm-up would fail
        assert run("--steps 0 --seed 8") == 0
    folders = (base.parent / "sum-grpo-seed0", new / "sum-nthr-seed7", new / "sum-grpo-seed8")
    first, *others = [torch.load(folder / "model.pt", weights_only=True) for folder in folders]
    for weights in others:
        assert all(torch.equal(first[name], weights[name]) for name in first)
    assert {path.name for path in folders[1].iterdir()} == FILES
    summary = json.loads((folders[1] / "summary.json").read_text())
    assert summary["final_sampled_by_level"] == summary["base_sampled_by_level"]
    for number, settings in enumerate(["--base-seed 1", "--width 8", "--layers 2", "--task wall"]):
        assert run(f"--steps 0 {settings}") == 0
        assert len(list(new.glob("*.pt"))) == number + 2, settings


def test_variants_see_the_same_problems(loop):
    """Variants with one seed that are compared on other problems, or in another order."""
    seen = {}
    for arguments in ("--variant grpo", "--variant critic", "--variant likelihood", "--seed 1"):
        _, steps = loop(f"--steps 5 --prompts 32 {arguments}")  # 84 problems: 3 steps are an epoch
        seen[arguments] = [problem for _, rollout, *_ in steps for problem in rollout.problems]
    assert seen["--variant grpo"] == seen["--variant critic"] == seen["--variant likelihood"]
    assert seen["--variant grpo"] != seen["--seed 1"]
    epoch = seen["--variant grpo"][:84]
    problems = train.make_problems(TASKS["sum"], held=False)
    assert sorted(epoch) == sorted(problems)
    assert epoch != problems


@pytest.mark.parametrize("task", TASKS)
def test_no_problem_is_both_trained_on_and_held_out(task, monkeypatch):
    """Accuracy on problems that were trained on; levels that are trained on unlike often."""
    monkeypatch.setattr(train, "TRAIN_SIZE", 840)
    monkeypatch.setattr(train, "HELD_OUT_SIZE", 140)
    levels = TASKS[task].levels
    held = train.make_problems(TASKS[task], held=True)
    assert all(tasks.held_out(problem.prompt) for problem in held)
    assert len({problem.prompt for problem in held}) == len(held)
    assert {problem.level for problem in held} == set(levels)
    problems = train.make_problems(TASKS[task], held=False)
    assert not any(tasks.held_out(problem.prompt) for problem in problems)
    for level in levels:
        expected = 840 // len(levels)
        assert sum(problem.level == level for problem in problems) == expected


def test_what_reaches_the_update(loop, monkeypatch):
    """A setting that is read and then forgotten, or the wrong reference, clip range or schedule."""
    calls = []

    def update(model, optimizer, rollout, advantages, **options):
        calls.append(options | {"lr": optimizer.param_groups[0]["lr"]})
        return {"loss": 0.0}

    monkeypatch.setattr(train, "update", update)
    model, steps = loop("--steps 20 --lr 0.5 --kl 0.25 --minibatches 3 --variant grpo")
    list(steps)
    rates = [0.5 * min((step + 1) / 10, (20 - step) / 20) for step in range(20)]
    assert [call["lr"] for call in calls] == pytest.approx(rates)
    assert (calls[0]["kl"], calls[0]["minibatches"]) == (0.25, 3)
    reference = calls[0]["reference"]
    assert reference is not model
    pairs = zip(reference.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    for variant in VARIANTS | LOSS:
        calls.clear()
        list(loop(f"--steps 1 --variant {variant}")[1])
        assert calls[0]["max_length"] == len(TASKS["sum"].longest.solution) + 1
        given = calls[0].items()
        of_loss = ("clip_low", "clip_high", "aggregate")
        assert {key: value for key, value in given if key in of_loss} == LOSS.get(variant, {})


def test_threads(run, out, monkeypatch):
    """--threads without an effect, or base models that depend on it: the warm-up has one thread."""
    calls = []
    monkeypatch.setattr(torch, "set_num_threads", calls.append)
    monkeypatch.setattr(train, "warm_up", lambda *_: calls.append("warm-up"))
    assert run("--base-seed 1 --threads 3 --steps 0") == 0
    assert calls == [1, "warm-up", 3]


@pytest.mark.parametrize("task", ["sum", "wall"])
def test_what_the_warm_up_shows(task, monkeypatch):
    """A `wall` that is none, held-out problems, a learning rate that never settles."""
    texts = []
    rates = []
    encode = train.encode

    def descend(optimizer, loss):
        rates.append(optimizer.param_groups[0]["lr"] / 2e-3)

    monkeypatch.setattr(train, "encode", lambda *given: texts.extend(given[1]) or encode(*given))
    monkeypatch.setattr(train, "descend", descend)
    model = train.new_model(train.parse_arguments(f"--task {task} --width 8 --device cpu".split()))
    train.warm_up(model, TASKS[task], 5, 0)
    train.warm_up(model, TASKS[task], 5, 0, settle=3)
    assert rates == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])
    prompts = [text.split("=")[0] + "=" for text in texts]
    assert not any(map(tasks.held_out, prompts))
    assert max(prompt.count("+") + 1 for prompt in prompts) == TASKS[task].shown[-1]


@pytest.mark.parametrize(
    "variant, solved, left",
    [("grpo", 4, range(2, 9)), ("culling", 4, range(5, 9)), ("culling", 9, None)],
)
def test_solved_problems_leave_after_the_epoch(variant, solved, left, loop, monkeypatch):
    """Culling that drops nothing, unsolved problems, problems of this epoch, or all problems."""
    sample = train.sample_rollout

    def sample_rollout(*given, **options):
        """Problems up to the level `solved` get correct responses only, the others none."""
        rollout = sample(*given, **options)
        levels = torch.tensor([problem.level for problem in rollout.problems])
        rollout.rewards = (levels <= solved).float()[:, None].expand(rollout.rewards.size())
        return rollout

    monkeypatch.setattr(train, "sample_rollout", sample_rollout)
    _, steps = loop(f"--variant {variant} --steps 4 --prompts 42")
    levels = [[problem.level for problem in rollout.problems] for _, rollout, *_ in steps]
    assert sorted(levels[0] + levels[1]) == sorted([*range(2, 9)] * 12)
    if left is None:  # all are solved: it goes on with what it has
        assert len(levels[2]) > 0 and len(levels[3]) > 0
    else:
        assert sorted(levels[2] + levels[3]) == sorted([*left] * 12)


GOLDEN_COLUMNS = "reward loss grad_norm approx_kl entropy mean_abs_advantage".split()
GOLDEN = {  # the first two steps after a short warm-up
    "--variant nthr": [
        (0.3125, 0.236717, 0.414634, 0.0070907, 2.84669, 0.81088),
        (0.375, 0.202522, 0.511606, 0.00833089, 2.81128, 0.834073),
    ],
    "--kl 0.5 --minibatches 2 --seed 1": [
        (0.40625, 0.162021, 0.283356, 0.00173095, 2.84675, 0.828366),
        (0.40625, 0.154032, 0.263706, 0.00200413, 2.8351, 0.538545),
    ],
}
PINNED = (Path(train.__file__).parent / "requirements.txt").read_text().split()


@pytest.fixture
def float64():
    """A processor that rounds otherwise must still draw the same tokens."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.skipif(
    f"torch=={torch.__version__.split('+')[0]}" not in PINNED,
    reason=f"the numbers are those of the pinned torch; this is {torch.__version__}",
)
@pytest.mark.parametrize("arguments", GOLDEN)
def test_golden_run(arguments, loop, float64):
    """A change of sampling, loss, update or schedule that nobody meant. If meant: new numbers."""
    model, steps = loop(f"--layers 2 --steps 3 --lr 0.05 {arguments}")
    train.warm_up(model, TASKS["sum"], 10, 0)
    rows = [next(steps)[-1] for _ in GOLDEN[arguments]]
    numbers = [tuple(row[name] for name in GOLDEN_COLUMNS) for row in rows]
    for ours, expected in zip(numbers, GOLDEN[arguments]):
        assert ours == pytest.approx(expected, rel=1e-3, abs=1e-7), numbers


def reported(capsys) -> list[str]:
    """What train.report prints about two groups, the second one mixed, and twelve mistakes."""
    add = TASKS["add"]
    problems = [add.write([3, 9], 1), add.write([4, 8], 1)]
    texts = [["1", "2"], ["12#12", "1<pad>"]]
    last = rollout_of(problems, [[0.0, 0.0], [1.0, 0.0]], texts)
    A = torch.tensor([1.0, -1.0])[None, :, None].expand(2, 2, 6)
    held = [add.write([n, 1], 1) for n in range(13)]
    greedy = rollout_of(held, [[1.0]] + [[0.0]] * 12, [["7#7"]] * 13)
    train.report(last, A, greedy)
    return capsys.readouterr().out.splitlines()


def test_the_report(capsys):
    """A report of a group with nothing to compare, of solved problems, or of pages of mistakes."""
    group, mistakes = "\n".join(reported(capsys)).split("Mistakes on held-out problems:\n")
    assert "Last responses to 4+8= ($ ends a response):" in group
    assert "  reward 1, first advantage +1.00: 12#12$" in group
    assert "  reward 0, first advantage -1.00: 1_$" in group
    lines = mistakes.splitlines()
    assert 1 < len(lines) <= 5
    assert lines[0] == "  1+1=7#7  correct: 2#2"


def test_colours_on_a_terminal_only(capsys, monkeypatch):
    """Escape sequences in a log file; red for a positive advantage; a colour without the size."""
    assert "\x1b" not in "".join(reported(capsys))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert "\x1b[30;48;2;178;255;178m1\x1b[0m\x1b" in "".join(reported(capsys))
    assert train.coloured("1", -5.0) == "\x1b[30;48;2;255;100;100m1\x1b[0m"


def test_levels_that_were_not_shown_come_twice_an_epoch(loop):
    """On `wall` the barrier would be a smaller part of what is practised."""
    _, steps = loop("--task wall --prompts 132 --steps 1")
    (_, rollout, _, _) = next(steps)
    levels = [problem.level for problem in rollout.problems]
    assert [levels.count(level) for level in range(2, 9)] == [12] * 3 + [24] * 4


def test_the_tokenizer_reads_characters():
    """A lost character, or padding that is taken for the end, would make other problems."""
    tokenizer = tasks.build_tokenizer()
    text = "12+34=5*6,7#8 90"
    rows = tokenizer.encode_batch([text, "1<eos>"])
    assert [row.tokens for row in rows] == [list(text), ["1", "<eos>", *["<pad>"] * 14]]
    assert rows[1].ids[1:3] == [tokenizer.token_to_id(x) for x in ("<eos>", "<pad>")]
    assert [tokenizer.decode(row.ids) for row in rows] == [text, "1"]
    assert tokenizer.decode(rows[1].ids[:2], skip_special_tokens=False) == "1<eos>"
