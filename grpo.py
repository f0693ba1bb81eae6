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

A baseline b may be subtracted from r(y) if it does not depend on y: E[b grad ln pi_theta] =
b grad sum_y pi_theta(y | x) = b grad 1 = 0. The expected gradient stays; with b near the expected
reward its variance falls. The mean reward of the other responses of the group is such a b. GRPO
takes the mean mu of the whole group: r_i - mu = (G-1)/G (r_i - mean of the others), so only the
scale changes. (PPO trains a second network, the value function, to predict b.) Dividing by
sigma as well changes the objective: prompts with a small sigma count more. The result is the
advantage A.

After the first optimiser step the samples are still those of pi_old, but the policy has moved.
Importance sampling corrects an expectation over samples of another distribution:

    E_theta[ A ] = sum_y pi_theta(y) A = sum_y pi_old(y) (pi_theta(y) / pi_old(y)) A
                 = E_old[ ratio A ],   ratio = pi_theta / pi_old
    grad ( ratio A ) = ratio A grad ln pi_theta

Where the ratio is 1, that is the estimate above. One ratio for each token, not one for the whole
response, is an approximation; it holds while pi_theta is close to pi_old.

The clip ends the push on a token that has been pushed out of the range: with A > 0 above
1 + clip_high, with A < 0 below 1 - clip_low. Without it nothing stops the push there, and the
samples of pi_old say less and less about what pi_theta would do. It is one-sided: a token with
A < 0 whose ratio has grown is pushed down in proportion to the ratio.

Departures from the original, arXiv 2402.03300, and why:
- The loss is the mean over all response tokens of a mini-batch, as in DAPO (arXiv 2503.14476), so
  that tokens of long responses count like others. The original averages each response first:
  `aggregate="response"`. Dividing by sampled lengths departs from grad J either way; `dr_grpo`
  divides by a constant.
- The KL term is off by default, as in DAPO, Dr. GRPO and today's trainers: the reward is exact, so
  there is no reward model whose errors could be exploited. `kl` > 0 brings it back.
- The clip range may differ below and above; one variant uses that.
- The reward is the verifier's 0 or 1 (Task.reward): no reward model, no reward for the format.
- Each rollout is split into four mini-batches, one optimiser step each; at the first, pi_theta is
  still pi_old. The original's experiments make one update of it: `--minibatches 1`.
- A mini-batch in which every advantage is 0 makes no optimiser step: AdamW's momentum would move
  the weights even then.
- A gradient with a norm above 1 is scaled down to norm 1.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from model import GPT, generate
from tasks import EOS, MARKER, Problem


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
    temperature: float = 1.0
    prompts: Tensor | None = None  # (P, Lp) int64
    problems: list[Problem] = field(default_factory=list)  # P of them
    texts: list[list[str]] = field(default_factory=list)  # P x G responses, without EOS
    tokenizer: object = None  # a tokenizers.Tokenizer


def encode(tokenizer, texts: list[str], device) -> Tensor:
    """N texts -> tokens (N, L), padded on the right. One character is one token."""
    return torch.tensor([e.ids for e in tokenizer.encode_batch(texts)], device=device)


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
    logp = probs.gather(-1, tokens[..., None])[..., 0].log().masked_fill(~mask, 0.0)
    texts = []
    rewards = []
    for problem, rows, lengths in zip(problems, tokens.tolist(), mask.sum(-1).tolist()):
        ids = [row[:n] for row, n in zip(rows, lengths)]
        # Nothing is skipped: a sampled padding token stays visible, as an incorrect character.
        ended = tokenizer.decode_batch(ids, skip_special_tokens=False)
        texts.append([y.removesuffix(EOS) for y in ended])
        # A response that was cut off does not end with EOS and gets 0.
        rewards.append([task.reward(problem, y.removesuffix(EOS)) * y.endswith(EOS) for y in ended])
    rewards = torch.tensor(rewards, device=prompts.device)
    rest = {"prompts": prompts, "problems": problems, "texts": texts, "tokenizer": tokenizer}
    # For greedy responses logprobs and probs are those of temperature 1.
    return Rollout(tokens, mask, rewards, logp, probs, h, temperature=temperature or 1.0, **rest)


def response_outputs(model: GPT, prompts: Tensor, tokens: Tensor) -> Tensor:
    """What the model puts out after each prompt and after each token of its G responses.

    prompts (P, Lp), tokens (P, G, T) -> (P, G, 1 + T, V), with gradient. The plain form, a row of
    prompt and response in one forward pass, gives the same:

        rows = torch.cat([prompts.repeat_interleave(G, dim=0), tokens.flatten(0, 1)], dim=1)
        outputs = model(rows)[:, Lp - 1 :].unflatten(0, (P, G))

    Here a prompt is read once for its group, as in sampling; its responses look back at its keys
    and values.
    """
    P, G, T = tokens.size()
    h, cache = model.read_prompts(prompts, G, T)  # h (B, 1, D)
    after, _ = model.read(tokens.flatten(0, 1), cache, prompts.size(1))  # (B, T, D)
    return model.unembed(torch.cat([h, after], dim=1)).unflatten(0, (P, G))


def response_logprobs(model: GPT, rollout: Rollout, groups=slice(None)) -> Tensor:
    """log pi_theta of each response token at the sampling temperature (P, G, T), with gradient.

    Teacher-forced: the logits at t - 1 score token t. Equals rollout.logprobs before any update; 0
    outside the mask. `groups` selects some of the P.
    """
    tokens = rollout.tokens[groups]
    # The last token is not read: it scores nothing.
    logits = response_outputs(model, rollout.prompts[groups], tokens[..., :-1])
    logprobs = (logits / rollout.temperature).log_softmax(-1).gather(-1, tokens[..., None])
    return logprobs[..., 0].masked_fill(~rollout.mask[groups], 0.0)


@torch.no_grad()
def answer_likelihood(model: GPT, rollout: Rollout) -> Tensor:
    """L_i = pi_theta(true answer | prompt, the response's own reasoning), (P, G), at temperature 1.

    The product of the probabilities of the marker, the true answer's tokens and end-of-sequence,
    after prompt and reasoning. Reasoning is what stands before the first marker; the whole
    response if there is none; it may be empty. A row with its masks, $ being EOS and _ padding:

        tokens    1 2 , 1 3 , 0 6 #   6 3 2 $ _ _
        mask      1 1 1 1 1 1 1 1 1 1 1 1 1 1 0 0    up to EOS
        counted   0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1    from the marker on
    """
    pairs = [(p, text) for p, group in zip(rollout.problems, rollout.texts) for text in group]
    texts = [text.split(MARKER)[0] + MARKER + p.answer + EOS for p, text in pairs]
    # (P, G, T)
    tokens = encode(rollout.tokenizer, texts, rollout.mask.device).view(*rollout.rewards.size(), -1)
    eos = tokens == rollout.tokenizer.token_to_id(EOS)  # one in each row, and one marker
    mask = (eos.cumsum(-1) == 0) | eos
    counted = (tokens == rollout.tokenizer.token_to_id(MARKER)).cumsum(-1)
    answered = replace(rollout, tokens=tokens, mask=mask, temperature=1.0)
    return (response_logprobs(model, answered) * counted).sum(-1).exp()


def token_bias(critic: GPT, rollout: Rollout) -> Tensor:
    """b_phi(y_{i,t}), (P, G, T), with gradient: the critic's output after the token.

    There it has just read the token, which it judges. 0 outside the mask.
    """
    outputs = response_outputs(critic, rollout.prompts, rollout.tokens)
    return outputs[:, :, 1:, 0].masked_fill(~rollout.mask, 0.0)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, limit=20.0) -> Tensor:
    """log (pi_theta / pi_old) of each token (P, G, T); 0 outside the mask.

    Kept within +-20, so that exp() cannot overflow: 0 * inf would be a NaN gradient.
    """
    return (logprobs - old_logprobs).masked_fill(~mask, 0.0).clamp(-limit, limit)


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

        ratio_{i,t}     = exp(log pi_theta(y_{i,t}) - log pi_old(y_{i,t}))        one per token
        clipped_{i,t}   = ratio_{i,t}, but within 1 - clip_low and 1 + clip_high
        surrogate_{i,t} = min(ratio_{i,t} A_{i,t}, clipped_{i,t} A_{i,t})
        loss            = - sum_{i,t} surrogate_{i,t} / sum_i |y_i|

    The min makes the clip one-sided, as in PPO: a token with A > 0 is pushed up until its ratio is
    1 + clip_high, one with A < 0 down until 1 - clip_low; one that has moved the other way keeps
    its full gradient. For example, with A = +1 a token at ratio 1.5 has no gradient, at 0.5 it has.

    aggregate: "token" (above, as in DAPO), "response" (mean over each response, then over
    responses: Eq. 3 of the original) or "constant" (sum / (responses x max_length): Dr. GRPO's,
    arXiv 2503.20783). ValueError for another, and for "constant" without max_length.

    Why is it about 0 at the first update? There the ratio is 1, so the loss is
    -sum_i A_i |y_i| / sum_i |y_i|. If the A_i of a group sum to 0, as in `grpo`, and all responses
    have one length, the loss is 0. The value means nothing. The gradient does: at the first update
    it is that of the mean of -A log pi_theta.
    """
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    A = advantages.masked_fill(~mask, 0.0)
    surrogate = torch.min(ratio * A, ratio.clamp(1 - clip_low, 1 + clip_high) * A)  # (P, G, T)
    if aggregate == "token":
        return -surrogate.sum() / mask.sum().clamp(min=1)
    if aggregate == "response":
        return -(surrogate.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    if aggregate == "constant" and max_length:
        return -surrogate.sum() / (mask[..., 0].numel() * max_length)
    raise ValueError(f"aggregate: token, response, or constant and a max_length; not {aggregate!r}")


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


def stopped_by_clip(ratio: Tensor, A: Tensor, clip_low=0.2, clip_high=0.2, **_) -> Tensor:
    """(P, G, T) bool: the tokens whose gradient the clip stops, by the sign of A."""
    return (A > 0) & (ratio > 1 + clip_high) | (A < 0) & (ratio < 1 - clip_low)


def update(
    model, optimizer, rollout, advantages, minibatches=4, kl=0.0, reference=None, **loss_options
) -> dict[str, float]:
    """One pass over the rollout. A mini-batch is made of whole groups and gives one optimiser step.

    advantages (P, G, T); minibatches is their number; loss_options go to policy_loss. A group whose
    advantages are all 0 has no gradient and is not read: its ratio is taken as 1 (with A = 0 it
    does not matter), and its tokens stay in the loss's denominator. So loss and gradient are those
    of an update that reads all. A mini-batch of such groups alone makes no optimiser step.

    kl > 0 adds kl * KL(pi_theta || pi_reference) by k3, always a mean over response tokens, and
    reads all groups (arXiv 2402.03300, Eq. 4; on samples of pi_old, as there); reference is the
    model to stay near. Only the value of k3 estimates that KL (see k3): its gradient is that of
    KL(pi_reference || pi_theta) while pi_theta is pi_old.

    Returns, measured before each optimiser step: loss, with the KL term, the token-weighted mean
    over mini-batches; clip_fraction, the share of all tokens whose gradient the clip stopped;
    approx_kl, which is KL(pi_old || pi_theta) by k3, a mean over the tokens that were read;
    grad_norm, before it is scaled down, a mean over optimiser steps. 0 if there was none.
    FloatingPointError, before the optimiser step, if the loss or the gradient is not finite.
    """
    P = len(advantages)
    read = (advantages.masked_fill(~rollout.mask, 0.0) != 0).any(2).any(1) | (kl > 0)  # (P,)
    tokens = rollout.mask.sum()
    tokens_read = rollout.mask[read].sum()
    split = torch.arange(P, device=read.device).tensor_split(min(minibatches, P))
    steps = [groups for groups in split if read[groups].any()]
    totals = torch.zeros(4, device=advantages.device)
    for groups in steps:
        A = advantages[groups]
        mask = rollout.mask[groups]
        old_logprobs = rollout.logprobs[groups]
        logprobs = old_logprobs.clone()
        logprobs[read[groups]] = response_logprobs(model, rollout, groups[read[groups]])
        loss = policy_loss(logprobs, old_logprobs, A, mask, **loss_options)
        if kl:
            with torch.no_grad():
                ref_logprobs = response_logprobs(reference, rollout, groups)
            loss = loss + kl * k3(log_ratio(ref_logprobs, logprobs, mask))[mask].mean()
        grad_norm = descend(optimizer, loss)
        moved = log_ratio(logprobs.detach(), old_logprobs, mask)
        clipped = stopped_by_clip(moved.exp(), A, **loss_options)
        row = [loss.detach() * mask.sum() / tokens, clipped.sum() / tokens]
        row += [k3(moved).sum() / tokens_read, grad_norm / len(steps)]
        totals += torch.stack(row)
    return dict(zip(("loss", "clip_fraction", "approx_kl", "grad_norm"), totals.tolist()))


@torch.no_grad()
def likelihood_change(model: GPT, rollout: Rollout) -> float:
    """How ln pi(y+ | x) has changed since sampling: mean over correct responses y+ of mixed groups.

    Delta of arXiv 2505.18830, Eq. 2, for one model that learns from all prompts at once. Below 0
    the update made correct responses less likely. NaN if no group is mixed.
    """
    correct = rollout.rewards == 1  # (P, G)
    mixed = correct.any(1, keepdim=True) & ~correct.all(1, keepdim=True)  # (P, 1)
    change = (response_logprobs(model, rollout) - rollout.logprobs).sum(-1)  # (P, G)
    return change[correct & mixed].mean().item()
