"""The programs that pages of the course ask a reader to save and run do what the page says."""

import ast
import csv
import importlib
import json
import math
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from statistics import fmean, pstdev, stdev
from types import SimpleNamespace
from unittest.mock import ANY

import pytest
import torch

import advantages
import conftest
import grpo
import test_grpo
import train
from course import hacked
from course.blank import assignment
from grpo import encode, policy_loss
from tasks import ADD, EOS, TASKS
from test_grpo import FORMULAS, standardised, verifree_at

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "course" / "instructor"))
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
    assert len(figures) >= 5


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
    numbers = (2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 6, 7, 9, 9)
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


def test_the_calendar_adds_up():
    """A class has more to do than 45 minutes, or a part or an exercise has no time at all."""
    course = ROOT / "course"
    page, parts, exercises = (
        (course / name).read_text(encoding="utf-8")
        for name in ("instructor/README.md", "README.md", "exercises.md")
    )
    calendar, classes = page.split("\n## Calendar\n")[1].split("\n## Class by class\n")
    for section in classes.split("\n## ")[0].split("\n### ")[1:]:
        minutes = section.split("*Minutes:*")[1].split("\n\n")[0]
        assert sum(map(int, re.findall(r"\((\d+)\)", minutes))) == 45, section[:8]
    calendar = "\n".join(re.findall(r"(?m)^(?:\||\*\*Exercises).*", calendar))
    named = re.findall(r"xercises? (\d+)(?:, (\d+) and (\d+))?", calendar)
    assert {n for row in named for n in row if n} == {*re.findall(r"(?m)^## (\d+)\.", exercises)}
    at_home = dict(re.findall(r"(\d+) \((\d+)\)", re.sub(r"exercise \d+", "", calendar)))
    at_home["2"] = str(int(at_home["2"]) + 10)  # it is begun in class 2
    assert at_home == dict(re.findall(r"(?m)^### (\d+)\..+?(\d+) minutes\)$", parts))


def exam_results(number: int, x: SimpleNamespace) -> list[float]:
    """The numbers of the replies to a question of the exam. x: what its table gives."""
    match number:
        case 1:
            pushes = [1 - x.p, x.p - 1, -x.p, x.p]
            return [*pushes, x.p * (1 - x.p), x.p * (x.p - 1), -x.c * x.p, x.c * x.p]
        case 2:
            r = [1.0] * x.k + [0.0] * (8 - x.k)
            G = next(G for G in range(1, 99) if (1 - x.q) ** G <= 0.5)
            both = [FORMULAS[name](SimpleNamespace(r=r), 0, 0) for name in ("dr_grpo", "rloo")]
            return [x.k / 8, pstdev(r), standardised(r, 0), standardised(r, 7), *both, G]
        case 4:
            return [64 * (1 - x.f - x.h), 64 * (1 - x.h)]
        case 5:
            warm, cold = (1 / (1 + math.exp(-math.log(x.x) / t)) for t in (1, 0.5))
            return [warm, cold, warm / cold]
        case 6:
            N = 2 * x.m + 2 * x.n
            return [1 / N, 1 / (4 * x.m), 1 / (4 * x.n)]
        case 7:
            group = SimpleNamespace(r=[1.0] + [0.0] * (x.G - 1))
            mixed = [FORMULAS["ngrpo"](group, i, 0) for i in (0, x.G - 1)]
            return [standardised([0.0] * x.G + [1.0], 0), *mixed]
        case 8:
            return [(0.5 * -0.2 + -0.5 * 0.2) * (1 * 2 + 2 * x.x)]
        case 9:
            L = [[0.0, math.log(x.x)], [0.0, math.log(x.y)]]
            group = SimpleNamespace(logprobs=L, end=[[False, True]] * 2)
            m = (x.x + x.y) / 3  # of the larger group
            four = [verifree_at(group, i, t) for i, t in ((0, 0), (0, 1), (1, 1))]
            return [*four, m, math.sqrt(m * (1 - m))]
        case 10:
            three = x.given[:3]
            wide = 4.30 * stdev(three) / math.sqrt(3)
            return [fmean(three), fmean(three) - wide, fmean(three) + wide, x.n / 20]


def test_the_results_of_the_exam():
    """A number of the exam's table was changed, and its results are those of the old one."""
    page = (ROOT / "course" / "instructor" / "exam.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 11)]
    number_of = re.compile(r"[-+]?\d+(?:\.\d+)?(?:/\d+)?")
    for number, row in rows:
        for cell in row.split(" | "):
            before, after = cell.split(": ")
            given = {name: float(x) for name, x in re.findall(r"(\w)=([-\d.]+)", before)}
            given |= {name: int(given[name]) for name in "kG" if name in given}
            x = SimpleNamespace(**given, given=[float(y) for y in number_of.findall(before)])
            if number == "3":
                up = ["more" if ratio <= 1.2 else "none" for ratio in (x.u, x.w)]
                assert after.split() == [up[0], "less" if x.v >= 0.8 else "none", up[1]], cell
                continue
            for shown, value in zip(
                number_of.findall(after), exam_results(int(number), x), strict=True
            ):
                digits = len(shown.partition(".")[2])
                exact = float(Fraction(shown))
                wanted = value if "/" in shown else round(value, digits)
                assert exact == pytest.approx(wanted, abs=1e-9), f"{cell}: {shown} is {value:.4f}"


PRACTICE = (ROOT / "course" / "instructor" / "exam.md").read_text(encoding="utf-8")
TABLE, PRACTICE = PRACTICE.split("\n## A practice paper\n")
PAPER, KEY = PRACTICE.split("\n### Key\n")


def test_the_key_of_section_a():
    """The paper asks for numbers that its key does not have, or the key has other results."""
    replies = re.findall(r"(?m)^- (\d+) with (.+): (.+)$", KEY)
    number = r"\w=\d+(?:\.\d+)?"
    asked = re.findall(number, PAPER.split("**B")[0])
    assert asked == re.findall(number, " ".join(given for _, given, _ in replies))
    assert [n for n, *_ in replies] == re.findall(r"(\d+) with", PAPER.split("**B")[0])
    for n, given, results in replies:
        [row] = re.findall(rf"(?m)^\| {n} \|.+$", TABLE)
        assert f" {given}: {results} |" in row


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


@pytest.mark.parametrize("failed", [True, False])
def test_a_failure_begins_with_what_the_test_finds(failed):
    """A student sees a dump of numbers, and not which mistake it may be."""
    report = SimpleNamespace(failed=failed, longrepr=None, longreprtext="E   1 != 2")
    item = SimpleNamespace(function=test_a_failure_begins_with_what_the_test_finds)
    hook = conftest.pytest_runtest_makereport(item)
    next(hook)
    with pytest.raises(StopIteration) as returned:
        hook.send(report)
    assert returned.value.value is report
    says = "A student sees a dump of numbers, and not which mistake it may be.\n\nE   1 != 2"
    assert report.longrepr == (says if failed else None)


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


def test_the_repair_of_process():
    """Exercise 7 keeps another rule than the one in which a step that does not end has no price, or
    its answer has other numbers than its program and `process`.
    """
    page = (ROOT / "course" / "exercises.md").read_text(encoding="utf-8").split("\n## 7. ")[1]
    program = next(block for block in blocks("exercises.md") if "def ended_steps" in block)
    names: dict = {}
    exec(program.split("\nVARIANTS[")[0], names)
    texts = re.findall(r"(?m)^    (12,1\S+(?: \d+\$)?)$", page)
    solution = texts[0].removesuffix(EOS)
    problem = next(p for p in train.make_problems(ADD, True) if p.level == 3)
    problem = problem._replace(solution=solution)
    assert (len(texts), ADD.coherent(problem, solution)) == (3, True)
    assert len(texts[2]) == len(ADD.longest.solution + EOS)  # it was cut off
    tokens, mask = (x[None] for x in encode(texts, "cpu"))
    rollout = SimpleNamespace(
        tokens=tokens, mask=mask, rewards=torch.zeros(1, 3), problems=[problem]
    )
    forms = (names["ended_steps"], advantages.process)
    after_comma = [form(rollout)[0, :, 3].tolist() for form in forms]
    answer = page.split("<summary>")[1]
    for A in after_comma:
        assert all(f"{a:+.2f}" in answer for a in A if a), A
    assert after_comma[0] == pytest.approx([2.1213, -4.2426, 0], abs=1e-3)
    assert after_comma[1] == pytest.approx([3, -3, -3], abs=1e-3)
