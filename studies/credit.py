"""Who gets the credit? python -m studies.credit

One group of the base model of `add`: a row a response, a cell a token, coloured by the advantage
that grpo, compensation and nthr give it. Crossed out is what differs from the solution, in the
steps or in the answer; a frame marks what nthr spares. The group is the first mixed one with four
digits and three correct responses.

docs/tables/credit.csv has a row a token; docs/credit.png is made from it alone.
"""

import torch

import train
from advantages import VARIANTS
from grpo import Rollout
from studies.common import ROOT, TABLES, mixed_groups, pyplot, read_rows, write_rows
from tasks import ADD

ROWS = TABLES / "credit.csv"
PANELS = ("grpo", "compensation", "nthr")


def table(group: Rollout) -> list[dict]:
    """A row a token of one group, the correct responses first."""
    problem = group.problems[0]
    head = {"prompt": problem.prompt.replace(" ", ""), "solution": problem.solution}
    numbers = {"pi": group.logprobs.exp()} | {name: VARIANTS[name](group) for name in PANELS}
    rows = []
    for place, i in enumerate(group.rewards[0].argsort(descending=True, stable=True).tolist()):
        for t, character in enumerate((group.texts[0][i] + "$")[: group.mask[0, i].sum()]):
            row = head | {"response": place, "reward": int(group.rewards[0, i]), "position": t}
            row["character"] = character
            rows.append(row | {name: f"{x[0, i, t]:.4f}" for name, x in numbers.items()})
    return rows


def draw(rows: list[dict]) -> None:
    figure, axes = pyplot().subplots(1, 3, figsize=(12, 2.6), sharey=True, layout="constrained")
    x = [int(row["position"]) for row in rows]
    y = [int(row["response"]) for row in rows]
    rewards = [row["reward"] for row in rows if row["position"] == "0"]
    for ax, name in zip(axes, PANELS):
        A = [float(row[name]) for row in rows]
        frames = ["k" if name == "nthr" and row[name] != row["grpo"] else "none" for row in rows]
        image = ax.scatter(x, y, 130, A, marker="s", cmap="RdBu", clim=(-3, 3), edgecolors=frames)
        for t, i, row in zip(x, y, rows):
            ax.text(t, i, row["character"], ha="center", va="center", fontsize=8)
            if not (row["solution"] + "$").startswith(row["character"], t):
                ax.plot(t, i, "kx", markersize=9, alpha=0.4)
        ax.set(title=name, xticks=[], yticks=range(len(rewards)), yticklabels=rewards)
    axes[0].set(ylabel="reward", ylim=(len(rewards) - 0.5, -0.5))  # the axes share y
    figure.suptitle(rows[0]["prompt"] + rows[0]["solution"])
    figure.colorbar(image, ax=axes, label="advantage")
    figure.savefig(ROOT / "docs" / "credit.png", dpi=100)


def main() -> None:
    torch.set_num_threads(1)
    groups = mixed_groups(train.base_model(train.parse_arguments(["--device", "cpu"])), ADD, 200)
    chosen = next(x for x in groups if x.rewards.sum() == 3 and x.problems[0].level == 4)
    write_rows(ROWS, table(chosen))
    draw(read_rows(ROWS))


if __name__ == "__main__":
    main()
