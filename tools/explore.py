"""Makes the advantage lab, a page to play with: python -m tools.explore

The page is tools/explore.html, one file that needs no network. It joins explore.template.html,
explore.css, explore.js and recorded numbers. Two things are recorded:

- One group of eight responses to 347+285= by the base model. For each prefix of these responses the
  page gets the distribution over the next token. It computes all advantages and updates from this
  table.
- For each task a run of grpo and one of half. Every 25 steps the page keeps the accuracy, eight
  responses to one held-out problem, and the shares of the training groups that were all-fail and
  all-pass.

The default takes about ten minutes on one core.
"""

import argparse
import base64
import inspect
import json
import os
import re
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from operator import ne
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, decode_responses
from grpo import Rollout, policy_loss, sample_rollout
from model import GPT
from tasks import ADD, CHARACTERS, MARKER, TASKS, Problem, Task, make_problems
from tools.ask import asked

TEMPLATE = Path(__file__).with_name("explore.template.html")
PAGE = Path(__file__).with_name("explore.html")
# The rules that the page offers beside grpo. The others only scale the advantages of a group, or
# need a network.
RULES = ("half", "pos_only", "reinforce", "nthr", "compensation", "ngrpo", "negative", "forking")
RULES += ("process",)
CLIPS = ("grpo", "gspo", "cispo")
FOLLOWED = ("grpo", "half")  # the variants whose runs are recorded
LEVEL = 4  # of the problem that they show


def packed(values: torch.Tensor) -> str:
    """32-bit numbers one after the other as base64, little-endian."""
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()


def lab(rollout: Rollout) -> dict:
    """A rollout of one group, so that the page can compute all advantages and updates.

    The table has a row for each prefix, in the order in which the responses reach them: the
    distribution over the next token, and the inner products of its vector h with those of the rows
    before it and with itself (for nthr). A response has $ where its end was sampled.
    """
    texts = decode_responses(rollout)
    first = {}  # prefix: a response and a token of it that follows this prefix
    for i, text in enumerate(texts):
        for t in range(len(text)):
            first.setdefault(text[:t], (i, t))
    i, t = zip(*first.values())
    h = rollout.hidden[0, i, t]  # (prefixes, D)
    return {
        "problem": rollout.problems[0],
        "tokens": texts,
        "rewards": written(rollout.rewards[0]),
        "characters": CHARACTERS,
        "probs": packed(rollout.probs[0, i, t]),  # (prefixes, V)
        "products": packed((h @ h.T)[*np.tril_indices(len(h))]),
    }


def written(rewards: torch.Tensor) -> str:
    """The rewards of a group as a text: 00000010."""
    return "".join(f"{r:.0f}" for r in rewards)


def one(rollout: Rollout, p: int) -> Rollout:
    """Group p as a rollout of its own."""
    of_all = {name: x for name, x in vars(rollout).items() if isinstance(x, (torch.Tensor, list))}
    return replace(rollout, **{name: x[p : p + 1] for name, x in of_all.items()})


def telling(problem: Problem, texts: list[str], rewards: list[float]) -> bool:
    """Whether a group makes a good first screen.

    All its responses look like solutions, and all differ. Exactly one is correct, and so are its
    steps. Exactly one other response has correct steps, too, and only one wrong token.
    """
    marker = problem.solution.index(MARKER)
    shaped = [len(y) == len(problem.solution) and y.find(MARKER) == marker for y in texts]
    with_steps = [y for y in texts if ADD.reasoning_correct(problem, y)]
    wrong = sorted(sum(map(ne, y, problem.solution)) for y in with_steps)
    return all(shaped) and sum(rewards) == 1 and wrong == [0, 1] and len(set(texts)) == 8


def first_group(model: GPT) -> dict:
    """The lab's group: of 512 that the base model samples, the likeliest that is telling."""
    problem = asked(ADD, "347+285=")
    rng = torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, ADD, [problem] * 512, 8, generator=rng)
    told = [telling(problem, *group) for group in zip(rollout.texts, rollout.rewards.tolist())]
    likely = rollout.logprobs.masked_fill(~rollout.mask, 0.0).sum(-1).exp().sum(-1).tolist()
    return lab(one(rollout, max(range(512), key=lambda p: (told[p], likely[p]))))


def group_of(model: GPT, task: Task, problem: Problem) -> Rollout:
    """Eight responses to one problem, always from the same random numbers."""
    rng = torch.Generator().manual_seed(0)
    return sample_rollout(model, task, [problem], 8, generator=rng)


def follow(args: argparse.Namespace, model: GPT, problem: Problem) -> list[dict]:
    """One run from this base model: at each evaluation the accuracy, a group, and which shares of
    the groups that were trained on since the evaluation before were all-fail and all-pass."""
    task = TASKS[args.task]
    kept = []
    trained = []
    base = {"step": 0} | train.evaluate(model, task, "sampled", temperature=1)
    for *_, row in tqdm(chain([(base,)], train.train(args, model)), f"{args.task} {args.variant}"):
        if row["step"]:
            trained.append([row["all_fail"], row["all_pass"]])
        if "sampled" in row:
            group = group_of(model, task, problem)
            shown = {"tokens": decode_responses(group), "rewards": written(group.rewards[0])}
            equal = np.mean(trained, axis=0).round(4).tolist() if trained else None
            kept.append({"step": row["step"], "sampled": round(row["sampled"], 4)} | shown)
            kept[-1]["equal"] = equal
            trained = []
    return kept


def runs_of(name: str, base: GPT, steps: int) -> dict:
    """The runs of a task, and the problem that they show: the first, of all held-out ones of a
    level, that the base model solves in none of eight responses."""
    task = TASKS[name]
    held = [problem for problem in make_problems(task, held=True) if problem.level == LEVEL]
    problem = next(p for p in held if not group_of(base, task, p).rewards.any())
    runs = {"problem": problem}
    for variant in FOLLOWED:
        line = ["--task", name, "--variant", variant, "--steps", str(steps)]
        runs[variant] = follow(train.parse_arguments(line), deepcopy(base), problem)
    return runs


def record(tasks: list[str], steps: int) -> dict:
    """Everything that the page shows but the rules' ideas and the limits of the losses."""
    bases = {
        task: train.base_model(train.parse_arguments(["--task", task])) for task in {"add", *tasks}
    }
    runs = {task: runs_of(task, bases[task], steps) for task in tasks}
    return {"lab": first_group(bases["add"]), "runs": runs}


def about(name: str) -> dict:
    """What the page says of a rule: its idea, and the number of its paper (None without one)."""
    text = inspect.getdoc(VARIANTS[name])
    paper = re.search("arXiv ([0-9.]+[0-9])", text.split("\n\n")[0])
    return {"idea": text.splitlines()[0], "paper": paper and paper[1]}


def clip(name: str) -> dict:
    """What the page says of a loss: also the ratios below and above which it changes something."""
    settings = inspect.signature(policy_loss).parameters
    reach = [
        LOSS.get(name, {}).get(key, settings[key].default) for key in ("clip_low", "clip_high")
    ]
    return about(name) | {"low": round(1 - reach[0], 4), "high": round(1 + reach[1], 4)}


def page(recorded: dict) -> str:
    """The three files as one, with the data."""
    rules = {"rules": {name: about(name) for name in RULES}}
    clips = {"clips": {name: clip(name) for name in CLIPS}}
    data = json.dumps(rules | clips | recorded, separators=(",", ":"))
    joined = TEMPLATE.read_text(encoding="utf-8")
    for place, name in (("STYLE", "explore.css"), ("SCRIPT", "explore.js")):
        joined = joined.replace(place, TEMPLATE.with_name(name).read_text(encoding="utf-8"))
    return joined.replace("DATA", data.replace("</", "<\\/"))


def recording(path: Path) -> dict:
    """What an earlier page holds."""
    data = path.read_text(encoding="utf-8").split('<script id="data" type="application/json">')[1]
    held = json.loads(data.split("</script>")[0])
    return {"lab": held["lab"], "runs": held["runs"]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tools.explore", None, __doc__.splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=400, help="training steps of a run (400)")
    add("--tasks", nargs="+", choices=TASKS, default=["add", "mul"], help="of the runs (add mul)")
    add("--out", type=Path, default=PAGE, help="the file to write (tools/explore.html)")
    add("--keep", action="store_true", help="renew all but the recorded numbers")
    options = parser.parse_args(argv)
    if options.steps < 0:
        parser.error(f"--steps {options.steps}: 0 or more are allowed")
    out = options.out.resolve()
    if os.path.exists(out) and not os.path.isfile(out):
        parser.error(f"--out {options.out}: not a file")
    try:
        recorded = recording(out) if options.keep else None
    except (OSError, LookupError, ValueError):
        parser.error(f"--keep: {options.out} is not a page of this command")
    torch.set_num_threads(1)
    beside = out.with_name(f"{out.name}.new")
    try:
        beside.write_bytes(bytes(10**6))  # a folder or disk that takes no page is found now
        text = page(recorded or record(options.tasks, options.steps))
        beside.write_text(text, encoding="utf-8")
        beside.replace(out)  # the old page stays whole until the new one is
    except OSError as error:
        parser.error(f"--out {options.out}: {error.strerror}")
    finally:
        with suppress(OSError):
            beside.unlink()


if __name__ == "__main__":
    main()
