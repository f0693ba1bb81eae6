"""Without these tests course.blank could overwrite a student's work, or leave answers in."""

import ast
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import test_links

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
    status, _, [error] = blank(copy, "--force")
    assert status == 2 and "blank already" in error
    shutil.copytree(ROOT / "course", copy / "course", dirs_exist_ok=True)
    shutil.rmtree(copy / ".git")
    for name in [*FILES, *(row[0] for row in SHOWN)]:
        shutil.copy(ROOT / name, copy / name)
    assert blank(copy, "")[0] == 2  # not under version control


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
        assert names <= asked | {"grpo"}
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
    assert [part.number for part in parts] == [*"12345678"]
    assert "".join(part.week for part in parts) == "11112233"
    assert blank(copy, "")[0] == 0
    assert [part.number for part in assignment(["8"])] == [*"1234567"]
    for part in parts:
        for file, names in part.files.items():
            for name in names:
                if name.startswith("FORMULAS"):
                    with pytest.raises(ValueError):
                        node(copy, file, name)
                else:
                    body = ast.unparse(node(copy, file, name))
                    assert body.endswith("raise NotImplementedError")


def test_the_columns_of_a_run(tmp_path):
    """A traceback for a folder or a column that is not there; a byte order mark in a name.

    A row without the column is shown.
    """
    (tmp_path / "metrics.csv").write_bytes(b"\xef\xbb\xbfstep,reward\r\n1,0.5\r\n2,\r\n")
    for names, said in (
        ("step reward", "0.5000"),
        ("loss", "no column loss. Its columns are step, reward"),
        ("", "columns that it has: step, reward"),
    ):
        command = [sys.executable, "-m", "course.show", tmp_path, *names.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert len(done.stderr.splitlines()) <= 1
        assert said in done.stdout + done.stderr
    command = [sys.executable, "-m", "course.show", tmp_path / "no", "step"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


SCRIPT = ROOT / "course" / "instructor" / "hand_out"
BINARY = (".pt", ".png", ".csv")


def hand_out(*arguments, script=SCRIPT, **settings) -> subprocess.CompletedProcess:
    return subprocess.run(["sh", script, *arguments], capture_output=True, text=True, **settings)


# What a part asks for, as a formula in any language: in a text without spaces, dollars, braces,
# indices and the names of modules.
ASKED = {
    "Task.reward": r"split\((#|marker)\).{0,80}==.{0,20}answer|count\((#|marker)\)={2,3}1",
    "standardise": r"/\([\w.]*(std|sigma|deviation|sd|sqrt|\bs)\w*(\(.{0,40}?\))?\+"
    r"(\w*eps|1e-6|10\^-6)",
    "rloo": r"\bg\)?/\(g-1\)|g/max\(g-1|(sum|total)\w*(\(.{0,30}?\))?-.{1,12}\)/\(.{1,20}-1\)"
    r"|\[:i\]\+.{0,15}\[i\+1:\]|delete\(\w*,i\)",
    "token_weights": r"mask\w*/\(?(mask|lengths?|n)\w*\.(sum|numel)",
    "policy_loss": r"min\w*\(.{0,12}(ratio|rho).{0,12},.{0,40}(clip|clamp|min|max)",
    "response_logprobs": r"log_?softmax.{0,60}gather",
    "update": r"tensor_split|array_split|kl\*.{0,30}k3",
    "negative": r"\b(some|any|every|all_?fail)\b.{0,70}(return|=>|:|fill\(\w*,|where\(\w*,)\[?-"
    r"(c|1)\b|return\[?-(c|1)\b.{0,50}(any|all|sum|max)\(",
    "ngrpo": r"(rewards|\br),1|rewards\+\[1|concat\(\[?1|(sum|total).{0,20}\+1\)/\(.{0,12}\+1\)"
    r"|ones_like\(.{0,8}rewards",
    "train": r"min\(.{0,6}(n|step)\w*(\+1\))?/10,",
}
THE_PAGE = ["standardise", "policy_loss", "update", "train"]  # it gives these formulas
ALLOWED = {("course/README.md", name) for name in THE_PAGE} | {
    ("course/lecture-1.ipynb", "policy_loss"),  # the lecture explains it, as the page says
    ("advantages.py", "standardise"),  # the docstring of `process`, which is given
    ("advantages.py", "update"),  # `ppo`, which is given, also makes mini-batches
    ("grpo.py", "update"),  # its docstring
    ("tasks.py", "Task.reward"),  # `coherent`, which is given, compares another text
    ("test_grpo.py", "standardise"),  # `process`, which is given
    ("test_grpo.py", "update"),  # the test of update makes its steps by hand
    ("test_grpo.py", "train"),  # the test of the learning rate
    ("test_grpo.py", "rloo"),  # the test of verifree's gradient: the mean of the other L
    ("tools/trainers.md", "standardise"),  # one line for another library
    ("studies/difficulty.py", "verifree"),  # p / (1 - p) of another formula
}


def text_of(path: Path) -> str:
    """A file as text; of a notebook its cells."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix == ".ipynb":
        text = "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return text


def asked_in(text: str) -> set[str]:
    """The functions of the assignment whose formulas a text has, whatever its language."""
    text = re.sub(r"\\[dt]?frac\{(.+?)\}\{(.+?)\}", r"(\1)/(\2)", text.lower())
    text = re.sub(r"\b(torch|math|np|numpy|this)\.", "", re.sub(r"\\cdot|×|·", "*", text))
    text = re.sub(r"_\{.*?\}|_\w\b|\[\w\]", "", text.replace("−", "-"))
    text = re.sub(r"[^\w+\-*/()\[\]=<>.,:#|?!;]", "", text)
    return {name for name, formula in ASKED.items() if re.search(formula, text)}


def lines_of(text: str) -> list[str]:
    """The lines without indents and comments."""
    lines = (line.split("  # ")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def solutions():
    """name, and each three lines of the body that follow each other, of all that is asked for."""
    for part in assignment():
        for file, names in part.files.items():
            for name in names:
                found = node(ROOT, file, name)
                body = [found] if isinstance(found, ast.expr) else found.body
                body = body[isinstance(body[0], ast.Expr) and len(body) > 1 :]
                source = read(ROOT / file).splitlines()[body[0].lineno - 1 : body[-1].end_lineno]
                lines = lines_of("\n".join(source))
                for i in range(max(1, len(lines) - 2)):
                    yield name, "\n".join(lines[i : i + 3])


@pytest.mark.parametrize(
    "name, planted",
    [
        ("negative", "def pushes(r):\n    return [-1.0] * len(r) if not any(r) else scaled(r)"),
        ("negative", "x.some((r) => r) ? standardise(x) : x.map(() => -1)"),
        ("ngrpo", "const ngrpo = (x) => standardise([...x.rewards, 1]);"),
        ("ngrpo", r"Its mean is $\mu' = \frac{\sum_j r_j + 1}{G + 1}$, and so on."),
        ("rloo", "const rloo = (r) => r.map((x) => x - (sum(r) - x) / (r.length - 1));"),
        ("rloo", r"So `rloo` gives $\frac{G}{G-1} (r_i - \mu)$ to response $i$."),
        ("policy_loss", "-Math.min(ratio * A, Math.min(Math.max(ratio, low), high) * A)"),
        ("standardise", "A = [(x - m) / (statistics.pstdev(r) + 1e-6) for x in r]"),
        ("rloo", "A = [r[i] - mean(r[:i] + r[i + 1 :]) for i in range(len(r))]"),
        ("token_weights", "weights = mask / mask.sum()"),
        ("Task.reward", 'y.split("#").length === 2 && y.split("#")[1] === problem.answer'),
    ],
)
def test_a_translated_solution_is_noticed(name, planted):
    """A solution in another language, or as a sentence with a formula, passes the search below."""
    assert name in asked_in(f"Some text before.\n\n{planted}\n\nAnd more of it.")


def test_a_handout_has_no_solution(tmp_path, monkeypatch):
    """The instructor's folder, the history, or a line of a solution is handed out; a dead link.

    Or the first page promises what blank functions cannot do.
    """
    made = tmp_path / "handout"
    monkeypatch.setenv("ADDRESS", "https://localhost/a@b/grpo.git")
    assert hand_out(made).returncode == 0
    files = [x for x in made.rglob("*") if x.is_file() and ".git" not in x.parts]
    texts = {str(x.relative_to(made)): text_of(x) for x in files if x.suffix not in BINARY}
    found = {(file, name) for file, text in texts.items() for name in asked_in(text)}
    new = sorted(found - ALLOWED)
    assert not new, f"a leak, or it belongs into the list of what is allowed: {new}"
    lines = {file: "\n".join(lines_of(text)) for file, text in texts.items()}
    for name, body in solutions():
        shown = [file for file, text in lines.items() if body in text]
        assert not shown or body.startswith("if loss_type"), f"{name} in {shown}: {body}"
    assert not [file for file in texts if file.endswith((".js", ".html"))]
    assert "exec(" not in texts["test_grpo.py"]
    assert "policy_loss(" not in read(made / "studies/gradients.py")  # it is half of update
    first = read(made / "README.md")
    assert "This is the handout of an assignment" in first
    assert all(
        "git clone https://localhost/a@b/grpo.git" in x
        for x in (first, read(made / "course/README.md"))
    )
    assert not (made / "course" / "instructor").exists()
    assert not [*(made / "tools").glob("explore*")]
    assert not [x for x, text in texts.items() if x.endswith(".md") and "advantage lab" in text]
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
        text = read(ROOT / file).partition(first)[2].partition(last)[0]
        lines = [x.strip() for x in text.splitlines() if len(x.strip()) > 30] or [text]
        assert not [x for x in lines if any(x in source for source in sources)], file


def test_a_handout_is_complete_or_not_there(tmp_path):
    """A typo leaves a folder with every solution; a part that a class leaves out has no way."""
    made = tmp_path / "handout"
    done = hand_out(made, "--without", "88")
    assert done.returncode == 2 and "invalid choice" in done.stderr and not made.exists()
    assert hand_out(made, "--without", "7", "--without", "8").returncode == 0
    note = " ".join(read(made / "course" / "README.md")[:400].split())
    assert "already solved in this copy: 7, 8." in note
    assert "Their questions do not count either." in note
    for part in assignment():
        name = sum(part.files.values(), [])[-1]
        body = ast.unparse(node(made, [*part.files][-1], name))
        given = part.title[:2] in ("7.", "8.")
        assert body.endswith("raise NotImplementedError") != given, part.title
    for place in (made, tmp_path / "no" / "handout"):  # it is there already; no folder for it
        done = hand_out(place)
        assert done.returncode == 2 and "in a folder that exists" in done.stderr
