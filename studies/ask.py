"""Ask a trained model: python -m studies.ask runs/sum-nthr-seed0 7+8+5

Prints four responses at temperature 1 and the greedy one, each with its reward.
"""

import argparse
import json
import re
from pathlib import Path

import torch

import train
from grpo import sample_rollout
from tasks import TASKS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("problem", help="for example 7+8+5")
    options = parser.parse_args()
    if not (options.run / "summary.json").exists():
        parser.error(f"{options.run} is not the folder of a finished run")
    args = train.Namespace(**json.loads((options.run / "config.json").read_text()))
    args.device = "cpu"
    task = TASKS[args.task]
    if not re.fullmatch(rf"\d+(\{task.sign}\d+)+", options.problem):
        parser.error(f"{options.problem} is not a problem like {task.longest.prompt.strip('= ')}")
    problem = task.write([int(n) for n in options.problem.split(task.sign)], level=0)
    if len(problem.prompt) > len(task.longest.prompt):
        parser.error(f"{options.problem} is longer than {task.longest.prompt.strip('= ')}")
    model = train.new_model(args)
    model.load_state_dict(torch.load(options.run / "model.pt", map_location="cpu"))
    print(f"{problem.prompt.strip()} has the solution {problem.solution}")
    for samples, temperature in ((4, 1.0), (1, 0.0)):
        draw = {"temperature": temperature}
        rollout = sample_rollout(model, train.TOKENIZER, task, [problem], samples, **draw)
        for text, reward in zip(rollout.texts[0], rollout.rewards[0]):
            print(f"temperature {temperature:.0f}: {text}  reward {reward:.0f}")


if __name__ == "__main__":
    main()
