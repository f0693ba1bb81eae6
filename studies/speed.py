"""How long does a training step take, on one thread? python -m studies.speed

Everything is measured in turns, in one process: a round has one measurement of each, so what else
the machine does slows all alike. The first rounds are not counted. Learning rates are next to
nothing, so all models stay the base model of `add`, and responses keep their lengths.

A training step of each variant, with the default settings, is compared with grpo's. And TRL and
transformers are compared with this project; their packages are those of tools/requirements-trl.txt.
They run the same architecture with the same weights (twin, in tools/trl_variants.py):

    step        of grpo with one mini-batch: sampling, rewards, update, metrics
    TRL         a step of GRPOTrainer; it reads all groups, ours those with an advantage
    sampling    eight responses to each of 64 prompts
    generate    the same by transformers

docs/tables/speed.csv has a row for each comparison: the ratio of the two in a round, its median,
smallest and largest; and the median seconds of both. docs/tables/speed.md is made from it alone.
"""

from copy import deepcopy
from functools import partial
from timeit import default_timer, timeit

import numpy as np
import torch
from transformers import TrainerCallback

import train
from advantages import VARIANTS
from grpo import encode
from model import GPT, generate
from studies.common import TABLES, publish, write_rows
from tasks import ADD
from tools import trl_variants as trl
from tools.common import markdown, read_rows

ROWS = TABLES / "speed.csv"
WARM = 3  # rounds that are not counted
ROUNDS = 20  # that are


def steps(base: GPT, *flags: str):
    """train.py's loop on a model that stays as it is: yields the seconds of each training step."""
    args = train.parse_arguments(["--device", "cpu", "--lr", "1e-12", *flags])
    for *_, row in train.train(args, deepcopy(base)):
        yield row["seconds"]


def beside_trl(base: GPT) -> list[dict[str, float]]:
    """For each round the seconds of a step and of sampling, ours and theirs."""

    class Turns(TrainerCallback):
        """After each step of TRL the others take their turn."""

        def on_step_begin(self, *_, **__):
            self.started = default_timer()

        def on_step_end(self, *_, **__):
            seconds = {"TRL": default_timer() - self.started, "step": next(ours)}
            seconds["sampling"] = timeit(lambda: generate(base, *given), number=1)
            seconds["generate"] = timeit(lambda: theirs.generate(given[0], **same), number=1)
            found.append(seconds)

    found = []
    theirs, tokenizer = trl.twin(base)
    ours = steps(base, "--minibatches", "1")
    problems = train.make_problems(ADD, held=False)
    some = problems[:: len(problems) // 64][:64]
    prompts, _ = encode([problem.prompt for problem in some], "cpu")
    given = (prompts, 8, trl.NEW_TOKENS, tokenizer.eos_token_id, 1.0, None)
    size = {"num_return_sequences": 8, "max_new_tokens": trl.NEW_TOKENS}
    same = size | {"do_sample": True, "top_k": 0}
    plain = {"use_cpu": True, "gradient_checkpointing": False, "save_strategy": "no"}
    own = trl.OWN | trl.trl_settings("grpo") | {"learning_rate": 0.0}
    config = trl.GRPOConfig(**own | plain, max_steps=WARM + ROUNDS)
    data = trl.Dataset.from_list([problem._asdict() for problem in problems])
    parts = (theirs, partial(trl.verifier, tokenizer), config, data, None, tokenizer)
    trl.GRPOTrainer(*parts, callbacks=[Turns()]).train()
    return found


def compared(rounds: list[dict], measured: str, beside: str) -> dict:
    """A row: over the counted rounds, the seconds of the first over those of the second."""
    a, b = (np.array([seconds[x] for seconds in rounds[WARM:]]) for x in (measured, beside))
    ratio = {"ratio": np.median(a / b), "smallest": min(a / b), "largest": max(a / b)}
    seconds = {"seconds": np.median(a), "beside, seconds": np.median(b)}
    about = {"threads": torch.get_num_threads(), "rounds": len(a)}
    return {"measured": measured, "beside": beside} | about | ratio | seconds


if __name__ == "__main__":
    base = train.base_model(train.parse_arguments(["--device", "cpu"]))
    torch.set_num_threads(1)
    loops = {name: steps(base, "--variant", name) for name in VARIANTS}
    rounds = [{name: next(loop) for name, loop in loops.items()} for _ in range(WARM + ROUNDS)]
    rows = [compared(rounds, name, "grpo") for name in VARIANTS]
    rounds = beside_trl(base)
    rows += [compared(rounds, "TRL", "step"), compared(rounds, "generate", "sampling")]
    write_rows(ROWS, rows)
    text = markdown([*rows[0]], [[*row.values()] for row in read_rows(ROWS)])
    publish(ROWS, f"# How long a training step takes. See studies/speed.py\n\n{text}\n")
