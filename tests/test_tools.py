"""The two tools beside a run: what they are asked, what they answer, how they refuse."""

import builtins
import csv
import json
import sys
from pathlib import Path

import pytest
import torch

import train
from grpo import sample_rollout
from tasks import ADD, MUL, SUM, TASKS
from test_grpo import fewer_problems
from tools import ask, curves


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The folder of a small run of two steps, which begins with random weights."""
    fewer_problems(20, monkeypatch)
    monkeypatch.setattr(train, "base_model", lambda args, say: train.new_model(args))
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


@pytest.mark.parametrize(
    "task, text, prompt",
    [
        (ADD, "347+285", "  347+  285="),
        (ADD, "347+285=", "  347+  285="),
        (ADD, " 347 + 285 = ", "  347+  285="),
        (ADD, "99999+10000", "99999+10000="),
        (MUL, "347 * 8", "  347*8="),
        (SUM, "0+0+9", "0+0+9=          "),
        (ADD, "7+8", None),  # one digit
        (ADD, "34+347", None),
        (ADD, "123456+654321", None),
        (ADD, "34+71+22", None),
        (ADD, "034+71", None),
        (ADD, "-34+71", None),
        (ADD, "3 4 7*285", None),
        (ADD, "34+71==", None),
        (ADD, "³4+71", None),
        (ADD, "", None),
        (ADD, "1" * 5000 + "+" + "2" * 5000, None),  # int() refuses so many digits
        (MUL, "347*1", None),
        (MUL, "8*347", None),
        (SUM, "7+8", None),
        (SUM, "1+2+3+4+5+6+7+8+9", None),
    ],
)
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
    assert head == "347+  285=" and solution == "  solution  12,13,06# 632"
    assert [line.split("  ")[1].split()[0] for line in lines] == 4 * ["sampled"] + ["greedy"]
    assert "reward 1" in lines[0] and "[" not in lines[0]
    assert "12,[14],06# 632" in lines[1] and "reward 1" in lines[1] and "[13]" in lines[1]
    assert "12,13,06#[ 642]" in lines[2] and "reward 0" in lines[2] and "[ 632]" in lines[2]
    assert "12[]" in lines[3] and "[,]" in lines[3]
    assert [sizes for _, *sizes in given] == [[4, 1.0], [1, 0.0]]
    kept = torch.load(folder / "model.pt", weights_only=True)
    assert all(torch.equal(kept[name], x) for name, x in given[0][0].state_dict().items())


def test_what_ask_refuses(folder, capsys):
    """A traceback, a line of thousands of digits, a refusal that does not say what is allowed."""
    error = refused(capsys, ask, folder, "1" * 5000 + "+1")
    assert ask.RULES["add"] in error and len(error) < 200
    assert ask.RULES["add"] in refused(capsys, ask, folder, "34+347")
    assert "python -m tools.ask" in refused(capsys, ask, folder)
    assert "absent is not the folder" in refused(capsys, ask, "absent", "34+71")
    whole = (folder / "summary.json").read_text()
    for broken in ("", whole[:100], "[]", "{}", "null", json.dumps({"task": "add", "layers": 99})):
        (folder / "summary.json").write_text(broken)
        assert "not the folder of a finished run" in refused(capsys, ask, folder, "34+71")
    (folder / "summary.json").write_text(whole.replace('"width": 8', '"width": 16'))
    assert "not the folder of a finished run" in refused(capsys, ask, folder, "34+71")
    (folder / "summary.json").write_text(whole)
    (folder / "model.pt").write_bytes((folder / "model.pt").read_bytes()[:500])
    assert "not the folder of a finished run" in refused(capsys, ask, folder, "34+71")
    (folder / "model.pt").unlink()
    assert "not the folder of a finished run" in refused(capsys, ask, folder, "34+71")


def test_curves_begin_at_step_0(folder, tmp_path, monkeypatch, capsys):
    """A curve without its beginning; shares for percent; two runs that cannot be told apart."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *to, **how: (figures.append(self), save(self, *to, **how))
    )
    rows = [*csv.DictReader((folder / "metrics.csv").read_text().splitlines())]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "metrics.csv").write_bytes((folder / "metrics.csv").read_bytes())
    curves.main([str(folder), "other"])
    assert Path("curves.png").read_bytes()[:4] == b"\x89PNG"
    (figure,) = figures
    panels = dict(zip(curves.PANELS, figure.axes))
    for name, ax in panels.items():
        first, second = ax.lines
        steps = [0, 2] if name in ("sampled", "greedy") else [1, 2]
        assert first.get_xdata().tolist() == steps
        scale = 100 if ax.get_title().endswith("%") else 1
        values = [scale * float(row[name]) for row in rows if row[name]]
        assert first.get_ydata().tolist() == pytest.approx(values)
        assert first.get_marker() not in (None, "None", second.get_marker())
        assert first.get_color() != second.get_color()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [str(folder), "other"]


def test_what_curves_refuses(folder, tmp_path, monkeypatch, capsys):
    """A traceback where a folder or matplotlib is missing, or the picture has no place."""
    assert "absent is not the folder of a run" in refused(capsys, curves, "absent")
    Path("metrics.csv").write_text("a,b\n1,2\n")
    assert "not the folder of a run" in refused(capsys, curves, ".")
    Path("metrics.csv").write_bytes(b"\xff\xfe")
    assert "not the folder of a run" in refused(capsys, curves, ".")
    pytest.importorskip("matplotlib")
    for out in ("absent/curves.png", "curves.xyz"):
        assert f"{out} cannot be written" in refused(capsys, curves, folder, "--out", out)
    find = builtins.__import__

    def without(name, *rest):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return find(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "python -m pip install matplotlib" in refused(capsys, curves, folder)


@pytest.mark.parametrize("tool", [ask, curves])
def test_help_starts_nothing(tool, capsys, monkeypatch):
    """A tool that calls itself by another name, or works when it is asked for help."""
    monkeypatch.setattr(sys, "argv", ["elsewhere.py"])
    with pytest.raises(SystemExit) as stop:
        tool.main(["--help"])
    assert stop.value.code == 0
    assert f"python -m tools.{tool.__name__.split('.')[1]}" in capsys.readouterr().out
