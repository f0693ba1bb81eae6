"""Without these tests the studies could compute wrong numbers, or leave processes behind."""

import os
import signal
import subprocess
import sys
import time
from copy import deepcopy
from itertools import combinations, product
from pathlib import Path
from statistics import fmean as mean
from statistics import pstdev
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.utils import parameters_to_vector

plt = pytest.importorskip("matplotlib.pyplot", reason="see studies/requirements.txt")
pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")
import train  # noqa: E402
from advantages import LOSS, VARIANTS, answer_likelihood, grpo  # noqa: E402
from advantages import standardise, with_advantages  # noqa: E402
from course.lecture import load  # noqa: E402
from grpo import Rollout, policy_loss, response_logprobs, update  # noqa: E402
from studies import ablations, common, difficulty, displacement, dose  # noqa: E402
from studies import gradients, gradients_report, group, pass_at_k, runs, timing  # noqa: E402
from studies.gradients_report import parts, relative  # noqa: E402
from studies.pass_at_k import SIZES  # noqa: E402
from studies.protocol import DIFFICULTY, DOSES  # noqa: E402
from tasks import TASKS, TOKENIZER  # noqa: E402
from test_grpo import SEED, by_loops, close, ids, problem, random_rollout  # noqa: E402
from test_grpo import sample, scripted, standardised, tiny_gpt  # noqa: E402


def test_displaced_groups(monkeypatch):
    """A slope that is not what a small step of SGD does to correct responses; an unmixed group."""
    model = tiny_gpt().double()
    x = sample(model, levels=(2, 3, 4))
    x.rewards = torch.tensor([[1.0] * 4, [0.0, 1.0, 0.0, 1.0], [0.0] * 4]).double()
    monkeypatch.setattr(displacement, "sampled", lambda *_: [x, x])
    assert [p for _, p, _ in displacement.groups(model, "add")] == [1, 1]
    A = with_advantages(x, grpo).A
    found = displacement.slopes(model, x, 1, torch.stack([A, -2 * A]))
    logprobs = response_logprobs(model, x)
    ones = torch.ones_like(x.mask[1:2], dtype=torch.double)
    loss, _ = policy_loss(logprobs[1:2], x.logprobs[1:2], A[1:2], ones)
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=1e-6).step()
    change = (response_logprobs(model, x) - logprobs)[1].sum(-1)
    expected = (change[1] + change[3]).item() / 2 / 1e-6
    assert found.tolist() == pytest.approx([expected, -2 * expected], rel=1e-3)


def test_shares_of_displaced_groups(monkeypatch):
    """Groups that are counted if they are not displaced; a row of a name that is not missing."""
    signs = torch.tensor([[-1.0, 1.0, 1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, 1.0, 1.0, 1.0, 1.0]])
    monkeypatch.setattr(displacement, "model_after", lambda *_: None)
    monkeypatch.setattr(displacement, "groups", lambda *_: [(row,) for row in signs])
    monkeypatch.setattr(displacement, "slopes", lambda _, row: row)
    rows = displacement.measure("add", 4, "", ["pos_only", "nthr"])
    found = [(row["variant"], row["displaced"], row["minus_grpo"]) for row in rows]
    assert found == [("pos_only", 0.5, -0.5), ("nthr", 0.0, -1.0)]


def test_measures_of_gradients():
    """Noise that counts as signal; a mean that is not above its noise; bias that is scatter."""
    torch.manual_seed(SEED)
    m, v, noise = torch.randn(3, 300).double()
    v += m
    M, V, size = m @ m, v @ v, m @ m + 4 * noise @ noise
    cosine = m @ v / (M * V).sqrt()
    uphill = cosine**2 * M  # |the part of the mean along v|^2; all else is noise
    true = {"cosine": cosine, "snr": uphill / (size - uphill)}
    shares = [uphill / size, (M - uphill) / size, 4 * noise @ noise / size]
    assert parts(true) == pytest.approx([x.item() for x in shares])
    found = []
    for _ in range(60):
        G, U = (x + 2 * noise * torch.randn(30, 300).double() for x in (m, v))
        found.append(gradients.bias_and_noise(G, U))
        one = gradients.bias_and_noise(G - G.mean(0), U)
        other = gradients.bias_and_noise(G, U - U.mean(0))
        assert np.isnan([one["cosine"], one["snr"], other["cosine"]]).all()
    for name, x in true.items():
        assert np.mean([row[name] for row in found]) == pytest.approx(x.item(), rel=0.02)


def test_where_a_step_goes():
    """A direction that is not the one in which update() moves the weights; a group not read."""
    model = tiny_gpt().double()
    x = sample(model, levels=(2, 5, 4, 3, 5, 4))
    x.rewards = torch.tensor([*torch.eye(4).tolist(), [0.0] * 4, [1.0] * 4]).double()
    for name in ("grpo", "reinforce", "negative", "ngrpo", "verifree"):
        variant = gradients.FUNCTIONS[name]
        trained = with_advantages(x, variant)
        loss = {"aggregate": "token"} | LOSS.get(name, {})
        moved = deepcopy(model)
        sgd = torch.optim.SGD(moved.parameters(), lr=1.0)
        update(moved, sgd, trained, minibatches=1, max_grad_norm=1e9, **loss)
        both = [parameters_to_vector(y.parameters()).detach() for y in (moved, model)]
        g = gradients.direction(model, x, variant, loss["aggregate"])
        assert g.any()
        close(g, both[0] - both[1])
    x.rewards = torch.zeros(6, 4).double()
    assert not gradients.direction(model, x, grpo).any()


def test_relative_ratios():
    """A mean of ratios that is not geometric; both names of one algorithm."""
    values = (("grpo", 4, 2), ("grpo", 5, 4), ("half", 4, 2), ("half", 5, 16), ("dense", 4, 3))
    values += (("dr_grpo", 4, 1), ("rloo", 4, 1))
    rows = [{"task": "add", "variant": x, "seed": seed, "snr": y} for x, seed, y in values]
    found = relative(rows)
    assert {name: x.value for name, x in found.items()} == pytest.approx(
        {"half": 2, "dense": 1.5, "grpo": 1, "dr_grpo": 0.5}
    )
    (_, low, high) = found["half"]
    assert (low, high) == pytest.approx((1, 4))  # of one base model, of the other


def test_rank_correlation():
    """Values in place of ranks; a control, another task or another rate that counts."""
    ratios = {"half": 1.1, "nthr": 1.2, "critic": 0.1, "dense": 9}
    rows = [{"task": "add", "variant": "grpo", "seed": 4, "snr": 1}]
    rows += [{"task": "add", "variant": x, "seed": 4, "snr": snr} for x, snr in ratios.items()]

    def effect(variant, gain, task="add", chosen=True):
        about = {"task": task, "variant": variant, "chosen": chosen}
        return SimpleNamespace(average=SimpleNamespace(value=gain), **about)

    results = [effect("half", 1), effect("nthr", 9), effect("critic", -90), effect("dense", -99)]
    results += [effect("half", 99, "mul"), effect("nthr", -99, chosen=False)]
    assert gradients_report.rank_correlation(rows, results, "add") == pytest.approx(1)
    results[0].average.value = 10
    assert gradients_report.rank_correlation(rows, results, "add") == pytest.approx(0.5)


def test_time_of_a_run(monkeypatch):
    """Evaluations that count; steps of another loop that count; a run that is faster than grpo."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(timing, "process_time", lambda: clock.now)

    def loop(seconds):
        for n, x in enumerate(seconds, 1):
            clock.now += x
            yield None, {"step": n} | ({"greedy": 0.0} if n == 3 else {})

    loops = [timing.seconds_of_steps(loop(x)) for x in ([1, 2, 9, 3], [2, 4, 50, 6])]
    grpo, ours = np.transpose([*zip(*loops)])
    assert grpo.tolist() == [1, 2, 2, 3] and ours.tolist() == [2, 4, 4, 6]
    assert timing.of_run(ours, grpo) == {"seconds": 16, "of_grpo": 2, "same_time": 2.5}
    assert timing.of_run(grpo, ours) == {"seconds": 8, "of_grpo": 0.5, "same_time": 4}


def test_pass_at_k():
    """An estimate that is not the share of all subsets of k samples with a correct one."""
    for k, c in product((1, 2, 4, 6), (0, 1, 3, 6)):
        subsets = [*combinations([True] * c + [False] * (6 - c), k)]
        share = np.mean([any(subset) for subset in subsets])
        assert pass_at_k.pass_at(k, np.array([c, 6]), 6) == pytest.approx((share + 1) / 2)


def test_a_ring_is_where_a_curve_crosses_that_of_the_base_model():
    """A ring at a k that was measured, beside the crossing, or where no curves cross."""
    heights = dict.fromkeys(pass_at_k.SHOWN, 1.5) | {"grpo": 0.43, "half": -1}
    rows = []
    for name, height in heights.items():
        shares = {str(k): i / 10 if name == "base" else height for i, k in enumerate(SIZES)}
        rows += [{"model": name, "seed": seed} | shares for seed in (4, 5)]
    _, ax = plt.subplots()
    pass_at_k.draw(ax, rows)
    rings = {}
    for name, line in zip(pass_at_k.SHOWN, ax.lines):
        rings[name] = [line.get_xydata()[i] for i in line.get_markevery()]
    assert rings.pop("grpo") == [pytest.approx((4.3, 43), abs=0.02)]
    assert not any(rings.values())


def test_the_group_of_the_picture():
    """A group with none or several correct responses; another variant's advantages; a mistake in
    an answer that is not marked, and one that cannot be seen.
    """
    x = problem(TASKS["add"], [347, 285], 3)
    rollout = group.first_correct(load("add", "add-base"), x)
    assert rollout.rewards.tolist() == [[1] + 7 * [0]]
    _, ax = plt.subplots()
    group.draw(ax, rollout, 0, "grpo")
    labels = [text.get_text() for text in ax.get_yticklabels()]
    assert labels == ["reward 1, A = +2.65"] + 7 * ["reward 0, A = -0.38"]
    pairs = [pair for text in rollout.texts[0] for pair in zip(text + "$", x.solution + "$")]
    assert len(ax.lines) == sum(ours != true for ours, true in pairs) > 8  # answers have bars, too
    assert " " not in [text.get_text() for text in ax.texts]


def test_spared_tokens(monkeypatch):
    """Tokens spared that must not be, or too few; partners that are not the nearest; a tensor of
    the rollout, or of a variant, that is written to."""
    rollout = sample(tiny_gpt(), levels=[3] * 8, G=8)
    rollout.rewards = (torch.rand(8, 8) < 0.4).float()
    A = with_advantages(rollout, grpo).A
    pi = rollout.logprobs.exp()
    for share in (0.04, 0.9):
        selected = (A < 0) & (torch.rand(A.size()) < share)  # in place of what nthr selects
        given = {"grpo": grpo(rollout), "nthr_eta0": A.masked_fill(selected, 0.0)}
        for name, x in given.items():
            monkeypatch.setattr(ablations, name, lambda _, x=x: x)
        given |= {name: x for name, x in vars(rollout).items() if isinstance(x, torch.Tensor)}
        before = deepcopy(given)
        found = ablations.random_sparing(rollout)
        assert all(torch.equal(x, before[name]) for name, x in given.items())
        spared, others = (A < 0) & (found == 0), (A < 0) & ~selected
        assert 1 < spared.sum() == min(selected.sum(), others.sum())
        assert not (spared & selected).any()
        close(found, A.masked_fill(spared, 0.0), 0)
        # The cost is the least for these two sets if numbers are paired in their order.
        for i, other in product(range(int(spared.sum())), pi[others & ~spared]):
            exchanged = pi[spared].clone()
            exchanged[i] = other
            costs = [
                (pi[selected].sort()[0] - x.sort()[0]).abs().sum() for x in (exchanged, pi[spared])
            ]
            assert costs[0] >= costs[1] - 1e-6


def test_a_failure_is_pushed_down_from_its_first_mistake_on():
    """A correct token of a failure is pushed down, the first wrong one is not, or a success loses
    its push.
    """
    p = problem(TASKS["sum"], [7, 8, 5], 3)  # its solution is 15,20#20
    texts = ["15,20#20$", "15,21#20$", "05,20#20$", "15,20#2"]
    x = scripted([p, p], [texts, texts], T=9)
    x.rewards = torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]])
    A = with_advantages(x, ablations.first_mistake).A
    kept = with_advantages(x, grpo).A
    for i, first in ((1, 4), (2, 0), (3, 7)):  # the first mistake
        kept[0, i, :first] = 0.0
    close(A, kept, 0)


def same_prefix_at(x, i, t):  # A_{i,t} of a group of lists, as in FORMULAS of test_grpo.py
    r = [r for r, y in zip(x.r, x.tokens) if y[:t] == x.tokens[i][:t]]
    return (x.r[i] - mean(r)) / (pstdev(x.r) + 1e-6) if min(x.r) < max(x.r) else 0.0


def process_by_step_at(x, i, t):
    ends = [k for k, token in enumerate(x.solution, 1) if TOKENIZER.decode([token]) in (*",#$",)]
    R = [[float(y[:k] == x.solution[:k]) for k in ends] for y in x.tokens]
    above = [[r - mean(column) for r, column in zip(row, zip(*R))] for row in R]
    sd = mean([d**2 for row in above for d in row]) ** 0.5
    return sum(d / (sd + 1e-6) for d, k in zip(above[i], ends) if k > t)


BY_LOOPS = {"same_prefix": same_prefix_at, "process_by_step": process_by_step_at}
BY_LOOPS["double"] = lambda x, i, t: min(standardised(x.r, i), 2 * standardised(x.r, i))
BY_LOOPS["quarter"] = lambda x, i, t: max(standardised(x.r, i), standardised(x.r, i) / 4)
BY_LOOPS["focal"] = lambda x, i, t: (1 - mean(x.r)) ** 1.5 * standardised(x.r, i)
BY_LOOPS["focal_half"] = lambda x, i, t: (1 - mean(x.r) / 2) * standardised(x.r, i)
BY_LOOPS["flat_pos"] = lambda x, i, t: x.r[i] / (pstdev(x.r) + 1e-6) if min(x.r) < max(x.r) else 0.0


@pytest.mark.parametrize("name", BY_LOOPS)
def test_controls_equal_their_formulas(name):
    """The mean of other responses, steps or groups; a prefix with the token itself; padding that
    counts; a group of one, or of equal rewards, that is pushed."""
    groups = [[[1, 0, 0, 1], [0] * 4, [1] * 4, [0.2, 1, 0.7, 0]], [[0, 1, 0], [0.7] * 3], [[1]]]
    for T, rewards, poison in product((1, 5, 9), groups, (np.nan, None)):
        x = random_rollout(rewards, T, poison)  # padding holds 10**6, or what others wrote
        expected = by_loops(x, BY_LOOPS[name])
        A = with_advantages(x, ablations.CONTROLS[name]).A
        close(A, expected)
        assert not A[expected == 0].any()


def test_a_weaker_push_down_is_a_weight_on_problems():
    """A weight w of incorrect responses that is not, in expectation, grpo's update times 1 - (1 -
    w) p; controls that weigh hard problems (p = 1/8) over easy ones (7/8) as the results do not
    say; a group of another number of correct responses that counts."""
    for p in (1 / 8, 0.3, 1 / 2, 7 / 8):
        of_grpo = difficulty.weight("grpo", p)
        for w, name in DOSES.items():
            assert difficulty.weight(name, p) / of_grpo == pytest.approx(1 - (1 - w) * p)
        # reinforce gives the gradient of the expected reward: p (1 - p) (u - v) = p u
        assert difficulty.weight("reinforce", p) == pytest.approx(p)
    found = {x: difficulty.hard_to_easy(x) for x in ("half", "pos_only", *DIFFICULTY)}
    said = {"half": 1.7, "pos_only": 7.0, "focal": 7.2, "focal_half": 1.5, "flat_pos": 1.5}
    assert {name: round(x, 1) for name, x in found.items()} == said


def test_the_design_of_two_factors(monkeypatch):
    """An effect with another sign or of other rules; a verdict that is turned round, or that looks
    at one measure; other base models than those that have all four."""
    heads = {"variant": "", "task": "mul", "lr": 3e-4, "flags": ""}
    monkeypatch.setattr(difficulty, "chosen_rate", lambda *_: 3e-4)

    def verdict(focal, flat_pos, pos_only, all_fail_of_focal=None):
        rows = []
        for name, gain in zip(difficulty.FACTORS, (0.0, focal, flat_pos, pos_only)):
            for seed in (1, 4, 5) + (6,) * (name != "focal"):
                x = gain * (1 + (seed not in (4, 5))) + seed / 100
                shares = {"mean_sampled": x, "final_greedy": x, "all_fail": -x}
                if name == "focal" and all_fail_of_focal is not None:
                    shares["all_fail"] = all_fail_of_focal - seed / 100
                rows.append(heads | {"variant": name, "seed": seed} | shares)
        found = difficulty.factors(rows, "mul", "mean_sampled").values()
        said = difficulty.decided(rows, "mul", ["final_greedy", "all_fail"])
        return [pytest.approx(x.tolist(), abs=1e-9) for x in found], said

    effects, said = verdict(0.05, 0.01, 0.06)
    assert effects == [[0.05] * 2, [0.01] * 2, [0.0] * 2]
    assert "focal has 83% (83% to 83%), 83%" in said and "flat_pos has 17% (17% to 17%)" in said
    assert said.endswith("So it is the weight on hard problems, as in 100% of the draws.")
    assert "So it is the push down," in verdict(0.01, 0.05, 0.06)[1]
    assert "So it is both," in verdict(0.05, 0.03, 0.06)[1]
    assert "So it is both," in verdict(0.05, 0.01, 0.06, 0.0)[1]  # greedily, not all-fail
    assert difficulty.factors([], "mul", "mean_sampled")["interaction"].tolist() == []


@pytest.mark.parametrize("G", [2, 3])
def test_the_means_of_steps_are_baselines(G):
    """A bias: the mean gradient over all groups of a policy is not grad J, up to a factor of each
    token: 1 - 1/G for process_by_step, and nearer to 1 for later tokens of process."""
    theta = torch.randn(3, 2, dtype=torch.double, requires_grad=True)  # right or wrong, three times
    wrong = torch.tensor([*product((0, 1), repeat=3)])  # 8 responses
    logprobs = theta.log_softmax(1)[range(3), wrong]  # (8, 3)
    R = (wrong.cumsum(1) == 0).double()  # of the steps; each has one token
    J = (logprobs.sum(1).exp() * R.sum(1)).sum()
    (grad_J,) = torch.autograd.grad(J, theta, retain_graph=True)
    groups = torch.tensor([*product(range(8), repeat=G)])  # (8**G, G)
    tokens = torch.where(wrong == 0, torch.tensor(ids(",,$")), torch.tensor(ids("1")))[groups]
    x = Rollout(tokens, tokens > 0, torch.zeros(groups.size()).double(), None, None, None)
    x.problems = [problem(TASKS["sum"], [7, 8, 5], 3)._replace(solution=",,")] * len(groups)
    R, logprobs = R[groups], logprobs[groups]  # (8**G, G, 3)
    chance = logprobs.sum((1, 2)).exp().detach()
    later = torch.tensor([3, 2, 1])  # steps that end at the token or later
    both = (VARIANTS["process"], (1, 2), later / 3), (ablations.process_by_step, 1, later / later)
    for variant, over, lost in both:  # lost: times G
        sd = (R - R.mean(over, keepdim=True)).square().mean((1, 2), keepdim=True).sqrt()
        undivided = with_advantages(x, variant).A * (sd + 1e-6)
        goal = (chance * (undivided * logprobs).mean(1).sum(1)).sum()
        (found,) = torch.autograd.grad(goal, theta, retain_graph=True)
        close(found, (1 - lost / G)[:, None] * grad_J, 1e-7)


def test_the_dose(tmp_path, monkeypatch):
    """A rate chosen on the base model that it is shown for; entropy of the wrong steps; a verdict
    that is turned round, or looks at no interval."""
    steps = [{"step": n, "entropy": n or ""} for n in range(31)]
    common.write_rows(tmp_path / "metrics.csv", steps)
    monkeypatch.setattr(dose, "folder_of", lambda run, out: tmp_path)
    rows = []
    for seed, w, lr in dose.RUNS:
        x = 0.9 if (seed, w, lr) == (16, 1, 4.2e-4) else seed / 100 + (lr == 3e-4) / 50
        monkeypatch.setattr(dose, "row_of", lambda _, x=x: dict.fromkeys(dose.COLUMNS, x))
        rows.append(dose.measure(seed, w, lr, "x"))
    common.write_rows(tmp_path / "dose.csv", rows)
    best = dose.at_best_rates(common.read_rows(tmp_path / "dose.csv"))
    assert {(row["entropy"], row["final_entropy"]) for row in best} == {(15.5, 18.0)}
    assert [row["lr"] for row in best if row["weight"] == 1] == [3e-4] + [4.2e-4] * 5
    said = ("stays, and the weights have", "does not stay, and", "stays, and the weights do not")
    for of_16, of_2, said in zip((0.001, 0.1, 0.001), (0, 0, 0.025), said):  # 0.1: in the mean only
        for row in best:
            x = {2: of_2, 1: of_16 * (row["seed"] == 16), 0.5: 0.02, 0.25: 0.03, 0: 0}
            row["mean_sampled"] = row["seed"] / 100 + x[row["weight"]]
        assert said in dose.page(best)
    assert "| 2 minus 1 | +2.5 (+2.4 to +2.5) |" in dose.page(best)


TEXTS = ["15,20#20", "15,21#21", "05,20#2", "1"]  # correct: the first one


def of_sums():
    """A group of these texts and one where all fail, of tiny_gpt's probabilities."""
    x = scripted([problem(TASKS["sum"], [7, 8, 5], 3)] * 2, [TEXTS, [*TEXTS[1:], "#"]])
    x.model = tiny_gpt()
    x.logprobs = response_logprobs(x.model, x).detach()
    return x


def decoded(x):
    """The tokens of each group as texts."""
    groups = zip(x.tokens, x.mask)
    return [[TOKENIZER.decode(y[m].tolist()) for y, m in zip(*group)] for group in groups]


def test_shuffled_likelihoods():
    """L of another group, or a group that is not all-fail; an order that stays."""
    rollout = of_sums()
    torch.manual_seed(SEED)
    L = answer_likelihood(rollout)[1]
    found = ablations.shuffled_L(rollout)
    close(found[0], grpo(rollout)[0])
    assert not torch.equal(found[1], standardise(L[None])[0])
    close(found[1].sort()[0], standardise(L[None])[0].sort()[0], 1e-5)


def test_dense():
    """L of another answer or without its end; an advantage for what has no marker."""
    rollout = of_sums()
    rollout.problems[1] = problem(TASKS["sum"], [7, 8, 6], 3)
    x = with_advantages(rollout, ablations.verifree_undivided)
    assert decoded(x)[1] == ["15,21#21$", "05,20#21$", "1$", "#21$"]
    for p in range(2):
        log_L = x.logprobs[p].masked_fill(~x.given[p], 0.0).sum(1)
        there = torch.tensor(["#" in text for text in decoded(rollout)[p]])
        mu = (log_L.exp() * there).mean()
        others = (4 * log_L.exp() * there - 4 * mu) / 3
        A = ablations.dense(rollout)[p]
        close(A, others / ((mu * (1 - mu)).sqrt() + 1e-6), 1e-4)
        plain = torch.where(x.given[p], log_L.exp()[:, None], others[:, None])
        close(x.A[p], plain.masked_fill(~x.mask[p], 0.0), 1e-5)
    none = scripted(rollout.problems, [["15,20", "1", "2", ""]] * 2)
    none.model = rollout.model
    assert not ablations.dense(none).any()


def test_controls_can_be_trained():
    """A name that the command line does not take."""
    for name in ablations.CONTROLS:
        argv = ["--variant", name, "--prompts", "2", "--width", "8"]
        args = runs.settings("add", 4, "x", *argv)
        args.steps = 1
        with runs.controls():
            ((*_, row),) = train.train(args, train.new_model(args))
        assert np.isfinite(row["loss"])


STUDY = """
import sys, time
from pathlib import Path
from studies.common import side_by_side

def job(n, folder):
    Path(folder, f"begun-{n}").touch()
    time.sleep(0 if n == 0 else 300)

if __name__ == "__main__":
    for done in side_by_side(job, [(n, sys.argv[1]) for n in range(9)], 2):
        print("one", flush=True)
        if len(sys.argv) > 2:
            raise RuntimeError
"""


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL, None])
def test_a_study_that_is_stopped_is_stopped(tmp_path, stop):
    """Workers go on for hours after Ctrl-C, or for ever after their parent was killed."""
    (tmp_path / "study.py").write_text(STUDY)
    environment = os.environ | {"PYTHONPATH": str(Path(common.__file__).parents[1])}
    command = [sys.executable, "study.py", str(tmp_path)] + ["error"] * (stop is None)
    # A shell lets what it starts in the background ignore Ctrl-C; the study must not inherit this.
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    study = subprocess.Popen(command, cwd=tmp_path, env=environment, preexec_fn=heed, **pipes)
    assert study.stdout.readline() == b"one\n"
    while stop and study.poll() is None and len([*tmp_path.glob("begun-*")]) < 3:
        time.sleep(0.05)
    if stop:
        study.send_signal(stop)
    # The pipes are closed when the last process that holds them has ended.
    study.communicate(timeout=120)
    assert study.returncode and len([*tmp_path.glob("begun-*")]) <= 3


@pytest.mark.parametrize(
    "text, said",
    [
        ("task,seed\nadd,1\n<<<<<<< HEAD\nadd,2\n", "line 3: not as many fields"),
        ('task,seed\nadd,"1\nadd,2,3\nadd,2\n', "line 3: not as many fields"),
        ("task,seed\nadd,1\nadd,\xff\n", "line 3: .* or not UTF-8"),
        ("task,seed\nadd,1\nadd,0.5", "line 3: it has no end, so it may be torn"),
        ("", "line 1: no header"),
        ("task;seed\nadd;1\n", "line 1: no column seed. Its columns are task;seed."),
    ],
)
def test_a_table_that_is_torn_or_was_changed_by_hand(tmp_path, text, said):
    """A traceback from deep inside a study, which does not say what is wrong with the file; half a
    number that counts."""
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit, match=f"rows.csv, {said}"):
        common.by_seed(common.read_rows(path), "seed", task="add")
        [row["seed"] for row in common.read_rows(path)]
