"""Every hypothesis judged: python -m studies.verdicts     after compare, displacement and faithful

The rule is that of docs/results.md. docs/tables/verdicts.md is made from the CSV files of those
studies alone.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from studies import compare, displacement, faithful
from studies.common import TABLES, interval, markdown, publish, shown


class Test(NamedTuple):
    """A hypothesis on one testbed."""

    name: str  # H1, ...
    what: str  # what is compared, on which task, by which measure
    effects: list[float]  # one for each base model
    direction: int  # +1 or -1, what the hypothesis expects; 0 if it expects no difference
    margin: float  # what is smaller is small


def verdicts(tests: list[Test]) -> list[str]:
    """A verdict for each test by the rule of docs/results.md: exact sign flips, Holm's correction.

    Effects in the order of p; test k of n is significant if it and all before it have p (n - k) at
    most 0.05, k from 0.
    """
    exact = {"permutation_type": "samples", "n_resamples": np.inf}
    p = [stats.permutation_test((x.effects,), np.mean, **exact).pvalue for x in tests]
    order = np.argsort(p)
    corrected = np.maximum.accumulate([p[i] * (len(p) - k) for k, i in enumerate(order)])
    significant = {i: x <= 0.05 for i, x in zip(order, corrected)}
    return [verdict(test, significant[i], len(tests)) for i, test in enumerate(tests)]


def verdict(test: Test, significant: bool, tests: int) -> str:
    """By the rule; of what is open also about how many base models would decide."""
    mean, low, high = interval(test.effects)
    small = -test.margin < low and high < test.margin
    if significant:
        expected = mean * test.direction > 0
        return ("supported" if expected else "contradicted") + (", small" if small else "")
    if small and low <= 0 <= high:
        return "no difference" if test.direction else "supported"
    # An interval's width shrinks as one over the root of their number.
    _, _, wide = interval(test.effects, 1 - 0.05 / tests)
    to_see = (wide - mean) / max(abs(mean), 1e-9)
    to_dismiss = (high - mean) / max(test.margin - abs(mean), 1e-9)
    n = len(test.effects)
    return f"open; about {max(n + 1, n * min(to_see, to_dismiss) ** 2):.0f} would decide"


def main() -> None:
    tests = [Test(*test) for study in (compare, displacement, faithful) for test in study.tests()]
    cells = []
    for test, found in zip(tests, verdicts(tests)):
        above = sum(effect > 0 for effect in test.effects)
        counts = [f"{above} of {len(test.effects)}", f"{100 * test.margin:.1f}"]
        cells.append([test.name, test.what, shown(interval(test.effects)), *counts, found])
    header = ["", "", "effect, points (95 %)", "above 0", "margin", "verdict"]
    publish(TABLES / "verdicts.csv", f"# Verdicts\n\n{markdown(header, cells)}\n")


if __name__ == "__main__":
    main()
