"""course.blank as a student runs it."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import test_links

import test_grpo
from course.blank import SHOWN, assignment, locate, read

ROOT = Path(__file__).parent.parent
FILES = ["tasks.py", "model.py", "grpo.py", "advantages.py", "train.py", "test_grpo.py"]
GIT = "git -c user.name=me -c user.email=me@localhost -c commit.gpgsign=false"


def blank(folder: Path, arguments: str) -> tuple[int, list[str], list[str]]:
    """Status, lines of output, lines on standard error."""
    command = [sys.executable, "-m", "course.blank", *arguments.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


@pytest.fixture
def copy(tmp_path):
    """A copy of the files that the assignment needs, under version control."""
    for name in ["course/blank.py", "course/README.md", *FILES, *(row[0] for row in SHOWN)]:
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
    """An hour's work overwritten, staged or not; half a job."""
    with open(copy / "model.py", "a", encoding="utf-8") as file:
        file.write("# not committed\n")
    for command in ("git status", "git add model.py"):
        subprocess.check_call(command, shell=True, cwd=copy, stdout=subprocess.DEVNULL)
        status, said, [error] = blank(copy, "")
        assert (status, said) == (2, []) and "model.py" in error
        assert read(copy / "grpo.py") == read(ROOT / "grpo.py")
    assert blank(copy, "--force") == (0, [], [])
    shutil.copytree(ROOT / "course", copy / "course", dirs_exist_ok=True)
    shutil.rmtree(copy / ".git")
    for name in [*FILES, *(row[0] for row in SHOWN)]:
        shutil.copy(ROOT / name, copy / name)
    assert blank(copy, "")[0] == 2  # not under version control


def test_line_ends_and_owners_are_no_changes(copy):
    """A checkout of Windows, or one of somebody else, counts as work that would be lost."""
    shutil.copy(ROOT / ".gitattributes", copy)
    path = copy / "model.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        os.chown(copy / ".git", 12345, 12345)
        os.chown(copy, 12345, 12345)
    assert blank(copy, "")[0] == 0
    assert ast.unparse(node(copy, "model.py", "generate").body[1:]) == "raise NotImplementedError"


@pytest.mark.parametrize(
    "spoils",
    [
        lambda path: path.unlink(),
        lambda path: path.write_text(read(path).replace("def update(", "def mine(")),
        lambda path: path.write_text("(" + read(path)),
        lambda path: path.write_bytes(b"#\xff\n" + path.read_bytes()),
    ],
)
def test_nothing_is_written_before_everything_is_known(copy, spoils):
    """A file that cannot be read leaves the assignment half blank."""
    spoils(copy / "grpo.py")
    assert blank(copy, "--force")[0] != 0
    for file in {*FILES} - {"grpo.py"}:
        assert read(copy / file) == read(ROOT / file)


def test_a_form_feed_is_no_line(copy):
    """Another function is blanked, because Python's syntax tree counts lines in another way."""
    path = copy / "model.py"
    path.write_text("# a page\x0cand another\x1c\n" + read(path), encoding="utf-8")
    assert blank(copy, "--force")[0] == 0
    for was, now in zip(ast.parse(read(ROOT / "model.py")).body, ast.parse(read(path)).body):
        assert (ast.dump(was) != ast.dump(now)) == (getattr(was, "name", "") == "generate")


def test_a_body_goes_and_nothing_else(copy):
    """A wrong body, a docstring that is lost, or a formula that is left where loops come first.

    Or a student has to write gspo and cispo, which the page says are given; or grpo is given.
    """
    assert blank(copy, "")[0] == 0
    asked = {name.split(".")[0] for part in assignment() for x in part.files.values() for name in x}
    for file in FILES:
        pairs = zip(ast.parse(read(ROOT / file)).body, ast.parse(read(copy / file)).body)
        changed = [was for was, now in pairs if ast.dump(was) != ast.dump(now)]
        names = {getattr(was, "name", "FORMULAS") for was in changed}
        assert names <= asked | {"grpo", "test_update_equals_its_steps_by_hand"}
    was, now = node(ROOT, "grpo.py", "update"), node(copy, "grpo.py", "update")
    assert ast.get_docstring(was) == ast.get_docstring(now)
    assert ast.unparse(now.body[1:]) == "raise NotImplementedError"
    now = node(copy, "advantages.py", "above_others")
    assert ast.get_docstring(now).endswith("course/README.md: 3. Three baselines.")
    assert ast.unparse(now.body[1:]) == "raise NotImplementedError"
    was, now = node(ROOT, "grpo.py", "policy_loss"), node(copy, "grpo.py", "policy_loss")
    given = [ast.unparse(x) for x in was.body if isinstance(x, ast.If)]
    assert ["gspo" in given[0], "cispo" in given[1]] == [True] * len(given)
    assert [ast.unparse(x) for x in now.body[1:]] == [*given, "raise NotImplementedError"]


def test_all_is_the_whole_assignment(copy):
    """A function that is forgotten."""
    parts = assignment()
    assert [part.number for part in parts] == [*map(str, range(1, 11))]
    assert "".join(part.week for part in parts) == "1111223334"
    assert blank(copy, "")[0] == 0
    assert [part.number for part in assignment(["8", "10"])] == [*"1234567", "9"]
    for part in parts:
        for file, names in part.files.items():
            for name in names:
                if name.startswith("FORMULAS"):
                    with pytest.raises(ValueError):
                        node(copy, file, name)
                else:
                    body = ast.unparse(node(copy, file, name))
                    assert body.endswith("raise NotImplementedError")


def told(file: str, first: str, last: str) -> str:
    """What a file of the project says between these words, which is left out of the handout."""
    source = read(ROOT / file)
    assert source.count(first) == 1
    begin = source.index(first)
    return source[begin : source.index(last, begin)]


def test_the_steps_by_hand_are_packed_and_still_a_test(copy, monkeypatch):
    """The test of update shows update to whoever reads it, or it tests nothing any more."""
    assert blank(copy, "")[0] == 0
    source = read(copy / "test_grpo.py")
    name = "test_update_equals_its_steps_by_hand"
    [code] = [ast.unparse(x) for x in ast.parse(source).body if getattr(x, "name", "") == name]
    names = dict(vars(test_grpo))
    exec(code, names)
    names[name]({"kl": 0.5, "minibatches": 9})

    def wrong(model, optimizer, rollout, **how):
        return test_grpo.update(model, optimizer, rollout, **how | {"kl": how["kl"] / 2})

    names["update"] = wrong
    with pytest.raises(AssertionError):
        names[name]({"kl": 0.5, "minibatches": 9})
    assert "policy_loss(" not in code and "tensor_split" not in code


def test_the_columns_of_a_run(tmp_path):
    """A traceback for a folder or a column that is not there; a byte order mark in a name.

    A torn row that is shown, or that is left out in silence.
    """
    (tmp_path / "metrics.csv").write_bytes(b"\xef\xbb\xbfstep,reward\r\n1,0.5\r\n2,\r\n3")
    for names, said in (
        ("step reward", "0.5000"),
        ("loss", "no column loss. Its columns are step, reward"),
        ("", ""),
    ):
        command = [sys.executable, "-m", "course.show", tmp_path, *names.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        torn, *more = done.stderr.splitlines()
        assert "the last row of metrics.csv is torn" in torn and len(more) <= 1
        assert said in done.stdout + done.stderr
    command = [sys.executable, "-m", "course.show", tmp_path / "no", "step"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


def test_the_course_installs_jupyter():
    """Lecture 1 says to open the notebook in Jupyter, and no file of requirements has it."""
    assert "\njupyterlab==" in read(ROOT / "course" / "requirements.txt")


SCRIPT = ROOT / "course" / "instructor" / "hand_out"


def hand_out(*arguments, script=SCRIPT, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(["sh", script, *arguments], capture_output=True, text=True, **settings)


def runs(statements: list[str]) -> set[tuple[str, ...]]:
    """Each one, two or three statements that follow each other."""
    return {tuple(statements[i : i + n]) for n in (1, 2, 3) for i in range(len(statements) - n + 1)}


def shown(path: Path) -> tuple[str, set[tuple[str, ...]]]:
    """The text of a file, and the runs of its lines and of the statements of its Python code."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".ipynb":
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    found = runs([line.strip() for line in text.splitlines() if line.strip()])
    blocks = re.findall(r"(?:(?: {4}.*)?\n)+|(?s:^```.*?^```)", text, re.M)
    blocks = [textwrap.dedent(re.sub("^```.*", "", block, flags=re.M)) for block in blocks]
    for code in [text] if path.suffix == ".py" else blocks:
        try:
            bodies = [getattr(x, "body", []) for x in ast.walk(ast.parse(code))]
        except (SyntaxError, ValueError):  # a block of a page in another language
            continue
        for body in [body for body in bodies if isinstance(body, list)]:
            found |= runs([ast.unparse(x) for x in body])
    return text, found


def solutions():
    """name, runs, sums of each function of the assignment.

    Runs are three statements of its body that follow each other, or all of a shorter body. Sums
    (products, quotients, ...) are what it computes with at least two operators or a call.
    """
    for part in assignment():
        for file, names in part.files.items():
            for name in names:
                found = node(ROOT, file, name)
                body = [found] if isinstance(found, ast.expr) else found.body
                body = body[isinstance(body[0], ast.Expr) and len(body) > 1 :]
                sums = [x for line in body for x in ast.walk(line) if isinstance(x, ast.BinOp)]
                long = {
                    x for x in runs([ast.unparse(x) for x in body]) if len(x) == min(3, len(body))
                }
                sums = {ast.unparse(x) for x in sums if len([*ast.walk(x)]) > 9}
                yield name, long, sums


def given_away(folder: Path) -> set[tuple[str, str]]:
    """(function, file): what a file of a handout shows of a solution.

    Its runs, and in files other than the core, which also has what is given, its sums.
    """
    found = set()
    all_solutions = [*solutions()]
    for path in [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]:
        text, there = shown(path)
        for name, long, sums in all_solutions:
            if long & there or path.name not in FILES and any(x in text for x in sums):
                found.add((name, str(path.relative_to(folder))))
    return found


def test_a_handout_has_no_solution(tmp_path, monkeypatch):
    """The instructor's folder, the history, or a line of a solution is handed out; a dead link.

    Or the first page promises what blank functions cannot do.
    """
    made = tmp_path / "handout"
    monkeypatch.setenv("ADDRESS", "https://localhost/a@b/grpo.git")
    assert hand_out(made).returncode == 0
    assert given_away(made) == set()
    assert "policy_loss(" not in read(made / "studies/gradients.py")  # it is half of update
    first = read(made / "README.md")
    assert "This is the handout of an assignment" in first
    assert all(
        "git clone https://localhost/a@b/grpo.git" in x
        for x in (first, read(made / "course/README.md"))
    )
    assert not (made / "course" / "instructor").exists()
    assert not [*(made / "tools").glob("explore*")]
    assert "explore" not in read(made / "tools/README.md") and ".py#L" not in first
    for page in [*made.rglob("*.md"), *made.rglob("*.ipynb")]:
        test_links.test_every_link_leads_to_a_file_and_a_heading(page)
    commits = subprocess.check_output(["git", "rev-list", "--all"], cwd=made, text=True)
    assert len(commits.split()) == 1
    sources = [read(path) for form in ("*.py", "*.md") for path in made.rglob(form)]
    page = read(ROOT / "tests" / "wrong_solutions.txt")
    for entry in page.split("\n### ")[1:]:
        lines = re.findall("^-(.*\n)", entry.split("```diff")[1], re.M)
        assert lines and not any("".join(lines) in source for source in sources), entry
    for file, first, last, _ in SHOWN:
        text = told(file, first, last)
        lines = [x.strip() for x in text.splitlines() if len(x.strip()) > 30] or [text]
        assert not [x for x in lines if any(x in source for source in sources)], file


def test_a_handout_is_whole_whatever_git_is_told(tmp_path, monkeypatch):
    """A template or attributes of git's that leave files out, or a CDPATH: pages are missing."""
    template = tmp_path / "template"
    (template / "info").mkdir(parents=True)
    (template / "info" / "exclude").write_text("*.md\n")
    (tmp_path / "attributes").write_text("*.md export-ignore\n")
    settings = f"[init]\n    templateDir = {template}\n"
    settings += f"[core]\n    attributesFile = {tmp_path / 'attributes'}\n"
    (tmp_path / "gitconfig").write_text(settings)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(template))
    monkeypatch.setenv("CDPATH", f"{tmp_path}:.")
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    made = tmp_path / "handout"
    done = hand_out(made)
    assert done.returncode == 0
    listed = subprocess.check_output(["git", "ls-files"], cwd=made, text=True).splitlines()
    there = [x for x in made.rglob("*") if x.is_file() and ".git" not in x.relative_to(made).parts]
    assert len(listed) == len(there) > 60 and "README.md" in listed
    assert f"The handout has {len(there)} files." in done.stderr


def test_a_handout_is_complete_or_not_there(tmp_path):
    """A typo leaves a folder with every solution; a part that a class leaves out has no way."""
    made = tmp_path / "handout"
    done = hand_out(made, "--without", "88")
    assert done.returncode == 2 and "invalid choice" in done.stderr and not made.exists()
    assert hand_out(made, "--without", "8", "--without", "10").returncode == 0
    note = " ".join(read(made / "course" / "README.md")[:400].split())
    assert "already solved in this copy: 8, 10." in note
    assert "Their questions do not count either." in note
    for part in assignment():
        name = sum(part.files.values(), [])[-1]
        body = ast.unparse(node(made, [*part.files][-1], name))
        given = part.title[:2] in ("8.", "10")
        assert body.endswith("raise NotImplementedError") != given, part.title
    done = hand_out(made)
    assert done.returncode == 2 and "exists" in done.stderr


SETTINGS = """
[commit]
    gpgsign = true
[gpg]
    program = false
[core]
    hooksPath = {0}
    excludesFile = {0}/x
"""


def test_a_handout_on_any_machine(tmp_path, monkeypatch):
    """A folder of an archive, with `%41` in its name, python3 only, signed commits, other owners.

    Or code for the reader of the first page is a solution.
    """
    project = tmp_path / "100%41 of it"
    for name in ("course", "studies", "tools", "tests"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":
            shutil.copy(path, project)
    code = "ratio, clipped = 1, 2\nloss = -torch.min(ratio * A, clipped * A)\n"
    given = "    config = GRPOConfig()\n\n    python train.py --variant nthr\n"
    more = f"Kept:\n\n{given}\nThe loss:\n\n```python\n{code}```\n\nKept as well.\n"
    (project / "README.md").write_text(f"{read(project / 'README.md')}\n{more}", encoding="utf-8")
    programs = tmp_path / "programs"  # python3, no python
    programs.mkdir()
    for name in "sh git tar cp mv rm mkdir mktemp dirname find perl".split():
        (programs / name).symlink_to(shutil.which(name))
    (programs / "python3").symlink_to(sys.executable)
    (programs / "python").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python").chmod(0o755)
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "commit-msg").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "commit-msg").chmod(0o755)
    (hooks / "x").write_text("*.pt\n")
    (tmp_path / "config").write_text(SETTINGS.format(hooks))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(programs))
    script = project / "course" / "instructor" / "hand_out"
    for name in ("of files", "of a commit"):
        made = tmp_path / name
        done = hand_out(f"../{name}", script=script, cwd=project)
        assert done.returncode == 0, done.stderr
        assert ("no repository" in done.stderr) == (name == "of files")
        text = read(made / "README.md")
        assert "torch.min" not in text and given in text and "Kept as well." in text
        assert text.count("(This code is part of the assignment.)") >= 1
        listed = subprocess.check_output([f"{programs}/git", "ls-files"], cwd=made, text=True)
        assert {"course/weights/add-base.pt", "README.md", "train.py"} <= {*listed.split()}
        assert "stray" not in listed and "instructor" not in listed
        if name == "of a commit":
            break
        ours = f"{GIT} -c core.hooksPath=/dev/null -c core.excludesFile=/dev/null"
        commit = f"{ours} init -q && {ours} add . && {ours} commit -qm all && : > stray.md"
        subprocess.check_call(commit, shell=True, cwd=project)
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            os.chown(project / ".git", 12345, 12345)
            os.chown(project, 12345, 12345)
    done = hand_out(tmp_path / "no" / "handout", script=script)
    assert done.returncode == 2 and "a folder that exists" in done.stderr
