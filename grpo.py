"""GRPO by hand: sample a group of responses to each prompt, score them, update the policy.

    problems -> sample_rollout -> Rollout -> advantages.VARIANTS[name] -> update -> metrics

Shapes: P prompts (a batch is counted in prompts), G responses each (a group), B = P*G rows,
T response tokens at most, L columns of a row, V vocabulary, D width.

Departures from the original, arXiv 2402.03300, and why:
- The loss is the mean over all response tokens of a mini-batch, so that tokens of long responses
  count like others. The original averages each response first: `aggregate="response"`.
- The KL term is off by default, as in DAPO, Dr. GRPO and today's trainers: the reward is exact, so
  there is no reward model whose errors could be exploited. `kl` > 0 brings it back.
- The clip range may differ below and above; one variant uses that.
- The reward is the verifier's 0 or 1 (Task.reward): no reward model, no reward for the format.
- A rollout serves one pass of several mini-batches; for the first, pi_theta is still pi_old.
- A gradient longer than MAX_GRAD_NORM is shortened to it.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model import GPT, generate
from tasks import EOS, MARKER, Problem, Task

CHUNK, MAX_GRAD_NORM = 64, 1.0  # rows in a forward pass of the update
MAX_LOG_RATIO = 20.0  # a ratio of 5e8; far past it exp() overflows, and 0 * inf is a NaN gradient


@dataclass
class Rollout:
    """P groups of G responses. What stands outside the mask is padding and never matters."""

    tokens: Tensor  # (P, G, T) int64, as sampled
    mask: Tensor  # (P, G, T) bool, True on sampled tokens, the end-of-sequence token included
    rewards: Tensor  # (P, G)
    logprobs: Tensor  # (P, G, T), log pi_old of each sampled token, at the sampling temperature
    probs: Tensor  # (P, G, T, V), pi_old(. | prefix) at each position
    hidden: Tensor  # (P, G, T, D), the vector that the unembedding multiplied to give probs
    answer_likelihood: Tensor | None = None  # (P, G), for the variant `likelihood`
    token_bias: Tensor | None = None  # (P, G, T), for the variant `critic`
    temperature: float = 1.0
    prompts: Tensor | None = None  # (P, Lp) int64, right-padded
    lengths: Tensor | None = None  # (P,), of the prompts
    problems: list[Problem] = field(default_factory=list)  # P of them
    texts: list[list[str]] = field(default_factory=list)  # P x G responses, end-of-sequence apart
    tokenizer: Tokenizer | None = None


def encode(tokenizer: Tokenizer, texts: list[str], device) -> tuple[Tensor, Tensor]:
    """N texts -> tokens (N, L), right-padded, and lengths (N,). One character is one token."""
    encodings = tokenizer.encode_batch(texts)
    lengths = torch.tensor([sum(e.attention_mask) for e in encodings], device=device)
    return torch.tensor([e.ids for e in encodings], device=device), lengths


def sample_rollout(
    model: GPT,
    tokenizer: Tokenizer,
    task: Task,
    problems: list[Problem],
    group_size: int,
    *,
    temperature: float = 1.0,
    max_new_tokens: int | None = None,  # default: the tokens of the task's longest solution
    generator: torch.Generator | None = None,
) -> Rollout:
    """Samples group_size responses to each of P >= 1 problems and scores them.

    Temperature 0 is greedy. A response that is cut off at max_new_tokens, before its
    end-of-sequence token, gets reward 0 whatever it says.
    """
    device, eos = next(model.parameters()).device, tokenizer.token_to_id(EOS)
    P, G, T = len(problems), group_size, max_new_tokens or len(task.longest.solution) + 1
    prompts, lengths = encode(tokenizer, [problem.prompt for problem in problems], device)
    sampled = generate(model, prompts, lengths, G, T, eos, temperature, generator)
    tokens, mask, logprobs, probs, hidden = (x.unflatten(0, (P, G)) for x in sampled)

    ids = [row[:n] for row, n in zip(sampled[0].tolist(), sampled[1].sum(1).tolist())]
    # Nothing is skipped, so that a sampled padding token stays visible: it is a wrong character.
    texts = [y.removesuffix(EOS) for y in tokenizer.decode_batch(ids, skip_special_tokens=False)]
    rewards = [task.reward(problems[i // G], y) for i, y in enumerate(texts)]
    rewards = torch.tensor(rewards, device=device).view(P, G) * (tokens == eos).any(-1)  # cut: 0
    texts = [texts[i : i + G] for i in range(0, P * G, G)]
    context = {"temperature": temperature or 1.0, "prompts": prompts, "lengths": lengths}
    context |= {"problems": problems, "texts": texts, "tokenizer": tokenizer}
    return Rollout(tokens, mask, rewards, logprobs, probs, hidden, **context)


def response_outputs(model: GPT, prompts, lengths, tokens: Tensor, sizes: Tensor) -> Tensor:
    """What the model puts out after each prompt and after each token of its G responses.

    prompts (P, Lp) right-padded, lengths (P,), tokens (P, G, T), of which sizes (P, G) are read ->
    (P, G, 1 + T, V). With gradient. A prompt is read once for its group.
    """
    (P, G, T), cache = tokens.size(), model.read_prompts(prompts, lengths, tokens.size(2))
    tokens, sizes, outputs = tokens.flatten(0, 1), sizes.flatten(), []
    order = sizes.argsort()  # rows of like size together, so that little padding is read
    for part in order.split(CHUNK):
        y = tokens[part, : sizes[part].max()]  # (b, t)
        own = cache.rows(part // G, prompts.size(1) + y.size(1))
        h = torch.cat([own.h[:, None], model.hidden(y, own, prompts.size(1))], dim=1)
        outputs.append(F.pad(model.unembed(h), (0, 0, 0, T - y.size(1))))  # (b, 1 + T, V)
    return torch.cat(outputs)[order.argsort()].unflatten(0, (P, G))  # in their order again


def token_logprobs(model: GPT, prompts, lengths, tokens, mask, temperature=1.0) -> Tensor:
    """log pi_theta of each token of responses (P, G, T) to prompts (P, Lp) of lengths (P,).

    Teacher-forced, with gradient: what is put out before a token judges it. 0 outside the mask.
    """
    # How many tokens stand before the last one in question, (P, G).
    sizes = (mask * torch.arange(mask.size(2), device=mask.device)).amax(-1)
    logits = response_outputs(model, prompts, lengths, tokens[..., :-1], sizes)  # (P, G, T, V)
    logp = F.log_softmax(logits / temperature, dim=-1).gather(-1, tokens[..., None])
    return logp[..., 0].masked_fill(~mask, 0.0)


def response_logprobs(model: GPT, rollout: Rollout, groups=slice(None)) -> Tensor:
    """log pi_theta of each response token at the sampling temperature (P, G, T), with gradient.

    Equals rollout.logprobs before any update; 0 outside the mask. `groups` selects some of the P.
    """
    parts = (rollout.prompts, rollout.lengths, rollout.tokens, rollout.mask)
    return token_logprobs(model, *(part[groups] for part in parts), rollout.temperature)


@torch.no_grad()
def answer_likelihood(model: GPT, rollout: Rollout) -> Tensor:
    """L_i = pi_theta(true answer | prompt, the response's own reasoning), (P, G), at temperature 1.

    The product of the probabilities of the marker, the true answer's tokens and end-of-sequence,
    behind prompt and reasoning. Reasoning is what stands before the first marker; the whole
    response if there is none; it may be empty. Only all-fail groups are read, the others get 0.
    """
    likelihood = torch.zeros_like(rollout.rewards)
    groups = (rollout.rewards == 0).all(1).nonzero()[:, 0].tolist()
    if groups:
        pairs = [(rollout.problems[i].answer, text) for i in groups for text in rollout.texts[i]]
        texts = [text.split(MARKER)[0] + MARKER + answer + EOS for answer, text in pairs]
        tokens, ends = encode(rollout.tokenizer, texts, likelihood.device)  # (B, T), (B,)
        starts = ends - torch.tensor([len(answer) + 2 for answer, _ in pairs], device=ends.device)
        t = torch.arange(tokens.size(1), device=ends.device)
        judged = (t >= starts[:, None]) & (t < ends[:, None])  # (B, T)
        tokens, judged = (x.view(len(groups), -1, len(t)) for x in (tokens, judged))
        asked = (rollout.prompts[groups], rollout.lengths[groups], tokens, judged)
        likelihood[groups] = token_logprobs(model, *asked).sum(-1).exp()
    return likelihood


def token_bias(critic: GPT, rollout: Rollout) -> Tensor:
    """b_phi(y_{i,t}), (P, G, T), with gradient: the critic's output behind the token.

    There it has just read the token, which it judges. 0 outside the mask.
    """
    sizes = rollout.mask.sum(-1)
    outputs = response_outputs(critic, rollout.prompts, rollout.lengths, rollout.tokens, sizes)
    return outputs[:, :, 1:, 0].masked_fill(~rollout.mask, 0.0)


def log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """log (pi_theta / pi_old) of each token (P, G, T), within +-MAX_LOG_RATIO; 0 off the mask."""
    return (logprobs - old_logprobs).masked_fill(~mask, 0.0).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


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

        ratio_{i,t} = exp(log pi_theta(y_{i,t}) - log pi_old(y_{i,t}))        one per token
        gain_{i,t}  = min(ratio A_{i,t}, clip(ratio, 1 - clip_low, 1 + clip_high) A_{i,t})
        loss        = - sum_{i,t} gain_{i,t} / sum_i |y_i|

    The min makes the clip one-sided, as in PPO: a token with A > 0 is pushed up until its ratio is
    1 + clip_high, one with A < 0 down until 1 - clip_low; one that has moved the wrong way is
    pushed back.

    aggregate: "token" (above), "response" (mean over each response, then over responses: the
    original's) or "constant" (sum / (responses x max_length): Dr. GRPO's, arXiv 2503.20783).
    ValueError for another, and for "constant" without max_length.

    Why is it about 0 at the first update? There the ratio is 1, so the loss is
    -sum_i A_i |y_i| / sum_i |y_i|, and in most variants the A_i of a group sum to 0: with lengths
    alike, so does this. Its value means nothing; its gradient does: there, that of log pi_theta.
    """
    ratio = log_ratio(logprobs, old_logprobs, mask).exp()
    A = advantages.masked_fill(~mask, 0.0)
    gain = torch.min(ratio * A, ratio.clamp(1 - clip_low, 1 + clip_high) * A)  # (P, G, T)
    if aggregate == "token":
        return -gain.sum() / mask.sum().clamp(min=1)
    if aggregate == "response":
        return -(gain.sum(-1) / mask.sum(-1).clamp(min=1)).mean()
    if aggregate == "constant" and max_length:
        return -gain.sum() / (mask[..., 0].numel() * max_length)
    raise ValueError(f"aggregate: token, response, or constant and a max_length; not {aggregate!r}")


def clipped(ratio: Tensor, A: Tensor, clip_low: float = 0.2, clip_high: float = 0.2) -> Tensor:
    """Which tokens' gradient the clip stopped: for A > 0 those above the range, for A < 0 below."""
    return ((A > 0) & (ratio > 1 + clip_high)) | ((A < 0) & (ratio < 1 - clip_low))


def k3(d: Tensor) -> Tensor:
    """exp(d) - d - 1, d = log q - log p: estimates KL(p || q) from samples of p; never below 0."""
    return d.expm1() - d


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """One optimiser step on the loss; returns the gradient's norm, before it is shortened.

    The optimiser has one group of parameters. FloatingPointError, before the step, if the loss or
    the gradient is not finite.
    """
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], MAX_GRAD_NORM)
    if not torch.isfinite(loss + norm):
        raise FloatingPointError(f"loss {loss:.3g}, gradient norm {norm:.3g}: is lr too high?")
    optimizer.step()
    return norm


def update(
    model, optimizer, rollout, advantages, *, minibatches=4, kl=0.0, reference=None, **loss_options
) -> dict[str, float]:
    """One pass over the rollout. A mini-batch is made of whole groups and gives one optimiser step.

    kl > 0 adds kl * KL(pi_theta || pi_reference), k3 averaged over response tokens (arXiv
    2402.03300, Eq. 4; on samples of pi_old, as there); reference is the model to stay near;
    loss_options go to policy_loss. Returns the token-weighted means over the mini-batches of loss,
    clip_fraction, approx_kl (k3 of pi_theta and pi_old) and grad_norm (before shortening), each
    from before the mini-batch's step.
    FloatingPointError, before the step, if the loss or the gradient is not finite.
    """
    clip_range = {k: v for k, v in loss_options.items() if k in ("clip_low", "clip_high")}
    P, sums = len(advantages), torch.zeros(4, device=advantages.device)
    for groups in torch.arange(P, device=advantages.device).tensor_split(min(minibatches, P)):
        mask, old, A = rollout.mask[groups], rollout.logprobs[groups], advantages[groups]
        logprobs = response_logprobs(model, rollout, groups)
        loss = policy_loss(logprobs, old, A, mask, **loss_options)
        if kl:
            d = log_ratio(response_logprobs(reference, rollout, groups), logprobs, mask)
            loss = loss + kl * k3(d)[mask].mean()
        grad_norm = descend(optimizer, loss)
        d = log_ratio(logprobs.detach(), old, mask)
        stopped = clipped(d.exp(), A, **clip_range)[mask].float().mean()
        metrics = torch.stack([loss.detach(), stopped, k3(-d)[mask].mean(), grad_norm])
        sums += metrics * mask.sum() / rollout.mask.sum()
    return dict(zip(("loss", "clip_fraction", "approx_kl", "grad_norm"), sums.tolist()))


def entropy(rollout: Rollout) -> Tensor:
    """-sum_v pi_old(v) ln pi_old(v) of the whole distribution, nats; mean over response tokens."""
    return torch.special.entr(rollout.probs).sum(-1)[rollout.mask].mean()


@torch.no_grad()
def likelihood_change(model: GPT, rollout: Rollout) -> float | None:
    """How ln pi(y+ | x) has changed since sampling: mean over correct responses y+ of mixed groups.

    Delta of arXiv 2505.18830, Eq. 2, for one model that learns from all prompts at once. Below 0
    the update made right responses less likely. None if no group is mixed.
    """
    correct = rollout.rewards == 1  # (P, G)
    mixed = (correct.any(1) & ~correct.all(1)).nonzero()[:, 0]
    if len(mixed) == 0:
        return None
    change = response_logprobs(model, rollout, mixed) - rollout.logprobs[mixed]
    return change.sum(-1)[correct[mixed]].mean().item()
