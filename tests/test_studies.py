"""The studies' arithmetic, on rows, groups and responses whose answers are known."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")
from advantages import grpo  # noqa: E402
from grpo import policy_loss, response_logprobs, token_weights  # noqa: E402
from studies import allfail, arms, common, compare, displacement  # noqa: E402
from studies import faithful, gradients, measures, ruler, verdicts  # noqa: E402
from tasks import TASKS, TOKENIZER  # noqa: E402
from test_grpo import SEED, close, problem, sample, scripted, tiny_gpt  # noqa: E402
from train import COLUMNS  # noqa: E402


def test_verdicts():
    """An interval that is not Student's, a wrong sign or margin, tests that are not corrected."""
    assert common.interval([1, 2, np.nan, 3]) == pytest.approx((2, -0.4841, 4.4841), abs=1e-4)
    expected = {-5: "contradicted", 0.2: "no difference", 2: "open"}
    tests = [("H", "", [x - 2, x + 2] * 6, +1, 2.0) for x in expected]
    assert verdicts.verdicts(tests) == [*expected.values()]
    alone = [[("H", "", tests[i][2], -1, 2.0)] for i in (0, 2)]
    assert [verdicts.verdicts(x) for x in alone] == [["supported"], ["contradicted"]]
    no_change = [("H", "", effects, 0, 9.0) for _, _, effects, *_ in tests[1::-1]]
    assert verdicts.verdicts(no_change) == ["supported", "contradicted, small"]


def test_measures_and_differences(tmp_path):
    """Easy levels or steps without an evaluation that count; differences paired by order."""
    levels = {"base_sampled_by_level": {2: 9, 3: 9, 4: 3, 5: 1}}
    summary = dict.fromkeys(compare.SUMMARY, 0) | levels
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    steps = [dict.fromkeys(COLUMNS.split(), i) for i in range(1, 13)]
    for i, step in enumerate(steps, 1):
        step |= {"accuracy": "" if i % 6 else i, "accuracy_sampled_by_level": f"9 9 {i} 0"}
    common.write_rows(tmp_path / "metrics.csv", steps)
    row = compare.measures("add", tmp_path)
    expected = {"base_hard": 2, "mean_sampled": 6.75, "mean_hard": 4.5, "entropy_last": 7.5}
    assert {name: float(row[name]) for name in expected} == expected
    values = "grpo 1 1, grpo 2 5, grpo@lr2 2 4, nthr 2 7, nthr 1 2, nthr@lr2 2 1, nthr 3 "
    rows = [dict(zip(("arm", "seed", "x"), row.split(" "))) for row in values.split(", ")]
    assert compare.differences(rows, "nthr", "x") == {1: 1, 2: 2}
    assert compare.differences(rows, "nthr@lr2", "x") == {2: -3}


def test_displaced_groups(monkeypatch):
    """A direction that is not an arm's update, a step that stays, groups at another p."""
    model = tiny_gpt().double()
    x = sample(model, levels=(2, 3))
    x.rewards = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]).double()
    slope, large, small = displacement.moved(model, x, 1, torch.stack([grpo(x), -grpo(x)]))
    logprobs = response_logprobs(model, x)
    weights = token_weights(x.mask[1:])
    policy_loss(logprobs[1:], x.logprobs[1:], grpo(x)[1:], weights).backward()
    torch.optim.SGD(model.parameters(), lr=1e-4).step()
    close(large[0], (response_logprobs(model, x) - logprobs)[1, 3].sum())  # of the correct one
    assert (small / 1e-5).tolist() == pytest.approx(slope.tolist(), rel=0.05)
    rows = [{"task": "add", "arm": "grpo", "seed": "1"} for _ in range(4)]
    for row, text in zip(rows, ("0 3 10 0.5", "0 7 30 0.1", "400 3 60 0.2", "400 7 40 0.4")):
        row |= zip(("step", "correct", "groups", "slope"), text.split())
    monkeypatch.setattr(displacement, "read_rows", lambda path: rows)
    assert displacement.shares("add", "grpo", 0) == {1: pytest.approx(0.6 * 0.5 + 0.4 * 0.1)}


def test_a_changed_line_and_pass_at():
    """A change that is passed on too far, or not, or is not given; draws with replacement."""
    for task, kind, numbers, given, rest in (
        ("add", "digit", [347, 285], "12,14,06", "# 642"),  # the second line is changed
        ("add", "carry", [1996, 8009], "15,00,", "09,09# 9905"),
        ("sum", "carry", [7, 8, 5, 1], "15,19,", "20#20"),
    ):
        p = problem(TASKS[task], numbers, 4)
        new = faithful.changed(TASKS[task], p, kind, SimpleNamespace(integers=lambda *_: 1))
        assert new == p._replace(prompt=p.prompt + given, solution=rest)
    assert allfail.pass_at([3], [2])[0, 0] == pytest.approx(1 - 1021 / 1024 * 1020 / 1023)


def test_measures_of_gradients():
    """Noise that counts as signal, or an error that is not the spread over other rollouts."""
    torch.manual_seed(SEED)
    m, v, noise = torch.randn(3, 300)
    v += m
    M, V, size = m @ m, v @ v, m @ m + 4 * noise @ noise
    true = {"M": M, "V": V, "size": size, "bias": m @ v / (M * V).sqrt()}
    true |= {"one": true["bias"] * (M / size).sqrt(), "signal": true["bias"] ** 2 * M / size}
    true["one_minus_grpo"] = true["one"] - true["bias"]  # as if grpo had no noise
    squares = torch.zeros(len(true))
    for _ in range(60):
        G, U = (x + 2 * noise * torch.randn(30, 300) for x in (m, v))
        reference = measures.replicates(m.expand(30, -1), U)
        found = measures.measures(G, U, reference)
        squares += torch.tensor([(found[x] - true[x]) / found[f"{x}_error"] for x in true]) ** 2
        no_m, no_v = (measures.measures(*x, reference) for x in ((G - m, U), (G, U - v)))
        assert str((no_m["bias"], no_v["one"])) == "(nan, nan)"
    assert all(0.4 < x / 60 < 2.2 for x in squares), squares  # about 1 each


def test_gradients():
    """A vector that is not minus the gradient of its loss, or a group that is read and lost."""
    model = tiny_gpt().double()
    rollout = sample(model, levels=(2, 5, 4, 3, 5, 4))
    rollout.rewards = torch.tensor([*torch.eye(4).tolist(), [0.0] * 4, [1.0] * 4]).double()
    some = {x: gradients.ARMS[x] for x in ("grpo", "dr_grpo", "no_baseline", "negative", "ngrpo")}
    found = gradients.gradients(model, rollout, gradients.weighted(rollout, some))
    for g, (f, how) in zip(found, some.values()):
        weights = token_weights(rollout.mask, how, rollout.max_length)
        logprobs = response_logprobs(model, rollout)
        loss = policy_loss(logprobs, rollout.logprobs, f(rollout), weights)
        close(g, -gradients.gradient(model, loss))


def test_the_arms():
    """Tokens spared that must not be, or too few; a baseline that sees its token."""
    rollout = sample(tiny_gpt(), levels=[3] * 8, G=8)
    rollout.rewards = (torch.rand(8, 8) < 0.4).float()
    names = ("grpo", "nthr_eta0", "random_sparing")
    A, kept, found = (gradients.FUNCTIONS[name](rollout) for name in names)
    selected, spared = (A < 0) & (kept == 0), (A < 0) & (found == 0)
    others = (A < 0) & ~selected
    assert 0 < spared.sum() == min(selected.sum(), others.sum()) and not (spared & selected).any()
    texts = ["15,20#20", "15,21#21", "05,20#2", "1"]  # correct: the first one
    rollout = scripted([problem(TASKS["sum"], [7, 8, 5], 3)] * 2, [texts, [*texts[1:], "#"]])
    oracle, prefix = ((gradients.FUNCTIONS[x](rollout) == 0)[0] for x in ("truth", "shared_prefix"))
    assert oracle[:3].int().tolist() == [[0] * 9, [1] * 4 + [0] * 5, [0, 1, 1, 1, 1, 0, 0, 0, 1]]
    assert prefix[:3].int().tolist() == [[0] * 9, [1] * 4 + [0] * 5, [0] * 8 + [1]]
    A = arms.prefix_baseline(rollout)[0]
    close(A[0], torch.tensor([1.0] * 9))  # no other response is correct
    close(A[1], -torch.tensor([1 / 3, 1 / 2, 1.0, 1.0, 1.0] + [1 / 3] * 4))
    A = arms.substituted_up(tiny_gpt(), rollout)
    ended = [[text + "$" for text in texts], ["15,21#20$", "05,20#20$", "1#20$", "#20$"]]
    for group, tokens, mask in zip(ended, rollout.tokens, rollout.mask):
        assert group == [TOKENIZER.decode(x[y].tolist()) for x, y in zip(tokens, mask)]
    close(rollout.logprobs, response_logprobs(tiny_gpt(), rollout).detach(), 1e-5)
    assert A[0].min() < 0 == A[1].min() < A[1].max()


K = 90 / 64  # of the effects in samples
NOISE = np.random.default_rng(0).normal(size=(12, 7))
FIRST_SIX = np.arange(12) < 6
STRAIGHT = 10 * np.log(np.array(ruler.PROMPTS) / 64) + 100 * NOISE[:, :1]  # in ln P; own levels
MEASURED = STRAIGHT + NOISE[:, 1:6]


def test_the_ruler_and_k_of_an_effect():
    """Values sorted or cut off, not pooled; straight in P, not in ln P; an end of a flat piece."""
    y = ruler.monotone(np.array([3.0, 1, 9, 6, 15]))  # pooled: 2, 2, 7.5, 7.5, 15
    assert y == pytest.approx([-5.5, -5.5, 0, 0, 7.5])
    rising = {0: 1, 2: K, 3: np.sqrt(90 * 128) / 64, -2: 45 / 64, 9: 2, -9: 0.5}
    flat = {0: np.sqrt(K), 1e-9: K, -1e-9: 1, -5: np.sqrt(32 * 45) / 64, -6: 0.5}
    for y, k in (([-5.0, -2, 0, 2, 4], rising), ([-5.0, -5, 0, 0, 4], flat)):
        found = ruler.log_k(np.array([*k]), np.array(y))
        assert np.exp(found) == pytest.approx([*k.values()])


def test_intervals_of_k():
    """Effect and ruler drawn apart, a ruler of base models without the arm, an end unseen."""
    effect = MEASURED[:, 3] - MEASURED[:, 2]  # the arm is grpo with 90 prompts itself
    for arm in (effect, np.where(FIRST_SIX, effect, np.nan)):
        found, *beyond = ruler.in_samples(arm, MEASURED)
        assert found == pytest.approx([K] * 3) and beyond == [0, 0]
    assert ruler.in_samples(effect + 99, MEASURED)[1:] == (0, 1)
    assert ruler.in_samples(-99 + effect, MEASURED)[1:] == (1, 0)


def test_slope_of_ln_k():
    """An intercept; worth and effect of other base models, or of ones without a run of the arm."""
    worth = np.array([-0.3, -0.1, 0.2, 0.3]) + 0.05 * NOISE[:, 1:5]
    effects = 10 * 0.6 * worth
    effects[6:, :2] = np.nan
    worth[6:, :2] = 9
    x, y = ruler.both_axes(worth, effects, STRAIGHT * FIRST_SIX[:, None])
    close(torch.tensor(y), torch.tensor(x * [0.6, 0.6, 1.2, 1.2]))
    assert x[0, 3] == pytest.approx(worth[:, 3].mean()) and x[1:, 3].std() > 0
    x, y = (np.tile(z, (20_001, 1)) for z in ([1.0, 2.0, -1.0], [2.0, 1.0, -2.0]))
    assert ruler.estimate(ruler.slopes(x, y)) == pytest.approx((1, 0.5, 2))  # rules: 2, 0.5, 2
    ends = {(0.5, 2): "supported", (0.1, 0.49): "contradicted", (2.01, 3): "contradicted"}
    ends |= dict.fromkeys([(0.4, 1), (1, 2.1), (0.1, 3)], "open")
    assert [ruler.verdict(*x) for x in ends] == [*ends.values()]
