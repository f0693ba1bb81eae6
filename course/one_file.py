"""GRPO in one file: python course/one_file.py

A small GPT, which we call the policy, first imitates worked additions until it can solve a few:
where no response is ever correct, there is nothing to compare. Then it learns the rest by GRPO,
which only checks its answers. Read the file from top to bottom: (1) the task, (2) the policy
and its sampler, (3) from rewards to advantages to the loss, (4) imitate, then learn.

It takes about two minutes on one core and needs only PyTorch. It imports nothing from the project.
The project's grpo.py has the same algorithm and explains it.

Shapes: P prompts, G responses to each (a group), T response tokens, L = 8 + T tokens of a row,
which is a prompt and a response, B rows, V characters, D width.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

P = 64  # prompts of a training step
G = 8  # responses to each prompt
STEPS = 200  # training steps
LR = 8e-4  # learning rate
MINIBATCHES = 4  # optimiser steps of each training step
CLIP = 0.2  # a push ends once it has changed the ratio by this much
MAX_NORM = 0.01  # longer gradients are scaled down to it, and count alike in Adam's averages
D = 64  # width of the policy


# ---- 1. The task: school addition, column by column from the right
#
#     347+285=12,13,06#0632$      7+5 = 12: write 2, carry 1;  4+8+1 = 13;  3+2+1 = 06
#
# The first 8 characters are the prompt. The rest is the response: three steps, the marker #, the
# answer, and the end $. One character is one token. (The project's task `add` writes ` 632`,
# with a space, where this file has a 0.)
CHARACTERS = "0123456789+=,#$"
END = CHARACTERS.index("$")
START = 8  # where a response begins
T = 14  # the most tokens of a response


def draw(n, held_out):
    """n random problems, each with its solution. Sums of held-out ones are never trained on."""
    problems = []
    while len(problems) < n:
        a, b = torch.randint(100, 1000, (2,)).tolist()
        if ((a + b) % 7 == 2) == held_out:  # one in seven
            problems.append(solve(a, b))
    return problems


def solve(a, b):
    """347, 285 -> "347+285=12,13,06#0632$"."""
    steps = []
    carry = 0
    for x, y in zip(reversed(str(a)), reversed(str(b))):
        column = int(x) + int(y) + carry
        steps.append(f"{column:02}")
        carry = column // 10
    return f"{a}+{b}=" + ",".join(steps) + f"#{a + b:04}$"


def reward(problem, response):
    """1 if the text after the only # is the answer and its end, else 0. Steps are not checked."""
    answer = problem.split("#")[1]  # "0632$"
    return float(response.split("#")[1:] == [answer])


def encode(texts):
    """N texts of one length -> tokens (N, L)."""
    return torch.tensor([[CHARACTERS.index(c) for c in text] for text in texts])


def decode(tokens):
    """The text of one response, up to and including its end."""
    text = "".join(CHARACTERS[token] for token in tokens)
    response, end, _ = text.partition("$")
    return response + end


# ---- 2. The policy, a small GPT, and its sampler
class Block(nn.Module):
    """Attention to the tokens so far, with one head, and then an MLP."""

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, 3 * D)
        self.project = nn.Linear(D, D)
        self.norm2 = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))

    def forward(self, x):  # (B, L, D)
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)  # (B, L, D) each
        x = x + self.project(scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens (B, L) -> logits (B, L, V). Those at position t are for the token at t + 1."""

    def __init__(self):
        super().__init__()
        self.embed_token = nn.Embedding(len(CHARACTERS), D)
        self.embed_position = nn.Embedding(START + T, D)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(D)
        self.unembed = nn.Linear(D, len(CHARACTERS), bias=False)

    def forward(self, tokens):
        x = self.embed_token(tokens) + self.embed_position.weight[: tokens.size(1)]
        return self.unembed(self.norm(self.blocks(x)))


@torch.no_grad()
def sample(policy, problems, n):
    """Rows (P, n, L): each prompt n times, and behind it T sampled tokens."""
    prompts = encode(problem[:START] for problem in problems)  # (P, 8)
    rows = prompts.repeat_interleave(n, dim=0)  # (P * n, 8)
    for _ in range(T):
        probs = policy(rows)[:, -1].softmax(-1)  # (P * n, V), of the next token
        token = torch.multinomial(probs, 1)  # (P * n, 1)
        rows = torch.cat([rows, token], dim=1)
    return rows.unflatten(0, (-1, n))


def read(policy, rows):
    """ln pi of each response token, (P, G, T), with gradient: one forward pass for all tokens."""
    # The first response token is predicted at the last position of the prompt, START - 1.
    logits = policy(rows[..., :-1].flatten(0, 1))[:, START - 1 :]  # (P * G, T, V)
    logprobs = logits.log_softmax(-1).unflatten(0, rows.shape[:2])  # (P, G, T, V)
    return logprobs.gather(-1, rows[..., START:, None])[..., 0]


# ---- 3. Rewards -> advantages -> loss -> update
def advantages(rewards):
    """(P, G) -> (P, G): compare each response with the mean of its group; 0 if all are equal."""
    mean = rewards.mean(1, keepdim=True)
    equal = (rewards == rewards[:, :1]).all(1, keepdim=True)
    # The mean is rounded. If all rewards are equal, it can differ from them a little.
    above = (rewards - mean).masked_fill(equal, 0)
    deviation = rewards.std(1, correction=0, keepdim=True)
    A = above / (deviation + 1e-6)
    return A  # grpo
    # return torch.where(A < 0, A / 2, A)  # half: push incorrect responses down half as hard
    # return A.clamp(min=0)  # pos_only: do not push them down at all
    # return above  # dr_grpo: do not divide by the deviation


def up_to_end(tokens):
    """True up to the first end and on it, whatever comes later. Tokens and mask are (P, G, T)."""
    ends = (tokens == END).int()
    ends_before = ends.cumsum(-1) - ends
    return ends_before == 0


def grpo_loss(logprobs, old_logprobs, A, weights):
    """Minus the weighted sum of A times the ratio, with the clip. (P, G, T), but A is (P, G, 1).

    At first the ratio is 1. The minimum stops a push that has gone far enough, up or down. It never
    stops one that brings a token back.
    """
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
    return -(weights * torch.min(ratio * A, clipped * A)).sum()


def update(policy, optimizer, rows, rewards):
    """Reads the rows that were sampled, a part of the groups for each optimiser step."""
    mask = up_to_end(rows[..., START:])  # (P, G, T)
    weights = mask / mask.sum()  # every sampled token counts alike, whichever part it is in
    A = advantages(rewards)[..., None]  # (P, G, 1): the same for all tokens of a response
    with torch.no_grad():
        old_logprobs = read(policy, rows)  # those of the policy that sampled
    mixed = A.flatten(1).any(1).nonzero().flatten()  # numbers of the groups with a gradient
    for part in mixed.tensor_split(MINIBATCHES):
        if len(part) > 0:
            logprobs = read(policy, rows[part])
            loss = grpo_loss(logprobs, old_logprobs[part], A[part], weights[part])
            descend(policy, optimizer, loss, MAX_NORM)


def descend(policy, optimizer, loss, max_norm):
    """One optimiser step. A gradient longer than max_norm is scaled down to it."""
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    optimizer.step()


# ---- 4. Imitate, then learn
def judged(policy, problems, n):
    """Samples n responses to each problem. Returns rows (P, n, L) and their rewards (P, n)."""
    rows = sample(policy, problems, n)
    responses = rows[..., START:].tolist()
    rewards = [[reward(p, decode(y)) for y in group] for p, group in zip(problems, responses)]
    return rows, torch.tensor(rewards)


def accuracy(policy, problems):
    """The share of correct responses, one sampled for each problem."""
    _, rewards = judged(policy, problems, 1)
    return rewards.mean()


def imitate(policy):
    """Supervised learning from solutions, which ends when 13 % of the responses are correct.

    By then most groups are mixed, and most of the task is left to learn.
    """
    optimizer = torch.optim.Adam(policy.parameters(), 2e-3)
    for _ in range(50):
        if accuracy(policy, draw(256, held_out=False)) >= 0.13:
            return
        for _ in range(20):
            rows = encode(draw(64, held_out=False))  # (64, L)
            logits = policy(rows[:, :-1])[:, START - 1 :]  # (64, T, V)
            loss = cross_entropy(logits.flatten(0, 1), rows[:, START:].flatten())
            descend(policy, optimizer, loss, max_norm=1.0)
    print("1000 steps of imitation did not make 13 % of the responses correct. Check reward.")


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    policy = GPT()
    imitate(policy)
    optimizer = torch.optim.Adam(policy.parameters())
    held_out = draw(500, held_out=True)
    print("step  reward  mixed  held out  a response to 347+285=", flush=True)
    for step in range(STEPS + 1):
        rows, rewards = judged(policy, draw(P, held_out=False), G)
        if step % 25 == 0 or step == STEPS:
            mixed = (rewards != rewards[:, :1]).any(1).float().mean()
            correct = accuracy(policy, held_out)
            text = decode(sample(policy, [solve(347, 285)], 1)[0, 0, START:].tolist())
            print(f"{step:4} {rewards.mean():7.2f} {mixed:6.0%} {correct:9.1%}  {text}", flush=True)
        # The learning rate rises for ten steps, and then falls to nearly 0.
        optimizer.param_groups[0]["lr"] = LR * min((step + 1) / 10, 1 - step / (STEPS + 1))
        update(policy, optimizer, rows, rewards)


if __name__ == "__main__":
    main()
