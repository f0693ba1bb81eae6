"""A small GPT, and sampling from it with a cache of keys and values.

The usual transformer: embeddings, pre-norm blocks of causal attention and an MLP, a final norm, an
unembedding. A row is a prompt and a response without a gap, padded on the right only. Nothing looks
to its right, so padding needs no mask, and a token's position is simply its column.
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
    outputs: int | None = None  # numbers a position: None is the vocabulary's size, a critic has 1


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)), on x (B, L, D)."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        D, self.heads = config.width, config.heads
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.project = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor, cache=None, positions=None, mask=None) -> Tensor:
        B, L, D = x.size()
        q, k, v = (
            self.qkv(self.norm1(x)).view(B, L, 3, self.heads, -1).unbind(2)
        )  # (B, L, heads, d)
        if cache is not None:  # add these columns to the cache, and look at what it holds
            rows = torch.arange(B, device=x.device)[:, None]
            cache[0, rows, positions], cache[1, rows, positions] = k, v
            k, v = cache  # (B, C, heads, d) each
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, heads, L or C, d)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.project(y.transpose(1, 2).reshape(B, L, D))
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
        self.output = nn.Linear(config.width, config.outputs or config.vocab_size, bias=False)
        for weight in (p for p in self.parameters() if p.dim() == 2):
            nn.init.normal_(weight, std=0.02)  # as GPT-2 does

    def hidden(self, tokens: Tensor, cache=None, positions=None) -> Tensor:
        """tokens (B, L) -> what the unembedding multiplies, after the final norm (B, L, D).

        Without a cache a row starts in column 0. With one, (layers, 2, B, C, heads, D/heads), the
        tokens stand in columns `positions` (B, L) behind those already in it, and join them there.
        """
        if cache is None:
            positions, mask = torch.arange(tokens.size(1), device=tokens.device), None
        else:  # a token sees the columns up to its own: 0 there, -inf behind, (B, 1, L, C)
            behind = torch.arange(cache.size(3), device=tokens.device) > positions[:, None, :, None]
            mask = cache.new_zeros(()).where(~behind, -torch.inf)
        x = self.embed_token(tokens) + self.embed_position(positions)
        for i, block in enumerate(self.blocks):
            x = block(x, None if cache is None else cache[i], positions, mask)
        return self.norm(x)

    def unembed(self, h: Tensor) -> Tensor:
        """h (..., D) -> logits (..., V)."""
        return self.output(h)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.unembed(self.hidden(tokens))


@torch.no_grad()
def generate(model: GPT, prompts, lengths, G: int, T: int, eos: int, temperature, rng) -> tuple:
    """Samples G responses to each prompt, up to end-of-sequence or T tokens.

    prompts (P, Lp) right-padded; lengths (P,); temperature 0 is greedy; rng a torch.Generator or
    None. Returns for B = P*G rows, prompt by prompt, the tokens (B, T), the mask (B, T), True on
    sampled tokens, and what sampling computed anyway: logprobs (B, T), probs (B, T, V) and hidden
    (B, T, D), all of the distribution that was sampled from (greedy: of temperature 1). T shrinks
    to the longest response; what is outside the mask is 0.
    """
    (P, Lp), (V, D), device = prompts.size(), model.embed_token.weight.size(), prompts.device
    B, heads = P * G, model.config.heads
    cache = model.norm.weight.new_zeros(model.config.layers, 2, P, Lp + T, heads, D // heads)
    # A prompt is read once for its whole group. Rows then differ in length, and each goes on in the
    # column behind its own prompt: what padding left there is overwritten before it can be seen.
    h = model.hidden(prompts, cache[:, :, :, :Lp], torch.arange(Lp, device=device).expand(P, Lp))
    h = h[torch.arange(P, device=device), lengths - 1].repeat_interleave(G, dim=0)  # (B, D)
    cache = cache.repeat_interleave(G, dim=2)
    start = lengths.repeat_interleave(G)[:, None]  # (B, 1), the column of the first token

    tokens, mask = prompts.new_zeros(B, T), prompts.new_zeros(B, T, dtype=torch.bool)
    probs, hidden = h.new_zeros(B, T, V), h.new_zeros(B, T, D)
    # The rows in the batch, and which of them go on.
    rows, live = torch.arange(B, device=device), torch.ones(B, dtype=torch.bool, device=device)
    for t in range(T):
        p = F.softmax(model.unembed(h) / (temperature or 1.0), dim=-1)  # (rows, V)
        token = torch.multinomial(p, 1, generator=rng) if temperature else p.argmax(1, keepdim=True)
        now = rows[live]
        tokens[now, t], mask[now, t] = token[live, 0], True
        probs[now, t], hidden[now, t] = p[live], h[live]
        live &= token[:, 0] != eos
        if t == T - 1 or not live.any():
            break
        # Rows that have ended leave the batch, but not one by one: it copies the whole cache.
        if live.float().mean() < 0.85:
            keep = live.nonzero()[:, 0]
            rows, token, start, live = rows[keep], token[keep], start[keep], live[keep]
            cache = cache.index_select(2, keep)
        h = model.hidden(token, cache[:, :, :, : Lp + t + 1], start + t)[:, 0]
    logprobs = probs.gather(-1, tokens[..., None])[..., 0].log().masked_fill(~mask, 0.0)
    return tuple(x[:, : t + 1] for x in (tokens, mask, logprobs, probs, hidden))
