"""What training brings: python -m studies.compare --set variants [--seeds 4 5] [--tasks mul]

docs/rule.md is the protocol. Every seed has a base model of its own, and for one seed all variants
draw the same problems in the same order (culling apart), so differences from grpo are paired. Sets:

    rates      base models 1-3: each variant at three learning rates, or four (studies.effects)
    variants   4-15: each variant at the best of these, and at that of grpo
    forms      rates as above of experiment 5's other forms and of critic_bounded; then 4-9
    controls   4-9: the other controls, at grpo's rate
    free       4-9: grpo and compensation on add without clip and limit, each at its own rate
    sum        4-9: grpo and verifree on sum, at their rates on add

docs/tables/compare.csv has a row a run: `python train.py --task TASK --variant VARIANT --seed SEED
--base-seed SEED --lr LR FLAGS`; docs/tables/curves.csv its sampled accuracy at every evaluation.
Rows are added as runs finish. What has a row is not run again, and a finished run in --out is only
read: remove it when the core has changed. The columns, as shares unless another unit is given:

    mean_sampled        accuracy at temperature 1, mean over the evaluations: the primary measure
    base_, final_       as in summary.json (docs/files.md), before and after training
    seconds_per_step    median
    all_fail, entropy   means over the training steps; entropy in nats
    scaled              share of training steps whose mean gradient norm was above the limit

docs/tables/compare.md and four pictures are made from the two files alone. And:

    --finished               adds rows of runs that have finished in --out, and runs nothing
    --verify add grpo 4      makes a committed run again and says which columns agree
    --variants mine other    trains these beside grpo, on --tasks and --seeds, and writes no table;
                             --lr, and what else stands on the line, goes to train.py: --steps 100
"""

import json
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from studies import pictures
from studies.common import TABLES, at, interval, options, publish, shown, side_by_side
from studies.common import write_rows, written
from studies.controls import CONTROLS
from studies.effects import FIRST, FORMS, HEAD, NAMES, SEARCHED, TASKS
from studies.effects import by_rate, chosen, differences, effects, to_try
from studies.runs import is_finished, run
from studies.tables import page
from tools.common import read_rows

ROWS = TABLES / "compare.csv"
CURVES = TABLES / "curves.csv"
SIX = range(4, 10)
TWELVE = range(4, 16)
FREE = "--clip-low 1 --clip-high 1e9 --max-grad-norm 1e9"
SETS = {  # set: variants or controls, tasks, base models, flags
    "rates": ([name for name in NAMES if name in SEARCHED], TASKS, FIRST, ""),
    "variants": (NAMES, TASKS, TWELVE, ""),
    "forms": ([*FORMS, "critic_bounded"], TASKS, [*FIRST, *SIX], ""),
    "controls": ([name for name in CONTROLS if name not in SEARCHED], TASKS, SIX, ""),
    "free": (["grpo", "compensation"], ["add"], SIX, FREE),
    "sum": (["grpo", "verifree"], ["sum"], SIX, ""),
}
TAKEN = ("base_sampled", "final_sampled", "final_greedy", "final_sampled_reasoning_correct")
TAKEN += ("seconds_per_step",)  # of summary.json


# ---- What is run
def rates(name: str, task: str, variant: str, seed: int, rows: list[dict]) -> list[float]:
    """The learning rates of a set's runs, as far as they are chosen."""
    if seed in FIRST:
        return to_try(by_rate(rows, task, variant))
    found = [chosen(rows, task, variant)]
    if name == "variants":
        found.append(chosen(rows, task, "grpo"))
    return [lr for lr in dict.fromkeys(found) if lr]


def jobs(name: str, rows: list[dict]):
    """Yields (task, variant, lr, flags, seed) of a set's runs, in order of seed."""
    variants, tasks, seeds, flags = SETS[name]
    for seed, variant, task in product(seeds, variants, tasks):
        for lr in rates(name, task, variant, seed, rows):
            yield task, variant, lr, flags, seed


def missing(args) -> list[tuple]:
    """The runs of --set that have no row yet, each once, of --tasks and --seeds if given."""
    rows = read_rows(ROWS)
    there = {job_of(row) for row in rows}
    left = dict.fromkeys(one for name in args.set for one in jobs(name, rows) if one not in there)
    left = [one for one in left if not args.tasks or one[0] in args.tasks]
    return [(*one, args.out) for one in left if not args.seeds or one[-1] in args.seeds]


def job_of(row: dict) -> tuple:
    """What a row is of; its place in the file, too."""
    return row["task"], row["variant"], float(row["lr"]), row["flags"], int(row["seed"])


def trained(*job) -> list[tuple[dict, dict]]:
    """The row and the curve of a run, which is made if it is not there; none if it diverges."""
    head = dict(zip((*HEAD, "seed"), job))
    try:
        row, curve = measures(run(*job))
    except FloatingPointError as error:
        print(*job, error)
        return []
    return [(written(head | row), written(head | curve))]


def fill(args) -> None:
    """Adds the rows of --set."""
    for _ in range(3):  # the grid; a value beyond it; what these choose
        left = [job for job in missing(args) if is_finished(*job) or not args.finished]
        for done in side_by_side(trained, left, args.jobs):
            add(done)


# ---- What is kept of a run
def measures(folder: Path) -> tuple[dict, dict]:
    """The measures and the curve (step -> accuracy) of a run, from the files that it left."""
    there = json.loads((folder / "summary.json").read_text())
    steps = read_rows(folder / "metrics.csv")
    curve = {step["step"]: float(step["sampled"]) for step in steps if step["sampled"]}
    row = {"mean_sampled": float(np.mean([*curve.values()]))}
    row |= {name: there[name] for name in TAKEN}
    for name in ("all_fail", "entropy"):
        row[name] = float(np.mean([float(step[name]) for step in steps]))
    above = [float(step["grad_norm"]) > there["max_grad_norm"] for step in steps]
    return row | {"scaled": float(np.mean(above))}, {"0": there["base_sampled"]} | curve


def add(done: list[tuple[dict, dict]]) -> None:
    """Adds rows and curves to the two files, and puts these in order."""
    for path, new in zip((ROWS, CURVES), zip(*done)):
        write_rows(path, sorted([*read_rows(path), *new], key=job_of))


# ---- One run again, and a variant of one's own
def verify(task: str, variant: str, seed: str) -> None:
    """Makes the first committed run of these again and prints which columns agree."""
    old = {}
    for path in (CURVES, ROWS):
        old |= at(read_rows(path), task=task, variant=variant, seed=seed)[0]
    with TemporaryDirectory() as out:
        ((row, curve),) = next(side_by_side(trained, [(*job_of(old), out)], 1))
    for name, text in (curve | row).items():
        print(f"{name:32} {text:10}", "agrees" if text == old[name] else f"differs: {old[name]}")


def own(args, flags: list[str]) -> None:
    """Trains variants beside grpo, prints the differences, and draws the curves into --out."""
    tasks = args.tasks or ["add"]
    seeds = args.seeds or [*FIRST]
    names = ["grpo", *args.variants]
    runs = product(tasks, names, [args.lr], [" ".join(flags)], seeds, [args.out])
    done = sum(side_by_side(trained, runs, args.jobs), [])
    rows, curves = zip(*done)
    for task, variant in product(tasks, args.variants):
        ours = {"task": task, "variant": variant}
        theirs = {"task": task, "variant": "grpo"}
        average = shown(interval(differences(rows, "mean_sampled", ours, theirs)))
        end = shown(interval(differences(rows, "final_sampled", ours, theirs)))
        print(f"{variant} minus grpo on {task}, {len(seeds)} base models, in points:")
        print(f"average accuracy during training {average}, at the end {end}")
    path = Path(args.out, "own.png").resolve()
    one = at(curves, seed=seeds[0])  # of each variant
    panels = {task: pictures.named(one, task, names) for task in tasks}
    pictures.grid(path, curves, panels, columns=3, height=3)
    print(f"The curves are in {path}.")


def main() -> None:
    parser = options(__doc__, FIRST, (*TASKS, "sum"))
    parser.set_defaults(tasks=None, seeds=None)
    parser.add_argument("--set", nargs="+", choices=SETS, default=[], help="sets of runs")
    parser.add_argument("--finished", action="store_true", help="run nothing")
    parser.add_argument("--verify", nargs=3, metavar=("TASK", "VARIANT", "SEED"))
    parser.add_argument("--variants", nargs="+", help="your own, beside grpo")
    parser.add_argument("--lr", type=float, default=3e-4, help="learning rate of --variants")
    args, flags = parser.parse_known_args()
    if args.variants:
        return own(args, flags)
    if flags:
        parser.error(f"only with --variants: {flags}")
    if args.verify:
        return verify(*args.verify)
    fill(args)
    rows = read_rows(ROWS)
    curves = read_rows(CURVES)
    found = effects(rows, curves)
    publish(ROWS, page(rows, found))
    pictures.draw(rows, curves, found)


if __name__ == "__main__":
    main()
