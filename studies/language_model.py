"""What carries over to a language model? python -m studies.language_model

SmolLM2-135M-Instruct, with weights of 4 bits, learns to add numbers inside TRL, as
`python -m tools.language_model` trains it: ten rollouts of 96 responses, each of them to 12
problems that it has not seen before. Every variant has the learning rate that was chosen for grpo.

results/language_model.csv has one row for each seed and variant: the accuracy of the sampled
responses during training ("average"), and the accuracy on 54 held-out problems before, after five
rollouts and at the end, sampled and greedy. What has a row is not run again. The differences from
grpo are paired by seed, in points, with 95 % t intervals.
"""

from contextlib import redirect_stdout
from itertools import product
from pathlib import Path

import numpy as np

from studies.common import TABLES, complete_singly, differences, markdown, options, paired
from studies.common import publish, summary

ROWS = TABLES / "language_model.csv"
NAMES = ("grpo", "half", "pos_only", "nthr")
SEEDS = (1, 2, 3)


def measure(seed: int, name: str, out: str) -> dict:
    """The row of one run. What the run prints is in the folder out."""
    from tools import language_model  # it needs the packages of TRL

    language_model.prepare()
    line = ["--variant", name, "--seed", str(seed), "--learning_rate", "1e-05"]
    config, _ = language_model.parse(line)
    path = Path(out, f"language-model-{name}-{seed}.txt")
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", buffering=1) as file, redirect_stdout(file):
        rows = language_model.train(name, language_model.MODEL, config)
    row = {"task": "sums", "seed": seed, "variant": name}
    row["average"] = np.mean([x["reward"] for x in rows[1:]]).item()
    for when, x in zip(("before", "halfway", "end"), [x for x in rows if "sampled" in x]):
        row |= {when: x["sampled"], f"{when}_greedy": x["greedy"]}
    return row


def minus_grpo(rows: list[dict]) -> str:
    """The table of differences from grpo, of the seeds that both have."""
    columns = ["average", "halfway", "end", "end_greedy"]
    lines = []
    for name in NAMES[1:]:
        both = {"variant": name}, {"variant": "grpo"}
        n = paired(rows, "end", *both).shape[1]
        if n:
            lines.append([f"`{name}`", str(n), *differences(rows, columns, *both)])
    return markdown(["minus `grpo`", "seeds", *columns], lines)


if __name__ == "__main__":
    args = options(__doc__, SEEDS, ("sums",)).parse_args()
    rows = complete_singly(ROWS, measure, [*product(args.seeds, NAMES)], args)
    title = "# What carries over to a language model? See studies/language_model.py"
    publish(ROWS, f"{title}\n\n{summary(rows)}\n\n{minus_grpo(rows)}\n")
