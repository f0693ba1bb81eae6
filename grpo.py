"""GRPO by hand: sample responses, reward them, and make the better ones more likely.

Group relative policy optimization trains a language model, called the policy, on problems whose
answers a program can check. One training step goes like this:

1. Draw P = 64 prompts.
2. Sample a group of G = 8 responses to each prompt. All groups together are a rollout.
3. Give each response a reward: 1 if it is correct, else 0.
4. Give each response an advantage: its reward minus the mean reward of its group, divided by the
   group's standard deviation. Groups whose rewards are all equal get 0, and are left out.
5. Read a quarter of the other groups with the current weights: one forward pass gives the
   log-probability of every token.
6. Compute a loss that pushes each token up or down in proportion to the advantage of its response.
   A clip leaves out a token whose probability has already changed by 20 % in the direction of
   its push. The steps on earlier quarters can do this, because all tokens share the weights.
7. Make one optimiser step. Then repeat 5 to 7 for the other quarters.

These numbers are beside the code: 1 to 4 in the loop of train.py, and 5 to 7 in update.

Shapes: P prompts (a batch is counted in prompts), G responses to each (a group), B = P*G rows,
T response tokens at most, Lp tokens of a prompt, V vocabulary, D width.

Where the loss comes from. The policy with weights theta writes response y to prompt x with the
probability pi_theta(y | x). We want to maximise the expected reward J = sum_y pi_theta(y | x) r(y).
There are too many responses to add up. But grad pi = pi grad ln pi turns the gradient of this sum
into an expectation over responses, which we can estimate from samples:

    grad J = sum_y pi_theta(y | x) r(y) grad ln pi_theta(y | x) = E[ r(y) grad ln pi_theta(y | x) ]

ln pi_theta(y | x) is the sum of ln pi_theta(y_t | x, y_<t) over the tokens of y, so the reward r(y)
pushes every token of y. Estimates from a few samples scatter widely. To reduce this scatter, we
subtract from r(y) a number b near the expected reward. If b does not depend on y, we call it a
baseline. The expected gradient stays the same, because

    E[ b grad ln pi_theta ] = b sum_y grad pi_theta(y | x) = b grad 1 = 0

The same sum over one token, given those before it, shows that the push on a token may have a
baseline that depends on earlier tokens. A number that depends on the token itself, or on later
ones, can change the expected gradient. We call this error a bias: training then no longer follows
J, however many samples it has.

The mean reward of the other responses to the prompt is a baseline. GRPO subtracts the mean mu of
the whole group. This only changes the scale: r_i - mu is (G-1)/G (r_i - mean of the others). GRPO
also divides by sigma, the group's standard deviation. This changes the objective: prompts with a
small sigma count more than they do in J. The result is the advantage A. It takes the place of r(y).

The ratio. After the first optimiser step the policy has moved, but the responses are still samples
of pi_old, the policy that wrote them. Importance sampling turns an expectation over samples of
pi_theta into one over samples of pi_old:

    E_theta[ A ] = sum_y pi_theta(y) A = sum_y pi_old(y) (pi_theta(y) / pi_old(y)) A
                 = E_old[ ratio * A ],   ratio = pi_theta / pi_old

The exact ratio is that of the whole response, the product of the ratios of its tokens. GRPO instead
gives each token only its own ratio. This approximation is good while pi_theta is close to pi_old.

The clip. Nothing in ratio * A keeps pi_theta close to pi_old, so GRPO takes the clip of PPO. The
gradient of a token is 0 once its ratio has gone far enough in the direction of the push: above
1 + clip_high if A > 0, below 1 - clip_low if A < 0. A token that has moved the wrong way keeps its
gradient, so it can return.

We depart from the original, arXiv 2402.03300, in six ways:
- The loss is a mean over the response tokens of a rollout (in DAPO's code, arXiv 2503.14476, of one
  optimiser step). The original averages over each response first (`aggregate="response"`).
- There is no KL term unless `kl` > 0. It keeps the policy near the base model, which helps if the
  reward is a learned model. Our reward is exact.
- The clip range may differ below and above.
- A rollout gives four optimiser steps, not one: with one, the ratio is always 1.
- Without a KL term, groups whose advantages are all 0 are not read: they have no gradient. If no
  group is left, we make no optimiser step: Adam's momentum would move the weights even then.
- A gradient longer than `max_grad_norm`, 0.01, is scaled down to it. Nearly all are longer, so
  variants differ only by direction. (The mean of gradients of one length is not along their mean:
  this is a bias of its own, in all variants.) `dr_grpo` and `rloo` are one algorithm here: both
  only scale the gradient of a training step by a number, and the limit sets its length.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from model import GPT, generate, read_responses
from tasks import EOS, EOS_ID, TOKENIZER, Problem


@dataclass
class Rollout:
    """P groups of G responses that one training step sampled, and what was computed with them.

    Positions where mask is False are padding, and are ignored.
    """

    tokens: Tensor  # (P, G, T) int64, the sampled tokens
    mask: Tensor  # (P, G, T) bool, True up to and including the end-of-sequence token
    rewards: Tensor  # (P, G), 1 if the response is correct, else 0
    logprobs: Tensor  # (P, G, T), ln pi_old of each sampled token, at the sampling temperature
    probs: Tensor  # (P, G, T, V), pi_old(. | prefix), the distribution it was drawn from
    hidden: Tensor  # (P, G, T, D), the vector from which the unembedding made probs
    temperature: float = 1.0
    max_length: int | None = None  # the most tokens that a response may have
    prompts: Tensor | None = None  # (P, Lp) int64
    problems: list[Problem] = field(default_factory=list)  # P of them
    texts: list[list[str]] = field(default_factory=list)  # P lists of G responses, without EOS
    model: GPT | None = None  # the one that sampled the responses
    A: Tensor | None = None  # (P, G, T), advantages, which with_advantages fills in
    given: Tensor | None = None  # (P, G, T) bool, True on tokens that were not sampled (verifree)
    reference_logprobs: Tensor | None = None  # (P, G, T), of the base model, for the KL term


def encode(texts: list[str], device) -> tuple[Tensor, Tensor]:
    """N texts -> tokens (N, L), padded on the right, and their mask. One character is one token."""
    rows = TOKENIZER.encode_batch(texts)
    tokens = torch.tensor([row.ids for row in rows], device=device)
    return tokens, torch.tensor([row.attention_mask for row in rows], device=device) == 1


def judge(check, problems: list[Problem], texts: list[list[str]]) -> Tensor:
    """check(problem, text) of every response, as numbers (P, G). check: for example Task.reward."""
    return torch.tensor([[float(check(p, y)) for y in group] for p, group in zip(problems, texts)])


def sample_rollout(model, task, problems, G, temperature=1.0, generator=None, max_new_tokens=None):
    """Samples G responses to each of P >= 1 problems and rewards them. Returns a Rollout.

    model: GPT; task: Task; problems: list[Problem]; generator: torch.Generator or None. temperature
    0 is greedy decoding, with logprobs and probs of temperature 1. By default max_new_tokens leaves
    room for the longest solution and EOS. A response that is cut off there has no EOS and gets
    reward 0. ValueError if prompts differ in length, because all responses begin at the same
    position, or if a reward is not finite.

    The mask comes from the ends: a token is sampled if no end comes before it.
        tokens 5 # 5 $ 7 $    ends 0 0 0 1 0 1    ends before 0 0 0 0 1 1    mask 1 1 1 1 0 0
    """
    if len({len(p.prompt) for p in problems}) > 1:
        raise ValueError("the prompts of a batch need one length: pad them with spaces")
    prompts, _ = encode([p.prompt for p in problems], next(model.parameters()).device)
    T = max_new_tokens or len(task.longest.solution) + 1
    tokens, probs, hidden = generate(model, prompts, G, T, EOS_ID, temperature, generator)
    ends = tokens == EOS_ID
    mask = ends.cumsum(-1) - ends.int() == 0
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log().masked_fill(~mask, 0.0)
    texts = [[y.split(EOS)[0] for y in TOKENIZER.decode_batch(rows)] for rows in tokens.tolist()]
    rewards = judge(task.reward, problems, texts).to(prompts.device) * ends.any(-1)  # cut off: 0
    if not rewards.isfinite().all():
        raise ValueError(f"a reward of this task is not a finite number: {task}")
    rollout = Rollout(tokens, mask, rewards, logprobs, probs, hidden, temperature or 1.0, T)
    return replace(rollout, prompts=prompts, problems=problems, texts=texts, model=model)


def response_logprobs(model: GPT, rollout: Rollout, groups=slice(None)) -> Tensor:
    """ln pi_theta of each response token at the sampling temperature, (P, G, T), with gradient.

    The model reads the given responses (teacher forcing), and its logits at token t - 1 predict
    token t. The result is 0 outside the mask. groups: which of the P groups to read.
    """
    tokens = rollout.tokens[groups]
    h = read_responses(model, rollout.prompts[groups], tokens[..., :-1])  # none follows the last
    exact = torch.promote_types(h.dtype, torch.float32)  # as in generate
    logprobs = (model.unembed(h) / rollout.temperature).log_softmax(-1, exact)  # (P, G, T, V)
    return logprobs.gather(-1, tokens[..., None])[..., 0].masked_fill(~rollout.mask[groups], 0.0)


def token_weights(mask: Tensor, aggregate: str = "token", max_length: int | None = None) -> Tensor:
    """How much each token counts in the loss: 1 / (B * length), (P, G, T); 0 outside the mask.

    B is the number of responses, and `aggregate` chooses the length to divide by:
        "token"     their mean length: all tokens of the rollout count alike
        "response"  the length of the response, as in the original: all responses count alike
        "constant"  max_length, as in Dr. GRPO (arXiv 2503.20783)
    """
    if aggregate == "constant" and max_length is None:
        raise ValueError('aggregate "constant" needs max_length: the most tokens of a response')
    lengths = mask.sum(-1, keepdim=True).clamp(min=1)  # |y_i|, (P, G, 1)
    length = {"token": lengths.float().mean(), "response": lengths, "constant": max_length}
    return mask / (lengths.numel() * length[aggregate])


def policy_loss(logprobs, old_logprobs, A, weights, clip_low=0.2, clip_high=0.2, loss_type="grpo"):
    """The clipped loss and where it clipped. arXiv 2402.03300, Eq. 3; 2505.18830, Eq. 1.

        ratio_{i,t}   = exp(ln pi_theta(y_{i,t}) - ln pi_old(y_{i,t}))        one per token
        clipped_{i,t} = ratio_{i,t}, but at least 1 - clip_low and at most 1 + clip_high
        loss          = - sum_{i,t} weights_{i,t} min(ratio_{i,t} A_{i,t}, clipped_{i,t} A_{i,t})

    The min makes the clip one-sided, as in PPO: a token with A > 0 is not pushed once its ratio is
    above 1 + clip_high, nor one with A < 0 once it is below 1 - clip_low. weights come from
    token_weights. Where a weight is 0, the other inputs may hold anything, NaN included. All inputs
    are (P, G, T). Returns the loss, a scalar, and `cut`, a bool (P, G, T): True on the
    tokens whose gradient the clip stopped (in cispo: cut). We limit ln ratio to -20 .. 20.

    At ratio 1 the gradient is that of the weighted sum of -A ln pi_theta. The loss itself is then
    minus the weighted sum of A: often about 0, and without meaning (course/questions.md). Two other
    loss types have this gradient at ratio 1, and differ once the policy has moved:

        "gspo"   One ratio per response: exp of the mean of ln pi_theta - ln pi_old over its tokens.
                 A token's own gradient follows its own A (arXiv 2507.18071, section 4.3).
        "cispo"  loss = - sum_{i,t} weights_{i,t} clipped_{i,t} A_{i,t} ln pi_theta(y_{i,t}), where
                 clipped has no gradient and no lower limit (arXiv 2506.13585, Eq. 4). The clip
                 cuts the weight of a token, but the token keeps its gradient.
    """
    # We mask before exp, because a NaN in the padding would otherwise reach the gradient.
    padding = weights == 0
    logprobs, old_logprobs, A = (x.masked_fill(padding, 0.0) for x in (logprobs, old_logprobs, A))
    d = logprobs - old_logprobs  # ln of each token's own ratio
    if loss_type == "gspo":
        mean = d.sum(-1, keepdim=True) / (~padding).sum(-1, keepdim=True).clamp(min=1)
        # d - d.detach() is 0, so this has the value of the mean. But only d has a gradient here, so
        # each token keeps its own.
        d = mean.detach() + (d - d.detach())
    ratio = d.clamp(-20, 20).exp()
    if loss_type == "cispo":
        weight = ratio.detach().clamp(max=1 + clip_high)
        return -(weights * weight * A * logprobs).sum(), weight < ratio
    free = ratio * A
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * A
    return -(weights * torch.min(free, clipped)).sum(), clipped < free


def k3(d: Tensor) -> Tensor:
    """exp(d) - d - 1, where d = ln q - ln p: estimates KL(p || q) from samples of p.

    KL(p || q) is the mean of ln p - ln q over samples of p. k3 has this mean, but is never negative
    (John Schulman, "Approximating KL divergence", 2020). d is limited to -20 .. 20.
    """
    d = d.clamp(-20, 20)
    return d.expm1() - d


def descend(optimizer: torch.optim.Optimizer, loss: Tensor, max_norm: float = 1.0) -> Tensor:
    """One optimiser step. Limits the gradient's norm to max_norm. Returns the norm before that."""
    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], max_norm)
    optimizer.step()
    return norm


def update(
    model, optimizer, rollout, minibatches=4, aggregate="token", kl=0, max_grad_norm=0.01, **how
) -> dict[str, float]:
    """One pass over the rollout, with one optimiser step for each mini-batch of whole groups.

    rollout: with A, as with_advantages returns it. Only groups that have a gradient are read. They
    are split in order and as evenly as possible (tensor_split) into at most `minibatches` parts.
    how: clip_low, clip_high and loss_type of policy_loss. The token weights are those of the whole
    rollout, so for a fixed model the losses of the mini-batches add up to that of the rollout.

    kl > 0 adds kl * k3 on sampled tokens, with the same token weights (arXiv 2402.03300, Eq. 3 and
    4). Then all groups are read. Given the prefix, and while pi_theta is pi_old, the mean value of
    k3 is KL(pi_theta || pi_reference), and its mean gradient is that of the other divergence:

        E[ grad k3 ] = E[ (1 - pi_reference / pi_theta) grad ln pi_theta ]
                     = - E_reference[ grad ln pi_theta ] = grad KL(pi_reference || pi_theta)

    Returns numbers that were measured before each optimiser step. They are 0 if there was none.
        loss           with the KL term, summed over the mini-batches
        clip_fraction  the share of tokens whose gradient the clip stopped, or cut (policy_loss)
        approx_kl      KL(pi_old || pi_theta): the mean of k3 over tokens, with p = pi_old
        grad_norm      before it is scaled down, the mean over optimiser steps
    As in the KL term, tokens that were not sampled (rollout.given) have weight 0 in the two means.
    """
    A = rollout.A.masked_fill(~rollout.mask, 0.0)
    old = rollout.logprobs.masked_fill(~rollout.mask, 0.0)
    weights = token_weights(rollout.mask, aggregate, rollout.max_length)
    sampled = weights if rollout.given is None else weights.masked_fill(rollout.given, 0.0)
    groups = ((A != 0).any(2).any(1) | (kl > 0)).nonzero()[:, 0]
    parts = groups.tensor_split(min(minibatches, len(groups))) if len(groups) else ()
    sums = torch.zeros(4, device=A.device)
    for part in parts:
        logprobs = response_logprobs(model, rollout, part)  # 5 read
        loss, cut = policy_loss(logprobs, old[part], A[part], weights[part], **how)  # 6 loss
        if kl > 0:
            reference = rollout.reference_logprobs[part].masked_fill(~rollout.mask[part], 0.0)
            loss = loss + kl * (sampled[part] * k3(reference - logprobs)).sum()
        grad_norm = descend(optimizer, loss, max_grad_norm)  # 7 step
        share = sampled[part] / sampled[groups].sum()  # of each token in the next two means
        clip_fraction = (share * cut).sum()
        approx_kl = (share * k3(logprobs - old[part])).sum()
        sums += torch.stack([loss, clip_fraction, approx_kl, grad_norm / len(parts)]).detach()
    return dict(zip(("loss", "clip_fraction", "approx_kl", "grad_norm"), sums.tolist()))
