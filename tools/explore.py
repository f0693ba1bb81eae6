"""Makes the advantage lab, a page to play with: python -m tools.explore

The page is tools/explore.html: tools/explore.template.html with recorded numbers in it. It needs no
network. Two things are recorded:

- One group of eight responses to 347+285= by the base model, with everything that the page needs
  to compute all advantages anew when the reader changes a reward.
- For each task a run of grpo and one of verifree. Every 25 steps the page keeps the metrics and,
  for one held-out problem of each level, a group of eight responses. The problem is the first that
  the base model solves in one of eight responses, or the first of all.

The default takes about ten minutes on one core.
"""

import argparse
import base64
import inspect
import json
import os
from copy import deepcopy
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import train
from advantages import VARIANTS, Critic, answer_likelihood, answered
from advantages import as_sampled, nthr_scores, token_bias
from grpo import Rollout, sample_rollout
from model import GPT
from tasks import ADD, MARKER, TASKS, Problem, make_problems
from tools.ask import asked

TEMPLATE = Path(__file__).with_name("explore.template.html")
PAGE = Path(__file__).with_name("explore.html")
FOLLOWED = ("grpo", "verifree")  # the variants whose runs are recorded
CRITIC_ROLLOUTS = 50  # from which the lab's critic learns before it judges
SHOWN = ("step", "entropy", "all_fail", "sampled_by_level")  # of a step's metrics


def by_token(values: torch.Tensor, mask: torch.Tensor) -> list[list[float]]:
    """(G, T) -> for each response the values of its tokens, with all digits of a 32-bit number."""
    return [exact(row[sampled]) for row, sampled in zip(values, mask)]


def exact(values: torch.Tensor) -> list[float]:
    """Numbers that JSON writes as shortly as a 32-bit number allows."""
    return [float(str(x)) for x in values.detach().numpy().astype(np.float32)]


def packed(values: torch.Tensor, dtype: str) -> str:
    """Numbers one after the other as base64, little-endian: "<f4" or "<i2"."""
    return base64.b64encode(values.numpy().astype(dtype).tobytes()).decode()


def texts_and_rewards(rollout: Rollout) -> dict:
    """What any view of a rollout of one group needs. A response has $ where its end was sampled."""
    return {
        "problem": rollout.problems[0],
        "tokens": as_sampled(rollout),
        "rewards": rollout.rewards[0].int().tolist(),
        "L": exact(answer_likelihood(rollout)[0]),  # likelihood
        "L_given": exact(given_likelihood(rollout)),  # verifree
    }


def given_likelihood(rollout: Rollout) -> torch.Tensor:
    """L_i of `verifree` (G,): of the true answer and the end, given the marker; 0 without one."""
    trained = answered(rollout)
    logprobs = trained.logprobs.masked_fill(~trained.given, 0.0)
    return (logprobs.sum(-1).exp() * trained.given.any(-1))[0]


def lab(rollout: Rollout, bias: torch.Tensor) -> dict:
    """A rollout of one group, so that the page can compute all advantages for any rewards.

    bias (1, G, T): the critic's outputs. K is the matrix of the inner products <g, g'><h, h'> of
    all pairs of tokens (advantages.nthr_scores). Recorded are the rows of its lower triangle.
    """
    mask = rollout.mask[0]
    one_hot = torch.nn.functional.one_hot(rollout.tokens[0], rollout.probs.size(-1))
    g = (one_hot - rollout.probs[0])[mask]  # (tokens, V)
    h = rollout.hidden[0][mask]  # (tokens, D)
    K = (g @ g.T) * (h @ h.T)
    return texts_and_rewards(rollout) | {
        "pi": by_token(rollout.logprobs[0].exp(), mask),
        "H": by_token(torch.special.entr(rollout.probs[0]).sum(-1), mask),
        "bias": by_token(bias[0], mask),
        "K": packed(K[*np.tril_indices(len(K))], "<f4"),
    }


def groups(rollout: Rollout) -> list[dict]:
    """What the page shows of each group of a recorded run; its rewards do not change.

    pi in 32767ths and s in `unit`s are packed. `spared` has 1 for a token that nthr spares, `forks`
    1 for one that forking trains: rounded numbers could not decide that.
    """
    s = nthr_scores(rollout)
    grpo, nthr = (VARIANTS[name](rollout).A for name in ("grpo", "nthr"))
    # Which tokens forking trains does not depend on rewards, and a mixed group shows it.
    mixed = torch.zeros_like(rollout.rewards)
    mixed[:, 0] = 1
    forking = VARIANTS["forking"](replace(rollout, rewards=mixed)).A
    kept = []
    for i, mask in enumerate(rollout.mask):
        group = texts_and_rewards(one(rollout, i))
        unit = max(s[i][mask].abs().max().item(), 1e-6) / 32767
        bits = {"spared": nthr[i] != grpo[i], "forks": forking[i] != 0}
        for name, bit in bits.items():
            group[name] = ["".join(str(int(x)) for x in row[m]) for row, m in zip(bit, mask)]
        group["unit"] = unit
        group["s"] = packed((s[i][mask] / unit).round(), "<i2")
        group["pi"] = packed((rollout.logprobs[i][mask].exp() * 32767).round(), "<i2")
        kept.append(group)
    return kept


def one(rollout: Rollout, p: int) -> Rollout:
    """Group p as a rollout of its own."""
    of_all = {name: x for name, x in vars(rollout).items() if isinstance(x, (torch.Tensor, list))}
    return replace(rollout, **{name: x[p : p + 1] for name, x in of_all.items()})


def telling(problem: Problem, texts: list[str], rewards: list[float]) -> bool:
    """Whether a group makes a good first screen.

    All its responses look like solutions, and all differ. Exactly one is correct, one of the first
    two, and its steps are correct. Exactly one incorrect response has correct steps too.
    """
    marker = problem.solution.index(MARKER)
    shaped = [len(y) == len(problem.solution) and y.find(MARKER) == marker for y in texts]
    correct_steps = [r for y, r in zip(texts, rewards) if ADD.reasoning_correct(problem, y)]
    one_correct = sum(rewards) == sum(rewards[:2]) == 1
    return all(shaped) and one_correct and sorted(correct_steps) == [0, 1] and len(set(texts)) == 8


def first_group(model: GPT, args: argparse.Namespace) -> dict:
    """The lab's group: the first telling one of 512 that the base model samples for 347+285=."""
    problem = asked(ADD, "347+285=")
    rng = torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, ADD, [problem] * 512, 8, generator=rng)
    told = [telling(problem, *group) for group in zip(rollout.texts, rollout.rewards.tolist())]
    group = one(rollout, told.index(True) if any(told) else 0)
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
            kept.append({k: row[k] for k in SHOWN if k in row} | {"groups": groups(shown)})
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
    """The template with its data."""
    texts = {name: inspect.getdoc(variant) for name, variant in VARIANTS.items()}
    data = json.dumps({"variants": texts} | recorded, separators=(",", ":"))
    return TEMPLATE.read_text(encoding="utf-8").replace("DATA", data.replace("</", "<\\/"))


def recording(path: Path) -> dict:
    """What an earlier page holds."""
    data = path.read_text(encoding="utf-8").split('<script id="data" type="application/json">')[1]
    return {k: v for k, v in json.loads(data.split("</script>")[0]).items() if k != "variants"}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tools.explore", None, __doc__.splitlines()[0])
    add = parser.add_argument
    add("--steps", type=train.number(int, 0), default=400, help="training steps of a run (400)")
    add("--tasks", nargs="+", choices=TASKS, default=["add", "mul"], help="of the runs (add mul)")
    add("--out", type=Path, default=PAGE, help="the file to write (tools/explore.html)")
    add("--keep", action="store_true", help="renew only the template and the docstrings")
    options = parser.parse_args(argv)
    if not os.access(options.out.parent, os.W_OK):
        parser.error(f"{options.out.parent} is not a folder that can be written")
    if options.keep and not options.out.exists():
        parser.error(f"{options.out} is not there, so it has nothing to keep")
    torch.set_num_threads(1)
    recorded = recording(options.out) if options.keep else record(options.tasks, options.steps)
    options.out.write_text(page(recorded), encoding="utf-8")


if __name__ == "__main__":
    main()
