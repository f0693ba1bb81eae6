"""The advantage variants: each is one short function from a Rollout to token advantages (P, G, T).

What an advantage is. A prompt gets a group of G sampled responses, and each response i a reward
r_i: 1 if it is correct, else 0. The update pushes every sampled token up in proportion to its
advantage, and down where that is negative (until the clip in grpo.py stops it). So the advantage
says which tokens are to be said more often, and by how much. Most variants change nothing else. A
few do: two change the loss (table LOSS), `critic` trains a second network, `likelihood` needs one
more forward pass, `culling` drops prompts.

What may be changed. With A_i = r_i the mean push is the gradient of the expected reward. A number
that does not depend on the response, a baseline, may be subtracted: the probabilities of all
responses add up to 1 whatever the weights, so pushing all of them alike has no effect on the mean.
What does depend on the response changes the mean push too: that is a bias (grpo.py has the
algebra). Dividing by sigma is one; measured, it hardly turns the gradient.

A group is all-fail (every reward is 0), all-pass (every reward is 1) or mixed. A rollout is what
was sampled in one training step: P groups, their rewards, and what sampling computed.

Shapes and names: P prompts, G responses each, T tokens (right-padded), V vocabulary, D width.
    rollout.rewards   (P, G)        r_i
    rollout.mask      (P, G, T)     True on the |y_i| tokens of response y_i, its end-of-sequence
                                    token included; False on padding
    rollout.tokens    (P, G, T)     y_{i,t}, token t of response i, as a number
    rollout.logprobs  (P, G, T)     log pi of each token; pi is the model ("policy") that drew it
    rollout.probs     (P, G, T, V)  pi(. | x, y_{i,<t}), given prompt x and the tokens before t
    rollout.hidden    (P, G, T, D)  h, the input of the last linear layer (the unembedding)
    rollout.token_bias (P, G, T): for `critic`;  rollout.answer_likelihood (P, G): for `likelihood`
    mu, sigma         (P, 1)        mean and population standard deviation of a group's rewards

"Reported" is what the source, or an experiment before this project, found on language models;
docs/results.md has what is found here. A variant changes no input, and no gradient flows through
an advantage. Padding may hold anything: it is selected away, not multiplied by 0 (0 * NaN is NaN).
"""

import torch
from torch import Tensor

from grpo import Rollout


def centre(rewards: Tensor) -> Tensor:
    """r_i - mu within each group (P, G); exactly 0 in a group of equal rewards."""
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return (rewards - rewards.mean(1, keepdim=True)).masked_fill(equal, 0.0)


def standardise(rewards: Tensor) -> Tensor:
    """(r_i - mu) / (sigma + eps) within each group (P, G); exactly 0 in a group of equal rewards.

    eps is 1e-6; sigma divides by G (some implementations: by G - 1). So with a share p correct the
    correct responses get sqrt((1-p)/p), the others -sqrt(p/(1-p)): Lemma 4.2, arXiv 2505.18830.
    """
    return centre(rewards) / (rewards.std(1, correction=0, keepdim=True) + 1e-6)


def on_tokens(rollout: Rollout, A: Tensor) -> Tensor:
    """A_i (P, G) or A_{i,t} (P, G, T) -> A_{i,t} (P, G, T), 0 outside the mask, no gradient."""
    return torch.where(rollout.mask, A if A.dim() == 3 else A[..., None], 0.0).detach()


def grpo(rollout: Rollout) -> Tensor:
    """Group relative policy optimization. arXiv 2402.03300, section 4.1.2.

        A_{i,t} = (r_i - mu) / (sigma + eps)

    The group's mean is the baseline, so no second network has to predict the reward. Dividing by
    sigma makes lopsided groups count more: with one correct response of eight +0.88 and -0.13
    become +2.65 and -0.38, with four +0.5 and -0.5 become +1 and -1. All-fail and all-pass groups:
    all 0.
    """
    return on_tokens(rollout, standardise(rollout.rewards))


def dr_grpo(rollout: Rollout) -> Tensor:
    """GRPO done right. arXiv 2503.20783; its loss divides by a constant, not by the tokens (LOSS).

        A_{i,t} = r_i - mu

    Without sigma lopsided groups count less than in grpo. All-fail and all-pass groups: all 0.
    Reported: as accurate as grpo, with shorter incorrect responses.
    """
    return on_tokens(rollout, centre(rollout.rewards))


def rloo(rollout: Rollout) -> Tensor:
    """REINFORCE leave-one-out: its baseline, here in the clipped loss per token. arXiv 2402.14740.

        A_{i,t} = r_i - (sum_{j != i} r_j) / (G - 1)  =  (r_i - mu) G / (G - 1)

    The baseline is the mean reward of the other responses. It does not depend on y_i, so it leaves
    the expected gradient as it is. All-fail and all-pass groups: all 0.
    """
    G = rollout.rewards.size(1)
    return on_tokens(rollout, G / max(G - 1, 1) * centre(rollout.rewards))


def pos_only(rollout: Rollout) -> Tensor:
    """Positive advantages only. arXiv 2505.18830, section 3.

        A_{i,t} = max(A_i, 0),   A_i as in grpo

    Correct responses are imitated, incorrect ones ignored. All-fail and all-pass groups: all 0.
    Reported: below grpo (39.84 against 41.14 on average there).
    """
    return on_tokens(rollout, standardise(rollout.rewards).clamp(min=0.0))


def critic(rollout: Rollout) -> Tensor:
    """A learned token critic: experiment 1 of this line of research.

        A_{i,t} = A_i + b_phi(y_{i,t}),   A_i as in grpo

    The hope: a second network, trained beside the policy (critic_loss), learns which tokens matter.
    b_phi, phi its weights, is its output just after it has read y_{i,t}. As it depends on the token
    it is no baseline, but a bias. It is added in all-fail and all-pass groups too.
    Reported: unstable, never better: judging single tokens adds variance, but no signal.
    """
    return on_tokens(rollout, standardise(rollout.rewards)[..., None] + rollout.token_bias)


def critic_loss(bias: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The critic's loss, a scalar; all inputs (P, G, T), advantages as in grpo.

        loss(phi) = - mean_i A_i sum_t b_phi(y_{i,t})

    b grows on tokens that keep appearing in correct responses. The loss is linear in b, so nothing
    bounds b: that is part of what the experiment shows.
    """
    return -(advantages * bias).masked_fill(~mask, 0.0).sum(-1).mean()


def compensation(rollout: Rollout) -> Tensor:
    """Probability compensation: experiment 2 of this line of research.

        A_{i,t} = A_i (2 - pi_t / pi_max)   if A_i > 0, else A_i;   A_i as in grpo

    pi_t is the probability that y_{i,t} was sampled with, pi_max the largest pi_t of the response.
    The hope: seize rare opportunities. Improbable tokens of correct responses count more, at most
    twice. All-fail and all-pass groups: all 0.
    Reported: early divergence; it acts like an importance weight (grpo.py) for improbable tokens.
    """
    A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
    logp = rollout.logprobs.masked_fill(~rollout.mask, -torch.inf)
    peak = logp.amax(-1, keepdim=True)  # log pi_max; a difference of logarithms cannot overflow
    return on_tokens(rollout, torch.where(A > 0, A * (2 - (logp - peak).exp()), A))


def culling(rollout: Rollout) -> Tensor:
    """Culling solved prompts: experiment 3 of this line of research.

        A_{i,t} = A_i as in grpo; a prompt whose responses all were correct is not drawn again

    The hope: concentration of force. train.py drops solved prompts; every step still draws as many
    prompts, however few are left. All-fail and all-pass groups: all 0.
    Reported: no change; a hard prompt stays all-fail even if it is sampled a little more often.
    """
    return grpo(rollout)


def negative(rollout: Rollout, c: float = 1.0) -> Tensor:
    """Negative advantage for all-fail groups: experiment 4 of this line of research.

        A_{i,t} = -c in an all-fail group, else A_i as in grpo

    GRPO learns nothing from an all-fail group. The hope: pushing its responses down moves
    probability to answers not tried yet. c = 1 is as much as an incorrect response gets in a group
    that is half correct. All-pass groups: all 0.
    Reported: a small, inconclusive gain. The paper of ngrpo, a related method, reports a clear one.
    """
    all_fail = (rollout.rewards == 0).all(1, keepdim=True)
    return on_tokens(rollout, standardise(rollout.rewards).masked_fill(all_fail, -c))


def ngrpo(rollout: Rollout) -> Tensor:
    """Negative-enhanced GRPO. arXiv 2509.18851, Eq. 5-6; clip range of section 4.2 in table LOSS.

        A_{i,t} = (r_i - mu') / (sigma' + eps),   mu', sigma' over r_1..r_G and one virtual reward 1

    A correct response is imagined in every group. So in an all-fail group each response gets
    -1/sqrt(G). All-pass groups: all 0. Mixed ones shift down: with one of eight correct to +1.871
    and -0.535. (The printed equation divides by G + 1, the authors' code by G: +1.764 and -0.504.)
    Reported: better than grpo on mathematics, which confirms the hope of `negative`.
    """
    with_virtual = torch.cat([rollout.rewards, torch.ones_like(rollout.rewards[:, :1])], dim=1)
    return on_tokens(rollout, standardise(with_virtual)[:, :-1])


def likelihood(rollout: Rollout) -> Tensor:
    """The true answer's likelihood as a dense reward: experiment 5 of this line of research.

        r_i becomes L_i = pi(true answer | x, reasoning of y_i) in all-fail groups; then as in grpo

    The hope: reasoning is good if it makes the true answer likely (grpo.answer_likelihood). What is
    trained stays the sampled tokens, the incorrect answer among them; only their weight changes.
    Dividing by sigma makes small differences of L count like large ones. All-pass groups: all 0.
    Reported: degraded; it joins arbitrary reasoning to a correct answer.
    """
    all_fail = (rollout.rewards == 0).all(1, keepdim=True)
    r = torch.where(all_fail, rollout.answer_likelihood, rollout.rewards)
    return on_tokens(rollout, standardise(r))


def nthr_scores(rollout: Rollout) -> Tensor:
    """How much each token's gradient agrees with those of the correct responses: s (P, G, T).

    arXiv 2505.18830, Eq. 7. e_y is the one-hot vector of token y; k runs over the tokens of a
    correct response i, k' over those of any response j of the same group:

        g_{i,k}  = e_{y_{i,k}} - pi(. | x, y_{i,<k})                        prediction error, (V,)
        s_{j,k'} = sum_{i correct} sum_k <g_{i,k}, g_{j,k'}> <h_{i,k}, h_{j,k'}>

    g h^T is the gradient of the token's log-probability with respect to the unembedding, and
    <g, g'><h, h'> the inner product of two such gradients. So a large s_{j,k'} says: pushing
    y_{j,k'} down pushes the correct responses down. The double sum need not be formed (section
    7.4): its part without j is one matrix,

        s_{j,k'} = g_{j,k'}^T M h_{j,k'},    M = sum_{i correct} sum_k g_{i,k} h_{i,k}^T    (V, D)
    """
    tokens = rollout.tokens.masked_fill(~rollout.mask, 0)
    one_hot = torch.zeros_like(rollout.probs).scatter(-1, tokens[..., None], 1.0)
    g = torch.where(rollout.mask[..., None], one_hot - rollout.probs, 0.0)  # (P, G, T, V)
    h = torch.where(rollout.mask[..., None], rollout.hidden, 0.0)  # (P, G, T, D)
    g_correct = g * (rollout.rewards == 1)[..., None, None]  # (P, G, T, V)
    M = g_correct.flatten(1, 2).transpose(1, 2) @ h.flatten(1, 2)  # (P, V, GT) @ (P, GT, D)
    return ((g @ M[:, None]) * h).sum(-1).detach()  # (P, G, T, D) summed over D; 0 on padding


def nthr(rollout: Rollout, beta: float = 1.0, eta: float | None = None) -> Tensor:
    """Negative token hidden reward. arXiv 2505.18830, section 5, Algorithm 1.

    GRPO pushes down all tokens of an incorrect response, its correct steps too. Correct responses
    share these, so they can become less likely as well (lazy likelihood displacement). The hope:
    push those tokens less that would do this most.

        sbar_i   = mean over the tokens of correct response i of s_{i,k}        s: nthr_scores
        tau      = beta min_{i correct} sbar_i                                  Eq. 8
        selected = tokens of incorrect responses with s_{j,k'} > tau
        A_{j,k'} = eta A_j if selected, else A_j as in grpo; eta = 2 |p - 1/2|  section 7.3

    p is the share of correct responses; with one or seven of eight correct eta is 0.75. For example
    V = 3, every h is 1, pi is (.2, .4, .4) for the first token and (.1, .3, .6) for the second:

        correct response 0 2:     s = 0.84,  0.14     tau = their mean, 0.49
        incorrect response 0 1:   s = 0.84, -0.56     the first token is selected: p = 1/2, eta = 0

    So the incorrect response keeps -1 on its second token and has 0 on the one that both share.
    sbar_i counts i's influence on itself; beta = -inf selects all tokens of incorrect responses.
    All-fail and all-pass groups: all 0.
    Reported: mitigates the displacement; +0.8 to +2.4 points on models of 0.5B to 3B parameters.
    """
    s = nthr_scores(rollout)  # (P, G, T)
    correct = rollout.rewards == 1  # (P, G)
    sbar = s.sum(-1) / rollout.mask.sum(-1).clamp(min=1)  # (P, G)
    lowest = sbar.masked_fill(~correct, torch.inf).amin(1)[:, None, None]  # (P, 1, 1)
    tau = beta * lowest if beta > -torch.inf else beta  # -inf * negative is +inf
    selected = (s > tau) & (correct.any(1, keepdim=True) & ~correct)[..., None]
    p = correct.to(s.dtype).mean(1)[:, None, None]
    eta = 2 * (p - 0.5).abs() if eta is None else eta
    A = grpo(rollout)
    return torch.where(selected, eta * A, A)


# name -> function, Rollout -> token advantages (P, G, T)
ALL = [grpo, dr_grpo, rloo, pos_only, critic, compensation]
ALL += [culling, negative, ngrpo, likelihood, nthr]
VARIANTS = {variant.__name__: variant for variant in ALL}

# What a variant changes about the loss, if the command line does not: settings of grpo.update.
# ngrpo: section 4.2 of its paper. Pushing down stops earlier than pushing up.
LOSS = {"ngrpo": {"clip_low": 0.16, "clip_high": 0.24}, "dr_grpo": {"aggregate": "constant"}}
