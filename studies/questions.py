"""Two questions of learners, answered by runs: python -m studies.questions

"The loss is 0, so does it learn?" shows a healthy run of grpo: its loss beside what counts, and its
clip. "Why is my reward flat?" shows runs that were made to fail, each beside the healthy one. This
is the one place that breaks the core, on purpose: a run replaces names in train.py while it lasts.

About four minutes on one core. Nothing is written. The same machine prints the same numbers.
"""

from copy import deepcopy
from functools import cache, partial
from unittest.mock import patch

import torch

import train
from tasks import EOS, TASKS, build_tokenizer


@cache
def base(task: str, pad: str):
    """The base model of train.py. `pad` is train.PAD: the warm-up depends on it."""
    model = train.new_model(train.parse_arguments(["--task", task, "--device", "cpu"]))
    train.warm_up(model, TASKS[task], train.WARMUP_STEPS[task], seed=0)
    return model


def run(*argv: str, **broken) -> list[dict]:
    """The rows of metrics.csv of 40 steps, with the names in `broken` replaced in train.py."""
    args = train.parse_arguments(["--device", "cpu", "--steps", "40", *argv])
    held = train.make_problems(TASKS[args.task], held=True)
    with patch.dict(vars(train), broken):
        model = deepcopy(base(args.task, train.PAD))
        return [row for *_, row in train.train(args, model, held, evaluate_every=10)]


def value(rows: list[dict], column: str) -> str:
    """The mean over the steps; of accuracy the last, of accuracy_by_level its highest level."""
    if column == "accuracy":
        return f"{rows[-1][column]:.1%}"
    if column == "accuracy_by_level":
        return rows[-1][column].split()[-1]
    return f"{sum(row[column] for row in rows) / len(rows):.3f}"


def line(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def fail(columns: str, cause: str, remedy: str, *argv: str, **broken) -> None:
    """Runs what is broken and prints a row: the columns that tell, healthy and failing."""
    rows = run(*argv, **broken)
    tell = [", ".join(value(x, name) for name in columns.split()) for x in (healthy, rows)]
    line(columns.replace(" ", ", "), *tell, value(rows, "accuracy"), cause, remedy)


torch.set_num_threads(1)  # as train.py does: rounding depends on it
healthy = run()
print("The loss is 0, so does it learn?\n")
columns = ["loss", "grad_norm", "clip_fraction", "approx_kl", "accuracy"]
line("step", *columns)
line(*["---"] * 6)
for row in healthy[9::10]:
    line(str(row["step"]), *(value([row], name) for name in columns))
first = next(row["step"] for row in healthy if row["clip_fraction"] > 0)
print(f"\nThe clip first stops a token in step {first}. Means of 40 steps, accuracy after them:\n")
line("run", *columns)
line(*["---"] * 6)
line("four mini-batches a step", *(value(healthy, name) for name in columns))
rows = run("--minibatches", "1")
line("one mini-batch a step", *(value(rows, name) for name in columns))
rows = run(LOSS={"grpo": {"clip_low": 1e9, "clip_high": 1e9}})
line("four, without the clip", *(value(rows, name) for name in columns))

print("\nWhy is my reward flat?\n")
line("columns that tell", "healthy", "failing", "accuracy", "cause", "remedy")
line(*["---"] * 6)
fail("approx_kl", "learning rate 1e-2, far too high", "lower it", "--lr", "1e-2")
fail("approx_kl", "learning rate 1e-6, far too low", "raise it", "--lr", "1e-6")
wrong = {"grpo": lambda rollout: -train.grpo(rollout)}
fail("reward approx_kl", "advantage of the wrong sign", "print a group with it", VARIANTS=wrong)
fail("all_fail all_pass", "groups of two, seldom mixed", "larger groups", "--group-size", "2")
cold = partial(train.sample_rollout, temperature=0.1)
fail("all_fail entropy", "temperature 0.1, all alike", "sample at 1", sample_rollout=cold)
fail("all_fail accuracy_by_level", "a wall: never correct", "easier problems", "--task", "wall")
same = build_tokenizer()
same.enable_padding(pad_id=same.token_to_id(EOS), pad_token=EOS)
fail("length reward", "PAD is EOS, so never trained", "two tokens", PAD=EOS, TOKENIZER=same)
