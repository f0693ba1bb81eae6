"""Ask a trained model: python -m tools.ask runs/add-nthr-seed0 347+285

Prints the solution, then four responses at temperature 1 and the greedy one, each with its reward
and with [ ] around its first mistake.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

import train
from grpo import sample_rollout
from tasks import TASKS, Problem, Task

RULES = {  # task: what its problems are
    "add": "two numbers with equally many digits, 2 to 5, as in 347+285",
    "mul": "a number of 2 to 5 digits times one digit from 2 to 9, as in '347*8'",
    "sum": "3 to 8 terms of one digit, as in 7+8+5",
}


def finished(folder: Path) -> tuple:
    """Settings and model of a finished run, on the processor."""
    args = train.Namespace(**json.loads((folder / "summary.json").read_text()))
    args.device = "cpu"
    model = train.new_model(args)
    model.load_state_dict(torch.load(folder / "model.pt", map_location="cpu", weights_only=True))
    return args, model


def asked(task: Task, text: str) -> Problem | None:
    """The problem whose prompt the text is, with or without "=" and spaces; None if there is none.

    So a text is a problem if and only if the task can draw it.
    """
    text = text.replace(" ", "").removesuffix("=") + "="
    numbers = re.findall("[0-9]{1,9}", text)
    for level in task.levels:
        given = map(int, numbers)
        # These numbers take the place of random ones. One that the level does not have is replaced
        # by the nearest that it has, and then the prompt is another.

        def near(low, high, given=given):
            return min(max(next(given, low), low), high - 1)

        problem = task.problem(SimpleNamespace(integers=near), level)
        if problem.prompt.replace(" ", "") == text:
            return problem
    return None


def main(argv: list[str]) -> None:
    about = __doc__.splitlines()[0]
    # Without the usage an error is one line.
    parser = argparse.ArgumentParser("python -m tools.ask", argparse.SUPPRESS, about)
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("problem", nargs="+", help="for example 347+285, '347 + 285' or 347+285=")
    options = parser.parse_args(argv)
    try:
        args, model = finished(options.run)
        task = TASKS[args.task]
    except Exception as error:  # which one depends on what a broken file holds
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:100]
        parser.error(f"{options.run} is not the folder of a finished run ({reason})")
    text = " ".join(options.problem)
    problem = asked(task, text)
    if problem is None:
        rule = RULES.get(args.task, f"one like {task.longest.prompt}")
        parser.error(f"{text[:40]!r} is not a problem of {args.task}; give {rule}")
    print(f"{problem.prompt.strip()}\n  solution  {problem.solution}")
    width = len(problem.solution) + 2
    for kind, samples, temperature in (("sampled", 4, 1.0), ("greedy", 1, 0.0)):
        rollout = sample_rollout(model, task, [problem], samples, temperature)
        for text, reward in zip(rollout.texts[0], rollout.rewards[0]):
            text, remark = train.marked(problem, text, reward)
            print(f"  {kind:10}{text:{width}}  reward {reward:.0f}  {remark}".rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
