"""Three pictures of the texts: python -m studies.pictures

docs/runs.png: accuracy at the end of each run of `add` under grpo and under two variants whose mean
describes no run. From docs/tables/compare.csv.

docs/averaging.png: the signal of the mean of N draws, for the rules of docs/gradients.md's bandit.
With m the mean of g, n = E|g - m|^2, and u the direction of grad J, it is <m, u>^2 / (|m|^2 + n/N).

docs/arrows.png: single rollouts at base model 1 of `mul`. An arrow is the gradient of one rollout
(studies.gradients) over the root of its rule's mean |g|^2. To the right is its part along grad J.
Across is the length of the rest, up if it goes with the rest of the others, else down. The thick
arrow is the mean. Five minutes.
"""

import numpy as np
import torch

import train
from advantages import rloo
from grpo import answer_likelihood
from studies.common import TABLES, by_seed, picture, read_rows, settings
from studies.gradients import ARMS, SEED_A, SEED_B, critics, sampled, vectors

PI = np.array([0.2, 0.3, 0.5])
RULES = {"r, no baseline": [1, 0, 0], "r - 0.2": [0.8, -0.2, -0.2], "r + 1 for arm 2": [1, 1, 0]}
DRAWN = 40  # rollouts of a rule


def draw_runs(ax) -> None:
    rows = read_rows(TABLES / "compare.csv")
    for arm in ("critic", "culling", "grpo"):
        ends = 100 * np.array([*by_seed(rows, "final_sampled", task="add", arm=arm).values()])
        ax.plot(ends, [arm] * len(ends), "C0o", alpha=0.5)
    ax.set(xlabel="sampled accuracy at the end of a run of add, %", xlim=(-3, 103), ymargin=0.3)


def draw_averaging(ax) -> None:
    N = 2 ** np.arange(11)
    pushes = np.eye(3) - PI  # row a: the gradient of ln pi(a)
    uphill = pushes[0] / np.linalg.norm(pushes[0])
    for rule, A in RULES.items():
        g = np.array(A)[:, None] * pushes
        m = PI @ g
        noise = PI @ ((g - m) ** 2).sum(1)
        ax.plot(N, (m @ uphill) ** 2 / (m @ m + noise / N), label=rule)
    ax.set(xlabel="draws averaged, N", ylabel="signal", xscale="log", ylim=(0, 1))
    ax.legend(frameon=False)


def draw_arrows(axes, args) -> None:
    model = train.base_model(args)
    v = vectors(model, sampled(model, args.task, SEED_B, 4 * DRAWN), (rloo, "constant")).mean(0)
    v /= v.norm()
    arms = ARMS | critics(args, model)
    thin = {"arrowstyle": "->", "color": "C0", "alpha": 0.4}
    for ax, arm in zip(axes, ("grpo", "likelihood", "critic_160")):
        rollouts = [*sampled(model, args.task, SEED_A, DRAWN)]
        for rollout in rollouts:
            rollout.answer_likelihood = answer_likelihood(model, rollout)
        g = vectors(model, rollouts, arms[arm])
        g /= g.square().sum(1).mean().sqrt()
        rest = g - (g @ v)[:, None] * v
        others = rest.sum(0) - rest  # a rollout's own noise does not decide what is up
        across = rest.norm(dim=1) * (rest * others).sum(1).sign()
        for tip in torch.stack([g @ v, across], dim=1):
            ax.annotate("", tip, (0, 0), arrowprops=thin)
        square = (rest * others).sum(1).mean() / (DRAWN - 1)  # |mean|^2 across, without its noise
        mean = (g.mean(0) @ v, square.clamp_min(0).sqrt())
        ax.annotate("", mean, (0, 0), arrowprops={"arrowstyle": "->", "linewidth": 2.5})
        ax.set(title=arm.split("_")[0], xlim=(-0.1, 1), ylim=(-1.3, 1.3))
        ax.set(xlabel="along grad J", aspect="equal")
    axes[0].set_ylabel("across")


def main() -> None:
    torch.set_num_threads(1)
    with picture("runs.png", figsize=(6, 1.8)) as ax:
        draw_runs(ax)
    with picture("averaging.png", figsize=(5, 3)) as ax:
        draw_averaging(ax)
    with picture("arrows.png", 3, figsize=(7, 3.6), sharey=True) as axes:
        draw_arrows(axes, settings("mul", 1, "runs/studies"))


if __name__ == "__main__":
    main()
