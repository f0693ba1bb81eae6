"""Two questions of learners, answered by runs: python -m studies.questions

"The loss is 0, so does it learn?" shows a healthy run of grpo: its loss beside what counts, and its
clip. "Why is my reward flat?" shows runs that were made to fail, each beside the healthy one. This
is the one place that breaks the core, on purpose: a run replaces names in train.py while it lasts.

A run has 40 steps. A number is the mean over them, of accuracy_sampled the value after the last.
The base models are kept in runs/, that of the last failure in runs/pad. Four minutes on one core.
The same machine prints the same numbers.
"""

from statistics import fmean
from unittest.mock import patch

import torch
from tokenizers import Tokenizer

import grpo
import train
from studies.common import markdown
from tasks import ADD, EOS, MUL, TOKENIZER

COLUMNS = ("loss", "grad_norm", "clip_fraction", "approx_kl", "accuracy_sampled")
SAME = Tokenizer.from_str(TOKENIZER.to_str())
SAME.enable_padding(pad_id=SAME.token_to_id(EOS), pad_token=EOS)
FAILURES = {  # cause: the columns that tell, flags, what is replaced in train.py
    "learning rate 1e-2, too high": ("approx_kl reward", "--lr 1e-2", {}),
    "learning rate 1e-6, too low": ("approx_kl reward", "--lr 1e-6", {}),
    "wrong sign": ("approx_kl reward", "", {"VARIANTS": {"grpo": lambda x: -train.grpo(x)}}),
    "groups of two, seldom mixed": ("all_fail all_pass", "--group-size 2", {}),
    "temperature 0.1, all alike": ("all_fail entropy", "--temperature 0.1", {}),
    "a wall, hardly ever correct": ("all_fail reward", "--task mul", {}),
    "PAD is EOS": ("length reward", "--out runs/pad", {"PAD": EOS, "TOKENIZER": SAME}),
}


def run(flags: str, **replaced) -> list[dict]:
    """The metrics of 40 steps with these flags, measured on held-out problems every 10."""
    args = train.parse_arguments(["--device", "cpu", "--steps", "40", *flags.split()])
    rows = []
    with patch.dict(vars(train), replaced), patch.dict(vars(grpo), replaced):
        model = train.base_model(args)
        for *_, row in train.train(args, model):
            if row["step"] % 10 == 0:
                row |= train.evaluate(
                    model, ADD if args.task == "add" else MUL, "accuracy_sampled", 1
                )
            rows.append(row)
    return rows


def value(name: str, rows: list[dict]) -> str:
    rows = rows[-1:] if name == "accuracy_sampled" else rows
    return f"{fmean(row[name] for row in rows):.3f}"


def show(what: str, runs: dict[str, list[dict]]) -> None:
    lines = [[name, *(value(column, rows) for column in COLUMNS)] for name, rows in runs.items()]
    print(markdown([what, *COLUMNS], lines))


torch.set_num_threads(1)  # as train.py does: rounding depends on it
healthy = run("")
print("The loss is 0, so does it learn?\n")
show("step", {str(row["step"]): [row] for row in healthy[9::10]})
first = next(row["step"] for row in healthy if row["clip_fraction"] > 0)
print(f"\nThe clip first stops a token in step {first}.\n")
runs = {"four mini-batches a step": healthy, "one mini-batch a step": run("--minibatches 1")}
show("run", runs | {"four, without the clip": run("--clip-low 1 --clip-high 1e9")})
print("\nWhy is my reward flat?\n")
lines = []
for cause, (tell, flags, replaced) in FAILURES.items():
    rows = run(flags, **replaced)
    numbers = [", ".join(value(name, x) for name in tell.split()) for x in (healthy, rows)]
    lines.append([tell.replace(" ", ", "), *numbers, value("accuracy_sampled", rows), cause])
print(markdown(["columns that tell", "healthy", "failing", "accuracy_sampled", "cause"], lines))
