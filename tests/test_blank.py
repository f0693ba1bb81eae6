"""course.blank as a student runs it; course/instructor/grade.py runs the assignment."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

from course.blank import assignment

GIT = "git -c user.name=me -c user.email=me@localhost"


def blank(folder: Path, arguments: str) -> tuple[int, list[str], list[str]]:
    """Status, lines of output, lines on standard error."""
    command = [sys.executable, "-m", "course.blank", *arguments.split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines(), done.stderr.splitlines()


def test_what_is_not_committed_is_not_lost(tmp_path):
    """An hour's work overwritten, half a job, an error without what is allowed, a wrong body."""
    for name in (
        "tools/__init__.py",
        "course/blank.py",
        "course/README.md",
        "grpo.py",
        "model.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(Path(__file__).parent.parent / name, tmp_path / name)
    mine = tmp_path / "grpo.py"
    first = ast.parse(mine.read_text()).body
    assert blank(tmp_path, "policy_loss")[0] == 2  # not under version control
    subprocess.check_call(
        f"{GIT} init -q; {GIT} add .; {GIT} commit -qm all", shell=True, cwd=tmp_path
    )
    with open(tmp_path / "model.py", "a") as file:
        file.write("# not committed\n")
    for arguments, said in (("", "update"), ("losses", "update"), ("update generate", "model.py")):
        status, commands, [error] = blank(tmp_path, arguments)
        assert (status, commands) == (2, []) and said in error
        assert "NotImplementedError" not in mine.read_text()
    commands = [assignment()[name][1] for name in ("update", "generate")]
    assert blank(tmp_path, "update generate --force") == (0, commands, [])
    pairs = zip(first, ast.parse(mine.read_text()).body, strict=True)
    [(was, now)] = [pair for pair in pairs if ast.dump(pair[0]) != ast.dump(pair[1])]
    assert (was.name, ast.get_docstring(was)) == ("update", ast.get_docstring(now))
    assert ast.unparse(now.body[1:]) == "raise NotImplementedError"
