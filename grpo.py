"""GRPO by hand: sample a group of responses to each prompt, score them, update the policy.

    problems -> sample_rollout -> Rollout -> advantages.VARIANTS[name] -> update -> metrics

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
(docs/gradients.md). What does depend on y, such as the output of `critic` for a token of y, is no
baseline: it adds a term of its own to the expected gradient, a bias. The mean reward of the other
responses of the group is a baseline. GRPO takes the mean mu of the whole group: r_i - mu =
(G-1)/G (r_i - mean of the others), so only the scale changes. (PPO trains a second network, the
value function, to predict b.) Dividing by sigma as well changes the objective: prompts with a small
sigma count more. The result is the advantage A.

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
- The loss is the mean over all response tokens of a rollout, as in DAPO (arXiv 2503.14476), so that
  tokens of long responses count like others. The original averages each response first:
  `aggregate="response"`. Dividing by sampled lengths departs from grad J either way; `dr_grpo`
  divides by a constant.
- The KL term is off by default, as in DAPO, Dr. GRPO and today's trainers: the reward is exact, so
  there is no reward model whose errors could be exploited. `kl` > 0 brings it back.
- The clip range may differ below and above; one variant uses that.
- The reward is the verifier's 0 or 1 (Task.reward): no reward model, no reward for the format.
- A rollout gives four optimiser steps, each on a mini-batch, a part of its groups; at the first,
  pi_theta is still pi_old. The original's experiments make one step: `--minibatches 1`.
- Mini-batches are cut from the groups that have an advantage other than 0. The others have no
  gradient and are not read. A rollout without any such group makes no optimiser step, for AdamW's
  momentum would move the weights even then.
- A token's weight in the loss is 1 / (tokens of the rollout), not of its mini-batch. So the losses
  of the mini-batches add up to that of the rollout, and each gradient is about a quarter of what it
  would be otherwise. Otherwise nearly every gradient is longer than 1 and is scaled down: see the
  next point.
- A gradient with a norm above 1 is scaled down to norm 1.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from model import GPT, generate, read_responses
from tasks import EOS, MARKER, PAD, Problem


@dataclass
class Rollout:
    """P groups of G responses. Positions where mask is False are padding and are ignored."""

    tokens: Tensor  # (P, G, T) int64, as sampled
    mask: Tensor  # (P, G, T) bool, True on sampled tokens, the end-of-sequence token included
    rewards: Tensor  # (P, G)
    logprobs: Tensor  # (P, G, T), log pi_old of each sampled token, at the sampling temperature
    probs: Tensor  # (P, G, T, V), pi_old(. | prefix) at each position
    hidden: Tensor  # (P, G, T, D), the vector that the unembedding multiplied to give probs
    answer_likelihood: Tensor | None = None  # (P, G), for the variant `likelihood`
    token_bias: Tensor | None = None  # (P, G, T), for the variant `critic`
    reference_logprobs: Tensor | None = None  # (P, G, T), of the base model, for the KL term
    temperature: float = 1.0
    max_length: int | None = None  # the most tokens that a response could have
    prompts: Tensor | None = None  # (P, Lp) int64
    problems: list[Problem] = field(default_factory=list)  # P of them
    texts: list[list[str]] = field(default_factory=list)  # P x G responses, without EOS
    tokenizer: object = None  # a tokenizers.Tokenizer


def encode(tokenizer, texts: list[str], device) -> Tensor:
    """N texts -> tokens (N, L), padded on the right. One character is one token."""
    return torch.tensor([e.ids for e in tokenizer.encode_batch(texts)], device=device)


def judge(check, problems: list[Problem], texts: list[list[str]], device="cpu") -> Tensor:
    """check(problem, text) of each response, for example Task.reward, as numbers (P, G)."""
    values = [[float(check(p, text)) for text in group] for p, group in zip(problems, texts)]
    return torch.tensor(values, device=device)


def sample_rollout(
    model, tokenizer, task, problems, group_size, temperature=1, max_new_tokens=None, generator=None
) -> Rollout:
    """Samples group_size responses to each of P >= 1 problems and scores them.

    model: GPT; tokenizer: tokenizers.Tokenizer; task: Task; problems: list[Problem]; generator:
    torch.Generator. Temperature 0 is greedy. max_new_tokens: by default the length of the task's
    longest solution, and one for EOS; a response that is cut off there, before its end-of-sequence
    token, gets reward 0 whatever it says.
    """
    T = max_new_tokens or len(task.longest.solution) + 1
    eos = tokenizer.token_to_id(EOS)
    prompts = encode(tokenizer, [p.prompt for p in problems], next(model.parameters()).device)
    tokens, mask, probs, h = generate(model, prompts, group_size, T, eos, temperature, generator)
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log().masked_fill(~mask, 0.0)
    groups = [tokenizer.decode_batch(rows) for rows in tokens.tolist()]
    # What was sampled after the end of a response is cut off.
    texts = [[text.split(EOS)[0] for text in group] for group in groups]
    ended = (tokens == eos).any(-1)
    rewards = judge(task.reward, problems, texts, ended.device) * ended
    rest = {"prompts": prompts, "problems": problems, "texts": texts, "tokenizer": tokenizer}
    t = temperature or 1.0  # for greedy responses logprobs and probs are those of temperature 1
    return Rollout(tokens, mask, rewards, logprobs, probs, h, temperature=t, max_length=T, **rest)


def response_logprobs(model: GPT, rollout: Rollout, groups=slice(None)) -> Tensor:
    """log pi_theta of each response token at the sampling temperature (P, G, T), with gradient.

    Teacher-forced: the logits at t - 1 score token t. Equals rollout.logprobs before any update; 0
    outside the mask. `groups` selects some of the P.
    """
    tokens = rollout.tokens[groups]
    h = read_responses(model, rollout.prompts[groups], tokens[..., :-1])  # the last scores nothing
    logprobs = (model.unembed(h) / rollout.temperature).log_softmax(-1)  # (P, G, T, V)
    return logprobs.gather(-1, tokens[..., None])[..., 0].masked_fill(~rollout.mask[groups], 0.0)


@torch.no_grad()
def answer_likelihood(model: GPT, rollout: Rollout) -> Tensor:
    """L_i = pi_theta(true answer | prompt, the response's own reasoning), (P, G), at temperature 1.

    The product of the probabilities of the marker, the true answer's tokens and end-of-sequence,
    after prompt and reasoning. Reasoning is what stands before the first marker; the whole
    response if there is none; it may be empty. The marker counts too: would the reasoning stop
    there? A row and which of its tokens count, _ being padding:

        tokens    1 2 , 1 3 , 0 6 #   6 3 2 $ _ _
        counted   0 0 0 0 0 0 0 0 1 1 1 1 1 1 0 0
    """
    pairs = [(p, text) for p, group in zip(rollout.problems, rollout.texts) for text in group]
    texts = [text.split(MARKER)[0] + MARKER + p.answer + EOS for p, text in pairs]
    tokens = encode(rollout.tokenizer, texts, rollout.mask.device).view(*rollout.rewards.size(), -1)
    from_marker = (tokens == rollout.tokenizer.token_to_id(MARKER)).cumsum(-1) == 1
    counted = from_marker & (tokens != rollout.tokenizer.token_to_id(PAD))
    answered = replace(rollout, tokens=tokens, mask=counted, temperature=1.0)
    return response_logprobs(model, answered).sum(-1).exp()


def token_bias(critic: GPT, rollout: Rollout) -> Tensor:
    """b_phi(y_{i,t}), (P, G, T), with gradient: the critic's output after the token.

    There it has just read the token, which it judges. 0 outside the mask.
    """
    h = read_responses(critic, rollout.prompts, rollout.tokens)[:, :, 1:]  # (P, G, T, D)
    return critic.unembed(h)[..., 0].masked_fill(~rollout.mask, 0.0)


def token_weights(mask: Tensor, aggregate: str = "token", max_length: int | None = None) -> Tensor:
    """What each token counts in the loss: 1 / (B length), (P, G, T); 0 outside the mask.

    B responses; length is the mean of their lengths ("token": all tokens count alike), that of the
    token's response ("response": all responses count alike), or max_length ("constant"). ValueError
    for another, and for "constant" without max_length.
    """
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)  # |y_i|, (P, G, 1)
    length = {"token": lengths.float().mean(), "response": lengths, "constant": max_length}
    if length.get(aggregate) is None:
        raise ValueError(f"aggregate: {', '.join(length)} (with max_length), not {aggregate!r}")
    return mask / (lengths.numel() * length[aggregate])


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, limit=20.0) -> Tensor:
    """log (pi_theta / pi_old) of each token (P, G, T); 0 outside the mask.

    Kept within +-20, so that exp() cannot overflow: 0 * inf would be a NaN gradient.
    """
    return (logprobs - old_logprobs).masked_fill(~mask, 0.0).clamp(-limit, limit)


def clipped_gain(ratio: Tensor, A: Tensor, clip_low: float, clip_high: float) -> tuple:
    """min(ratio A, clip(ratio) A) of each token, and where the clip stops its gradient (bool).

    The min makes the clip one-sided, as in PPO: a token with A > 0 is pushed up until its ratio is
    1 + clip_high, one with A < 0 down until 1 - clip_low; one that has moved the other way keeps
    its gradient, ratio times A times grad ln pi_theta. For example, with A = +1 a token at ratio
    1.5 has no gradient, at 0.5 it has.
    """
    free = ratio * A
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * A
    return torch.min(free, clipped), clipped < free


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    aggregate: str = "token",
    max_length: int | None = None,
) -> Tensor:
    """The clipped loss, a scalar; all inputs (P, G, T). arXiv 2402.03300, Eq. 3; 2505.18830, Eq. 1.

    This is the loss of a whole rollout; update makes the same sum, one mini-batch after the other.

        ratio_{i,t}   = exp(log pi_theta(y_{i,t}) - log pi_old(y_{i,t}))      one per token
        clipped_{i,t} = ratio_{i,t}, but within 1 - clip_low and 1 + clip_high
        loss          = - sum_{i,t} min(ratio_{i,t} A_{i,t}, clipped_{i,t} A_{i,t}) / sum_i |y_i|

    aggregate: "token" (above, as in DAPO), "response" (mean over each response, then over
    responses: Eq. 3 of the original) or "constant" (sum / (responses x max_length): Dr. GRPO's,
    arXiv 2503.20783). ValueError for another, and for "constant" without max_length.

    Why is it about 0 at the first update? There the ratio is 1, so the loss is
    -sum_i A_i |y_i| / sum_i |y_i|. If the A_i of a group sum to 0, as in `grpo`, and all responses
    have one length, the loss is 0. The value means nothing. The gradient does: at the first update
    it is that of the mean of -A log pi_theta.
    """
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    gain, _ = clipped_gain(ratio, advantages.masked_fill(~mask, 0.0), clip_low, clip_high)
    return -(token_weights(mask, aggregate, max_length) * gain).sum()


def k3(d: Tensor) -> Tensor:
    """exp(d) - d - 1, d = log q - log p: estimates KL(p || q) from samples of p; never below 0."""
    return d.expm1() - d


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float = 1.0) -> Tensor:
    """One optimiser step on the loss. Returns the gradient's norm, before it is scaled down.

    A gradient with a norm above max_norm is scaled down to it. The optimiser has one group of
    parameters. FloatingPointError, before the optimiser step, if loss or gradient is not finite.
    """
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    if not torch.isfinite(loss + norm):
        raise FloatingPointError(f"not finite: loss {loss:.3g}, gradient norm {norm:.3g}")
    optimizer.step()
    return norm


def update(model, optimizer, rollout, A, minibatches=4, kl=0, clip=(0.2, 0.2), aggregate="token"):
    """One pass over the rollout, an optimiser step for each mini-batch, which is whole groups.

    A: the advantages (P, G, T), 0 outside the mask; minibatches: their number, or fewer if fewer
    groups teach; clip: clip_low and clip_high. At fixed weights the losses of the mini-batches add
    up to the policy_loss of the rollout: what a token counts is decided over all of it. A group
    whose advantages are all 0 has no gradient and is not read, but its tokens count there. So loss
    and gradient are those of an update that reads all.

    kl > 0 adds kl * KL(pi_theta || pi_reference) by k3, token by token, with the same weights, and
    reads all groups (arXiv 2402.03300, Eq. 3 and 4; on samples of pi_old, as there). Only the value
    of k3 estimates that KL: its gradient is that of KL(pi_reference || pi_theta) while pi_theta is
    pi_old.

    Returns a dictionary of numbers, measured before each optimiser step, 0 if there was none:
        loss           with the KL term, summed over the mini-batches
        clip_fraction  the share of all tokens whose gradient the clip stopped
        approx_kl      KL(pi_old || pi_theta) of a token given its prefix, by k3: mean over the
                       tokens that were read (0 in the first mini-batch); compares no variants
        grad_norm      before it is scaled down, mean over optimiser steps
    In both shares a token counts as it does in the loss. FloatingPointError, before the optimiser
    step, if the loss or the gradient is not finite.
    """
    weights = token_weights(rollout.mask, aggregate, rollout.max_length)
    # The indices of the groups that have a gradient; with KL all groups have one.
    teaching = ((A != 0).any(2).any(1) | (kl > 0)).nonzero()[:, 0]
    parts = [part for part in teaching.tensor_split(minibatches) if len(part)]
    totals = torch.zeros(4, device=A.device)
    for part in parts:
        mask = rollout.mask[part]
        logprobs = response_logprobs(model, rollout, part)
        d = log_ratio(logprobs, rollout.logprobs[part], mask)
        gain, stopped = clipped_gain(d.exp(), A[part], *clip)
        if kl:
            gain = gain - kl * k3(log_ratio(rollout.reference_logprobs[part], logprobs, mask))
        loss = -(weights[part] * gain).sum()
        grad_norm = descend(optimizer, loss)
        clip_fraction = (weights[part] * stopped).sum() / weights.sum()
        approx_kl = (weights[part] * k3(d)).sum() / weights[teaching].sum()
        totals += torch.stack([loss, clip_fraction, approx_kl, grad_norm / len(parts)]).detach()
    return dict(zip(("loss", "clip_fraction", "approx_kl", "grad_norm"), totals.tolist()))
