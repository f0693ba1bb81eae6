"""The control beside every gain: python -m studies.settled [--base-seeds 0 1 2 3]

Greedy accuracy on the held-out problems of `sum` of the base model, and of the settled base model:
as many warm-up steps, but the learning rate falls to 0 over the last 30 %. No reinforcement
learning takes place. Nothing is written.
"""

import argparse

import torch

import train
from tasks import TASKS

parser = argparse.ArgumentParser()
parser.add_argument("--base-seeds", type=int, nargs="+", default=[0, 1, 2, 3])
torch.set_num_threads(1)
task = TASKS["sum"]
held = train.make_problems(task, held=True)
steps = train.WARMUP_STEPS["sum"]
for seed in parser.parse_args().base_seeds:
    args = train.parse_arguments(["--base-seed", str(seed), "--device", "cpu"])
    for name, settle in (("base", 0), ("settled", int(0.3 * steps))):
        model = train.new_model(args)
        train.warm_up(model, task, steps, seed, settle)
        found = train.accuracy(model, task, held, name, temperature=0)
        print(f"base seed {seed}, {name}: {found[name]:.1%}", flush=True)
