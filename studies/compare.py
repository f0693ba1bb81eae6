"""What training brings: python -m studies.compare [--arms controls] [--seeds 1 2] [--tasks mul]

Every seed has a base model of its own, the same one for all arms, and for one seed all arms draw
the same problems in the same order (culling apart). So differences from grpo are paired by seed.
Every run has train.py's settings. --arms names one of these sets:

    variants       all of VARIANTS
    controls       all of studies.controls
    sum            grpo and verifree on `sum`

Seeds stand side by side, one thread each. Each seed's rows are added to docs/tables/compare.csv
when the seed is whole. A row that is there is not run again, and a finished run of these settings
in --out is only read: remove it when the core has changed. docs/tables/compare-curves.csv has
sampled accuracy by level at every evaluation, separated by spaces. docs/tables/compare.md and
docs/learning.png are made from these two files alone.
"""

import json
from itertools import product

import numpy as np

from advantages import VARIANTS
from studies.common import REPLICATES, TABLES, at, by_seed, commit, fill, interval, options
from studies.common import percent, picture, publish, shown
from studies.controls import CONTROLS
from studies.runs import run
from tasks import TASKS
from tools.common import markdown, read_rows

ROWS = TABLES / "compare.csv"
CURVES = TABLES / "compare-curves.csv"
ARMS = {  # set: its arms (see studies.runs), testbeds and number of seeds
    "variants": ([*VARIANTS], ["add", "mul"], REPLICATES),
    "controls": ([*CONTROLS], ["add", "mul"], 6),
    "sum": (["grpo", "verifree"], ["sum"], 6),
}
EVALUATED = np.arange(0, 401, 25)  # steps
PARTS = {"first": slice(10), "last": slice(-10, None), "all": slice(None)}  # steps
SUMMARY = ("seconds", "base_greedy", "base_sampled", "final_greedy", "final_sampled")
SUMMARY += ("final_sampled_reasoning_correct",)  # what is taken of summary.json
OVER_THE_RUN = (
    "all_fail",
    "entropy",
    "coherence",
    "reasoning_correct",
    "grad_norm",
    "clip_fraction",
)
MEASURES = {  # columns of compare.csv: their headings
    "mean_sampled": "sampled, over the run",
    "mean_hard": "hard levels, over the run",
    "final_sampled": "sampled, end",
    "final_greedy": "greedy, end",
    "final_sampled_reasoning_correct": "of the correct: reasoning correct",
    "coherence_all": "coherent, over the run",
    "all_fail_last": "all-fail, last steps",
}


# ---- What is kept of a run
def shares(done) -> dict[str, str]:
    """Sampled accuracy by level, separated by spaces, before ("step 0") and at each evaluation."""
    summary = json.loads((done / "summary.json").read_text())
    base = " ".join(f"{x:.4g}" for x in summary["base_sampled_by_level"].values())
    evaluated = [row for row in read_rows(done / "metrics.csv") if row["greedy"]]
    later = {f"step {row['step']}": row["sampled_by_level"] for row in evaluated}
    return {"step 0": base} | later


def measures(task: str, done) -> dict:
    """What the tables need of a run, from the files that it left. Shares, entropy in nats.

    Hard levels are the top half, rounded down. "mean": over the run's evaluations. "reward": in
    training, over the last 50 steps; levels weigh differently in it than in accuracy.
    """
    summary = json.loads((done / "summary.json").read_text())
    steps = read_rows(done / "metrics.csv")
    by_level = np.array([x.split() for x in shares(done).values()], dtype=float)
    hard = by_level[:, -(len(TASKS[task].levels) // 2) :].mean(1)
    row = {name: summary[name] for name in SUMMARY} | {"base_hard": hard[0]}
    if steps:  # not of the settled base model
        row["mean_sampled"] = by_level[1:].mean()
        row["mean_hard"] = hard[1:].mean()
        for name, (part, cut) in product(OVER_THE_RUN, PARTS.items()):
            row[f"{name}_{part}"] = np.mean([float(step[name]) for step in steps[cut]])
        rewards = [float(step["reward"]) for step in steps[-50:]]
        row["reward_minus_held_out"] = np.mean(rewards) - row["final_sampled"]
    return row


def measure(task: str, seed: int, out: str, arms: list[str]):
    """The rows of one seed's arms, one after the other."""
    for arm in arms:
        head = {"task": task, "arm": arm, "seed": seed, "commit": commit()}
        yield head | measures(task, run(task, arm, seed, out))


def curves(task: str, seed: int, out: str, arms: list[str]):
    """The rows of CURVES of one seed's arms, from the runs that measure() made."""
    for arm in arms:
        yield {"task": task, "arm": arm, "seed": seed} | shares(run(task, arm, seed, out))


def missing(path, args, arms: list[str], tasks: list[str], replicates: int):
    """The jobs (task, seed, args.out, arms) of a command line: a job has the arms without a row."""
    for seed, task in product(args.seeds or range(1, replicates + 1), args.tasks):
        there = [row["arm"] for row in at(read_rows(path), task=task, seed=seed)]
        left = [arm for arm in arms if arm not in there]
        if left and task in tasks:
            yield task, seed, args.out, left


# ---- Tables and a figure, from the two CSV files alone
def differences(rows: list[dict], arm: str, column: str) -> dict[int, float]:
    """seed -> arm minus grpo; "nthr@x" minus "grpo@x" if that was run."""
    _, mark, how = arm.partition("@")
    reference = by_seed(rows, column, arm="grpo") | by_seed(rows, column, arm=f"grpo{mark}{how}")
    return {seed: x - reference[seed] for seed, x in by_seed(rows, column, arm=arm).items()}


def cell(rows: list[dict], arm: str, column: str) -> str:
    """Arm minus grpo, points: mean, 95 % interval, how many are above 0; of grpo the values, %."""
    if arm.startswith("grpo"):
        return percent(by_seed(rows, column, arm=arm).values())
    effects = differences(rows, arm, column).values()
    return f"{shown(interval(effects))}; {sum(x > 0 for x in effects)} of {len(effects)}"


def table(task: str) -> str:
    """The arms, the best at the end first."""
    rows = at(read_rows(ROWS), task=task)
    ends = {row["arm"]: by_seed(rows, "final_sampled", arm=row["arm"]).values() for row in rows}
    best = sorted(ends, key=lambda arm: -np.mean([*ends[arm]]))
    cells = [[f"`{arm}`", *(cell(rows, arm, column) for column in MEASURES)] for arm in best]
    return markdown(["arm", *MEASURES.values()], cells)


def draw(ax) -> None:
    """Sampled accuracy of grpo over the steps: mean and range over base models, a colour a task."""
    for task in TASKS:
        rows = at(read_rows(CURVES), task=task, arm="grpo")
        texts = [[row[f"step {n}"].split() for n in EVALUATED] for row in rows]
        y = 100 * np.array(texts, dtype=float).mean(2)  # (base models, steps): a mean over levels
        ax.plot(EVALUATED, y.mean(0), label=task)
        ax.fill_between(EVALUATED, y.min(0), y.max(0), alpha=0.2)
    ax.set(xlabel="step", ylabel="accuracy, %", ylim=(0, 100))
    ax.legend(frameon=False, loc="upper left")


if __name__ == "__main__":
    parser = options(__doc__, range(0), tuple(TASKS))
    parser.add_argument("--arms", choices=ARMS, default="variants", help="a set of arms")
    args = parser.parse_args()
    for path, yields in ((ROWS, measure), (CURVES, curves)):
        fill(path, yields, missing(path, args, *ARMS[args.arms]), args.jobs)
    tables = [f"\n## {task}\n\n{table(task)}\n" for task in TASKS]
    publish(ROWS, "\n".join(["# What training brings, minus `grpo`, in points", *tables]))
    with picture("learning.png", figsize=(6, 3)) as ax:
        draw(ax)
