"""What does a variant reach in the time of a run of grpo? python -m studies.equal_time [--seeds 4]

A training step of these variants takes longer than one of grpo. So each gets a whole run with as
many training steps as take the time of 400 steps of grpo (results/timing.csv, mean over its base
models), and its learning rate falls to 0 in that time. We compare it with the run of grpo in
results/compare.csv that has the same base model.

results/equal_time.csv has one row for each task, base seed and variant, with the number of training
steps, the average accuracy during the run, and the accuracy at its end, sampled and greedy. What
has a row is not run again. The table shows differences from grpo in points, with 95 % t intervals.

A shorter run has fewer evaluations, one every 25 steps and one at its end. So its average is
compared with that of grpo at the same times: at the same shares of the whole run, between two
evaluations of grpo on the straight line between them.
"""

from itertools import product

import numpy as np

from studies.analysis import run_times
from studies.common import TABLES, complete, differences, markdown, matching, options, paired
from studies.common import publish, read_rows
from studies.compare import row_of
from studies.protocol import ROWS as RUNS, SIX, TASKS, USUAL, chosen_rate
from studies.runs import Run, folder_of

ROWS = TABLES / "equal_time.csv"
NAMES = ("likelihood", "verifree", "reinforce")
COLUMNS = ("mean_sampled", "final_sampled", "final_greedy")


def measure(task: str, seed: int, out: str, names: list[str]) -> list[dict]:
    """The rows of one base model."""
    rows = []
    for name in names:
        steps = round(run_times()[task, name][1])
        rate = chosen_rate(read_rows(RUNS), task, name)
        measured = row_of(folder_of(Run(task, name, rate, f"--steps {steps}", seed), out))
        about = {"task": task, "seed": seed, "variant": name, "steps": steps}
        rows.append(about | {column: measured[column] for column in COLUMNS})
    return rows


def at_same_times(row: dict, steps: int) -> dict:
    """A row of grpo whose average is over the times at which a run of so many steps evaluates."""
    curve = {int(step): x for step, x in row.items() if step.isdigit()}
    times = np.array([*range(25, steps, 25), steps]) / steps * max(curve)
    return row | {"mean_sampled": np.interp(times, [*curve], [*curve.values()]).mean()}


def page(rows: list[dict]) -> str:
    """The table: differences from grpo, of the base models that both have."""
    lines = []
    for task, name in product(TASKS, NAMES):
        ours = {"task": task, "variant": name}
        of_grpo = ours | {"variant": "grpo", "lr": USUAL, "flags": ""}
        found = matching(rows, **ours)
        runs = matching(read_rows(RUNS), **of_grpo) if found else []
        both = found + [at_same_times(row, found[0]["steps"]) for row in runs]
        n = paired(both, COLUMNS[0], ours, of_grpo).shape[1]
        if n:
            about = [task, f"`{name}`", str(found[0]["steps"]), str(n)]
            lines.append([*about, *differences(both, COLUMNS, ours, of_grpo)])
    head = ["task", "variant", "training steps", "base models", "average accuracy"]
    return markdown([*head, "at the end", "greedy at the end"], lines)


if __name__ == "__main__":
    args = options(__doc__, SIX, TASKS).parse_args()
    rows = complete(ROWS, measure, NAMES, args)
    title = "# What a variant reaches in the time of a run of grpo. See studies/equal_time.py"
    publish(ROWS, f"{title}\n\n{page(rows)}\n")
