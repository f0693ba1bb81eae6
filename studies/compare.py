"""All variants on both testbeds: python -m studies.compare [--tasks wall] [--seeds 1 2] [--arms ..]

Every seed has a base model of its own, the same one for all arms, and for one seed all arms see the
same problems in the same order (culling apart). So differences from grpo are paired by seed.
Besides the variants: grpo and compensation with one mini-batch ("-1"). On wall, grpo with a share
eta of the advantage left to incorrect responses: to all their tokens ("eta-0.25", "eta-0.5"; grpo
is 1, pos_only is 0), or nothing to those that nthr selects ("nthr-0"). On sum two controls: rewards
drawn at random, with four mini-batches and with one, and the settled base model, whose learning
rate falls to 0 over the last 30 % of the warm-up.

Runs stand side by side, one thread each, in a folder named after the core's checksum. Each seed's
rows are added to docs/tables/compare.csv when the seed is whole, and a row that is there, made with
as many steps and the same core, is not run again. docs/tables/compare-curves.csv holds accuracy by
level over the steps. The tables (docs/tables/compare.md) and figures are made from these two files
alone, and from the rows of one core: that of the last row.
"""

import contextlib
import json
import math
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import train
from advantages import VARIANTS, grpo, nthr
from grpo import Rollout
from studies.common import ROOT, TABLES, base_model, core_checksum, interval, markdown, options
from studies.common import pyplot, read_rows, rows_of_last_core, shown, write_rows
from tasks import TASKS

ROWS = TABLES / "compare.csv"
CURVES = TABLES / "compare-curves.csv"
STEPS = 200
LAST = 10  # steps: what describes the end of a run is a mean over these
ONE = ("grpo-1", "compensation-1")  # one mini-batch a rollout
CONTROLS = ("random", "random-1", "settled")  # on sum
LONG = "grpo-400"  # on sum: a default run, for the picture of levels over steps
SHARES = {  # on wall
    "eta-0.25": partial(nthr, beta=-math.inf, eta=0.25),
    "eta-0.5": partial(nthr, beta=-math.inf, eta=0.5),
    "nthr-0": partial(nthr, eta=0.0),
}
HYPOTHESES = {  # arm: the column that decides, on sum and on wall
    "critic": ("mean_accuracy", "mean_accuracy"),
    "compensation": ("mean_accuracy", "mean_accuracy"),
    "culling": ("mean_accuracy", "mean_accuracy"),
    "negative": ("mean_accuracy", "mean_not_shown"),
    "ngrpo": ("mean_accuracy", "mean_not_shown"),
    "likelihood": ("coherence_all", "coherence_all"),
    "nthr": ("mean_accuracy", "mean_accuracy"),
}


def random_rewards(rollout: Rollout) -> torch.Tensor:
    """grpo on rewards that a fair coin gives, in place of the verifier's."""
    coins = torch.rand(rollout.rewards.size(), device=rollout.rewards.device)
    return grpo(replace(rollout, rewards=(coins < 0.5).float()))


def arms_of(task: str) -> list[str]:
    return [*VARIANTS, *ONE, *((*CONTROLS, LONG) if task == "sum" else SHARES)]


def steps_of(arm: str) -> int:
    return {"settled": 0, LONG: train.NUMBERS["steps"][0]}.get(arm, STEPS)


def folder_of(out: str, task: str, arm: str, seed: int) -> Path:
    """Arms whose settings do not stand in the run's name have a folder of their own."""
    own = arm in (*ONE, "random-1", "settled", LONG)
    return Path(out) / f"{task}-{seed}" / (arm if own else "")


def run(task: str, arm: str, seed: int, out: str) -> tuple[dict, list[dict]]:
    """One run of train.py, its output in a log, unless it is there. Its row and its curve.

    out ends in the core's checksum.
    """
    torch.set_num_threads(1)
    VARIANTS.update(SHARES, random=random_rewards)
    folder = folder_of(out, task, arm, seed)
    folder.mkdir(parents=True, exist_ok=True)
    variant = "grpo" if arm in ("settled", LONG) else arm.removesuffix("-1")
    argv = ["--task", task, "--variant", variant, "--seed", str(seed), "--base-seed", str(seed)]
    argv += ["--steps", str(steps_of(arm)), "--device", "cpu"]
    argv += ["--minibatches", "1" if arm.endswith("-1") else "4", "--out", str(folder)]
    args = train.parse_arguments(argv)
    done = folder / f"{task}-{variant}-seed{seed}"
    config = done / "config.json"
    if not (done / "summary.json").exists() or json.loads(config.read_text()) != vars(args):
        with open(folder / f"{arm}.log", "w") as log, contextlib.redirect_stderr(log):
            with contextlib.redirect_stdout(log):
                prepare_base(args, arm, Path(out) / f"{task}-{seed}")
                if train.main(argv):
                    raise RuntimeError(f"{task} {arm} {seed} failed, see {log.name}")
    return measures(task, arm, seed, Path(out).name, done), curve(task, arm, seed, done)


def prepare_base(args, arm: str, shared: Path) -> None:
    """The base model in args.out: the seed's, made where it is missing, or the settled one."""
    path = train.base_path(args)
    if arm != "settled" and not path.exists() and (shared / path.name).exists():
        path.write_bytes((shared / path.name).read_bytes())
    steps = train.WARMUP_STEPS[args.task]
    base_model(args, int(0.3 * steps) if arm == "settled" else 0)


def measures(task: str, arm: str, seed: int, core: str, done: Path) -> dict:
    """What the tables need of a run, from the files that it left. Shares, entropy in nats."""
    summary = json.loads((done / "summary.json").read_text())
    steps = read_rows(done / "metrics.csv")
    row = {"task": task, "arm": arm, "seed": seed, "steps": summary["steps"], "core": core}
    for name in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        shares = summary[f"{name}_by_level"]
        not_shown = [shares[level] for level in shares if int(level) not in TASKS[task].shown]
        shown = [shares[level] for level in shares if int(level) in TASKS[task].shown]
        row[name] = summary[name]
        row[f"{name}_shown"] = np.mean(shown)
        row[f"{name}_not_shown"] = np.mean(not_shown) if not_shown else ""
    evaluated = [step for step in steps if step["accuracy"]]
    by_level = np.array([step["accuracy_by_level"].split() for step in evaluated], dtype=float)
    hidden = [level not in TASKS[task].shown for level in TASKS[task].levels]
    row["mean_accuracy"] = by_level.mean() if steps else summary["final_accuracy"]
    row["mean_not_shown"] = by_level[:, hidden].mean() if steps and any(hidden) else ""
    row["seconds"] = summary["seconds"]
    columns = ("all_fail", "entropy", "coherence", "grad_norm", "clip_fraction", "approx_kl")
    for name in (*columns, "mean_abs_advantage", "mean_abs_bias", "likelihood_change"):
        values = [float(step[name]) for step in steps if step[name]]
        row[f"{name}_first"] = np.mean(values[:LAST]) if values else ""
        row[f"{name}_last"] = np.mean(values[-LAST:]) if values else ""
        row[f"{name}_all"] = np.nanmean(values) if values else ""
    return {name: f"{x:.5g}" if isinstance(x, float) else x for name, x in row.items()}


def curve(task: str, arm: str, seed: int, done: Path) -> list[dict]:
    """Accuracy by level wherever the run measured it, step 0 being the base model."""
    base = json.loads((done / "summary.json").read_text())["base_accuracy_by_level"]
    points = [(0, " ".join(str(share) for share in base.values()))]
    for step in read_rows(done / "metrics.csv"):
        if step["accuracy"]:
            points.append((int(step["step"]), step["accuracy_by_level"]))
    head = {"task": task, "arm": arm, "seed": seed}
    return [head | {"step": step, "accuracy_by_level": shares} for step, shares in points]


def run_seed(task: str, seed: int, arms: list[str], out: str) -> list[tuple]:
    """The arms of one seed, one after the other: (row, curve) each."""
    return [run(task, arm, seed, out) for arm in arms]


def add(results: list[tuple[dict, list[dict]]]) -> None:
    """Puts the rows of a seed into the two files, in the place of older ones."""
    new = {(row["task"], row["arm"], str(row["seed"])) for row, _ in results}

    def others(path: Path) -> list[dict]:
        return [x for x in read_rows(path) if (x["task"], x["arm"], x["seed"]) not in new]

    write_rows(ROWS, others(ROWS) + [row for row, _ in results])
    write_rows(CURVES, others(CURVES) + [point for _, points in results for point in points])


def missing(task: str, seed: int, arms: list[str]) -> list[str]:
    """Those arms of a seed that ROWS does not hold, or holds from another core or step count."""
    there = set()
    for row in read_rows(ROWS):
        made = (row["task"], row["seed"], row["core"], row["steps"])
        if made == (task, str(seed), core_checksum(), str(steps_of(row["arm"]))):
            there.add(row["arm"])
    return [arm for arm in arms if arm not in there]


def difference(rows: dict, arm: str, column: str, level: float = 0.95) -> tuple:
    """Mean and interval of arm minus grpo, paired by seed; rows: (arm, seed) -> row."""
    reference = "grpo-1" if arm in ("compensation-1", "random-1") else "grpo"
    seeds = [seed for name, seed in rows if name == arm and (reference, seed) in rows]
    pairs = [(rows[arm, seed][column], rows[reference, seed][column]) for seed in seeds]
    return interval([float(x) - float(y) for x, y in pairs if x and y], level)


def rows_of(task: str) -> dict:
    """(arm, seed) -> row"""
    rows = rows_of_last_core(ROWS)
    return {(row["arm"], row["seed"]): row for row in rows if row["task"] == task}


def mean(rows: dict, arm: str, column: str, scale: float = 100, digits: int = 1) -> str:
    values = [float(row[column]) for (name, _), row in rows.items() if name == arm and row[column]]
    return f"{scale * np.mean(values):.{digits}f}" if values else ""


def span(rows: dict, column: str) -> str:
    values = [100 * float(row[column]) for (arm, _), row in rows.items() if arm == "grpo"]
    return f"{min(values):.0f} to {max(values):.0f}"


def table(task: str) -> str:
    """Means over seeds, in %, entropy in nats; on wall accuracy of all levels / of those not shown.

    Then the base models' mean, and the smallest and the largest value of grpo over the seeds.
    """
    rows = rows_of(task)
    cells = []
    for arm in arms_of(task):
        if not mean(rows, arm, "final_accuracy"):
            continue
        cells.append([f"`{arm}`"])
        for column in ("final_accuracy", "mean_accuracy", "final_sampled"):
            cells[-1].append(mean(rows, arm, column))
            hidden = column.replace("mean_accuracy", "mean") + "_not_shown"
            cells[-1][-1] += f" / {mean(rows, arm, hidden)}" if task == "wall" else ""
        cells[-1].append(mean(rows, arm, "all_fail_last"))
        cells[-1].append(mean(rows, arm, "entropy_last", 1, 2))
        cells[-1].append(mean(rows, arm, "coherence_last"))
    header = ["arm", "greedy, end", "greedy, mean", "sampled, end", "all-fail", "entropy"]
    ends = f"Base models, mean: {mean(rows, 'grpo', 'base_accuracy')} % greedy. `grpo` over the "
    ends += f"seeds: {span(rows, 'final_accuracy')} % at the end"
    if task == "wall":
        ends += f", {span(rows, 'final_accuracy_not_shown')} % on levels not shown"
    return markdown([*header, "coherence"], cells) + f"\n\n{ends}."


def differences(task: str) -> str:
    """Each arm minus grpo, paired by seed, with 95 % intervals."""
    rows = rows_of(task)
    cells = []
    for arm in arms_of(task):
        if arm in ("grpo", LONG) or not mean(rows, arm, "final_accuracy"):
            continue
        columns = ["final_accuracy", "mean_accuracy", "coherence_all", "all_fail_last"]
        columns += ["entropy_last"] + ["mean_not_shown"] * (task == "wall")
        cells.append([f"`{arm}`"])
        for column in columns:
            there = mean(rows, arm, column)  # the settled base model has no steps
            cells[-1].append(shown(difference(rows, arm, column)) if there else "")
    header = ["arm", "greedy, end", "greedy, mean", "coherence, whole run", "all-fail"]
    header += ["entropy, 0.01 nats"]
    return markdown(header + ["not shown, mean"] * (task == "wall"), cells)


def verdicts() -> str:
    """Each hypothesis by its primary measure: seen, too small to matter, or open."""
    cells = []
    for arm, columns in HYPOTHESES.items():
        for task, column in zip(("sum", "wall"), columns):
            rows = rows_of(task)
            count = sum(name == arm for name, _ in rows)
            if count < 2:
                continue
            usual = difference(rows, arm, column)
            _, low, high = difference(rows, arm, column, 1 - 0.05 / 16)  # 8 hypotheses, 2 testbeds
            seen = low > 0 or high < 0
            small = -0.03 < usual[1] and usual[2] < 0.03
            verdict = "seen" if seen else "within 3 points" if small else "open"
            # The seeds that decide if the mean stays: a width shrinks as one over their root.
            effect = abs(usual[0])
            to_see = (high - low) / 2 / max(effect, 1e-9)
            to_dismiss = (usual[2] - usual[1]) / 2 / max(0.03 - effect, 1e-9)
            wanted = count * min(to_see, to_dismiss) ** 2
            verdict += f", about {wanted:.0f} seeds" if verdict == "open" else ""
            cells.append([f"`{arm}`", task, column, shown(usual), verdict, str(count)])
    header = ["variant", "task", "measure", "minus grpo, points (95 %)", "verdict", "seeds"]
    return markdown(header, cells)


def levels_figure() -> None:
    """Accuracy of each level over the steps of grpo: default runs on sum, mean and range of seeds.

    On wall runs as long as the study's.
    """
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for ax, task, arm in zip(axes, ("sum", "wall"), (LONG, "grpo")):
        rows = rows_of(task)
        points = [x for x in read_rows(CURVES) if (x["task"], x["arm"]) == (task, arm)]
        points = [x for x in points if (arm, x["seed"]) in rows]
        steps = sorted({int(x["step"]) for x in points})
        at = {
            n: [x["accuracy_by_level"].split() for x in points if int(x["step"]) == n]
            for n in steps
        }
        curves = np.array(list(at.values()), dtype=float)  # (steps, seeds, levels)
        for i, level in enumerate(TASKS[task].levels):
            colour = plt.cm.viridis(i / len(TASKS[task].levels))
            ax.plot(steps, curves[:, :, i].mean(1), color=colour, label=f"{level} terms")
            low, high = curves[:, :, i].min(1), curves[:, :, i].max(1)
            ax.fill_between(steps, low, high, color=colour, alpha=0.12, linewidth=0)
        ax.set(title=f"{task}, {curves.shape[1]} seeds", xlabel="step", ylim=(0, 1))
    axes[0].set_ylabel("greedy accuracy, held out")
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    plt.tight_layout()
    plt.savefig(ROOT / "docs" / "levels.png", dpi=100)


def shares_figure() -> None:
    """On wall: what keeping a share of the push on incorrect responses does, minus grpo."""
    plt = pyplot()
    rows = rows_of("wall")
    arms = {
        "pos_only": "0",
        "eta-0.25": "1/4",
        "eta-0.5": "1/2",
        "nthr-0": "nthr, 0",
        "nthr": "nthr",
    }
    names = {"final_accuracy_not_shown": "accuracy, not shown, points"}
    names |= {"entropy_last": "entropy, 0.01 nats", "all_fail_last": "all-fail groups, points"}
    _, axes = plt.subplots(1, 3, figsize=(10, 3))
    for ax, (column, name) in zip(axes, names.items()):
        found = np.array([difference(rows, arm, column) for arm in arms]) * 100
        bars = abs(found[:, 1:].T - found[:, 0])
        ax.errorbar(range(len(arms)), found[:, 0], bars, fmt="o", capsize=3)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_xticks(range(len(arms)), arms.values(), fontsize=8)
        ax.set_title(f"{name}, minus grpo", fontsize=9)
        ax.set_xlabel("share kept by incorrect responses", fontsize=9)
    plt.tight_layout()
    plt.savefig(ROOT / "docs" / "shares.png", dpi=100)


def main() -> None:
    parser = options(__doc__, range(1, 11))
    parser.add_argument("--arms", nargs="+", help="default: all of the testbed")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    args = parser.parse_args()
    interval([0, 1])  # scipy is missing now, or not at all
    out = f"{args.out}/{core_checksum()}"
    jobs = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for task in args.tasks:
            for seed in args.seeds:
                arms = missing(task, seed, args.arms or arms_of(task))
                if arms:
                    jobs.append(pool.submit(run_seed, task, seed, arms, out))
        for job in as_completed(jobs):
            add(job.result())
    tasks = [task for task in ("sum", "wall") if rows_of(task)]
    text = f"# All variants\n\n{verdicts()}\n"
    for task in tasks:
        seeds = len({seed for _, seed in rows_of(task)})
        text += f"\n## {task}, {seeds} seeds\n\nMeans, %; all-fail, entropy (nats) and coherence "
        text += "over the last ten steps; on wall accuracy of all levels / of those not shown:\n\n"
        text += f"{table(task)}\n\nMinus grpo, points; compensation-1 and random-1 minus grpo-1:"
        text += f"\n\n{differences(task)}\n"
    (TABLES / "compare.md").write_text(text)
    print(text)
    if args.arms:
        return  # the figures need all
    if "wall" in tasks:
        shares_figure()
    if len(tasks) == 2:
        levels_figure()


if __name__ == "__main__":
    main()
