"""Is anything lost when a run is killed? Kills one at many moments and looks at what it leaves.

    python -m tests.crash [--out runs/crash]

A tiny run of train.py, in a process of its own, is made once undisturbed. Then, each time in a new
folder, it is killed by SIGKILL just before it opens, renames or removes a file, or just after it
wrote a row, once for each such event. Every file must then be whole or absent; metrics.csv may end
early, in whole rows; summary.json stands only beside all the rest. The same command, run again to
its end, must give the metrics of the undisturbed run, and leave no .part file. Exit 1 if a kill
fails.
"""

import argparse
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
STEPS = 6
SETTINGS = f"--variant critic --layers 1 --width 16 --steps {STEPS} --prompts 8 --group-size 4"
FILES = {"config.json", "metrics.csv", "model.pt", "summary.json", "tokenizer.json"}
# Arguments: the number of the event to die at, 0 for none; then those of train.py.
CHILD = """
import csv, os, signal, sys, train
train.WARMUP_STEPS = {"sum": 60}
train.HELD_OUT_SIZE = 10
out = sys.argv[-1]
seen = 0
def count(event, values):
    global seen
    if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(values[0]).startswith(out):
        seen += 1
        if seen == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
write = csv.DictWriter.writerow
csv.DictWriter.writerow = lambda *given: write(*given) and count("open", [out])
status = train.main(sys.argv[2:])
print(f"\\n{seen}")
sys.exit(status)
"""


def run(out: Path, event: int = 0) -> tuple[int, str]:
    """The command, killed before event number `event`: exit status and the last line printed."""
    command = [sys.executable, "-c", CHILD, str(event), *SETTINGS.split(), "--out", str(out)]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    done = subprocess.run(command, cwd=ROOT, check=False, **options)
    return done.returncode, done.stdout.strip().split("\n")[-1]


def read_metrics(path: Path) -> list[dict]:
    """The rows without their seconds; ValueError if one is not whole or not in its place."""
    text = path.read_bytes().decode()
    rows = list(csv.DictReader(text.splitlines()))
    whole = text == "" or text.endswith("\r\n")
    for step, row in enumerate(rows, 1):
        whole &= row["step"] == str(step) and None not in row.values()
        whole &= row.pop("seconds") != ""
    if not whole:
        raise ValueError(f"{path} is not whole")
    return rows


def check(folder: Path) -> str:
    """What stands in the folder, in words; an exception if a file is damaged or comes too early."""
    names = []
    for path in sorted(folder.rglob("*.*")):
        rows = ""
        if path.suffix == ".csv":
            rows = f" with {len(read_metrics(path))} rows"
        if path.suffix == ".json":
            content = json.loads(path.read_text())
        if path.suffix == ".pt":
            torch.load(path, weights_only=True)
        if path.name == "summary.json":
            beside = {other.name for other in path.parent.iterdir()}
            whole = FILES <= beside
            if not whole or len(read_metrics(path.parent / "metrics.csv")) < content["steps"]:
                raise ValueError(f"summary.json stands beside {beside} only")
        names.append(path.name + rows)
    return ", ".join(names) or "nothing"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default="runs/crash", help="folder; emptied first")
    out = parser.parse_args().out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    metrics = "sum-critic-seed0/metrics.csv"
    _, events = run(out / "undisturbed")
    files = check(out / "undisturbed")
    expected = read_metrics(out / "undisturbed" / metrics)
    lost = 0
    for event in range(1, int(events) + 1):
        folder = out / f"kill{event}"
        status, _ = run(folder, event)
        try:
            left = check(folder)
            again, _ = run(folder)
            if again or check(folder) != files or read_metrics(folder / metrics) != expected:
                raise ValueError(f"run again: status {again}, {check(folder)}, other metrics?")
            print(f"kill {event} of {events}, status {status}: {left}", flush=True)
        except Exception as error:  # noqa: BLE001, a damaged file can raise nearly anything
            lost += 1
            print(f"kill {event} of {events}: FAILED: {error!r}", flush=True)
    print(f"{int(events) - lost} of {events} kills lost nothing.")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
