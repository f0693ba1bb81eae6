"""A page to look at training, token by token: python -m studies.explore

Follows a default run of grpo and one of nthr on `sum`. Every 25 steps it keeps the accuracy of each
level and a group of eight responses to one held-out prompt of each level, with what every variant
says of their tokens. A critic is trained beside the run, for the variant `critic`.

Writes docs/explore.html, which needs no network: the template studies/explore.html with the data.
"""

import argparse
import inspect
import json
import re
from pathlib import Path

import torch
from tqdm import tqdm

import train
from advantages import VARIANTS, nthr_scores
from grpo import Rollout, answer_likelihood, sample_rollout, token_bias
from model import GPT
from studies.common import ROOT, base_model, settings
from tasks import PAD, TASKS

EVERY = 25  # steps
RUNS = ("grpo", "nthr")
PAGE = ROOT / "docs" / "explore.html"


def explanation(variant) -> dict[str, str]:
    """Of a variant's docstring: the title, the formula without remarks, two sentences of prose."""
    title, *blocks = inspect.getdoc(variant).split("\n\n")
    formula = next(block for block in blocks if block.startswith("    "))
    prose = next(block for block in blocks if not block.startswith("    "))
    sentences = re.split(r"(?<=\.) ", " ".join(prose.split()))
    return {
        "title": title,
        "formula": re.sub(" {4,}[^=\n]*$", "", inspect.cleandoc("\n" + formula), flags=re.M),
        "prose": " ".join(sentences[:2]),
    }


def by_token(values: torch.Tensor, mask: torch.Tensor, scale: int = 100) -> list:
    """(G, T) -> for each response its tokens' values times scale; one number if all are equal."""
    rows = []
    for row, sampled in zip(values, mask):
        numbers = (scale * row[sampled]).round().int().tolist()
        rows.append(numbers if len(set(numbers)) > 1 else numbers[0])
    return rows


def records(rollout: Rollout) -> list[dict]:
    """What the page shows of each group; s and tau of nthr where the group is mixed.

    The fields for `critic` and `likelihood` must be there.
    """
    advantages = {name: variant(rollout) for name, variant in VARIANTS.items()}
    s = nthr_scores(rollout)
    sbar = s.sum(-1) / rollout.mask.sum(-1)
    groups = []
    for i, mask in enumerate(rollout.mask):
        rewards = rollout.rewards[i]
        rows = zip(rollout.texts[i], mask.sum(-1).tolist())
        group = {
            "tokens": [(text.replace(PAD, "_") + "$")[:length] for text, length in rows],
            "rewards": rewards.int().tolist(),
            "pi": by_token(rollout.logprobs[i].exp(), mask, 1000),
            "A": {name: by_token(A[i], mask) for name, A in advantages.items()},
        }
        if 0 < rewards.sum() < len(rewards):
            group["s"] = by_token(s[i], mask)
            group["tau"] = round(100 * sbar[i][rewards == 1].min().item())
        groups.append(group)
    return groups


def snapshot(model: GPT, critic: GPT, problems: list, task) -> list[dict]:
    """A group of responses to each problem, drawn with the same random numbers at every step."""
    rng = torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, train.TOKENIZER, task, problems, 8, generator=rng)
    rollout.answer_likelihood = answer_likelihood(model, rollout)
    rollout.token_bias = token_bias(critic, rollout).detach()
    return records(rollout)


def follow(args) -> dict:
    """One run: its steps, the accuracy by level at each, a group for each level at each."""
    task = TASKS[args.task]
    held = train.make_problems(task, held=True)
    problems = [next(p for p in held if p.level == level) for level in task.levels]
    model = base_model(args)
    critic = train.new_model(args, outputs=1)
    optimizer = torch.optim.AdamW(critic.parameters(), lr=args.lr, weight_decay=0.0)
    before = train.accuracy(model, task, held, "accuracy", temperature=0)
    kept = {"steps": [0], "accuracy": [list(before["accuracy_by_level"].values())]}
    kept["groups"] = [snapshot(model, critic, problems, task)]
    steps = train.train(args, model, held, evaluate_every=EVERY)
    for step, rollout, _, row in tqdm(steps, args.variant, args.steps):
        train.train_critic(critic, optimizer, rollout)
        if "accuracy" in row:
            kept["steps"].append(step)
            kept["accuracy"].append([float(x) for x in row["accuracy_by_level"].split()])
            kept["groups"].append(snapshot(model, critic, problems, task))
    return kept | {"prompts": [f"{p.prompt.strip()} (solution {p.solution})" for p in problems]}


def page(runs: dict[str, dict], levels: list[int]) -> str:
    """The template with its data; a "<" in the data must not end the script."""
    variants = {name: explanation(variant) for name, variant in VARIANTS.items()}
    data = {"levels": levels, "variants": variants, "runs": runs}
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (ROOT / "studies" / "explore.html").read_text().replace("DATA", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="runs", help="folder of the base model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = {}
    for name in RUNS:
        args = settings("sum", 0, Path(options.out))
        args.variant = name
        runs[name] = follow(args)
    PAGE.write_text(page(runs, [*TASKS["sum"].levels]))


if __name__ == "__main__":
    main()
