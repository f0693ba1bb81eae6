"""How hard should incorrect responses be pushed down? python -m studies.dose [--jobs 2]

grpo pushes incorrect responses down with the weight w = 1, half with 1/2, and pos_only with 0:

    A_i = A_i of grpo if that is positive, else w times it

We train with five weights on `mul`, with a norm limit of 1, from base models 16 to 20 and 26. The
best learning rate may depend on the weight. So each weight has two or four of them, and for each
base model we take the one whose average accuracy is best on the other five base models.

Declared before the first run: the heading "pushing incorrect responses down less helps" stays if
the average accuracy of weight 1/2 is above that of weight 1, with an interval above 0. The weights
have an order if the means of 1/2 and 1/4 are above those of 1 and 2.

results/dose.csv has one row for each run, and a run that has a row is not made again. The table and
results/dose.png are made once all are there. The numbers are means over base models with 95 % t
intervals: sampled accuracy as a mean over training, sampled and greedy accuracy at the end, and the
entropy of the policy in nats, as a mean over training and over its last 25 steps.
"""

from itertools import product

import numpy as np

from studies.common import TABLES, by_seed, complete_singly, interval, markdown, matching
from studies.common import options, paired, publish, read_rows, without_rows
from studies.compare import row_of
from studies.pictures import DOWN, EXAMPLES, UP, WIDTH, picture
from studies.protocol import DOSES, LIMITS
from studies.runs import Run, folder_of

ROWS = TABLES / "dose.csv"
SEEDS = (16, 17, 18, 19, 20, 26)
RATES = dict.fromkeys(DOSES, (2.1e-4, 3e-4))  # of a weight
RATES |= dict.fromkeys((1, 0.5), (1.5e-4, 2.1e-4, 3e-4, 4.2e-4))
RUNS = [(seed, weight, lr) for seed, weight in product(SEEDS, DOSES) for lr in RATES[weight]]
COLUMNS = ("mean_sampled", "final_sampled", "final_greedy", "entropy", "final_entropy")
SHOWN = {"mean_sampled": "average,\nin training", "final_greedy": "greedy,\nat the end"}


def measure(seed: int, weight: float, lr: float, out: str) -> dict:
    """The row of a run, which is made if it is not there."""
    folder = folder_of(Run("mul", DOSES[weight], lr, LIMITS["1"], seed), out)
    entropy = [row["entropy"] for row in read_rows(folder / "metrics.csv") if row["step"] > 0]
    found = row_of(folder) | {"entropy": np.mean(entropy), "final_entropy": np.mean(entropy[-25:])}
    about = {"task": "mul", "seed": seed, "weight": weight, "lr": lr}
    return about | {x: found[x] for x in COLUMNS}


def at_best_rates(rows: list[dict]) -> list[dict]:
    """A row for each weight and base model: at the rate that is best on the other base models."""
    best = []
    for weight, seed in product(DOSES, SEEDS):
        others = [row for row in matching(rows, weight=weight) if row["seed"] != seed]
        sums = {x: sum(by_seed(others, "mean_sampled", lr=x).values()) for x in RATES[weight]}
        best += matching(rows, weight=weight, seed=seed, lr=max(sums, key=sums.get))
    return best


def above_1(best: list[dict], weight: float, column: str) -> np.ndarray:
    """The differences of a weight from weight 1, one for each base model."""
    return np.subtract(*paired(best, column, {"weight": weight}, {"weight": 1}))


def line(name: str, values, sign: str = "") -> list[str]:
    """A line of the table: accuracies in %, entropies in nats; values(column): of base models."""
    texts = {x: interval(values(x)) for x in COLUMNS}
    texts |= {x: f"{texts[x].times(100):{sign}.1f}" for x in COLUMNS[:3]}
    return [name, *(f"{text:{sign}.3f}" if x in COLUMNS[3:] else text for x, text in texts.items())]


def page(best: list[dict]) -> str:
    """The table of each weight and of its difference from weight 1, and what was declared."""
    used = {w: sorted({row["lr"] for row in matching(best, weight=w)}) for w in DOSES}
    lines = [
        line(f"{w} at {used[w]}", lambda x: by_seed(best, x, weight=w).values()) for w in DOSES
    ]
    lines += [line(f"{w} minus 1", lambda x: above_1(best, w, x), "+") for w in DOSES if w != 1]
    means = {w: np.mean([*by_seed(best, "mean_sampled", weight=w).values()]) for w in DOSES}
    ordered = min(means[0.5], means[0.25]) > max(means[1], means[2])
    stays = interval(above_1(best, 0.5, "mean_sampled")).low > 0
    said = f"The heading {'stays' if stays else 'does not stay'}, and the weights "
    said += f"{'have an' if ordered else 'do not have this'} order."
    about = (
        "Points above weight 1. Circles are the average, and squares the greedy accuracy at the end"
    )
    shown = f"![{about}](dose.png)"
    return f"# {__doc__}\n{shown}\n\n{markdown(['weight', *COLUMNS], lines)}\n\n{said}\n"


def draw(best: list[dict]) -> None:
    """Each weight minus weight 1: on average (circles), and greedily at the end (squares)."""
    with picture(TABLES / "dose.png", figsize=(WIDTH, 3.2)) as ax:
        ax.axhline(0, color="black", linewidth=1)
        for marker, (column, name) in zip("os", SHOWN.items()):
            y, low, high = np.transpose([interval(above_1(best, w, column)) for w in DOSES]) * 100
            x = np.arange(len(DOSES)) + (0.07 if marker == "s" else -0.07)
            colours = [DOWN if value < 0 else UP for value in y]
            ax.vlines(x, low, high, color=colours, linewidth=2)
            ax.scatter(x, y, c=colours, marker=marker)
            ax.text(4.2, y[-1], name, va="center")
        ax.set_title(f"Pushing incorrect responses down less helps\n{EXAMPLES['mul']}")
        ax.set(xlabel="weight of incorrect responses (bars: 95 % intervals)", yticks=[-5, 0, 5, 10])
        ax.set_ylabel("points of accuracy above grpo")
        ax.set_xticks(range(len(DOSES)), ["2", "1 (grpo)", "1/2 (half)", "1/4", "0 (pos_only)"])


if __name__ == "__main__":
    rows = complete_singly(ROWS, measure, RUNS, options(__doc__, SEEDS, ("mul",)).parse_args())
    if without_rows(ROWS, RUNS, 1):
        raise SystemExit("dose.md and dose.png need all rows, so they stay as they were.")
    best = at_best_rates(rows)
    publish(ROWS, page(best))
    draw(best)
