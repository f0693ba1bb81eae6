"""Effects in samples: the arithmetic of studies.samples and studies.within.

The ruler is grpo with PROMPTS prompts a step: y(P) is its accuracy minus that of P = 64. An effect
that is y(64 k) is one of k times the samples. Here are pure functions of numpy arrays. A matrix has
a row for each base model, NaN where there is no run. Intervals resample base models, and rules
where that is said: an array of draws has the estimate first, then 20,000 resamplings.
"""

import numpy as np
from scipy import optimize

PROMPTS = (32, 45, 64, 90, 128)  # 45 and 90 are a factor of the root of 2 from their neighbours
DEFAULT = 64  # of train.py
DRAWS = 20_000
LOW, HIGH = 0.5, 2.0  # H11: between these, a slope is near 1


# ---- Draws
def means(values: np.ndarray) -> np.ndarray:
    """Over base models: (..., base models, arms) -> (..., arms). NaN is left out, NaN if all are."""
    return np.ma.masked_invalid(values).mean(-2).filled(np.nan)


def draws(n: int, rng: np.random.Generator, parts: int = 1) -> np.ndarray:
    """Indices (1 + DRAWS, n): 0 to n - 1 in order, then as many drawn with replacement.

    parts: so many equal parts of the n are drawn from separately, each as often as it has members.
    """
    size = n // parts
    found = rng.integers(size, size=(1 + DRAWS, parts, size)) + size * np.arange(parts)[:, None]
    found[0] = np.arange(n).reshape(parts, size)
    return found.reshape(-1, n)


def resampled(x: np.ndarray, y: np.ndarray, rules: bool) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices (base models, rules) in each draw of base models, and of rules if these too."""
    rng = np.random.default_rng(0)
    n, arms = x.shape
    rows = draws(n, rng)
    columns = draws(arms, rng) if rules else np.arange(arms)[None]
    which = (rows[:, :, None], columns[:, None, :])
    return x[which], y[which]


def estimate(found: np.ndarray) -> tuple[float, float, float]:
    """The estimate and the 95 % interval of an array of draws."""
    low, high = np.nanquantile(found[1:], [0.025, 0.975])
    return found[0], low, high


# ---- The ruler
def monotone(accuracy: np.ndarray, prompts=PROMPTS) -> np.ndarray:
    """y(P): the nearest values that never fall (isotonic, equal weights), minus that of P = 64."""
    y = optimize.isotonic_regression(accuracy).x
    return y - y[prompts.index(DEFAULT)]


def log_k(effect, y: np.ndarray, prompts=PROMPTS):
    """ln k of an effect: where a ruler that never falls, straight in ln P, reads as much.

    Beyond an end it is that end. On a flat piece it is the middle: the mean of the last and of the
    first ln P that read as much.
    """
    x = np.log(np.array(prompts) / DEFAULT)
    last = np.interp(effect, y, x)
    first = np.interp(-effect, -y[::-1], x[::-1])
    return (first + last) / 2


def log_ks(effect, ruler, rows, prompts=PROMPTS) -> np.ndarray:
    """ln k of an arm in each draw, from the means of effect (n,) and ruler (n, prompts).

    rows (draws, n): the base models, of effect and ruler together. The ruler is that of the base
    models that have a run of the arm.
    """
    ruler = np.where(np.isnan(effect)[:, None], np.nan, ruler)
    effects = means(effect[rows][..., None])[:, 0]
    rulers = means(ruler[rows])
    return np.array([log_k(e, monotone(y, prompts), prompts) for e, y in zip(effects, rulers)])


def in_samples(effect, ruler, prompts=PROMPTS) -> tuple[tuple, float, float]:
    """k of an arm with its interval; the shares of draws below and above the ruler's ends."""
    there = ~np.isnan(effect)
    rows = draws(there.sum(), np.random.default_rng(0))
    found = log_ks(effect[there], ruler[there], rows, prompts)
    below, above = (np.log(P / DEFAULT) for P in (prompts[0], prompts[-1]))
    return estimate(np.exp(found)), np.mean(found[1:] <= below), np.mean(found[1:] >= above)


# ---- H11: is worth at the base model what a rule is worth in training?
def both_axes(worth, effects, ruler) -> tuple[np.ndarray, np.ndarray]:
    """ln worth and ln k of the rules in each draw, (1 + DRAWS, rules); ln worth, effects (12, rules).

    Base models 1 to 6 and 7 to 12 are drawn separately, so that a rule that was trained on the first
    six is never without any. Its ln worth is of these six.
    """
    rows = draws(len(effects), np.random.default_rng(0), parts=2)
    x = means(np.where(np.isnan(effects), np.nan, worth)[rows])
    return x, np.transpose([log_ks(effect, ruler, rows) for effect in effects.T])


def slopes(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """That of ln k on ln worth through the origin, in each draw; the rules are drawn as well."""
    rules = draws(x.shape[1], np.random.default_rng(1))
    x, y = (np.take_along_axis(axis, rules, 1) for axis in (x, y))
    return (x * y).sum(1) / (x * x).sum(1)


def verdict(low: float, high: float) -> str:
    """On H11, from the interval of the slope."""
    if LOW <= low and high <= HIGH:
        return "supported"
    return "contradicted" if high < LOW or low > HIGH else "open"


# ---- Between rules, and within a rule
def line(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Correlation, and slope of y on x by least squares, over the last axis."""
    x = x - x.mean(-1, keepdims=True)
    y = y - y.mean(-1, keepdims=True)
    xy = (x * y).sum(-1)
    xx = (x * x).sum(-1)
    return xy / np.sqrt(xx * (y * y).sum(-1)), xy / xx


def between(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The line through the rules, a point each: means over base models."""
    return line(means(x), means(y))


def within(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The line through all base models of all rules, each minus the mean of its rule."""
    x, y = (z - means(z)[..., None, :] for z in (x, y))
    return line(*(z.reshape(*z.shape[:-2], -1) for z in (x, y)))
