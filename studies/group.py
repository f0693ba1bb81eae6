"""What does one group teach? The lectures draw a group with this. It has no command.

Each row is a response and each cell a token, and its colour is the advantage of a variant.
"""

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle

from advantages import VARIANTS, grpo, with_advantages
from grpo import Rollout, sample_rollout
from model import GPT
from tasks import ADD, EOS, Problem

PUSHES = LinearSegmentedColormap.from_list("pushes", ["#EE8A3C", "#F4F4F4", "#55A6E0"])


def first_correct(model: GPT, problem: Problem) -> Rollout:
    """A group of eight responses, of which only the first is correct."""
    generator = torch.Generator().manual_seed(0)
    while True:
        rollout = sample_rollout(model, ADD, [problem], 8, generator=generator)
        if rollout.rewards[0].tolist() == [1] + [0] * 7:
            return rollout


def draw(ax, rollout: Rollout, m: int, variant: str, letters: int = 12) -> None:
    """Group m: a row is a response, a cell is a token, its colour is the token's advantage.

    A token that is not the solution's has a bar below it; a space is shown as an open box. A token
    with a frame has another advantage than under grpo.
    """
    A = with_advantages(rollout, VARIANTS[variant]).A[m]  # (G, T)
    plain = with_advantages(rollout, grpo).A[m]
    shown = A.where(rollout.mask[m], torch.nan)
    ax.imshow(shown.numpy(), cmap=PUSHES, vmin=-2, vmax=2, aspect="auto")
    solution = rollout.problems[m].solution + EOS
    font = {"fontsize": letters, "family": "monospace"}
    for i, text in enumerate(rollout.texts[m]):
        for t, character in enumerate(text + EOS):
            ax.text(t, i, character.replace(" ", "\u2423"), ha="center", va="center", **font)
            if character != solution[t : t + 1]:
                bar = ([t - 0.25, t + 0.25], [i + 0.36, i + 0.36])
                ax.plot(*bar, color="black", linewidth=letters / 6)
            if A[i, t] != plain[i, t]:
                corner = (t - 0.42, i - 0.42)
                ax.add_patch(Rectangle(corner, 0.84, 0.84, fill=False, linewidth=2))
    rows = [f"reward {r:.0f}, A = {a:+.2f}" for r, a in zip(rollout.rewards[m], plain[:, 0])]
    ax.set_yticks(range(len(rows)), rows)
    prompt = rollout.problems[m].prompt.replace(" ", "")
    ax.set(title=f"{prompt} under {variant}", xlabel="token of the response", xticks=[])
    ax.set_xlim(-0.5, rollout.mask[m].sum(-1).max().item() - 0.5)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
