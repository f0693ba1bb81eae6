"""Ask a trained model: python -m studies.ask runs/add-nthr-seed0 347+285

Prints four responses at temperature 1 and the greedy one, each with its reward, and whether all its
steps are correct.
"""

import argparse
import json
from pathlib import Path

import torch

import train
from grpo import sample_rollout
from tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("problem", help="for example 347+285")
    options = parser.parse_args()
    if not (options.run / "summary.json").exists():
        parser.error(f"{options.run} is not the folder of a finished run")
    args = train.Namespace(**json.loads((options.run / "config.json").read_text()))
    args.device = "cpu"
    task = TASKS[args.task]
    numbers = [int(n) if n.isdecimal() else -1 for n in options.problem.split(task.sign)]
    problem = task.write(numbers, level=0)
    longest = task.longest.prompt
    written = problem.prompt.replace(" ", "") == options.problem + "="
    if not written or len(problem.prompt) > len(longest):
        parser.error(f"{options.problem} is not a problem like {longest.strip('= ')}, or longer")
    model = train.new_model(args)
    model.load_state_dict(torch.load(options.run / "model.pt", map_location="cpu"))
    print(f"{problem.prompt} has the solution {problem.solution}")
    for samples, temperature in ((4, 1.0), (1, 0.0)):
        draw = {"temperature": temperature}
        rollout = sample_rollout(model, train.TOKENIZER, task, [problem], samples, **draw)
        for text, reward in zip(rollout.texts[0], rollout.rewards[0]):
            steps = "correct" if task.steps_correct(problem, text) else "not all correct"
            print(f"temperature {temperature:.0f}: {text}  reward {reward:.0f}, steps {steps}")


if __name__ == "__main__":
    main()
