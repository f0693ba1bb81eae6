"""Is anything lost when a run is killed? Kills one at many moments and looks at what it leaves.

    python -m studies.crash [--times 20] [--out runs/crash]

A tiny run of train.py, in a process of its own, is made once undisturbed. Then, each time in a new
folder, it is killed by SIGKILL: at `times` random moments, one in each equal part of its life (from
the warm-up to the last file), and just before each opening, renaming and removal of a file. Every
file must then be whole or absent; metrics.csv may end early, in whole rows; summary.json stands
only beside all the rest. The same command, run again to its end, must give the metrics of the
undisturbed run, `seconds` apart, and leave no .part file. A line a kill; exit 1 if any fails.

The warm-up has 60 steps, not 1000, and the evaluation 70 problems; all else is the command line's.
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
from tokenizers import Tokenizer

STEPS = 6
SETTINGS = f"--variant critic --layers 1 --width 16 --steps {STEPS} --prompts 8 --group-size 4"
CHILD = """
import os, signal, sys, train
train.WARMUP_STEPS, train.EVAL_SIZE = {"sum": 60}, 70
last, out, seen = int(sys.argv[1]), sys.argv[-1], 0
def count(event, values):
    global seen
    if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(values[0]).startswith(out):
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(count)
print("ready", flush=True)
status = train.main(sys.argv[2:])
print(f"\\n{seen}")
sys.exit(status)
"""


def run(out: Path, after: float | None = None, event: int = 0) -> tuple[int, float, str]:
    """The command, killed `after` seconds behind its imports, before file event number `event`
    (counted from 1), or not at all. Returns exit status, seconds behind the imports, last line."""
    command = [sys.executable, "-c", CHILD, str(event), *SETTINGS.split(), "--out", str(out)]
    with open(out.with_suffix(".log"), "a") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=-1, stderr=log, text=True, env=environment)
        process.stdout.readline()
        started = time.perf_counter()
        try:
            printed, _ = process.communicate(timeout=after)
        except subprocess.TimeoutExpired:
            process.kill()
            printed, _ = process.communicate()
    return process.returncode, time.perf_counter() - started, printed.split("\n")[-2:][0]


def read_metrics(path: Path) -> list[dict]:
    """The rows without their seconds; ValueError if one is not whole or not in its place."""
    text = path.read_bytes().decode()
    rows, whole = list(csv.DictReader(text.splitlines())), text[-2:] in ("", "\r\n")
    for step, row in enumerate(rows, 1):
        whole &= row.pop("seconds") != "" and row["step"] == str(step) and None not in row.values()
    if not whole:
        raise ValueError(f"{path} is not whole")
    return rows


def check(out: Path) -> str:
    """What stands in the folder, in words; an exception if a file is damaged or comes too early."""
    read = {".json": lambda path: json.loads(path.read_text()), ".csv": read_metrics}
    read |= {".pt": lambda path: torch.load(path, weights_only=True), ".part": lambda path: None}
    files = {path.name: path for path in sorted(out.rglob("*")) if path.is_file()}
    contents = {name: read[path.suffix](path) for name, path in files.items()}
    rows = len(contents.get("metrics.csv", []))
    if "tokenizer.json" in files:
        Tokenizer.from_file(str(files["tokenizer.json"]))
    if "summary.json" in files and (len(files) < 6 or rows < STEPS):
        raise ValueError(f"summary.json stands beside {list(files)}, {rows} rows")
    return ", ".join(files).replace(".csv", f".csv with {rows} rows") or "nothing"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=20, help="kills at random moments")
    parser.add_argument("--out", type=Path, default="runs/crash", help="folder; emptied first")
    args = parser.parse_args()
    out, rng, lost = args.out.absolute(), random.Random(0), 0
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    _, life, events = run(out / "undisturbed")
    files, metrics = check(out / "undisturbed"), "sum-critic-seed0/metrics.csv"
    expected = read_metrics(out / "undisturbed" / metrics)
    print(f"Undisturbed: {life:.1f} s, {events} file events; {files}")
    kills = [(life * (i + rng.random()) / args.times, 0) for i in range(args.times)]
    kills += [(None, event) for event in range(1, int(events) + 1)]
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
