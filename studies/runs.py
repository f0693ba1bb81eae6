"""The runs that studies rest on, and the weights of grpo's run. No command of its own.

An arm is a variant or one of studies.controls, and behind an @ settings of train.py, as in
nthr@lr0.0006. The runs of one seed have that seed for the base model too, so all arms of a seed
start from the same weights. (Another processor makes other ones, so what is compared is run on
one.) A run of train.py that has finished with the same settings is not made again: remove it when
the core has changed.
"""

import json
import re
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path

import torch

import train
from studies.common import settings
from studies.controls import add_controls

KEPT = (0, 100, 200, 400)  # steps of grpo's run whose weights are kept


def flags(how: str) -> list[str]:
    """What stands behind an arm's @ as flags: lr0.0006, or max-grad-norm=1000,prompts=45."""
    return [f"--{name}={value}" for name, value in re.findall("([a-z-]+)=?([0-9.]+)", how)]


def run(task: str, arm: str, seed: int, out: str) -> Path:
    """The folder of an arm's run. A run that is not finished is made, and prints nothing."""
    add_controls()
    variant, _, how = arm.partition("@")
    args = settings(task, seed, out, "--variant", variant, *flags(how))
    folder = Path(args.out, args.name)
    summary = folder / "summary.json"
    there = json.loads(summary.read_text()) if summary.exists() else {}
    if not vars(args).items() <= there.items():
        with redirect_stdout(None):
            train.run(args)
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
