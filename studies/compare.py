"""Does any variant beat grpo? Every variant on several seeds, and what was reported beside it.

    python -m studies.compare [--seeds 1 2 3 4 5] [--jobs 2] [--out runs/compare] [--quick]
    python -m studies.compare --summarise

Runs train.py with its default task and settings for every variant and seed, all from one base
model; for the same seed all see the same problems in the same order (culling apart). Seed 0 is left
out: the settings were chosen on it. The two arms grpo-1 and compensation-1 make one update of a
rollout instead of four, so that the clip never acts. Runs go side by side, one thread each, seed by
seed, so that an interrupted study has whole seeds; finished runs are not run again, and a run that
fails is reported on standard error. --summarise makes the tables of what is there.

Measured for each run: final accuracy on held-out problems, greedy and at temperature 1, overall
(levels weighted alike) and on the hardest third of the levels (sum: 7 and 8 terms); all-fail share
in the first and the last 10 steps; entropy and coherence in the last 10; mean and variance over
steps of the gradient norm, without the first 10 steps; seconds, with the other jobs beside it. For
a closer look also the two easiest levels, means over all steps, and the likelihood change.
Differences from grpo (from grpo-1 for compensation-1) are paired by seed, with 95 % t intervals.

Written: compare.csv in --out, a row a run; docs/compare-curves.png and docs/compare-details.png
(in --out as long as the study is not complete); printed: the tables of the README.
"""

import argparse
import contextlib
import csv
import functools
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import grpo
import train
from advantages import VARIANTS
from model import GPT, GPTConfig
from tasks import TASKS, build_tokenizer

TASK = TASKS["sum"]
LAYERS, WIDTH, STEPS, GROUP = (
    train.NUMBERS[name][0] for name in ("layers", "width", "steps", "group-size")
)
BASE = f"base-{TASK.name}-{LAYERS}x{WIDTH}.pt"
BASELINE = {arm: "grpo" for arm in VARIANTS} | {"grpo-1": "grpo-1", "compensation-1": "grpo-1"}
SEEDS, WINDOW = (1, 2, 3, 4, 5), 10  # steps at the start and at the end that are averaged
MARGIN = 1.0  # points of accuracy; an interval within +-1 is called no change
QUICK = {"warmup": 100, "evaluated": 70, "steps": 12, "seeds": [1, 2]}

# 0.975 quantiles of Student's t with 1, 2, ..., 30 degrees of freedom
T_QUANTILES = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179]
T_QUANTILES += [2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064]
T_QUANTILES += [2.060, 2.056, 2.052, 2.048, 2.045, 2.042]

# column of compare.csv: (what it is called, its unit in a table, decimals, in which tables: 1 of
# means, 2 of differences, 3 of differences that need a closer look)
MEASURES = {
    "final_accuracy": ("greedy", "%", 1, "12"),
    "final_sampled": ("sampled", "%", 1, "12"),
    "hard_accuracy": ("hardest third, greedy", "%", 1, "12"),
    "hard_sampled": ("hardest third, sampled", "%", 1, "12"),
    "easiest_accuracy": ("easiest level, greedy", "%", 1, "3"),
    "second_accuracy": ("second easiest, greedy", "%", 1, "3"),
    "other_accuracy": ("all but the easiest, greedy", "%", 1, "3"),
    "lowest_accuracy": ("lowest greedy on the way", "%", 1, ""),
    "all_fail_first": (f"all-fail, first {WINDOW} steps", "%", 1, "1"),
    "all_fail_last": (f"all-fail, last {WINDOW}", "%", 1, "1"),
    "all_fail_change": ("change of all-fail", "%", 1, "12"),
    "all_fail_mean": ("all-fail, all steps", "%", 1, "3"),
    "entropy": ("entropy", "nats", 3, "12"),
    "entropy_mean": ("entropy, all steps", "nats", 3, "3"),
    "coherence": ("coherence", "%", 1, "12"),
    "grad_norm_mean": ("gradient norm", "", 3, "1"),
    "grad_norm_variance": ("variance of gradient norm", "", 4, "12"),
    "grad_norm_spread": ("deviation of gradient norm / its mean", "", 3, "3"),
    "likelihood_change": ("likelihood change", "nats", 3, "3"),
    "mean_abs_advantage": ("mean abs advantage", "", 3, ""),
    "mean_abs_bias": ("mean abs bias", "", 3, ""),
    "responses": ("responses", "thousand", 1, ""),
    "steps": ("steps", "", 0, ""),
    "seconds": ("seconds", "", 0, "1"),
    "seconds_per_step": ("seconds a step", "", 3, ""),
}
FACTORS = {"%": 100, "thousand": 1e-3}  # compare.csv has shares and responses

# Experiments 1 to 6 by arm: hypothesis, what was reported, what outcome() would call that, and what
# is shown beside greedy accuracy, which decides.
EXPERIMENTS = {
    "critic": (
        "1: a critic, trained beside the policy, learns which tokens are vital",
        "failed: unstable, never better",
        "worse",
        ("lowest_accuracy", "grad_norm_variance"),
    ),
    "compensation": (
        "2: amplify improbable tokens of good responses",
        "failed: early divergence",
        "worse",
        ("lowest_accuracy", "entropy", "grad_norm_variance"),
    ),
    "compensation-1": (
        "2: the same with one update a rollout, so that the clip never acts",
        "a missing clip is why it failed",
        "worse",
        ("lowest_accuracy", "entropy", "grad_norm_variance"),
    ),
    "culling": (
        "3: drop solved prompts, spend the budget on the others",
        "no change",
        "no change",
        ("hard_accuracy", "responses"),
    ),
    "negative": (
        "4: push all-fail groups down, so that mass moves to answers not tried yet",
        "small, inconclusive gain",
        "better",
        ("hard_accuracy", "all_fail_change", "entropy"),
    ),
    "ngrpo": (
        "4: the same, by a virtual correct response",
        "gain",
        "better",
        ("hard_accuracy", "all_fail_change", "entropy"),
    ),
    "likelihood": (
        "5: reasoning is good if it makes the true answer likely",
        "failed: degraded, incoherent",
        "worse",
        ("coherence",),
    ),
    "nthr": (
        "6: spare the right steps of wrong responses, so that right ones stay likely",
        "+0.8 to +2.4 points",
        "better",
        ("likelihood_change",),
    ),
}


# ---- arithmetic ----


def paired_interval(ours: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """Mean of ours - theirs, seed by seed, and the ends of its 95 % t interval.

    mean +- t sd / sqrt(n), sd the sample deviation of the n differences (it divides by n - 1) and t
    the 0.975 quantile at n - 1 degrees of freedom (that of 30 for more: a little wide). One pair
    has no interval: NaN.
    """
    differences = np.array(ours) - np.array(theirs)
    mean, n = float(differences.mean()), len(differences)
    if n < 2:
        return mean, math.nan, math.nan
    t = T_QUANTILES[min(n - 1, len(T_QUANTILES)) - 1]
    half = t * float(differences.std(ddof=1)) / math.sqrt(n)
    return mean, mean - half, mean + half


def outcome(low: float, high: float, margin: float = MARGIN) -> str:
    """An interval in a word: it excludes 0, it lies within the margin, or it decides nothing."""
    if high < 0:
        return "worse"
    if low > 0:
        return "better"
    return "no change" if -margin <= low and high <= margin else "not decided"


def agrees(reported: str, low: float, high: float) -> str:
    """Whether this interval shows what was reported: yes, no or not decided."""
    shown = outcome(low, high)
    return shown if shown == "not decided" else "yes" if shown == reported else "no"


def batch_sizes(total: int, size: int, left: list[int]) -> list[int]:
    """Prompts in each step's batch, as train.batches makes them.

    left[k]: how many prompts step k leaves. An epoch passes once over those that are left when it
    begins: `total` of them in the first. Its last batch has what remains.
    """
    sizes = []
    while len(sizes) < len(left):
        epoch = left[len(sizes) - 1] if sizes else total
        sizes += [min(size, epoch - start) for start in range(0, epoch, size)]
    return sizes[: len(left)]


def hardest_third(levels: range) -> list[int]:
    """The last third of the levels, rounded to the nearest number of levels: 7 and 8 of 2..8."""
    return list(levels)[-max(1, round(len(levels) / 3)) :]


# ---- runs ----


def arguments(out: Path, arm: str, seed: int, steps: int) -> list[str]:
    """The command line of train.py. Arms with one update a rollout have a folder of their own."""
    out = out / "one-update" if arm not in VARIANTS else out
    argv = ["--variant", arm.removesuffix("-1"), "--seed", str(seed), "--steps", str(steps)]
    return argv + ["--task", TASK.name, "--device", "cpu", "--out", str(out)]


def folder_of(argv: list[str]) -> Path:
    args = train.parse_arguments(argv)
    return Path(args.out) / f"{args.task}-{args.variant}-seed{args.seed}"


def finished(argv: list[str]) -> bool:
    """Whether the run is there, whole and with these settings (its folder may have been moved)."""
    folder, args = folder_of(argv), vars(train.parse_arguments(argv))
    files = ("config.json", "summary.json", "sampled.json")
    if not all((folder / name).exists() for name in files):
        return False
    made_with = json.loads((folder / "config.json").read_text())
    wanted = args | {"warmup_steps": train.WARMUP_STEPS[TASK.name]}
    return made_with | {"out": None} == wanted | {"out": None}


def work(arm: str, argv: list[str]) -> int:
    """One run, in a process of its own. Its exit status.

    Adds sampled.json to what train.py writes: accuracy at temperature 1 by level, from the very
    samples whose mean is final_sampled in summary.json.
    """
    folder = folder_of(argv)
    (folder / "sampled.json").unlink(missing_ok=True)
    if arm not in VARIANTS:
        train.update = functools.partial(grpo.update, minibatches=1)
    if status := train.main(argv):
        return status
    tokenizer = build_tokenizer()
    columns = len(TASK.longest.prompt) + 2 * (len(TASK.longest.solution) + 1)
    model = GPT(GPTConfig(tokenizer.get_vocab_size(), columns, LAYERS, WIDTH))
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    held = train.make_problems(TASK, train.EVAL_SIZE, held=True)
    rng = torch.Generator().manual_seed(train.DATA_SEED)
    _, by_level, _ = train.evaluate(model, tokenizer, TASK, held, samples=4, generator=rng)
    train.save(folder / "sampled.json", lambda part: part.write_text(json.dumps(by_level)))
    return 0


def start(args, arm: str, seed: int) -> tuple[subprocess.Popen, Path]:
    """A process for one run, on one thread, and the file with what it prints."""
    log = folder_of(arguments(args.out, arm, seed, args.steps)).with_suffix(".log")
    command = [sys.executable, "-m", "studies.compare", "--worker", arm, str(seed)]
    command += ["--steps", str(args.steps), "--out", str(args.out), *["--quick"] * args.quick]
    with open(log, "w") as file:
        streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **streams), log


def run_all(args, arms: list[str]) -> None:
    """All runs that are not finished, args.jobs at a time, from one base model."""
    runs = [(a, s) for s in args.seeds for a in arms if a in VARIANTS]
    runs += [(a, s) for s in args.seeds for a in arms if a not in VARIANTS]
    waiting = [run for run in runs if not finished(arguments(args.out, *run, args.steps))]
    base, copy, running = args.out / BASE, args.out / "one-update" / BASE, {}
    copy.parent.mkdir(parents=True, exist_ok=True)
    if waiting and not base.exists():
        with contextlib.redirect_stdout(io.StringIO()):  # what it prints is for a lone run
            if train.main(arguments(args.out, "grpo", 0, 0)):
                sys.exit("there is no base model")
    if waiting:
        train.save(copy, lambda part: shutil.copyfile(base, part))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that its runs are stopped with it
    bar = tqdm(desc="runs", total=len(runs), initial=len(runs) - len(waiting))
    try:
        while waiting or running:
            while waiting and len(running) < args.jobs:
                run = waiting.pop(0)
                running[run] = start(args, *run)
            time.sleep(0.2)
            for run, (process, log) in list(running.items()):
                if process.poll() is not None:
                    del running[run]
                    bar.update()
                    if process.returncode:
                        why = f"exit status {process.returncode}, see {log}"
                        tqdm.write(f"{run[0]}, seed {run[1]}, failed: {why}", file=sys.stderr)
    finally:
        bar.close()
        for process, _ in running.values():
            process.terminate()


# ---- what a run shows ----


@dataclass
class Run:
    summary: dict
    metrics: dict[str, np.ndarray]  # column of metrics.csv: a number a step, NaN where it is empty
    sampled: dict[str, float]  # accuracy at temperature 1 by level


def read(argv: list[str]) -> Run:
    folder = folder_of(argv)
    summary, sampled = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("summary", "sampled")
    )
    with open(folder / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    metrics = {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}
    return Run(summary, metrics, sampled)


def responses(run: Run, total: int) -> np.ndarray:
    """How many responses had been sampled after each step, from `total` training problems on."""
    left = run.metrics["prompts_left"]
    left = np.where(np.isnan(left), total, left).astype(int).tolist()
    return GROUP * np.cumsum(batch_sizes(total, train.NUMBERS["prompts"][0], left))


def measure(run: Run, total: int) -> dict[str, float]:
    """The row of a run in compare.csv, variant and seed apart: shares, not percentages."""
    m, hard = run.metrics, [str(level) for level in hardest_third(TASK.levels)]
    first, last = (
        {k: v[s].mean() for k, v in m.items()} for s in (slice(WINDOW), slice(-WINDOW, None))
    )
    norms, changes = m["grad_norm"][WINDOW:], m["likelihood_change"]
    changes = changes[~np.isnan(changes)]
    row = {name: run.summary[name] for name in ("final_accuracy", "final_sampled", "steps")}
    by_level = run.summary["final_accuracy_by_level"]
    easiest, second, *_ = by_level.values()
    row |= {"easiest_accuracy": easiest, "second_accuracy": second}
    row["other_accuracy"] = np.mean(list(by_level.values())[1:])
    row["hard_accuracy"] = np.mean([by_level[k] for k in hard])
    row["hard_sampled"] = np.mean([run.sampled[k] for k in hard])
    row["lowest_accuracy"] = np.nanmin(m["accuracy"])
    row |= {"all_fail_first": first["all_fail"], "all_fail_last": last["all_fail"]}
    row["all_fail_change"] = last["all_fail"] - first["all_fail"]
    row |= {f"{name}_mean": m[name].mean() for name in ("all_fail", "entropy")}
    for name in ("entropy", "coherence", "mean_abs_advantage", "mean_abs_bias"):
        row[name] = last[name]
    row["grad_norm_mean"] = norms.mean() if len(norms) else math.nan
    row["grad_norm_variance"] = norms.var(ddof=1) if len(norms) > 1 else math.nan
    row["grad_norm_spread"] = math.sqrt(row["grad_norm_variance"]) / row["grad_norm_mean"]
    row["likelihood_change"] = changes.mean() if len(changes) else math.nan
    row["responses"] = responses(run, total)[-1]
    row |= {name: run.summary[name] for name in ("seconds", "seconds_per_step")}
    return {name: float(row[name]) for name in MEASURES}


def whole_seeds(arms: list[str], seeds: list[int], there: set) -> dict[str, list[int]]:
    """For each arm the seeds for which all arms that share its baseline are there, if any."""
    whole = {}
    for arm in arms:
        family = [other for other in arms if BASELINE[other] == BASELINE[arm]]
        whole[arm] = [s for s in seeds if all((other, s) in there for other in family)]
    return {arm: seeds for arm, seeds in whole.items() if seeds}


# ---- what is written ----


def markdown(lines: list[list[str]]) -> str:
    lines = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def values(rows: dict, whole: dict, arm: str, name: str) -> list[float]:
    """One measure of an arm in the unit of its table, a number for each whole seed."""
    factor = FACTORS.get(MEASURES[name][1], 1)
    return [factor * rows[arm, seed][name] for seed in whole[arm]]


def level_table(rows: dict, whole: dict) -> str:
    """A line a variant: mean +- standard deviation over seeds."""
    names = [name for name, (*_, tables) in MEASURES.items() if "1" in tables]
    lines = [["variant", *(", ".join(filter(None, MEASURES[n][:2])) for n in names)]]
    for arm in whole:
        lines.append([f"`{arm}`"])
        for name in names:
            v, digits = np.array(values(rows, whole, arm, name)), MEASURES[name][2]
            spread = f" ± {v.std(ddof=1):.{digits}f}" if len(v) > 1 else ""
            lines[-1].append(f"{v.mean():.{digits}f}{spread}")
    return markdown(lines)


def difference(rows: dict, whole: dict, arm: str, name: str) -> tuple[float, float, str]:
    """Ends of the interval of a measure's paired difference; as text, bold if 0 is outside."""
    theirs = values(rows, whole, BASELINE[arm], name)
    interval = paired_interval(values(rows, whole, arm, name), theirs)
    mean, low, high = (f"{x:+.{MEASURES[name][2]}f}" for x in interval)
    bold = "**" * (outcome(*interval[1:], margin=0) in ("better", "worse"))
    text = mean if math.isnan(interval[1]) else f"{bold}{mean} ({low} to {high}){bold}"
    return *interval[1:], text


def named(arm: str) -> str:
    """The arm's name in a table of differences, with its baseline if that is not grpo."""
    return f"`{arm}`" if BASELINE[arm] == "grpo" else f"`{arm}` (from `{BASELINE[arm]}`)"


def difference_table(rows: dict, whole: dict, table: str = "2") -> str:
    """A line a variant: paired differences from its baseline; of shares in points."""
    names = [name for name, (*_, tables) in MEASURES.items() if table in tables]
    heads = [", ".join(filter(None, MEASURES[n][:2])).replace("%", "points") for n in names]
    lines = [["variant", *heads]]
    for arm in whole:
        if arm != BASELINE[arm]:
            lines.append([named(arm), *(difference(rows, whole, arm, n)[2] for n in names)])
    return markdown(lines)


def experiment_table(rows: dict, whole: dict) -> str:
    """A line an experiment: hypothesis, reported, measured here, and whether the two agree."""
    lines = [["experiment", "hypothesis", "reported", "measured here, against grpo", "agrees?"]]
    for arm, (hypothesis, reported, word, others) in EXPERIMENTS.items():
        if arm not in whole:
            continue
        measured = []
        for name in ("final_accuracy", *others):
            title, unit, *_ = MEASURES[name]
            unit = f" {unit}".replace("%", "points").rstrip()
            measured.append(f"{title} {difference(rows, whole, arm, name)[2]}{unit}")
        if arm == "critic":
            b = np.mean(values(rows, whole, "critic", "mean_abs_bias"))
            A = np.mean(values(rows, whole, "grpo", "mean_abs_advantage"))
            measured.append(f"mean abs b {b:.3g} at the end, mean abs A of grpo {A:.3g}")
        low, high, _ = difference(rows, whole, arm, "final_accuracy")
        lines.append(
            [named(arm), hypothesis, reported, "; ".join(measured), agrees(word, low, high)]
        )
    return markdown(lines)


# ---- figures ----

GREY, BLUE, ORANGE, GREEN, RED = "0.45", "#0072B2", "#E69F00", "#009E73", "#D55E00"  # Okabe, Ito


def plot(axis, curves: list[tuple], label: str, colour: str, style: str = "-") -> None:
    """The mean over seeds and a band of +- one standard deviation; curves: (x, y) of each seed."""
    n = min((len(y) for _, y in curves), default=0)
    if n:
        x, y = (np.stack([c[i][:n] for c in curves]) for i in (0, 1))
        x, mean, spread = x.mean(0), y.mean(0), y.std(0, ddof=1) if len(y) > 1 else 0
        axis.plot(x, mean, style, color=colour, label=label, lw=1.4)
        axis.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.15, lw=0)


def learning_curve(run: Run, x: np.ndarray | None = None) -> tuple:
    """Accuracy in % where it was evaluated, the base model's first; x: an axis other than steps."""
    x, y = run.metrics["step"] if x is None else x, run.metrics["accuracy"]
    at = ~np.isnan(y)
    return np.r_[0, x[at]], 100 * np.r_[run.summary["base_accuracy"], y[at]]


def block_means(run: Run, name: str, factor: float = 1) -> tuple:
    """A metric's means over steps 1..10, 11..20, ..., each at the middle of its steps."""
    n = len(run.metrics[name]) // WINDOW
    blocks = [run.metrics[k][: n * WINDOW].reshape(n, WINDOW).mean(1) for k in ("step", name)]
    return blocks[0], factor * blocks[1]


def draw_curves(plt, runs: dict, whole: dict, path: Path) -> None:
    """Accuracy over steps: each variant in a panel of its own, in front of grpo."""
    arms = [arm for arm in whole if BASELINE[arm] == "grpo" and arm != "grpo"]
    size = {"sharex": True, "sharey": True, "squeeze": False, "figsize": (12, 5.4)}
    figure, axes = plt.subplots(2, max(5, -(-len(arms) // 2)), **size)
    for axis, arm in zip(axes.flat, arms):
        for name, colour in (("grpo", GREY), (arm, BLUE)):
            plot(axis, [learning_curve(runs[name, s]) for s in whole[name]], name, colour)
        axis.set_title(arm)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(arms) :]:
        axis.remove()
    if arms:
        axes.flat[0].legend(axes.flat[0].lines, ("grpo", "the variant"), loc="lower right")
    figure.supxlabel("step", fontsize=11)
    figure.supylabel("greedy accuracy, %", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    plt.close(figure)


def draw_details(plt, runs: dict, whole: dict, total: int, path: Path) -> None:
    """What single experiments are about, a panel each."""
    figure, axes = plt.subplots(2, 3, figsize=(12, 6.6))

    def lines(axis, name: str, arms: list[tuple], factor: float = 1) -> None:
        for arm, colour, style, label in arms:
            curves = [block_means(runs[arm, s], name, factor) for s in whole.get(arm, [])]
            plot(axis, curves, label, colour, style)

    grpo_line, (cost, bias, coherence), (fail, *pair) = ("grpo", GREY, "-", "grpo"), *axes
    for arm, colour in (("grpo", GREY), ("culling", BLUE)):
        these = [runs[arm, s] for s in whole.get(arm, [])]
        plot(cost, [learning_curve(r, responses(r, total) / 1e3) for r in these], arm, colour)
    lines(bias, "mean_abs_advantage", [("critic", BLUE, "-", "|A + b| of critic")])
    lines(bias, "mean_abs_advantage", [("grpo", GREY, "-", "|A| of grpo")])
    lines(bias, "mean_abs_bias", [("critic", RED, "--", "|b| of critic")])
    lines(coherence, "coherence", [grpo_line, ("likelihood", BLUE, "-", "likelihood")], 100)
    suppressed = [("negative", ORANGE, "-", "negative"), ("ngrpo", GREEN, "-", "ngrpo")]
    lines(fail, "all_fail", [grpo_line, *suppressed], 100)
    updates = [("grpo", GREY, "-", "grpo, 4 updates"), ("grpo-1", GREY, "--", "grpo, 1")]
    updates.append(("compensation", BLUE, "-", "compensation, 4"))
    updates.append(("compensation-1", BLUE, "--", "compensation, 1"))
    for axis, name in zip(pair, ("entropy", "grad_norm")):
        lines(axis, name, updates)
    cost.set(title="culling, by what it costs", ylabel="greedy accuracy, %")
    bias.set(title="critic: size of the bias", ylabel="mean over tokens", yscale="log")
    coherence.set(title="likelihood: coherence", ylabel="% of responses")
    fail.set(title="all-fail groups", ylabel="% of groups")
    pair[0].set(title="compensation: entropy", ylabel="nats a token")
    pair[1].set(title="compensation: gradient norm", ylabel="norm, before shortening")
    for axis in axes.flat:
        axis.set_xlabel("responses sampled, thousands" if axis is cost else "step")
        axis.grid(alpha=0.3)
        if axis.lines:
            axis.legend(fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    plt.close(figure)


# ---- the study ----


def report(rows: dict, whole: dict, steps: int) -> str:
    """The four tables, with what they need to be read."""
    parts = []
    for baseline in dict.fromkeys(BASELINE[arm] for arm in whole):
        family = ", ".join(f"`{arm}`" for arm in whole if BASELINE[arm] == baseline)
        parts.append(f"{family}: seeds {', '.join(map(str, whole[baseline]))}, {steps} steps.")
    parts.append("Mean ± standard deviation over seeds.")
    parts.append(level_table(rows, whole))
    parts.append(
        "Differences from grpo, paired by seed, with 95 % t intervals; bold where 0 is outside,\n"
        "by chance once in twenty. culling's all-fail share, entropy and coherence are of the\n"
        "prompts that it has left, and the gradients of dr_grpo and rloo have another scale than\n"
        "grpo's, as their advantages have: there the differences mean little."
    )
    parts.append(difference_table(rows, whole))
    parts.append(
        "Greedy accuracy decides: if the interval of its difference is above 0 it says better,\n"
        f"below 0 worse, within {MARGIN:g} point of 0 no change, else nothing."
    )
    parts += [experiment_table(rows, whole), "A closer look, differences as above."]
    return "\n\n".join([*parts, difference_table(rows, whole, "3")])


def summarise(args, arms: list[str]) -> int:
    """compare.csv, the tables and the figures of the runs that are finished. Exit status."""
    wanted = [(arm, seed) for seed in args.seeds for arm in arms]
    commands = {run: arguments(args.out, *run, args.steps) for run in wanted}
    runs = {run: read(argv) for run, argv in commands.items() if finished(argv)}
    total = len(train.make_problems(TASK, train.TRAIN_SIZE, held=False))
    rows = {run: measure(r, total) for run, r in runs.items()}
    with open(args.out / "compare.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["variant", "seed", *MEASURES], lineterminator="\n")
        writer.writeheader()
        writer.writerows({"variant": a, "seed": s, **row} for (a, s), row in rows.items())
    if len({r.summary["base_accuracy"] for r in runs.values()}) > 1:
        print("These runs did not start from the same base model!", file=sys.stderr)
    if missing := [f"{arm} {seed}" for arm, seed in wanted if (arm, seed) not in runs]:
        print(f"{len(missing)} runs are not there: {', '.join(missing)}", file=sys.stderr)
    whole = whole_seeds(arms, args.seeds, set(runs))
    if not whole:
        print("There is no seed with a run of every variant yet.", file=sys.stderr)
        return 1
    print(report(rows, whole, args.steps))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    complete = all(len(whole.get(arm, ())) >= len(SEEDS) for arm in BASELINE)
    ours = complete and args.steps == STEPS and not args.quick
    folder = Path("docs") if ours else args.out
    draw_curves(pyplot, runs, whole, folder / "compare-curves.png")
    draw_details(pyplot, runs, whole, total, folder / "compare-details.png")
    print(f"\nFigures: {folder}/compare-curves.png, {folder}/compare-details.png")
    return 0


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.compare")
    add = parser.add_argument
    add("--out", type=Path, help="folder of the runs and compare.csv (default: runs/compare)")
    add("--seeds", type=int, nargs="+", help="default: 1 2 3 4 5")
    add("--steps", type=int, help=f"of each run (default: {STEPS})")
    add("--variants", nargs="+", choices=BASELINE, default=BASELINE, help="only these, and grpo")
    add("--jobs", type=int, default=2, help="runs side by side, one thread each (default: 2)")
    add("--summarise", action="store_true", help="run nothing: tables and figures of what is there")
    add("--quick", action="store_true", help="a smoke test: the numbers are noise")
    add("--worker", nargs=2, help=argparse.SUPPRESS)  # one run, for run_all
    args = parser.parse_args(argv)
    args.seeds = list(dict.fromkeys(args.seeds or (QUICK["seeds"] if args.quick else SEEDS)))
    args.steps = args.steps or (QUICK["steps"] if args.quick else STEPS)
    args.out = args.out or Path("runs/compare-quick" if args.quick else "runs/compare")
    if min(args.seeds) < 0 or args.steps < 1 or args.jobs < 1:
        parser.error("--seeds: 0 or more; --steps and --jobs: 1 or more")
    if args.quick:
        train.WARMUP_STEPS[TASK.name], train.EVAL_SIZE = QUICK["warmup"], QUICK["evaluated"]
    if args.worker:
        arm, seed = args.worker
        return work(arm, arguments(args.out, arm, int(seed), args.steps))
    needed = {*args.variants, *(BASELINE[arm] for arm in args.variants)}
    arms = [arm for arm in BASELINE if arm in needed]
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.summarise:
        run_all(args, arms)
    return summarise(args, arms)


if __name__ == "__main__":
    import matplotlib  # noqa: F401  (if it is missing, say so now, not after all the work)

    sys.exit(main(sys.argv[1:]))
