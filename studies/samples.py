"""What training brings, in samples: python -m studies.samples [--set ruler] [--seeds 1 2]

docs/rule.md has the rule, studies/ruler.py the arithmetic. An arm is a rule and flags of train.py:
grpo@width=128,prompts=32. The sets:

    ruler   grpo with 32 to 128 prompts a step
    limit   the norm of the gradient not limited, on add
    size    width 128, on mul
    ten     ten times the samples, on mul

grpo itself is that of docs/tables/compare.csv. Another processor may make other base models than
those; then nothing is written but an error. A row that is there is not run again, and a finished
run of these settings in --out is only read.
docs/tables/samples.csv has a row a run, samples-curves.csv sampled accuracy by level at every
evaluation. Without --set nothing is run: docs/tables/samples.md, docs/samples.png and docs/h11.png
are made from the CSV files alone.

docs/tables/samples-prediction.csv has the effect that was predicted for each number of prompts:
the slope of effect on ln worth between seven variants (studies.within, base models and rules
resampled), times ln(P / 64). So its interval is that of the slope alone. It was committed (013f943)
before the first run, and never changes.
"""

from itertools import product

import numpy as np

from studies import compare
from studies.common import REPLICATES, ROOT, TABLES, at, fill, interval, markdown, options, publish
from studies.common import pyplot, read_rows, shown, with_errors
from studies.ruler import DEFAULT, PROMPTS, both_axes, estimate, in_samples, means
from studies.ruler import monotone, slopes, verdict
from studies.within import EFFECTS, OTHERS, SEVEN, effects, log_worth, matrix

ROWS = TABLES / "samples.csv"
CURVES = TABLES / "samples-curves.csv"
PREDICTION = TABLES / "samples-prediction.csv"
TASKS = ("add", "mul")
FREE = "max-grad-norm=1000"
WIDE = "width=128"


def grpo_with(prompts, *flags: str) -> dict[int, str]:
    """A ruler: number of prompts -> the arm of grpo with as many, and with these flags."""
    arms = {P: "grpo@" + ",".join([*flags, f"prompts={P}"]) for P in prompts}
    return arms if flags else arms | {DEFAULT: "grpo"}


RULERS = {  # of each set; an effect is minus the arm with 64 prompts
    "ruler": grpo_with(PROMPTS),
    "limit": grpo_with((45, 64, 90), FREE),
    "size": grpo_with((32, 64, 128), WIDE),
    "ten": grpo_with((64, 640)),
}
SETS = {  # set: its tasks, its number of base models, its other arms
    "ruler": (TASKS, REPLICATES, []),
    "limit": (["add"], 6, [f"{rule}@{FREE}" for rule in ("dr_grpo", "pos_only", "half")]),
    "size": (["mul"], 6, [f"{rule}@{WIDE}" for rule in ("half", "nthr", "likelihood", "negative")]),
    "ten": (["mul"], 3, ["grpo@group-size=80"]),
}
# Of H11. Left out: rules that are biased, whose worth is another one's, or that are grpo
RULES = ["dr_grpo", "pos_only", "nthr", "compensation", "negative", "ngrpo", "half", "no_baseline"]
RULES += ["nthr_eta0", "truth", "shared_prefix", "random_sparing", "prefix_baseline"]
RULES += ["negative_0.1", "negative_0.3"]
IDEAS = [*SEVEN, "rloo", "critic", "culling", *OTHERS]  # whose effects are read on the ruler
NO_MEAN = {"add": ["critic", "culling"], "mul": []}  # but these: a mean describes no run of theirs
COLUMNS = ["mean_sampled", "mean_hard", "final_sampled", "all_fail_first", "all_fail_all"]
COLUMNS += ["grad_norm_all"]


# ---- Tables and figures, from the CSV files alone
def values(column: str, arms, task: str) -> np.ndarray:
    """(base models, arms); NaN where there is no run. grpo itself is in EFFECTS."""
    own, old = (matrix(path, column, [*arms], task=task) for path in (ROWS, EFFECTS))
    return np.where(np.isnan(own), old, own)


def there(values: np.ndarray) -> np.ndarray:
    """Without NaN."""
    return values[~np.isnan(values)]


def in_text(found: tuple, prompts=PROMPTS) -> str:
    """What in_samples gives, with the shares of draws beyond the ruler where there are any."""
    k, *beyond = found
    text = shown(k, 1, ".2f")
    for share, side, P in zip(beyond, ("below", "above"), (prompts[0], prompts[-1])):
        if share >= 0.0005:
            text += f"; {side} {P / DEFAULT:.2g} in {share:.1%}"
    return text


def set_table(name: str, task: str) -> str:
    """Each arm minus the one with 64 prompts, in points and in samples; of that one the values.

    Of the base models that have a run of every arm.
    """
    ruler = RULERS[name]
    arms = [*ruler.values(), *SETS[name][2]]
    default = arms.index(ruler[DEFAULT])
    bases = values("base_sampled", arms, task)
    whole = ~np.isnan(bases).any(1)
    if (bases != bases[:, :1])[whole].any():
        raise ValueError(f"{name}, {task}: not all arms of a seed start from one base model")
    found = {column: values(column, arms, task)[whole] for column in COLUMNS}
    passes = values("reward_minus_held_out", arms, task)[whole]
    cells = []
    for i, arm in enumerate(arms):
        cells.append([f"`{arm}`"])
        for y in found.values():
            minus, form = (0, ".1f") if i == default else (y[:, default], "+.1f")
            cells[-1].append(shown(interval(y[:, i] - minus), form=form))
        cells[-1].append(shown(interval(passes[:, i])) if i != default else "")
        if i >= len(ruler):
            y = found["mean_sampled"]
            k = in_samples(y[:, i] - y[:, default], y[:, : len(ruler)], tuple(ruler))
            cells[-1].append(in_text(k, tuple(ruler)))
    return markdown(["arm", *COLUMNS, "reward minus held-out, not a difference", "k"], cells)


def ruler_table(task: str, ruler: np.ndarray) -> str:
    """Of each number of prompts the predicted and the found effect, and this made monotone."""
    y = monotone(means(ruler))
    cells = []
    for row in at(read_rows(PREDICTION), task=task):
        i = PROMPTS.index(int(row["prompts"]))
        effect = ruler[:, i] - ruler[:, PROMPTS.index(DEFAULT)]
        predicted = tuple(float(row[name]) for name in ("predicted", "low", "high"))
        miss = "" if predicted[1] < effect.mean() < predicted[2] else "miss"
        texts = [shown(predicted), shown(interval(effect)), miss, f"{100 * y[i]:+.1f}"]
        cells.append([row["prompts"], *texts])
    return markdown(["prompts", "predicted", "found", "", "made monotone"], cells)


def idea_table(task: str, found: dict) -> str:
    """Each idea's effect in points and in samples; where no mean describes the runs, their ends."""
    cells = []
    for arm in IDEAS:
        ends = np.sort(100 * there(matrix(EFFECTS, "final_sampled", [arm], task=task)))
        text = in_text(found[arm]) if arm in found else " ".join(f"{end:.0f}" for end in ends)
        cells.append([f"`{arm}`", shown(interval(there(effects(task, [arm])))), text])
    return markdown(["", "points", "k, or the accuracy at the end of each run"], cells)


def slope_table(axes: dict) -> str:
    """H11: the slope and its verdict, the second reading, the slope without each rule."""
    cells = [["H11"], ["second reading"], *([f"without `{rule}`"] for rule in RULES)]
    for x, later, y in axes.values():
        less = [[np.delete(axis, i, 1) for axis in (x, y)] for i in range(len(RULES))]
        found = [estimate(slopes(*pair)) for pair in ((x, y), (later, y), *less)]
        for row, slope in zip(cells, found):
            row.append(shown(slope, 1, ".2f"))
        cells[0][-1] += f", {verdict(*found[0][1:])}"
    return markdown(["slope of ln k on ln worth", *axes], cells)


def draw_ideas(found: dict) -> None:
    """k of each idea with its interval. Blue: the effect's t interval is above 0; red: below."""
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(9, 5.5), sharey=True, layout="constrained")
    order = sorted(IDEAS, key=lambda arm: found["mul"][arm][0])
    for ax, task in zip(axes, TASKS):
        ax.plot([1] * len(order), order, color="grey", linewidth=0.8)  # k = 1; the order of rows
        for arm, (k, *_) in found[task].items():
            _, low, high = interval(there(effects(task, [arm])))
            color = "C0" if low > 0 else "C3" if high < 0 else "grey"
            middle, error = with_errors([k], 1)
            ax.errorbar(middle, [arm], xerr=error, fmt="o", color=color)
        ax.set(title=task, xscale="log", xlabel="trains as grpo with so many times the samples")
        ax.set_xticks([0.5, 0.7, 1, 1.4, 2], ["0.5", "0.7", "1", "1.4", "2"])
        ax.minorticks_off()
    plt.savefig(ROOT / "docs" / "samples.png", dpi=100)


def draw_h11(axes: dict) -> None:
    """k of each rule against its worth, with the line that was found and the expected one."""
    plt = pyplot()
    _, panels = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
    for ax, (task, (x, _, y)) in zip(panels, axes.items()):
        worth = np.exp(x[0])
        k, error = with_errors([estimate(np.exp(drawn)) for drawn in y.T], 1)
        ax.errorbar(worth, k, yerr=error, fmt="o", zorder=0)
        for i, (rule, *point) in enumerate(sorted(zip(RULES, worth, k), key=lambda z: z[2])):
            ax.annotate(f"  {rule}  ", point, fontsize=8, ha=("left", "right")[i % 2], va="center")
        for slope, color in ((1, "grey"), (slopes(x, y)[0], "C1")):
            line = np.array([0.4, 1.6])
            ax.plot(line, line**slope, color=color, label=f"slope {slope:.2f}")
        ax.set(title=task, xscale="log", yscale="log", xlabel="worth at the base model", ylabel="k")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks([0.5, 0.7, 1, 1.4], ["0.5", "0.7", "1", "1.4"])
            axis.set_minor_locator(plt.NullLocator())
        ax.legend(frameon=False)
    plt.savefig(ROOT / "docs" / "h11.png", dpi=100)


def with_the_ruler(rulers: dict) -> str:
    """The tables and the figure that need all runs of the ruler: task -> (base models, prompts)."""
    found = {}
    axes = {}
    text = ""
    for task, ruler in rulers.items():
        read = [arm for arm in IDEAS if arm not in NO_MEAN[task]]
        found[task] = {arm: in_samples(effects(task, [arm])[:, 0], ruler) for arm in read}
        worth = log_worth(task, RULES)
        mean_worth = (worth + log_worth(task, RULES, step=100)) / 2
        pairs = [both_axes(x, effects(task, RULES), ruler) for x in (worth, mean_worth)]
        axes[task] = (pairs[0][0], pairs[1][0], pairs[0][1])
        text += f"\n## {task}: the ruler\n\n{ruler_table(task, ruler)}\n"
        text += f"\n## {task}: effects in samples\n\n{idea_table(task, found[task])}\n"
    draw_ideas(found)
    draw_h11(axes)
    return text + f"\n## H11\n\n{slope_table(axes)}\n"


def main() -> None:
    parser = options(__doc__, range(0), TASKS)
    parser.add_argument("--set", choices=SETS, help="run of it what is not there")
    args = parser.parse_args()
    if args.set:
        tasks, replicates, others = SETS[args.set]
        arms = [*RULERS[args.set].values(), *others]
        if "grpo" in arms:
            arms.remove("grpo")
        for path, yields in ((ROWS, compare.measure), (CURVES, compare.curves)):
            fill(path, yields, compare.missing(path, args, arms, tasks, replicates), args.jobs)
    text = "# Effects in samples. studies/samples.py says how. All columns but k times 100\n"
    for name, task in product(SETS, TASKS):
        if at(read_rows(ROWS), task=task, arm=[*RULERS[name].values()][-1]):
            text += f"\n## {task}: {name}\n\n{set_table(name, task)}\n"
    rulers = {task: values("mean_sampled", RULERS["ruler"].values(), task) for task in TASKS}
    if not np.isnan([*rulers.values()]).any():
        text += with_the_ruler(rulers)
    publish(ROWS, text)


if __name__ == "__main__":
    main()
