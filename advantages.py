"""The variants of GRPO: short functions from a Rollout to the advantages of its tokens.

Read grpo.py first: it derives the loss, and says what a baseline and a bias are. The advantage
A_{i,t} of token t of response i says in which direction the update pushes this token, and how hard.

For example, let one of eight responses to a prompt be correct. The rewards r_i have the mean
mu = 0.125 and the standard deviation sigma = 0.331. Under `grpo` each token of the correct response
gets (1 - 0.125) / 0.331 = +2.65. Eight variants give these advantages:

                 grpo   dr_grpo    rloo   maxrl   pos_only   reinforce    half   ngrpo
    correct     +2.65     +0.88   +1.00   +7.00      +2.65       +1.00   +2.65   +1.87
    incorrect   -0.38     -0.13   -0.14   -1.00       0.00        0.00   -0.19   -0.53

A group is all-fail if no response is correct, all-pass if every response is, and otherwise mixed.
All-fail and all-pass groups get 0, unless the docstring of a variant says what they get.

Shapes and names: P prompts, G responses to each, T tokens, V vocabulary, D width; a prompt x, its
response y_i, and the model pi that sampled it (the policy).
    rollout.rewards   (P, G)        r_i: 1 if the response is correct, else 0
    rollout.mask      (P, G, T)     True on the tokens of y_i and its end token, False on padding
    rollout.tokens    (P, G, T)     y_{i,t}, as a number
    rollout.logprobs  (P, G, T)     ln pi(y_{i,t} | x, y_{i,<t}), given prompt and earlier tokens
    rollout.probs     (P, G, T, V)  pi(. | x, y_{i,<t}), from which y_{i,t} was drawn
    rollout.hidden    (P, G, T, D)  h_{i,t}, from which the last layer (the unembedding) made probs

A variant returns A_i (P, G), one advantage for all tokens of a response, or A_{i,t} (P, G, T).
Padding may hold anything, even NaN, and 0 * NaN is NaN, so we replace it (torch.where) and do not
multiply it by 0. "Experiment 1" to "5" are of an unpublished report on language models.
"""

from dataclasses import replace
from itertools import compress
from typing import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo import Rollout, descend, encode, response_logprobs
from model import GPT, read_responses
from tasks import COMMA_ID, EOS, EOS_ID, MARKER, MARKER_ID, PAD_ID, TOKENIZER


def centre(rewards: Tensor) -> Tensor:
    """r_i - mu within each group, (P, G); exactly 0 in a group of equal rewards."""
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    return (rewards - rewards.mean(1, keepdim=True)).masked_fill(equal, 0.0)


def standardise(rewards: Tensor) -> Tensor:
    """(r_i - mu) / (sigma + eps) within each group, (P, G); exactly 0 in a group of equal rewards.

    eps is 1e-6. sigma divides by G and not by G - 1, so if a share p of a group is correct, correct
    responses get sqrt((1-p)/p) and others -sqrt(p/(1-p)), as in Lemma 4.2 of arXiv 2505.18830.
    """
    return centre(rewards) / (rewards.std(1, correction=0, keepdim=True) + 1e-6)


def above_others(rewards: Tensor) -> Tensor:
    """r_i - mean of the other G - 1 rewards = G / (G - 1) (r_i - mu), (P, G); 0 if G is 1."""
    G = rewards.size(1)
    return G / max(G - 1, 1) * centre(rewards)


def with_advantages(rollout: Rollout, variant: Callable) -> Rollout:
    """The rollout with the advantages A (P, G, T) of a variant. This is what the loop calls.

    A is 0 outside the mask, whatever the padding held, and has no gradient. A variant that trains
    other texts than were sampled returns them as a Rollout with A.
    """
    found = variant(rollout)
    trained = found if isinstance(found, Rollout) else replace(rollout, A=found)
    A = trained.A if trained.A.dim() == 3 else trained.A[..., None]
    return replace(trained, A=torch.where(trained.mask, A, 0.0).detach())


def grpo(rollout: Rollout) -> Tensor:
    """Compare a response with the mean of its group.
    GRPO (group relative policy optimization). arXiv 2402.03300, section 4.1.2.

        A_i = (r_i - mu) / (sigma + eps)

    The group's mean mu serves as the baseline, so no second network has to predict the reward.
    """
    return standardise(rollout.rewards)


def dr_grpo(rollout: Rollout) -> Tensor:
    """Do not divide by the deviation.
    Dr. GRPO (GRPO done right). arXiv 2503.20783.

        A_i = r_i - mu

    Its loss divides by a constant (table LOSS) and not by the number of tokens.
    """
    return centre(rollout.rewards)


def rloo(rollout: Rollout) -> Tensor:
    """Compare a response with the mean of the others.
    RLOO (REINFORCE leave-one-out). arXiv 2402.14740.

        A_i = r_i - (sum_{j != i} r_j) / (G - 1)  =  G / (G - 1) (r_i - mu)

    The mean of the other rewards does not depend on y_i, so it is a true baseline.
    """
    return above_others(rollout.rewards)


def maxrl(rollout: Rollout) -> Tensor:
    """Divide by the mean, so that rare successes count most.
    MaxRL (maximum likelihood reinforcement learning). arXiv 2602.02710.

        A_i = (r_i - mu) / mu,   or 0 if mu = 0

    Dividing by mu changes the objective. Let p be the probability of a correct response, and
    pass@k = 1 - (1-p)^k that of at least one among k. The expected gradient is exactly that of
    sum_{k = 1}^{G - 1} pass@k / k if the loss divides by a constant.
    """
    mu = rollout.rewards.mean(1, keepdim=True)
    return (centre(rollout.rewards) / mu).masked_fill(mu == 0, 0.0)


def pos_only(rollout: Rollout) -> Tensor:
    """Push correct responses up and ignore the others.
    arXiv 2505.18830, section 3.

        A_i = max(A_i of grpo, 0)
    """
    return standardise(rollout.rewards).clamp(min=0.0)


def reinforce(rollout: Rollout) -> Tensor:
    """Use the reward itself, without a comparison.
    REINFORCE. Williams 1992; Sutton and Barto, section 13.3.

        A_i = r_i

    All-pass groups get 1. The loss divides by a constant (table LOSS), because the number of tokens
    depends on the responses.
    """
    return rollout.rewards


def half(rollout: Rollout) -> Tensor:
    """Push incorrect responses down half as hard.
    A special case of arXiv 2512.21625, which weighs correct and incorrect responses differently.

        A_i = A_i of grpo, but half of it if it is negative

    This is the control for nthr, which spares only chosen tokens.
    """
    A = standardise(rollout.rewards)
    return torch.where(A < 0, A / 2, A)


class Critic:
    """Let a second network learn which tokens predict a correct response.
    Experiment 1.

        A_{i,t} = A_i + b_phi(y_{i,t}),   A_i as in grpo

    The critic, with weights phi, learns beside the policy (critic_loss). b_phi(y_{i,t}) is its
    output after reading y_{i,t} and all before it. It depends on the token, so it is no baseline,
    and it biases the gradient. In all-fail and all-pass groups only b_phi remains.
    """

    def __init__(self, network: GPT, lr: float):
        """network: a GPT with one output for each token. lr: the learning rate of the critic."""
        self.network = network
        self.optimizer = torch.optim.Adam(network.parameters(), lr)

    def __call__(self, rollout: Rollout) -> Tensor:
        """Judges the tokens. Then the critic makes one optimiser step."""
        bias = token_bias(self.network, rollout)  # (P, G, T)
        A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
        descend(self.optimizer, critic_loss(bias, A, rollout.mask))
        return A + bias


class PPO(Critic):
    """Compare the reward with what a second network predicts before each token.
    PPO (proximal policy optimization). arXiv 1707.06347; 1506.02438 with gamma = lambda = 1.

        A_{i,t} = r_i - V_phi(x, y_{i,<t})          in groups of equal rewards as well

    V_phi, the value network, predicts the reward from the prompt and the tokens before y_{i,t}.
    GRPO puts the group's mean in its place. This saves a second network, whose predictions are
    wrong until it has learned. In return, GRPO needs several responses to a prompt, gives all
    tokens of a response one advantage, and learns nothing from groups of equal rewards.

    V_phi has not read y_{i,t}, so it is a baseline, however wrong it is. (Exactly so if the loss
    divides by a constant.) It begins with random weights, and its learning rate stays at lr. For
    example, let r be 0, and V 0.5 before a mistake and 0.05 after it: the tokens up to the mistake
    get -0.5, and those after it -0.05.
    """

    def __call__(self, rollout: Rollout) -> Tensor:
        """A, from a network that has not seen these rewards. Then it learns, in up to four steps.

        loss(phi) = mean over response tokens of (V_phi(x, y_{i,<t}) - r_i)^2
        """
        r = rollout.rewards[..., None]  # (P, G, 1)
        with torch.no_grad():
            A = r - token_values(self.network, rollout)
        for part in torch.arange(len(r)).chunk(4):
            errors = token_values(self.network, rollout, part) - r[part]
            descend(self.optimizer, errors[rollout.mask[part]].square().mean())
        return A


def critic_loss(bias: Tensor, A: Tensor, mask: Tensor) -> Tensor:
    """The critic's loss, a scalar. bias: its outputs (P, G, T). A: grpo's (P, G, 1) or (P, G, T).

        loss(phi) = - mean over responses i of  A_i sum_t b_phi(y_{i,t})

    Nothing bounds it.
    """
    return -(A * bias).masked_fill(~mask, 0.0).sum(-1).mean()


def compensation(rollout: Rollout) -> Tensor:
    """In correct responses, push improbable tokens harder, at most twice as hard.
    Experiment 2.

        A_{i,t} = A_i (2 - pi_t / pi_max) if A_i > 0, else A_i;   A_i as in grpo

    pi_t is the probability with which y_{i,t} was sampled, and pi_max that response's largest pi_t.
    """
    A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
    logp = rollout.logprobs.masked_fill(~rollout.mask, -torch.inf)
    peak = logp.amax(-1, keepdim=True)  # log pi_max; a quotient of probabilities could be 0 / 0
    return torch.where(A > 0, A * (2 - (logp - peak).exp()), A)


def culling(rollout: Rollout) -> Tensor:
    """Stop drawing problems that are solved.
    Experiment 3.

        A_i as in grpo;   the loop drops solved problems (table LOSS)

    A problem is solved if all its responses in the rollout are correct. If none is left, all come
    back.
    """
    return grpo(rollout)


def negative(rollout: Rollout, c: float = 1.0) -> Tensor:
    """Push all-fail groups down.
    Experiment 4.

        A_i = -c in an all-fail group, else as in grpo

    If the responses are pushed down, probability moves to answers that have not been tried yet. An
    incorrect response in a group that is half correct gets -1 under grpo, so c = 1.
    """
    all_fail = (rollout.rewards == 0).all(1, keepdim=True)
    return standardise(rollout.rewards).masked_fill(all_fail, -c)


def ngrpo(rollout: Rollout) -> Tensor:
    """Imagine one more response that is correct.
    NGRPO (negative-enhanced GRPO). arXiv 2509.18851, Eq. 5 and 6.

        A_i = (r_i - mu') / (sigma' + eps),   mu' and sigma' of r_1, .., r_G and a reward of 1

    The imagined response gets no advantage itself. Each response of an all-fail group gets
    -1/sqrt(G). In sigma' we divide by G + 1, as the printed equation does. (The authors' code
    divides by G.) The clip range reaches 0.16 below 1 and 0.24 above it (section 4.2; table LOSS).
    """
    with_virtual = torch.cat([rollout.rewards, torch.ones_like(rollout.rewards[:, :1])], dim=1)
    return standardise(with_virtual)[:, :-1]


def likelihood(rollout: Rollout) -> Tensor:
    """In all-fail groups, reward reasoning that makes the true answer likely.
    Experiment 5.

        A_i as in grpo, but in an all-fail group r_i is replaced by answer_likelihood:
        pi(#, true answer, end | x, reasoning of response i)

    The update still trains the sampled tokens, with their incorrect answers.
    """
    all_fail = (rollout.rewards == 0).all(1)  # (P,)
    rewards = rollout.rewards.clone()
    if all_fail.any():  # only these groups are read
        rewards[all_fail] = answer_likelihood(select_groups(rollout, all_fail)).to(rewards.dtype)
    return standardise(rewards)


def verifree(rollout: Rollout) -> Rollout:
    """Put the true answer in place of the sampled one, and judge the reasoning by it.
    VeriFree. arXiv 2505.21493, which does not divide.

    Let z be the reasoning, # the marker and `a` the true answer. The reward is 1 if and only if `a`
    and the end follow z#, so the policy itself can compute the expected reward after z#, and a
    sampled answer would only add noise. We call this expected reward L(z).

        L(z) = pi(a, end | x, z#),    J = E_z[ L(z) ]
        grad J = E_z[ L(z) grad ln pi(z#) + L(z) grad ln pi(a, end | x, z#) ]

    `answered` puts `a` and its end behind each sampled z#. The two parts get these advantages:

        A_{i,t} = (L_i - mean of the other L_j) / (sd + eps)    on z#, with the baseline of rloo
        A_{i,t} = L_i / (sd + eps)                              on the true answer and its end

    The true answer is not sampled, so the mean of its grad ln pi is not 0: a baseline would change
    the expected gradient, and there is none. L_i is taken at the sampling temperature, and it is 0
    if response i has no marker. A group of one has no others: 0 on z#. Rewards are not used, so
    all-fail and all-pass groups are trained as well. mu is the group's mean of L, and sd =
    sqrt(mu (1 - mu)) is what sigma would be for rewards of 0 and 1 with the mean mu. A group gets 0
    if all its L are 0, or if mu > 0.999, because sd is then near 0 or NaN. Our J ignores that
    responses have a limited length.
    """
    trained = answered(rollout)
    given = trained.given  # (P, G, T'), True on a and its end
    L = trained.logprobs.masked_fill(~given, 0.0).sum(-1).exp() * given.any(-1)  # (P, G)
    mu = L.mean(1, keepdim=True)
    sd = (mu * (1 - mu)).sqrt()
    A = torch.where(given, L[..., None], above_others(L)[..., None]) / (sd[..., None] + 1e-6)
    return replace(trained, A=A.masked_fill(mu[..., None] > 0.999, 0.0))


def forking(rollout: Rollout) -> Tensor:
    """Train only the tokens at which the policy was least sure.
    arXiv 2506.01939, Eq. 6.

        H_{i,t} = - sum_v pi(v | x, y_{i,<t}) ln pi(v | x, y_{i,<t})
        A_{i,t} = A_i if H_{i,t} >= the 80 % quantile of H over the batch, else 0;   A_i as in grpo

    H is the entropy, in nats, of the distribution that the token was drawn from. Where it is large,
    a response can go either way. The batch is all groups that have an advantage. Our H is that of
    the policy that sampled, the paper's that of the policy being trained.
    """
    A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
    counted = rollout.mask & (A != 0).any(1, keepdim=True)  # (P, G, T)
    H = torch.special.entr(rollout.probs).sum(-1)  # (P, G, T)
    H = H.masked_fill(~counted, torch.nan)  # nanquantile leaves the others out
    threshold = H.nanquantile(0.8)  # NaN if no group has an advantage
    return torch.where(H >= threshold, A, 0.0)


def gspo(rollout: Rollout) -> Tensor:
    """Give all tokens of a response one ratio, the geometric mean of theirs.
    GSPO (group sequence policy optimization). arXiv 2507.18071, Eq. 5 to 7.

        A_i as in grpo;   the loss has loss_type "gspo" (policy_loss; table LOSS)

    A response whose ratio leaves the clip range loses the gradient of all its tokens at once. Our
    responses are short, and our range is a hundred times as wide as the paper's.
    """
    return grpo(rollout)


def cispo(rollout: Rollout) -> Tensor:
    """Limit the ratio, but keep the gradient of every token.
    CISPO (clipped importance sampling policy optimization). arXiv 2506.13585, Eq. 4 and 5.

        A_i as in grpo;   the loss has loss_type "cispo" (policy_loss; table LOSS)

    CISPO only cuts the ratio that the gradient is multiplied by, here at 5. There is no lower
    limit, so a push down fades with the ratio, but never ends.
    """
    return grpo(rollout)


def process(rollout: Rollout) -> Tensor:
    """Reward each step that is correct, not only the answer.
    Process supervision. arXiv 2402.03300, section 4.1.3.

        R_{i,k} = 1 if response i agrees with the solution up to the end of its step k, else 0
        A_{i,t} = sum of (R_{i,k} - mu) / (sigma + eps) over the steps k that end at t or later

    The K steps are those of the solution, its answer the last of them. A response that ends early
    or merges steps gets 0 for what it lacks. mu and sigma are the mean and the standard deviation
    of R over the K G steps of the group, which gets 0 if all of them are correct or all incorrect.
    In the paper a trained model judges the steps. Here the solution does.
    """
    R, places = step_rewards(rollout)
    steps = places.sum(-1, keepdim=True) * R.size(1)  # K G, (P, 1, 1)
    mu = (R * places).sum((1, 2), keepdim=True) / steps
    deviation = (R - mu) * places  # 0 where no step ends
    sigma = ((deviation**2).sum((1, 2), keepdim=True) / steps).sqrt()
    later = (deviation / (sigma + 1e-6)).flip(-1).cumsum(-1).flip(-1)  # the sum over k
    return later[..., : rollout.mask.size(2)]  # steps may end behind the response


def nthr_scores(rollout: Rollout) -> Tensor:
    """The scores s (P, G, T): how much a push on each token moves its group's correct responses.

    arXiv 2505.18830, Eq. 7. A small step along the gradient of one token's log-probability also
    changes the log-probability of any other token, in proportion to the inner product of the two
    gradients. The score of a token is the sum of these inner products over all tokens of the
    group's correct responses. If it is large, pushing the token down also pushes them down.

    We take gradients with respect to the unembedding only. The gradient of ln pi(y_{i,k}) is then
    the matrix g_{i,k} h_{i,k}^T, where h_{i,k} (D,) is the unembedding's input, and g_{i,k} is the
    prediction error, with the one-hot vector e_y of token y:

        g_{i,k} = e_{y_{i,k}} - pi(. | x, y_{i,<k})                              (V,)

    The inner product of two of these matrices is <g, g'> <h, h'>. So token k' of any response j,
    correct or not, has the score

        s_{j,k'} = sum_{i correct} sum_k <g_{i,k}, g_{j,k'}> <h_{i,k}, h_{j,k'}>

    It is 0 on padding. Everything except token k' fits into one matrix per group (section 7.4):

        s_{j,k'} = g_{j,k'}^T M h_{j,k'},    M = sum_{i correct} sum_k g_{i,k} h_{i,k}^T    (V, D)
    """
    tokens = rollout.tokens.masked_fill(~rollout.mask, 0)
    one_hot = torch.zeros_like(rollout.probs).scatter(-1, tokens[..., None], 1.0)
    g = torch.where(rollout.mask[..., None], one_hot - rollout.probs, 0.0)  # (P, G, T, V)
    h = torch.where(rollout.mask[..., None], rollout.hidden, 0.0)  # (P, G, T, D)
    g_correct = g * (rollout.rewards == 1)[..., None, None]  # (P, G, T, V)
    M = torch.einsum("pgtv,pgtd->pvd", g_correct, h)
    return (torch.einsum("pgtv,pvd->pgtd", g, M) * h).sum(-1).detach()  # (P, G, T); 0 on padding


def nthr(rollout: Rollout, eta: float | None = None) -> Tensor:
    """Push a token down less if the push would also pull correct responses down.
    NTHR (negative token hidden reward). arXiv 2505.18830, section 5, Algorithm 1.

    GRPO pushes down every token of an incorrect response, even its correct reasoning steps. This
    can make correct responses with the same steps less likely (lazy likelihood displacement). NTHR
    finds the tokens that would do most of this harm and pushes them down less.

        s_{j,k'} = the score of token k' of response j           nthr_scores
        sbar_i   = mean of s_{i,k} over the tokens of correct response i
        tau      = min of sbar_i over the correct responses      Eq. 8, where we set beta = 1
        selected = tokens of incorrect responses with s_{j,k'} > tau
        eta      = 2 |p - 1/2| by default, p the share correct   section 7.3
        A_{j,k'} = eta A_j if selected, else A_j;   A_j as in grpo

    Selected tokens get 0 in a group that is half correct, and keep most of the push in one that is
    nearly all-fail or all-pass. For example let V = 3, D = 1, every h = 1, and pi = (.2, .4, .4) at
    the first token of both responses and (.1, .3, .6) at the second:

        correct response 0 2:     s = 0.84,  0.14     sbar = 0.49, so tau = 0.49
        incorrect response 0 1:   s = 0.84, -0.56     the first token is selected

    As p = 1/2, the incorrect response gets 0 on the shared token and -1 on the other. We let
    sbar_i include the influence of i on itself; the paper's text names only the other correct ones.
    """
    s = nthr_scores(rollout)  # (P, G, T)
    correct = rollout.rewards == 1  # (P, G)
    sbar = s.sum(-1) / rollout.mask.sum(-1).clamp(min=1)  # (P, G)
    tau = sbar.masked_fill(~correct, torch.inf).amin(1)[:, None, None]  # (P, 1, 1)
    selected = (s > tau) & ~correct[..., None]
    p = correct.to(s.dtype).mean(1)[:, None, None]
    eta = 2 * (p - 0.5).abs() if eta is None else eta
    A = standardise(rollout.rewards)[..., None]  # (P, G, 1)
    return torch.where(selected, eta * A, A)


# ---- Forward passes that only some variants need
def select_groups(rollout: Rollout, chosen: Tensor) -> Rollout:
    """The rollout with only some of its groups: those where chosen (P,) is True."""
    tensors = {name: x[chosen] for name, x in vars(rollout).items() if isinstance(x, Tensor)}
    lists = {name: [*compress(vars(rollout)[name], chosen)] for name in ("problems", "texts")}
    return replace(rollout, **tensors, **lists)


def written(rollout: Rollout, texts: list[str], temperature: float) -> Rollout:
    """The rollout with P*G other texts as responses, and with their tokens, mask and logprobs.

    The model that sampled the rollout reads them once, at this temperature and without gradient.
    They were not sampled, so probs and hidden become None.
    """
    G = rollout.mask.size(1)
    tokens, mask = (x.unflatten(0, (-1, G)) for x in encode(texts, rollout.mask.device))
    new = replace(rollout, tokens=tokens, mask=mask, probs=None, hidden=None)
    read = replace(new, temperature=temperature)
    with torch.no_grad():  # 16 groups at a time stay in the processor's cache
        groups = torch.arange(len(mask), device=mask.device).split(16)
        logprobs = torch.cat([response_logprobs(rollout.model, read, part) for part in groups])
    return replace(new, logprobs=logprobs)


def decode_responses(rollout: Rollout) -> list[str]:
    """The P*G responses as texts. Each ends with EOS, unless it was cut off before."""
    rows = zip(rollout.tokens.flatten(0, 1), rollout.mask.flatten(0, 1))
    return [TOKENIZER.decode(y[sampled].tolist()) for y, sampled in rows]


def answer_likelihood(rollout: Rollout) -> Tensor:
    """pi(#, true answer, end | x, reasoning of response i), (P, G), at temperature 1.

    The reasoning is the text before the first marker #, or the whole response if it has no marker.
    $ is the end, and _ is padding, whose logprobs are 0:

        tokens    1 2 , 1 3 , 0 6 #   6 3 2 $ _ _
        counted   0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1
    """
    pairs = [(p, text) for p, group in zip(rollout.problems, rollout.texts) for text in group]
    texts = [text.split(MARKER)[0] + MARKER + p.answer + EOS for p, text in pairs]
    read = written(rollout, texts, temperature=1.0)
    counted = (read.tokens == MARKER_ID).cumsum(-1) == 1
    return read.logprobs.masked_fill(~counted, 0.0).sum(-1).exp()


def answered(rollout: Rollout) -> Rollout:
    """The rollout that `verifree` trains: responses up to their first marker, the true answer, EOS.

    A response without a marker stays as it was sampled, even if it was cut off. `given` is True on
    the true answer and its end. Rewards and texts stay those of the sampled responses.

        sampled   1 2 , 1 3 , 0 6 #   6 4 2 $        1 2 , 1 3 $
        tokens    1 2 , 1 3 , 0 6 #   6 3 2 $        1 2 , 1 3 $ _ _ _ _ _ _ _ _
        given     0 0 0 0 0 0 0 0 0 1 1 1 1 1        0 0 0 0 0 0 0 0 0 0 0 0 0 0
    """
    endings = [p.answer + EOS for p, group in zip(rollout.problems, rollout.texts) for _ in group]
    pairs = zip(decode_responses(rollout), endings)
    texts = [y.split(MARKER)[0] + MARKER + end if MARKER in y else y for y, end in pairs]
    trained = written(rollout, texts, rollout.temperature)
    markers = trained.tokens == MARKER_ID
    behind = markers.cumsum(-1) > markers.int()  # whether a marker precedes the token
    return replace(trained, given=trained.mask & behind)


def step_rewards(rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Whether responses agree with their solution, and where the steps of the solution end.

    R (P, G, S) is 1 until the first difference. places (P, 1, S) is True at the commas, the marker
    and the end of the solution. S is the length of the longest response or solution.

        solution  1 2 , 1 3 , 0 6 #   6 3 2 $        response  1 2 , 1 4 , 0 6 #   6 4 2 $
        places    0 0 1 0 0 1 0 0 1 0 0 0 0 1        R         1 1 1 1 0 0 0 0 0 0 0 0 0 0
    """
    solutions, _ = encode([p.solution + EOS for p in rollout.problems], rollout.mask.device)
    more = solutions.size(1) - rollout.mask.size(2)  # tokens of the longest solution
    solutions = pad(solutions, (0, max(-more, 0)), value=PAD_ID)[:, None]  # (P, 1, S)
    tokens, mask = (pad(x, (0, max(more, 0))) for x in (rollout.tokens, rollout.mask))
    R = ((tokens == solutions) & mask).cumprod(-1).to(rollout.rewards.dtype)
    ends = torch.tensor([COMMA_ID, MARKER_ID, EOS_ID], device=mask.device)
    return R, torch.isin(solutions, ends)


def token_bias(critic: GPT, rollout: Rollout) -> Tensor:
    """The critic's outputs b_phi(y_{i,t}) after reading y_{i,t}, (P, G, T), with gradient."""
    h = read_responses(critic, rollout.prompts, rollout.tokens)[:, :, 1:]  # (P, G, T, D)
    return critic.unembed(h)[..., 0].masked_fill(~rollout.mask, 0.0)


def token_values(network: GPT, rollout: Rollout, groups=slice(None)) -> Tensor:
    """The outputs V_phi(x, y_{i,<t}), before y_{i,t} is read, (P, G, T), with gradient."""
    h = read_responses(network, rollout.prompts[groups], rollout.tokens[groups][..., :-1])
    return network.unembed(h)[..., 0]


# ---- The tables
# Each name -> a function that returns advantages, or a class. A run makes one instance of a class
# and calls that like a function. A new variant needs no more than its name in ALL.
ALL = [grpo, dr_grpo, rloo, maxrl, pos_only, reinforce, half, Critic, PPO, compensation]
ALL += [culling, negative, ngrpo, likelihood, verifree, forking, process, nthr, gspo, cispo]
VARIANTS = {variant.__name__.lower(): variant for variant in ALL}

# What a variant changes besides A, unless the command line says otherwise: whether the loop drops
# solved problems (cull), and settings of grpo.update.
LOSS = {
    "dr_grpo": {"aggregate": "constant"},
    "reinforce": {"aggregate": "constant"},
    "ngrpo": {"clip_low": 0.16, "clip_high": 0.24},
    "culling": {"cull": True},
    "gspo": {"loss_type": "gspo", "aggregate": "response", "clip_low": 0.03, "clip_high": 0.04},
    "cispo": {"loss_type": "cispo", "clip_high": 4.0},
}
