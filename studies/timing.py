"""How long does a training step take, on one thread? python -m studies.timing

We measure in turns, in one process: each round times one step of everything. So whatever else the
machine does slows everything alike. The first rounds are not counted. Learning rates are almost 0,
so all models remain the base model of their task, and responses keep their lengths.

A training step of each variant, with the default settings, is compared with a step of grpo. A step
of TRL's GRPOTrainer, on the same architecture with the same weights (`twin` in
tools/trl_variants.py), is compared with a step of grpo with one mini-batch, as TRL has it. Both are
sampling, rewards and update, but TRL reads all groups, and our step only those with an advantage.
TRL needs the packages of tools/requirements-trl.txt.

results/timing.csv has one row for each comparison: the median, smallest and largest ratio of the
two in a round, and the median seconds of the first one. results/timing.md is made from it.
"""

from copy import deepcopy
from functools import partial
from time import perf_counter

import numpy as np
import torch
from transformers import TrainerCallback

import train
from advantages import VARIANTS
from model import GPT
from studies.common import TABLES, cells, markdown, publish, read_rows, write_rows
from studies.protocol import TASKS
from tasks import ADD, make_problems
from tools import trl_variants as trl

ROWS = TABLES / "timing.csv"
WARM = 3  # rounds that are not counted
ROUNDS = 20  # that are


def steps(base: GPT, task: str, variant: str, *more: str):
    """train.py's loop on a model that stays as it is: yields the seconds of each training step."""
    args = train.parse_arguments(["--task", task, "--variant", variant, "--lr", "1e-12", *more])
    for *_, row in train.train(args, deepcopy(base)):
        yield row["seconds"]


class Turns(TrainerCallback):
    """Times each step of TRL, then lets a step of ours follow."""

    def __init__(self, ours):
        self.ours = ours
        self.rounds = []

    def on_step_begin(self, *_, **__):
        self.started = perf_counter()

    def on_step_end(self, *_, **__):
        theirs = perf_counter() - self.started
        self.rounds.append({"TRL": theirs, "one mini-batch": next(self.ours)})


def beside_trl(base: GPT) -> list[dict[str, float]]:
    """For each round the seconds of a step, ours and theirs."""
    theirs, tokenizer = trl.twin(base)
    plain = {"use_cpu": True, "gradient_checkpointing": False, "save_strategy": "no"}
    settings = trl.OWN | trl.trl_settings("grpo") | plain
    config = trl.GRPOConfig(**settings | {"learning_rate": 0.0, "max_steps": WARM + ROUNDS})
    problems = make_problems(ADD, held=False)
    data = trl.Dataset.from_list([problem._asdict() for problem in problems])
    parts = (theirs, partial(trl.verifier, tokenizer), config, data, None, tokenizer)
    turns = Turns(steps(base, "add", "grpo", "--minibatches", "1"))
    trl.GRPOTrainer(*parts, callbacks=[turns]).train()
    return turns.rounds


def compared(rounds: list[dict], task: str, measured, beside) -> dict:
    """A row: over the counted rounds, the seconds of the first over those of the second."""
    a, b = (np.array([seconds[x] for seconds in rounds[WARM:]]) for x in (measured, beside))
    ratio = round(np.median(a / b), 2)
    row = {"task": task, "measured": measured, "beside": beside, "ratio": ratio}
    return row | {"smallest": min(a / b), "largest": max(a / b), "seconds": np.median(a)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    bases = {task: train.base_model(train.parse_arguments(["--task", task])) for task in TASKS}
    rows = [compared(beside_trl(bases["add"]), "add", "TRL", "one mini-batch")]
    for task, base in bases.items():
        loops = {name: steps(base, task, name) for name in VARIANTS}
        rounds = [{name: next(loop) for name, loop in loops.items()} for _ in range(WARM + ROUNDS)]
        rows += [compared(rounds, task, name, "grpo") for name in VARIANTS]
    write_rows(ROWS, rows)
    text = markdown([*rows[0]], [[*cells(row).values()] for row in read_rows(ROWS)])
    publish(ROWS, f"# How long a training step takes. See studies/timing.py\n\n{text}\n")
