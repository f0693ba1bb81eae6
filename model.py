"""A small GPT, and sampling from it with a cache of keys and values.

The usual transformer: embeddings, pre-norm blocks of causal attention and an MLP, a final norm, an
unembedding. Rows are padded on the right, and no token looks at columns behind its own, so padding
is never looked at.

Responses are read, and sampled, after prompts that are read once for a whole group: see Cache.
"""

from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


@dataclass
class GPTConfig:
    vocab_size: int
    block_size: int  # columns of the longest row, prompt and response together
    layers: int = 3
    width: int = 64
    heads: int = 4
    outputs: int | None = None  # numbers per position: None is vocab_size, a critic has 1


@dataclass
class Cache:
    """What B rows of responses look back at, in columns: | prompt, padded to Lp | response |.

    Token t of every response stands in column Lp + t, and its position, which the model is told, is
    prompt length + t. A token looks at positions up to its own, so not at columns that wait for
    later tokens; padding has 10**9.
    """

    layers: list[list[Tensor]]  # keys and values of each layer, (B, heads, columns, D / heads)
    positions: Tensor  # (B, columns)
    h: Tensor | None = None  # (B, D), the hidden vectors behind the prompts

    def rows(self, i: Tensor, end: int | None = None) -> "Cache":
        """Rows number i (n,), some perhaps several times, with the columns up to `end`."""
        layers = [[x[:, :, :end].index_select(0, i) for x in kv] for kv in self.layers]
        return Cache(layers, self.positions[i, :end], self.h[i])


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), on x (B, L, D).

    The attention is written out: on rows as short as these it is faster than PyTorch's fused one.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        D, self.heads = config.width, config.heads
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.project = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor, mask: Tensor, layer=None, start=0) -> Tensor:
        # layer: None (no cache), [] (a prompt will fill it), or its keys and values in C columns
        B, L, D = x.size()
        qkv = self.qkv(self.norm1(x)).view(B, L, 3, self.heads, D // self.heads).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in qkv)  # (B, heads, L, d)
        if layer:  # behind a prompt: these columns join the cache, and look at all that it holds
            layer[0][:, :, start : start + L], layer[1][:, :, start : start + L] = k, v
            k, v = layer  # (B, heads, C, d)
        elif layer is not None:  # a prompt, to be kept
            layer += [k, v]
        scores = (q / q.size(-1) ** 0.5) @ k.transpose(2, 3) + mask  # (B, heads, L, C)
        y = (scores.softmax(-1) @ v).transpose(1, 2)  # (B, L, heads, d)
        x = x + self.project(y.reshape(B, L, D))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """tokens (B, L) -> logits (B, L, V). The width must be a multiple of the heads."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.embed_token = nn.Embedding(config.vocab_size, config.width)
        self.embed_position = nn.Embedding(config.block_size, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.unembed = nn.Linear(config.width, config.outputs or config.vocab_size, bias=False)
        for weight in (p for p in self.parameters() if p.dim() == 2):
            nn.init.normal_(weight, std=0.02)  # as GPT-2 does

    def hidden(self, tokens: Tensor, cache: Cache | None = None, start: int = 0) -> Tensor:
        """tokens (B, L) -> what the unembedding multiplies, after the final norm (B, L, D).

        With a cache the tokens stand in the columns from `start` on, and join it there: 0 for a
        prompt, Lp or more for responses.
        """
        end = start + tokens.size(1)
        seen = cache.positions if start else torch.arange(end, device=tokens.device)[None]
        positions = seen[:, start:end]  # (B, L) of (B, C), or (1, L) of (1, L)
        # (B or 1, 1, L, C): a token sees columns up to its own position
        mask = torch.where(seen[:, None, None] > positions[:, None, :, None], -torch.inf, 0.0)
        x = self.embed_token(tokens) + self.embed_position(positions)
        for i, block in enumerate(self.blocks):
            x = block(x, mask, cache and cache.layers[i], start)
        return self.norm(x)

    def read_prompts(self, prompts: Tensor, lengths: Tensor, room: int) -> Cache:
        """Reads prompts (P, Lp), right-padded, of lengths (P,): once for all rows of a group.

        `room` is the number of columns that wait for response tokens.
        """
        n, Lp = lengths[:, None], prompts.size(1)
        # Column c of a prompt has position c, its padding 10**9, column Lp + t of a response n + t.
        c = torch.arange(Lp + room, device=n.device)
        positions = torch.where(c < n, c, c - Lp + n).masked_fill((c >= n) & (c < Lp), 10**9)
        cache = Cache([[] for _ in self.blocks], positions)
        # What stands after each prompt's last token.
        cache.h = self.hidden(prompts, cache)[torch.arange(len(n), device=n.device), lengths - 1]
        cache.layers = [[F.pad(x, (0, 0, 0, room)) for x in kv] for kv in cache.layers]
        return cache

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.hidden(tokens))


def draw(p: Tensor, rng: torch.Generator | None) -> Tensor:
    """A random token per row (B, 1), by probabilities p (B, V); cheaper than torch.multinomial.

    The first whose cumulative probability is at least u, uniform in (0, 1] (0 could draw a token
    of probability 0), times that of all tokens (which may be rounded to less than 1).
    """
    below, u = p.cumsum(1), 1 - torch.rand(len(p), 1, generator=rng, device=p.device)
    return torch.searchsorted(below, u * below[:, -1:]).clamp(max=p.size(1) - 1)  # NaN gives V


@torch.no_grad()
def generate(model: GPT, prompts, lengths, G: int, T: int, eos: int, temperature, rng) -> tuple:
    """Samples G responses to each prompt, up to end-of-sequence or T tokens.

    prompts (P, Lp) right-padded; lengths (P,); temperature 0 is greedy; rng a torch.Generator or
    None. Returns for B = P*G rows, prompt by prompt, the tokens (B, T), the mask (B, T), True on
    sampled tokens, and what sampling computed anyway: logprobs (B, T), probs (B, T, V) and hidden
    (B, T, D), the first two of the distribution that was sampled from (greedy: of temperature 1). T
    shrinks to the longest response; what is outside the mask is 0.
    """
    (P, Lp), (V, D) = prompts.size(), model.embed_token.weight.size()
    rows = torch.arange(P * G, device=prompts.device)  # those in the batch
    live = torch.ones_like(rows, dtype=torch.bool)  # which of them go on
    cache = model.read_prompts(prompts, lengths, T).rows(rows // G)
    h, tokens = cache.h, prompts.new_zeros(P * G, T)
    probs, hidden = h.new_zeros(P * G, T, V), h.new_zeros(P * G, T, D)
    for t in range(T):
        p = F.softmax(model.unembed(h) / (temperature or 1.0), dim=-1)  # (rows, V)
        token = draw(p, rng) if temperature else p.argmax(1, keepdim=True)  # (rows, 1)
        tokens[rows, t], probs[rows, t], hidden[rows, t] = token[:, 0], p, h
        live &= token[:, 0] != eos
        if t == T - 1 or not live.any():
            break
        # Rows that have ended leave the batch, but not one by one: that copies the whole cache.
        if 2 * live.sum() < len(live):
            keep = live.nonzero()[:, 0]
            rows, live, token, cache = rows[keep], live[keep], token[keep], cache.rows(keep)
        h = model.hidden(token, cache, Lp + t)[:, 0]
    mask = F.pad((tokens == eos).cumsum(1), (1, -1)) == 0  # no end-of-sequence before this token
    tokens, probs, hidden = tokens * mask, probs * mask[..., None], hidden * mask[..., None]
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log().masked_fill(~mask, 0.0)
    return tuple(x[:, : t + 1] for x in (tokens, mask, logprobs, probs, hidden))
