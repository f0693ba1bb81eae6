"""The studies' arithmetic, on rows and groups whose answers are known."""

from math import comb

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")

from studies import allfail, common, compare, likelihood  # noqa: E402
from test_grpo import random_rollout  # noqa: E402


def study_row(task, arm, seed, value, **settings):
    """A row of compare.csv with one value in every measured column."""
    names = {column for columns in compare.HYPOTHESES.values() for column in columns}
    row = {"task": task, "arm": arm, "seed": str(seed), "steps": "200"}
    return row | {"core": common.core_checksum()} | dict.fromkeys(names, str(value)) | settings


SYNTHETIC = [("nthr", 0.05, 1), ("likelihood", -0.05, 1), ("critic", 0.01, 10)]
SYNTHETIC += [("culling", 0.0, 100), ("compensation", -0.02, 20)]  # arm, mean, spread


def test_verdicts(tmp_path, monkeypatch):
    """Means that are not paired by seed; an effect where there is none; a wrong sign."""
    monkeypatch.setattr(compare, "ROWS", tmp_path / "compare.csv")
    rows = []
    for seed, base in enumerate([0.2, 0.9, 0.5, 0.1, 0.7, 0.3, 0.6, 0.4, 0.8, 0.5]):
        noise = 0.001 * (-1) ** seed
        rows.append(study_row("wall", "grpo", seed, base))
        for arm, change, scale in SYNTHETIC:
            rows.append(study_row("wall", arm, seed, base + change + scale * noise))
    common.write_rows(compare.ROWS, rows[::-1])
    lines = {line.split(" | ")[0]: line for line in compare.verdicts().splitlines()[2:]}
    assert "+5.0 (+4.9 to +5.1) | seen | 10" in lines["| `nthr`"]
    assert "| seen" in lines["| `likelihood`"]
    assert "within 3 points" in lines["| `critic`"]
    assert "open, about" in lines["| `culling`"]
    assert "open, about" in lines["| `compensation`"]
    assert "negative" not in "".join(lines)


def test_rows_that_are_there_are_not_run_again(tmp_path, monkeypatch):
    """Rows of another core, number of steps, task or seed that are taken for this one's."""
    monkeypatch.setattr(compare, "ROWS", tmp_path / "compare.csv")
    changes = [{"core": "x"}, {"steps": "20"}, {"seed": "2"}, {"task": "sum"}, {}]
    arms = compare.arms_of("wall")
    rows = [study_row("wall", arm, 1, 0.5) | change for arm, change in zip(arms, changes)]
    common.write_rows(compare.ROWS, rows)
    assert compare.missing("wall", 1, arms) == arms[:4] + arms[5:]


def test_the_checksum_is_of_the_code_alone(tmp_path, monkeypatch):
    """A comment that makes a night of runs worthless; a change of code that does not."""
    sums = []
    for line in ("x = 1", '"""Text."""\nx = 1  # a comment', "x = 2"):
        for name in common.CORE:
            (tmp_path / name).write_text(line)
        monkeypatch.setattr(common, "ROOT", tmp_path)
        sums.append(common.core_checksum())
    assert sums[0] == sums[1] != sums[2]


def test_pass_at():
    """The chance that N of 1,024 responses, drawn without replacement, are not all incorrect."""
    n = allfail.SAMPLES
    counts = [0, 1, 7, n - 3, n]
    expected = [[1 - comb(n - c, N) / comb(n, N) for N in (1, 8, n)] for c in counts]
    np.testing.assert_allclose(allfail.pass_at(np.array(counts), [1, 8, n]), expected, atol=1e-9)


def test_gwhes_is_its_double_sum():
    """Eq. 5 of arXiv 2505.18830, token by token."""
    x = random_rollout([[1, 0, 0, 1, 0]])
    g = torch.nn.functional.one_hot(x.tokens[0], x.probs.size(-1)) - x.probs[0]
    pairs = torch.einsum("itv,jsv->itjs", g, g) * torch.einsum("itd,jsd->itjs", *[x.hidden[0]] * 2)
    total = pairs.nan_to_num()[x.mask[0]][:, x.mask[0]]
    owner = x.mask[0].nonzero()[:, 0]
    score = 0.0
    for i in (0, 3):
        for j in range(5):
            weight = -((3 / 2) ** 0.5) if j in (0, 3) else (2 / 3) ** 0.5
            score += weight * total[owner == i][:, owner == j].sum() / 2
    assert likelihood.gwhes(x) == pytest.approx(score.item(), rel=1e-4)


def test_random_spares_as_many_tokens():
    """More or fewer tokens than nthr spares, padding, or tokens of correct responses."""
    x = random_rollout([[1, 0, 0, 1]] * 20)
    spared = x.mask & (x.rewards == 0)[..., None] & (torch.arange(x.mask.size(-1)) < 2)
    A = likelihood.random_tokens(x, spared, torch.Generator().manual_seed(0))
    zero = (A == 0) & x.mask
    assert torch.equal(zero.sum(-1), spared.sum(-1))
    assert zero[..., 2:].any()
