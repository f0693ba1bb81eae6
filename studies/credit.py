"""Who gets the credit? python -m studies.credit [--group N]

One group of the base model of `sum`, a row a response, a cell a token, coloured by the advantage
that grpo, compensation and nthr give it; a frame marks what nthr spares. The group is the first
mixed one with three correct responses of which three incorrect ones begin with a correct step;
--group takes another of these.

docs/tables/credit.csv has a row a token; docs/credit.png is made from it alone.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from advantages import VARIANTS
from grpo import Rollout
from studies.common import ROOT, TABLES, base_model, mixed_groups, pyplot, read_rows
from studies.common import settings, write_rows
from tasks import TASKS

ROWS = TABLES / "credit.csv"
PANELS = ("grpo", "compensation", "nthr")


def fits(rollout: Rollout) -> bool:
    step = rollout.problems[0].solution.split(",")[0] + ","
    responses = zip(rollout.texts[0], rollout.rewards[0])
    begun = sum(text.startswith(step) for text, r in responses if r == 0)
    return bool(rollout.rewards.sum() == 3 and begun == 3)


def table(rollout: Rollout) -> list[dict]:
    """A row a token of one group, the correct responses first."""
    advantages = {name: VARIANTS[name](rollout)[0] for name in PANELS}
    rows = []
    for place, i in enumerate(rollout.rewards[0].argsort(descending=True, stable=True).tolist()):
        for t, character in enumerate(rollout.texts[0][i] + "$"):
            row = {"problem": rollout.problems[0].prompt.strip(), "response": place, "position": t}
            row |= {"character": character, "reward": int(rollout.rewards[0, i])}
            row["pi"] = f"{rollout.logprobs[0, i, t].exp():.4f}"
            rows.append(row | {name: f"{A[i, t]:.4f}" for name, A in advantages.items()})
    return rows


def draw(rows: list[dict]) -> None:
    plt = pyplot()
    count = 1 + max(int(row["response"]) for row in rows)
    length = 1 + max(int(row["position"]) for row in rows)
    figure, axes = plt.subplots(1, 3, figsize=(12, 2.8), sharex=True, sharey=True)
    for ax, name in zip(axes.flat, PANELS):
        A = np.full((count, length), np.nan)
        for row in rows:
            place = (int(row["response"]), int(row["position"]))
            A[place] = float(row[name])
            ax.text(*place[::-1], row["character"], ha="center", va="center", fontsize=8)
            if name == "nthr" and row["nthr"] != row["grpo"]:
                corner = (place[1] - 0.42, place[0] - 0.42)
                ax.add_patch(plt.Rectangle(corner, 0.84, 0.84, fill=False, linewidth=1.2))
        image = ax.imshow(A, cmap="RdBu", vmin=-2.6, vmax=2.6, aspect="auto")
        ax.set_title(name, fontsize=10)
        rewards = [row["reward"] for row in rows if row["position"] == "0"]
        ax.set_yticks(range(count), [f"reward {reward}" for reward in rewards], fontsize=8)
        ax.tick_params(length=0)
        ax.set_xticks([])
    figure.suptitle(f"{rows[0]['problem']}  ($ ends a response)", fontsize=10, y=1.04)
    figure.colorbar(image, ax=axes, label="advantage", pad=0.02)
    figure.savefig(ROOT / "docs" / "credit.png", dpi=100, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", type=int, default=0, help="which of the groups that fit")
    parser.add_argument("--out", default="runs", help="folder of the base model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = base_model(settings("sum", 0, Path(options.out)))
    groups = [group for group in mixed_groups(model, TASKS["sum"], 400) if fits(group)]
    write_rows(ROWS, table(groups[options.group]))
    draw(read_rows(ROWS))


if __name__ == "__main__":
    main()
