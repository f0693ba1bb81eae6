"""Without these tests a model could see the future or held-out problems, or meet NaN."""

import math
import re
import zlib
from copy import deepcopy

import pytest
import torch

import advantages
import grpo
import tasks
from advantages import VARIANTS, with_advantages
from grpo import policy_loss, sample_rollout, token_weights
from model import GPT
from tasks import ADD, SUM, TASKS, held_out, make_problems, mark_mistake
from test_grpo import FAIL, FORMULAS, MIXED, ONE, POISON, REAL, V, apply, by_loops
from test_grpo import close, nthr_at, problem, random_rollout, sample
from test_grpo import score_at, scripted, tiny_gpt


def test_first_weights():
    """Weights that are larger: the first responses are then far from random."""
    first = GPT(18, 60)
    assert all(0.018 < w.std() < 0.022 for w in first.parameters() if w.dim() == 2)
    assert (len(first.blocks), first.unembed.in_features, first.unembed.bias) == (2, 64, None)


def test_defaults_and_limits():
    """What a caller does not say; a response of one token, which counts whole."""
    rollout = sample(tiny_gpt())
    assert (rollout.temperature, rollout.max_length) == (1, len(ADD.longest.solution) + 1)
    ended = scripted([problem(SUM, [7, 8], 2)], [["1$", "$23"]])
    assert ended.mask.size(2) == 2  # T is that of the longest response
    assert grpo.token_weights(torch.ones(1, 1, 1) > 0, "response") == 1
    assert (grpo.k3(torch.linspace(-0.02, 0.02, 1001)) >= 0).all()  # rounding included
    close(grpo.k3(torch.tensor([-1e4, 1e4])).log(), torch.tensor([math.log(19.0), 20.0]), 1e-5)


def test_forking_by_hand():
    """A quantile that does not interpolate, that counts padding, that is of each group, or that
    counts groups without an advantage.
    """
    rollout = random_rollout([[1, 0], [0, 1], [1, 1]], T=5)
    rollout.mask[:] = True
    p = torch.linspace(0.5, 0.975, 20).double()  # the larger, the surer: H falls
    p = torch.cat([p, torch.full((10,), 0.5).double()]).view(3, 2, 5)  # all-pass: unsure
    rollout.probs = torch.stack([p, 1 - p], dim=-1)  # V = 2
    rollout.mask[1, 1, 3:] = False
    rollout.probs[1, 1, 3:] = 0.5  # padding, of which the policy was least sure
    A = advantages.forking(rollout)
    plain = apply("grpo", rollout).A
    close(A[0, 0, :4], plain[0, 0, :4])  # four of eighteen
    assert not A[0, 0, 4:].any() and not A[0, 1].any() and not A[1:].any()
    rollout.probs[:] = 0.5
    close(apply("forking", rollout).A, plain)  # at the quantile: kept


def test_nthr_equals_algorithm_1():
    """A wrong score or threshold spares other tokens; eta that is given and not used."""
    rollout = random_rollout([MIXED, ONE, [0.1, 0.5, 0.2, 0.0], [1, 1, 0, 1]], T=4)
    rollout.mask[3, :, 1:] = False  # here all sums are exact, s = tau, and tau is negative
    rollout.tokens[3] = 1
    rollout.probs[3] = 0.25
    rollout.hidden[3] = torch.tensor([3.0, -1.0, -1.0, 3.0])[:, None, None]
    close(advantages.nthr_scores(rollout), by_loops(rollout, score_at))
    for eta in (None, 0.0, 0.3):
        A = by_loops(rollout, lambda x, i, t: nthr_at(x, i, t, eta))  # noqa: B023
        close(advantages.nthr(rollout, eta).masked_fill(~rollout.mask, 0.0), A)
    close(advantages.negative(rollout, c=0.0), advantages.grpo(rollout))


def test_tensors_are_made_where_the_model_is(monkeypatch):
    """On a GPU a tensor that is made elsewhere stops the run; "meta" plays the other device."""
    monkeypatch.setattr(grpo, "judge", lambda *given: torch.ones(4, 4, device="cpu"))  # is sent
    runs = []
    for device in ("cpu", "meta"):
        model = tiny_gpt()
        with torch.device(device):
            x = sample(model)
            trained = with_advantages(x, advantages.verifree)
            metrics = grpo.update(model, torch.optim.SGD(model.parameters()), trained)
            likelihood = advantages.answer_likelihood(x).tolist()
            runs.append([x.rewards.tolist(), metrics, likelihood, trained.A.tolist()])
    assert runs[0] == runs[1]


def test_what_cannot_be_computed_is_refused_in_words():
    """A slice is silently empty, a block raises a shape error, or None is multiplied by a number.
    Or prompts of different lengths are padded inside, so responses begin at other positions than in
    the warm-up.
    """
    with pytest.raises(ValueError, match="a row of 61 tokens"):
        tiny_gpt()(torch.zeros(1, 61, dtype=torch.int64))
    with pytest.raises(ValueError, match="one length"):
        sample_rollout(tiny_gpt(), SUM, [SUM.longest, ADD.longest], 2)
    with pytest.raises(ValueError, match="multiple of 4"):
        GPT(V, 60, width=10)
    with pytest.raises(ValueError, match="max_length"):
        token_weights(torch.ones(1, 2, 3) > 0, "constant")


def test_numbers_that_are_not_finite_are_refused():
    """With NaN as a probability, greedy decoding goes on silently, and sampling raises an error
    without a reason. With NaN as a reward, every weight becomes NaN.
    """
    model = tiny_gpt()
    for weight in model.parameters():
        weight.data.fill_(1e30)
    for temperature in (0.0, 1.0):
        with pytest.raises(FloatingPointError, match="probability"):
            sample(model, temperature=temperature)

    class Unsure(tasks.Task):
        def reward(self, problem, response):
            return math.nan

    unsure = Unsure(tasks.running_totals, tasks.from_totals, SUM.levels)
    with pytest.raises(ValueError, match="a reward of this task .*Unsure"):
        sample(tiny_gpt(), (3, 4), task=unsure)


# ---- Variants, sampling and the update
def test_rloo_and_dr_grpo_train_alike_for_two_reasons():
    """Two names for one algorithm are taken for two results: rloo is dr_grpo times G / (G - 1).

    Adam removes this constant factor at any norm limit. The denominators also differ: the number of
    tokens, which changes from rollout to rollout, and a constant. Only the limit of 0.01 removes
    this difference. Neither removes the division by sigma. All moves are over three rollouts and
    without a clip. They are only nearly equal, because the limit adds 1e-6 to the norm, and Adam
    its eps to the size of a gradient. (Here eps is smaller than usual.)
    """

    def moves(name, aggregate, limit):
        first = tiny_gpt().double()
        model = deepcopy(first)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-12)
        settings = {"aggregate": aggregate, "clip_low": 1.0, "clip_high": 1e9}
        for step in range(3):
            x = sample(first, (2, 5, 4, 3, 2), seed=step)
            x.mask[..., 2 + 6 * step :] = False  # so the number of tokens changes
            x.rewards = torch.tensor([MIXED, ONE, FAIL, ONE, MIXED], dtype=torch.float64)
            trained = with_advantages(x, VARIANTS[name])
            metrics = grpo.update(model, optimizer, trained, 2, max_grad_norm=limit, **settings)
            assert (metrics["grad_norm"] > limit) == (limit == 0.01)
        weights = zip(model.parameters(), first.parameters())
        return torch.cat([(new - old).flatten() for new, old in weights]).detach()

    def apart(a, b):
        return (a - b).norm() / b.norm()

    for limit in (0.01, 1e9):
        rloo = moves("rloo", "token", limit)
        dr_grpo = moves("dr_grpo", "token", limit)
        constant = moves("dr_grpo", "constant", limit)
        assert apart(rloo, dr_grpo) < 1e-4, "Adam removes the factor G / (G - 1) at any limit"
        assert apart(moves("grpo", "token", limit), rloo) > 0.01, "sigma is no constant"
        if limit == 0.01:
            assert apart(rloo, constant) < 1e-4 and apart(dr_grpo, constant) < 1e-4
        else:  # nothing removes what changes from rollout to rollout
            assert apart(rloo, constant) > 0.05 and apart(dr_grpo, constant) > 0.05


def test_verifree_teaches_nothing_where_nothing_is_left_to_learn():
    """L of 1 gives a deviation of 0: rounding over eps would be trained on."""
    x = random_rollout([ONE, MIXED])
    x.end[:, :, 0] = True
    x.logprobs[x.end] = 0.0
    assert not apply("verifree", x).A.any()
    x.end[:] = False
    assert not apply("verifree", x).A.any()


def test_tokens_are_drawn_from_the_recorded_distribution():
    """Tokens are drawn from other probabilities than those that are kept: another temperature."""
    rollout = sample(tiny_gpt(), (2,), G=8000, temperature=0.7, max_new_tokens=1)
    close(rollout.tokens.flatten().bincount(minlength=V) / 8000, rollout.probs[0, 0, 0], 0.03)
    assert sample(tiny_gpt()).texts == sample(tiny_gpt()).texts != sample(tiny_gpt(), seed=1).texts


def test_nan_in_the_padding_reaches_no_loss_or_gradient():
    """Padding that holds NaN is multiplied by 0, which gives NaN, also in the gradient. Or it is
    replaced only after the exponential. One NaN in the loss makes every weight NaN.
    """
    rollout = random_rollout([MIXED, ONE, FAIL, REAL])

    def results(poisoned, padding):
        rows = [rollout.logprobs + 0.4, rollout.logprobs.clone(), apply("critic", rollout).A]
        rows[poisoned][~rollout.mask] = padding
        loss, _ = policy_loss(*[x.requires_grad_() for x in rows], token_weights(rollout.mask))
        return [loss, *torch.autograd.grad(loss, rows)]

    for poisoned, name in enumerate(("logprobs", "old_logprobs", "A")):
        for poison in (*POISON[:3], 1e300):
            loss, *gradients = results(poisoned, poison)
            said = f"of policy_loss, where the padding of {name} holds {poison}: it is not replaced"
            assert loss.isfinite(), f"the value {said}"
            assert all(x.isfinite().all() for x in gradients), f"the gradient {said} before exp"
            close([loss, *gradients], results(poisoned, 0.0), 0)


@pytest.mark.parametrize("name", VARIANTS)
def test_equal_rewards_give_exactly_zero(name):
    """Equal rewards give an advantage that is only nearly 0: rounding, divided by eps, is trained
    on. Only what a formula states may be another number.
    """
    for G in (1, 3, 7):
        rewards = [[r] * G for r in (0.0, 0.1, 0.7, 1.0)]
        rollout = random_rollout(rewards, T=1, dtype=torch.float32)
        rollout.bias[:] = 0.0  # which `critic` adds everywhere, by design
        by_design = by_loops(rollout, FORMULAS.get(name, FORMULAS["grpo"])).abs() > 1e-6
        exact = torch.equal(apply(name, rollout).A != 0, by_design)
        said = "is not 0, or not what its formula states: does centre return exactly 0?"
        assert exact, f"{G} equal rewards, and an advantage of {name} {said}"


# ---- The tasks
def test_numbers_are_of_their_level():
    """A task without zeros, or with leading ones, is another task."""
    asked = []
    for task in TASKS.values():
        task.make(3, lambda *ends: asked.append(ends) or 7)
    assert asked == [(100, 1000)] * 3 + [(2, 10)] + [(0, 10)] * 3


def test_the_longest_texts_are_those_of_all_problems():
    """The longest texts are those of one problem of the highest level. In a task whose number of
    steps is not that of the level, a longer solution then has no room, and is cut off.
    """

    def countdown(level, draw):
        n = draw(1, 10**level)
        return f"{n}=", [*range(n % 10, 0, -1)]

    task = tasks.Task(countdown, lambda steps: str(len(steps)), range(1, 3))
    problems = make_problems(task, True) + make_problems(task, False)
    for texts, longest in zip(zip(*problems), task.longest[:3]):
        assert longest in texts and len(longest) == max(map(len, texts))


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("name", TASKS)
def test_every_problem(name, held, monkeypatch):
    """Incorrect arithmetic, a prompt of another width, a problem on both sides of the split."""
    task = TASKS[name]
    monkeypatch.setattr(tasks, "DRAWS", 100)
    problems = make_problems.__wrapped__(task, held)  # made anew
    assert len({p.prompt for p in problems}) == len(problems)  # none twice
    assert {p.level for p in problems} == {*task.levels}
    of_level = [p.level for p in problems + make_problems.__wrapped__(task, not held)].count
    assert of_level(task.levels[0]) <= 100 and 99 <= of_level(task.levels[-1]) <= 100  # few twice
    for p in problems:
        numbers = [int(number) for number in re.findall("[0-9]+", p.prompt)]
        assert int(p.answer) == (math.prod if name == "mul" else sum)(numbers)
        assert task.reward(p, p.solution) == 1.0
        assert task.coherent(p, p.solution) and task.reasoning_correct(p, p.solution)
        assert all(len(text) <= len(longest) for text, longest in zip(p[:3], task.longest[:3]))
        assert held == held_out(p.prompt)
        assert held == held_out("+".join(reversed(p.prompt.strip("= ").split("+"))) + "=")


def test_hostile_responses():
    """int() takes "+20" and " 20" and others, and raises on more."""
    assert problem(TASKS["mul"], [347, 8], 3) == ("  347*8=", "56,37,27#2776", "2776", 3)
    p = problem(SUM, [7, 8, 5], 3)
    assert p == ("7+8+5=          ", "15,20#20", "20", 3)
    hostile = "|#|20|15,20|##20|#20#20|#20#|20#|#200|#٢٠|#２０|#020|#20 |# 20|#20\n|#20x|#20,"
    hostile += "|#+20|#20.0|#2_0|#-20|#²⁰|#20\x00|#20$|#20_|15,20＃20|\ud800#20#|#2|²0#²0"
    for y in [*hostile.split("|"), "#" * 10**4]:
        assert not (SUM.reward(p, y) or SUM.coherent(p, y) or SUM.reasoning_correct(p, y))
    assert [SUM.reward(p, y) for y in ("#20", "15,20#20", "99#20", "\ud800٣#20")] == [1.0] * 4
    assert all(SUM.coherent(p, y) for y in ("15,20#20", "15,21#21", "20#20", "07# 7", "00# 0"))
    assert not any(SUM.coherent(p, y) for y in ("15,20#21", "15,#", "20,#20", "20,15#20", "7#7"))


def test_the_split():
    """Another hash, or a split that sees the order of operands: other problems are trained on."""
    for n in range(200):
        text = f"{n % 10}+{n // 10}+5"
        key = "+".join(sorted(text.split("+"))) + "="
        assert held_out(text + "=   ") == (zlib.crc32(key.encode()) % 10 == 0)
        assert held_out(f"  {n}*7=") == (zlib.crc32(f"{n}*7=".encode()) % 10 == 0)


def test_the_first_mistake_is_marked():
    """Another mistake than the first; a response of another length that passes, or a traceback."""
    nines = problem(ADD, [99, 33], 2)  # 12,13#132
    for text, *expected in [
        ("12,13#132", "12,13#132", ""),
        ("12,14#132", "12,[14]#132", "[14] should be [13]"),
        ("12,13#142", "12,13#[142]", "[142] should be [132]"),
        ("12,13,01#132", "12,13[,]01#132", "[,] should be [#]"),
        ("12", "12[]", "[] should be [,]"),
        ("12,13#132#132", "12,13#132[#]132", "[#] should be []"),
        ("", "[]", "[] should be [12]"),
    ]:
        assert [*mark_mistake(nines, text)] == expected
    assert mark_mistake(nines, "12", 1)[1] == "[] should be [,], yet rewarded"
