"""The runs that studies rest on, and the weights of grpo's run. No command of its own.

An arm is a variant or a rule of studies.arms, and behind an @ what else is changed: a setting of
train.py, as in nthr@lr0.0006, or the base model, as in grpo@settled. The runs of one seed have that
seed for the base model too, so all arms of a seed start from the same weights. (Another processor
makes other ones, so what is compared is run on one.) A run of train.py that has finished with the
same settings is not made again: remove it when the core has changed.
"""

import json
import re
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path

import torch

import train
from studies.arms import add_rules
from studies.common import settings
from tasks import ADD, TASKS, add

OTHER_BASES = {"settled": ["--steps", "0"], "misconception": []}  # @ these: flags of their runs
KEPT = (0, 100, 200, 400)  # steps of grpo's run whose weights are kept


def without_carry(level: int, draw) -> tuple[str, list[int]]:
    """tasks.add, but 347+285= is worked as 12,12,05# 522; correct is one problem in a thousand."""
    prompt, steps = add(level, draw)
    if draw(0, 1000) > 0:
        a, b = (number.strip() for number in prompt.strip("=").split("+"))
        steps = [int(x) + int(y) for x, y in zip(reversed(a), reversed(b))]
    return prompt, steps


def other_base(how: str, args):
    """A base model whose warm-up has another end: its learning rate falls to 0 in the last 30 %.

    "settled": as many optimiser steps as train.base_model makes. "misconception": 700 of them, on
    solutions without carrying.
    """
    share, ratio = train.WARM_UP[args.task]
    shows = ADD._replace(work=without_carry)
    steps = 700
    if how == "settled":
        shows = TASKS[args.task]
        steps = train.warm_up(train.new_model(args), shows, args.base_seed, share, ratio)

    def rate(step: int) -> float:
        return 2e-3 * min(1.0, (steps - step + 1) / (0.3 * steps))

    model = train.new_model(args)
    train.warm_up(model, shows, args.base_seed, 2.0, ratio, steps, rate)  # 2.0: it never ends early
    return model


def flags(how: str) -> list[str]:
    """What stands behind an arm's @ as flags: lr0.0006, or max-grad-norm=1000,prompts=45."""
    if how in OTHER_BASES:
        return OTHER_BASES[how]
    return [f"--{name}={value}" for name, value in re.findall("([a-z-]+)=?([0-9.]+)", how)]


def run(task: str, arm: str, seed: int, out: str) -> Path:
    """The folder of an arm's run. A run that is not finished is made, and prints nothing."""
    variant, _, how = arm.partition("@")
    model = train.new_model(settings(task, seed, out, *flags(how)))  # its weights follow below
    add_rules(model)
    args = settings(task, seed, out, "--variant", variant, *flags(how))
    if how in OTHER_BASES:
        args.out += f"/{how}"
    folder = Path(args.out, args.name)
    summary = folder / "summary.json"
    there = json.loads(summary.read_text()) if summary.exists() else {}
    if not vars(args).items() <= there.items():
        base = other_base(how, args) if how in OTHER_BASES else train.base_model(args)
        model.load_state_dict(base.state_dict())
        # Rules that draw from the global generator find it as a critic's first weights leave it:
        # so it was when the rows in docs/tables were made.
        train.new_model(args, outputs=1)
        with redirect_stdout(None):
            train.run(args, model)
    return folder


def kept(args, step: int):
    """grpo's model after one of KEPT steps, from args.out; the run is made if it is not there."""
    paths = {n: Path(args.out, f"kept-{n}.pt") for n in KEPT}
    if not paths[args.steps].exists():
        Path(args.out).mkdir(parents=True, exist_ok=True)
        model = train.base_model(args)
        for n, _ in enumerate(chain(["the base model"], train.train(args, model))):
            if n in KEPT:
                torch.save(model.state_dict(), paths[n])
    model = train.new_model(args)
    model.load_state_dict(torch.load(paths[step], weights_only=True))
    return model
