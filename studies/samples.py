"""What training brings, in samples: python -m studies.samples [--set ruler] [--seeds 1 2]

docs/rule.md has the rule, studies/ruler.py the arithmetic. An arm is a rule and flags of train.py:
grpo@width=128,prompts=32. The sets:

    ruler   grpo with 32 to 128 prompts a step
    limit   the norm of the gradient not limited, on add
    size    width 128, on mul
    ten     ten times the samples, on mul

Below a set with a flag the tables have the same arms without it, from the same seeds.
grpo itself is that of docs/tables/compare.csv. Another processor may make other base models than
those; then rows are added, but the tables end in an error (docs/files.md has a remedy). A row that
is there is not run again, and a finished run of these settings in --out is only read.
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
from studies.common import REPLICATES, SEEDS, TABLES, at, fill, interval, markdown, options
from studies.common import picture, publish, read_rows, shown
from studies.ruler import DEFAULT, PROMPTS, both_axes, estimate, in_samples, means
from studies.ruler import monotone, slopes, verdict
from studies.within import EFFECTS, OTHERS, SEVEN, beside, effects, log_worth, matrix
from tasks import MUL

ROWS = TABLES / "samples.csv"
CURVES = TABLES / "samples-curves.csv"
PREDICTION = TABLES / "samples-prediction.csv"
TASKS = ("add", "mul")
SETS = {  # set: its tasks, number of base models, flag, numbers of prompts of grpo, other arms
    "ruler": (TASKS, REPLICATES, "", PROMPTS, []),
    "limit": (["add"], 6, "max-grad-norm=1000", (45, 64, 90), ["dr_grpo", "pos_only", "half"]),
    "size": (["mul"], 6, "width=128", (32, 64, 128), ["half", "nthr", "likelihood", "negative"]),
    "ten": (["mul"], 3, "", (64, 90, 128, 640), ["grpo@group-size=80"]),
}
# Of H11. Left out: rules that are biased, whose worth is another one's, or that are grpo
RULES = ["dr_grpo", "pos_only", "nthr", "compensation", "negative", "ngrpo", "half", "no_baseline"]
RULES += ["nthr_eta0", "truth", "shared_prefix", "random_sparing", "prefix_baseline"]
RULES += ["negative_0.1", "negative_0.3"]
IDEAS = [*SEVEN, "rloo", "critic", "culling", *OTHERS]  # whose effects are read on the ruler
NO_MEAN = {"add": ["critic", "culling"], "mul": []}  # but these: a mean describes no run of theirs
COLUMNS = ["mean_sampled", "final_sampled", "all_fail_first", "all_fail_all", "grad_norm_all"]
TICKS = [0.5, 0.7, 1, 1.4, 2]


def with_flags(rule: str, *flags: str) -> str:
    """The name of an arm. A flag "" is none."""
    text = ",".join(flag for flag in flags if flag)
    return f"{rule}@{text}" if text else rule


def arms(flag: str, prompts, rules) -> list[str]:
    """grpo with each number of prompts, then the rules, all with this flag."""
    sizes = ["" if P == DEFAULT else f"prompts={P}" for P in prompts]
    ruler = [with_flags("grpo", flag, size) for size in sizes]
    return ruler + [with_flags(rule, flag) for rule in rules]


# ---- Tables and figures, from the CSV files alone
def values(column: str, names: list[str], task: str) -> np.ndarray:
    """(base models, arms); NaN where there is no run. grpo itself is in EFFECTS."""
    own, old = (matrix(path, column, names, task=task) for path in (ROWS, EFFECTS))
    return np.where(np.isnan(own), old, own)


def in_text(found: tuple, prompts=PROMPTS) -> str:
    """What in_samples gives, with the shares of draws beyond the ruler where there are any."""
    k, *beyond = found
    text = shown(k, 1, ".2f")
    for share, side, P in zip(beyond, ("below", "above"), (prompts[0], prompts[-1])):
        if share >= 0.0005:
            text += f"; {side} {P / DEFAULT:.2g} in {share:.1%}"
    return text


def set_table(task: str, n: int, flag: str, prompts, rules) -> str:
    """Each arm minus the one with 64 prompts, in points and in samples; of that one the values."""
    names = arms(flag, prompts, rules)
    default = prompts.index(DEFAULT)
    bases = values("base_sampled", names, task)[:n]
    if (bases != bases[:, :1]).any():
        raise ValueError(f"{names}, {task}: a row is missing, or of another base model")
    found = {column: values(column, names, task)[:n] for column in COLUMNS}
    passes = values("reward_minus_held_out", names, task)[:n]
    accuracy = found["mean_sampled"]
    cells = []
    for i, arm in enumerate(names):
        cells.append([f"`{arm}`"])
        for y in found.values():
            minus, form = (0, ".1f") if i == default else (y[:, default], "+.1f")
            cells[-1].append(shown(interval(y[:, i] - minus), form=form))
        unknown = np.isnan(passes[:, i]).all()  # of a run in EFFECTS
        cells[-1].append("" if unknown else shown(interval(passes[:, i])))
        if i >= len(prompts):
            effect = accuracy[:, i] - accuracy[:, default]
            k = in_samples(effect, accuracy[:, : len(prompts)], prompts)
            cells[-1].append(in_text(k, prompts))
    return markdown(["arm", *COLUMNS, "reward minus held-out, not a difference", "k"], cells)


def ten_table(task: str, n: int, names: list[str]) -> str:
    """Of each run, in the order of seeds: all-fail, and accuracy at the end by level, in %."""
    cells = []
    for arm in names:
        rows = [row for path in (CURVES, compare.CURVES) for row in at(read_rows(path), task=task)]
        ends = {row["seed"]: row["step 400"] for row in at(rows, arm=arm)}
        levels = np.array([ends[str(seed)].split() for seed in SEEDS[:n]], dtype=float).T
        share = [values(name, [arm], task)[:n, 0] for name in ("all_fail_first", "all_fail_last")]
        texts = [" ".join(f"{100 * x:.0f}" for x in runs) for runs in (*share, *levels)]
        cells.append([f"`{arm}`", *texts])
    header = ["arm", "all-fail, first steps", "last steps", *(f"{n} digits" for n in MUL.levels)]
    return markdown(header, cells)


def ruler_table(task: str, ruler: np.ndarray) -> str:
    """Of each number of prompts the predicted and the found effect, and this made monotone."""
    y = monotone(means(ruler))
    cells = []
    for row in at(read_rows(PREDICTION), task=task):
        i = PROMPTS.index(int(row["prompts"]))
        effect = ruler[:, i] - ruler[:, PROMPTS.index(DEFAULT)]
        cells.append([row["prompts"], *beside(row, effect), f"{100 * y[i]:+.1f}"])
    return markdown(["prompts", "predicted", "found", "", "made monotone"], cells)


def idea_table(task: str, found: dict) -> str:
    """Each idea's effect in points and in samples; where no mean describes the runs, their ends."""
    cells = []
    for arm in IDEAS:
        ends = 100 * np.sort(values("final_sampled", [arm], task)[:, 0])
        text = in_text(found[arm]) if arm in found else " ".join(f"{end:.0f}" for end in ends)
        cells.append([f"`{arm}`", shown(interval(effects(task, [arm]))), text])
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


def draw_ideas(axes, found: dict) -> None:
    """k of each idea with its interval. Blue: the effect's t interval is above 0; red: below."""
    order = sorted(IDEAS, key=lambda arm: found["mul"][arm][0])
    for ax, task in zip(axes, TASKS):
        ax.plot([1] * len(order), order, color="grey", linewidth=0.8)  # k = 1; the order of rows
        for arm, ((k, *ends), *_) in found[task].items():
            _, low, high = interval(effects(task, [arm]))
            color = "C0" if low > 0 else "C3" if high < 0 else "grey"
            ax.plot([k, *ends], [arm] * 3, "-o", markevery=[0], color=color)
        ax.set(title=task, xscale="log", xlabel="trains as grpo with so many times the samples")
        ax.set_xticks(TICKS, TICKS)
        ax.minorticks_off()


def draw_h11(panels, axes: dict) -> None:
    """k of each rule against its worth, with the line that was found and the expected one."""
    for ax, (task, (x, _, y)) in zip(panels, axes.items()):
        ks = [estimate(np.exp(drawn)) for drawn in y.T]
        for i, ((k, *ends), worth, rule) in enumerate(sorted(zip(ks, np.exp(x[0]), RULES))):
            ax.plot([worth] * 3, [k, *ends], "C0-o", markevery=[0], zorder=0)
            side = ("left", "right")[i % 2]
            ax.annotate(f"  {rule}  ", (worth, k), fontsize=8, ha=side, va="center")
        for slope, color in ((1, "grey"), (slopes(x, y)[0], "C1")):
            line = np.exp([x[0].min(), x[0].max()])
            ax.plot(line, line**slope, color=color, label=f"slope {slope:.2f}")
        ax.set(title=task, xscale="log", yscale="log", xlabel="worth at the base model", ylabel="k")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_ticks(TICKS[:-1], TICKS[:-1])
        ax.minorticks_off()
        ax.legend(frameon=False)


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
    with picture("samples.png", 2, figsize=(9, 5.5), sharey=True) as panels:
        draw_ideas(panels, found)
    with picture("h11.png", 2, figsize=(10, 6.5)) as panels:
        draw_h11(panels, axes)
    return text + f"\n## H11\n\n{slope_table(axes)}\n"


def main() -> None:
    parser = options(__doc__, range(0), TASKS)
    parser.add_argument("--set", choices=SETS, help="run of it what is not there")
    args = parser.parse_args()
    if args.set:
        tasks, replicates, *how = SETS[args.set]
        names = [arm for arm in arms(*how) if arm != "grpo"]
        for path, yields in ((ROWS, compare.measure), (CURVES, compare.curves)):
            fill(path, yields, compare.missing(path, args, names, tasks, replicates), args.jobs)
    text = "# Effects in samples. studies/samples.py says how. All columns but k times 100\n"
    for name, (tasks, n, flag, *rest) in SETS.items():
        for task, how in product(tasks, dict.fromkeys((flag, ""))):
            found = set_table(task, n, how, *rest)
            text += f"\n## {task}: {name}, {how or 'default settings'}\n\n{found}\n"
    names = [*arms(*SETS["ten"][2:]), "culling"]
    text += f"\n## mul: ten, each run\n\n{ten_table('mul', 3, names)}\n"
    rulers = {task: values("mean_sampled", arms("", PROMPTS, []), task) for task in TASKS}
    text += with_the_ruler(rulers)
    publish(ROWS, text)


if __name__ == "__main__":
    main()
