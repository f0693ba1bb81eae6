"""What does one group teach? python -m studies.group

This draws results/group.png: eight responses of a base model to one prompt, of which exactly one is
correct. Each cell is a token, and its colour is the advantage that grpo gives it. The base model is
the one of the lectures. We sample groups until one of them has a single correct response.
"""

from pathlib import Path

import torch
from matplotlib.patches import Rectangle

import train
from advantages import grpo
from grpo import Rollout, sample_rollout
from studies.common import TABLES
from studies.pictures import DOWN, NEUTRAL, UP, WIDTH, picture
from tasks import ADD, MARKER, TOKENIZER, Problem
from tools.ask import asked

WEIGHTS = Path(train.__file__).parent / "course" / "weights" / "add-base.pt"  # 16-bit numbers
PROMPT = "347+285="
G = 8


def base_model():
    model = train.new_model(train.parse_arguments([]))
    weights = torch.load(WEIGHTS, weights_only=True)
    model.load_state_dict({name: w.float() for name, w in weights.items()})
    return model


def group_with_one_correct(model, problem: Problem) -> Rollout:
    generator = torch.Generator().manual_seed(0)
    while True:
        rollout = sample_rollout(model, ADD, [problem], G, generator=generator)
        if rollout.rewards.sum() == 1:
            return grpo(rollout)


def draw(ax, rollout: Rollout) -> None:
    """A row for each response, the correct one on top; advantages stand at the ends of the rows."""
    order = rollout.rewards[0].argsort(descending=True, stable=True)
    longest = int(rollout.mask[0].sum(-1).max())
    for y, i in enumerate(order.tolist()):
        sampled = rollout.mask[0, i]
        text = TOKENIZER.decode(rollout.tokens[0, i][sampled].tolist())
        A = rollout.A[0, i, 0].item()
        colour = UP if A > 0 else DOWN
        strength = 0.25 + 0.5 * abs(A) / rollout.A.abs().max().item()
        for x, character in enumerate(text):
            ax.add_patch(Rectangle((x, y), 0.94, 0.9, facecolor=colour, alpha=strength))
            ax.text(x + 0.47, y + 0.47, character, ha="center", va="center", family="monospace")
        ax.text(-2.2, y + 0.47, f"{rollout.rewards[0, i]:.0f}", ha="center", va="center")
        ax.text(longest + 1.4, y + 0.47, f"{A:+.2f}", ha="center", va="center", weight="bold")
    marker = rollout.problems[0].solution.index(MARKER)
    headings = {-2.2: "reward", marker / 2: "reasoning", longest - 2.5: "answer"}
    for x, heading in (headings | {longest + 1.4: "advantage"}).items():
        ax.text(x, -0.3, heading, ha="center", color=NEUTRAL)
    ax.set(xlim=(-3.3, longest + 3), ylim=(G, -0.7), aspect="equal")
    ax.set_title(f"eight responses to {PROMPT}")
    ax.set_axis_off()


if __name__ == "__main__":
    with picture(TABLES / "group.png", figsize=(WIDTH, 3.4)) as ax:
        draw(ax, group_with_one_correct(base_model(), asked(ADD, PROMPT)))
