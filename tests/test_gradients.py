"""The study of gradients: its measures on made-up vectors, its arms on small rollouts."""

import pytest
import torch

pytest.importorskip("scipy", reason="the studies need scipy: see studies/requirements.txt")
from studies import gradients as study  # noqa: E402
from test_grpo import SEED, SUM, close, policy_loss, problem, response_logprobs  # noqa: E402
from test_grpo import sample, scripted, tiny_gpt  # noqa: E402


def test_measures():
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
        reference = study.replicates(m.expand(30, -1), U)
        found = study.measures(G, U, reference)
        squares += torch.tensor([(found[x] - true[x]) / found[f"{x}_error"] for x in true]) ** 2
        no_m, no_v = (study.measures(*x, reference) for x in ((G - m, U), (G, U - v)))
        assert str((no_m["bias"], no_v["one"])) == "(nan, nan)"
    assert all(0.4 < x / 60 < 2.2 for x in squares), squares  # about 1 each


def test_gradients():
    """A vector that is not minus the gradient of its loss, or a group that is read and lost."""
    model = tiny_gpt().double()
    rollout = sample(model, levels=(2, 5, 4, 3, 5, 4))
    rollout.rewards = torch.tensor([*torch.eye(4).tolist(), [0.0] * 4, [1.0] * 4]).double()
    arms = {x: study.ARMS[x] for x in ("grpo", "dr_grpo", "no_baseline", "negative", "ngrpo")}
    found = study.gradients(model, rollout, study.weighted(rollout, arms))
    for g, (f, how) in zip(found, arms.values()):
        inputs = (response_logprobs(model, rollout), rollout.logprobs, f(rollout), rollout.mask)
        loss = policy_loss(*inputs, aggregate=how, max_length=rollout.max_length)
        parts = torch.autograd.grad(loss, list(model.parameters()))
        close(g, -torch.cat([part.flatten() for part in parts]))
    assert torch.cosine_similarity(found[0], found[1], dim=0) > 1 - 1e-9  # sigma is a constant


def test_the_arms():
    """Tokens spared that must not be, or too few, or far ones; a baseline that sees its token."""
    rollout = sample(tiny_gpt(), levels=[3] * 8, G=8)
    rollout.rewards = (torch.rand(8, 8) < 0.4).float()
    A, kept, found = (study.FUNCTIONS[x](rollout) for x in ("grpo", "nthr_eta0", "random_sparing"))
    selected, spared = (A < 0) & (kept == 0), (A < 0) & (found == 0)
    pi = rollout.logprobs.exp()
    others = pi[(A < 0) & ~selected]
    assert 0 < spared.sum() == min(selected.sum(), len(others)) and not (spared & selected).any()
    far = lambda x: (x.sort()[0] - pi[selected].sort()[0][: len(x)]).abs().sum()  # noqa: E731
    anyone = [others[torch.randperm(len(others))[: selected.sum()]] for _ in range(100)]
    assert far(pi[spared]) <= min(far(x) for x in anyone) + 1e-6
    texts = ["15,20#20", "15,21#21", "05,20#2", "1"]  # correct: the first one
    rollout = scripted([problem(SUM, [7, 8, 5], 3)], [texts])
    oracle, prefix = ((study.FUNCTIONS[x](rollout) == 0)[0] for x in ("truth", "shared_prefix"))
    assert oracle[:3].int().tolist() == [[0] * 9, [1] * 4 + [0] * 5, [0, 1, 1, 1, 1, 0, 0, 0, 1]]
    assert prefix[:3].int().tolist() == [[0] * 9, [1] * 4 + [0] * 5, [0] * 8 + [1]]
    A = study.prefix_baseline(rollout)[0]
    close(A[0], torch.tensor([1.0] * 9))  # no other response is correct
    close(A[1], -torch.tensor([1 / 3, 1 / 2, 1.0, 1.0, 1.0] + [1 / 3] * 4))
    close(A[3], -torch.tensor([1 / 3, 1 / 2] + [0] * 7))
