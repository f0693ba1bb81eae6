"""What does training gain? python -m studies.compare --set variants [--seeds 4 5] [--tasks mul]

methods.md says what is compared. Each seed has its own base model. All variants of one seed draw
the same problems in the same order, except culling, so their differences from grpo are paired.
These are the sets of runs:

    rates      base models 1 to 3: the variants whose learning rate is searched, at some rates
    narrow     the same for gspo with the clip range of its paper
    variants   base models 4 to 15: each variant at the learning rate that was chosen from these
    usual      base models 4 to 9: eight variants with the usual norm limit of 1
    usual-later  base models 10 to 15: grpo, half and pos_only with it
    caps       base models 1 to 3: cispo with caps of 1.2, 1.28 and 2, at two learning rates
    low-cap    base models 4 to 15: cispo with a cap of 1.2, at the learning rate chosen for it
    unclipped  base models 4 to 9: grpo on add without a clip
    ladder     base models 4 to 9: grpo and half on add without a norm limit, and with 0.1
    response   base models 4 to 15: grpo with `--aggregate response`, as gspo has it
    dense      rates, then base models 4 to 9, for dense
    by-step    rates, then base models 4 to 15, for process_by_step
    same-prefix  base models 4 to 15: same_prefix, at the learning rate of grpo
    controls   base models 4 to 9: the other controls, at the learning rate of grpo
    difficulty  rates, then base models 4 to 15, for focal, flat_pos and focal_half
    finer      base models 1 to 3: grpo, half, pos_only and reinforce at 2.1e-4
    value-rate  rates for ppo whose value network learns ten times as fast
    difficulty-usual  base models 4 to 9: focal and flat_pos on mul with the usual norm limit of 1
    sum        base models 4 to 9: grpo on sum, at its learning rate on add

results/compare.csv has one row for each run: `python train.py --task TASK --variant VARIANT --seed
SEED --base-seed SEED --lr LR FLAGS`, on one thread and with AVX2. (train.py itself takes no
controls.) A run that has a row is not made again. A run in --out is only read if the same code has
finished it (studies/runs.py). These are the columns, as shares unless another unit is given:

    mean_sampled        accuracy at temperature 1, mean over the evaluations: the primary measure
    base_, final_       as in summary.json (tools/README.md), before and after training
    all_fail            mean over the training steps
    scaled              share of training steps whose mean gradient norm was above the limit
    clipped             share of tokens that the clip stopped or cut, mean over the training steps
                        (empty in the rows of earlier editions)
    0, 25, ... 400      sampled accuracy after this many training steps
    greedy_curve        greedy accuracy after 25, 50, ... 400 of them, in one cell (from the
                        eleventh edition on)

results/compare.md and results/forest.png are made from that file and from results/timing.csv. These
are other options:

    --verify add grpo 4      makes a committed run again and says which columns agree
    --variants mine other    trains these beside grpo, on --tasks and --seeds, and draws them beside
                             the committed ones. --lr and everything else on the line goes to
                             train.py. All files are written to --out.
"""

import json
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import tasks
from studies import pictures
from studies.analysis import Effect, effects, words_about_noise
from studies.common import cells, matching, options, publish, read_rows, say_what_is_missing
from studies.common import side_by_side, write_rows
from studies.compare_report import page, table
from studies.protocol import COMPARED, FIRST, ROWS, SETS, TASKS
from studies.protocol import accuracy_by_rate, chosen_rate, rates_to_try
from studies.runs import Run, folder_of

FROM_SUMMARY = ("base_sampled", "final_sampled", "final_greedy", "final_sampled_reasoning_correct")


# ---- What is run
def runs_of(name: str, rows: list[dict]):
    """Yields the runs of a set in order of seed; those at a chosen rate once it is chosen."""
    variants, tasks, seeds, all_flags = SETS[name]
    for seed, variant, task, flags in product(seeds, variants, tasks, all_flags):
        if seed in FIRST:
            rates = rates_to_try(variant, accuracy_by_rate(rows, task, variant, flags))
        else:
            rates = [chosen_rate(rows, task, variant, flags)]
        if name == "finer":
            rates = [2.1e-4]
        for lr in filter(None, rates):
            yield Run(task, variant, lr, flags, seed)


def planned(args, rows: list[dict]) -> list[Run]:
    """The runs of --set, each once, of --tasks and --seeds if given."""
    runs = dict.fromkeys(run for name in args.set for run in runs_of(name, rows))
    runs = [run for run in runs if not args.tasks or run.task in args.tasks]
    return [run for run in runs if not args.seeds or run.seed in args.seeds]


def missing_runs(args) -> list[Run]:
    """Those of them that have no row yet."""
    rows = read_rows(ROWS)
    there = {Run.of(row) for row in rows}
    return [run for run in planned(args, rows) if run not in there]


def trained(run: Run, out: str) -> list[dict]:
    """The row of a run, which is made if it is not there; none if it diverges."""
    try:
        return [run._asdict() | row_of(folder_of(run, out))]
    except FloatingPointError as error:
        print(*run, error)
        return []


def row_of(folder: Path) -> dict[str, float]:
    """What a row has of a run, curve (step: accuracy) included, from the files that it left."""
    summary = json.loads((folder / "summary.json").read_text())
    steps = [row for row in read_rows(folder / "metrics.csv") if row["step"] > 0]  # 0: no training
    curve = {str(row["step"]): row["sampled"] for row in steps if row["sampled"] != ""}
    limit = summary["max_grad_norm"]
    row = {"mean_sampled": np.mean([*curve.values()])}
    row |= {name: summary[name] for name in FROM_SUMMARY}
    row["all_fail"] = np.mean([row["all_fail"] for row in steps])
    row["scaled"] = np.mean([row["grad_norm"] > limit for row in steps])
    row |= {"0": summary["base_sampled"]} | curve
    row["clipped"] = np.mean([row["clip_fraction"] for row in steps])
    greedy = [row["greedy"] for row in steps if row["greedy"] != ""]
    return row | {"greedy_curve": " ".join(f"{x:.4f}" for x in greedy)}


def fill(args) -> None:
    """Adds the rows of --set."""
    for _ in range(0 if args.only_tables else 3):  # the grid; a value beyond it; what they choose
        jobs = [(run, args.out) for run in missing_runs(args)]
        for new in side_by_side(trained, jobs, args.jobs):
            add_rows(new)


def words_about_rows(args) -> str:
    """How many runs of --set have rows now."""
    if not args.set:
        return "No --set was named, so nothing was run; the page is made from the rows in the file."
    n = len(planned(args, read_rows(ROWS)))
    if not n:
        return "Nothing to run: no such --tasks and --seeds are in --set, or no rate is chosen yet."
    return f"Runs of --set that have rows: {n - len(missing_runs(args))} of {n}."


def add_rows(new: list[dict]) -> None:
    """Adds rows to the file, and puts it in order."""
    rows = sorted({Run.of(row): row for row in [*read_rows(ROWS), *new]}.items())
    write_rows(ROWS, [row for _, row in rows])


# ---- One run again, and variants beside grpo
def verify(task: str, variant: str, seed: str) -> None:
    """Makes the first committed run of these again and prints which columns agree."""
    found = matching(read_rows(ROWS), task=task, variant=variant)
    old = next((row for row in found if str(row["seed"]) == seed), None)
    if old is None:
        raise SystemExit(f"{ROWS.name} has no run of {variant} on {task} from base model {seed}.")
    with TemporaryDirectory() as out:
        ((new,),) = side_by_side(trained, [(Run.of(old), out)], 1)
    committed = cells(old)
    for name, text in cells(new).items():
        before = committed.get(name, "not there")
        print(f"{name:32} {text:10}", "agrees" if text == before else f"differs: {before}")


def beside_grpo(args, flags: str) -> None:
    """Trains --variants and grpo, and prints and draws the differences."""
    tasks = [*dict.fromkeys(args.tasks or ["add"])]
    variants = [*dict.fromkeys(args.variants)]
    heads = product(tasks, ["grpo", *variants], [args.lr], [flags], args.seeds or FIRST)
    jobs = [(Run(*head), args.out) for head in dict.fromkeys(heads)]
    rows = sum(side_by_side(trained, jobs, args.jobs), [])
    pairs = [*product(tasks, variants)]
    for task, name in [*product(tasks, ["grpo"]), *pairs]:
        if not matching(rows, task=task, variant=name):
            raise SystemExit(f"No run of {name} on {task} came to its end; is --lr too high?")
    results = [Effect(*pair, args.lr, flags, rows, args.lr) for pair in pairs]
    rows = read_rows(ROWS)
    committed = [x for x in effects(rows) if x.chosen and x.variant in COMPARED]
    path = Path(args.out, "forest.png")
    pictures.forest(path, [*committed, *results], tasks)
    print(table(results))
    for task in {*tasks} & {*TASKS}:
        print(f"\n{words_about_noise(rows, task)}")
    print(f"{path} shows your variants beside the committed ones.")
    print(f"The runs are in {args.out}: python -m tools.curves draws them.")


def main() -> None:
    parser = options(__doc__, FIRST, tuple(tasks.TASKS))  # a task of one's own as well
    parser.set_defaults(tasks=None, seeds=None)
    parser.add_argument("--set", nargs="+", choices=SETS, default=[], help="sets of runs")
    parser.add_argument("--verify", nargs=3, metavar=("TASK", "VARIANT", "SEED"))
    parser.add_argument("--variants", nargs="+", help="your own, beside grpo")
    parser.add_argument("--lr", type=float, default=3e-4, help="learning rate of --variants")
    args, flags = parser.parse_known_args()
    if args.variants:
        return beside_grpo(args, " ".join(flags))
    if flags:
        parser.error(f"only with --variants: {flags}")
    if args.verify:
        return verify(*args.verify)
    fill(args)
    say_what_is_missing(ROWS, [])
    rows = read_rows(ROWS)
    results = effects(rows)
    publish(ROWS, page(rows, results))
    pictures.draw(results)
    print(words_about_rows(args))


if __name__ == "__main__":
    main()
