"""What can be solved at all? python -m studies.allfail [--seeds 1 2 3]     after studies.compare

Held-out problems, 30 a level, 1,024 responses to each at temperature 1, by the base models and by
what studies.compare trained from them. With c of n responses correct, the chance that a group of N
is not all-fail is

    pass@N = 1 - C(n-c, N) / C(n, N)                                  arXiv 2107.03374, Eq. 1

docs/tables/allfail.csv has a row a problem and a column a model: its correct responses. A seed that
is there, of the same core, is not sampled again. Tables and docs/allfail.png need it alone.
"""

from pathlib import Path

import numpy as np
import torch
from scipy import stats
from tqdm import tqdm

import train
from grpo import sample_rollout
from model import GPT
from studies.common import ROOT, TABLES, base_model, core_checksum, interval, markdown, options
from studies.common import pyplot, read_rows, rows_of_last_core, settings, shown, write_rows
from tasks import TASKS, Problem

ROWS = TABLES / "allfail.csv"
MODELS = ("base", "grpo", "pos_only", "compensation", "negative", "ngrpo", "culling")
SAMPLES = 1024
SIZES = [2**k for k in range(11)]  # N


def pass_at(correct: np.ndarray, sizes: list[int]) -> np.ndarray:
    """pass@N of problems of whose SAMPLES responses some are correct: (problems, sizes)."""
    N = np.array(sizes)
    # The chance that a draw of N without replacement has no correct one.
    return 1 - stats.hypergeom.pmf(0, SAMPLES, np.asarray(correct)[:, None], N)


def load(task: str, seed: int, name: str, out: str) -> GPT:
    """The base model, or what studies.compare trained from it; OSError if it is not there."""
    folder = Path(out) / f"{task}-{seed}"
    model = base_model(settings(task, seed, folder))
    if name != "base":
        path = folder / f"{task}-{name}-seed{seed}" / "model.pt"
        model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model


def count(model: GPT, task: str, problems: list[Problem], name: str) -> list[int]:
    """How many of SAMPLES responses to each problem are correct."""
    rng = torch.Generator().manual_seed(0)
    found = []
    for problem in tqdm(problems, name):
        rollout = sample_rollout(
            model, train.TOKENIZER, TASKS[task], [problem], SAMPLES, generator=rng
        )
        found.append(int(rollout.rewards.sum()))
    return found


def measure(task: str, seed: int, out: str) -> list[dict]:
    """The rows of one seed: all models on the first 30 held-out problems of each level."""
    held = train.make_problems(TASKS[task], held=True)
    problems = []
    for level in TASKS[task].levels:
        problems += [p for p in held if p.level == level][:30]
    counts = {}
    for name in MODELS:
        label = f"{task}, seed {seed}, {name}"
        counts[name] = count(load(task, seed, name, out), task, problems, label)
    rows = []
    for i, problem in enumerate(problems):
        row = {"task": task, "seed": seed, "core": core_checksum(), "level": problem.level}
        row["problem"] = problem.prompt.strip()
        rows.append(row | {name: counts[name][i] for name in MODELS})
    return rows


def by_seed(task: str, name: str, levels) -> list[np.ndarray]:
    """The correct responses of a model: an array of problems for each seed."""
    rows = [r for r in rows_of_last_core(ROWS) if r["task"] == task and int(r["level"]) in levels]
    seeds = sorted({int(row["seed"]) for row in rows})
    return [np.array([int(r[name]) for r in rows if int(r["seed"]) == s]) for s in seeds]


def level_table(task: str, N: int) -> str:
    """pass@N in %, mean over problems and seeds, by level."""
    cells = []
    for level in TASKS[task].levels:
        cells.append([str(level)])
        for name in MODELS:
            correct = np.concatenate(by_seed(task, name, [level]))
            cells[-1].append(f"{100 * pass_at(correct, [N]).mean():.1f}")
    return markdown([f"level, pass@{N}", *(f"`{name}`" for name in MODELS)], cells)


def solved_table(task: str, levels) -> str:
    """pass@1,024 minus the base model's by seed, and problems that only one of the two solves."""
    cells = []
    base = by_seed(task, "base", levels)
    for name in MODELS[1:]:
        trained = by_seed(task, name, levels)
        gains = [(a > 0).mean() - (b > 0).mean() for a, b in zip(trained, base)]
        won = sum(((a > 0) & (b == 0)).sum() for a, b in zip(trained, base))
        lost = sum(((a == 0) & (b > 0)).sum() for a, b in zip(trained, base))
        cells.append([f"`{name}`", shown(interval(gains)), str(won), str(lost)])
    header = ["after", f"pass@{SAMPLES} minus base, points (95 %)", "solved by it alone"]
    return markdown([*header, "by the base model alone"], cells)


def figure(tasks: list[str]) -> None:
    """pass@N over N, a line a model, by level: mean over problems and seeds."""
    plt = pyplot()
    grid = {"nrows": len(tasks), "ncols": 4, "sharex": True, "sharey": True, "squeeze": False}
    figure, axes = plt.subplots(**grid, figsize=(10, 2.4 * len(tasks)))
    for row, task in zip(axes, tasks):
        for ax, level in zip(row, (2, 4, 6, 8)):
            for i, name in enumerate(MODELS):
                correct = np.concatenate(by_seed(task, name, [level]))
                colour = "black" if name == "base" else plt.cm.tab10(i)
                ax.plot(SIZES, pass_at(correct, SIZES).mean(0), color=colour, label=name)
            ax.set_xscale("log", base=2)
            ax.set_title(f"{task}, {level} terms", fontsize=10)
    axes[0, 3].legend(frameon=False, fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
    figure.supxlabel("N, responses in a group", fontsize=10)
    figure.supylabel("pass@N", fontsize=10)
    plt.tight_layout()
    plt.savefig(ROOT / "docs" / "allfail.png", dpi=100)


def main() -> None:
    args = options(__doc__, range(1, 4)).parse_args()
    out = f"{args.out}/{core_checksum()}"
    torch.set_num_threads(1)
    for task in args.tasks:
        for seed in args.seeds:
            rows = read_rows(ROWS)
            mine = [row for row in rows if (row["task"], row["seed"]) == (task, str(seed))]
            if {row["core"] for row in mine} != {core_checksum()}:
                others = [row for row in rows if row not in mine]
                write_rows(ROWS, others + measure(task, seed, out))
    text = "# What can be solved at all\n"
    tasks = [task for task in ("sum", "wall") if by_seed(task, "base", TASKS[task].levels)]
    for task in tasks:
        not_shown = [level for level in TASKS[task].levels if level not in TASKS[task].shown]
        levels = not_shown or list(TASKS[task].levels)
        text += f"\n## {task}\n"
        for N in (1, 8, SAMPLES):
            text += f"\n{level_table(task, N)}\n"
        text += f"\nLevels {levels[0]} to {levels[-1]}:\n\n{solved_table(task, levels)}\n"
    (TABLES / "allfail.md").write_text(text)
    print(text)
    figure(tasks)


if __name__ == "__main__":
    main()
