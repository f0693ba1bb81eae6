"""Is every line guarded? Mutation testing: one small change of the core at a time, and the tests.

    python3 -m venv runs/venv && . runs/venv/bin/activate
    pip install -r requirements.txt -r studies/requirements-mutation.txt
    python -m studies.mutation [--out runs/mutation] [--again]

Mutated, by mutmut, which also picks the tests that run the changed function: see SCOPE. All happens
in a copy in --out, in one process. A change that no test notices survives: either it means nothing,
or a test is missing. Stopped and started again, it goes on where it was, and functions that have
been edited since are mutated anew; --again tries the survivors once more, for tests that are new.

Printed: how many of each function's mutants were killed, and the survivors' changed lines.
"""

import argparse
import ast
import difflib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCOPE = {  # file -> functions; None: all of them
    "advantages.py": None,
    "grpo.py": None,
    "model.py": {"draw", "generate"},
    "tasks.py": {"reward", "coherent", "held_out"},
}
SETTINGS = """[mutmut]
source_paths=.
only_mutate=
    advantages.py
    grpo.py
    model.py
    tasks.py
also_copy=
    train.py
    studies
pytest_add_cli_args=
    -p
    no:cacheprovider
pytest_add_cli_args_test_selection=
    test_grpo.py
# seconds: (those of the tests + 30) x 2; what takes longer counts as killed
timeout_constant=30.0
timeout_multiplier=2.0
use_git_change_detection=false
"""


def prepared(name: str, text: str) -> str:
    """A file as the copy gets it: mutmut is told what is out of SCOPE, by comments, and since it
    leaves decorated functions alone, a @torch.no_grad() becomes a call at the end of the file."""
    for function in re.findall(r"^@torch\.no_grad\(\)\ndef (\w+)", text, re.MULTILINE):
        text = text.replace(f"@torch.no_grad()\ndef {function}(", f"def {function}(")
        text += f"\n\n{function} = torch.no_grad()({function})\n"

    def comment(match: re.Match) -> str:
        inside = SCOPE[name] is None or match[2] in SCOPE[name]
        return match[0] if inside else f"{match[1]}  # pragma: no mutate block"

    definition = re.compile(r"^( *def (\w+)\(.*:)(  #.*)?$", re.MULTILINE)
    return definition.sub(comment, text) if name in SCOPE else text


def changed_lines(out: Path, mutant: str) -> str:
    """What a mutant, e.g. grpo.x_update__mutmut_1, changes: the lines before and after."""
    module, name = mutant.split(".")
    original = re.sub(r"\d+$", "orig", name)
    source = (out / "mutants" / f"{module}.py").read_text()
    before, after = (
        ast.get_source_segment(source, node).replace(node.name, "")
        for which in (original, name)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == which
    )
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not re.match(r"---|\+\+\+|@@", line))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default="runs/mutation", help="folder of the copy")
    parser.add_argument("--again", action="store_true", help="try the survivors once more")
    args = parser.parse_args()
    for path in [*ROOT.glob("*.py"), *ROOT.glob("studies/*.py")]:
        copy = args.out / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(prepared(path.name, path.read_text()))
    (args.out / "setup.cfg").write_text(SETTINGS)

    def mutmut(*arguments: str, **options) -> str | None:
        command = [sys.executable, "-m", "mutmut", *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        options |= {"cwd": args.out, "env": environment, "text": True}
        return subprocess.run(command, check=True, **options).stdout

    def results() -> dict[str, str]:
        lines = mutmut("results", "--all", "true", stdout=subprocess.PIPE).splitlines()
        return dict(line.strip().split(": ") for line in lines)

    before = results() if args.again else {}
    again = [name for name, status in before.items() if status == "survived"]
    mutmut("run", "--max-children", "1", *again)
    outcome = results()
    counts = Counter((name.split("__mutmut_")[0], status) for name, status in outcome.items())
    statuses = sorted(set(outcome.values()))
    print("\n| function |", *(f"{status} |" for status in statuses))
    print("|---|" + "---|" * len(statuses))
    for function in sorted({function for function, _ in counts}):
        print(f"| {function} |", *(f"{counts[function, status]} |" for status in statuses))
    print("| all |", *(f"{list(outcome.values()).count(status)} |" for status in statuses))
    for name, status in outcome.items():
        if status != "killed":
            print(f"\n{name}: {status}\n{changed_lines(args.out, name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
