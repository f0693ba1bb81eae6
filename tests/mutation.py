"""Is every line of the core tested? One small change at a time, and the tests against each.

    pip install -r requirements.txt -r tests/requirements.txt && python -m tests.mutation

mutmut (its settings: mutmut.cfg) changes a copy, runs/mutation, and lists what no test notices;
`python -m mutmut show NAME` shows a change there. Started again, it goes on where it was.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
copy = ROOT / "runs" / "mutation"
for path in [*ROOT.glob("*.py"), *ROOT.glob("tests/*.py"), ROOT / "requirements.txt"]:
    text = path.read_text()
    # @torch.no_grad(), which mutmut would leave alone with its function, becomes a call.
    for name in re.findall(r"^@torch\.no_grad\(\)\ndef (\w+)", text, re.MULTILINE):
        text = text.replace(f"@torch.no_grad()\ndef {name}(", f"def {name}(")
        text += f"\n\n{name} = torch.no_grad()({name})\n"
    (copy / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
    (copy / path.relative_to(ROOT)).write_text(text)
(copy / "setup.cfg").write_text((ROOT / "tests" / "mutmut.cfg").read_text())
options = {"cwd": copy, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "check": True}
for command in (["run", "--max-children", "1", *sys.argv[1:]], ["results"]):
    subprocess.run([sys.executable, "-m", "mutmut", *command], **options)
