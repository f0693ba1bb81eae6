"""docs/tables/compare.md, from the rows of studies.compare."""

from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from studies.common import at, by_seed, shown
from studies.effects import FIRST, NAMES, RATES, SEARCHED, TASKS, chosen
from tools.common import markdown

TEXT = Path(__file__).with_name("compare.md")  # the page, with {names} where its tables stand


def multiple(ratio: float, low: float, high: float) -> str:
    """A ratio with its interval; infinity is "not reached"."""
    texts = ["not reached" if np.isinf(x) else f"{x:.2f}" for x in (ratio, low, high)]
    return texts[0] if low == high else f"{texts[0]} ({texts[1]} to {texts[2]})"


def mean(column: str, x: dict) -> str:
    """Of a column itself, in %."""
    return f"{100 * np.mean([float(row[column]) for row in x['rows']]):.1f}"


def average(x: dict) -> str:
    return f"**{shown(x['average'])}**" if x["significant"] else shown(x["average"])


# Tables: heading -> the text of an effect
WHAT = {"task": lambda x: x["task"], "variant": lambda x: f"`{x['variant']}`"}
EFFECTS = WHAT | {
    "rate": lambda x: x["lr"],
    "base models": lambda x: str(x["n"]),
    "average accuracy": average,
    "at the end": lambda x: shown(x["end"]),
    "steps to half": lambda x: multiple(*x["half"]),
    "steps to 90 %": lambda x: multiple(*x["most"]),
    "seconds a step": lambda x: f"{x['seconds']:.2f}",
    "scaled": partial(mean, "scaled"),
}
VALUES = WHAT | {
    "average accuracy": partial(mean, "mean_sampled"),
    "at the end": partial(mean, "final_sampled"),
    "greedy": partial(mean, "final_greedy"),
    "reasoning correct": partial(mean, "final_sampled_reasoning_correct"),
    "all-fail groups": partial(mean, "all_fail"),
    "entropy, 0.01 nats": partial(mean, "entropy"),
}


def table(columns: dict, found: list[dict]) -> str:
    """A line for each effect."""
    lines = [[text(x) for text in columns.values()] for x in found]
    return markdown([*columns], lines) if lines else "No rows yet."


def rates(rows: list[dict]) -> str:
    """The parameter study."""
    lines = []
    for task, variant in product(TASKS, SEARCHED):
        line = [task, f"`{variant}`"]
        for lr in RATES:
            head = {"task": task, "variant": variant, "lr": lr, "flags": ""}
            values = by_seed(rows, "mean_sampled", **head)
            values = [x for seed, x in values.items() if seed in FIRST]
            text = f"{100 * np.mean(values):.1f}" if values else ""
            text += f" ({len(values)})" if 0 < len(values) < len(FIRST) else ""
            line.append(f"**{text}**" if lr == chosen(rows, task, variant) else text)
        lines.append(line)
    return markdown(["task", "variant", *(f"{lr:g}" for lr in RATES)], lines)


def page(rows: list[dict], found: list[dict]) -> str:
    """The whole page; found: what effects() returns."""
    own = [x for x in found if x["own"]]
    both = [x for x in own if x["task"] in TASKS]
    variants = [x for x in both if x["variant"] in NAMES]
    parts = {
        "variants": table(EFFECTS, variants),
        "same_rate": table(EFFECTS, [x for x in found if not x["own"] and not x["flags"]]),
        "controls": table(EFFECTS, [x for x in both if x["variant"] not in NAMES]),
        "free": table(EFFECTS, [x for x in found if x["flags"]]),
        "shortcut": table(EFFECTS, at(own, task="sum")),
        "measured": table(VALUES, own),
        "rates": rates(rows),
    }
    return TEXT.read_text().format(**parts)
