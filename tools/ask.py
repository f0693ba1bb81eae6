"""Ask a trained model: python -m tools.ask runs/add-nthr-seed0 347+285

Prints four responses at temperature 1 and the greedy one, each with its reward, and whether its
reasoning is correct.
"""

import argparse
import json
import re
from pathlib import Path
from types import SimpleNamespace

import torch

import train
from grpo import sample_rollout
from tasks import TASKS, Problem, Task, make_problems


def finished(folder: Path) -> tuple:
    """Settings and model of a finished run, on the processor."""
    args = train.Namespace(**json.loads((folder / "summary.json").read_text()))
    args.device = "cpu"
    model = train.new_model(args)
    model.load_state_dict(torch.load(folder / "model.pt", map_location="cpu", weights_only=True))
    return args, model


def asked(task: Task, text: str) -> Problem | None:
    """The problem whose prompt is the text with "=" behind it; None if the task has no such one."""
    for level in task.levels:
        given = map(int, re.findall("[0-9]+", text))
        # These numbers stand in for random ones. One that the level does not have is replaced by
        # the nearest that it has, and then the prompt is another.

        def near(low, high, given=given):
            return min(max(next(given, low), low), high - 1)

        problem = task.problem(SimpleNamespace(integers=near), level)
        if problem.prompt.replace(" ", "") == text + "=":
            return problem
    return None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("problem", help="for example 347+285")
    options = parser.parse_args()
    if not (options.run / "summary.json").exists():
        parser.error(f"{options.run} is not the folder of a finished run")
    args, model = finished(options.run)
    task = TASKS[args.task]
    problem = asked(task, options.problem)
    if problem is None:
        held = {p.level: p.prompt for p in make_problems(task, held=True)}
        examples = ", ".join(prompt.replace(" ", "").strip("=") for prompt in held.values())
        parser.error(f"{options.problem} is not a problem like one of these: {examples}")
    print(f"{problem.prompt} has the solution {problem.solution}")
    for kind, samples, temperature in (("sampled", 4, 1.0), ("greedy", 1, 0.0)):
        rollout = sample_rollout(model, task, [problem], samples, temperature)
        for text, reward in zip(rollout.texts[0], rollout.rewards[0]):
            reasoning = "correct" if task.reasoning_correct(problem, text) else "incorrect"
            print(f"{kind}: {text}  reward {reward:.0f}, reasoning {reasoning}")
