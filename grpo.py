"""GRPO by hand: sample a group of responses to each prompt, score them, update the policy.

    problems -> sample_rollout -> Rollout -> VARIANTS[name] -> Rollout with A -> update -> metrics

Shapes: P prompts (a batch is counted in prompts), G responses each (a group), B = P*G rows,
T response tokens at most, Lp tokens of a prompt, V vocabulary, D width.

Where the loss comes from. The policy pi_theta is the model being trained, theta its weights. pi_old
is the same model at the moment when it sampled the responses. For a prompt x we want the expected
reward to grow, which is a sum over all responses y:

    J(theta) = sum_y pi_theta(y | x) r(y)

The gradient of pi is pi times the gradient of ln pi (the log-derivative trick). So

    grad J = sum_y pi_theta(y | x) r(y) grad ln pi_theta(y | x) = E[ r(y) grad ln pi_theta(y | x) ]

and a mean over samples y of pi_theta estimates it. A response is written token by token,
ln pi_theta(y | x) = sum_t ln pi_theta(y_t | x, y_<t), so each of its tokens is pushed by r(y).

A baseline b may be subtracted from r(y) if it does not depend on y:

    E[ b grad ln pi_theta ] = b grad sum_y pi_theta(y | x) = b grad 1 = 0

The expected gradient stays; with b near the expected reward its estimates usually scatter less
(studies/gradients.md). What does depend on y is no baseline: it adds a term of its own to the
expected gradient, a bias. The mean reward of the other responses of the group is a baseline. GRPO
takes the mean mu of the whole group: r_i - mu = (G-1)/G (r_i - mean of the others), so only the
scale changes. Dividing by sigma, the group's standard deviation, changes the objective: prompts
with a small sigma count more. The result is the advantage A.

After the first optimiser step the samples are still those of pi_old, but the policy has moved.
Importance sampling corrects an expectation over samples of another distribution:

    E_theta[ A ] = sum_y pi_theta(y) A = sum_y pi_old(y) (pi_theta(y) / pi_old(y)) A
                 = E_old[ ratio A ],   ratio = pi_theta / pi_old
    grad ( ratio A ) = ratio A grad ln pi_theta

Where the ratio is 1, that is the estimate above. One ratio for each token, not one for the whole
response, is an approximation; it holds while pi_theta is close to pi_old.

The clip ends the push on a token whose ratio has left the range in the direction of the push: above
1 + clip_high where A > 0, below 1 - clip_low where A < 0. Without it nothing stops the push there,
and the samples of pi_old say less and less about what pi_theta would do. It is one-sided: a token
with A < 0 whose ratio has grown is pushed down in proportion to the ratio.

Departures from the original, arXiv 2402.03300, and why:
- The loss is a mean over all response tokens of a rollout, as in DAPO (arXiv 2503.14476), so tokens
  of long responses count like others. The original is `aggregate="response"`.
- No KL term unless `kl` > 0, as in DAPO and Dr. GRPO: the reward is exact, there is no reward model
  whose errors could be exploited. It is the verifier's 0 or 1, with nothing for the format.
- The clip range may differ below and above; one variant uses that.
- A rollout gives four optimiser steps, each on a mini-batch of groups; the original's gives one.
- Groups without an advantage have no gradient and are not read. If there is no other group, there
  is no optimiser step, for Adam's momentum would move the weights even then.
- A gradient longer than `max_grad_norm`, 0.01, is scaled down to it, and nearly all are longer. So
  a variant decides the direction of a step, and the learning rate alone its length. A limit of 1
  cuts the gradients of some variants and not of others, and then the limit is compared.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from model import GPT, generate, read_responses
from tasks import EOS, EOS_ID, TOKENIZER, Problem


@dataclass
class Rollout:
    """P groups of G responses. Positions where mask is False are padding and are ignored."""

    tokens: Tensor  # (P, G, T) int64, as sampled
    mask: Tensor  # (P, G, T) bool, True on sampled tokens, the end-of-sequence token included
    rewards: Tensor  # (P, G)
    logprobs: Tensor  # (P, G, T), log pi_old of each sampled token, at the sampling temperature
    probs: Tensor  # (P, G, T, V), pi_old(. | prefix) at each position
    hidden: Tensor  # (P, G, T, D), the vector that the unembedding multiplied to give probs
    temperature: float = 1.0
    max_length: int | None = None  # the most tokens that a response could have
    prompts: Tensor | None = None  # (P, Lp) int64
    problems: list[Problem] = field(default_factory=list)  # P of them
    texts: list[list[str]] = field(default_factory=list)  # P x G responses, without EOS
    model: GPT | None = None  # that sampled the responses
    A: Tensor | None = None  # (P, G, T), the advantages, which a variant fills in
    given: Tensor | None = None  # (P, G, T) bool, True on tokens that were not sampled (verifree)
    solved: set[Problem] = field(default_factory=set)  # not to be drawn again (culling)
    reference_logprobs: Tensor | None = None  # (P, G, T), of the base model, for the KL term


def encode(texts: list[str], device) -> tuple[Tensor, Tensor]:
    """N texts -> tokens (N, L), padded on the right, and their mask. One character is one token."""
    rows = TOKENIZER.encode_batch(texts)
    tokens = torch.tensor([row.ids for row in rows], device=device)
    return tokens, torch.tensor([row.attention_mask for row in rows], device=device) == 1


def judge(check, problems: list[Problem], texts: list[list[str]]) -> Tensor:
    """check(problem, text) of each response, for example Task.reward, as numbers (P, G)."""
    return torch.tensor([[float(check(p, y)) for y in group] for p, group in zip(problems, texts)])


def sample_rollout(model, task, problems, G, temperature=1.0, max_new_tokens=None, generator=None):
    """Samples G responses to each of P >= 1 problems and scores them. Returns a Rollout.

    ValueError if the prompts differ in length: a response begins in the same column in every row.

    model: GPT; task: Task; problems: list[Problem]; generator: torch.Generator or None. Temperature
    0 is greedy; its logprobs and probs are of temperature 1. max_new_tokens: by default the length
    of the longest solution, and one for EOS; what is cut off there, before its end, gets reward 0.

    The mask is found from the ends: the number of ends before a token is 0 up to the first end.
        tokens 5 # 5 $ 7 $    ends 0 0 0 1 0 1    ends before 0 0 0 0 1 1    mask 1 1 1 1 0 0
    """
    if len({len(p.prompt) for p in problems}) > 1:
        raise ValueError("the prompts of a batch need one length: pad them with spaces")
    prompts, _ = encode([p.prompt for p in problems], next(model.parameters()).device)
    T = max_new_tokens or len(task.longest.solution) + 1
    tokens, probs, h = generate(model, prompts, G, T, EOS_ID, temperature, generator)
    ends = tokens == EOS_ID
    mask = ends.cumsum(-1) - ends.int() == 0
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log().masked_fill(~mask, 0.0)
    texts = [[y.split(EOS)[0] for y in TOKENIZER.decode_batch(rows)] for rows in tokens.tolist()]
    rewards = judge(task.reward, problems, texts).to(prompts.device) * ends.any(-1)  # cut off: 0
    about = {"prompts": prompts, "problems": problems, "texts": texts, "model": model}
    return Rollout(tokens, mask, rewards, logprobs, probs, h, temperature or 1.0, T, **about)


def response_logprobs(model: GPT, rollout: Rollout, groups=slice(None)) -> Tensor:
    """log pi_theta of each response token at the sampling temperature (P, G, T), with gradient.

    Teacher-forced: the logits at t - 1 score token t. 0 outside the mask. `groups`: some of the P.
    """
    tokens = rollout.tokens[groups]
    h = read_responses(model, rollout.prompts[groups], tokens[..., :-1])  # the last scores nothing
    logprobs = (model.unembed(h) / rollout.temperature).log_softmax(-1)  # (P, G, T, V)
    return logprobs.gather(-1, tokens[..., None])[..., 0].masked_fill(~rollout.mask[groups], 0.0)


def token_weights(mask: Tensor, aggregate: str = "token", max_length: int | None = None) -> Tensor:
    """What each token counts in the loss: 1 / (B length), (P, G, T); 0 outside the mask.

    B responses; length is the mean of their lengths ("token": all tokens of the rollout count
    alike, as in DAPO), that of the token's response ("response": all responses count alike, as in
    the original), or max_length ("constant", as in Dr. GRPO, arXiv 2503.20783).
    """
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)  # |y_i|, (P, G, 1)
    length = {"token": lengths.float().mean(), "response": lengths, "constant": max_length}
    return mask / (lengths.numel() * length[aggregate])


def ratios(logprobs, old_logprobs, clip_low=0.2, clip_high=0.2) -> tuple[Tensor, Tensor]:
    """ratio_{i,t} and clipped_{i,t} of policy_loss, (P, G, T). ln ratio is within -20 and 20."""
    ratio = (logprobs - old_logprobs).clamp(-20, 20).exp()
    return ratio, ratio.clamp(1 - clip_low, 1 + clip_high)


def policy_loss(logprobs, old_logprobs, A, weights, clip_low=0.2, clip_high=0.2) -> Tensor:
    """The clipped loss, a scalar; all inputs (P, G, T). arXiv 2402.03300, Eq. 3; 2505.18830, Eq. 1.

        ratio_{i,t}   = exp(log pi_theta(y_{i,t}) - log pi_old(y_{i,t}))      one per token
        clipped_{i,t} = ratio_{i,t}, but within 1 - clip_low and 1 + clip_high
        loss          = - sum_{i,t} weights_{i,t} min(ratio_{i,t} A_{i,t}, clipped_{i,t} A_{i,t})

    The min makes the clip one-sided, as in PPO: a token with A > 0 is pushed up until its ratio is
    1 + clip_high, one with A < 0 down until 1 - clip_low; one that has moved the other way keeps
    its gradient. weights: those of token_weights; where they are 0, the padding may hold anything.
    At ratio 1 the gradient is that of the weighted sum of -A log pi_theta. The value means nothing:
    advantages that sum to 0 make it about 0 (course/questions.md).
    """
    # Before the exponential: masked after it, a NaN of the padding would still be in the gradient.
    padding = weights == 0
    logprobs = logprobs.masked_fill(padding, 0.0)
    old_logprobs = old_logprobs.masked_fill(padding, 0.0)
    A = A.masked_fill(padding, 0.0)
    ratio, clipped = ratios(logprobs, old_logprobs, clip_low, clip_high)
    return -(weights * torch.min(ratio * A, clipped * A)).sum()


def k3(d: Tensor) -> Tensor:
    """exp(d) - d - 1, d = log q - log p: estimates KL(p || q) from samples of p; never below 0.

    John Schulman, "Approximating KL divergence", 2020. Kept finite as the ratio is. Its mean value
    over samples of p is KL(p || q), but its mean gradient with respect to p is that of the other
    divergence, KL(q || p); `update` says more.
    """
    d = d.clamp(-20, 20)
    return d.expm1() - d


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float = 1.0) -> Tensor:
    """One optimiser step; scales a gradient down to max_norm if it is longer; returns its norm."""
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    optimizer.step()
    return norm


def update(
    model, optimizer, rollout, minibatches=4, aggregate="token", kl=0, max_grad_norm=0.01, **clip
) -> dict[str, float]:
    """One pass over the rollout, an optimiser step for each mini-batch, which is whole groups.

    rollout: what a variant returned, so with A; prompts, tokens, mask, logprobs and A are read.
    minibatches: their number, or fewer if fewer groups are read. clip: clip_low and clip_high, as
    of policy_loss. A token counts by the whole rollout, so at fixed weights the losses of the mini-
    batches add up to the rollout's. kl > 0 adds kl * k3, with the same weights, on sampled tokens
    only (arXiv 2402.03300, Eq. 3 and 4). The mean value of k3 is KL(pi_theta || pi_reference). But
    given the prefix, and while pi_theta is pi_old, its mean gradient is that of the other one:

        E[ grad k3 ] = E[ (1 - pi_reference / pi_theta) grad ln pi_theta ]
                     = - E_reference[ grad ln pi_theta ] = grad KL(pi_reference || pi_theta)

    The original does the same; arXiv 2510.01555 and 2512.21852 criticise it. Both divergences pull
    towards the reference.

    Returns numbers that were measured before each optimiser step, 0 if there was none:
        loss           with the KL term, summed over the mini-batches
        clip_fraction  the share of tokens whose gradient the clip stopped
        approx_kl      KL(pi_old || pi_theta) by k3, mean over tokens
        grad_norm      before it is scaled down, mean over optimiser steps
    Shares and means are over the sampled tokens that were read, each weighted as in the loss.
    """
    A = rollout.A
    weights = token_weights(rollout.mask, aggregate, rollout.max_length)
    # A true answer that `verifree` put there is no sample of pi_old, so it says nothing of a KL.
    sampled = weights if rollout.given is None else weights.masked_fill(rollout.given, 0.0)
    # Only groups that have a gradient are read. With the KL term every group has one.
    groups = ((A != 0).any(2).any(1) | (kl > 0)).nonzero()[:, 0]
    parts = [part for part in groups.tensor_split(minibatches) if len(part)]
    sums = torch.zeros(4, device=A.device)
    for part in parts:
        old = rollout.logprobs[part].masked_fill(~rollout.mask[part], 0.0)
        logprobs = response_logprobs(model, rollout, part)  # 5 read
        loss = policy_loss(logprobs, old, A[part], weights[part], **clip)  # 6 loss
        if kl > 0:
            to_reference = k3(rollout.reference_logprobs[part] - logprobs)
            loss = loss + kl * (sampled[part] * to_reference).sum()
        grad_norm = descend(optimizer, loss, max_grad_norm)  # 7 step
        w = sampled[part] / sampled[groups].sum()
        ratio, clipped = ratios(logprobs, old, **clip)
        stopped = clipped * A[part] < ratio * A[part]  # the min is constant there: no gradient
        clip_fraction = (w * stopped).sum()
        approx_kl = (w * k3(logprobs - old)).sum()
        sums += torch.stack([loss, clip_fraction, approx_kl, grad_norm / len(parts)]).detach()
    return dict(zip(("loss", "clip_fraction", "approx_kl", "grad_norm"), sums.tolist()))
