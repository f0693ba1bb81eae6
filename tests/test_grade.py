"""The grader, on students whose files have one fault each. wrong_solutions.py has the mistakes."""

import ast
import csv
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
GRADE = ROOT / "course" / "instructor" / "grade.py"
sys.path.insert(0, str(GRADE.parent))
import checks  # noqa: E402
import grade  # noqa: E402
import submissions  # noqa: E402
import talk  # noqa: E402
from course.blank import assignment, blanked, locate, read  # noqa: E402


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
    edit(student / "test_grpo.py", "math.sqrt(mean([(r_j ", "math.sqrt(sum([(r_j ")
    seen = []

    def check(command, theirs, names):
        seen.append(checks.combined(theirs, names)[0])
        return checks.Found([], {}, {})

    monkeypatch.setattr(checks, "check", check)
    slips = []
    for part in assignment():
        for file in part.files:
            checks.graded(part, student / file, tests=[])
            source = seen.pop()
            right = ast.unparse(ast.parse(read(ROOT / file)))
            pairs = zip(ast.parse(right).body, ast.parse(source).body, strict=True)
            changed = [now.name for was, now in pairs if ast.dump(was) != ast.dump(now)]
            slips += [(part.title[0], name) for name in changed]
    assert slips == [("2", "standardised"), ("2", "standardise")]


OWN = """
import math as m
from string import *
from torch import Tensor, arange

EPS = m.pow(10, -5)
EPS *= 0.1
TABLE = {}
for power in range(3):
    TABLE[power] = EPS / 10**power
TABLE.setdefault("letters", ascii_letters)
VARIANTS = {}


def spread(r: Tensor, eps=EPS):
    return r.std(1) + TABLE[0]


def with_advantages(rollout, variant):
    return 1 / 0
"""


def test_a_students_own_statements_are_taken_in_their_order(student):
    """A good solution whose helper needs a constant that is changed, a table that is filled later,
    or a star import gets nothing. Or what the project's file has is changed by a student's.
    """
    mine = student / "advantages.py"
    edit(mine, "def centre(", f"{OWN}\n\ndef centre(")
    edit(mine, "(rewards.std(1, correction=0, keepdim=True) + 1e-6)", "spread(rewards)")
    edit(mine, "def nthr(", "LATE = [centre(torch.eye(3))]\n\n\ndef nthr(")
    source, notes = checks.combined(mine, ["standardise"])
    names = {}
    exec(compile(source, "advantages.py", "exec"), names)
    assert names["EPS"] == pytest.approx(1e-6) and names["TABLE"][2] == pytest.approx(1e-8)
    assert names["TABLE"]["letters"].startswith("abc") and "arange" in names
    assert names["LATE"][0].shape == (3, 3)  # it needs what is defined above it
    assert "nthr" in names["VARIANTS"]
    assert names["with_advantages"].__code__.co_consts != (None, 1, 0)
    assert {*notes["refused"]} >= {"VARIANTS", "with_advantages"}
    assert not {*notes["refused"]} & {"EPS", "TABLE", "Tensor", "spread", "torch"}


def test_a_students_own_methods_are_taken(student):
    """A reward that calls a method which the student has added gets nothing."""
    mine = student / "tasks.py"
    more = "    def kept(self, text):\n        return text.split(MARKER)[1:]\n\n    def reward("
    edit(mine, "    def reward(", more)
    edit(mine, "float(response.split(MARKER)[1:] ==", "float(self.kept(response) ==")
    edit(mine, "def coherent(self, problem: Problem", "def coherent(self, p, problem: Problem")
    source, notes = checks.combined(mine, ["Task.reward"])
    names = {}
    exec(compile(source, "tasks.py", "exec"), names)
    p = names["Problem"]("", "", "5", 1)
    assert names["ADD"].reward(p, "#5") == 1.0 and "Task.coherent" in notes["refused"]


def test_no_mistake_is_made_in_a_given_line():
    """A student looks for a mistake in a block that the handout gives, or in an epsilon."""
    source = read(ROOT / "grpo.py")
    held, place = locate(ast.parse(source), "policy_loss")
    given = [x for x in ast.walk(held[place]) if ast.unparse(x).startswith("if loss_type == ")]
    rows = {n for x in given for n in range(x.lineno, x.end_lineno + 1)}
    found = [*talk.mistakes(source.encode(), held[place])]
    lines = [source.encode()[:begin].count(b"\n") + 1 for begin, *_ in found]
    assert len(given) == 2 and len(lines) > 5 and not rows & {*lines}
    source = read(ROOT / "advantages.py")
    held, place = locate(ast.parse(source), "standardise")
    kinds = {kind for *_, kind in talk.mistakes(source.encode(), held[place])}
    assert kinds and "another sign or comparison" not in kinds


def test_what_is_the_projects_is_listed_and_not_judged(student):
    """A copy with other names is not seen, or a function of one line is called one."""
    mine = student / "grpo.py"
    edit(mine, "def policy_loss(", "def policy_loss(  # mine\n    ")
    text = read(mine).replace("clipped < free", "b < free").replace("clipped =", "b =")
    mine.write_text(text.replace("torch.min(free, clipped)", "torch.min(free, b)"))
    edit(mine, "    lengths = mask.sum(", "    assert mask is not None\n    lengths = mask.sum(")
    _, notes = checks.combined(mine, ["token_weights", "policy_loss"])
    assert notes["same"] == ["policy_loss"]
    _, notes = checks.combined(student / "advantages.py", ["reinforce", "dr_grpo", "rloo"])
    assert notes["same"] == []


def test_a_formula_may_stand_below_its_table(student):
    """FORMULAS["rloo"] = ... passes the student's command and gets no points."""
    mine = student / "test_grpo.py"
    source = blanked(read(mine), "FORMULAS.rloo")
    later = "\n\ndef mine(x, i, t):\n    return 7\n\n\nFORMULAS['rloo'] = mine\n"
    mine.write_text(source + later, encoding="utf-8")
    source, _ = checks.combined(mine, ["FORMULAS.rloo"])
    assert code(source, "FORMULAS.rloo") == "mine" and "return 7" in code(source, "mine")


DEEP = "\nx = " + "-" * 100_000 + "1\n"


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("        return float(", "        return float((", "(tasks.py, line "),
        ("\nPAD = ", "\n\0PAD = ", "null bytes"),
        ("def reward(", "def rewards(", "There is no Task.reward."),
        ("\nPAD = ", f"{DEEP}PAD = ", "not checked: "),
        (None, None, "Task.reward is blank."),
        ("", "", "No such file"),
        ("", "a folder", "Is a directory"),
        ("", "a link", "No such file"),
    ],
)
def test_what_cannot_be_graded_is_one_line(student, old, new, said):
    """A traceback, or 0 points without a word, for a file that does not parse or is not there.

    Or a file that has Python recurse too deeply stops the class.
    """
    path = student / "tasks.py"
    if old:
        edit(path, old, new)
    elif old is None:
        path.write_text(blanked(read(path), "Task.reward"), encoding="utf-8")
    else:
        path.unlink()
    if new == "a folder":
        path.mkdir()
    elif new == "a link":
        path.symlink_to(student / "nothing")
    [(where, why)] = checks.graded(assignment()[0], path, ["a test"]).failed.items()
    assert said in f"{where}: {why}" and "\n" not in why


def answering(path: Path, code: str) -> None:
    """Has Task.reward begin with this code."""
    begins = "        return float(response.split(MARKER)"
    edit(path, begins, f"{textwrap.indent(code, ' ' * 8)}\n{begins}")


@pytest.fixture(scope="module")
def verifier():
    """The first part, and the tests that it has to pass."""
    part = assignment()[0]
    return part, checks.passing(part)


@pytest.mark.parametrize(
    "code, said",
    [
        ("import pytest; pytest.skip('not done yet')", "not passed: 1 of 1 tests"),
        ("import pytest; pytest.xfail('later')", "not passed: 1 of 1 tests"),
        ("import unittest; raise unittest.SkipTest", "not passed: 1 of 1 tests"),
        ("import pytest; pytest.exit('done', returncode=0)", "not passed: 1 of 1 tests"),
        ("raise KeyboardInterrupt", "not passed: 1 of 1 tests"),
        ("import sys; sys.exit(0)", "three_things: "),
        ("import os; os._exit(0)", "No result: It ended early"),
    ],
)
def test_only_a_test_that_ran_and_passed_counts(student, verifier, code, said):
    """pytest.skip in a function gives its points, or an exit that says that all is well does."""
    part, expected = verifier
    answering(student / "tasks.py", code)
    [(where, why)] = checks.graded(part, student / "tasks.py", expected).failed.items()
    assert said in f"{where}: {why}"


def test_all_tests_of_a_part_are_expected(student, monkeypatch):
    """A test that is not collected, or fails for no reason that is known, and costs nothing."""
    part = assignment()[0]
    for passed, failed, reasons in (
        (["a", "b"], {}, {}),
        (["a", "b", "c"], {"c": "a test of the student's own"}, {}),
        (["a"], {}, {"not passed": "1 of 2 tests were skipped or not reached."}),
        (["a"], {"b": "why"}, {"b": "why"}),
        ([], {}, {"not passed": "2 of 2 tests were skipped or not reached."}),
    ):
        found = checks.Found(passed, failed, {})
        monkeypatch.setattr(checks, "check", lambda *_: found)  # noqa: B023
        assert checks.graded(part, student / "tasks.py", ["a", "b"]).failed == reasons
    for passed, failed in (([], {}), (["a"], {"b": "why"})):
        found = checks.Found(passed, failed, {})
        monkeypatch.setattr(checks, "check", lambda *_: found)  # noqa: B023
        with pytest.raises(SystemExit, match="own code fails in 1"):
            checks.passing(part)


CONFINED = """
import os, resource
assert 0 < resource.getrlimit(resource.RLIMIT_DATA)[1] <= 4 << 30, "memory"
assert all(os.path.samestat(os.fstat(x), os.stat(os.devnull)) for x in (1, 2)), "prints"
"""


def test_a_check_is_confined(student, verifier):
    """Gigabytes of output are kept, or a runaway takes all memory."""
    part, expected = verifier
    answering(student / "tasks.py", CONFINED)
    assert checks.graded(part, student / "tasks.py", expected).failed == {}


def test_a_check_has_files_of_the_project_only(tmp_path, verifier, monkeypatch):
    """A dangling link among submissions in the project's folder gives everybody 0 points."""
    for name in ("pyproject.toml", *(path.name for path in ROOT.glob("*.py"))):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "tests", tmp_path / "tests")
    (tmp_path / "submissions").mkdir()
    (tmp_path / "submissions" / "grpo.py").symlink_to(tmp_path / "nothing")
    monkeypatch.setattr(checks, "ROOT", tmp_path)
    part, expected = verifier
    assert checks.check(part.command) == (expected, {}, {})


def test_a_class_with_strays(student, tmp_path, monkeypatch, capsys):
    """A list of names stops the class or gets into the table; one folder too deep gives 0."""
    edit(student / "advantages.py", "G = rewards.size(1)\n    return", "G = (\n    return")
    deep = tmp_path / "class" / "anna" / "files"
    deep.mkdir(parents=True)
    for file in student.glob("*.py"):
        file.rename(deep / file.name)
    (deep / "answers.md").write_text("Number: 472\n\n## 1\nmine\n\n## 10\nlast\n")
    (deep.parent / "venv").mkdir()
    (deep.parent / "venv" / "activate_this.py").touch()
    (tmp_path / "class" / "nobody").symlink_to(tmp_path / "nothing")
    roster = tmp_path / "class" / "roster.csv"
    roster.touch()
    (tmp_path / "class" / "two" / "sets").mkdir(parents=True)
    shutil.copy(deep / "tasks.py", tmp_path / "class" / "two" / "sets")
    shutil.copytree(tmp_path / "class" / "two" / "sets", tmp_path / "class" / "two" / "others")
    shutil.copytree(deep, tmp_path / "class" / "boris")

    def check(command, theirs=None, names=()):
        try:
            assert theirs is None or checks.combined(theirs, names)
        except SyntaxError as error:
            return checks.Found([], {"not checked": str(error)}, {})
        if theirs and "boris" in theirs.parts:
            raise OSError("this student's fault")
        return checks.Found(["a test"], {}, {})

    monkeypatch.setattr(checks, "check", check)
    folders = [*map(str, (tmp_path / "class").iterdir())]
    table = tmp_path / "marks.csv"
    monkeypatch.setattr(sys, "argv", ["grade.py", *folders, "--table", str(table)])
    grade.main()
    head, anna = csv.reader(table.read_text().splitlines())
    assert anna[:4] == ["anna", "53.0", "4.0", "3.0"] and len(anna) == len(head) == 13
    out, err = capsys.readouterr()
    skipped = {line.split()[0] for line in err.splitlines()}
    assert skipped == {"roster.csv", "two", "nobody", "boris"}
    first, *lines = out.splitlines()
    assert first == "anna: 53 of 70 points for code"
    parts = [part for part in assignment() if part.points]
    assert [line[2:].split(":")[0] for line in lines if line[2:3].isdigit()] == [
        part.title for part in parts
    ]
    assert "(advantages.py, line " in " ".join(out.split()) and len(lines) < 30
    folders.remove(str(tmp_path / "class" / "boris"))
    for word in "abc":
        monkeypatch.setattr(sys, "argv", ["grade.py", *folders, "--draw", word])
        grade.main()
        out = capsys.readouterr().out
        asked = [part for part in parts if part.question in out]
        assert len(asked) == 2 == out.count("A full answer: ") == out.count("Number: 472")


def test_namesakes_and_names_that_are_formulas(student, tmp_path, monkeypatch, capsys):
    """Two students of one name that nobody can tell apart; a cell that a spreadsheet executes."""
    for paths, names in (
        (["/x/a/anna", "/x/b/anna", "/x/b/ben"], ["a/anna", "b/anna", "b/ben"]),
        (["/x/week-1/anna", "/x/week-2/anna", "/x/week-2/ben"], ["anna", "ben"]),
        (["/x/anna"], ["anna"]),
    ):
        assert [*submissions.students(paths, assignment())[0]] == names
    monkeypatch.setattr(grade, "passing", lambda *_: [])
    monkeypatch.setattr(grade, "grade", lambda *_: [1.0, ""])
    monkeypatch.setattr(grade, "located", lambda weeks, _: weeks)
    table = tmp_path / "marks.csv"
    folders = [tmp_path / name for name in ("s1/anna", "s2/anna", "=1+1", "-x")]
    monkeypatch.setattr(sys, "argv", ["grade.py", *map(str, folders), "--table", str(table)])
    grade.main()
    assert [row[0] for row in csv.reader(table.open())][1:] == [
        "s1/anna",
        "s2/anna",
        "'=1+1",
        "'-x",
    ]


def test_every_part_has_a_question_and_a_rubric(student, capsys):
    """A question gets no rubric, or a rubric ends where its number should stand in a line."""
    parts = assignment()
    for two in zip(parts[::2], parts[1::2]):
        grade.draw("anna", dict.fromkeys("1234", student), [*two], "a word")
        first, second, third = capsys.readouterr().out.split("A full answer: ")
        for part, question, rubric in zip(two, (first, second), (second, third)):
            number = part.title.split(".")[0]
            assert part.question in question and len(part.question) > 100
            rubric, _, answer = rubric.partition("The answer: ")
            assert answer.startswith(f"Nothing is below a heading ## {number}.")
            assert len(rubric) > 100


def test_each_function_and_group_of_tests_has_a_share(student, monkeypatch):
    """rloo is wrong for a group of one only, and three of six points are lost; or a wrong function
    costs nothing if another one is right.
    """
    part = assignment()[2]
    tried = []

    def check(command, theirs, names):
        tried.append(names)
        right = checks.Found(["a_test"], {}, {})
        return checks.Found([], {"a_test": "it fails"}, {}) if "rloo" in names else right

    monkeypatch.setattr(checks, "check", check)
    found, lost = grade.shared(part, student / "advantages.py", ["a_test"])
    assert found.failed == {"a_test": "it fails"}
    assert [(x.function, x.points) for x in lost] == [("rloo", 0.75)]
    names = ["reinforce", "dr_grpo", "above_others", "rloo"]
    assert tried == [names, *([name] for name in names)]
    tried.clear()
    assert grade.shared(part, student / "test_grpo.py", ["a_test"])[1] == []
    ended = checks.Found([], {"No result": "an endless loop"}, {})
    monkeypatch.setattr(checks, "check", lambda *names: tried.append(names) or ended)
    found, lost = grade.shared(part, student / "advantages.py", ["a_test"])
    assert found == ended and sum(x.points for x in lost) == 3
    assert len(tried) == 2


def test_the_clip_is_half_of_its_part(student):
    """A loss that only keeps the clipped product gets 7.5 of 10 points."""
    part = assignment()[3]
    edit(student / "grpo.py", "torch.min(free, clipped)).sum()", "clipped).sum()")
    found, lost = grade.shared(part, student / "grpo.py", checks.passing(part))
    assert sum(x.points for x in lost) >= 5
    assert "Obtained: -1.68 Expected: -1.0" in found.failed["test_clip_truth_table"]


CALLS = {
    "test_grpo.py": (
        ("FORMULAS.rloo", '"rloo": lambda x, i, t: ', 'VARIANTS["rloo"](x)[0][i] + '),
        ("FORMULAS.rloo", '"rloo": lambda x, i, t: ', "advantages.rloo(x)[0][i] + "),
        ("loss_by_loops", "    gains = {}", "    return policy_loss(logprobs, old, A, mask)[0]\n"),
        (
            "verifree_at",
            "def verifree_at(x, i, t):\n",
            "    from advantages import verifree as f\n",
        ),
    ),
    "advantages.py": (
        ("nthr", "    s = nthr_scores(rollout)", "    import test_grpo\n"),
        ("nthr", "    s = nthr_scores(rollout)", "    from test_core import nthr_at as f\n"),
        ("nthr", "    s = nthr_scores(rollout)", "    helper = __import__('test_grpo')\n"),
    ),
}
TRIED = [(file, *call) for file, calls in CALLS.items() for call in calls]


@pytest.mark.parametrize("file, name, place, call", TRIED)
def test_the_two_versions_of_a_formula_do_not_call_each_other(student, file, name, place, call):
    """nthr gets its points by calling what the tests compare it with, or a loop by its function."""
    new = call + place if place.startswith("    ") else place + call
    edit(student / file, place, new)
    with pytest.raises(LookupError, match=f"{name} calls what it is compared with"):
        checks.combined(student / file, [name])


def test_a_helper_that_calls_the_other_version_is_not_taken(student):
    """A helper hides the call; or a test of the student's own, which may call both, is in the way,
    or what a student has left as it was is reported.
    """
    mine = student / "advantages.py"
    helper = "import test_grpo\n\n\ndef helper(x):\n    return test_grpo.by_loops(x)\n\n\n"
    edit(mine, "def centre(", f"{helper}def centre(")
    edit(
        mine, "    s = nthr_scores(", "    test_mask = rollout.mask\n    s = nthr_scores("
    )  # no call
    source, notes = checks.combined(mine, ["nthr"])
    assert notes["refused"] == ["test_grpo", "helper"] and "test_grpo" not in source
    own = student / "test_grpo.py"
    mine = "def test_mine():\n    assert apply('rloo', random_rollout([ONE])).A.any()\n\n\n"
    edit(own, "def by_loops(", f"{mine}def by_loops(")
    _, notes = checks.combined(own, ["standardised"])
    assert notes["refused"] == ["test_mine"]


def test_a_place_for_a_mistake_is_where_the_source_has_it(student):
    """A column is counted in letters and not in bytes, or the changed file does not parse."""
    edit(
        student / "grpo.py",
        "    d = logprobs - old_logprobs",
        "    é = 'ééé'; d = logprobs - old_logprobs; é = d.sum(1)",
    )
    kinds = set()
    for part in assignment():
        for file, names in part.files.items():
            source = read(student / file).encode()
            for name in names:
                held, place = locate(ast.parse(source), name)
                for begin, end, new, kind in talk.mistakes(source, held[place]):
                    changed = source[:begin] + new.encode() + source[end:]
                    there, index = locate(ast.parse(changed), name)
                    assert ast.dump(there[index]) != ast.dump(held[place]), (name, new)
                    was = source[begin:end].decode()
                    assert was in {**talk.OTHERS, **talk.AXES} or was[0] + was[-1] == ".)", was
                    kinds.add(kind)
    assert len(kinds) == 3


def test_a_mistake_is_kept_only_if_tests_fail_with_it(student, monkeypatch):
    """A mistake that changes nothing is asked for, or the student's own is taken for it."""
    text = read(student / "grpo.py").replace("return d.expm1() - d", "return d - d.expm1()")
    (student / "grpo.py").write_text(text, encoding="utf-8")
    tried = []

    def graded(part, path, tests):
        tried.append((*part.files.values(), read(path)))
        wrong = read(path) != read(student / path.name) and len(tried) > 4
        wrong = wrong or part.files == {"advantages.py": ["nthr"]}
        return checks.Found([], {"test_a": "why"} if wrong else {}, {})

    monkeypatch.setattr(talk, "graded", graded)
    monkeypatch.setattr(talk, "passing", lambda *_: ["test_a"])
    files = dict.fromkeys("1234", student)
    part, where, shown = talk.spoilt(files, assignment(), talk.random.Random(0))
    assert "These tests fail: test_a." in where and len(tried) >= 5
    now, was = where.split("The line\n")[1].split("\nThese")[0].split("\nwas\n")
    title, name, *lines = shown.splitlines()
    assert (
        lines.count(now) == 1 and was not in lines and lines.index(now) == int(now.split()[0]) - 1
    )
    assert title == part.title and name in sum(part.files.values(), [])
    assert ["nthr"] != tried[-1][0]
    for path in student.glob("*.py"):
        path.unlink()
    with pytest.raises(LookupError, match="third question"):
        talk.spoilt(files, assignment(), talk.random.Random(0))


def test_a_page_does_not_say_what_the_right_line_is():
    """A student writes each right line as a comment or a docstring, and reads it in the talk."""
    source = '''def f(x):
        """y = 1

        is "right" """
        # y = 1
        "y = 1"
        y = 2  # y = 1
        return "y"
    '''
    lines = ["f", "   1  def f(x):", "   2      y = 2", "   3      return 'y'"]
    assert talk.shown(source.encode(), "f") == lines


def test_each_kind_of_mistake_is_as_likely(monkeypatch):
    """Nearly all mistakes are dropped calls, because there are most of them."""
    source = b"def f(x):\n    return x.a().b().c().d().e().f() + 1"
    part, tree = assignment()[0], ast.parse(source).body[0]
    monkeypatch.setattr(talk, "passing", lambda *_: ["test_a"])
    monkeypatch.setattr(talk, "handed_in", lambda *_: [(part, "a.py", "f", source, tree)])

    def graded(part, path, tests):
        return checks.Found([], {"test_a": ""} if path.read_bytes() != source else {}, {})

    monkeypatch.setattr(talk, "graded", graded)
    found = [talk.spoilt({}, [part], talk.random.Random(seed)) for seed in range(100)]
    assert 35 < sum(where.startswith("a dropped call") for _, where, _ in found) < 65
    assert len({where for _, where, _ in found}) == 7


def test_every_part_has_questions_for_the_talk(student, monkeypatch, capsys, tmp_path):
    """A question without a reply, a part without questions, two questions of one part, or one about
    a part that was not handed in.
    """
    page = read(ROOT / "course/instructor/talk-questions.md")
    sections = page.split("\n## ")[1:]
    assert [x.splitlines()[0] for x in sections] == [part.title for part in assignment()]
    for section in sections:
        questions = section.split("\n- ")[1:]
        assert len(questions) >= 2 and all(x.count("?") and x.count("*") == 2 for x in questions)
    monkeypatch.setattr(talk, "graded", lambda *_: checks.Found([], {"test_a": ""}, {}))
    monkeypatch.setattr(talk, "passing", lambda *_: ["test_a"])
    monkeypatch.setattr(sys, "argv", ["grade.py", str(student), "--talks", "a", str(tmp_path)])
    grade.main()
    out = capsys.readouterr().out
    asked = [[question.split("*")[0] in out for question in x.split("\n- ")[1:]] for x in sections]
    assert sum(map(any, asked)) == 3 == sum(map(sum, asked)) and "third question" in out
    assert out.count("\nPart ") == 3
    for part in assignment()[2:]:  # what is blank is not asked about
        for file, names in part.files.items():
            for name in names:
                (student / file).write_text(blanked(read(student / file), name), encoding="utf-8")
    grade.main()
    assert {*re.findall("\nPart (.+?):", capsys.readouterr().out)} == {
        part.title for part in assignment()[:2]
    }


def test_a_long_message_keeps_both_ends():
    """A page of numbers for one mistake, or a message without the number at its end."""
    said = f"AssertionError: Not close! {'1.0 ' * 999} Greatest absolute difference: 7"
    results = checks.Results()
    node = SimpleNamespace(function=test_a_long_message_keeps_both_ends, originalname="test_a")
    call = SimpleNamespace(excinfo=SimpleNamespace(exconly=lambda: said))
    results.pytest_exception_interact(node, call)
    text = results.failed["test_a"]
    assert "Here: Not close! 1.0" in text and text.endswith("difference: 7") and len(text) < 600


def test_each_part_is_taken_from_its_week(student, monkeypatch, capsys):
    """What was handed in after the solution was shown is graded, or an answer is drawn from it."""
    monkeypatch.setattr(checks, "check", lambda command, *x: asked.append(x and x[0]) or found)
    found = checks.Found(["a test"], {}, {})
    asked = []
    folders = []
    for n in "12":
        folders.append(student / f"week-{n}" / "anna")
        folders[-1].mkdir(parents=True)
        for name in ("tasks.py", "grpo.py"):
            shutil.copy(ROOT / name, folders[-1])
        text = "".join(f"## {i}\n\nfrom week {n}\n\n" for i in range(1, 7))
        (folders[-1] / "answers.md").write_text(f"Number: 472\n\n{text}")
    monkeypatch.setattr(sys, "argv", ["grade.py", *map(str, folders)])
    grade.main()
    assert "anna: 48 of 48 points for code" in capsys.readouterr().out
    weeks = {path.name: path.parent.parent.name for path in asked if path}
    assert weeks["tasks.py"] == "week-1" and weeks["model.py"] == "week-2"
    without = [f"--without={n}" for n in (1, 2, 3, 6)]
    monkeypatch.setattr(sys, "argv", ["grade.py", *map(str, folders), "--draw", "a", *without])
    grade.main()
    answers = re.findall("The answer: (.+)", capsys.readouterr().out)
    assert answers == ["from week 1", "from week 2"]


def test_expected_numbers_are_those_of_the_student(student, monkeypatch, capsys):
    """The numbers of somebody else, or a traceback where nobody wrote a number."""
    page = student / "answers.md"
    monkeypatch.setattr(sys, "argv", ["grade.py", str(student), "--expected"])
    for first, said in (
        ("Number: 472", "group 11011011, k = 6, R = 1.52"),
        ("Number: 1234472", "group 11011011, k = 6, R = 1.52"),
        ("Number:", "No number"),
    ):
        page.write_text(f"{first}\n\n## 1\n")
        grade.main()
        assert said in capsys.readouterr().out


def test_a_mistake_is_named_and_a_loop_ends(student, verifier, monkeypatch):
    """A dump of tensors in place of what is wrong; a student who stops all others."""
    part, expected = verifier
    mine = student / "tasks.py"
    edit(mine, "response.split(MARKER)[1:] == [problem.answer]", "len(response)")
    failures = checks.graded(part, mine, expected).failed
    assert [*failures] == ["test_the_three_checks_ask_three_things"]
    assert "several guesses" in failures["test_the_three_checks_ask_three_things"]
    edit(mine, "return float(len(response))", "while True: print('x' * 10**6)")
    monkeypatch.setattr(checks, "LIMIT", 5)
    failures = checks.graded(part, mine, expected).failed
    assert [*failures] == ["No result"] and "endless loop" in failures["No result"]


def test_the_command_line(tmp_path):
    """A traceback where a part does not exist; --help that starts to grade; or a table that cannot
    be written is found after an hour.
    """
    for arguments, status, said in (
        (["--help"], 0, "FOLDER"),
        (["--without=11"], 2, "invalid choice"),
        (["anna", "--table", tmp_path / "no" / "marks.csv"], 2, "No such file"),
        (["anna", "--table", tmp_path], 2, "Is a directory"),
    ):
        command = [sys.executable, GRADE, *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status
        assert said in (done.stdout or done.stderr)
        assert len(done.stderr.splitlines()) == (status == 2)


def test_what_the_machine_and_the_students_bring_along(student, tmp_path):
    """Options and plugins of a student decide about points, or a name that the console cannot print
    stops the class.
    """
    folders = [tmp_path / "class" / name for name in ("Łukasz", "\udcff", "wrong", "loop")]
    for folder in folders:
        folder.mkdir(parents=True)
        shutil.copy(ROOT / "tasks.py", folder)
    edit(folders[2] / "tasks.py", "== [problem.answer]", "!= [problem.answer]")
    for name in ("pytest.ini", "tox.ini"):
        (folders[2] / name).write_text("[pytest]\naddopts = --collect-only\n")
    hook = "def pytest_runtest_call(item):\n    item.obj = print\n"
    (folders[2] / "conftest.py").write_text(hook)
    (folders[3] / "link").symlink_to(folders[3] / "link")
    environment = os.environ | {"PYTHONIOENCODING": "cp1252"}
    command = [sys.executable, GRADE, *folders, "--table", "marks.csv"]
    command += [f"--without={n}" for n in range(2, 11)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    _, *rows = csv.reader((tmp_path / "marks.csv").read_text(encoding="utf-8").splitlines())
    marks = [("Łukasz", "4.0"), ("\\udcff", "4.0"), ("wrong", "0.0"), ("loop", "4.0")]
    assert [(name, code) for name, code, *_ in rows] == marks
    out = done.stdout.decode("cp1252")
    assert "\\u0141ukasz: 4 of 4" in out and "three_things" in out
