"""The advantage variants: short functions from a Rollout to one with advantages A (P, G, T).

What an advantage is. A prompt gets a group of G sampled responses, and each response i a reward
r_i: 1 if it is correct, else 0. The update pushes every sampled token up in proportion to its
advantage A_{i,t}, and down where that is negative (until the clip in grpo.py stops it). So the
advantage says which tokens are to be said more often, and by how much.

What may be changed. With A_i = r_i the mean push is the gradient of the expected reward. A number
that does not depend on the response, a baseline, may be subtracted: the probabilities of all
responses add up to 1 whatever the weights, so pushing all of them alike has no effect on the mean.
(The mean of the whole group has r_i in it: that only shortens the push, to (G-1)/G of its length.)
What else depends on the response changes the mean push too: that is a bias (grpo.py has the
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
    mu, sigma         (P, 1)        mean and population standard deviation of a group's rewards

The update trains on the rollout that a variant returns: the same tokens with A filled in, or other
tokens (`verifree`). "Reported" is what the source, or an experiment before this project, found on
language models; studies/README.md has what is found here. A variant changes no input, no gradient
flows through A, and padding may hold anything: it is selected away (0 * NaN is NaN).
"""

from dataclasses import replace

import torch
from torch import Tensor

from grpo import Rollout, descend, encode, response_logprobs
from model import GPT, read_responses
from tasks import EOS, MARKER, MARKER_ID, TOKENIZER


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


def on_tokens(rollout: Rollout, A: Tensor) -> Rollout:
    """The rollout with these advantages: A_i (P, G), the same for all tokens, or A_{i,t} (P, G, T).

    Outside the mask A becomes 0. No gradient flows through it.
    """
    A = A if A.dim() == 3 else A[..., None]
    return replace(rollout, A=torch.where(rollout.mask, A, 0.0).detach())


def grpo(rollout: Rollout) -> Rollout:
    """Group relative policy optimization. arXiv 2402.03300, section 4.1.2.

        A_{i,t} = (r_i - mu) / (sigma + eps)

    The group's mean is the baseline, so no second network has to predict the reward. Dividing by
    sigma makes lopsided groups count more: with one correct response of eight +0.88 and -0.13
    become +2.65 and -0.38, with four +0.5 and -0.5 become +1 and -1. All-fail and all-pass groups:
    all 0.
    """
    return on_tokens(rollout, standardise(rollout.rewards))


def dr_grpo(rollout: Rollout) -> Rollout:
    """GRPO done right. arXiv 2503.20783; its loss divides by a constant, not by the tokens (LOSS).

        A_{i,t} = r_i - mu

    Without sigma lopsided groups count less than in grpo. All-fail and all-pass groups: all 0.
    Reported: as accurate as grpo, with shorter incorrect responses.
    """
    return on_tokens(rollout, centre(rollout.rewards))


def rloo(rollout: Rollout) -> Rollout:
    """REINFORCE leave-one-out: its baseline, here in the clipped loss per token. arXiv 2402.14740.

        A_{i,t} = r_i - (sum_{j != i} r_j) / (G - 1)  =  (r_i - mu) G / (G - 1)

    The baseline is the mean reward of the other responses. It does not depend on y_i, so it leaves
    the expected gradient as it is. All-fail and all-pass groups: all 0.
    """
    G = rollout.rewards.size(1)
    return on_tokens(rollout, G / max(G - 1, 1) * centre(rollout.rewards))


def maxrl(rollout: Rollout) -> Rollout:
    """Maximum likelihood reinforcement learning. arXiv 2602.02710.

        A_{i,t} = (r_i - mu) / mu;   all 0 if mu = 0

    This division changes the objective: the mean push is exactly the gradient of the sum of
    pass@k / k over k = 1 to G - 1, where pass@k is the probability that at least one of k responses
    is correct. So rare successes count most. With one correct response of eight the advantages are
    +7 and -1, where grpo has +2.65 and -0.38; with four they are +1 and -1, as in grpo. All-fail
    and all-pass groups: all 0.
    """
    mu = rollout.rewards.mean(1, keepdim=True)
    return on_tokens(rollout, (centre(rollout.rewards) / mu).masked_fill(mu == 0, 0.0))


def pos_only(rollout: Rollout) -> Rollout:
    """Positive advantages only. arXiv 2505.18830, section 3.

        A_{i,t} = max(A_i, 0),   A_i as in grpo

    Correct responses are imitated, incorrect ones ignored. All-fail and all-pass groups: all 0.
    Reported: below grpo (39.84 against 41.14 on average there).
    """
    return on_tokens(rollout, standardise(rollout.rewards).clamp(min=0.0))


def reinforce(rollout: Rollout) -> Rollout:
    """REINFORCE without a baseline. Williams 1992; Sutton and Barto, section 13.3.

        A_{i,t} = r_i;   its loss divides by a constant (LOSS)

    Correct responses are pushed up, and nothing is pushed down. All-pass groups are pushed up too:
    all 1. All-fail groups: all 0. The mean push is grad J, as with rloo's baseline.
    """
    return on_tokens(rollout, rollout.rewards)


def half(rollout: Rollout) -> Rollout:
    """Negative advantages halved: between grpo and pos_only. A control that became a variant.

        A_{i,t} = A_i if A_i > 0, else A_i / 2;   A_i as in grpo

    The plainest way to push down less. What spares chosen tokens, as nthr does, has to be better
    than this to show that the choice matters. All-fail and all-pass groups: all 0.
    """
    A = standardise(rollout.rewards)
    return on_tokens(rollout, torch.where(A < 0, A / 2, A))


class Critic:
    """A learned token critic: experiment 1 of this line of research. The one variant with memory.

        A_{i,t} = A_i + b_phi(y_{i,t}),   A_i as in grpo

    The hope: a second network, trained beside the policy (critic_loss), learns which tokens matter.
    b_phi, phi its weights, is its output just after it has read y_{i,t}. As it depends on the token
    it is no baseline, but a bias (PPO's critic is another thing: it predicts the reward before the
    token, as a baseline). b is added in all-fail and all-pass groups too.
    Reported: unstable, never better: judging single tokens adds variance, but no signal.
    """

    def __init__(self, network: GPT, lr: float):
        """network: a GPT with one output for each token; lr: its learning rate."""
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr)

    def __call__(self, rollout: Rollout) -> Rollout:
        """Judges the tokens; then the critic makes one optimiser step."""
        bias = token_bias(self.network, rollout)  # (P, G, T)
        A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
        descend(self.optimizer, critic_loss(bias, A, rollout.mask))
        return on_tokens(rollout, A + bias)


def critic_loss(bias: Tensor, A: Tensor, mask: Tensor) -> Tensor:
    """The critic's loss, a scalar; bias and mask (P, G, T), A (P, G, 1) or (P, G, T) as in grpo.

        loss(phi) = - mean_i A_i sum_t b_phi(y_{i,t})

    b grows on tokens that keep appearing in correct responses. The loss is linear in b, so nothing
    bounds b: that is part of what the experiment shows.
    """
    return -(A * bias).masked_fill(~mask, 0.0).sum(-1).mean()


def compensation(rollout: Rollout) -> Rollout:
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


def culling(rollout: Rollout) -> Rollout:
    """Culling solved prompts: experiment 3 of this line of research.

        A_{i,t} = A_i as in grpo; a prompt whose responses all were correct is not drawn again

    The hope: concentration of force. Solved prompts leave the training set, and every step still
    draws as many prompts, however few are left. A prompt that was drawn twice has two groups, and
    all responses of both must be correct. All-fail and all-pass groups: all 0.
    Reported: no change; a hard prompt stays all-fail even if it is sampled a little more often.
    """
    failed = {p for p, r in zip(rollout.problems, rollout.rewards) if r.min() < 1}
    return replace(grpo(rollout), solved=set(rollout.problems) - failed)


def negative(rollout: Rollout, c: float = 1.0) -> Rollout:
    """Negative advantage for all-fail groups: experiment 4 of this line of research.

        A_{i,t} = -c in an all-fail group, else A_i as in grpo

    GRPO learns nothing from an all-fail group. The hope: pushing its responses down moves
    probability to answers not tried yet. c = 1 is as much as an incorrect response gets in a group
    that is half correct. All-pass groups: all 0.
    Reported: a small, inconclusive gain. The paper of ngrpo, a related method, reports a clear one.
    """
    all_fail = (rollout.rewards == 0).all(1, keepdim=True)
    return on_tokens(rollout, standardise(rollout.rewards).masked_fill(all_fail, -c))


def ngrpo(rollout: Rollout) -> Rollout:
    """Negative-enhanced GRPO. arXiv 2509.18851, Eq. 5-6; clip range of section 4.2 in table LOSS.

        A_{i,t} = (r_i - mu') / (sigma' + eps),   mu', sigma' over r_1..r_G and one virtual reward 1

    A correct response is imagined in every group. So in an all-fail group each response gets
    -1/sqrt(G). All-pass groups: all 0. Mixed ones shift down: with one of eight correct to +1.871
    and -0.535. (The printed equation divides by G + 1, the authors' code by G: +1.764 and -0.504.)
    Reported: better than grpo on mathematics, which confirms the hope of `negative`.
    """
    with_virtual = torch.cat([rollout.rewards, torch.ones_like(rollout.rewards[:, :1])], dim=1)
    return on_tokens(rollout, standardise(with_virtual)[:, :-1])


def likelihood(rollout: Rollout) -> Rollout:
    """The true answer's likelihood as a dense reward: experiment 5 of this line of research.

        r_i becomes L_i = pi(#, true answer, end | x, reasoning) in all-fail groups; then as in grpo

    The hope: reasoning is good if it makes the true answer likely (answer_likelihood). What is
    trained stays the sampled tokens, the incorrect answer among them; only their weight changes.
    Dividing by sigma makes small differences of L count like large ones, if sigma is above eps.
    All-pass groups: all 0. Reported: degraded; it joins arbitrary reasoning to a correct answer.
    """
    all_fail = (rollout.rewards == 0).all(1, keepdim=True)
    L = answer_likelihood(rollout)  # (P, G)
    return on_tokens(rollout, standardise(torch.where(all_fail, L, rollout.rewards)))


def verifree(rollout: Rollout) -> Rollout:
    """Experiment 5 made right: the answer is not sampled. After arXiv 2505.21493 (VeriFree).

    The reward is 1 if and only if the true answer a is written. So after reasoning z and marker #
    the expected reward is L(z) = pi(a, end | x, z#), a number that the policy can compute:

        J = E_z[ E_answer[r] ] = E_z[ L(z) ]
        grad J = E_z[ L(z) grad ln pi(z#) + grad L(z) ],   grad L = L grad ln pi(a, end | x, z#)

    (Unlike in `likelihood`, # is given, and L is of the sampling temperature.) So the sampled z# is
    pushed by L minus a baseline, and the true answer and its end, which `answered` puts behind
    it, by L itself. No sampled answer adds noise:

        A_{i,t} = (L_i - mean of the other L_j) / (sd + eps)   on z#
        A_{i,t} = L_i / (sd + eps)                             on the true answer and its end

    mu is the group's mean of L, and sd = sqrt(mu (1 - mu)) the deviation of rewards with this mean:
    it weighs prompts as grpo does. (The paper does not divide.) Without a marker L is 0. z#a may be
    longer than a response may be: this J ignores that. All 0 if all L are 0, or if mu > 0.999, for
    there sd is near 0, or NaN by rounding.
    Reported: as good as a verifier or better, and no verifier is needed.
    """
    trained = answered(rollout)
    given = trained.given  # (P, G, T'), True on a and its end
    L = trained.logprobs.masked_fill(~given, 0.0).sum(-1).exp() * given.any(-1)  # (P, G)
    G = L.size(1)
    mu = L.mean(1, keepdim=True)
    sd = (mu * (1 - mu)).sqrt()
    above_others = G / max(G - 1, 1) * centre(L)  # L_i - mean of the other L_j, as in rloo
    A = torch.where(given, L[..., None], above_others[..., None]) / (sd[..., None] + 1e-6)
    return on_tokens(trained, A.masked_fill(mu[..., None] > 0.999, 0.0))


def forking(rollout: Rollout) -> Rollout:
    """Only the forking tokens: those at which the policy was least sure. arXiv 2506.01939.

        A_{i,t} = A_i if H_{i,t} >= the 80 % quantile of the H of the group's tokens, else 0
        H_{i,t} = - sum_v pi(v | x, y_{i,<t}) ln pi(v | x, y_{i,<t});   A_i as in grpo

    H is the entropy, in nats, of the distribution that the token was drawn from. The idea: where
    the policy is sure it only copies or computes, and where it is unsure a response takes its way.
    The quantile interpolates linearly. With ten tokens and H = 0.0, 0.1, ..., 0.9 it is 0.72, so
    two tokens keep A_i. Tokens at the threshold are kept, so all are if their H are equal. All-fail
    and all-pass groups: all 0. Reported: better than grpo on large language models.
    """
    H = torch.special.entr(rollout.probs).sum(-1)  # (P, G, T)
    H = H.masked_fill(~rollout.mask, torch.nan)  # padding counts nowhere
    threshold = H.flatten(1).nanquantile(0.8, dim=1)[:, None, None]  # (P, 1, 1)
    A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
    return on_tokens(rollout, torch.where(H >= threshold, A, 0.0))


def nthr_scores(rollout: Rollout) -> Tensor:
    """How much each token's gradient agrees with those of the correct responses: s (P, G, T).

    arXiv 2505.18830, Eq. 7. e_y is the one-hot vector of token y; k runs over the tokens of a
    correct response i, k' over those of any response j of the same group:

        g_{i,k}  = e_{y_{i,k}} - pi(. | x, y_{i,<k})                        prediction error, (V,)
        s_{j,k'} = sum_{i correct} sum_k <g_{i,k}, g_{j,k'}> <h_{i,k}, h_{j,k'}>

    g h^T is the gradient of the token's log-probability with respect to the unembedding, and
    <g, g'><h, h'> the inner product of two such gradients. A step of size a along one token's
    gradient changes the other's ln pi by a times this product. So a large s_{j,k'} says: pushing
    y_{j,k'} down pushes the correct responses down. The double sum need not be formed (section
    7.4): its part without j is one matrix,

        s_{j,k'} = g_{j,k'}^T M h_{j,k'},    M = sum_{i correct} sum_k g_{i,k} h_{i,k}^T    (V, D)
    """
    tokens = rollout.tokens.masked_fill(~rollout.mask, 0)
    one_hot = torch.zeros_like(rollout.probs).scatter(-1, tokens[..., None], 1.0)
    g = torch.where(rollout.mask[..., None], one_hot - rollout.probs, 0.0)  # (P, G, T, V)
    h = torch.where(rollout.mask[..., None], rollout.hidden, 0.0)  # (P, G, T, D)
    g_correct = g * (rollout.rewards == 1)[..., None, None]  # (P, G, T, V)
    M = torch.einsum("pgtv,pgtd->pvd", g_correct, h)
    return (torch.einsum("pgtv,pvd->pgtd", g, M) * h).sum(-1).detach()  # (P, G, T); 0 on padding


def nthr(rollout: Rollout, eta: float | None = None) -> Rollout:
    """Negative token hidden reward. arXiv 2505.18830, section 5, Algorithm 1.

    GRPO pushes down all tokens of an incorrect response, its correct steps too. Correct responses
    share these, so they can become less likely as well (lazy likelihood displacement). The hope:
    push those tokens less that would do this most.

        sbar_i   = mean over the tokens of correct response i of s_{i,k}        s: nthr_scores
        tau      = min_{i correct} sbar_i                   Eq. 8; its factor beta is 1
        selected = tokens of incorrect responses with s_{j,k'} > tau
        A_{j,k'} = eta A_j if selected, else A_j as in grpo; eta = 2 |p - 1/2|  section 7.3

    p is the share of correct responses; with one or seven of eight correct eta is 0.75. For example
    V = 3, every h is 1, pi is (.2, .4, .4) for the first token and (.1, .3, .6) for the second:

        correct response 0 2:     s = 0.84,  0.14     sbar = 0.49, the only one, so tau = 0.49
        incorrect response 0 1:   s = 0.84, -0.56     the first token is selected: p = 1/2, eta = 0

    So the incorrect response keeps -1 on its second token and has 0 on the one that both share.
    sbar_i counts i's influence on itself. All-fail and all-pass groups: all 0.
    Reported: mitigates the displacement; +0.8 to +2.4 points on models of 0.5B to 3B parameters.
    """
    s = nthr_scores(rollout)  # (P, G, T)
    correct = rollout.rewards == 1  # (P, G)
    sbar = s.sum(-1) / rollout.mask.sum(-1).clamp(min=1)  # (P, G)
    tau = sbar.masked_fill(~correct, torch.inf).amin(1)[:, None, None]  # (P, 1, 1)
    selected = (s > tau) & ~correct[..., None]
    p = correct.to(s.dtype).mean(1)[:, None, None]
    eta = 2 * (p - 0.5).abs() if eta is None else eta
    A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
    return on_tokens(rollout, torch.where(selected, eta * A, A))


# ---- What some variants read besides the rollout: forward passes
def written(rollout: Rollout, texts: list[str], temperature: float) -> Rollout:
    """The rollout with other responses: P*G texts, one group after the other.

    tokens, mask and logprobs (P, G, T') are those of the texts. The model that sampled the rollout
    reads them once for logprobs, at this temperature and without gradient. probs and hidden are
    None, because nothing was sampled.
    """
    G = rollout.mask.size(1)
    tokens, mask = (x.unflatten(0, (-1, G)) for x in encode(texts, rollout.mask.device))
    new = replace(rollout, tokens=tokens, mask=mask, probs=None, hidden=None)
    with torch.no_grad():
        at_temperature = replace(new, temperature=temperature)
        return replace(new, logprobs=response_logprobs(rollout.model, at_temperature))


def as_sampled(rollout: Rollout) -> list[str]:
    """The P*G responses as the mask has them: with EOS, unless they were cut off before it."""
    rows = zip(rollout.tokens.flatten(0, 1), rollout.mask.flatten(0, 1))
    return [TOKENIZER.decode(y[sampled].tolist()) for y, sampled in rows]


def answer_likelihood(rollout: Rollout) -> Tensor:
    """L_i = pi(true answer | prompt, the response's own reasoning), (P, G), at temperature 1.

    The product of the probabilities of the marker, the true answer's tokens and end-of-sequence,
    after prompt and reasoning. Reasoning is what stands before the first marker, the whole response
    if there is none. A row and which of its tokens count, _ being padding:

        tokens    1 2 , 1 3 , 0 6 #   6 3 2 $ _ _
        counted   0 0 0 0 0 0 0 0 1 1 1 1 1 1 0 0
    """
    pairs = [(p, text) for p, group in zip(rollout.problems, rollout.texts) for text in group]
    texts = [text.split(MARKER)[0] + MARKER + p.answer + EOS for p, text in pairs]
    read = written(rollout, texts, temperature=1.0)
    counted = (read.tokens == MARKER_ID).cumsum(-1) == 1
    return read.logprobs.masked_fill(~counted, 0.0).sum(-1).exp()


def answered(rollout: Rollout) -> Rollout:
    """What `verifree` trains: each response up to its first marker, the true answer and EOS behind.

    These tokens, their mask, their log-probabilities under the model that sampled (at the sampling
    temperature), and `given`, True on the true answer and its end. A response without a marker
    stays as it was sampled, cut off or not. Rewards and texts stay those of what was sampled.

        sampled   1 2 , 1 3 , 0 6 #   6 4 2 $        1 2 , 1 3 $
        tokens    1 2 , 1 3 , 0 6 #   6 3 2 $        1 2 , 1 3 $ _ _ _ _ _ _ _
        given     0 0 0 0 0 0 0 0 0 1 1 1 1 1        0 0 0 0 0 0 0 0 0 0 0 0 0
    """
    G = rollout.mask.size(1)
    texts = []
    for n, text in enumerate(as_sampled(rollout)):
        reasoning, marker, _ = text.partition(MARKER)
        answer = rollout.problems[n // G].answer + EOS
        texts.append(reasoning + marker + answer if marker else text)
    trained = written(rollout, texts, rollout.temperature)
    markers = trained.tokens == MARKER_ID
    behind = markers.cumsum(-1) > markers.int()  # a marker stands before the token
    return replace(trained, given=trained.mask & behind)


def token_bias(critic: GPT, rollout: Rollout) -> Tensor:
    """b_phi(y_{i,t}), (P, G, T), with gradient: the critic's output when it has read the token."""
    h = read_responses(critic, rollout.prompts, rollout.tokens)[:, :, 1:]  # (P, G, T, D)
    return critic.unembed(h)[..., 0].masked_fill(~rollout.mask, 0.0)


# ---- The tables
# name -> function, Rollout -> Rollout with A; or a class, made once a run, whose instance is one
ALL = [grpo, dr_grpo, rloo, maxrl, pos_only, reinforce, half, Critic, compensation]
ALL += [culling, negative, ngrpo, likelihood, verifree, forking, nthr]
VARIANTS = {variant.__name__.lower(): variant for variant in ALL}

# What a variant changes about the loss, if the command line does not: settings of grpo.update.
# ngrpo: section 4.2 of its paper. Pushing down stops earlier than pushing up.
LOSS = {"ngrpo": {"clip_low": 0.16, "clip_high": 0.24}}
LOSS |= {name: {"aggregate": "constant"} for name in ("dr_grpo", "reinforce")}
