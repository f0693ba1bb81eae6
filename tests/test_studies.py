"""The studies' arithmetic, on rows, groups and responses whose answers are known."""

import json
from math import comb
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")
from advantages import grpo  # noqa: E402
from grpo import policy_loss, response_logprobs, token_weights  # noqa: E402
from studies import allfail, arms, common, compare, displacement, faithful  # noqa: E402
from studies import gradients, measures, prediction, runs, verdicts  # noqa: E402
from tasks import TASKS, TOKENIZER  # noqa: E402
from test_grpo import SEED, close, problem, sample, scripted, tiny_gpt  # noqa: E402
from train import COLUMNS  # noqa: E402


def test_verdicts():
    """An interval that is not Student's, a wrong sign or margin, tests that are not corrected."""
    assert common.interval([1, 2, 3]) == pytest.approx((2, -0.4841, 4.4841), abs=1e-4)
    expected = {-5: "contradicted", 0.2: "no difference", 2: "open"}
    tests = [("H", "", [x - 2, x + 2] * 6, +1, 2.0) for x in expected]
    assert verdicts.verdicts(tests) == [*expected.values()]
    alone = [[("H", "", tests[i][2], -1, 2.0)] for i in (0, 2)]
    assert [verdicts.verdicts(x) for x in alone] == [["supported"], ["contradicted"]]
    no_change = [("H", "", effects, 0, 9.0) for _, _, effects, *_ in tests[1::-1]]
    assert verdicts.verdicts(no_change) == ["supported", "contradicted, small"]


def test_measures_and_differences(tmp_path):
    """Easy levels or steps without an evaluation that count; differences paired by order; flags."""
    summary = dict.fromkeys(compare.SUMMARY, 0)
    summary |= {"base_sampled_by_level": {2: 9, 3: 9, 4: 3, 5: 1}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    steps = [dict.fromkeys(COLUMNS.split(), i) for i in range(1, 13)]
    for i, step in enumerate(steps, 1):
        step |= {"accuracy": "" if i % 6 else i, "accuracy_sampled_by_level": f"9 9 {i} 0"}
    common.write_rows(tmp_path / "metrics.csv", steps)
    row = compare.measures("add", tmp_path)
    expected = {"base_hard": 2, "mean_sampled": 6.75, "mean_hard": 4.5, "entropy_last": 7.5}
    assert {name: float(row[name]) for name in expected} == expected
    assert {"step 0": "9 9 3 1", "step 6": "9 9 6 0"}.items() <= compare.shares(tmp_path).items()
    values = "grpo 1 1, grpo 2 5, grpo@lr2 2 4, nthr 2 7, nthr 1 2, nthr@lr2 2 1, nthr 3 "
    rows = [dict(zip(("arm", "seed", "x"), row.split(" "))) for row in values.split(", ")]
    assert compare.differences(rows, "nthr", "x") == {1: 1, 2: 2}
    assert compare.differences(rows, "nthr@lr2", "x") == {2: -3}
    flags = "--prompts 45 --max-grad-norm 1000.5".split()
    assert runs.flags("prompts45,max-grad-norm=1000.5") == flags and runs.flags("") == []


def test_a_changed_step():
    """A change that is passed on too far, or not far enough, or that is not given."""
    for kind, task, numbers, level, given, rest in (
        ("digit", "add", [347, 285], 3, "12,14,06", "# 642"),  # the second step is changed
        ("carry", "add", [1996, 8009], 4, "15,00,", "09,09# 9905"),
        ("carry", "sum", [7, 8, 5, 1], 4, "15,19,", "20#20"),
        ("last", "add", [347, 285], 3, "12,13,07", "# 732"),
    ):
        p = problem(TASKS[task], numbers, level)
        new = faithful.changed(TASKS[task], p, kind, SimpleNamespace(integers=lambda *_: 1))
        assert new == p._replace(prompt=p.prompt + given, solution=rest)


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
    assert displacement.shares("add", "grpo", 400, least=5) == {1: 0.4}


def test_predictions_and_pass_at(monkeypatch):
    """An interval of the line, not of an arm; draws with replacement."""
    line = [np.array([x]) for x in ([0.0, 1, 2, 5], [1.0, 0, 3, 4])]  # y = (4 + 5 x) / 7
    monkeypatch.setattr(prediction, "axes_of", lambda *_: line)
    *_, row = prediction.predictions("add")  # at x = 5
    assert [row["predicted"], row["high"]] == pytest.approx([29 / 7, 29 / 7 + 7.0753], abs=1e-4)
    pass_1, pass_8 = ([1 - comb(1024 - c, N) / comb(1024, N) for c in (0, 1, 9)] for N in (1, 8))
    assert abs(allfail.pass_at([0, 1, 9], [1, 8]).T - [pass_1, pass_8]).max() < 1e-9


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
        parts = torch.autograd.grad(loss, list(model.parameters()))
        close(g, -torch.cat([part.flatten() for part in parts]))
    assert torch.cosine_similarity(found[0], found[1], dim=0) > 1 - 1e-9  # sigma is a constant


def test_the_arms():
    """Tokens spared that must not be, or too few, or far ones; a baseline that sees its token."""
    rollout = sample(tiny_gpt(), levels=[3] * 8, G=8)
    rollout.rewards = (torch.rand(8, 8) < 0.4).float()
    names = ("grpo", "nthr_eta0", "random_sparing")
    A, kept, found = (gradients.FUNCTIONS[name](rollout) for name in names)
    selected, spared = (A < 0) & (kept == 0), (A < 0) & (found == 0)
    pi = rollout.logprobs.exp()
    others = pi[(A < 0) & ~selected]
    assert 0 < spared.sum() == min(selected.sum(), len(others)) and not (spared & selected).any()
    far = lambda x: (x.sort()[0] - pi[selected].sort()[0][: len(x)]).abs().sum()  # noqa: E731
    anyone = [others[torch.randperm(len(others))[: selected.sum()]] for _ in range(100)]
    assert far(pi[spared]) <= min(far(x) for x in anyone) + 1e-6
    texts = ["15,20#20", "15,21#21", "05,20#2", "1"]  # correct: the first one
    rollout = scripted([problem(TASKS["sum"], [7, 8, 5], 3)] * 2, [texts, [*texts[1:], "#"]])
    oracle, prefix = ((gradients.FUNCTIONS[x](rollout) == 0)[0] for x in ("truth", "shared_prefix"))
    assert oracle[:3].int().tolist() == [[0] * 9, [1] * 4 + [0] * 5, [0, 1, 1, 1, 1, 0, 0, 0, 1]]
    assert prefix[:3].int().tolist() == [[0] * 9, [1] * 4 + [0] * 5, [0] * 8 + [1]]
    A = arms.prefix_baseline(rollout)[0]
    close(A[0], torch.tensor([1.0] * 9))  # no other response is correct
    close(A[1], -torch.tensor([1 / 3, 1 / 2, 1.0, 1.0, 1.0] + [1 / 3] * 4))
    close(A[3], -torch.tensor([1 / 3, 1 / 2] + [0] * 7))
    A = arms.substituted_up(tiny_gpt(), rollout)
    ended = [[text + "$" for text in texts], ["15,21#20$", "05,20#20$", "1#20$", "#20$"]]
    for group, tokens, mask in zip(ended, rollout.tokens, rollout.mask):
        assert group == [TOKENIZER.decode(x[y].tolist()) for x, y in zip(tokens, mask)]
    close(rollout.logprobs, response_logprobs(tiny_gpt(), rollout).detach(), 1e-5)
    assert A[0].min() < 0 == A[1].min() < A[1].max()
