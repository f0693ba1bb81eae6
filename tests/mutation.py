"""Is every line of the core tested? One small change at a time, and the tests against each.

    python3 -m venv runs/venv && . runs/venv/bin/activate
    pip install -r requirements.txt -r tests/requirements.txt
    python -m tests.mutation [--out runs/mutation] [--only "grpo.x_k3*"]

mutmut makes the changes and picks the tests that run the changed function. test_grpo.py comes
first; only what survives it is tried against tests/. Printed: how many changes of each function
test_grpo.py notices, how many only tests/ does, and those that nothing notices: either the change
means nothing, or a test is missing (in --out/lesson, `python -m mutmut show NAME` shows one). All
happens in copies in --out. Stopped and started again, it goes on where it was.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = ("advantages.py", "grpo.py", "model.py", "tasks.py")
SETTINGS = """[mutmut]
source_paths=.
only_mutate=
    {mutated}
also_copy=
    train.py
    requirements.txt
pytest_add_cli_args=
    -pno:cacheprovider
    --ignore=tests/test_studies.py
pytest_add_cli_args_test_selection=
    {tests}
# seconds: (those of the tests + 30) x 2; what takes longer counts as killed
timeout_constant=30.0
timeout_multiplier=2.0
use_git_change_detection=false
"""


def prepared(text: str) -> str:
    """A file as mutmut gets it: @torch.no_grad(), which it would leave alone, becomes a call."""
    for function in re.findall(r"^@torch\.no_grad\(\)\ndef (\w+)", text, re.MULTILINE):
        text = text.replace(f"@torch.no_grad()\ndef {function}(", f"def {function}(")
        text += f"\n\n{function} = torch.no_grad()({function})\n"
    return text


def results(folder: Path, tests: str, names: list[str]) -> dict[str, str]:
    """Runs mutmut in a copy of the project: mutant -> "killed", "survived", "timeout", ..."""
    for path in [*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), ROOT / "requirements.txt"]:
        copy = folder / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(prepared(path.read_text()))
    (folder / "setup.cfg").write_text(SETTINGS.format(mutated="\n    ".join(FILES), tests=tests))
    mutmut = [sys.executable, "-m", "mutmut"]
    options = {"cwd": folder, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "check": True}
    subprocess.run([*mutmut, "run", "--max-children", "1", *names], **options)
    list_all = [*mutmut, "results", "--all", "true"]
    printed = subprocess.run(list_all, stdout=subprocess.PIPE, text=True, **options).stdout
    found = dict(line.strip().split(": ") for line in printed.splitlines())
    return {name: status for name, status in found.items() if status != "not checked"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default="runs/mutation", help="folder of the copies")
    parser.add_argument("--only", nargs="*", default=[], help="mutants or patterns of their names")
    args = parser.parse_args()
    lesson = results(args.out / "lesson", "test_grpo.py", args.only)
    left = [name for name, status in lesson.items() if status in ("survived", "no tests")]
    rest = results(args.out / "rest", "tests", left) if left else {}
    outcome = {}
    for name, status in lesson.items():
        suite = "tests/" if name in left else "test_grpo.py"
        status = rest.get(name, status)
        outcome[name] = suite if status in ("killed", "timeout") else status
    columns = sorted(set(outcome.values()))
    counts = Counter((name.split("__mutmut_")[0], status) for name, status in outcome.items())
    print("\n| function |", *(f"{column} |" for column in columns))
    print("|---|" + "---|" * len(columns))
    for function in sorted({function for function, _ in counts}):
        print(f"| {function} |", *(f"{counts[function, column]} |" for column in columns))
    print("| all |", *(f"{list(outcome.values()).count(column)} |" for column in columns))
    for name, status in outcome.items():
        if status not in ("test_grpo.py", "tests/"):
            print(f"{name}: {status}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
