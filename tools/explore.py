"""Makes the advantage lab, a page to play with: python -m tools.explore

The page is tools/explore.html, one file that needs no network. It joins explore.template.html,
explore.css, explore.js and recorded numbers. Two things are recorded:

- One group of eight responses to 347+285= by the base model. For each prefix of these responses the
  page gets the distribution over the next token. It computes all advantages and updates from this
  table.
- For each task a run of grpo and one of verifree. Every 25 steps the page keeps the accuracy and,
  for one held-out problem of each level, a group of eight responses. The problem is the first that
  the base model solves in one of eight responses, or the first of all.

The default takes about ten minutes on one core.
"""

import argparse
import base64
import inspect
import json
import os
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from itertools import chain, product
from operator import ne
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, Critic, answer_likelihood, answered, decode_responses
from advantages import token_bias
from grpo import Rollout, sample_rollout
from model import GPT
from tasks import ADD, CHARACTERS, MARKER, TASKS, Problem, make_problems
from tools.ask import asked

TEMPLATE = Path(__file__).with_name("explore.template.html")
PAGE = Path(__file__).with_name("explore.html")
FOLLOWED = ("grpo", "verifree")  # the variants whose runs are recorded
CRITIC_ROLLOUTS = 50  # from which the lab's critic learns before it judges


def exact(values: torch.Tensor) -> list[float]:
    """Numbers that JSON writes as shortly as a 32-bit number allows."""
    return [float(str(x)) for x in values.detach().numpy().astype(np.float32)]


def packed(values: torch.Tensor) -> str:
    """32-bit numbers one after the other as base64, little-endian."""
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()


def texts_and_rewards(rollout: Rollout) -> dict:
    """What any view of a rollout of one group needs. A response has $ where its end was sampled."""
    return {
        "problem": rollout.problems[0],
        "tokens": decode_responses(rollout),
        "rewards": rollout.rewards[0].int().tolist(),
        "L_given": exact(given_likelihood(rollout)),  # of verifree
    }


def given_likelihood(rollout: Rollout) -> torch.Tensor:
    """L_i of `verifree` (G,): of the true answer and the end, given the marker; 0 without one."""
    trained = answered(rollout)
    logprobs = trained.logprobs.masked_fill(~trained.given, 0.0)
    return (logprobs.sum(-1).exp() * trained.given.any(-1))[0]


def lab(rollout: Rollout, bias: torch.Tensor) -> dict:
    """A rollout of one group, so that the page can compute all advantages and updates.

    bias (1, G, T): the critic's outputs. The table has a row for each prefix, in the order in which
    the responses reach them: the distribution over the next token, and the inner products of its
    vector h with those of the rows before it and with itself (for nthr).
    """
    texts = decode_responses(rollout)
    first = {}  # prefix: a response and a token of it that follows this prefix
    for i, text in enumerate(texts):
        for t in range(len(text)):
            first.setdefault(text[:t], (i, t))
    i, t = zip(*first.values())
    h = rollout.hidden[0, i, t]  # (prefixes, D)
    return texts_and_rewards(rollout) | {
        "L": exact(answer_likelihood(rollout)[0]),  # of likelihood
        "bias": [exact(b[sampled]) for b, sampled in zip(bias[0], rollout.mask[0])],
        "characters": CHARACTERS,
        "probs": packed(rollout.probs[0, i, t]),  # (prefixes, V)
        "products": packed((h @ h.T)[*np.tril_indices(len(h))]),
    }


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


def first_group(model: GPT, args: argparse.Namespace) -> dict:
    """The lab's group: of 512 that the base model samples, the likeliest that is telling."""
    problem = asked(ADD, "347+285=")
    rng = torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, ADD, [problem] * 512, 8, generator=rng)
    told = [telling(problem, *group) for group in zip(rollout.texts, rollout.rewards.tolist())]
    likely = rollout.logprobs.masked_fill(~rollout.mask, 0.0).sum(-1).exp().sum(-1).tolist()
    group = one(rollout, max(range(512), key=lambda p: (told[p], likely[p])))
    critic = Critic(train.new_model(args, outputs=1), args.lr)
    pool = make_problems(ADD, held=False)
    order = np.random.default_rng(0)
    for _ in range(CRITIC_ROLLOUTS):
        batch = [pool[i] for i in order.integers(len(pool), size=64)]
        critic(sample_rollout(model, ADD, batch, 8, generator=rng))
    return lab(group, token_bias(critic.network, group))


def follow(name: str, variant: str, steps: int, model: GPT) -> dict:
    """One run from this base model: at some steps the metrics, and a group for each level."""
    args = train.parse_arguments(["--task", name, "--variant", variant, "--steps", str(steps)])
    task = TASKS[name]
    held = make_problems(task, held=True)
    rng = torch.Generator().manual_seed(0)
    tried = sample_rollout(model, task, held, 8, generator=rng)
    solved = dict(zip(held, tried.rewards.amax(1).tolist()))  # 1: at least once
    problems = [max((p for p in held if p.level == n), key=solved.get) for n in task.levels]
    kept = []
    base = {"step": 0} | train.evaluate(model, task, "sampled", temperature=1)
    for *_, row in tqdm(chain([(base,)], train.train(args, model)), f"{name} {variant}"):
        if "sampled" in row:
            rng = torch.Generator().manual_seed(0)  # the same random numbers at every step
            shown = sample_rollout(model, task, problems, 8, generator=rng)
            groups = [texts_and_rewards(one(shown, i)) for i in range(len(problems))]
            kept.append({k: row[k] for k in ("step", "sampled_by_level")} | {"groups": groups})
    return {"kept": kept}


def record(tasks: list[str], steps: int) -> dict:
    """Everything that the page shows but the variants' names and docstrings."""
    args = {task: train.parse_arguments(["--task", task]) for task in {"add", *tasks}}
    bases = {task: train.base_model(args[task]) for task in args}
    runs = {}
    for task, variant in product(tasks, FOLLOWED):
        runs[f"{task}-{variant}"] = follow(task, variant, steps, deepcopy(bases[task]))
    return {"lab": first_group(bases["add"], args["add"]), "runs": runs}


def page(recorded: dict) -> str:
    """The three files as one, with the data."""
    variants = {name: inspect.getdoc(x).split("\n\n")[0] for name, x in VARIANTS.items()}
    data = json.dumps({"variants": variants, "losses": LOSS} | recorded, separators=(",", ":"))
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
