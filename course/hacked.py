"""Reward hacking: trains with a verifier that accepts the answer anywhere in a response.

    python -m course.hacked [--steps 100] [--task mul] [any other flag of train.py]

Training and evaluation use this verifier, as question 1 of the assignment imagines. The column
`true` is the accuracy by the real verifier, on the same held-out problems.
"""

import sys
from argparse import Namespace

import train
from tasks import TASKS, Problem, Task

COLUMNS = ("reward", "sampled", "true", "length", "reasoning_correct")


class Anywhere(Task):
    """A task whose verifier looks for the answer in the whole response."""

    def reward(self, problem: Problem, response: str) -> float:
        return float(problem.answer in response)


def hacked(args, model):
    """Trains the model. Every 25 training steps it yields the newest rollout and its metrics.

    `true` is added to the metrics of train.train: sampled accuracy by the real verifier.
    """
    task = TASKS[args.task]
    TASKS["anywhere"] = Anywhere(**vars(task))
    for rollout, _, row in train.train(Namespace(**vars(args) | {"task": "anywhere"}), model):
        if "sampled" in row:
            row["true"] = train.evaluate(model, task, "sampled", temperature=1)["sampled"]
            yield rollout, row


def print_responses(rollout) -> None:
    """Prints the first response to each of the first five problems, beside the solution."""
    print(f"{'problem':12} {'solution':20}  response")
    for problem, texts in [*zip(rollout.problems, rollout.texts)][:5]:
        print(f"{problem.prompt.replace(' ', ''):12} {problem.solution:20}  {texts[0]}")


def main(argv: list[str]) -> None:
    """Prints the metrics as a table, and then a few of the last responses."""
    args = train.parse_arguments(argv)
    model = train.base_model(args)
    print("step", *(f"{name:>9}" for name in COLUMNS))
    for rollout, row in hacked(args, model):
        cells = (f"{row[name]:{max(9, len(name))}.2f}" for name in COLUMNS)
        print(f"{row['step']:4}", *cells, flush=True)
    print_responses(rollout)


if __name__ == "__main__":
    main(sys.argv[1:])
