"""What training brings: python -m studies.compare --set variants [--seeds 4 5] [--tasks mul]

protocol.md is the protocol. Every seed has a base model of its own, and for one seed all variants
draw the same problems in the same order (culling apart), so differences from grpo are paired. Sets:

    rates      base models 1-3: each variant at three learning rates, or four (studies.analysis)
    variants   4-15: each variant at the best of these, and at that of grpo
    forms      rates as above of experiment 5's other forms and of critic_bounded; then 4-9
    controls   4-9: the other controls, at grpo's rate
    free       4-9: grpo and compensation on add without clip and limit, each at its own rate
    sum        4-9: grpo and verifree on sum, at their rates on add

results/compare.csv has a row a run: `python train.py --task TASK --variant VARIANT --seed SEED
--base-seed SEED --lr LR FLAGS`, on one thread and with AVX2 (train.py alone takes no controls).
Rows are added as runs finish. What has a row is not run again, and a finished run in --out is only
read: remove it when the core has changed. The columns, as shares unless another unit is given:

    mean_sampled        accuracy at temperature 1, mean over the evaluations: the primary measure
    base_, final_       as in summary.json (tools/README.md), before and after training
    all_fail            mean over the training steps
    scaled              share of training steps whose mean gradient norm was above the limit
    0, 25, ... 400      sampled accuracy after this many training steps

results/compare.md and four pictures are made from that file alone. And:

    --finished               adds rows of runs that have finished in --out, and runs nothing
    --verify add grpo 4      makes a committed run again and says which columns agree
    --variants mine other    trains these beside grpo, on --tasks and --seeds, and writes no file of
                             results/; --lr, and what else stands on the line, goes to train.py
"""

import json
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from studies import pictures
from studies.common import SIX, TWELVE, at, options, publish, read_rows, side_by_side
from studies.common import write_rows, written
from studies.ablations import CONTROLS
from studies.analysis import FIRST, FORMS, HEAD, NAMES, ROWS, SEARCHED, TASKS
from studies.analysis import by_rate, chosen, effect, effects, page, table, to_try
from studies.runs import is_finished, run

FREE = "--clip-low 1 --clip-high 1e9 --max-grad-norm 1e9"
SETS = {  # set: variants or controls, tasks, base models, flags
    "rates": ([name for name in NAMES if name in SEARCHED], TASKS, FIRST, ""),
    "variants": (NAMES, TASKS, TWELVE, ""),
    "forms": ([*FORMS, "critic_bounded"], TASKS, [*FIRST, *SIX], ""),
    "controls": ([name for name in CONTROLS if name not in SEARCHED], TASKS, SIX, ""),
    "free": (["grpo", "compensation"], ["add"], SIX, FREE),
    "sum": (["grpo", "verifree"], ["sum"], SIX, ""),
}
# Of summary.json.
TAKEN = "base_sampled final_sampled final_greedy final_sampled_reasoning_correct"


# ---- What is run
def jobs(name: str, rows: list[dict]):
    """Yields (task, variant, lr, flags, seed) of a set's runs, in order of seed, once chosen."""
    variants, tasks, seeds, flags = SETS[name]
    for seed, variant, task in product(seeds, variants, tasks):
        rates = to_try(by_rate(rows, task, variant))
        if seed not in FIRST:
            beside = "grpo" if name == "variants" else variant
            rates = [chosen(rows, task, variant), chosen(rows, task, beside)]
        for lr in dict.fromkeys(lr for lr in rates if lr):
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


def trained(*job) -> list[dict]:
    """The row of a run, which is made if it is not there; none if it diverges."""
    try:
        return [dict(zip((*HEAD, "seed"), job)) | measures(run(*job))]
    except FloatingPointError as error:
        print(*job, error)
        return []


def fill(args) -> None:
    """Adds the rows of --set."""
    for _ in range(3):  # the grid; a value beyond it; what these choose
        left = [job for job in missing(args) if is_finished(*job) or not args.finished]
        for new in side_by_side(trained, left, args.jobs):
            add(new)


def add(new: list[dict]) -> None:
    """Adds rows to the file, and puts it in order."""
    rows = sorted({job_of(row): row for row in [*read_rows(ROWS), *new]}.items())
    write_rows(ROWS, [row for _, row in rows])


def measures(folder: Path) -> dict[str, float]:
    """The measures and the curve (step: accuracy) of a run, from the files that it left."""
    there = json.loads((folder / "summary.json").read_text())
    steps = read_rows(folder / "metrics.csv")
    curve = {step["step"]: float(step["sampled"]) for step in steps if step["sampled"]}
    found = {"mean_sampled": np.mean([*curve.values()])}
    found |= {name: there[name] for name in TAKEN.split()}
    found["all_fail"] = np.mean([float(step["all_fail"]) for step in steps])
    found["scaled"] = np.mean([float(step["grad_norm"]) > there["max_grad_norm"] for step in steps])
    return found | {"0": there["base_sampled"]} | curve


# ---- One run again, and a variant of one's own
def verify(task: str, variant: str, seed: str) -> None:
    """Makes the first committed run of these again and prints which columns agree."""
    old = at(read_rows(ROWS), task=task, variant=variant, seed=seed)[0]
    with TemporaryDirectory() as out:
        ((new,),) = side_by_side(trained, [(*job_of(old), out)], 1)
    for name, text in written(new).items():
        print(f"{name:32} {text:10}", "agrees" if text == old[name] else f"differs: {old[name]}")


def own(args, flags: list[str]) -> None:
    """Trains variants beside grpo and prints the differences."""
    tasks = args.tasks or ["add"]
    names = ["grpo", *args.variants]
    jobs = product(tasks, names, [args.lr], [" ".join(flags)], args.seeds or FIRST, [args.out])
    rows = sum(side_by_side(trained, jobs, args.jobs), [])
    heads = [{"task": x, "variant": y, "lr": args.lr} for x, y in product(tasks, args.variants)]
    found = [effect(rows, ours, ours | {"variant": "grpo"}) for ours in heads]
    print(f"{table(found)}\n\nThe runs are in {args.out}: python -m tools.curves draws them.")
    print("They are only read from now on, so after an edit of the variant give another --out.")


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
    found = effects(rows)
    publish(ROWS, page(rows, found))
    pictures.draw(rows, found)


if __name__ == "__main__":
    main()
