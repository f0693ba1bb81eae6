"""Numbers for an exam, and their results: python -m course.instructor.exam WORD

It prints a line for each of the ten questions of exam.md: numbers that a secret word decides, and
behind the colon their results. The same word always gives the same numbers.
"""

import math
import sys
from random import Random
from statistics import fmean, pstdev, stdev
from types import SimpleNamespace

from test_grpo import FORMULAS

NUMBERS = """p=0.1,0.2,0.25,0.4 c=2,3,4,5
k=2,3,5,6 q=0.05,0.1,0.2,0.3
u=0.5,0.7,1.1,1.3 v=0.5,0.7,0.9,1.5 w=0.6,0.9,1.4
f=0.125,0.25,0.5 h=0.125,0.25,0.375
x=2,3,4,5
m=2,3,4,5 n=6,8,10,12
G=4,9,16,25
s=0.1,0.15,0.2 t=0.45,0.48,0.5 a=0.54,0.6,0.66
y=0.6,0.8,0.9 z=0.3,0.4,0.5
a=2.1,2.4,3.0 b=2.0,1.9,0.4 c=1.8,2.2,1.1 n=10,20,40,60"""


def given_by(name: str, r: list[float]) -> list[float]:
    """What a variant gives to the first response of a group, and to the last one."""
    return [FORMULAS[name](SimpleNamespace(r=r), i, 0) for i in (0, len(r) - 1)]


def group(k: float, q: float) -> list[float]:
    r = [1.0] * int(k) + [0.0] * int(8 - k)
    correct = [given_by(name, r)[0] for name in ("dr_grpo", "rloo")]
    smallest = math.ceil(math.log(0.5) / math.log(1 - q))
    return [k / 8, pstdev(r), *given_by("grpo", r), *correct, smallest]


def divergence(y: float, z: float) -> list[float]:
    d = math.log(z / y)
    exact = -y * d - (1 - y) * math.log((1 - z) / (1 - y))
    return [exact, -d, math.exp(d) - d - 1]


def interval(a: float, b: float, c: float, n: float) -> list[float]:
    mean, half = fmean((a, b, c)), 4.30 * stdev((a, b, c)) / math.sqrt(3)
    return [mean, mean - half, mean + half, n / 20]


RESULTS = [
    lambda p, c: (1 - p, p - 1, -p, p, p * (1 - p), -p * (1 - p), -c * p, c * p),
    group,
    lambda u, v, w: (
        ("none", "more")[u < 1.2],
        ("none", "less")[v > 0.8],
        ("none", "more")[w < 1.2],
    ),
    lambda f, h: (64 * (1 - f - h), 64 * (1 - h), 1 / (1 - f - h)),
    lambda x: (x / (1 + x), x**2 / (1 + x**2), (1 + x**2) / (1 + x) / x),
    lambda m, n: (1 / (2 * m + 2 * n), 1 / (4 * m), 1 / (4 * n)),
    lambda G: (-1 / math.sqrt(G), *given_by("ngrpo", [1.0] + [0.0] * int(G - 1))),
    lambda s, t, a: (t / s, min(t / s, 2), a / t),
    divergence,
    interval,
]


def drawn(rng: Random, number: int) -> tuple[dict, tuple | list]:
    """Numbers for a question, and its results. In question 3 the clip stops some of the tokens."""
    pairs = [pair.split("=") for pair in NUMBERS.splitlines()[number].split()]
    while True:
        given = {name: rng.choice(values.split(",")) for name, values in pairs}
        results = RESULTS[number](**{name: float(x) for name, x in given.items()})
        if number != 2 or 1 <= results.count("none") <= 2:
            return given, results


def main(word: str) -> None:
    rng = Random(word)
    for number in range(len(RESULTS)):
        given, results = drawn(rng, number)
        shown = [x if isinstance(x, str) else f"{x:.3g}" for x in results]
        print(f"{number + 1}.", *(f"{name}={x}" for name, x in given.items()), ":", *shown)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give one secret word: python -m course.instructor.exam WORD")
    main(sys.argv[1])
