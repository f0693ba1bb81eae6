"""Which steps does process teach a model to end? python -m studies.steps [--seeds 4 5]

`process` rewards a step when it ends: with its comma, with the marker, or with the end token. A
step that never ends is not judged. So we sample a response at temperature 1 to each held-out
problem, from each base model and from what `process` made of it.

    reward          the share of correct responses
    cut_off         the share of responses that reach the limit of tokens without an end
    steps_ended     how many steps end, as a share of the number of steps of the solutions
    steps_correct   of the steps that end, the share that agrees with the solution up to its end

The table is made from results/steps.csv. Its numbers are means over base models with 95 % t
intervals. What has a row is not measured again, and a run that is missing is made.
"""

from functools import partial

import torch

from advantages import decode_responses
from grpo import sample_rollout
from studies.common import TABLES, study
from studies.protocol import TASKS, TWELVE
from studies.runs import rows_of_models
from tasks import EOS, MARKER, TASKS as ALL_TASKS, Problem, make_problems

NAMES = ("base", "process")


def judged(problem: Problem, response: str) -> list[bool]:
    """Of each step of the response that ends: whether all up to its end is as in the solution."""
    solution = problem.solution + EOS
    ends = [k for k, character in enumerate(response, 1) if character in ("," + MARKER + EOS)]
    return [response[:k] == solution[:k] for k in ends]


def steps_of(model, task: str) -> dict[str, float]:
    """The columns of a row."""
    problems = make_problems(ALL_TASKS[task], held=True)
    rng = torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, ALL_TASKS[task], problems, 1, generator=rng)
    responses = decode_responses(rollout)
    steps = sum(map(judged, problems, responses), [])
    row = {"reward": rollout.rewards.mean().item()}
    row["cut_off"] = sum(not y.endswith(EOS) for y in responses) / len(responses)
    row["steps_ended"] = len(steps) / sum(len(judged(p, p.solution + EOS)) for p in problems)
    return row | {"steps_correct": sum(steps) / len(steps)}


if __name__ == "__main__":
    study(__doc__, TABLES / "steps.csv", partial(rows_of_models, steps_of), NAMES, TASKS, TWELVE)
