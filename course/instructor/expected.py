"""The numbers that a student's answers should have. `grade.py --expected` prints them."""

import math
from types import SimpleNamespace

from test_grpo import FORMULAS, standardised


def expected(number: int) -> list[str]:
    """Lines with the student's group, k and R, and the numbers of questions 2, 3, 4, 6 and 7.

    number: the student's, whose last three digits count.
    """
    S = number % 1000
    group = f"{S % 254 + 1:08b}"
    k = group.count("1")
    R = 1.3 + S % 50 / 100
    r = [1.0] * k + [0.0] * (8 - k)  # in another order: the first is correct, the last is not
    lines = [f"number {S}, group {group}, k = {k}, R = {R:.2f}, 1/R = {1 / R:.3f}"]
    for name, factor in (("G", 1), ("G - 1, eight", 7 / 8), ("G - 1, sixteen", 15 / 16)):
        sigma = math.sqrt(k * (8 - k) / factor) / 8
        both = [f"{math.sqrt(factor) * standardised(r, i):+.3f}" for i in (0, 7)]
        lines.append(f"2  with {name}: sigma {sigma:.3f}, correct and incorrect {' '.join(both)}")
    for name in ("reinforce", "dr_grpo", "rloo"):
        one, other = (FORMULAS[name](SimpleNamespace(r=x), 0, 0) for x in (r, r + [0.0]))
        lines.append(f"3  {name}: {one:.3f} before, {other:.3f} after")
    for A, ratio in ((1, R), (1, 1 / R), (-1, R), (-1, 1 / R)):
        clipped = min(max(ratio, 0.8), 1.2) * A
        least = min(ratio * A, clipped)
        moves = "no" if least == clipped else "a"
        both = f"min {least:.3f}, {moves} gradient; clipped only: {clipped}, no gradient"
        lines.append(f"4  A = {A}, ratio {ratio:.3f}: {both}")
    a, b = 2 + S % 7, 7 + S % 7
    lines.append(f"6  a = {a}, b = {b}: right 1/{2 * a + 2 * b}, wrong 1/{2 * a} and 1/{2 * b}")
    sums = [sum(standardised(r + [x], i) for i in range(8)) for x in (1.0, 0.0)]
    lines.append(f"7  sum with an imagined 1: {sums[0]:+.3f}, with an imagined 0: {sums[1]:+.3f}")
    return lines
