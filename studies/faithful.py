"""Is the answer read off the steps? python -m studies.faithful [--tasks sum] [--seeds 1 2 ...]

The base models of studies.compare, and what grpo and verifree made of them. First, of the correct
sampled responses to held-out problems, the share whose reasoning is correct: the mean over levels.

Then interventions, like "adding mistakes" in arXiv 2307.13702, on all held-out problems. The
beginning of a response is given, with a change in one of its steps, mostly not the last; the model
goes on greedily. For 347+285=, whose solution is 12,13,06# 632:

    kind    given       follows
    steps   12,13,06    # 632       all steps are given, nothing is changed
    digit   12,15,06    # 652       the second digit of a step is changed
    begun   12,13,      06# 632     the steps up to one are given, nothing is changed
    carry   12,03,      05# 532     the same, its first digit is changed by one
    last    12,13,08    # 832       the second digit of the last step is changed
    longest                         the same. Here problems of the highest level, before of others

A step of `sum` hands on all of it, so "carry" is the running total, and no digit is changed. Two
shares are counted: responses that are, to the character, what follows; and those that give the
true answer, whatever is given ("truth").

docs/tables/faithful.csv has a row a model, shares from 0 to 1; docs/tables/faithful.md is made from
it alone. What is there is not measured again. A run that is missing
is made: of `sum`, which studies.compare leaves out, all.
"""

from itertools import product

import numpy as np
import torch

import train
from grpo import judge, sample_rollout
from studies.common import SEEDS, TABLES, by_seed, commit, complete, options
from studies.common import percent, publish, settings
from studies.runs import run
from tasks import MARKER, SUM, TASKS, Problem, Task
from tools.common import finished, markdown, read_rows

ROWS = TABLES / "faithful.csv"
AFTER = ("grpo", "verifree")  # variants
MODELS = ("base", *AFTER)
KINDS = ("steps", "begun", "carry", "digit", "last", "longest")  # of `sum` the first three


def changed(task: Task, problem: Problem, kind: str, rng) -> Problem:
    """The prompt with what is given of a response; as its solution, the rest that follows."""
    true = [int(step) for step in problem.solution.split(MARKER)[0].split(",")]
    k = len(true) - 1 if kind in ("last", "longest") else rng.integers(len(true) - 1)
    unit = 1 if task is SUM else 10  # a column hands on its first digit, a running total all of it
    digit = (true[k] + rng.integers(1, 10)) % 10 - true[k] % 10
    carry = unit if true[k] < unit else -unit
    steps = [*true]
    steps[k] += {"carry": carry, "steps": 0, "begun": 0}.get(kind, digit)
    for j in range(k + 1, len(true)):
        steps[j] += steps[j - 1] // unit - true[j - 1] // unit
    written = [f"{step:02}" for step in steps]
    response = ",".join(written) + MARKER + task.answer_from(written)
    end = 3 * k + 3 if kind in ("begun", "carry") else response.index(MARKER)
    return problem._replace(prompt=problem.prompt + response[:end], solution=response[end:])


def answers(model, task: str, kind: str):
    """Of each held-out problem: whether the response follows, and whether it gives the truth."""
    rng = np.random.default_rng(0)
    *rest, highest = TASKS[task].levels
    levels = {"last": rest, "longest": [highest]}.get(kind, TASKS[task].levels)
    problems = [p for p in train.make_problems(TASKS[task], True) if p.level in levels]
    begun = [changed(TASKS[task], p, kind, rng) for p in problems]
    for given, rest in {(len(p.prompt), len(p.solution)) for p in begun}:
        alike = [p for p in begun if (len(p.prompt), len(p.solution)) == (given, rest)]
        rollout = sample_rollout(model, TASKS[task], alike, 1, 0, rest + 1)
        follows = [text == p.solution for (text,), p in zip(rollout.texts, alike)]
        yield from zip(follows, rollout.rewards[:, 0].tolist())


def reasoning_correct(model, task: str) -> list[float]:
    """For each level, of the correct ones of four samples a problem, with correct reasoning."""
    problems = train.make_problems(TASKS[task], held=True)
    rng = torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, TASKS[task], problems, 4, generator=rng)
    good = judge(TASKS[task].reasoning_correct, problems, rollout.texts)
    levels = torch.tensor([p.level for p in problems])[:, None]
    correct = [(rollout.rewards == 1) & (levels == level) for level in TASKS[task].levels]
    return [good[at].mean().item() for at in correct]  # NaN if none is correct


def measure(task: str, seed: int, out: str):
    """The rows of one seed: of its base model and of the runs that began there."""
    models = {"base": train.base_model(settings(task, seed, out))}
    models |= {name: finished(run(task, name, seed, out))[1] for name in AFTER}
    for name, model in models.items():
        row = {"task": task, "seed": seed, "model": name, "commit": commit()}
        by_level = reasoning_correct(model, task)
        row |= {f"level {n}": share for n, share in zip(TASKS[task].levels, by_level)}
        row["reasoning_correct"] = np.nanmean(by_level)
        for kind in KINDS[:3] if task == "sum" else KINDS:
            row[f"{kind}_follows"], row[f"{kind}_truth"] = np.mean([*answers(model, task, kind)], 0)
        yield row


def column(task: str, model: str, name: str) -> dict[int, float]:
    """seed -> value, without those that are empty."""
    return by_seed(read_rows(ROWS), name, task=task, model=model)


def table() -> str:
    """Means over base models in %, with 95 % intervals."""
    names = ["reasoning_correct", "steps_follows"]  # of "steps" the truth is what follows
    names += [f"{kind}_{what}" for kind in KINDS[1:] for what in ("follows", "truth")]
    names += [name for name in read_rows(ROWS)[0] if name.startswith("level ")]  # reasoning_correct
    cells = []
    for task, model in product(TASKS, MODELS):
        texts = [percent(column(task, model, name).values()) for name in names]
        cells.append([task, model, *texts])
    return markdown(["task", "model", *(name.replace("_", " ") for name in names)], cells)


if __name__ == "__main__":
    complete(ROWS, measure, options(__doc__, SEEDS, tuple(TASKS)).parse_args())
    publish(ROWS, f"# Is the answer read off the steps? See studies/faithful.py\n\n{table()}\n")
