"""Effects in samples: the ruler, k, H11 and the split on made-up numbers whose answer is known."""

import numpy as np
import pytest

pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")
from studies import ruler, samples  # noqa: E402
from studies.common import read_rows  # noqa: E402

K = 90 / 64
NOISE = np.random.default_rng(0).normal(size=(12, 7))
FIRST_SIX = np.arange(12) < 6
STRAIGHT = 10 * np.log(np.array(ruler.PROMPTS) / 64) + 100 * NOISE[:, :1]  # in ln P; own levels
MEASURED = STRAIGHT + NOISE[:, 1:6]


@pytest.fixture(autouse=True)
def few_draws(monkeypatch):
    monkeypatch.setattr(ruler, "DRAWS", 500)


def test_a_ruler_that_falls():
    """Unequal weights; values that are sorted or cut off, not pooled; 64 set to 0 before the fit."""
    y = ruler.monotone(np.array([3.0, 1, 9, 6, 15]))  # pooled: 2, 2, 7.5, 7.5, 15
    assert y == pytest.approx([-5.5, -5.5, 0, 0, 7.5])


def test_k_of_an_effect():
    """Straight in P, not in ln P; an end of a flat piece in place of its middle; k off the ruler."""
    rising = {0: 1, 2: K, 3: np.sqrt(90 * 128) / 64, -2: 45 / 64, 9: 2, -9: 0.5}
    flat = {0: np.sqrt(K), 1e-9: K, -1e-9: 1, -5: np.sqrt(32 * 45) / 64, -6: 0.5}
    for y, k in (([-5.0, -2, 0, 2, 4], rising), ([-5.0, -5, 0, 0, 4], flat)):
        found = ruler.log_k(np.array([*k]), np.array(y))
        assert np.exp(found) == pytest.approx([*k.values()])


def test_intervals_of_k():
    """Pairs drawn apart, other base models drawn as pairs, a ruler of base models without the arm."""
    effect = MEASURED[:, 3] - MEASURED[:, 2]  # the arm is grpo with 90 prompts itself
    for arm in (effect, np.where(FIRST_SIX, effect, np.nan)):
        found, *beyond = ruler.in_samples(arm, MEASURED, paired=True)
        assert found == pytest.approx([K] * 3) and beyond == [0, 0]
    (k, low, high), *_ = ruler.in_samples(effect, MEASURED, paired=False)
    assert k == pytest.approx(K) and low < K - 0.05 and high > K + 0.05
    opposite = np.where(FIRST_SIX, 200, -300)  # more than half of the means are below the ruler
    found, below, above = ruler.in_samples(opposite, STRAIGHT, paired=False)
    assert found == pytest.approx((0.5, 0.5, 2)) and 0 < above < 0.4 < below < 1


def test_slope_of_ln_k():
    """An intercept; worth and effect of other base models, or of ones that the arm was not run on."""
    worth = np.array([-0.3, -0.1, 0.2, 0.3]) + 0.05 * NOISE[:, 1:5]
    effects = 10 * 1.5 * worth
    effects[6:, :2] = np.nan
    worth[6:, :2] = 9
    x, y = ruler.both_axes(worth, effects, STRAIGHT, paired=False)
    assert y == pytest.approx(1.5 * x) and x[0, 3] == pytest.approx(worth[:, 3].mean())
    assert x[1:, 3].std() > 0 and ruler.estimate(ruler.slopes(x, y)) == pytest.approx([1.5] * 3)
    x, y = (np.tile(z, (501, 1)) for z in ([1.0, 2.0, -1.0], [2.0, 1.0, -2.0]))
    assert ruler.estimate(ruler.slopes(x, y)) == pytest.approx((1, 0.5, 2))  # rules: 2, 0.5, 2
    effect = MEASURED[:, 3] - MEASURED[:, 2]
    effects = np.transpose([effect, np.where(FIRST_SIX, effect, np.nan)])
    x, y = ruler.both_axes(FIRST_SIX[:, None] * [1.0, 1], effects, MEASURED, paired=True)
    assert y == pytest.approx(np.log(K)) and x == pytest.approx(np.tile([0.5, 1], (501, 1)))
    ends = {(0.5, 2): "supported", (0.1, 0.49): "contradicted", (2.01, 3): "contradicted"}
    ends |= dict.fromkeys([(0.4, 1), (1, 2.1), (0.1, 3)], "open")
    assert [ruler.verdict(*x) for x in ends] == [*ends.values()]


def test_between_and_within():
    """Base models that are not centred in their rule, or centred over all rules; rules not drawn."""
    own = NOISE - NOISE.mean(0)
    worth = np.arange(7) + own
    x, y = ruler.resampled(worth, 2 * np.arange(7) - 3 * own, rules=False)
    assert [z[0] for z in ruler.between(x, y)] == pytest.approx([1, 2])
    assert ruler.within(x, y)[1] == pytest.approx(-3)  # in each draw
    x, y = ruler.resampled(worth, 5 * worth, rules=True)
    assert ruler.between(x, y)[1] == pytest.approx(5) and ruler.means(x)[:, 0].std() > 1


def test_predictions_are_left_as_they_are(monkeypatch, tmp_path):
    """Predictions that are made again after the runs, or that are not those of the rule."""
    committed = read_rows(samples.PREDICTION)
    monkeypatch.setattr(samples, "PREDICTION", tmp_path / "prediction.csv")
    samples.predict()
    for row, before in zip(read_rows(samples.PREDICTION), committed, strict=True):
        assert row["prompts"] == before["prompts"] and row["predicted"] == before["predicted"]
    samples.PREDICTION.write_text("there")
    samples.predict()
    assert samples.PREDICTION.read_text() == "there"
