"""The runs that studies rest on. No command of its own.

The runs of one seed have that seed for the base model too, so all variants and controls of a seed
start from the same weights. (Another processor makes other ones, so what is compared is run on
one.) A run of train.py that has finished with the same settings is not made again: remove it when
the core has changed.
"""

import json
from contextlib import redirect_stdout
from pathlib import Path

import train
from studies.common import TABLES, read_rows, settings
from studies.ablations import add_controls
from studies.analysis import chosen
from tools.ask import finished


def asked(task: str, variant: str, lr: float, flags: str, seed: int, out: str) -> train.Namespace:
    """The settings of a run of a variant or control. Its folder is args.out/args.name."""
    add_controls()
    return settings(task, seed, out, "--variant", variant, "--lr", str(lr), *flags.split())


def is_finished(*job) -> bool:
    """Whether asked(*job) has been run to its end, wherever that was."""
    args = asked(*job)
    path = Path(args.out, args.name, "summary.json")
    there = json.loads(path.read_text()) if path.exists() else {}
    return all(there.get(name) == x for name, x in vars(args).items() if name != "out")


def run(*job) -> Path:
    """The folder of the run asked(*job). If it is not finished, it is made, and prints nothing."""
    args = asked(*job)
    if not is_finished(*job):
        with redirect_stdout(None):
            train.run(args)
    return Path(args.out, args.name)


def model_after(task: str, variant: str, seed: int, out: str):
    """The model that a run ended with, at the rate chosen for it."""
    rate = chosen(read_rows(TABLES / "compare.csv"), task, variant)
    return finished(run(task, variant, rate, "", seed, out))[1]


def of_models(after: tuple, measured, task: str, seed: int, out: str) -> list[dict]:
    """Rows of a seed, measured(model, task): of its base model and what each variant made of it."""
    models = {"base": train.base_model(settings(task, seed, out))}
    models |= {variant: model_after(task, variant, seed, out) for variant in after}
    head = {"task": task, "seed": seed}
    return [head | {"model": name} | measured(model, task) for name, model in models.items()]
