"""Rules that are no variants: each a short function, as in advantages.py, with the same shapes.

An arm of a study is a variant or one of these rules. RULES are functions of a rollout alone, which
studies.gradients measures too. The rest are there for training alone: a coin for rewards, and rules
that need the model (in `add_rules`).
"""

from dataclasses import replace
from functools import partial

import torch
from scipy import optimize
from torch.nn.functional import pad

from advantages import LOSS, VARIANTS, grpo, likelihood, negative, nthr, on_tokens
from grpo import Rollout, answer_likelihood, encode, response_logprobs
from tasks import EOS, MARKER, MARKER_ID


def no_baseline(rollout: Rollout) -> torch.Tensor:
    """A = r. All-pass groups are pushed up too."""
    return on_tokens(rollout, rollout.rewards)


def half(rollout: Rollout) -> torch.Tensor:
    """grpo with its negative advantages halved."""
    A = grpo(rollout)
    return torch.where(A < 0, A / 2, A)


def random_sparing(rollout: Rollout) -> torch.Tensor:
    """grpo, but as many tokens get 0 as nthr selects, and none of those.

    Each token that nthr selects has one partner: another token with A < 0 of the rollout, with 1 -
    pi near its own. The sum of the differences is the least possible. If there are fewer such
    tokens than nthr selects, all are partners.
    """
    A = grpo(rollout)
    selected = (A < 0) & (nthr(rollout, eta=0.0) == 0)
    others = (A < 0) & ~selected
    pi = rollout.logprobs.exp()
    _, partners = optimize.linear_sum_assignment((pi[selected][:, None] - pi[others]).abs().cpu())
    A.view(-1)[others.flatten().nonzero()[partners, 0]] = 0.0
    return A


def truth(rollout: Rollout) -> torch.Tensor:
    """grpo, but what is correct in incorrect responses gets 0. An oracle.

    Correct is a token before the marker that the solution has in the same place. Here the verifier
    knows the solution; that of a language model knows only the answer.
    """
    tokens = rollout.tokens  # (P, G, T)
    solutions = encode([p.solution for p in rollout.problems], tokens.device)
    longer = tokens.size(-1) - solutions.size(-1)  # below 0 if no response is as long
    solutions = pad(solutions, (0, longer))[:, None]  # (P, 1, T)
    before = (tokens == MARKER_ID).cumsum(-1) == 0
    A = grpo(rollout)
    return A.masked_fill((A < 0) & before & (tokens == solutions), 0.0)


def alike(rollout: Rollout) -> torch.Tensor:
    """Whether responses i and j of a group have the same tokens up to t, (P, G, G, T)."""
    return (rollout.tokens[:, :, None] == rollout.tokens[:, None]).cumprod(-1).bool()


def shared_prefix(rollout: Rollout) -> torch.Tensor:
    """grpo, but 0 for tokens of an incorrect response as long as a correct one is the same."""
    correct = (rollout.rewards == 1)[:, None, :, None]
    A = grpo(rollout)
    return A.masked_fill((A < 0) & (alike(rollout) & correct).any(2), 0.0)


def prefix_baseline(rollout: Rollout) -> torch.Tensor:
    """A_{i,t} = r_i - the mean reward of the other responses that are the same before t.

    If there are none, of all others, as in rloo. This baseline does not depend on y_{i,t} or on
    what follows, so it adds no bias (grpo.py); but it is a mean of fewer rewards.
    """
    G = rollout.rewards.size(1)
    others = ~torch.eye(G, dtype=torch.bool, device=rollout.mask.device)[..., None]  # (G, G, 1)
    before = pad(alike(rollout)[..., :-1], (1, 0), value=True) & others
    counted = torch.where(before.any(2, keepdim=True), before, others).float()  # (P, G, G, T)
    r = rollout.rewards[:, None, :, None]
    baseline = (counted * r).sum(2) / counted.sum(2)  # (P, G, T)
    return on_tokens(rollout, rollout.rewards[..., None] - baseline)


def shuffled_L(rollout: Rollout) -> torch.Tensor:
    """likelihood with the L of each all-fail group in random order: the same sizes, no meaning."""
    order = torch.rand_like(rollout.rewards).argsort(1)
    L = rollout.answer_likelihood.gather(1, order)
    return likelihood(replace(rollout, answer_likelihood=L))


def random_rewards(rollout: Rollout) -> torch.Tensor:
    """grpo on rewards that a fair coin gives, in place of the verifier's."""
    coins = torch.rand(rollout.rewards.size(), device=rollout.rewards.device)
    return grpo(replace(rollout, rewards=(coins < 0.5).float()))


def substituted(model, rollout: Rollout) -> torch.Tensor:
    """likelihood, but the responses of all-fail groups end with the true answer.

    What stands before the first marker is kept; the marker, the true answer and EOS follow it, and
    all of it is trained. This changes the rollout itself, which no variant may do.
    """
    rollout.answer_likelihood = answer_likelihood(model, rollout)
    pairs = [(p, text) for p, group in zip(rollout.problems, rollout.texts) for text in group]
    texts = [text.split(MARKER)[0] + MARKER + p.answer + EOS for p, text in pairs]
    lengths = torch.tensor([len(text) for text in texts]).view(rollout.rewards.size())[..., None]
    tokens = encode(texts, "cpu").view(*rollout.rewards.size(), -1)
    T = max(tokens.size(-1), rollout.tokens.size(-1))
    fail = (rollout.rewards == 0).all(1)[:, None, None]
    longer = T - rollout.tokens.size(-1)
    tokens = pad(tokens, (0, T - tokens.size(-1)))
    rollout.tokens = torch.where(fail, tokens, pad(rollout.tokens, (0, longer)))
    rollout.mask = torch.where(fail, torch.arange(T) < lengths, pad(rollout.mask, (0, longer)))
    rollout.probs = pad(rollout.probs.transpose(2, 3), (0, longer)).transpose(2, 3)
    rollout.logprobs = response_logprobs(model, rollout).detach()
    return likelihood(rollout)


def substituted_up(model, rollout: Rollout) -> torch.Tensor:
    """substituted, but nothing is pushed down in all-fail groups: true answers end all texts."""
    A = substituted(model, rollout)
    fail = (rollout.rewards == 0).all(1)[:, None, None]
    return torch.where(fail, A.clamp_min(0), A)


PURE = [no_baseline, half, random_sparing, truth, shuffled_L, shared_prefix, prefix_baseline]
RULES = {rule.__name__: rule for rule in PURE}
RULES |= {f"negative_{c}": partial(negative, c=c) for c in (0.1, 0.3)}
RULES["nthr_eta0"] = partial(nthr, eta=0.0)
# As LOSS in advantages.py.
RULES_LOSS = {name: {"aggregate": "constant"} for name in ("no_baseline", "prefix_baseline")}


def add_rules(model) -> None:
    """Lets train.py's command line take the rules; model: the one that it will train."""

    def with_L(rollout: Rollout) -> torch.Tensor:
        """shuffled_L; train.py computes L for `likelihood` alone."""
        rollout.answer_likelihood = answer_likelihood(model, rollout)
        return shuffled_L(rollout)

    of_model = {rule.__name__: partial(rule, model) for rule in (substituted, substituted_up)}
    VARIANTS.update(RULES | of_model | {"shuffled_L": with_L, "random": random_rewards})
    LOSS.update(RULES_LOSS)
