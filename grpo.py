"""GRPO by hand: sample a group of responses to each prompt, score them, update the policy.

    problems -> sample_rollout -> Rollout -> advantages.VARIANTS[name] -> update -> metrics

Shapes: P prompts (a batch is counted in prompts), G responses each (a group), B = P*G rows,
T response tokens at most, L columns of a row, V vocabulary, D width.

Departures from the original, arXiv 2402.03300, and why:
- The loss is the mean over all response tokens of a mini-batch, so that tokens of long responses
  count like others. The original averages each response first: `aggregate="response"`.
- The KL term is off by default, as in DAPO, Dr. GRPO and today's trainers: the reward is exact, so
  there is no reward model to run away from. `kl` > 0 brings it back.
- The clip range may differ below and above; one variant uses that.
- The reward is the verifier's 0 or 1: no reward model, no reward for the format.
- A rollout serves one pass of several mini-batches; the first is exactly on-policy.
- A gradient longer than MAX_GRAD_NORM is shortened to it.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from model import GPT, generate
from tasks import EOS, MARKER, Problem, Task

CHUNK = 64  # rows in a forward pass of the update
MAX_GRAD_NORM = 1.0
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
    """N texts -> tokens (N, L), right-padded, and lengths (N,)."""
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
    texts = tokenizer.decode_batch(ids, skip_special_tokens=False)  # a sampled <pad> stays visible
    rewards = [task.reward(problems[i // G], y.removesuffix(EOS)) for i, y in enumerate(texts)]
    ended = torch.tensor([y.endswith(EOS) for y in texts], device=device)
    rewards = (torch.tensor(rewards, device=device) * ended).view(P, G)
    texts = [[y.removesuffix(EOS) for y in texts[i * G : (i + 1) * G]] for i in range(P)]
    context = {"temperature": temperature or 1.0, "prompts": prompts, "lengths": lengths}
    context |= {"problems": problems, "texts": texts, "tokenizer": tokenizer}
    return Rollout(tokens, mask, rewards, logprobs, probs, hidden, **context)


def response_rows(rollout: Rollout, groups=slice(None)) -> tuple[Tensor, Tensor]:
    """Rows to read again, prompt + response + padding (B, L), and the response's columns (B, T).

    `groups` selects some of the P groups. Padding tokens have no column of their own: theirs is 1.
    """
    tokens, lengths = rollout.tokens[groups], rollout.lengths[groups]
    P, G, T = tokens.size()
    columns = lengths[:, None, None] + torch.arange(T, device=tokens.device).expand(P, G, T)
    rows = F.pad(rollout.prompts[groups], (0, T))[:, None].repeat(1, G, 1)  # (P, G, Lp + T)
    rows = rows.scatter(2, columns, tokens).flatten(0, 1)  # (B, Lp + T)
    return rows, torch.where(rollout.mask[groups], columns, 1).flatten(0, 1)


def logprobs_at(
    model: GPT, rows: Tensor, columns: Tensor, tokens: Tensor, temperature: float = 1.0
) -> Tensor:
    """log pi_theta of the tokens (B, T) that stand in those columns (B, T) of the rows (B, L).

    Teacher-forced: one pass over the rows. The token in column c is judged by what the model says
    after column c - 1.
    """
    order, logprobs = columns.amax(1).argsort(), []
    for part in order.split(CHUNK):  # rows of like length together, so that little padding is read
        h = model.hidden(rows[part, : columns[part].max()])  # (b, l, D)
        h = h.gather(1, (columns[part] - 1)[..., None].expand(-1, -1, h.size(-1)))  # (b, T, D)
        logp = F.log_softmax(model.unembed(h) / temperature, dim=-1)  # (b, T, V)
        logprobs.append(logp.gather(-1, tokens[part][..., None])[..., 0])
    return torch.cat(logprobs)[order.argsort()]  # (B, T)


def response_logprobs(model: GPT, rollout: Rollout, groups=slice(None)) -> Tensor:
    """log pi_theta of each response token at the sampling temperature (P, G, T), with gradient.

    Equals rollout.logprobs before any update; 0 outside the mask.
    """
    tokens = rollout.tokens[groups]
    rows, columns = response_rows(rollout, groups)
    logp = logprobs_at(model, rows, columns, tokens.flatten(0, 1), rollout.temperature)
    return logp.view(tokens.size()).masked_fill(~rollout.mask[groups], 0.0)


@torch.no_grad()
def answer_likelihood(model: GPT, rollout: Rollout) -> Tensor:
    """L_i = pi_theta(true answer | prompt, the response's own reasoning), (P, G), at temperature 1.

    The product of the probabilities of the marker, the true answer's tokens and end-of-sequence,
    behind prompt and reasoning. Reasoning is what stands before the first marker; the whole
    response if there is none; it may be empty. Only all-fail groups are read, the others get 0.
    """
    likelihood = torch.zeros_like(rollout.rewards)
    groups = (rollout.rewards == 0).all(1).nonzero()[:, 0].tolist()
    pairs = [(rollout.problems[i], text) for i in groups for text in rollout.texts[i]]  # B rows
    if pairs:
        texts = [p.prompt + y.split(MARKER)[0] + MARKER + p.answer + EOS for p, y in pairs]
        rows, lengths = encode(rollout.tokenizer, texts, likelihood.device)  # (B, L), (B,)
        assert rows.size(1) <= model.config.block_size, "the block size leaves room for the answer"
        sizes = torch.tensor([[len(p.answer) + 2] for p, _ in pairs], device=rows.device)  # (B, 1)
        a = torch.arange(int(sizes.max()), device=rows.device)
        columns = torch.where(a < sizes, lengths[:, None] - sizes + a, 1)  # (B, A)
        logp = logprobs_at(model, rows, columns, rows.gather(1, columns))
        logp = logp.masked_fill(a >= sizes, 0.0).sum(-1)  # (B,)
        likelihood[groups] = logp.exp().view(len(groups), -1)
    return likelihood


def token_bias(critic: GPT, rollout: Rollout) -> Tensor:
    """b_phi(y_{i,t}), (P, G, T), with gradient: the critic's output in the token's own column.

    There it has just read the token, which it judges. 0 outside the mask.
    """
    rows, columns = response_rows(rollout)
    bias = critic(rows)[..., 0].gather(1, columns)  # (B, L, 1) -> (B, T)
    return bias.view(rollout.mask.size()).masked_fill(~rollout.mask, 0.0)


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

    PPO's min for both signs: a token with A > 0 is pushed up until its ratio is 1 + clip_high, one
    with A < 0 down until 1 - clip_low; one that has moved the wrong way is pushed back.

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

    FloatingPointError, before the step, if the loss or the gradient is not finite.
    """
    optimizer.zero_grad()
    loss.backward()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
    if not torch.isfinite(loss + norm):
        raise FloatingPointError(f"loss {loss:.3g}, gradient norm {norm:.3g}: is lr too high?")
    optimizer.step()
    return norm


def update(
    model, optimizer, rollout, advantages, *, minibatches=4, kl=0.0, reference=None, **loss_options
) -> dict[str, float]:
    """One pass over the rollout. A mini-batch is made of whole groups and gives one optimiser step.

    kl > 0 adds kl * KL(pi_theta || pi_reference), k3 averaged over response tokens (arXiv
    2402.03300, Eq. 4); reference is the model to stay near; loss_options go to policy_loss.
    Returns the token-weighted means over the mini-batches of loss, clip_fraction, approx_kl (k3 of
    pi_theta and pi_old) and grad_norm (before shortening), each from before the mini-batch's step.
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
