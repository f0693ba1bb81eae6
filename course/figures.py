"""The figures of the two lectures, made for a projector: nine inches wide, letters of 14 points.

Blue (UP) is pushed up, orange (DOWN) is pushed down, and what is not pushed is nearly white. In the
second lecture each figure has a title that says what one sees.
"""

import matplotlib.pyplot as plt
import torch
from IPython.display import display

from studies.group import draw
from studies.pictures import DOWN, NEUTRAL, UP, name_lines

plt.rcParams.update({"figure.dpi": 144, "font.size": 14, "axes.titlesize": 14})
plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False})
GREEN = "#00795A"  # a third line


# ---- Both lectures
def panels(columns=1, rows=1, height=3.6, **more):
    """Empty pictures side by side, nine inches in all; each row is `height` inches high."""
    return plt.subplots(rows, columns, figsize=(9, rows * height), layout="constrained", **more)[1]


def show(alt):
    """Shows what was drawn; alt says it in words."""
    display(plt.gcf(), metadata={"image/png": {"alt": alt}})
    plt.close()


def group(rollout, m, variant, title=None):
    """Group m under a variant; studies/group.py says what is shown. title: what one sees."""
    draw(panels(height=4.6), rollout, m, variant, letters=18)
    if title:
        plt.suptitle(title)
    shares = [f"{text} has reward {r:.0f}" for text, r in zip(rollout.texts[m], rollout.rewards[m])]
    show(f"Eight responses as rows of tokens under {variant}: {'; '.join(shares)}.")


def named_lines(ax, x, curves, names, colours):
    """Draws curves, with the name of each where it ends; the limits of the axes are set already."""
    for curve, colour in zip(curves, colours):
        ax.plot(x, curve, color=colour, linewidth=2.5)
    name_lines(ax, names, 0.1)


# ---- The first lecture
def ascent(exact, sampled):
    """J along the exact gradient in black, and along sampled ones. A path of pi is (steps, 3)."""
    ax = panels()
    for path in sampled:
        ax.plot(path[:, 0], color=UP, alpha=0.6)  # J is the probability of arm 1
    ax.plot(exact[:, 0], color="black", linewidth=3)
    ax.text(20, 0.3, "black: the exact gradient\nblue: eight pulls a step")
    ax.set(xlabel="training step", ylabel="expected reward J", ylim=(0, 1.02))
    show("J rises to nearly 1. Runs with eight pulls a step scatter around the exact curve.")


def noise(games, truth):
    """games: name -> first number of many estimates (N,), and pi of some runs (steps, 3)."""
    grid = panels(3, 2, height=2.7, sharex="row", sharey="row")
    for (name, (estimates, paths)), (top, bottom) in zip(games.items(), grid.T):
        values, counts = estimates.round(decimals=4).unique(return_counts=True)
        top.bar(values, counts, width=0.05, color=UP)
        top.axvline(truth, color="black", linewidth=2)
        top.set(title=f"{name}\nspread {estimates.std():.2f}", xlabel="first number of g")
        top.set(yticks=[], xticks=[0, 0.5, 1])
        for path in paths:
            bottom.plot(path[:, 0], color=UP, alpha=0.5)
        bottom.set(xlabel="training step", ylim=(0, 1))
    grid[0, 0].set_ylabel("how often")
    grid[1, 0].set_ylabel("probability\nof arm 1")
    show(
        "Three histograms of the first number of g, with one mean and three spreads. Below, the "
        "probability of arm 1 in twenty runs: the wider the histogram, the further apart the runs."
    )


def responses(shares, names):
    """The probabilities of the four responses along the steps, (steps, 4)."""
    ax = panels()
    ax.set(xlabel="training step", ylabel="probability of a response", ylim=(0, 1))
    named_lines(ax, range(51), shares.T, names, (NEUTRAL, GREEN, UP, DOWN))
    show("The probability of ba rises to nearly 1. That of bb rises before it falls.")


def reuse(J, plain, weighted):
    """J (51,) of a policy that moves; its estimates from old samples, (N,) and (51, N)."""
    ax = panels()
    for mean in plain:
        ax.axhline(mean, color=DOWN, alpha=0.5)
    ax.plot(weighted, color=UP, alpha=0.6)
    ax.plot(J, color="black", linewidth=3)
    ax.set(xlabel="steps since sampling", ylabel="estimate of J", xlim=(0, 50), ylim=(0, 2))
    ax.text(1, 1.6, "black: J\nblue: with the ratio\norange: without it")
    show(
        "J rises. Estimates without the ratio stay where J began. Estimates with the ratio follow "
        "J, and scatter more and more."
    )


def clip():
    """ratio A, clip(ratio) A and the smaller one against the ratio, for A = 1 and for A = -1."""
    x = torch.linspace(0.4, 1.6, 200)
    corners = ("lower right", "lower left")  # where no line is
    for ax, sign, colour, corner in zip(panels(2, height=4.2), (1, -1), (UP, DOWN), corners):
        terms = torch.stack([x, x.clamp(0.8, 1.2)]) * sign
        ax.axvspan(0.8, 1.2, color="grey", alpha=0.2, linewidth=0)
        ax.plot(x, terms.amin(0), color=colour, linewidth=7, alpha=0.6, label="minimum")
        ax.plot(x, terms[0], "--", color="black", linewidth=2, label="ratio A")
        ax.plot(x, terms[1], color="black", linewidth=2, label="clip(ratio) A")
        ax.set(title=f"A = {sign:+}", xlabel="ratio of a token", ylabel="objective")
        ax.set_xticks([0.4, 0.8, 1.2, 1.6])
        ax.legend(frameon=False, loc=corner, handlelength=1.5, borderaxespad=0)
    show(
        "The objective of a token against its ratio. For A = +1 the minimum rises with the ratio "
        "up to 1.2 and is flat above. For A = -1 it is flat below 0.8 and falls above."
    )


# ---- The second lecture
def verdicts(steps, claimed, true):
    """What a run reports of its responses, and what share of the same responses is correct."""
    ax = panels()
    ax.set(xlabel="training step", ylabel="share of the responses", ylim=(0, 1))
    plt.suptitle("In the end the run reports far more than is correct")
    named_lines(ax, steps, (claimed, true), ("what it reports", "truly correct"), ("black", GREEN))
    show("The share that the run reports rises. The share of correct responses rises and falls.")
