"""Without these tests tools.ask and tools.curves could show what a run is not."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import train
from advantages import VARIANTS
from grpo import sample_rollout
from tasks import ADD, MUL, SUM, TASKS
from test_grpo import fewer_problems, ids, tiny_gpt
from tools import ask, curves


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of a small run of two steps, which begins with random weights."""
    fewer_problems(20, monkeypatch)
    monkeypatch.setattr(ask, "make_problems", train.make_problems)
    monkeypatch.setattr(train, "base_model", lambda args: train.new_model(args))
    monkeypatch.chdir(tmp_path)
    train.main("--layers 1 --width 8 --steps 2 --prompts 4 --group-size 2".split())
    (left,) = Path("runs").iterdir()
    return left


def refused(capsys, tool, *argv) -> str:
    """The one line on standard error with which a tool refuses."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        tool.main([*map(str, argv)])
    assert stop.value.code == 2
    out, error = capsys.readouterr()
    assert out == "" and len(error.splitlines()) == 1
    return error


PROBLEMS = [(ADD, "347+285", "  347+  285="), (ADD, " 347 + 285 = ", "  347+  285=")]
PROBLEMS += [(MUL, "347 * 8", "  347*8="), (SUM, "0+0+9", "0+0+9=          ")]
NONE = "|7+8|34+347|123456+654321|34+71+22|034+71|-34+71|3 4 7*285|34+71==|³4+71".split("|")
NONE += ["1" * 5000 + "+" + "2" * 5000]  # int() refuses so many digits
PROBLEMS += [(ADD, text, None) for text in NONE] + [(MUL, "347*1", None), (SUM, "7+8", None)]


@pytest.mark.parametrize("task, text, prompt", PROBLEMS)
def test_what_is_a_problem(task, text, prompt):
    """Another problem than the one that was asked; a space or "=" that is refused; a traceback."""
    problem = ask.asked(task, text)
    assert problem is None if prompt is None else problem.prompt == prompt
    rule = ask.RULES[[name for name in TASKS if TASKS[name] is task][0]]
    assert f"{task.levels[0]} to {task.levels[-1]}" in rule
    assert ask.asked(task, rule.split(" as in ")[1].strip("'"))


def test_an_answer(folder, capsys, monkeypatch):
    """Another model, a reward that is not that of the response, a mistake that is not marked."""
    given = []

    def sample(model, task, problems, *sizes):
        rollout = sample_rollout(model, task, problems, *sizes)
        rollout.texts = [["12,13,06# 632", "12,14,06# 632", "12,13,06# 642", "12"][: sizes[0]]]
        rollout.rewards = torch.tensor([[1.0, 1.0, 0.0, 0.0][: sizes[0]]])
        given.append((model, *sizes))
        return rollout

    monkeypatch.setattr(ask, "sample_rollout", sample)
    capsys.readouterr()
    ask.main([str(folder), "347", "+", "285"])
    head, solution, *lines = capsys.readouterr().out.splitlines()
    assert head == "347+285=" and solution == "  solution  12,13,06# 632"
    assert [line.split("  ")[1].split()[0] for line in lines] == 4 * ["sampled"] + ["greedy"]
    assert "reward 1" in lines[0] and "[" not in lines[0]
    assert "12,[14],06# 632" in lines[1] and "reward 1" in lines[1] and "[13]" in lines[1]
    assert "12,13,06#[ 642]" in lines[2] and "reward 0" in lines[2] and "[ 632]" in lines[2]
    assert "12[]" in lines[3] and "[,]" in lines[3]
    assert [sizes for _, *sizes in given] == [[4, 1.0], [1, 0.0]]
    kept = torch.load(folder / "model.pt", weights_only=True)
    assert all(torch.equal(kept[name], x) for name, x in given[0][0].state_dict().items())


WORK = "12,13#132"  # the steps and the answer of 99+33=


def shown(name: str, texts: list[str], monkeypatch, capsys) -> list[str]:
    """What --group prints for a run of this variant whose model writes these texts."""
    nines = ask.asked(ADD, "99+33")
    model = tiny_gpt()
    args = train.parse_arguments(["--variant", name])

    def sample(model, task, problems, G, temperature, generator):
        group = [ids(text) + ids("$") * 30 for text in texts]
        rows = [iter(group[n % G]) for n in range(len(problems) * G)]
        draw = lambda p, n, generator: torch.tensor([[next(row)] for row in rows])  # noqa: E731
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch, "multinomial", draw)
            rollout = sample_rollout(model, ADD, [nines] * len(problems), G, temperature)
        rollout.rewards[:] = torch.tensor([float(text.endswith("#132")) for text in texts])
        return rollout

    monkeypatch.setattr(ask, "sample_rollout", sample)
    capsys.readouterr()
    ask.show_group(args, model, nines, name)
    return capsys.readouterr().out.splitlines()


TEXTS = [WORK, "12,14#132", "12,13#1", "#", *4 * [WORK]]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_group_shows_how_a_variant_pushes_each_token(name, monkeypatch, capsys):
    """Another response's reward, mistake or push; a token without a push that looks pushed."""
    lines = shown(name, TEXTS, monkeypatch, capsys)
    assert max(map(len, lines)) <= 100
    assert lines[0] == "99+33="
    assert lines[3].startswith("Correct answers: 6 of 8.") and f" {name} (" in lines[4]
    body = [line for line in lines[5:] if line.startswith("  ")]
    responses, marks = body[::2], body[1::2]
    parts = [re.match(r"  (\d) x (.+?)[$]  reward (\d)", line).groups() for line in responses]
    counts, texts, rewards = zip(*parts)
    assert sum(map(int, counts)) == 8
    assert [*rewards] == sorted(rewards, reverse=True)  # correct ones first
    for pushes, said in (line.split(maxsplit=1) for line in marks):
        sizes = [int(n) for n in re.findall(r" on (\d+) token", said)]  # none if there are many
        assert {*pushes} <= {*"+-ud0"} and sum(sizes) in (0, len(pushes))
        if name == "nthr":
            assert sorted(sizes) == sorted(filter(None, map(pushes.count, "+-ud0")))
    if name != "verifree":  # it shows what it trains
        assert texts[0] == WORK and {*texts} == {*TEXTS}
        for text, reward, pushes in zip(texts, rewards, marks, strict=True):
            assert reward == f"{text.endswith('#132'):d}"
            assert len(pushes.split()[0]) == len(text + "$")
    [rewarded] = [line for line in responses if "[14] should be [13], yet rewarded" in line]
    [failed] = [n for n, line in enumerate(responses) if "[1] should be [132]" in line]
    expected = {  # marks of a correct and of an incorrect response, and what is said of the second
        "grpo": ("+" * 10, "-" * 8, "-1.73 on 8 tokens"),
        "half": ("+" * 10, "d" * 8, "-0.87 on 8 tokens"),
        "pos_only": ("+" * 10, "0" * 8, "no push on 8 tokens"),
        "negative": ("+" * 10, "-" * 8, "-1.73 on 8 tokens"),
    }
    if name in expected:
        assert counts == ("5", "1", "1", "1")
        found = (marks[0].split()[0], *marks[failed].split(maxsplit=1))
        assert found == expected[name]


@pytest.mark.parametrize("texts, kind", [([WORK] * 8, "all-pass"), (["#"] * 8, "all-fail")])
def test_a_group_without_a_push_says_why(texts, kind, monkeypatch, capsys):
    """A group of zeros that looks like a fault."""
    lines = shown("grpo", texts, monkeypatch, capsys)
    assert f"The group is {kind}: for grpo no response is better than another." in "\n".join(lines)
    assert "No token is pushed, so this group teaches nothing." in lines
    assert sum(line.startswith("  8 x ") for line in lines) == 1
    assert sum("no push on" in line for line in lines) == 1
    assert "grpo pushes this group" not in "\n".join(lines)
    lines = shown("nthr", texts, monkeypatch, capsys)
    assert "nthr pushes this group as grpo does." in lines
    lines = shown("negative", texts, monkeypatch, capsys)
    assert ("No token is pushed, so this group teaches nothing." in lines) == (kind == "all-pass")
    critic = "\n".join(shown("critic", texts, monkeypatch, capsys))
    assert "as grpo does" not in critic and "teaches nothing" not in critic


@pytest.mark.parametrize("own, p", [("grpo", 2), ("nope", 2), ("pos_only", 2), ("maxrl", 5)])
def test_the_runs_variant_picks_the_group(own, p, folder, monkeypatch, capsys):
    """With --variant, or with the problem that was shown, there are other responses; a group that
    was picked looks like a typical one; a task of one's own has fewer held-out problems.
    """
    summary = folder / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"variant": own}))
    held = train.make_problems(ADD, held=True)
    drawn = []

    def sample(model, task, problems, *sizes, **more):
        rollout = sample_rollout(model, task, problems, *sizes, **more)
        rollout.rewards[:] = 0.0
        rollout.rewards[2, :4] = rollout.rewards[5, 0] = 1.0  # 2 is the most mixed
        drawn[:] = [problem.prompt.replace(" ", "") for problem in problems]
        return rollout

    monkeypatch.setattr(ask, "sample_rollout", sample)
    why = "one that {} pushes most differently from grpo." * (own in ("pos_only", "maxrl"))
    why = why.format(own) or "most mixed one."
    found = []
    for name, *problem in (["half"], ["grpo"], ["half", p]):
        capsys.readouterr()
        problem = [drawn[i] for i in problem]
        ask.main([str(folder), "--group", "--variant", name, *problem])
        prompt, *lines = capsys.readouterr().out.splitlines()
        assert prompt == drawn[p] and len(drawn) == len({*drawn}) == len(held)
        assert (f"Of {len(held)} groups, this is the {why}" in lines) != bool(problem)
        found.append([line for line in lines if "  reward " in line])
    assert found[0] == found[1] == found[2] and len(found[0]) > 1


def test_a_group_of_a_run(folder, capsys):
    """A group that is drawn anew each time; a problem that is not the one that was asked."""
    texts = []
    for argv in (["--group"], ["--group"], ["--group", "--variant", "verifree", "34+71"]):
        capsys.readouterr()
        ask.main([str(folder), *argv])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] and texts[2].startswith("34+71=")
    assert "These texts, with the true answer, are trained." in texts[2]
    assert "--group" in refused(capsys, ask, folder, "34+71", "--variant", "nthr")


def test_what_ask_refuses(folder, capsys):
    """A traceback, a line of thousands of digits, a refusal that does not say what is allowed."""
    error = refused(capsys, ask, folder, "1" * 5000 + "+1")
    assert ask.RULES["add"] in error and len(error) < 200
    assert ask.RULES["add"] in refused(capsys, ask, folder, "34+347")
    assert "python -m tools.ask" in refused(capsys, ask, folder)
    assert "absent is not the folder" in refused(capsys, ask, "absent", "34+71")
    whole = (folder / "summary.json").read_text()
    other = whole.replace('"task": "add"', '"task": "mine"')
    wider = whole.replace('"width": 8', '"width": 16')
    for broken in ("", whole[:100], "[]", "{}", other, wider):
        (folder / "summary.json").write_text(broken)
        error = refused(capsys, ask, folder, "34+71")
        assert "not the folder of a finished run of a known task" in error
    (folder / "summary.json").write_text(whole)
    (folder / "model.pt").write_bytes((folder / "model.pt").read_bytes()[:500])
    assert "not the folder of a finished run" in refused(capsys, ask, folder, "34+71")


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are saved."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    note = lambda self, *to, **how: figures.append(self) or save(self, *to, **how)  # noqa: E731
    monkeypatch.setattr(Figure, "savefig", note)
    return figures


def test_curves_begin_at_step_0(folder, drawn):
    """A curve without its beginning; shares for percent; two runs that cannot be told apart."""
    rows = [*csv.DictReader((folder / "metrics.csv").read_text().splitlines())]
    shutil.copytree(folder, "other")
    curves.main([str(folder), "other"])
    assert Path("curves.png").read_bytes()[:4] == b"\x89PNG"
    (figure,) = drawn
    panels = dict(zip(curves.PANELS, figure.axes))
    for name, ax in panels.items():
        first, second = ax.lines
        steps = [0, 2] if name in ("sampled", "greedy") else [1, 2]
        assert first.get_xdata().tolist() == steps
        scale = 100 if ax.get_title().endswith("%") else 1
        values = [scale * float(row[name]) for row in rows if row[name]]
        assert first.get_ydata().tolist() == pytest.approx(values)
        assert first.get_color() != second.get_color()


def test_the_title_has_the_result_that_the_run_printed(folder, drawn):
    """Another measure than in the last lines of the run, or a result of a run that was stopped."""
    summary = folder / "summary.json"
    whole = json.loads(summary.read_text()) | {"base_sampled": 0.13895, "final_sampled": 0.9556}
    summary.write_text(json.dumps(whole))
    curves.main([str(folder)])
    assert drawn[0].get_suptitle() == f"{folder}: sampled accuracy 13.9% -> 95.6%"
    assert not drawn[0].legends  # it would repeat the title
    for text in ("", "[]", "{}", json.dumps(whole)[:99]):
        summary.write_text(text)
        assert curves.title_of(folder) == f"{folder}: not finished"


def test_what_curves_refuses(folder, monkeypatch, capsys):
    """A traceback where a folder or matplotlib is missing, or the picture has no place."""
    assert "absent is not the folder of a run" in refused(capsys, curves, "absent")
    Path("metrics.csv").mkdir()
    assert "not the folder of a run" in refused(capsys, curves, ".")
    pytest.importorskip("matplotlib")
    for out in ("absent/curves.png", "curves.xyz"):
        assert f"{out} cannot be written" in refused(capsys, curves, folder, "--out", out)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    assert "python -m pip install matplotlib" in refused(capsys, curves, folder)


@pytest.mark.parametrize("name", ["half", "pos_only"])
def test_the_code_of_trainers_gives_these_advantages(name, monkeypatch):
    """What engineers copy into verl or TRL has another factor, mixes groups or is NaN."""
    page = (Path(train.__file__).parent / "tools" / "trainers.md").read_text("utf-8")
    in_trl, in_verl = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    rewards = torch.randint(2, (6, 8)).float()
    rewards[0], rewards[1], rewards[2] = torch.eye(8)[3], 0.0, 1.0
    rollout = SimpleNamespace(rewards=rewards)
    expected = VARIANTS[name](rollout).view(-1, 1)

    class GRPOTrainer:
        def _generate_and_score_completions(self, inputs):
            return {"advantages": VARIANTS["grpo"](inputs).view(-1)}

    found = {}
    core = SimpleNamespace(register_adv_est=lambda key: lambda f: found.setdefault(key, f))
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(GRPOTrainer=GRPOTrainer))
    monkeypatch.setitem(sys.modules, "verl.trainer.ppo.core_algos", core)
    for code in (in_trl, in_verl):  # the comment of a line says what stands there for pos_only
        other = re.sub(r"torch\.where\(A < 0.*?# pos_only: (.*)", r"\1", code)
        exec(code if name == "half" else other, found)
    batch = found["HalfTrainer"]()._generate_and_score_completions(rollout)
    torch.testing.assert_close(batch["advantages"][:, None], expected)

    mask = torch.arange(5) < torch.randint(1, 6, (49, 1))
    mask[48] = False  # verl pads with a row that has a group of its own
    token_level_rewards = torch.zeros(49, 5)
    token_level_rewards[:48, 0] = rewards.view(-1)
    index = np.array([uid for uid in "abcdef" for _ in range(8)] + ["padding"], dtype=object)
    order = torch.randperm(49)
    how = {"response_mask": mask[order], "index": index[order.numpy()]}
    A, _ = found["half"](token_level_rewards=token_level_rewards[order], config=None, **how)
    expected = torch.cat([expected, torch.zeros(1, 1)])[order] * mask[order]
    torch.testing.assert_close(A, expected * (7 / 8) ** 0.5)  # verl divides by G - 1
