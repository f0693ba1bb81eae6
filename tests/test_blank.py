"""course.blank as a student runs it."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_links

from course.blank import assignment, locate, read

ROOT = Path(__file__).parent.parent
FILES = ["tasks.py", "model.py", "grpo.py", "advantages.py", "train.py", "test_grpo.py"]
GIT = "git -c user.name=me -c user.email=me@localhost"


def blank(folder: Path, arguments: str) -> tuple[int, list[str], list[str]]:
    """Status, lines of output, lines on standard error."""
    command = [sys.executable, "-m", "course.blank", *arguments.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture
def copy(tmp_path):
    """A copy of the files that the assignment needs, under version control."""
    for name in ["course/blank.py", "course/README.md", *FILES]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.check_call(
        f"{GIT} init -q; {GIT} add .; {GIT} commit -qm all", shell=True, cwd=tmp_path
    )
    return tmp_path


def node(folder: Path, file: str, name: str) -> ast.AST:
    held, place = locate(ast.parse(read(folder / file)), name)
    return held[place]


def test_what_is_not_committed_is_not_lost(copy):
    """An hour's work overwritten, half a job, an error without what is allowed."""
    with open(copy / "model.py", "a", encoding="utf-8") as file:
        file.write("# not committed\n")
    for arguments, said in (("", "update"), ("losses", "update"), ("update generate", "model.py")):
        status, commands, [error] = blank(copy, arguments)
        assert (status, commands) == (2, []) and said in error
        assert read(copy / "grpo.py") == read(ROOT / "grpo.py")
    status, commands, errors = blank(copy, "update generate --force")
    assert (status, len(commands), errors) == (0, 2, [])
    shutil.rmtree(copy / ".git")
    assert blank(copy, "policy_loss")[0] == 2  # not under version control


def test_a_body_goes_and_nothing_else(copy):
    """A wrong body, a docstring that is lost, or a formula that is left where loops come first."""
    assert blank(copy, "update FORMULAS.rloo rloo")[0] == 0
    for file in FILES:
        pairs = zip(ast.parse(read(ROOT / file)).body, ast.parse(read(copy / file)).body)
        changed = [(was, now) for was, now in pairs if ast.dump(was) != ast.dump(now)]
        wanted = {"grpo.py": ["update"], "advantages.py": ["rloo"], "test_grpo.py": ["FORMULAS"]}
        names = [getattr(was, "name", "FORMULAS") for was, _ in changed]
        assert names == wanted.get(file, [])
    was, now = node(ROOT, "grpo.py", "update"), node(copy, "grpo.py", "update")
    assert ast.get_docstring(was) == ast.get_docstring(now)
    assert ast.unparse(now.body[1:]) == "raise NotImplementedError"
    now = node(copy, "advantages.py", "rloo")
    assert ast.get_docstring(now).endswith("course/README.md: 3. Three baselines.")
    assert ast.unparse(now.body[1:]) == "raise NotImplementedError"
    with pytest.raises(LookupError):
        node(copy, "test_grpo.py", "FORMULAS.rloo")


def test_all_is_the_whole_assignment_without_its_extra_part(copy):
    """A function that is forgotten, attention that nobody can go on without, 99 points."""
    parts = assignment()
    assert sum(part.points for part in parts) == 70
    status, commands, _ = blank(copy, "--all")
    assert status == 0 and commands == [part.command for part in parts if part.points]
    assert len(assignment(["8", "10"])) == len(parts) - 2
    for part in parts:
        for file, names in part.files.items():
            for name in names:
                if name.startswith("FORMULAS"):
                    with pytest.raises(LookupError):
                        node(copy, file, name)
                else:
                    body = ast.unparse(node(copy, file, name))
                    assert body.endswith("raise NotImplementedError") == (part.points > 0)


def hand_out(*arguments) -> subprocess.CompletedProcess:
    script = ROOT / "course" / "instructor" / "hand_out"
    return subprocess.run(["sh", script, *arguments], cwd=ROOT, capture_output=True, text=True)


def test_a_handout_has_no_solution(tmp_path, monkeypatch):
    """The instructor's folder, the history, or a line of a solution is handed out; a dead link.

    Or the first page promises what blank functions cannot do.
    """
    made = tmp_path / "handout"
    monkeypatch.setenv("ADDRESS", "https://localhost/a@b/grpo.git")
    assert hand_out(made).returncode == 0
    first = read(made / "README.md")
    assert "This is the handout of an assignment" in first and "Now you can" not in first
    assert all(
        "git clone https://localhost/a@b/grpo.git" in x
        for x in (first, read(made / "course/README.md"))
    )
    assert not (made / "course" / "instructor").exists()
    assert not [*(made / "tools").glob("explore*")]
    for page in [*made.rglob("*.md"), *made.rglob("*.ipynb")]:
        test_links.test_every_link_leads_to_a_file_and_a_heading(page)
    commits = subprocess.check_output(["git", "rev-list", "--all"], cwd=made, text=True)
    assert len(commits.split()) == 1
    extra = [x for part in assignment() if not part.points for x in sum(part.files.values(), [])]
    sources = [read(path) for form in ("*.py", "*.md") for path in made.rglob(form)]
    page = read(ROOT / "course" / "instructor" / "wrong_solutions.md")
    for entry in page.split("\n### ")[1:]:
        lines = re.findall("^-(.*\n)", entry.split("```diff")[1], re.M)
        shown = any("".join(lines) in source for source in sources)
        assert lines and shown == (entry.split("`")[1] in extra), entry


def test_a_handout_is_complete_or_not_there(tmp_path):
    """A typo leaves a folder with every solution; a part that a class leaves out has no way."""
    made = tmp_path / "handout"
    done = hand_out(made, "generat")
    assert done.returncode == 2 and "allowed are" in done.stderr and not made.exists()
    assert hand_out(made, "--without", "8", "--without", "10").returncode == 0
    assert "already solved in this copy: 8, 10." in read(made / "course" / "README.md")[:300]
    for part in assignment():
        name = sum(part.files.values(), [])[-1]
        body = ast.unparse(node(made, [*part.files][-1], name))
        given = part.title[:2] in ("8.", "10") or not part.points
        assert body.endswith("raise NotImplementedError") != given, part.title
    done = hand_out(made)
    assert done.returncode == 2 and "exists" in done.stderr
