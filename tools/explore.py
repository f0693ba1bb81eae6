"""A page to look at training, token by token: python -m tools.explore

Follows a default run of grpo and one of verifree on `add` and on `mul`. Every 25 steps it keeps the
metrics and, for one held-out problem of each level, a group of eight responses with what variants
say of their tokens. The problem is the first that the base model solves in one of eight responses,
or the first of all.

Writes tools/explore.html, which needs no network: tools/explore.template.html with the data.
Ten minutes on one core.
"""

import inspect
import json
from itertools import chain, product
from pathlib import Path

import torch
from tqdm import tqdm

import train
from advantages import VARIANTS, nthr_scores
from grpo import Rollout, sample_rollout
from tasks import EOS, TASKS, make_problems

ROOT = Path(__file__).parent.parent
# verifree trains other tokens than the sampled ones, which the page shows; critic needs a network.
NAMES = [name for name in VARIANTS if name not in ("verifree", "critic")]


def by_token(values: torch.Tensor, mask: torch.Tensor) -> list:
    """(G, T) -> for each response its tokens' values in hundredths; one number if all are equal."""
    rows = [(100 * row[sampled]).round().int().tolist() for row, sampled in zip(values, mask)]
    return [row if len(set(row)) > 1 else row[0] for row in rows]


def records(rollout: Rollout) -> list[dict]:
    """What the page shows of each group."""
    numbers = {"pi": rollout.logprobs.exp(), "s": nthr_scores(rollout)}
    numbers |= {name: VARIANTS[name](rollout).A for name in NAMES}
    groups = []
    for i, mask in enumerate(rollout.mask):
        group = {name: by_token(x[i], mask) for name, x in numbers.items()}
        group["tokens"] = [(y + EOS)[: row.sum()] for y, row in zip(rollout.texts[i], mask)]
        group["rewards"] = rollout.rewards[i].int().tolist()
        groups.append(group)
    return groups


def follow(name: str, variant: str) -> dict:
    """One run: a problem of each level; at some steps the metrics and a group for each problem."""
    args = train.parse_arguments(["--device", "cpu", "--task", name, "--variant", variant])
    task = TASKS[name]
    held = make_problems(task, held=True)
    model = train.base_model(args)
    # 1: solved at least once.
    solved = dict(zip(held, sample_rollout(model, task, held, 8).rewards.amax(1).tolist()))
    problems = [max((p for p in held if p.level == n), key=solved.get) for n in task.levels]
    kept = []
    base = {"step": 0} | train.evaluate(model, task, "greedy", temperature=0)
    base |= train.evaluate(model, task, "sampled", temperature=1)
    for *_, row in tqdm(chain([(base,)], train.train(args, model)), variant):
        if "greedy" in row:
            rng = torch.Generator().manual_seed(0)  # the same random numbers at every step
            shown = sample_rollout(model, task, problems, 8, generator=rng)
            kept.append(row | {"groups": records(shown)})
    return {"problems": problems, "kept": kept}


def page(runs: dict[str, dict]) -> str:
    """The template with its data."""
    texts = {name: inspect.getdoc(VARIANTS[name]) for name in NAMES}
    data = json.dumps({"variants": texts, "runs": runs}, separators=(",", ":"))
    return (ROOT / "tools" / "explore.template.html").read_text().replace("DATA", data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    runs = {f"{t}-{v}": follow(t, v) for t, v in product(("add", "mul"), ("grpo", "verifree"))}
    (ROOT / "tools" / "explore.html").write_text(page(runs))
