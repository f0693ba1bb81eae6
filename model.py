"""A small GPT and its two uses: it samples responses to prompts, and it reads given responses.

This is the usual transformer: embeddings, pre-norm blocks of causal attention and an MLP, a final
norm, and the unembedding. Rows are padded on the right and attention is causal, so no token of a
response looks at padding.

All heads share one head of keys and values (multi-query attention, arXiv 1911.02150): sampling
reads them from memory again and again.

Another torch.nn.Module can take the place of the GPT: train.run(args, make_model). It offers this:
    model(tokens (B, L), cache=None)   hidden vectors (B, L, D), those that unembed multiplies, and
                                       a cache: a list of tensors that have B rows each
    model.unembed(hidden)              logits (B, L, V), for the V tokens of tasks.TOKENIZER
    model.norm.weight                  a weight, of the dtype in which the model computes

Shapes: P prompts of Lp tokens, G responses to each, B = P*G rows, T response tokens. One call reads
L tokens, and they may look at C positions. D width, d = D / heads, V vocabulary.
"""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """One block on x (B, L, D): adds attention(norm(x)) to x, and then mlp(norm(x))."""

    def __init__(self, D: int, heads: int = 4):
        super().__init__()
        if D % heads:
            raise ValueError(f"a width of {D} is not a multiple of {heads}, the number of heads")
        self.heads = heads
        self.d = D // heads
        self.norm1 = nn.LayerNorm(D)
        self.qkv = nn.Linear(D, D + 2 * self.d)
        self.project = nn.Linear(D, D)
        self.norm2 = nn.LayerNorm(D)
        self.mlp = nn.Sequential(nn.Linear(D, 4 * D), nn.ReLU(), nn.Linear(4 * D, D))

    def forward(self, x: Tensor, past: Tensor, causal: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, L, D) holds the L newest of C positions. Returns the new x and past.

        past (B, C - L, 2d) holds the keys and the values of the earlier positions, and the returned
        one (B, C, 2d) those of all positions. causal (L, C) is 0 where a token may look, else -inf.
        """
        B, L, D = x.size()
        q, kv = self.qkv(self.norm1(x)).split([D, 2 * self.d], dim=-1)
        kv = torch.cat([past, kv], dim=1)  # (B, C, 2d)
        k, v = kv.split(self.d, dim=-1)  # (B, C, d) each
        q = q.reshape(B, L * self.heads, self.d)  # each head is a row: all share k and v
        scores = q @ k.transpose(1, 2) / self.d**0.5  # (B, L * heads, C)
        y = (scores + causal.repeat_interleave(self.heads, 0)).softmax(-1) @ v  # (B, L * heads, d)
        x = x + self.project(y.view(B, L, D))
        return x + self.mlp(self.norm2(x)), kv


class GPT(nn.Module):
    """tokens (B, L) -> hidden vectors (B, L, D) and a cache; unembed(hidden) -> logits (B, L, V).

    columns: how many tokens the longest row has, prompt and response together. width: a multiple of
    4, the number of heads. outputs: how many `unembed` gives in place of logits; a critic has 1.
    """

    def __init__(self, vocabulary: int, columns: int, layers=2, width=64, outputs=None):
        super().__init__()
        self.embed_token = nn.Embedding(vocabulary, width)
        self.embed_position = nn.Embedding(columns, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.unembed = nn.Linear(width, outputs or vocabulary, bias=False)
        # 0.02 is GPT-2's.
        for matrix in (weight for weight in self.parameters() if weight.dim() == 2):
            nn.init.normal_(matrix, std=0.02)

    def forward(self, tokens: Tensor, cache: list[Tensor] | None = None) -> tuple[Tensor, list]:
        """Reads tokens (B, L), which follow the tokens of the cache.

        cache has keys and values of the earlier positions for each block, (B, C - L, 2d), or is
        None. Returns the hidden vectors (B, L, D), which the unembedding multiplies, and a new
        cache that has the positions of the tokens as well, (B, C, 2d) for each block.
        """
        B, L = tokens.size()
        cache = list(cache or [self.norm.weight.new_zeros(B, 0, 2 * b.d) for b in self.blocks])
        C = cache[0].size(1) + L
        if C > len(self.embed_position.weight):
            raise ValueError(f"a row of {C} tokens needs a model with as many columns")
        # Token l has the position C - L + l. It may look at this position and at all before it. If
        # L = 2 and C = 4, the rows of causal are 0 0 0 -inf and 0 0 0 0.
        causal = self.norm.weight.new_full((L, C), -torch.inf).triu(C - L + 1)
        x = self.embed_token(tokens) + self.embed_position.weight[C - L : C]
        for i, block in enumerate(self.blocks):
            x, cache[i] = block(x, cache[i], causal)
        return self.norm(x), cache


def read_prompts(model: GPT, prompts: Tensor, G: int) -> tuple[Tensor, list]:
    """Reads prompts (P, Lp) up to their last token, once for all G responses to each.

    The last token is left for the next call, because every response needs the hidden vector there:
    it predicts the first token. Returns the last tokens (B, 1) and the cache for B rows.
    """
    _, cache = model(prompts[:, :-1])
    return prompts[:, -1:].repeat_interleave(G, 0), [kv.repeat_interleave(G, 0) for kv in cache]


@torch.no_grad()
def generate(model: GPT, prompts: Tensor, G: int, T: int, eos: int, temperature, rng) -> tuple:
    """Samples G responses to each of prompts (P, Lp), until all have ended, at most T tokens.

    Temperature 0 is greedy decoding. rng: torch.Generator or None. Returns tokens (P, G, T), and
    for each token probs (P, G, T, V), from which it was drawn, and hidden (P, G, T, D), from which
    the unembedding made probs. What is drawn for a response after its `eos` is padding.
    FloatingPointError if a probability is not finite.
    """
    token, cache = read_prompts(model, prompts, G)
    ended = torch.zeros_like(token, dtype=torch.bool)  # (B, 1)
    # Half precision is too coarse to sample.
    exact = torch.promote_types(model.norm.weight.dtype, torch.float32)
    sampled = []
    for _ in range(T):
        h, cache = model(token, cache)
        h = h[:, 0]  # (B, D)
        p = (model.unembed(h) / (temperature or 1.0)).softmax(-1, exact)  # (B, V)
        if not p.isfinite().all():
            raise FloatingPointError("a sampling probability is not finite")
        token = torch.multinomial(p, 1, generator=rng) if temperature else p.argmax(1, keepdim=True)
        sampled.append((token[:, 0], p, h.to(exact)))
        ended |= token == eos
        if ended.all():
            break
    tokens, probs, hidden = (torch.stack(x, dim=1) for x in zip(*sampled))  # (B, T, ...) each
    return tuple(x.unflatten(0, (-1, G)) for x in (tokens, probs, hidden))  # (P, G, T, ...)


def read_responses(model: GPT, prompts: Tensor, tokens: Tensor) -> Tensor:
    """The hidden vectors after each prompt and after each token of its G responses, with gradient.

    prompts (P, Lp), tokens (P, G, T) -> (P, G, 1 + T, D). The plain form, prompt and response in
    one row, gives the same:

        rows = torch.cat([prompts.repeat_interleave(G, 0), tokens.flatten(0, 1)], dim=1)
        hidden = model(rows)[0][:, Lp - 1 :].unflatten(0, (P, G))
    """
    P, G, T = tokens.size()
    last, cache = read_prompts(model, prompts, G)
    h, _ = model(torch.cat([last, tokens.flatten(0, 1)], dim=1), cache)  # (B, 1 + T, D)
    return h.unflatten(0, (P, G))
