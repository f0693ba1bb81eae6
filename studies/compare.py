"""All variants on both testbeds: python -m studies.compare [--tasks mul] [--seeds 1 2] [--arms ...]

Every seed has a base model of its own, the same one for all arms, and for one seed all arms see the
same problems in the same order (culling apart). So differences from grpo are paired by seed. Every
run has train.py's settings. Besides the variants, on add: grpo and compensation with one mini-batch
("-1"), and two controls: rewards drawn at random, and the settled base model, whose learning rate
falls to 0 over the last 30 % of as many steps of the warm-up.

Runs stand side by side, one thread each. Each seed's rows are added to docs/tables/compare.csv when
the seed is whole; a row that is there is not run again. docs/tables/compare-curves.csv holds
accuracy by level over the steps. The tables (docs/tables/compare.md) and docs/levels.png are made
from these two files alone. Second stage: --arms with those that the table calls open, --seeds 13 to
24.
"""

import contextlib
import json
import shutil
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

import train
from advantages import VARIANTS, grpo
from grpo import Rollout
from studies.common import REPLICATES, ROOT, TABLES, commit, interval, markdown, options, pyplot
from studies.common import read_rows, settings, shown, verdict, write_rows
from tasks import TASKS

ROWS = TABLES / "compare.csv"
CURVES = TABLES / "compare-curves.csv"
ARMS = {"add": [*VARIANTS], "mul": [*VARIANTS]}
LAST = 10  # steps: what describes the end of a run is a mean over these
HYPOTHESES = {  # name: variant, what it expects of variant minus grpo, the measure on add, on mul
    "H1": ("critic", -1, "mean_sampled", "mean_sampled"),
    "H2": ("compensation", -1, "mean_sampled", "mean_sampled"),
    "H3": ("culling", 0, "mean_sampled", "mean_sampled"),
    "H4": ("negative", +1, "mean_sampled", "mean_hard"),
    "H5": ("ngrpo", +1, "mean_sampled", "mean_hard"),
    "H6": ("likelihood", -1, "steps_correct_all", "steps_correct_all"),
    "H7": ("nthr", +1, "mean_sampled", "mean_sampled"),
}

COLUMNS = {  # of compare.csv: its heading
    "base_sampled": "sampled: base",
    "final_sampled": "sampled: end",
    "mean_sampled": "sampled: over the run",
    "final_sampled_hard": "hard levels: end",
    "mean_hard": "hard levels: over the run",
    "base_accuracy": "greedy: base",
    "final_accuracy": "greedy: end",
    "all_fail_first": "all-fail: first steps",
    "all_fail_last": "all-fail: last steps",
    "steps_correct_all": "all steps correct: over the run",
    "final_sampled_steps_correct": "of the correct: end",
}
DIFFERENCES = {x: text for x, text in COLUMNS.items() if "base" not in x and "first" not in x}
DIFFERENCES |= {"coherence_all": "coherence", "entropy_last": "entropy: end, 0.01 nats"}


def random_rewards(rollout: Rollout) -> torch.Tensor:
    """grpo on rewards that a fair coin gives, in place of the verifier's."""
    coins = torch.rand(rollout.rewards.size(), device=rollout.rewards.device)
    return grpo(replace(rollout, rewards=(coins < 0.5).float()))


def settle(args) -> None:
    """Puts the settled base model in the place of the base model in args.out."""
    share, ratio = train.WARM_UP[args.task]
    warm_up = (TASKS[args.task], share, ratio, args.base_seed)
    steps = train.warm_up(train.new_model(args), *warm_up, [2e-3] * 2000)
    rates = [2e-3 * min(1.0, (steps - step) / (0.3 * steps)) for step in range(steps)]
    model = train.new_model(args)
    train.warm_up(model, TASKS[args.task], 2.0, ratio, args.base_seed, rates)
    (path,) = Path(args.out).glob("base-*.pt")
    torch.save({path.name: model.state_dict()}, path)


def run(task: str, arm: str, seed: int, out: str) -> tuple[dict, list[dict]]:
    """One run of train.py, its output in a log, unless it is there. Its row and its curve."""
    torch.set_num_threads(1)
    VARIANTS["random"] = random_rewards
    variant = "grpo" if arm == "settled" else arm.removesuffix("-1")
    more = ["--variant", variant, "--minibatches", "1" if arm.endswith("-1") else "4"]
    args = settings(task, seed, out, *more, *(["--steps", "0"] if arm == "settled" else []))
    shared = Path(args.out)
    if arm == "settled":
        args.out += "/settled"  # a folder of its own, for its base model is another
    done = Path(args.out, args.name)
    config = done / "config.json"
    if not (done / "summary.json").exists() or json.loads(config.read_text()) != vars(args):
        Path(args.out).mkdir(parents=True, exist_ok=True)
        with open(f"{args.out}/{arm}.log", "w") as log, contextlib.redirect_stderr(log):
            with contextlib.redirect_stdout(log):
                for path in shared.glob("base-*.pt") if shared != Path(args.out) else []:
                    shutil.copy(path, args.out)
                model = train.base_model(args)
                if arm == "settled":
                    settle(args)
                    model = train.base_model(args)
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


def add(results: list[tuple[dict, list[dict]]]) -> None:
    """Adds the rows of a seed to the two files."""
    write_rows(ROWS, read_rows(ROWS) + [row for row, _ in results])
    write_rows(CURVES, read_rows(CURVES) + [x for _, rows in results for x in rows])


def rows_of(task: str) -> dict[tuple[str, int], dict]:
    """(arm, seed) -> row"""
    return {(x["arm"], int(x["seed"])): x for x in read_rows(ROWS) if x["task"] == task}


def differences(rows: dict, arm: str, column: str) -> dict[int, float]:
    """Arm minus grpo of each seed; an arm with one mini-batch minus grpo with one."""
    reference = "grpo-1" if arm == "compensation-1" else "grpo"
    found = {}
    for (name, seed), row in rows.items():
        if name == arm and (reference, seed) in rows:
            found[seed] = float(row[column] or "nan") - float(rows[reference, seed][column])
    return found


def first_stage(by_seed: dict[int, float]) -> list[float]:
    return [value for seed, value in by_seed.items() if seed <= REPLICATES]


def mean(rows: dict, arm: str, column: str, scale: float = 100, digits: int = 1) -> str:
    values = [float(row[column] or "nan") for (name, _), row in rows.items() if name == arm]
    return f"{scale * np.mean(values[:REPLICATES]):.{digits}f}"


def verdicts() -> str:
    """H1 to H7 on both testbeds, by the rule of docs/results.md."""
    cells = []
    for name, (variant, direction, *columns) in HYPOTHESES.items():
        for task, column in zip(ARMS, columns):
            by_seed = differences(rows_of(task), variant, column)
            late = [value for seed, value in by_seed.items() if seed > REPLICATES]
            numbers = [shown(interval(x)) if x else "" for x in (first_stage(by_seed), late)]
            found = verdict(by_seed, direction, 0.03)
            cells.append([name, f"`{variant}`", task, column, *numbers, *found])
    header = ["", "variant", "task", "measure", "minus grpo, points (95 %)", "fresh replicates"]
    return markdown([*header, "verdict", "replicates"], cells)


def table(task: str) -> str:
    """Means over the first twelve seeds, in %, entropy in nats."""
    rows = rows_of(task)
    cells = []
    for arm in sorted({name for name, _ in rows}, key=ARMS[task].index):
        numbers = [mean(rows, arm, column) for column in COLUMNS]
        entropy = [mean(rows, arm, f"entropy_{when}", 1, 3) for when in ("first", "last")]
        sizes = [mean(rows, arm, x, 1, 2) for x in ("grad_norm_spread", "mean_abs_advantage_last")]
        cells.append([f"`{arm}`", *numbers, *entropy, *sizes])
    rest = ("entropy, first steps", "last", "spread of the gradient", "mean abs A, last")
    return markdown(["arm", *COLUMNS.values(), *rest], cells)


def difference_table(task: str) -> str:
    """Each arm minus grpo, paired by seed, first twelve seeds, with 95 % intervals."""
    rows = rows_of(task)
    cells = []
    for arm in sorted({name for name, _ in rows if name != "grpo"}, key=ARMS[task].index):
        found = [interval(first_stage(differences(rows, arm, column))) for column in DIFFERENCES]
        cells.append([f"`{arm}`", *(shown(x) if x[0] == x[0] else "" for x in found)])
    return markdown(["arm", *DIFFERENCES.values()], cells)


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
    parser = options(__doc__, range(1, REPLICATES + 1), ("add", "mul"))
    parser.add_argument("--arms", nargs="+", help="default: all of the testbed; grpo is added")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    args = parser.parse_args()
    interval([0, 1])  # scipy is missing now, or not at all
    jobs = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for seed in args.seeds:
            for task in args.tasks:
                arms = dict.fromkeys(["grpo", *(args.arms or ARMS[task])])
                arms = [arm for arm in arms if (arm, seed) not in rows_of(task)]
                if arms:
                    jobs.append(pool.submit(run_seed, task, seed, arms, args.out))
        for job in as_completed(jobs):
            add(job.result())
    text = f"# All variants\n\n{verdicts()}\n"
    for task in [task for task in ARMS if rows_of(task)]:
        text += f"\n## {task}\n\n{table(task)}\n\nMinus grpo, points:\n\n{difference_table(task)}\n"
    (TABLES / "compare.md").write_text(text)
    print(text)
    if len({x["task"] for x in read_rows(CURVES)}) == 2:
        levels_figure()


if __name__ == "__main__":
    main()
