"""The numbers that a student's answers should have. `grade.py --expected` prints them."""

import math
from types import SimpleNamespace

from test_grpo import FORMULAS, standardised, verifree_at


def expected(first: str) -> list[str]:
    """Lines with the student's group, k and R, and the numbers of questions 2, 3, 4, 6, 7 and 9.

    first: the first line of answers.md, which has the student's number.
    """
    digits = "".join(x for x in first if x.isdecimal())
    if not 0 < len(digits) <= 3:
        return [f"No number of three digits is in the first line: {first}"]
    S = int(digits)
    group = f"{S % 254 + 1:08b}"
    k = group.count("1")
    R = 1.3 + S % 50 / 100
    r = [1.0] * k + [0.0] * (8 - k)  # in another order: the first is correct, the last is not
    lines = [f"number {S}, group {group}, k = {k}, R = {R:.2f}, 1/R = {1 / R:.3f}"]
    lines.append(f"2  sigma {math.sqrt(k * (8 - k)) / 8:.3f} with G")
    for name, factor in (("G", 1), ("G - 1, eight", 7 / 8), ("G - 1, sixteen", 15 / 16)):
        correct, incorrect = (math.sqrt(factor) * standardised(r, i) for i in (0, 7))
        lines.append(f"2  with {name}: correct {correct:+.3f}, incorrect {incorrect:+.3f}")
    for name in ("reinforce", "dr_grpo", "rloo"):
        before, after = (FORMULAS[name](SimpleNamespace(r=x), 0, 0) for x in (r, r + [0.0]))
        lines.append(f"3  {name}, correct: {before:.3f} before, {after:.3f} after")
    lines.append(f"4  A = 1: ratio {R:.2f} no gradient, min 1.2; ratio {1 / R:.3f} a gradient")
    lines.append(f"4  A = -1: ratio {R:.2f} a gradient; ratio {1 / R:.3f} no gradient, min -0.8")
    a, b = 2 + S % 7, 7 + S % 7
    lines.append(f"6  a = {a}, b = {b}: right 1/{2 * a + 2 * b}, wrong 1/{2 * a} and 1/{2 * b}")
    sums = [sum(standardised(r + [x], i) for i in range(8)) for x in (1.0, 0.0)]
    lines.append(f"7  sum with an imagined 1: {sums[0]:+.3f}, with an imagined 0: {sums[1]:+.3f}")
    L = [[0.0, math.log(0.9 if x else 0.1)] for x in r]
    x = SimpleNamespace(logprobs=L, end=[[False, True]] * 8)
    for i, name in ((0, "L = 0.9"), (7, "L = 0.1")):
        reasoning, answer = (verifree_at(x, i, t) for t in (0, 1))
        lines.append(f"9  {name}: reasoning {reasoning:+.3f}, true answer {answer:+.3f}")
    return lines
