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
when the seed is whole; a row that is there is not run again. docs/tables/compare-curves.csv has
accuracy by level over the steps. docs/tables/compare.md and docs/levels.png are made from these two
files alone.
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
CURVES = TABLES / "compare-curves.csv"
PUSHED = ["negative_0.1", "negative_0.3", "negative", "ngrpo"]
ARMS = {  # set: its arms, testbeds and number of seeds. "nthr@x" is nthr with something else: x
    "variants": ([*VARIANTS], ["add", "mul"], REPLICATES),
    "others": ([*(GRADIENTS.keys() - VARIANTS.keys()), "substituted"], ["add", "mul"], 6),
    "controls": (["random", "grpo@settled"], ["add"], 6),
    "rates": (
        [f"{x}@lr{lr}" for x in ("grpo", "pos_only", "nthr", "negative") for lr in (15e-5, 6e-4)],
        ["add"],
        4,
    ),
    "misconception": ([f"{x}@misconception" for x in ("grpo", *PUSHED)], ["add"], 6),
}
LAST = 10  # steps: what describes the end of a run is a mean over these
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
def run(task: str, arm: str, seed: int, out: str) -> tuple[dict, list[dict]]:
    """One run of train.py, its output in a log, unless it is there. Its row and its curve."""
    torch.set_num_threads(1)
    variant, _, how = arm.partition("@")
    functions = {name: function for name, (function, _) in GRADIENTS.items()}
    VARIANTS.update({"random": random_rewards, "substituted": substituted} | functions | VARIANTS)
    means = {name: {"aggregate": x} for name, (_, x) in GRADIENTS.items() if name != "rloo"}
    LOSS.update({name: x for name, x in means.items() if x["aggregate"] != "token"} | LOSS)
    flags = ["--lr", how.removeprefix("lr")] if how.startswith("lr") else []
    flags += ["--steps", "0"] if how == "settled" else []
    args = settings(task, seed, out, "--variant", variant, *flags)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    with open(f"{args.out}/{arm}.log", "a") as log, contextlib.redirect_stderr(log):
        with contextlib.redirect_stdout(log):
            if how in ("settled", "misconception"):
                other_base(args, how)
            done = Path(args.out, args.name)
            config = done / "config.json"
            if (done / "summary.json").exists():
                there = json.loads(config.read_text()) == vars(args)
            if not (done / "summary.json").exists() or not there:
                model = train.base_model(args)
                VARIANTS["substituted"] = partial(substituted, model)
                shuffled = partial(with_likelihood, model, functions["shuffled_L"])
                VARIANTS["shuffled_L"] = shuffled
                train.run(args, model)
    return measures(task, arm, seed, done), curve(task, arm, seed, done)


def measures(task: str, arm: str, seed: int, done: Path) -> dict:
    """What the tables need of a run, from the files that it left. Shares, entropy in nats.

    Hard levels are the top half, rounded down. "mean": over the run's evaluations.
    """
    summary = json.loads((done / "summary.json").read_text())
    steps = read_rows(done / "metrics.csv")
    row = {"task": task, "arm": arm, "seed": seed, "steps": summary["steps"], "commit": commit()}
    hard = len(TASKS[task].levels) // 2
    for name in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        row[name] = summary[name]
        row[f"{name}_hard"] = np.mean([*summary[f"{name}_by_level"].values()][-hard:])
        row[f"{name}_steps_correct"] = summary[f"{name}_steps_correct"]
    row["seconds"] = summary["seconds"]
    if not steps:  # of the settled base model
        return row
    evaluated = [step for step in steps if step["accuracy"]]
    for name, column in (("mean_accuracy", "accuracy"), ("mean_sampled", "accuracy_sampled")):
        row[name] = np.mean([float(step[column]) for step in evaluated])
    by_level = [step["accuracy_sampled_by_level"].split()[-hard:] for step in evaluated]
    row["mean_hard"] = np.mean(np.array(by_level, dtype=float))
    columns = ("all_fail", "entropy", "coherence", "steps_correct", "grad_norm", "clip_fraction")
    columns += ("approx_kl", "mean_abs_advantage")
    for name in columns:
        values = [float(step[name]) for step in steps]
        row[f"{name}_first"] = np.mean(values[:LAST])
        row[f"{name}_last"] = np.mean(values[-LAST:])
        row[f"{name}_all"] = np.mean(values)
    norms = np.array([float(step["grad_norm"]) for step in steps])
    row["grad_norm_spread"] = norms.std() / norms.mean()
    return row


def curve(task: str, arm: str, seed: int, done: Path) -> list[dict]:
    """Sampled accuracy wherever the run measured it, step 0 being the base model: a row a level."""
    base = json.loads((done / "summary.json").read_text())["base_sampled_by_level"]
    points = {"0": [f"{share:.4g}" for share in base.values()]}
    for step in read_rows(done / "metrics.csv"):
        if step["accuracy"]:
            points[step["step"]] = step["accuracy_sampled_by_level"].split()
    head = {"task": task, "arm": arm, "seed": seed}
    rows = [head | {"level": level} for level in base]
    for i, row in enumerate(rows):
        row |= {step: shares[i] for step, shares in points.items()}
    return rows


def run_seed(task: str, seed: int, arms: list[str], out: str) -> list[tuple]:
    """The arms of one seed, one after the other: (row, curve) each."""
    return [run(task, arm, seed, out) for arm in arms]


def add_rows(results: list[tuple[dict, list[dict]]]) -> None:
    """Adds the rows of a seed to the two files."""
    write_rows(ROWS, read_rows(ROWS) + [row for row, _ in results])
    write_rows(CURVES, read_rows(CURVES) + [x for _, rows in results for x in rows])


# ---- Tables, tests and a figure, from the two files alone
def rows_of(task: str) -> dict[tuple[str, int], dict]:
    """(arm, seed) -> row"""
    return {(x["arm"], int(x["seed"])): x for x in read_rows(ROWS) if x["task"] == task}


def differences(rows: dict, arm: str, column: str) -> dict[int, float]:
    """seed -> arm minus grpo; "nthr@x" minus "grpo@x" if that was run."""
    _, at, how = arm.partition("@")
    found = {}
    for seed in [seed for name, seed in rows if name == arm]:
        reference = rows.get((f"grpo{at}{how}", seed)) or rows.get(("grpo", seed))
        if reference and rows[arm, seed][column]:
            found[seed] = float(rows[arm, seed][column]) - float(reference[column])
    return found


def tests() -> list[tuple]:
    """H1 to H7 on both testbeds, for studies.verdicts. The margin is a tenth of grpo's own gain."""
    found = []
    for name, (variant, direction, *columns) in HYPOTHESES.items():
        for task, column in zip(("add", "mul"), columns):
            rows = rows_of(task)
            base = {"mean_sampled": "base_sampled", "mean_hard": "base_sampled_hard"}.get(column)
            own = [
                float(x[column]) - float(x[base])
                for (arm, _), x in rows.items()
                if base and arm == "grpo"
            ]
            margin = np.mean(own) / 10 if base else 0.02
            effects = [*differences(rows, variant, column).values()]
            found.append(
                (name, f"`{variant}`, {task}, {MEASURES[column]}", effects, direction, margin)
            )
    return found


def table(task: str) -> str:
    """Arms minus grpo, points: mean, 95 % interval, how many are above 0; the best first."""
    rows = rows_of(task)
    cells = {}
    for arm in dict.fromkeys(name for name, _ in rows):
        effects = [[*differences(rows, arm, column).values()] for column in MEASURES]
        texts = [
            f"{shown(interval(x))}, {sum(e > 0 for e in x)} of {len(x)}" if x else ""
            for x in effects
        ]
        means = [
            np.mean([float(x[c] or "nan") for (name, _), x in rows.items() if name == arm])
            for c in MEASURES
        ]
        first = texts if arm.partition("@")[0] != "grpo" else [f"**{100 * x:.1f}**" for x in means]
        cells[arm] = [-means[0], f"`{arm}`", *first]
    lines = [line for _, *line in sorted(cells.values(), key=lambda line: line[0])]
    return markdown(["arm", *MEASURES.values()], lines)


def levels_figure() -> None:
    """Sampled accuracy of each level over the steps of grpo: median, and the middle half."""
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for ax, task in zip(axes, ARMS):
        points = [x for x in read_rows(CURVES) if x["task"] == task and x["arm"] == "grpo"]
        steps = [name for name in points[0] if name.isdigit()]
        for i, level in enumerate(TASKS[task].levels):
            at = [[x[n] for n in steps] for x in points if x["level"] == str(level)]
            curves = np.array(at, dtype=float)  # (seeds, steps)
            colour = plt.cm.viridis(i / len(TASKS[task].levels))
            n = [int(step) for step in steps]
            ax.plot(n, np.median(curves, 0), color=colour, label=f"{level} digits")
            low, high = np.quantile(curves, [0.25, 0.75], axis=0)
            ax.fill_between(n, low, high, color=colour, alpha=0.12, linewidth=0)
        ax.set(title=f"{task}, {len(curves)} base models", xlabel="step", ylim=(0, 1))
    axes[0].set_ylabel("accuracy, sampled, held out")
    axes[1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    plt.tight_layout()
    plt.savefig(ROOT / "docs" / "levels.png", dpi=100)


def main() -> None:
    parser = options(__doc__, range(0), ("add", "mul"))
    parser.add_argument("--arms", choices=ARMS, default="variants", help="a set of arms")
    parser.add_argument("--jobs", type=int, default=2, help="seeds side by side, one thread each")
    args = parser.parse_args()
    interval([0, 1])  # scipy is missing now, or not at all
    names, tasks, replicates = ARMS[args.arms]
    jobs = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for seed, task in product(args.seeds or range(1, replicates + 1), args.tasks):
            arms = [arm for arm in names if (arm, seed) not in rows_of(task) and task in tasks]
            if arms:
                jobs.append(pool.submit(run_seed, task, seed, arms, args.out))
        for job in as_completed(jobs):
            add_rows(job.result())
    text = "# What training brings\n\nMinus `grpo`, in points; of `grpo` the values in %.\n"
    for task in ("add", "mul"):
        text += f"\n## {task}\n\n{table(task)}\n"
    publish(ROWS, text)
    levels_figure()


if __name__ == "__main__":
    main()
