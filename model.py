"""A small GPT, and sampling from it with a cache of keys and values.

The usual transformer: embeddings, pre-norm blocks of causal attention and an MLP, a final norm, an
unembedding. A token's position is its column. Rows are padded on the right, and no token looks at
columns after its own, so padding is never looked at.

All heads share one set of keys and values (multi-query attention, arXiv 1911.02150). In sampling
the attention mostly waits until the cache is read from memory; so it is a quarter as large.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class GPTConfig(NamedTuple):
    vocab_size: int
    block_size: int  # columns of the longest row, prompt and response together
    layers: int = 3
    width: int = 64
    heads: int = 4  # of queries; there is one of keys and values
    outputs: int | None = None  # numbers per position: None is vocab_size, a critic has 1


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), on x (B, L, D).

    The attention is written out: on rows as short as these it is faster than PyTorch's fused one.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        D = config.width
        self.d = D // config.heads
        self.qkv = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, D + 2 * self.d))
        self.project = nn.Linear(D, D)
        expand = nn.Linear(D, 4 * D)
        self.mlp = nn.Sequential(nn.LayerNorm(D), expand, nn.ReLU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor, blocked: Tensor, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (B, L, D) stands in the last L of C columns; d = D / heads.

        past: keys and values of the columns before x, (B, C - L, 2d), or None if there are none.
        blocked (L * heads, C) is -inf where a token must not look, else 0. Returns the new x, and
        the keys and values of all C columns.
        """
        B, L, D = x.size()
        q, kv = self.qkv(x).split([D, 2 * self.d], dim=-1)
        if past is not None:
            kv = torch.cat([past, kv], dim=1)  # (B, C, 2d)
        k, v = kv.split(self.d, dim=-1)  # (B, C, d)
        # (B, L * heads, d): a row for each head; those of one token are neighbours, as in blocked.
        q = q.reshape(B, len(blocked), self.d)
        # blocked + q k^T / sqrt(d), (B, L * heads, C)
        scores = torch.baddbmm(blocked, q, k.transpose(1, 2), alpha=self.d**-0.5)
        y = scores.softmax(-1) @ v  # (B, L * heads, d)
        x = x + self.project(y.view(B, L, D))
        return x + self.mlp(x), kv


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
        for weight in (w for w in self.parameters() if w.dim() == 2):
            nn.init.normal_(weight, std=0.02)  # as GPT-2 does

    def read(self, tokens: Tensor, cache: list | None = None) -> tuple[Tensor, list[Tensor]]:
        """Reads tokens (B, L) in the columns that follow those of the cache.

        Returns the hidden vectors (B, L, D), which the unembedding multiplies, and a new cache: a
        tensor for each layer, the keys and values of all columns read so far.
        """
        L = tokens.size(1)
        seen = cache[0].size(1) if cache else 0
        columns = torch.arange(seen, seen + L, device=tokens.device)
        # Token l stands in column seen + l, and looks at that column and those before it.
        blocked = torch.full((L, seen + L), -torch.inf, device=tokens.device).triu(seen + 1)
        blocked = blocked.repeat_interleave(self.config.heads, dim=0)  # (L * heads, seen + L)
        x = self.embed_token(tokens) + self.embed_position(columns)
        grown = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, blocked, cache[i] if cache else None)
            grown.append(kv)
        return self.norm(x), grown

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens (B, L) -> what the unembedding multiplies, after the final norm (B, L, D)."""
        return self.read(tokens)[0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.hidden(tokens))


@torch.no_grad()
def generate(model: GPT, prompts: Tensor, G: int, T: int, eos: int, temperature, rng) -> tuple:
    """Samples G responses to each of prompts (P, Lp), B = P*G rows, up to EOS or T tokens each.

    Temperature 0 is greedy; rng is a torch.Generator or None. Returns tokens (P, G, T); mask
    (P, G, T), True on sampled tokens; and what sampling computed anyway: probs (P, G, T, V), those
    that were sampled from (greedy: of temperature 1), and hidden (P, G, T, D). T shrinks to the
    longest response; what is outside the mask is 0.
    """
    h, cache = model.read(prompts)
    h = h[:, -1:].repeat_interleave(G, dim=0)  # (B, 1, D), a row for each response
    cache = [kv.repeat_interleave(G, dim=0) for kv in cache]
    rows = torch.arange(len(h), device=h.device)  # the responses that go on
    tokens = prompts.new_zeros(len(h), T)
    probs = h.new_zeros(len(h), T, model.config.vocab_size)
    hidden = h.new_zeros(len(h), T, model.config.width)
    for t in range(T):
        p = (model.unembed(h[:, 0]) / (temperature or 1.0)).softmax(-1)  # (rows, V)
        token = torch.multinomial(p, 1, generator=rng) if temperature else p.argmax(1, keepdim=True)
        tokens[rows, t] = token[:, 0]
        probs[rows, t] = p
        hidden[rows, t] = h[:, 0]
        going = (token[:, 0] != eos).nonzero()[:, 0]  # places in rows
        if not len(going):
            break
        rows = rows[going]
        h, cache = model.read(token[going], [kv.index_select(0, going) for kv in cache])
    mask = probs.sum(-1) > 0  # where a token was drawn, its row of probs has been filled in
    # (B, T, ...) -> (P, G, t + 1, ...)
    return tuple(x[:, : t + 1].unflatten(0, (-1, G)) for x in (tokens, mask, probs, hidden))
