"""The studies' arithmetic, on rows, groups and responses whose answers are known."""

import json
from math import comb
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")
from advantages import grpo  # noqa: E402
from studies import allfail, common, compare, displacement, faithful, verdicts  # noqa: E402
from test_grpo import TASKS, close, policy_loss, problem, response_logprobs  # noqa: E402
from test_grpo import sample, tiny_gpt  # noqa: E402


def test_verdicts():
    """An interval that is not Student's, a wrong sign or margin, tests that are not corrected."""
    assert common.interval([1, 2, 3]) == pytest.approx((2, -0.4841, 4.4841), abs=1e-4)
    expected = {-5: "contradicted", 0.2: "no difference", 2: "open; about 13 would decide"}
    tests = [verdicts.Test("H", "", [x - 2, x + 2] * 6, +1, 2.0) for x in expected]
    assert verdicts.verdicts(tests) == [*expected.values()]
    alone = [tests[i]._replace(direction=-1) for i in (0, 2)]
    assert [verdicts.verdicts([x]) for x in alone] == [["supported"], ["contradicted"]]
    same, other = (x._replace(direction=0, margin=9.0) for x in tests[1::-1])
    assert verdicts.verdicts([same, other]) == ["supported", "contradicted, small"]


def test_measures_and_differences(tmp_path):
    """Easy levels or steps without an evaluation that count; differences paired by order."""
    summary = dict.fromkeys(compare.SUMMARY, 0)
    summary |= {"base_sampled_by_level": {2: 9, 3: 9, 4: 3, 5: 1}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    steps = [dict.fromkeys(compare.train.COLUMNS.split(), i) for i in range(1, 13)]
    for i, step in enumerate(steps, 1):
        step |= {"accuracy": "" if i % 6 else i, "accuracy_sampled_by_level": f"9 9 {i} 0"}
    common.write_rows(tmp_path / "metrics.csv", steps)
    row = compare.measures("add", tmp_path)
    expected = {"base_hard": 2, "mean_sampled": 6.75, "mean_hard": 4.5, "entropy_last": 7.5}
    assert {name: float(row[name]) for name in expected} == expected
    assert [row[f"step {step}"] for step in (0, 6)] == ["9 9 3 1", "9 9 6 0"]
    values = "grpo 1 1, grpo 2 5, grpo@lr2 2 4, nthr 2 7, nthr 1 2, nthr@lr2 2 1, nthr 3 "
    rows = [dict(zip(("arm", "seed", "x"), row.split(" "))) for row in values.split(", ")]
    assert compare.differences(rows, "nthr", "x") == {1: 1, 2: 2}
    assert compare.differences(rows, "nthr@lr2", "x") == {2: -3}


def test_a_changed_step():
    """A change that is passed on too far, or not far enough, or that is not given."""
    for kind, task, numbers, level, given, rest in (
        ("digit", "add", [347, 285], 3, "12,14,06", "# 642"),  # the second step is changed
        ("carry", "add", [1996, 8009], 4, "15,00,", "09,09# 9905"),
        ("carry", "sum", [7, 8, 5, 1], 4, "15,19,", "20#20"),
    ):
        p = problem(TASKS[task], numbers, level)
        new = faithful.changed(TASKS[task], p, kind, SimpleNamespace(integers=lambda *_: 1))
        assert new == p._replace(prompt=p.prompt + given, solution=rest)


def test_pass_at():
    """Draws with replacement, or incorrect responses that count as correct."""
    n = allfail.SAMPLES
    expected = [[1 - comb(n - c, N) / comb(n, N) for N in (1, 8, n)] for c in (0, 1, 7, n)]
    assert abs(allfail.pass_at([0, 1, 7, n], [1, 8, n]) - expected).max() < 1e-9


def test_displaced_groups(monkeypatch):
    """A direction that is not an arm's update, a step that stays, groups at another p."""
    model = tiny_gpt().double()
    x = sample(model, levels=(2, 3))
    x.rewards = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]).double()
    slope, large, small = displacement.moved(model, x, 1, torch.stack([grpo(x), -grpo(x)]))
    logprobs = response_logprobs(model, x)
    close(logprobs, x.logprobs)
    policy_loss(*(y[1:] for y in (logprobs, x.logprobs, grpo(x), x.mask))).backward()
    torch.optim.SGD(model.parameters(), lr=1e-4).step()
    close(large[0], (response_logprobs(model, x) - logprobs)[1, 3].sum())  # of the correct one
    assert (small / 1e-5).tolist() == pytest.approx(slope.tolist(), rel=0.05)
    rows = [{"task": "add", "arm": "grpo", "seed": "1"} for _ in range(4)]
    for row, text in zip(rows, ("0 3 10 0.5", "0 7 30 0.1", "400 3 60 0.2", "400 7 40 0.4")):
        row |= zip(("step", "correct", "groups", "slope"), text.split())
    monkeypatch.setattr(displacement, "read_rows", lambda path: rows)
    assert displacement.shares("add", "grpo", 0) == {1: pytest.approx(0.6 * 0.5 + 0.4 * 0.1)}
    assert displacement.shares("add", "grpo", 400, least=5) == {1: 0.4}
