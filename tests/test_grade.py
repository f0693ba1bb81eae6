"""Without these tests a student could get a wrong tick, or a line that names no cause."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GRADE = ROOT / "course" / "instructor" / "grade.py"
sys.path.insert(0, str(GRADE.parent))
import grade  # noqa: E402
from course.blank import assignment, read  # noqa: E402

PARTS = {part.number: part for part in assignment()}
MINE = "It is 0.5. I had predicted 0.4."
ANSWERS = "Number: 472\n\n" + "".join(f"## {n}\n\n{MINE}\n\n" for n in (*PARTS, "Week 4"))


@pytest.fixture
def student(tmp_path, monkeypatch):
    """A folder with everything solved and answered."""
    monkeypatch.chdir(ROOT)
    folder = tmp_path / "class" / "anna"
    folder.mkdir(parents=True)
    for file in grade.FILES:
        shutil.copy(ROOT / file, folder)
    (folder / "answers.md").write_text(ANSWERS, encoding="utf-8")
    return folder


@pytest.fixture
def all_pass(monkeypatch):
    """Every command passes."""
    monkeypatch.setattr(grade, "failing", lambda folder, command: "")


def edit(path: Path, old: str, new: str) -> None:
    source = read(path)
    assert source.count(old) == 1
    path.write_text(source.replace(old, new), encoding="utf-8")


def lines(monkeypatch, capsys, *arguments) -> list[str]:
    monkeypatch.setattr(sys, "argv", ["grade.py", *map(str, arguments)])
    grade.main()
    return capsys.readouterr().out.splitlines()


def facts(line: str) -> str:
    """A line of the grader without the folder that holds the folder."""
    return line.split("/", 1)[1]


def test_every_folder_has_a_line(student, monkeypatch, capsys, all_pass):
    """A folder without files, or what is no folder, has no line, or stops the class.

    A file that is missing is taken from the project and passes, or a student's files are changed.
    """
    week = student.parent / "week-1"
    for name in ("anna", "renamed", "nested/deeper"):
        shutil.copytree(student, week / name)
    (week / "renamed" / "grpo.py").rename(week / "renamed" / "grpo (1).py")
    (week / "empty").mkdir()
    (week / "list.csv").touch()
    before = {path: path.lstat().st_mtime_ns for path in week.rglob("*")}
    found = lines(monkeypatch, capsys, week / "*", week / "no*", week / "anna", "--without", "4")
    anna = "anna, week 1: tick; parts 1 2 3; answers 1, 2, 3."
    nothing = "week 1: no tick; parts none; answers none. There is no file answers.md"
    assert [*map(facts, found)] == [
        anna,
        f"empty, {nothing}. Part 1: There is no file tasks.py.",
        "list.csv, week 1: no tick. There is no such folder.",
        f"nested, {nothing}, but deeper/answers.md. "
        "Part 1: There is no file tasks.py, but deeper/tasks.py.",
        anna.replace("anna", "renamed"),
        "no*, week 1: no tick. There is no such folder.",
        anna,
    ]
    assert before == {path: path.lstat().st_mtime_ns for path in week.rglob("*")}
    part = PARTS["4"]
    assert grade.reason(week / "renamed", part) == "There is no file grpo.py, but grpo (1).py."
    monkeypatch.setattr(grade, "reason", lambda *_: 1 / 0)  # for example a file without rights
    found = lines(monkeypatch, capsys, student, "--without", "7", "--without", "8")
    said = [x.split(": ", 1)[1] for x in found]
    broken = "no tick. division by zero"
    assert (
        said[:3] == [broken, broken, "no tick. It has no parts."] and "; answers Week 4" in said[3]
    )


@pytest.mark.parametrize(
    "old, new, said",
    [
        (f"## 2\n\n{MINE}", "## 2\n\n.", "Answer 2 has fewer than two sentences."),
        (f"## 2\n\n{MINE}", "## 2\n\nIt is less. I was right.", "Answer 2 has no number."),
        (f"## 1\n\n{MINE}", "## 1\n\nIt is less. I was right.", ""),
        ("## 2", "##2", ""),
        ("## 2", "# 2", "There is no heading ## 2 outside of blocks of code."),
        (f"## 2\n\n{MINE}", f"```\n## 2\n\n{MINE}\n```", "There is no heading ## 2 outside of"),
        (f"## 2\n\n{MINE}", f"## 2\n\n```\n## 3\n```\n{MINE}", ""),
    ],
)
def test_what_counts_as_an_answer(student, old, new, said):
    """A dot is an answer. A heading without a space, or one in a block of code, hides an answer
    and nobody says so.
    """
    edit(student / "answers.md", old, new)
    found = [*filter(None, grade.faults(student, ["1", "2", "3", "4"]).values())]
    assert len(found) == bool(said) and said in "".join(found)


def test_a_file_in_another_encoding_or_with_another_name(student):
    """Windows saves a text as UTF-16 or as answers.md.txt, and the line says "answers none"."""
    (student / "answers.md").write_text(ANSWERS, encoding="utf-16")
    assert {*grade.faults(student, ["1"]).values()} == {"answers.md is not a text in UTF-8."}
    (student / "answers.md").write_text(ANSWERS, encoding="utf-8-sig")
    assert not any(grade.faults(student, ["1"]).values())
    (student / "answers.md").rename(student / "answers.md.txt")
    assert grade.faults(student, ["1"])["1"] == "There is no file answers.md, but answers.md.txt."


@pytest.mark.parametrize(
    "week, fails, left, tick",
    [
        ("1", ["2"], [], True),
        ("1", ["2", "3"], [], False),
        ("1", [], ["4"], False),
        ("4", [], [], True),
        ("4", [], ["Week 4"], False),
    ],
)
def test_a_tick(student, monkeypatch, week, fails, left, tick):
    """One part may fail, and each question of the week has an answer; week 4 has its own."""
    for heading in left:
        edit(student / "answers.md", f"## {heading}\n\n{MINE}\n", f"## {heading}\n\n \n")
    monkeypatch.setattr(grade, "reason", lambda _, part: "why" if part.number in fails else "")
    found = grade.line(student, week, [*PARTS.values()])
    assert ("no tick" not in found) == tick
    assert [f"Part {n}: why" in found for n in fails] == [n == fails[0] for n in fails]
    answers = re.search("answers (.+?)[.]", found)[1].split(", ")
    assert not {*left} & {*answers}


def test_what_a_student_wrote_is_tested_by_our_tests(student, tmp_path):
    """A student's tests or conftest.py decide, our core takes the place of the student's, or a
    function of test_grpo.py is ours, or is another part's.
    """
    (student / "conftest.py").write_text("1 / 0\n")
    edit(student / "grpo.py", "def k3(", "MINE = 1\n\n\ndef k3(")
    edit(student / "test_grpo.py", "    sigma = math.sqrt(mean([(r_j ", "    sigma = sum([(r_j ")
    for n in ("1", "2"):
        (tmp_path / n).mkdir()
        grade.make(tmp_path / n, student, PARTS[n])
        assert "MINE" in read(tmp_path / n / "grpo.py")
        assert read(tmp_path / n / "conftest.py") == read(ROOT / "conftest.py")
    assert read(tmp_path / "1" / "test_grpo.py") == read(ROOT / "test_grpo.py")
    ours, theirs = (read(tmp_path / "2" / x) for x in ("test_grpo.py", "your_test_grpo.py"))
    assert theirs == read(student / "test_grpo.py") and "sum([(r_j " not in ours
    assert "import FORMULAS as asked, standardised\n\nFORMULAS = {" in ours


CLIP = "torch.min(free, clipped)).sum()", "clipped).sum()"


@pytest.mark.parametrize(
    "n, file, old, new, said",
    [
        ("4", "grpo.py", *CLIP, "test_policy_loss_.+ only keeps the clipped product.+ close"),
        ("1", "tasks.py", "        return float(", "        return float((", "line 1.+SyntaxError"),
        ("2", "advantages.py", "def centre(", "def middle(", "'centre'"),
        ("3", "test_grpo.py", '    "rloo": lambda', '    "mine": lambda', "KeyError: 'rloo'"),
    ],
)
def test_why_a_part_does_not_pass(student, n, file, old, new, said):
    """A traceback, or no word, for what is wrong in a file."""
    edit(student / file, old, new)
    found = grade.reason(student, PARTS[n])
    assert re.search(said, found) and len(found) <= 500 and "\n" not in found, found


def answering(path: Path, code: str) -> None:
    """Has Task.reward begin with this code."""
    begins = "        return float(response.split(MARKER)"
    edit(path, begins, f"{textwrap.indent(code, ' ' * 8)}\n{begins}")


@pytest.mark.parametrize(
    "code, said",
    [
        ("import pytest; pytest.skip('not done yet')", "three_things: .*not done yet"),
        ("import os; os._exit(0)", "ended early"),
        ("raise ValueError('x' * 10**6)", "three_things: .*ValueError: xxx"),
        ("while True: print('x' * 10**6)", "took over 20 seconds"),
    ],
)
def test_only_a_test_that_ran_and_passed_counts(student, monkeypatch, code, said):
    """A skip or an exit passes, or a loop does not end."""
    monkeypatch.setattr(grade, "LIMIT", 20 if "while" in code else 600)
    answering(student / "tasks.py", code)
    found = grade.reason(student, PARTS["1"])
    assert re.search(said, found) and len(found) <= 500


def test_the_command_line(tmp_path):
    """A traceback where a part does not exist; --help that starts to grade; or a name that the
    console cannot print stops the class.
    """
    for arguments, status, said in (
        (["--help"], 0, "folders"),
        (["--without=11"], 2, "invalid choice"),
        (["--expected=472"], 0, "group 11011011, k = 6, R = 1.52"),
        (["week-1/Łukasz", "week-1/ben"], 0, "\\u0141ukasz, week 1: no tick"),
    ):
        command = [sys.executable, GRADE, *arguments]
        environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == status, done.stderr
        assert said in (done.stdout or done.stderr)
        assert len(done.stderr.splitlines()) == (status == 2)
