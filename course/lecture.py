"""What the two lectures load, draw and print with; the ideas stand in the notebooks beside it.

A notebook puts the repository on sys.path before it imports this file. Every line of a picture has
its name beside it, and a variant has one colour in all pictures.
"""

import csv
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import train
from advantages import VARIANTS
from grpo import Rollout, sample_rollout
from tasks import ADD

plt.rcParams.update({"figure.dpi": 72, "axes.spines.top": False, "axes.spines.right": False})
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#888888"
COLOURS = {"grpo": "black", "verifree": BLUE, "likelihood": ORANGE, "nthr": GREEN}
COLOURS |= {"half": "#CC79A7", "reinforce": "#881111", "critic": "#56B4E9"}


# ---- Both lectures
def numbers(x):
    """The numbers of a tensor as one line of text."""
    return "  ".join(f"{value:+.2f}" for value in x.flatten().tolist())


def generator(seed):
    """A source of random numbers that begins anew. So a cell draws the same whenever it runs."""
    return torch.Generator().manual_seed(seed)


def load(task, name):
    """A model whose weights are kept in course/weights, as 16-bit numbers."""
    model = train.new_model(train.parse_arguments(["--task", task]))
    weights = torch.load(f"weights/{name}.pt", weights_only=True)
    model.load_state_dict({key: w.float() for key, w in weights.items()})
    return model


def sample(model, task, problems, G=8, **options):
    """A rollout; the same whenever it is sampled from the same model."""
    return sample_rollout(model, task, problems, G, generator=generator(0), **options)


def most_mixed(rollout):
    """The number of the group whose share of correct responses is nearest to one half."""
    return int((rollout.rewards.mean(1) - 0.5).abs().argmin())


def characters(rollout):
    """Which characters of the reasoning are the solution's, and which are not: masks (P, G, T)."""
    correct = torch.zeros_like(rollout.mask)
    incorrect = torch.zeros_like(rollout.mask)
    for p, (problem, texts) in enumerate(zip(rollout.problems, rollout.texts)):
        true = problem.solution.split("#")[0]
        for i, text in enumerate(texts):
            for t, (x, y) in enumerate(zip(text.split("#")[0], true)):
                correct[p, i, t] = x == y
                incorrect[p, i, t] = x != y
    return correct, incorrect


def panels(columns, rows=1, width=3.4, height=2.5, **options):
    """Empty pictures side by side."""
    size = (columns * width, rows * height)
    return plt.subplots(rows, columns, figsize=size, layout="constrained", **options)[1]


def name_lines(ax, names, gap=0.09):
    """Writes each line's name beside its right end; moves names up where they would overlap."""
    ax.autoscale_view()  # else the limits are found when it is drawn
    to_axes = ax.transData + ax.transAxes.inverted()  # from data to shares of the picture
    ends = [to_axes.transform(line.get_xydata()[-1])[1] for line in ax.lines]
    free = -torch.inf
    for height, name, line in sorted(zip(ends, names, ax.lines), key=lambda end: end[0]):
        free = max(height, free)
        place = {"xy": (line.get_xdata()[-1], free), "xycoords": ax.get_xaxis_transform()}
        place |= {"xytext": (4, 0), "textcoords": "offset points", "va": "center"}
        ax.annotate(name, **place, color=line.get_color(), annotation_clip=False)
        free += gap


def draw_group(ax, rollout, m, variant):
    """Group m: a row is a response, a cell a token, blue is pushed up, red is pushed down.

    A framed token has another advantage than under grpo. A character of the reasoning that is not
    the solution's is crossed out.
    """
    A = VARIANTS[variant](rollout).A[m]  # (G, T)
    plain = VARIANTS["grpo"](rollout).A[m]
    ax.imshow(A.where(rollout.mask[m], torch.nan), cmap="RdBu", vmin=-2.5, vmax=2.5)
    true = rollout.problems[m].solution
    for i, text in enumerate(rollout.texts[m]):
        for t, character in enumerate(text + "$"):
            ax.text(t, i, character, ha="center", va="center", fontsize=9)
            if t < true.index("#") and character != true[t]:
                ax.plot([t - 0.4, t + 0.4], [i + 0.4, i - 0.4], color="black", linewidth=1)
            if A[i, t] != plain[i, t]:
                ax.add_patch(plt.Rectangle((t - 0.43, i - 0.43), 0.86, 0.86, fill=False, lw=1.5))
    rows = [f"reward {r:.0f}, A {a:+.2f}" for r, a in zip(rollout.rewards[m], plain[:, 0])]
    ax.set_yticks(range(len(rows)), rows, fontsize=9)
    ax.set(title=variant, xticks=[], xlim=(-0.5, rollout.mask[m].sum(-1).max() - 0.5))
    ax.spines[:].set_visible(False)


def draw_rewards(curves, steps=40):
    """Mean reward over the training steps so far; curves: variant -> its numbers. A figure."""
    figure, ax = plt.subplots(figsize=(5, 2.6), layout="constrained")
    for variant, rewards in curves.items():
        ax.plot(range(1, len(rewards) + 1), rewards, color=COLOURS[variant], linewidth=2)
    ax.set(xlabel="training step", ylabel="mean reward", xlim=(1, steps), ylim=(0, 0.5))
    name_lines(ax, curves)
    return figure


# ---- The first lecture
def draw_ascent(exact, sampled):
    """Left pi along the exact gradient, exact (steps, 3); right J, and of sampled runs in blue."""
    left, right = panels(2, sharey=True)
    for arm, colour in enumerate((BLUE, ORANGE, GREEN)):
        left.plot(exact[:, arm], color=colour)
    name_lines(left, ["arm 1", "arm 2", "arm 3"])
    left.set(title="along grad J", xlabel="training step", ylabel="probability")
    for path in sampled:
        right.plot(path[:, 0], color=BLUE, alpha=0.5)
    right.plot(exact[:, 0], color="black", linewidth=2)
    right.annotate("grad J", (20, exact[20, 0]), (28, 0.35), arrowprops={"arrowstyle": "-"})
    right.annotate("eight pulls", (9, sampled[0][9, 0]), (1, 0.9), arrowprops={"arrowstyle": "-"})
    right.set(title="J", xlabel="training step", ylabel="expected reward")


def draw_noise(games, truth):
    """games: name -> first number of many estimates (N,), and pi of arm 1 in some runs."""
    grid = panels(3, 2, width=2.9, height=2.0, sharex="row", sharey="row")
    for (name, (estimates, paths)), (top, bottom) in zip(games.items(), grid.T):
        top.hist(estimates, bins=25, range=(-0.5, 1.0), color=BLUE)
        top.axvline(truth, color="black")
        top.set(title=name, xlabel="first number of g", yticks=[])
        top.text(0.45, top.get_ylim()[1] * 0.8, f"spread {estimates.std():.2f}")
        for path in paths:
            bottom.plot(path[:, 0], color=BLUE, alpha=0.4)
        bottom.set(xlabel="training step")
    grid[0, 0].set_ylabel("number of estimates")
    grid[1, 0].set_ylabel("pi of arm 1")


def draw_responses(shares, names):
    """The probabilities of four responses along the steps, (steps, 4)."""
    ax = panels(1, width=4.5)
    ax.plot(shares)
    ax.set(xlabel="training step", ylabel="probability of the response")
    name_lines(ax, names)


def draw_clip():
    """min(ratio A, clip(ratio) A) against the ratio, for A = 1 and for A = -1."""
    ratios = torch.linspace(0.4, 1.6, 200)
    for ax, sign in zip(panels(2, width=3.3), (1.0, -1.0)):
        free = ratios * sign
        clipped = ratios.clamp(0.8, 1.2) * sign
        ax.plot(ratios, free, "--", color=GREY)
        ax.plot(ratios, torch.minimum(free, clipped), color=BLUE, linewidth=2.5)
        name_lines(ax, ["ratio A", "min"])
        ax.axvline(1, color="black", linewidth=0.5)
        ax.set(title=f"A = {sign:+.0f}", xlabel="ratio", ylabel="what shall grow")


def draw_ratios(runs, names):
    """runs: heading -> ratios of some tokens along the optimiser steps, a list of tensors."""
    for ax, (heading, ratios) in zip(panels(2, width=3.7, height=2.8, sharey=True), runs.items()):
        ax.plot(torch.stack(ratios))
        ax.axhspan(0.8, 1.2, color="grey", alpha=0.3)
        ax.set(title=heading, xlabel="optimiser step", ylabel="ratio", yscale="log")
        ax.set_yticks([0.1, 0.2, 0.5, 1, 2, 5], ["0.1", "0.2", "0.5", "1", "2", "5"])
        ax.minorticks_off()
        name_lines(ax, names)


# ---- The second lecture
def two_tokens(first, after_b):
    """A rollout of ba, which is correct, and bb; first, after_b: probabilities of a and of b.

    h says which pair of logits a token used: (1, 0) for the first token, (0, 1) for the second.
    """
    return Rollout(
        tokens=torch.tensor([[[1, 0], [1, 1]]]),
        mask=torch.ones(1, 2, 2, dtype=torch.bool),
        rewards=torch.tensor([[1.0, 0.0]]),
        logprobs=None,
        probs=torch.tensor([first, after_b]).expand(1, 2, 2, 2),
        hidden=torch.eye(2).expand(1, 2, 2, 2),
    )


def draw_arrows(rules, uphill, sideways):
    """rules: name -> estimates (N, 3) and their mean (3,); uphill and sideways: unit vectors.

    A thin arrow is one estimate, the thick one the mean of all.
    """
    axes = panels(len(rules), width=2.7, height=2.7, sharey=True)
    for ax, (name, (estimates, mean)) in zip(axes, rules.items()):
        plane = torch.stack([uphill, sideways], dim=1)  # (3, 2)
        for tip in (estimates @ plane).tolist():
            arrow = {"arrowstyle": "->", "color": BLUE, "alpha": 0.35}
            ax.annotate("", tip, (0, 0), arrowprops=arrow)
        ax.annotate("", (mean @ plane).tolist(), (0, 0), arrowprops={"width": 2, "color": "black"})
        ax.set(title=name, xlim=(-0.25, 0.65), ylim=(-0.3, 0.6), xlabel="along grad J")
    axes[0].set_ylabel("across")


def draw_estimates(rules, truth):
    """rules: name -> estimates (N, 2) and their mean (2,): pushes on a reasoning and an answer."""
    axes = panels(len(rules), width=2.8, height=2.7, sharex=True, sharey=True)
    for ax, (name, (estimates, mean)) in zip(axes, rules.items()):
        ax.scatter(*estimates.T, s=6, color=BLUE, alpha=0.4)
        ax.scatter(*mean, s=90, facecolor="white", edgecolor="black", zorder=2)
        ax.scatter(*truth, s=60, marker="x", color="black", zorder=3)
        ax.set(title=name, xlabel="push on reasoning a")
    axes[0].set_ylabel("push on answer a after a")
    axes[0].text(0.03, 0.03, "x grad J\no mean", transform=axes[0].transAxes)


def continued(model, task, problems, given):
    """What the model writes, always the likeliest token, after prompt and given: a text each."""
    written = dict.fromkeys(problems, "")
    for length in {len(text) for text in given}:  # of one length, for prompts have one width
        part = [(p, text) for p, text in zip(problems, given) if len(text) == length]
        begun = [p._replace(prompt=p.prompt + text) for p, text in part]
        left = len(task.longest.solution) + 1 - length
        rollout = sample(model, task, begun, G=1, temperature=0, max_new_tokens=left)
        for (p, text), (rest,) in zip(part, rollout.texts):
            written[p] = text + rest
    return [*written.values()]


def change_a_digit(model, problems, place):
    """Change a digit of the true reasoning of problems of add, and let the model go on.

    place 0: the carry of a step in the middle, where the text then ends; 1: its written digit, and
    the text has all other steps too. Three lists, an entry a problem: the text given; all of the
    text, with what the model wrote; whether the next step, or the answer, follows the change.
    """
    given, follows = [], []
    steps_of = [problem.solution.split("#")[0].split(",") for problem in problems]
    middles = [(problem.level - 1) // 2 for problem in problems]  # so never the last step
    for steps, k in zip(steps_of, middles):
        carry, written = int(steps[k][0]), int(steps[k][1])
        if place == 0:
            given.append(",".join([*steps[:k], f"{1 - carry}{written}", ""]))
        else:
            given.append(",".join([*steps[:k], f"{carry}{(written + 1) % 10}", *steps[k + 1 :]]))
    texts = continued(model, ADD, problems, given)
    for problem, text, steps, k in zip(problems, texts, steps_of, middles):
        more = 1 - 2 * int(steps[k][0])  # a carry too many, or one too few
        next_step = f"{int(steps[k + 1]) + more:02}"
        of_carry = text.split(",")[k + 1][:2] == next_step
        follows.append(of_carry if place == 0 else ADD.coherent(problem, text))
    return given, texts, follows


def read_curves(path, task, variant):
    """seed -> curve (training step -> accuracy) of a study's runs of one variant; {} if none.

    A row is a run, a column whose name is a number a training step. Learning rates were chosen on
    seeds 1 to 3, so these are left out. Of several the one with most runs counts, then the better.
    """
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    found = {}
    for row in csv.DictReader(lines):
        of_variant = row["task"] == task and row["variant"] == variant and not row["flags"]
        if of_variant and int(row["seed"]) > 3:
            curve = {int(name): float(x) for name, x in row.items() if x and name.isdigit()}
            found.setdefault(row["lr"], {})[row["seed"]] = curve

    def order(runs):
        return len(runs), sum(sum(curve.values()) for curve in runs.values())

    return max(found.values(), key=order, default={})


def mean_curve(curves, seeds):
    """Training steps, and the mean accuracy of these seeds, in %."""
    steps = sorted(set.intersection(*(set(curves[seed]) for seed in seeds)))
    return steps, [100 * sum(curves[seed][step] for seed in seeds) / len(seeds) for step in steps]


def draw_curves(path, variants, tasks=("add", "mul")):
    """Small pictures, a variant each beside grpo, of the base models that both have; a row a task.

    False if there is no such table.
    """
    if not all(read_curves(path, task, "grpo") for task in tasks):
        return False
    size = {"width": 1.7, "height": 1.8, "sharex": True, "sharey": "row"}
    grid = panels(len(variants), len(tasks), **size)
    for task, axes in zip(tasks, grid):
        theirs = read_curves(path, task, "grpo")
        for variant, ax in zip(variants, axes):
            ours = read_curves(path, task, variant)
            both = ours.keys() & theirs.keys()
            if both:
                ax.plot(*mean_curve(theirs, both), color="black", linewidth=1)
                ax.plot(*mean_curve(ours, both), color=COLOURS[variant], linewidth=2.5)
            ax.set(title=f"{variant}, {task}", ylim=(0, 100))
        axes[0].set_ylabel("accuracy, %")
        axes[0].text(0.97, 0.05, "thin: grpo", transform=axes[0].transAxes, ha="right")
    for ax in grid[-1]:
        ax.set_xlabel("training step")
    return True
