"""Is anything lost when a run is killed? Kills one at many moments and looks at what it leaves.

    python -m tests.crash [--times 20] [--out runs/crash]

A tiny run of train.py, in a process of its own, is made once undisturbed. Then, each time in a new
folder, it is killed by SIGKILL: at `times` random moments, one in each equal part of its life, and
just before it opens, renames or removes a file, once for each such event. Every file must then be
whole or absent; metrics.csv may end early, in whole rows; summary.json stands only beside all the
rest. The same command, run again to its end, must give the metrics of the undisturbed run, and
leave no .part file. A line a kill; exit 1 if any fails.
"""

import argparse
import csv
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
STEPS = 6
SETTINGS = f"--variant critic --layers 1 --width 16 --steps {STEPS} --prompts 8 --group-size 4"
FILES = {"config.json", "metrics.csv", "model.pt", "summary.json", "tokenizer.json"}
# Arguments: the number of the file event to die at, 0 for none; then those of train.py.
CHILD = """
import os, signal, sys, train
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
print("ready", flush=True)
status = train.main(sys.argv[2:])
print(f"\\n{seen}")
sys.exit(status)
"""


def run(out: Path, after: float | None = None, event: int = 0) -> tuple[int, float, str]:
    """The command, killed `after` seconds after its imports, or before file event number `event`.

    Returns the exit status, the seconds after the imports, and the last line printed.
    """
    command = [sys.executable, "-c", CHILD, str(event), *SETTINGS.split(), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, **options)
    process.stdout.readline()
    started = time.perf_counter()
    try:
        printed, _ = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.kill()
        printed, _ = process.communicate()
    return process.returncode, time.perf_counter() - started, printed.strip().split("\n")[-1]


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
    parser.add_argument("--times", type=int, default=20, help="kills at random moments")
    parser.add_argument("--out", type=Path, default="runs/crash", help="folder; emptied first")
    args = parser.parse_args()
    out = args.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    metrics = "sum-critic-seed0/metrics.csv"
    _, life, events = run(out / "undisturbed")
    files = check(out / "undisturbed")
    expected = read_metrics(out / "undisturbed" / metrics)
    print(f"Undisturbed: {life:.1f} s, {events} file events; {files}")
    rng = random.Random(0)
    kills = [(life * (i + rng.random()) / args.times, 0) for i in range(args.times)]
    kills += [(None, event) for event in range(1, int(events) + 1)]
    lost = 0
    for n, (after, event) in enumerate(kills, 1):
        folder = out / f"kill{n}"
        status, seconds, _ = run(folder, after, event)
        when = f"kill {n} of {len(kills)}, {seconds:.2f} s" + f", file event {event}" * (event > 0)
        try:
            left = check(folder) + ("" if status == -9 else " (it had ended)")
            again, _, _ = run(folder)
            if again or check(folder) != files or read_metrics(folder / metrics) != expected:
                raise ValueError(f"run again: status {again}, {check(folder)}, other metrics?")
            print(f"{when}: {left}; run again: the same metrics", flush=True)
        except Exception as error:  # noqa: BLE001, a damaged file can raise nearly anything
            lost += 1
            print(f"{when}: FAILED: {error!r}", flush=True)
    print(f"{len(kills) - lost} of {len(kills)} kills lost nothing.")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
