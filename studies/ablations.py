"""Controls: rules that change one thing about a variant, to show what that one thing does.

Each is a short function like those of advantages.py. It returns advantages, A_i (P, G) or A_{i,t}
(P, G, T). If it trains other texts than were sampled, it returns a Rollout with A. Controls are
trained and measured like variants: studies/runs.py puts them into the table of variants for a
while.
"""

from dataclasses import replace

import torch
from scipy import optimize
from torch import Tensor
from torch.nn.functional import pad

from advantages import PPO, above_others, answer_likelihood, answered, centre, grpo, nthr, pos_only
from advantages import standardise, step_rewards, with_advantages
from grpo import Rollout
from model import GPT


# ---- Which tokens are spared?
def nthr_eta0(rollout: Rollout) -> Tensor:
    """nthr, but every selected token gets 0, whatever the share of correct responses is."""
    return nthr(rollout, eta=0.0)


def random_sparing(rollout: Rollout) -> Tensor:
    """grpo, but as many tokens get 0 as nthr selects, and none of those.

    Each token that nthr selects has one partner: another token with A < 0 of the rollout, with 1 -
    pi near its own. The sum of the differences is the least possible. If there are fewer such
    tokens than nthr selects, all are partners.
    """
    A = with_advantages(rollout, grpo).A
    selected = (A < 0) & (nthr_eta0(rollout) == 0)
    others = (A < 0) & ~selected
    pi = rollout.logprobs.exp()
    apart = (pi[selected][:, None] - pi[others]).abs()
    _, partners = optimize.linear_sum_assignment(apart.cpu())
    spared = others.nonzero()[partners]  # a row for each: group, response, token
    return A.index_put(tuple(spared.T), A.new_zeros(()))


# ---- Credit for tokens
def first_mistake(rollout: Rollout) -> Tensor:
    """grpo, but an incorrect response is pushed down only from its first mistake on.

    Before the first token that differs from the solution, A_{i,t} is 0 if A_i is negative.
    """
    R, _ = step_rewards(rollout)  # (P, G, S), 1 until the first difference
    correct = R[..., : rollout.mask.size(2)] == 1
    A = grpo(rollout)[..., None]  # (P, G, 1)
    return torch.where(correct & (A < 0), 0.0, A)


def process_by_step(rollout: Rollout) -> Tensor:
    """process, but a step is compared with the same step of the other responses.

        A_{i,t} = sum of (R_{i,k} - mu_k) / (sd + eps) over the steps k that end at t or later

    R_{i,k} is 1 if response i agrees with the solution up to the end of its step k, as in process,
    and mu_k is the group's mean of it. sd is the square root of the mean of (R_{i,k} - mu_k)^2 over
    the K G steps of the group, which gets 0 if all of these are 0. This is the known baseline for
    each time step (Peters and Schaal 2008). MT-GRPO (arXiv 2505.11821) also compares each turn by
    itself, but divides by the deviation of that turn. It reads the steps of the solution.
    """
    R, places = step_rewards(rollout)  # (P, G, S) and (P, 1, S)
    deviation = centre(R) * places  # 0 where no step ends
    steps = places.sum(-1, keepdim=True) * R.size(1)  # K G, (P, 1, 1)
    sd = ((deviation**2).sum((1, 2), keepdim=True) / steps).sqrt()
    later = (deviation / (sd + 1e-6)).flip(-1).cumsum(-1).flip(-1)  # the sum over k
    return later[..., : rollout.mask.size(2)]  # steps may end behind the response


def same_prefix(rollout: Rollout) -> Tensor:
    """Compare a token only with those that other responses wrote after the same tokens.

        A_{i,t} = (r_i - mean of r_j over the responses j with y_{j,<t} = y_{i,<t}) / (sigma + eps)

    i is among these j, so where no other response wrote the same, A_{i,t} is 0. sigma is that of
    grpo, and groups of equal rewards get 0. GiGPO (arXiv 2505.10978) compares responses in the same
    state like this, and adds grpo's A. It reads rewards and sampled tokens, but no solution.
    """
    r = rollout.rewards
    tokens = rollout.tokens.masked_fill(~rollout.mask, -1)  # padding equals no token
    same = (tokens[:, :, None] == tokens[:, None]).cumprod(-1)  # up to t, (P, G, G, T)
    same = pad(same[..., :-1], (1, 0), value=1)  # before t
    apart = (r[:, :, None] - r[:, None])[..., None]  # r_i - r_j, (P, G, G, 1)
    above = (same * apart).sum(2) / same.sum(2)  # r_i - mean of the r_j
    return above / (r.std(1, correction=0)[:, None, None] + 1e-6)


class PPOFast(PPO):
    """ppo, but the value network learns at ten times the learning rate of the policy."""

    def __init__(self, network: GPT, lr: float):
        super().__init__(network, 10 * lr)


# ---- How hard are incorrect responses pushed down?
def double(rollout: Rollout) -> Tensor:
    """grpo, but incorrect responses are pushed down twice as hard."""
    return grpo(rollout) + grpo(rollout).clamp(max=0.0)


def quarter(rollout: Rollout) -> Tensor:
    """grpo, but incorrect responses are pushed down a quarter as hard (half: half as hard)."""
    return pos_only(rollout) + grpo(rollout).clamp(max=0.0) / 4


# ---- Less push down, or more weight on hard problems?
def focal(rollout: Rollout) -> Tensor:
    """grpo with more weight on hard problems: A_i = (1 - mu)^1.5 times that of grpo.

    mu is the mean reward of the group. In expectation, a problem that is solved once in eight times
    weighs 7.2 times as much as one that is solved seven times, and under pos_only 7 times.
    """
    mu = rollout.rewards.mean(1, keepdim=True)  # (P, 1)
    return (1 - mu) ** 1.5 * grpo(rollout)


def focal_half(rollout: Rollout) -> Tensor:
    """grpo with the weight that half gives to problems in expectation: (1 - mu / 2) times A_i."""
    mu = rollout.rewards.mean(1, keepdim=True)  # (P, 1)
    return (1 - mu / 2) * grpo(rollout)


def flat_pos(rollout: Rollout) -> Tensor:
    """Push down nothing, and weigh problems about as grpo does.

        A_i = r_i / (sigma + eps) in a mixed group, else 0

    In expectation this is pos_only divided by 1 - mu, so by the weight that pos_only gives.
    """
    mixed = grpo(rollout) != 0
    sigma = rollout.rewards.std(1, correction=0, keepdim=True)
    return torch.where(mixed, rollout.rewards / (sigma + 1e-6), 0.0)


# ---- The true answer's likelihood as a reward
def shuffled_L(rollout: Rollout) -> Tensor:
    """likelihood with the L of each all-fail group in random order: the same sizes, no meaning."""
    all_fail = (rollout.rewards == 0).all(1, keepdim=True)
    order = torch.rand_like(rollout.rewards).argsort(1)
    L = answer_likelihood(rollout).gather(1, order)
    return standardise(torch.where(all_fail, L, rollout.rewards))


def likelihoods(trained: Rollout) -> tuple[Tensor, Tensor]:
    """L_i, and L_i - mean of the other L_j, (P, G) each, of what advantages.answered returns.

    As in verifree, L is 0 for a response without a marker.
    """
    log_L = trained.logprobs.masked_fill(~trained.given, 0.0).sum(-1)
    L = log_L.exp() * trained.given.any(-1)
    return L, above_others(L)


def verifree_undivided(rollout: Rollout) -> Rollout:
    """verifree without the division by sd: the gradient of J itself, as in its paper."""
    trained = answered(rollout)
    L, above = likelihoods(trained)
    return replace(trained, A=torch.where(trained.given, L[..., None], above[..., None]))


def dense(rollout: Rollout) -> Tensor:
    """A_i = (L_i - mean of the other L_j) / (sd + eps), on all sampled tokens.

    L and sd as in verifree, and all 0 in the same groups. The sampled answer is trained, with the
    advantage of its reasoning; the true answer is not.
    """
    L, above = likelihoods(answered(rollout))
    mu = L.mean(1, keepdim=True)
    sd = (mu * (1 - mu)).sqrt()
    return (above / (sd + 1e-6)).masked_fill(mu > 0.999, 0.0)


ALL = [nthr_eta0, random_sparing, shuffled_L, verifree_undivided, dense, first_mistake]
ALL += [process_by_step, same_prefix, double, quarter, focal, focal_half, flat_pos]
CONTROLS = {control.__name__: control for control in ALL} | {"ppo_fast": PPOFast}
