"""A small GPT, and sampling from it with a cache of keys and values.

The usual transformer: embeddings, pre-norm blocks of causal attention and an MLP, a final norm, an
unembedding. A token's position is its column. Rows are padded on the right, and no token looks at
columns after its own, so no token of a response looks at padding.

All heads share one head of keys and values (multi-query attention, arXiv 1911.02150). Sampling is
bound by memory, and with four heads this makes the cache four times smaller.

Shapes: B rows, L tokens that are read at once, C columns that they may look at, D width,
d = D / heads, V vocabulary.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn


class GPTConfig(NamedTuple):
    vocab_size: int
    block_size: int  # columns of the longest row, prompt and response together
    layers: int = 2
    width: int = 64
    heads: int = 4  # of queries; there is one of keys and values
    outputs: int | None = None  # numbers per position: None is vocab_size, a critic has 1


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), on x (B, L, D).

    The attention is written out. In sampling, on rows as short as these, that is also faster than
    PyTorch's fused one.
    """

    def __init__(self, config: GPTConfig):
        super().__init__()
        D = config.width
        self.heads = config.heads
        self.d = D // config.heads
        self.norm1 = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, D + 2 * self.d)
        self.project = nn.Linear(D, D)
        self.norm2 = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor, mask: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        """x (B, L, D) holds the L newest of C columns.

        mask (L, C) is -inf where a token must not look, else 0. cache: keys and values, with room
        for C columns or more, (B, >= C, 2d); those of x are written into it, each place once. None
        if no columns are before x. Returns the new x, and the keys and values of the C columns,
        (B, C, 2d).
        """
        B, L, D = x.size()
        C = mask.size(1)
        q, kv = self.qkv(self.norm1(x)).split([D, 2 * self.d], dim=-1)
        if cache is not None:
            cache[:, C - L : C] = kv
            kv = cache[:, :C]
        k, v = kv.split(self.d, dim=-1)  # (B, C, d)
        q = q.reshape(B, L * self.heads, self.d)  # the heads of one token side by side
        scores = q @ k.transpose(1, 2) / self.d**0.5  # (B, L * heads, C)
        scores = scores.unflatten(1, (L, self.heads)) + mask[:, None]  # (B, L, heads, C)
        y = scores.softmax(-1).flatten(1, 2) @ v  # (B, L * heads, d)
        x = x + self.project(y.view(B, L, D))
        return x + self.mlp(self.norm2(x)), kv


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
            nn.init.normal_(weight, std=0.02)  # as in GPT-2, which also scales some of them down

    def read(self, tokens: Tensor, cache: list | None = None, seen=0) -> tuple[Tensor, list]:
        """Reads tokens (B, L), which stand in the columns from `seen` on.

        cache: for each block the keys and values of the columns before, with room for those of the
        tokens, which are written into it. Returns the hidden vectors (B, L, D), which the
        unembedding multiplies, and for each block the keys and values so far, (B, C, 2d).
        """
        L = tokens.size(1)
        columns = torch.arange(seen, seen + L, device=tokens.device)
        # Token l stands in column seen + l, and looks at that column and those before it.
        mask = torch.full((L, seen + L), -torch.inf, device=tokens.device).triu(seen + 1)
        x = self.embed_token(tokens) + self.embed_position(columns)
        read = []
        for i, block in enumerate(self.blocks):
            x, kv = block(x, mask, cache[i] if cache else None)
            read.append(kv)
        return self.norm(x), read

    def read_prompts(self, prompts: Tensor, G: int, T: int) -> tuple[Tensor, list]:
        """Reads each of prompts (P, Lp) once for its G responses; B = P*G rows.

        Returns the hidden vectors after the prompts (B, 1, D), and a cache with room for T tokens.
        """
        h, read = self.read(prompts)
        cache = [nn.functional.pad(kv, (0, 0, 0, T)).repeat_interleave(G, dim=0) for kv in read]
        return h[:, -1:].repeat_interleave(G, dim=0), cache

    def hidden(self, tokens: Tensor) -> Tensor:
        """tokens (B, L) -> what the unembedding multiplies, after the final norm (B, L, D)."""
        return self.read(tokens)[0]

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.hidden(tokens))


@torch.no_grad()
def generate(model: GPT, prompts: Tensor, G: int, T: int, eos: int, temperature, rng) -> tuple:
    """Samples G responses to each of prompts (P, Lp), B = P*G rows, up to EOS or T tokens each.

    Temperature 0 is greedy; rng is a torch.Generator or None. Returns tokens (P, G, T); mask
    (P, G, T), True on sampled tokens; and what sampling has computed already: probs (P, G, T, V),
    those that were sampled from (greedy: of temperature 1), and hidden (P, G, T, D). T shrinks to
    the longest response; what is outside the mask has no meaning.
    """
    h, cache = model.read_prompts(prompts, G, T)
    rows = torch.arange(len(h), device=h.device)  # still in the batch; some may have ended
    tokens = prompts.new_zeros(len(h), T)
    mask = torch.zeros_like(tokens, dtype=torch.bool)
    mask[:, 0] = True
    probs = h.new_zeros(len(h), T, model.config.vocab_size)
    hidden = h.new_zeros(len(h), T, model.config.width)
    for t in range(T):
        p = (model.unembed(h[:, 0]) / (temperature or 1.0)).softmax(-1)  # (rows, V)
        token = torch.multinomial(p, 1, generator=rng) if temperature else p.argmax(1, keepdim=True)
        tokens[rows, t] = token[:, 0]
        probs[rows, t] = p
        hidden[rows, t] = h[:, 0]
        going = mask[rows, t] & (token[:, 0] != eos)
        if t + 1 == T or not going.any():
            break
        mask[rows, t + 1] = going
        if going.float().mean() < 0.9:  # leaving copies the cache, so only when enough have ended
            rows = rows[going]
            token = token[going]
            cache = [kv[going] for kv in cache]
        h, _ = model.read(token, cache, prompts.size(1) + t)
    # (B, T, ...) -> (P, G, t + 1, ...)
    return tuple(x[:, : t + 1].unflatten(0, (-1, G)) for x in (tokens, mask, probs, hidden))
