"""Every hypothesis judged: python -m studies.verdicts     after compare, displacement and faithful

The rule is that of docs/rule.md. A test is a tuple: the hypothesis, H1 and so on; what is compared,
on which task, by which measure; the effects, one for each base model; +1 or -1, the sign that the
hypothesis expects, or 0 if it expects no difference; the margin, below which an effect is small.
docs/tables/verdicts.md is made from the CSV files of those studies alone.
"""

import numpy as np
from scipy import stats

from studies import compare, displacement, faithful
from studies.common import TABLES, interval, markdown, publish, shown


def verdicts(tests: list[tuple]) -> list[str]:
    """A verdict for each test by the rule: exact sign flips, Holm's correction.

    Effects in the order of p; test k of n is significant if it and all before it have p (n - k) at
    most 0.05, k from 0.
    """
    exact = {"permutation_type": "samples", "n_resamples": np.inf}
    p = [stats.permutation_test((x,), np.mean, **exact).pvalue for _, _, x, *_ in tests]
    order = np.argsort(p)
    corrected = np.maximum.accumulate([p[i] * (len(p) - k) for k, i in enumerate(order)])
    significant = {i: x <= 0.05 for i, x in zip(order, corrected)}
    return [verdict(*test, significant[i]) for i, (_, _, *test) in enumerate(tests)]


def verdict(effects: list[float], direction: int, margin: float, significant: bool) -> str:
    """By the rule, of one test."""
    mean, low, high = interval(effects)
    small = -margin < low and high < margin
    if significant:
        expected = mean * direction > 0
        return ("supported" if expected else "contradicted") + (", small" if small else "")
    if small and low <= 0 <= high:
        return "no difference" if direction else "supported"
    return "open"


if __name__ == "__main__":
    tests = [*compare.tests(), *displacement.tests(), *faithful.tests()]
    cells = []
    for (name, what, effects, _, margin), found in zip(tests, verdicts(tests)):
        above = f"{sum(effect > 0 for effect in effects)} of {len(effects)}"
        cells.append([name, what, shown(interval(effects)), above, f"{100 * margin:.1f}", found])
    header = ["", "", "effect, points (95 %)", "above 0", "margin", "verdict"]
    publish(TABLES / "verdicts.csv", f"# Verdicts\n\n{markdown(header, cells)}\n")
