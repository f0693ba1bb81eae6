"""Two questions of learners, answered by runs: python -m studies.questions

"The loss is 0, so does it learn?" shows a healthy run of grpo: its loss beside what counts, and its
clip. "Why is my reward flat?" shows runs that were made to fail, each beside the healthy one.

A run has 40 steps. A number is the mean over them, of accuracy_sampled the value after the last.
docs/questions.md has the tables. Five minutes on one core; the same machine prints the same numbers.
"""

from statistics import fmean

import torch
from torch.nn.functional import cross_entropy

import train
from advantages import VARIANTS, grpo
from grpo import descend, encode
from studies.common import markdown
from tasks import EOS_ID, PAD_ID, TASKS

COLUMNS = ("loss", "grad_norm", "clip_fraction", "approx_kl", "accuracy_sampled")
FAILURES = {  # cause: the column that tells, flags
    "learning rate 1e-2, too high": ("approx_kl", "--lr 1e-2"),
    "learning rate 1e-6, too low": ("approx_kl", "--lr 1e-6"),
    "wrong sign": ("reward", "--variant wrong_sign"),
    "groups of two, seldom mixed": ("all_fail", "--group-size 2"),
    "temperature 0.1, all alike": ("entropy", "--temperature 0.1"),
    "a wall, hardly ever correct": ("all_fail", "--task mul"),
    "PAD is EOS": ("length", ""),
}


def never_stops(args):
    """A base model whose warm-up pads with EOS and leaves padding out of the loss, EOS with it."""
    problems = train.make_problems(TASKS[args.task], held=False)
    rows = encode([problem.prompt + problem.solution for problem in problems], "cpu")  # (N, L)
    rows[rows == PAD_ID] = EOS_ID
    model = train.new_model(args)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for batch in rows[torch.randint(len(rows), (1000, 64))]:
        h, _ = model(batch[:, :-1])
        logits = model.unembed(h).transpose(1, 2)  # (64, V, L - 1)
        descend(optimizer, cross_entropy(logits, batch[:, 1:], ignore_index=EOS_ID))
    return model


def run(flags: str, base_model=train.base_model) -> list[dict]:
    """The metrics of 40 steps with these flags, measured on held-out problems every 10."""
    args = train.parse_arguments(["--device", "cpu", "--steps", "40", *flags.split()])
    model = base_model(args)
    rows = []
    for *_, row in train.train(args, model):
        if row["step"] % 10 == 0:
            row |= train.evaluate(model, TASKS[args.task], "accuracy_sampled", temperature=1)
        rows.append(row)
    return rows


def value(name: str, rows: list[dict]) -> str:
    rows = rows[-1:] if name == "accuracy_sampled" else rows
    return f"{fmean(row[name] for row in rows):.3f}"


def show(what: str, runs: dict[str, list[dict]]) -> None:
    lines = [[name, *(value(column, rows) for column in COLUMNS)] for name, rows in runs.items()]
    print(markdown([what, *COLUMNS], lines))


if __name__ == "__main__":
    torch.set_num_threads(1)  # as train.py does: rounding depends on it
    VARIANTS["wrong_sign"] = lambda rollout: -grpo(rollout)
    healthy = run("")
    print("The loss is 0, so does it learn?\n")
    show("step", {str(row["step"]): [row] for row in healthy[9::10]})
    first = next(row["step"] for row in healthy if row["clip_fraction"] > 0)
    print(f"\nThe clip first stops a token in step {first}.\n")
    runs = {"four mini-batches a step": healthy, "one mini-batch a step": run("--minibatches 1")}
    show("run", runs | {"four, without the clip": run("--clip-low 1 --clip-high 1e9")})
    print("\nWhy is my reward flat?\n")
    lines = []
    for cause, (tell, flags) in FAILURES.items():
        rows = run(flags, never_stops if cause == "PAD is EOS" else train.base_model)
        numbers = [value(tell, healthy), value(tell, rows), value("accuracy_sampled", rows)]
        lines.append([tell, *numbers, cause])
    print(markdown(["column that tells", "healthy", "failing", "accuracy_sampled", "cause"], lines))
