"""The studies' arithmetic, on rows, groups and responses whose answers are known."""

import json
from math import comb
from types import SimpleNamespace

import pytest

pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")
from studies import allfail, common, compare, faithful  # noqa: E402
from test_grpo import TASKS, problem  # noqa: E402


def test_verdict():
    """An interval that is not Student's, a wrong sign or margin, a first stage that counts on."""
    assert common.interval([1, 2, 3]) == pytest.approx((2, -0.4841, 4.4841), abs=1e-4)
    for mean, found in {5: "supported", -5: "contradicted", 1.5: "negligible", 2.5: "open"}.items():
        assert common.verdict({s: mean + 2 * (-1) ** s for s in range(1, 13)}, +1, 3)[0] == found
    late = {s: 1 + s / 99 for s in range(13, 25)}
    assert common.verdict({1: 50, 2: 60} | late, -1, 3)[0] == "contradicted and small"
    assert common.verdict({1: 50, 2: 60, 13: 1}, -1, 3) == ("none yet", "1 of 12")


def test_differences():
    """Differences that are paired by order and not by seed, or with the wrong reference."""
    rows = {("grpo", 1): {"x": 1}, ("grpo", 2): {"x": 5}, ("grpo-1", 2): {"x": 4}}
    rows |= {("nthr", 2): {"x": 7}, ("nthr", 1): {"x": 2}, ("compensation-1", 2): {"x": 1}}
    assert compare.differences(rows, "nthr", "x") == {1: 1, 2: 2}
    assert compare.differences(rows, "compensation-1", "x") == {2: -3}


def test_measures(tmp_path):
    """Easy levels or steps without an evaluation that count, or another end of the run."""
    summary = {"steps": 12, "seconds": 1}
    for x in ("base_accuracy", "final_accuracy", "base_sampled", "final_sampled"):
        summary |= {x: 0, f"{x}_steps_correct": 0, f"{x}_by_level": {2: 9, 3: 9, 4: 3, 5: 1}}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    steps = [dict.fromkeys(compare.train.COLUMNS.split(), i) for i in range(12)]
    for i, step in enumerate(steps):
        step |= {"accuracy": "" if i % 6 else i, "accuracy_sampled_by_level": f"9 9 {i} 0"}
    common.write_rows(tmp_path / "metrics.csv", steps)
    row = compare.measures("add", "grpo", 1, tmp_path)
    expected = {"base_sampled_hard": 2, "mean_sampled": 3, "mean_hard": 1.5, "entropy_last": 6.5}
    assert {name: float(row[name]) for name in expected} == expected


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
