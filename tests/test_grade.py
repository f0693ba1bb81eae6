"""The grader, on students whose files have one fault each. wrong_solutions.py has the mistakes."""

import ast
import csv
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_grpo import FORMULAS, standardised, verifree_at

ROOT = Path(__file__).parent.parent
GRADE = ROOT / "course" / "instructor" / "grade.py"
sys.path.insert(0, str(GRADE.parent))
import grade  # noqa: E402
from course.blank import assignment, blanked, bound, locate, read  # noqa: E402


@pytest.fixture
def student(tmp_path, monkeypatch):
    """A folder with everything solved."""
    monkeypatch.chdir(ROOT)
    for part in assignment():
        for file in part.files:
            shutil.copy(file, tmp_path / file)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    source = read(path)
    assert source.count(old) == 1
    path.write_text(source.replace(old, new), encoding="utf-8")


def code(source: str, name: str) -> str:
    held, place = locate(ast.parse(source), name)
    return ast.unparse(held[place])


def test_a_slip_is_in_the_checks_of_its_own_part_only(student, monkeypatch):
    """One slip in part 2 that costs the points of every later part which uses it."""
    edit(student / "advantages.py", "correction=0, ", "")
    edit(student / "test_grpo.py", "sigma = math.sqrt(mean(", "sigma = math.sqrt(sum(")
    seen = []
    monkeypatch.setattr(grade, "check", lambda sources, command, limit: seen.append(sources))
    slips = []
    for part in assignment():
        for file, names in part.files.items():
            grade.graded(student, part, file, limit=1)
            [(changed, source)] = seen.pop().items()
            assert changed == file
            right = ast.unparse(ast.parse(read(ROOT / file)))
            pairs = zip(ast.parse(right).body, ast.parse(source).body, strict=True)
            changed = [now.name for was, now in pairs if ast.dump(was) != ast.dump(now)]
            slips += [(part.title[0], name) for name in changed]
    assert slips == [("2", "standardised"), ("2", "standardise")]


def test_helpers_and_imports_of_a_student_are_taken(student):
    """A good solution with a new function or a new import gets nothing."""
    mine = student / "advantages.py"
    more = "import math as m\n\nboom = 1 / 0\nEPS = m.pow(10, -6)\n\n\n"
    more += "def spread(r: Tensor, eps=EPS):\n    return r.std(1) + eps\n\n\n"
    edit(mine, "def centre(", more + "def centre(")
    edit(mine, "(rewards.std(1, correction=0, keepdim=True) + 1e-6)", "spread(rewards)")
    source = grade.combined("advantages.py", read(mine), ["standardise"])
    tree = ast.parse(source)
    names = [name for statement in tree.body for name in bound(statement)]
    assert (
        names.index("m") < names.index("EPS") < names.index("spread") < names.index("standardise")
    )
    assert "boom" not in names
    mine = student / "test_grpo.py"
    edit(mine, '"rloo": lambda x, i, t: ', '"rloo": lambda x, i, t: others(x) + ')
    edit(mine, "FORMULAS = {", "def others(x):\n    return 0\n\n\nFORMULAS = {")
    source = grade.combined("test_grpo.py", read(mine), ["FORMULAS.rloo"])
    assert "others(x)" in code(source, "FORMULAS.rloo") and "def others(x)" in source
    assert "def others" not in grade.combined("test_grpo.py", read(mine), ["FORMULAS.ngrpo"])


def test_a_formula_may_stand_below_its_table(student):
    """FORMULAS["rloo"] = ... passes the student's command and gets no points."""
    mine = student / "test_grpo.py"
    source = blanked(read(mine), "FORMULAS.rloo")
    later = "\n\ndef mine(x, i, t):\n    return 7\n\n\nFORMULAS['rloo'] = mine\n"
    mine.write_text(source + later, encoding="utf-8")
    source = grade.combined("test_grpo.py", read(mine), ["FORMULAS.rloo"])
    assert code(source, "FORMULAS.rloo") == "mine" and "return 7" in code(source, "mine")


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("        return float(", "        return float((", "(tasks.py, line "),
        ("\nPAD = ", "\n# für\nPAD = ", "codec can't decode"),
        ("def reward(", "def rewards(", "There is no Task.reward."),
        (None, None, "Task.reward is blank."),
        ("", "", "No such file"),
    ],
)
def test_what_cannot_be_graded_is_one_line(student, old, new, said):
    """A traceback, or 0 points without a word, for a file that does not parse or is not there."""
    path = student / "tasks.py"
    if old:
        edit(path, old, new)
        path.write_text(read(path), encoding="latin-1")
    elif old is None:
        path.write_text(blanked(read(path), "Task.reward"), encoding="utf-8")
    else:
        path.unlink()
    [(where, why)] = grade.graded(student, assignment()[0], "tasks.py", limit=1).items()
    assert said in f"{where}: {why}" and "\n" not in why


def test_a_class_with_strays(student, tmp_path, monkeypatch, capsys):
    """A list of names stops the class or gets into the table; one folder too deep gives 0."""
    edit(student / "advantages.py", "G = rollout.rewards.size(1)\n    return", "G = (\n    return")
    deep = tmp_path / "class" / "anna" / "files"
    deep.mkdir(parents=True)
    for file in student.glob("*.py"):
        file.rename(deep / file.name)
    (deep / "answers.md").write_text("Number: 472\n\n## 1\nmine\n\n## 10\nlast\n")
    roster = tmp_path / "class" / "roster.csv"
    roster.touch()
    (tmp_path / "class" / "two" / "sets").mkdir(parents=True)
    shutil.copy(deep / "tasks.py", tmp_path / "class" / "two" / "sets")
    shutil.copytree(tmp_path / "class" / "two" / "sets", tmp_path / "class" / "two" / "others")
    monkeypatch.setattr(grade, "check", lambda sources, command, limit: {})
    folders = [*map(str, (tmp_path / "class").iterdir())]
    table = tmp_path / "marks.csv"
    monkeypatch.setattr(sys, "argv", ["grade.py", *folders, "--table", str(table)])
    grade.main()
    head, anna = csv.reader(table.read_text().splitlines())
    assert anna[:4] == ["anna", "53.0", "4.0", "3.0"] and len(anna) == len(head) == 12
    out, err = capsys.readouterr()
    assert {line.split()[0] for line in err.splitlines()} == {"roster.csv", "two"}
    first, *lines = out.splitlines()
    assert first == "anna: 53 of 70 points for code"
    parts = [part for part in assignment() if part.points]
    assert [line[2:].split(":")[0] for line in lines if line[2:3].isdigit()] == [
        part.title for part in parts
    ]
    assert "(advantages.py, line " in " ".join(out.split()) and len(lines) < 30
    for word, drawn in (("10", 1), ("a", 2), ("b", 2)):
        monkeypatch.setattr(sys, "argv", ["grade.py", *folders, "--draw", word])
        grade.main()
        out = capsys.readouterr().out
        asked = [part for part in parts if part.question in out]
        assert len(asked) == drawn == out.count("A full answer: ") == out.count("Number: 472")
        assert word != "10" or "The answer: last\n" in out


def test_every_part_has_a_question_and_a_rubric(student, capsys):
    """A question gets no rubric, or a rubric ends where its number should stand in a line."""
    for part in [part for part in assignment() if part.points]:
        number = part.title.split(".")[0]
        grade.draw("anna", student, assignment()[:10], number)
        question, rubric = capsys.readouterr().out.split("A full answer: ")
        assert part.question in question and len(part.question) > 100
        assert f"Nothing is below a heading ## {number}." in rubric and len(rubric) > 100


def numbers_to_compare_with():
    """The rows of two tables of the instructor's page: questions 2 and 3, and questions 7 and 9."""
    for k in range(1, 8):
        r = [1.0] * k + [0.0] * (8 - k)
        A = [standardised(r, 0), standardised(r, 7)]
        numbers = [math.sqrt(k * (8 - k)) / 8, *A]
        numbers += [math.sqrt((G - 1) / G) * a for G in (8, 16) for a in A]
        for name in ("dr_grpo", "rloo"):
            numbers += [FORMULAS[name](SimpleNamespace(r=x), 0, 0) for x in (r, r + [0.0])]
        yield k, numbers
        numbers = [sum(standardised(r + [x], i) for i in range(8)) for x in (1.0, 0.0)]
        L = [[0.0, math.log(0.9 if x else 0.1)] for x in r]
        x = SimpleNamespace(logprobs=L, end=[[False, True]] * 8)
        yield k, numbers + [verifree_at(x, i, t) for i in (0, 7) for t in (0, 1)]


def test_the_instructor_has_the_numbers():
    """A formula has changed, and good answers are marked as wrong."""
    page = read(ROOT / "course" / "instructor" / "README.md")
    for k, numbers in numbers_to_compare_with():
        row = " | ".join(f"{number:.3f}" for number in numbers)
        assert f"| {k} | {row} |" in page


def test_a_mistake_is_named_and_a_loop_ends(student, capsys):
    """A dump of tensors in place of what is wrong; a student who stops all others."""
    part = assignment()[0]
    edit(student / "tasks.py", "response.split(MARKER)[1:] == [problem.answer]", "len(response)")
    failures = grade.graded(student, part, "tasks.py", limit=600)
    assert [*failures] == ["test_the_three_checks_ask_three_things"]
    assert "several guesses" in failures["test_the_three_checks_ask_three_things"]
    edit(student / "tasks.py", "return float(len(response))", "while True: pass")
    failures = grade.graded(student, part, "tasks.py", limit=1)
    assert [*failures] == ["No result"] and "endless loop" in failures["No result"]


def test_the_command_line(tmp_path):
    """A traceback where a part does not exist; --help that starts to grade."""
    for arguments, status, said in (("--help", 0, "FOLDER"), ("--without=11", 2, "invalid choice")):
        command = [sys.executable, GRADE, arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status
        assert said in (done.stdout or done.stderr)
        assert len(done.stderr.splitlines()) == (status == 2)
