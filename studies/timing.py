"""How long does a whole run take? python -m studies.timing [--tasks mul] [--seeds 4 5] [--jobs 1]

A step at the base model says little about a run: the update skips groups whose advantages are all
0, and as the model learns, grpo has more and more of them. So we train grpo and the variants in one
process, a training step of each in turn. Whatever else the machine does slows all of them alike. We
count processor seconds on one thread, without warm-up and evaluation.

results/timing.csv has one row for each task, base seed and variant. What has a row is not measured
again, and --variants NAME ... measures only these. results/timing.md shows the rows.

    seconds      of the processor, for the whole run
    of_grpo      that, divided by the seconds of grpo in the same process
    same_time    the number of training steps that fit into the time of a whole run of grpo

A variant without rows was not measured.
"""

from copy import deepcopy
from time import process_time

import numpy as np

import train
from studies.common import TABLES, cells, complete, markdown, options, publish, read_rows
from studies.protocol import ROWS as RUNS, TASKS, chosen_rate
from studies.runs import model_after, settings

ROWS = TABLES / "timing.csv"
NAMES = """grpo reinforce culling negative ngrpo verifree process likelihood critic ppo nthr gspo
cispo""".split()


def seconds_of_steps(loop):
    """Yields the processor seconds of each training step of train.train.

    A step that ends with an evaluation counts as long as the one before it.
    """
    seconds = 0.0
    started = process_time()
    for *_, row in loop:
        if "greedy" not in row:
            seconds = process_time() - started
        yield seconds
        started = process_time()  # when the next step is asked for


def of_run(ours: np.ndarray, of_grpo: np.ndarray) -> dict[str, float]:
    """The columns of a row, from the seconds of each step."""
    spent = np.cumsum([0, *ours])  # before each step, and at the end
    same_time = np.interp(of_grpo.sum(), spent, range(len(spent)))
    return {"seconds": ours.sum(), "of_grpo": ours.sum() / of_grpo.sum(), "same_time": same_time}


def measure(task: str, seed: int, out: str, names: list[str]) -> list[dict]:
    """The rows of one base model."""
    base = model_after(task, "base", seed, out)
    # What is loaded only once is loaded here, so that it counts for no variant.
    next(train.train(settings(task, seed, out), deepcopy(base)))
    rates = {name: chosen_rate(read_rows(RUNS), task, name) for name in ["grpo", *names]}
    loops = []
    for name, rate in rates.items():
        args = settings(task, seed, out, "--variant", name, "--lr", str(rate))
        loops.append(seconds_of_steps(train.train(args, deepcopy(base))))
    seconds = np.transpose([*zip(*loops)])  # (names, steps); zip takes a step of each in turn
    about = {"task": task, "seed": seed}
    rows = zip(rates, seconds)
    return [about | {"variant": x} | of_run(s, seconds[0]) for x, s in rows if x in names]


if __name__ == "__main__":
    parser = options(__doc__, range(4, 6), TASKS)
    parser.add_argument("--variants", nargs="+", default=NAMES, choices=NAMES)
    args = parser.parse_args()
    rows = complete(ROWS, measure, args.variants, args)
    text = markdown([*rows[0]], [[*cells(row).values()] for row in rows])
    publish(ROWS, f"# How long a whole run takes. See studies/timing.py\n\n{text}\n")
