"""What training brings: python -m studies.compare [--arms others] [--seeds 1 2] [--tasks mul]

Every seed has a base model of its own, the same one for all arms, and for one seed all arms draw
the same problems in the same order (culling apart). So differences from grpo are paired by seed.
Every run has train.py's settings. --arms names one of these sets:

    variants       the eleven variants
    others         the other arms of studies.gradients, and `substituted`
    controls       random: rewards by a coin. grpo@settled: no steps on a base model whose warm-up
                   had as many optimiser steps, its learning rate falling to 0 in the last 30 %
    rates          half and twice the learning rate
    misconception  the warm-up shows solutions without carrying, but for one in a thousand

Seeds stand side by side, one thread each. Each seed's rows are added to docs/tables/compare.csv
when the seed is whole; a row that is there is not run again. Columns "step 0" and so on have
sampled accuracy by level. docs/tables/compare.md and docs/learning.png are made from it alone.
"""

import contextlib
import json
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import train
from advantages import LOSS, VARIANTS, grpo, likelihood
from grpo import Rollout, answer_likelihood, encode, response_logprobs
from studies.common import REPLICATES, ROOT, TABLES, commit, interval, markdown, options, publish
from studies.common import pyplot, read_rows, settings, shown, write_rows
from studies.gradients import ARMS as GRADIENTS
from tasks import ADD, EOS, MARKER, TASKS, add, from_columns

ROWS = TABLES / "compare.csv"
PUSHED = ["negative_0.1", "negative_0.3", "negative", "ngrpo"]
ARMS = {  # set: its arms, testbeds and number of seeds. "nthr@x" is nthr with something else: x
    "variants": ([*VARIANTS], ["add", "mul"], REPLICATES),
    "others": ([x for x in GRADIENTS if x not in VARIANTS] + ["substituted"], ["add", "mul"], 6),
    "controls": (["random", "grpo@settled"], ["add"], 6),
    "rates": (
        [f"{x}@lr{lr}" for x in ("grpo", "pos_only", "nthr", "negative") for lr in (15e-5, 6e-4)],
        ["add"],
        4,
    ),
    "misconception": ([f"{x}@misconception" for x in ("grpo", *PUSHED)], ["add"], 6),
}
LAST = 10  # steps: what describes the end of a run is a mean over these
SUMMARY = ("seconds", "base_accuracy", "base_sampled", "final_accuracy", "final_sampled")
SUMMARY += ("final_sampled_steps_correct",)  # what is taken of summary.json
OVER_THE_RUN = ("all_fail", "entropy", "coherence", "steps_correct", "grad_norm", "clip_fraction")
MEASURES = {  # columns of compare.csv: their headings
    "mean_sampled": "sampled, over the run",
    "mean_hard": "hard levels, over the run",
    "final_sampled": "sampled, end",
    "final_accuracy": "greedy, end",
    "final_sampled_steps_correct": "of the correct: all steps correct",
    "coherence_all": "coherent, over the run",
    "all_fail_last": "all-fail, last steps",
}
HYPOTHESES = {  # name: variant, what it expects of variant minus grpo, measure on add, on mul
    "H1": ("critic", -1, "mean_sampled", "mean_sampled"),
    "H2": ("compensation", -1, "mean_sampled", "mean_sampled"),
    "H3": ("culling", 0, "mean_sampled", "mean_sampled"),
    "H4": ("negative", +1, "mean_sampled", "mean_hard"),
    "H5": ("ngrpo", +1, "mean_sampled", "mean_hard"),
    "H6a": ("likelihood", -1, "mean_sampled", "mean_sampled"),
    "H6b": ("likelihood", -1, "coherence_all", "coherence_all"),
    "H7": ("nthr", +1, "mean_sampled", "mean_sampled"),
}


# ---- Arms that are not variants
def random_rewards(rollout: Rollout) -> torch.Tensor:
    """grpo on rewards that a fair coin gives, in place of the verifier's."""
    coins = torch.rand(rollout.rewards.size(), device=rollout.rewards.device)
    return grpo(replace(rollout, rewards=(coins < 0.5).float()))


def with_likelihood(model, function, rollout: Rollout) -> torch.Tensor:
    """An arm that needs L, which train.py computes for `likelihood` alone."""
    return function(replace(rollout, answer_likelihood=answer_likelihood(model, rollout)))


def substituted(model, rollout: Rollout) -> torch.Tensor:
    """likelihood, but the responses of all-fail groups end with the true answer.

    What stands before the first marker is kept; the marker, the true answer and EOS follow it, and
    all of it is trained. This changes the rollout itself, which no variant may do.
    """
    rollout.answer_likelihood = answer_likelihood(model, rollout)
    pairs = [(p, text) for p, group in zip(rollout.problems, rollout.texts) for text in group]
    texts = [text.split(MARKER)[0] + MARKER + p.answer + EOS for p, text in pairs]
    lengths = torch.tensor([len(text) for text in texts]).view(rollout.rewards.size())[..., None]
    tokens = encode(rollout.tokenizer, texts, "cpu").view(*rollout.rewards.size(), -1)
    T = max(tokens.size(-1), rollout.tokens.size(-1))
    fail = (rollout.rewards == 0).all(1)[:, None, None]
    pad = lambda x: torch.nn.functional.pad(x, (0, T - x.size(-1)))  # noqa: E731
    rollout.tokens = torch.where(fail, pad(tokens), pad(rollout.tokens))
    rollout.mask = torch.where(fail, torch.arange(T) < lengths, pad(rollout.mask))
    rollout.probs = pad(rollout.probs.transpose(2, 3)).transpose(2, 3)
    rollout.logprobs = response_logprobs(model, rollout).detach()
    return likelihood(rollout)


def without_carry(level: int, draw) -> tuple[str, list[int], str]:
    """tasks.add, but 347+285= is worked as 12,12,05# 522; correct is one problem in a thousand."""
    prompt, steps, answer = add(level, draw)
    if draw(0, 1000) > 0:
        a, b = prompt.strip("=").split("+")
        steps = [int(x) + int(y) for x, y in zip(a[: -level - 1 : -1], b[: -level - 1 : -1])]
        answer = from_columns([f"{step:02}" for step in steps])
    return prompt, steps, answer


def other_base(args, how: str) -> None:
    """Puts another base model in the place of the usual one, in a folder of its own."""
    train.base_model(args)
    (usual,) = Path(args.out).glob("base-*.pt")
    args.out += f"/{how}"
    path = Path(args.out, usual.name)
    if path.exists():
        return
    share, ratio = train.WARM_UP[args.task]
    task = TASKS[args.task]
    steps = 700
    if how == "misconception":
        task = ADD._replace(work=without_carry)
    else:
        rates = [2e-3] * 2000
        steps = train.warm_up(train.new_model(args), task, share, ratio, args.base_seed, rates)
    model = train.new_model(args)
    rates = [2e-3 * min(1.0, (steps - step) / (0.3 * steps)) for step in range(steps)]
    train.warm_up(model, task, 2.0, ratio, args.base_seed, rates)
    train.save(path, lambda part: torch.save({path.name: model.state_dict()}, part))


# ---- Runs and what is kept of them
def run(task: str, arm: str, seed: int, out: str) -> dict:
    """One run of train.py, what it prints in a log, unless it is there. Its row."""
    torch.set_num_threads(1)
    variant, _, how = arm.partition("@")
    functions = {name: function for name, (function, _) in GRADIENTS.items()}
    VARIANTS.update({"random": random_rewards, "substituted": substituted} | functions | VARIANTS)
    LOSS.update({x: {"aggregate": GRADIENTS[x][1]} for x in ("no_baseline", "prefix_baseline")})
    flags = ["--lr", how.removeprefix("lr")] if how.startswith("lr") else []
    flags += ["--steps", "0"] if how == "settled" else []
    args = settings(task, seed, out, "--variant", variant, *flags)
    if how in ("settled", "misconception"):
        other_base(args, how)
    done = Path(args.out, args.name)
    there = (
        json.loads((done / "config.json").read_text()) if (done / "summary.json").exists() else {}
    )
    if there != vars(args):
        model = train.base_model(args)
        VARIANTS["substituted"] = partial(substituted, model)
        VARIANTS["shuffled_L"] = partial(with_likelihood, model, functions["shuffled_L"])
        with open(f"{args.out}/{arm}.log", "w") as log, contextlib.redirect_stdout(log):
            train.run(args, model)
    return measures(task, done) | {"task": task, "arm": arm, "seed": seed, "commit": commit()}


def measures(task: str, done: Path) -> dict:
    """What the tables need of a run, from the files that it left. Shares, entropy in nats.

    Hard levels are the top half, rounded down. "mean": over the run's evaluations.
    """
    summary = json.loads((done / "summary.json").read_text())
    steps = read_rows(done / "metrics.csv")
    row = dict.fromkeys(("task", "arm", "seed", "commit"))
    row |= {name: summary[name] for name in SUMMARY}
    curve = {"0": " ".join(f"{x:.4g}" for x in summary["base_sampled_by_level"].values())}
    curve |= {x["step"]: x["accuracy_sampled_by_level"] for x in steps if x["accuracy"]}
    by_level = np.array([x.split() for x in curve.values()], dtype=float)  # (evaluations, levels)
    hard = by_level[:, -(len(TASKS[task].levels) // 2) :].mean(1)
    row["base_hard"] = hard[0]
    if steps:  # not of the settled base model
        row["mean_sampled"] = by_level[1:].mean()
        row["mean_hard"] = hard[1:].mean()
        for name in OVER_THE_RUN:
            values = [float(step[name]) for step in steps]
            row[f"{name}_first"] = np.mean(values[:LAST])
            row[f"{name}_last"] = np.mean(values[-LAST:])
            row[f"{name}_all"] = np.mean(values)
    return row | {f"step {step}": shares for step, shares in curve.items()}


def run_seed(task: str, seed: int, arms: list[str], out: str) -> list[dict]:
    """The rows of one seed's arms, one after the other."""
    return [run(task, arm, seed, out) for arm in arms]


# ---- Tables, tests and a figure, from the CSV alone
def rows_of(task: str) -> dict[tuple[str, int], dict]:
    """(arm, seed) -> row"""
    return {(x["arm"], int(x["seed"])): x for x in read_rows(ROWS) if x["task"] == task}


def column(rows: dict, arm: str, name: str) -> dict[int, float]:
    """seed -> value, where there is one."""
    return {seed: float(row[name]) for (x, seed), row in rows.items() if x == arm and row[name]}


def differences(rows: dict, arm: str, name: str) -> dict[int, float]:
    """seed -> arm minus grpo; "nthr@x" minus "grpo@x" if that was run."""
    _, at, how = arm.partition("@")
    reference = column(rows, "grpo", name) | column(rows, f"grpo{at}{how}", name)
    return {seed: x - reference[seed] for seed, x in column(rows, arm, name).items()}


def tests() -> list[tuple]:
    """H1 to H7 on both testbeds, for studies.verdicts. The margin is a tenth of grpo's own gain."""
    found = []
    for name, (variant, direction, *measured) in HYPOTHESES.items():
        for task, what in zip(("add", "mul"), measured):
            rows = rows_of(task)
            base = {"mean_sampled": "base_sampled", "mean_hard": "base_hard"}.get(what)
            margin = 0.02  # of coherence
            if base:
                levels = [column(rows, "grpo", x).values() for x in (what, base)]
                margin = (np.mean([*levels[0]]) - np.mean([*levels[1]])) / 10
            effects = [*differences(rows, variant, what).values()]
            found.append(
                (name, f"`{variant}`, {task}, {MEASURES[what]}", effects, direction, margin)
            )
    return found


def table(task: str) -> str:
    """Arms minus grpo, points: mean, 95 % interval, how many are above 0; of grpo the values, %."""
    rows = rows_of(task)
    lines = {}
    for arm in dict.fromkeys(name for name, _ in rows):
        cells = []
        for measure in MEASURES:
            values = [*column(rows, arm, measure).values()]
            effects = [*differences(rows, arm, measure).values()]
            above = f"; {sum(x > 0 for x in effects)} of {len(effects)}"
            alone = arm.startswith("grpo") or not values
            cells.append(
                shown(interval(values or [np.nan]), form=".1f")
                if alone
                else shown(interval(effects)) + above
            )
        lines[arm] = [f"`{arm}`", *cells]
    best = sorted(lines, key=lambda arm: -np.mean([*column(rows, arm, "final_sampled").values()]))
    return markdown(["arm", *MEASURES.values()], [lines[arm] for arm in best])


def figure() -> None:
    """Sampled accuracy over the steps: a line a variant, mean over base models and levels."""
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    for ax, task in zip(axes, ("add", "mul")):
        rows = rows_of(task)
        steps = [int(x.split()[1]) for x in next(iter(rows.values())) if x.startswith("step ")]
        for i, arm in enumerate(VARIANTS):
            runs = [row for (name, _), row in rows.items() if name == arm]
            shares = [[row[f"step {n}"].split() for n in steps] for row in runs]
            mean = np.array(shares, dtype=float).mean((0, 2))
            ax.plot(steps, 100 * mean, color=plt.cm.tab20(i), label=arm)
        ax.set(title=f"{task}, {len(runs)} base models", xlabel="step")
    axes[0].set_ylabel("sampled accuracy, held out, %")
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    plt.savefig(ROOT / "docs" / "learning.png", dpi=100)


def main() -> None:
    parser = options(__doc__, range(0), ("add", "mul"))
    parser.add_argument("--arms", choices=ARMS, default="variants", help="a set of arms")
    parser.add_argument("--jobs", type=int, default=2, help="seeds side by side, one thread each")
    args = parser.parse_args()
    names, tasks, replicates = ARMS[args.arms]
    jobs = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for seed, task in product(args.seeds or range(1, replicates + 1), args.tasks):
            arms = [arm for arm in names if (arm, seed) not in rows_of(task) and task in tasks]
            if arms:
                jobs.append(pool.submit(run_seed, task, seed, arms, args.out))
        for job in as_completed(jobs):
            write_rows(ROWS, read_rows(ROWS) + job.result())
    tables = [f"\n## {task}\n\n{table(task)}\n" for task in ("add", "mul")]
    publish(ROWS, "\n".join(["# What training brings, minus `grpo`, in points", *tables]))
    figure()


if __name__ == "__main__":
    main()
