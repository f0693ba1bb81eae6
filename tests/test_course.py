"""Without these tests programs of the course could say other things than its pages."""

import ast
import csv
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from unittest.mock import ANY

import pytest

import grpo
import test_grpo
import train
from course import hacked
from course.blank import assignment
from grpo import policy_loss
from tasks import ADD, TASKS

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "course" / "instructor"))
import exam  # noqa: E402
import expected  # noqa: E402


def blocks(page: str) -> list[str]:
    """The blocks of Python code of a page of the course, complete programs only."""
    text = (ROOT / "course" / page).read_text(encoding="utf-8")
    found = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [block for block in found if not block.startswith(" ")]


@pytest.mark.parametrize("page", ["exercises.md", "own-task.md"])
def test_every_name_that_a_page_uses_is_there(page):
    """A function of the project was moved or renamed, and a program of a page has the old name."""
    for block in blocks(page):
        modules = {}
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    modules[alias.asname or alias.name] = importlib.import_module(alias.name)
            elif isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module)
                assert all(hasattr(module, alias.name) for alias in node.names), node.names[0].name
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = modules.get(node.value.id)
                assert module is None or hasattr(module, node.attr), f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("name", ["lecture-1.ipynb", "lecture-2.ipynb"])
def test_a_lecture_can_be_shown(name):
    """A cell is too long for a projector, a formula is broken, or the figures are missing.

    What follows a line break within a formula may look like an item of a list.
    """
    cells = json.loads((ROOT / "course" / name).read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert len(text.splitlines()) <= 15, text.splitlines()[0]
        else:
            prose = re.sub(r"`[^`]*`|\$\$.*?\$\$", "", text, flags=re.DOTALL)
            odd = [line for line in prose.splitlines() if line.count("$") % 2]
            assert not odd, odd[0]
    figures = [output for cell in cells for output in cell.get("outputs", []) if "data" in output]
    assert len(figures) >= 3


def test_a_heading_for_every_question():
    """The file to fill in, or the page with model answers, lost a heading: the grader finds no
    answer, or nobody sees a good one.
    """
    numbers = [part.number for part in assignment()]
    to_fill_in, answers = (
        (ROOT / "course" / page).read_text(encoding="utf-8")
        for page in ("answers.md", "instructor/model_answers.md")
    )
    assert to_fill_in.startswith("Number:") and to_fill_in.rstrip().endswith("\n## Week 4")
    for page in (to_fill_in, answers):
        assert re.findall(r"^## (\d+)$", page, re.MULTILINE) == numbers


def test_the_numbers_that_answers_should_have():
    """A formula or a question has changed, and right answers are marked as wrong."""
    page = (ROOT / "course" / "instructor" / "model_answers.md").read_text(encoding="utf-8")
    lines = expected.expected(472)
    numbers = (2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 6, 7)
    for number, row in zip(numbers, lines[1:], strict=True):
        answer = page.split(f"\n## {number}\n")[1].split("\n## ")[0]
        found = re.findall(r"\d+\.\d{3}|1/\d+", row)
        assert found, row
        for value in found:
            short = re.sub(r"0$", "", value), re.sub(r"\.?0+$", "", value)  # as a page may write it
            assert any(x in answer for x in (value, *short)), f"{number}: {value}"
    groups = {expected.expected(S)[0].split("group ")[1][:8] for S in range(1000)}
    assert len(groups) == 254 and not groups & {"00000000", "11111111"}
    assert expected.expected(20241472) == lines  # the last three digits count


def test_the_numbers_of_the_exam():
    """A result is wrong, so right answers are marked as wrong. These were computed by hand."""
    by_hand = [
        ((0.2, 3), [0.8, -0.8, -0.2, 0.2, 0.16, -0.16, -0.6, 0.6]),
        ((2, 0.05), [0.25, 0.433, 1.732, -0.577, 0.75, 0.857, 14]),
        ((0.7, 0.9, 1.4), ["more", "less", "none"]),
        ((0.25, 0.125), [40, 56, 1.6]),
        ((2,), [2 / 3, 4 / 5, 5 / 6]),
        ((4, 12), [1 / 32, 1 / 16, 1 / 48]),
        ((4,), [-0.5, 1.225, -0.816]),
        ((0.1, 0.3, 0.33), [3, 2, 1.1]),
        ((0.5, 0.25), [0.144, 0.693, 0.193]),
        ((2.4, 2.0, 2.2, 40), [2.2, 1.703, 2.697, 2]),
    ]
    for results, (given, hand) in zip(exam.RESULTS, by_hand, strict=True):
        found = results(*given)
        words = isinstance(hand[0], str)
        assert [*found] == (hand if words else pytest.approx(hand, abs=1e-3))


PRACTICE = (ROOT / "course" / "instructor" / "exam.md").read_text(encoding="utf-8")
PAPER, KEY = PRACTICE.split("\n## A practice paper\n")[1].split("\n### Key\n")


def test_no_question_of_the_exam_is_pointless():
    """In question 3 the clip stops every token or none; in question 8 no weight is truncated, or a
    push up makes a token less probable.
    """
    for word in range(200):
        rng = Random(word)
        drawn = [exam.drawn(rng, number) for number in range(10)]
        assert {"none"} < {*drawn[2][1]}
        ratio, weight, moved = drawn[7][1]
        assert ratio > weight == 2 and moved > 1


def test_the_key_of_section_a(capsys):
    """The paper asks for numbers that its key does not have, or the command prints others."""
    exam.main("practice")
    rows = capsys.readouterr().out.replace(" : ", ": ").splitlines()
    replies = re.findall(r"(?m)^- (\d+) with (.+): (.+)$", KEY)
    assert len(replies) == 4
    for number, given, results in replies:
        assert f"{number}. {given.replace(',', '')}: {results}" == rows[int(number) - 1]
    number = r"\w=\d+(?:\.\d+)?"
    asked = re.findall(number, PAPER.split("**B")[0])
    assert asked == re.findall(number, " ".join(given for _, given, _ in replies))


@pytest.mark.parametrize("name", "fg")
def test_the_mistakes_of_section_b(name, monkeypatch):
    """The printed function has no mistake or another one, or the repair of the key is none."""
    [code] = [x for x in re.findall(r"(?s)```python\n(.+?)```", PAPER) if f"def {name}(" in x]
    told = " ".join(KEY.split(f"**B, `{name}`.**")[1].split("(c)")[0].split())
    wrong, right = re.findall(r"`(.+?)`(?:, the|\.)", told)
    wrong_line = "".join(wrong.split())
    [line] = [x for x in code.splitlines() if "".join(x.split()) == wrong_line]

    def loss(logprobs, old_logprobs, A, weights, clip_low, clip_high, loss_type="grpo"):
        if loss_type != "grpo":
            return policy_loss(logprobs, old_logprobs, A, weights, clip_low, clip_high, loss_type)
        return names["f"](logprobs, old_logprobs, A, weights, clip_low, clip_high)

    def steps(model, optimizer, x, minibatches, aggregate, kl, max_grad_norm, **how):
        return names["g"](model, optimizer, x, minibatches, how, kl, max_grad_norm) or {}

    lenient = SimpleNamespace(MonkeyPatch=pytest.MonkeyPatch, approx=lambda *_, **more: ANY)
    for source, passes in ((code, False), (code.replace(line.strip(), right), True)):
        names = dict(vars(grpo))
        exec(source, names)
        found = ""
        with monkeypatch.context() as patch:
            patch.setattr(test_grpo, "policy_loss", loss if name == "f" else policy_loss)
            patch.setattr(test_grpo, "update", steps)
            try:
                for row in ((-1, 0.5, -0.84, 0), (+1, 1.5, +1.24, 0)) if name == "f" else ():
                    test_grpo.test_clip_truth_table(*row)
                patch.setattr(test_grpo, "pytest", lenient)  # `g` returns no metrics
                if name == "g":
                    options = {"kl": 0.5, "minibatches": 9}
                    test_grpo.test_update_equals_its_steps_by_hand(options)
            except AssertionError as error:
                found = f"it fails: {error}"
        assert bool(found) != passes, found


def test_the_table_of_section_c(capsys):
    """A number is not that of the runs, or the program for the next paper makes another table."""
    [program] = re.findall(r"(?s)```python\n(from studies.+?)```", KEY)
    exec(program, {})
    rows = capsys.readouterr().out.splitlines()
    assert rows == re.findall(r"(?m)^\| `\w+` \| [-+].+ \|$", PAPER)
    assert len(rows) == 4


def test_my_own_task_and_reward(tmp_path):
    """A name that the page's program registers was moved, or its reward is not what trains."""
    [program] = blocks("own-task.md")
    (tmp_path / "my_task.py").write_text(program)
    line = "my_task.py --task max --steps 20 --prompts 8 --layers 1 --width 32 --out runs"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TQDM_DISABLE": "1"}
    subprocess.run([sys.executable, *line.split()], cwd=tmp_path, env=environment, check=True)
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["base_sampled"] > 0.1
    with open(folder / "metrics.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["reward"]]
    assert len(rows) == 20
    assert any(float(row["grad_norm"]) > 0 for row in rows)
    # The reward is 1 only where the reasoning is correct as well.
    assert all(float(row["reward"]) <= float(row["reasoning_correct"]) for row in rows)


def test_the_imagined_verifier_and_the_real_one(monkeypatch):
    """Lecture 2 shows a verifier that accepts other responses than its text says, or calls
    accuracy what this verifier accepts.
    """
    problem = next(p for p in train.make_problems(ADD, held=True) if p.level == 3)
    easy = hacked.Anywhere(**vars(ADD))
    guesses = problem.solution + " 123"
    for text in (guesses, problem.answer + "#1"):
        assert (easy.reward(problem, text), ADD.reward(problem, text)) == (1, 0)
    assert easy.reward(problem, problem.solution.replace(problem.answer, "")) == 0

    def judged(model, task, name, **how):
        return {name: task.reward(problem, guesses)}

    def trained(args, model):
        yield None, None, judged(model, TASKS[args.task], "sampled")

    monkeypatch.setitem(TASKS, "anywhere", None)  # so that it is gone after the test
    monkeypatch.setattr(train, "train", trained)
    monkeypatch.setattr(train, "evaluate", judged)
    ((_, row),) = hacked.hacked(train.parse_arguments([]), model=None)
    assert row == {"sampled": 1, "true": 0}
    [*_] = hacked.hacked(train.parse_arguments(["--task", "sum"]), model=None)
    assert vars(TASKS["anywhere"]) == vars(TASKS["sum"])
