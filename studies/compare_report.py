"""The page results/compare.md: tables of what studies/analysis.py finds in the rows."""

from itertools import product
from pathlib import Path

import numpy as np

from studies.analysis import Effect, comparisons, run_times, with_means_of_pair
from studies.analysis import words_about_noise
from studies.common import EXACT, Interval, by_seed, interval, markdown, paired, sign_flips
from studies.protocol import AT_USUAL, CAPS, COMPARED, FIRST, HEAD, LIMITS, NAMES, NARROW
from studies.protocol import RATES, RESPONSE, SEARCHED, SIX, TASKS, UNCLIPPED, accuracy_by_rate
from studies.protocol import chosen_rate, title

# The page shows the difference of the first from the second; flags follow a name.
PAIRS = [("half", "nthr"), ("half", "nthr_eta0"), ("nthr_eta0", "random_sparing")]
PAIRS += [("half", "focal_half"), ("flat_pos", "focal_half"), ("pos_only", "half")]
PAIRS += [("pos_only", "focal"), ("reinforce", "dr_grpo")]
PAIRS += [(f"{x} {LIMITS['1']}", f"{y} {LIMITS['1']}") for x, y in PAIRS[-2:]]
PAIRS += [("likelihood", "pos_only"), ("verifree", "pos_only")]
PAIRS += [("verifree", "reinforce"), ("verifree_undivided", "verifree")]
PAIRS += [(f"grpo {RESPONSE}", "grpo"), ("gspo", f"grpo {RESPONSE}")]
PAIRS += [*((f"grpo {LIMITS[x]}", "grpo") for x in ("0.1", "1"))]
PAIRS += [(f"grpo {LIMITS['1']}", f"grpo {LIMITS['none']}")]
PAIRS += [(f"{name} {LIMITS['1']}", f"grpo {LIMITS['1']}") for name in ("half", "pos_only")]
PAIRS += [(f"pos_only {LIMITS['1']}", f"half {LIMITS['1']}")]
PAIRS += [("half", "first_mistake"), ("first_mistake", "nthr_eta0")]
PAIRS += [(f"grpo {UNCLIPPED}", "grpo"), ("cispo", f"grpo {UNCLIPPED}")]
PAIRS += [("cispo", f"cispo {CAPS[0]}"), (f"cispo {CAPS[0]}", "grpo")]
PAIRS += [("process_by_step", "process"), ("process_by_step", "same_prefix")]


def in_points(x: Interval) -> str:
    return f"{x.times(100):+.1f}"


def average(x: Effect) -> str:
    """In bold if it is significant."""
    return ("**{}**" if x.significant else "{}").format(in_points(x.average))


def in_percent(x: Effect, column: str) -> str:
    """The mean over its base models; empty if the column is."""
    ours = {name: getattr(x, name) for name in HEAD[:-1]}
    values = [*by_seed(x.rows, column, **ours).values()]
    return f"{100 * np.mean(values):.1f}" if values else ""


def p_value(differences) -> str:
    """Exact, or from random sign flips."""
    return f"{sign_flips(differences):.2g}" + " (drawn)" * (len(differences) > EXACT)


def has_time(x: Effect) -> bool:
    return (x.task, x.variant) in run_times()


COLUMNS = {  # heading -> the text of an effect
    "task": lambda x: x.task,
    "variant": lambda x: f"`{title(x.variant)}`",
    "rate": lambda x: str(x.lr),
    "base models": lambda x: str(x.n),
    "average, points above grpo": average,
    "p": lambda x: p_value(x.minus_grpo("mean_sampled")),
    "end, points above grpo": lambda x: in_points(interval(x.minus_grpo("final_sampled"))),
    "greedy end, points above grpo": lambda x: in_points(interval(x.minus_grpo("final_greedy"))),
    "time of a run": lambda x: f"{run_times()[x.task, x.variant][0]:.2f}" if has_time(x) else "",
    "reasoning correct": lambda x: in_percent(x, "final_sampled_reasoning_correct"),
    "scaled": lambda x: in_percent(x, "scaled"),
}


def table(results: list[Effect]) -> str:
    """A line for each effect."""
    lines = [[text(x) for text in COLUMNS.values()] for x in results]
    return markdown([*COLUMNS], lines) if lines else "No rows yet."


def table_of_rates(rows: list[dict]) -> str:
    """The parameter study of what has rows; what was chosen has a frame."""
    lines = []
    heads = [*((name, "") for name in SEARCHED), ("gspo", NARROW)]
    heads += [("cispo", flags) for flags in CAPS]
    for task, (variant, flags) in product(TASKS, heads):
        accuracy = accuracy_by_rate(rows, task, variant, flags)
        texts = {lr: f"{x:.1f}" for lr, x in accuracy.items()}
        chosen = chosen_rate(rows, task, variant)
        if chosen and not flags:
            texts[chosen] = f"<kbd>{texts[chosen]}</kbd>"
        name = f"`{variant} {flags}`".replace(" `", "`")
        if texts:
            lines.append([task, name, *(texts.get(lr, "") for lr in RATES)])
    return markdown(["task", "variant", *(f"{lr:g}" for lr in RATES)], lines)


def table_of_limits(rows: list[dict], column: str) -> str:
    """A column on base models SIX with each norm limit: grpo in %, the others minus grpo."""
    six = [row for row in rows if row["seed"] in SIX]
    lines = []
    for task, variant in product(TASKS, AT_USUAL):
        rates = [chosen_rate(rows, task, name) for name in (variant, "grpo")]
        lines.append([task, f"`{variant}`"])
        for flags in LIMITS.values():
            x = Effect(task, variant, rates[0], flags, six, rates[1])
            text = in_points(interval(x.minus_grpo(column))) if x.n else ""
            lines[-1].append(f"{in_percent(x, column)} %" if x.n and variant == "grpo" else text)
    return markdown(["task", "variant", *LIMITS], lines)


def table_of_pairs(rows: list[dict]) -> str:
    """PAIRS on both tasks, of the base models that both have."""
    lines = []
    reported = with_means_of_pair([row for row in rows if row["seed"] not in FIRST])
    for task, names in product(TASKS, PAIRS):
        parts = [name.partition(" ") for name in names]
        heads = [(task, x, chosen_rate(rows, task, x, flags), flags) for x, _, flags in parts]
        both = [dict(zip(HEAD, head)) for head in heads]
        columns = ("mean_sampled", "final_sampled", "final_greedy")
        averages, *end = (np.subtract(*paired(reported, column, *both)) for column in columns)
        if len(averages):
            about = [task, "`{}` minus `{}`".format(*names), str(len(averages))]
            about += [in_points(interval(averages)), p_value(averages)]
            lines.append([*about, *(in_points(interval(x)) for x in end)])
    head = ["task", "difference", "base models", "average accuracy", "p", "at the end", "greedy"]
    return markdown(head, lines)


def page(rows: list[dict], results: list[Effect]) -> str:
    """compare.md, where a table takes the place of each {name}; results: what effects() returns."""
    chosen = [x for x in results if x.chosen]
    both = [x for x in chosen if x.task in TASKS]
    parts = {
        "comparisons": comparisons(rows),
        "variants": table([x for x in both if x.variant in ("grpo", *COMPARED)]),
        "noise": "\n".join(words_about_noise(rows, task) for task in TASKS),
        "controls": table([x for x in both if x.variant not in NAMES]),
        "pairs": table_of_pairs(rows),
        "shortcut": table([x for x in chosen if x.task == "sum"]),
        "rates": table_of_rates(rows),
    }
    parts |= {
        x: table_of_limits(rows, x) for x in ("mean_sampled", "final_sampled", "final_greedy")
    }
    return Path(__file__).with_name("compare.template.txt").read_text().format(**parts)
