"""How fast is it? Beside TRL, transformers and bare arithmetic: python -m studies.speed --threads 2

Needs the packages of studies/requirements-trl.txt. TRL's GRPOTrainer and transformers' generate
run GPTBigCode, the usual GPT with one head of keys and values. It has this project's architecture
and gets the base model's weights; the logits must agree to 1e-4. All sides have the same problems
of `add` in the same order, 64 with 8 responses each, temperature 1, no KL term, float32. The
learning rate is 0 or next to it: so the models, and with them the lengths, stay what they are.

TRL's loop gives the rounds. After each of its steps the others take their turn in the same process,
so whatever else the machine does slows all alike. The first three rounds are not counted. In a
round these are measured, in seconds:

    step         a grpo step with one mini-batch: sampling, rewards, update, metrics
    trl          the same by TRL; it reads all groups, the step above only those with an advantage
    sampling     eight responses to each prompt
    generate     the same by transformers
    run_step     the mean over some steps of a whole default run, which learns, with four
                 mini-batches a step; in all rounds together it makes all its steps

and three ratios. arithmetic/step is the share of a step that its multiply-adds alone would take, at
the rate at which this machine multiplies matrices of these shapes. They are counted strictly: a
prompt is read once for its group, in sampling and in the update; padding is not read, nor by the
update a group without an advantage; a backward pass counts twice.

docs/tables/speed.csv has a row for each measurement and number of threads: the median of the
rounds, of run_step the mean, and the smallest and the largest. The table is made from it alone.
"""

import argparse
from itertools import islice
from timeit import default_timer, repeat, timeit

import numpy as np
import torch
from datasets import Dataset
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM, PreTrainedTokenizerFast
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import train
from grpo import Rollout
from model import GPT, generate
from studies.common import TABLES, markdown, read_rows, write_rows
from tasks import ADD, EOS, PAD, Problem

ROWS = TABLES / "speed.csv"
NAMES = "step trl trl/step sampling generate generate/sampling arithmetic/step run_step".split()
NEW_TOKENS = len(ADD.longest.solution) + 1
WARM = 3  # rounds that are not counted


def twin(model: GPT) -> tuple[GPTBigCodeForCausalLM, PreTrainedTokenizerFast]:
    """GPTBigCode with our weights, and its tokenizer. AssertionError if the logits differ."""
    special = {"pad_token": PAD, "eos_token": EOS}  # to transformers they are more than characters
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train.TOKENIZER, **special)
    V, D = model.embed_token.weight.size()
    columns = model.embed_position.num_embeddings
    heads = model.blocks[0].heads
    size = {"vocab_size": V, "n_positions": columns, "n_layer": len(model.blocks), "n_embd": D}
    kind = {"n_head": heads, "activation_function": "relu", "tie_word_embeddings": False}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    theirs = GPTBigCodeForCausalLM(GPTBigCodeConfig(**size, **kind, **off, **ids))
    weights = model.state_dict().values()  # they come in the same order
    theirs.load_state_dict(dict(zip(theirs.state_dict(), weights, strict=True)))
    tokens = torch.arange(V)[None]
    logits = model.unembed(model(tokens)[0])
    torch.testing.assert_close(theirs(tokens).logits, logits, atol=1e-4, rtol=0)
    return theirs, tokenizer


def reward(completions, answer, **_) -> list[float]:
    return [ADD.reward(Problem("", "", a, 0), y) for y, a in zip(completions, answer)]


def multiply_adds(model: GPT, rollout: Rollout, advantages: torch.Tensor) -> float:
    """Multiply-adds of a step: sampling is a forward pass, the update one that counts three times.

    A token and block: D^2 for q, 2D^2/heads for k and v, D^2 after the attention, 8D^2 in the MLP;
    and 2D for each column that it sees, its own included. A response's last token is not read.
    The unembedding is left out: it is a hundredth.
    """
    layers = len(model.blocks)
    heads = model.blocks[0].heads
    D = model.embed_token.embedding_dim
    passes = 1 + 3 * (advantages != 0).any(2).any(1)  # (P,)
    Lp = rollout.prompts.size(1)
    n = rollout.mask.sum(-1)  # (P, G) tokens
    read = Lp + (n - 1).sum(1)  # (P,)
    seen = Lp * (Lp + 1) / 2 + ((n - 1) * (Lp + n / 2)).sum(1)  # columns, over the tokens read
    return (passes * layers * ((10 + 2 / heads) * D**2 * read + 2 * D * seen)).sum().item()


def multiply_add_rate(D: int) -> float:
    """Multiply-adds a second in the first product of an MLP, at best."""
    x = torch.randn(2048, D)
    w = torch.randn(D, 4 * D)
    return 2048 * w.numel() / min(repeat(lambda: x @ w, number=1, repeat=100))


def others(trl: float, theirs, count: int, model: GPT, steps, run) -> tuple[float, ...]:
    """The others' turn, after a step of TRL's model that took `trl` seconds: the numbers of NAMES.

    steps: train.py's loop with one mini-batch. run: that of the whole run, `count` steps are made.
    """
    rollout, advantages, metrics = next(steps)
    step = metrics["seconds"]
    given = (rollout.prompts, 8, NEW_TOKENS, theirs.config.eos_token_id, 1.0, None)
    sampling = timeit(lambda: generate(model, *given), number=1)
    same = {"num_return_sequences": 8, "max_new_tokens": NEW_TOKENS, "do_sample": True, "top_k": 0}
    generated = timeit(lambda: theirs.generate(rollout.prompts, **same), number=1)
    rate = multiply_add_rate(model.embed_token.embedding_dim)
    share = multiply_adds(model, rollout, advantages) / rate / step
    run_step = sum(row["seconds"] for *_, row in islice(run, count)) / max(count, 1)
    return step, trl, trl / step, sampling, generated, generated / sampling, share, run_step


class Rounds(TrainerCallback):
    """A round is a step of TRL, and the others' turn. rounds: their numbers, as in NAMES."""

    def __init__(self, count: int, *ours):
        self.count = count  # steps of the whole run in a round
        self.ours = ours
        self.rounds = []

    def on_step_begin(self, *_, **__):
        self.started = default_timer()

    def on_step_end(self, args, state, control, model, **_):
        seconds = default_timer() - self.started
        count = self.count * (state.global_step > WARM)
        self.rounds.append(others(seconds, model, count, *self.ours))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10, help="rounds that are counted")
    parser.add_argument("--threads", type=int, default=1, help="threads of the processor")
    options = parser.parse_args()
    torch.set_num_threads(1)
    args = train.parse_arguments(["--device", "cpu"])
    model = train.base_model(args)
    run = train.train(args, train.base_model(args), evaluate_every=10**9)
    one = train.parse_arguments(["--device", "cpu", "--minibatches", "1", "--lr", "1e-12"])
    steps = train.train(one, model, evaluate_every=10**9)
    rounds = Rounds(args.steps // options.pairs, model, steps, run)
    torch.set_num_threads(options.threads)
    problems = train.make_problems(ADD, held=False)
    count = args.prompts * (WARM + options.pairs)
    order = np.random.default_rng(args.seed).integers(len(problems), size=count)  # as train.py's
    data = Dataset.from_list([problems[i]._asdict() for i in order])
    work = {"per_device_train_batch_size": 512, "max_completion_length": NEW_TOKENS, "bf16": False}
    plain = {"use_cpu": True, "gradient_checkpointing": False, "save_strategy": "no"}
    still = {"learning_rate": 0.0, "shuffle_dataset": False}
    config = GRPOConfig("runs/trl", max_steps=WARM + options.pairs, **work, **plain, **still)
    theirs, tokenizer = twin(model)
    parts = {"processing_class": tokenizer, "callbacks": [rounds]}
    GRPOTrainer(theirs, reward, config, data, **parts).train()
    rows = [row for row in read_rows(ROWS) if row["threads"] != str(options.threads)]
    for name, values in zip(NAMES, np.array(rounds.rounds[WARM:]).T):
        middle = values.mean() if name == "run_step" else np.median(values)
        numbers = [f"{x:.4g}" for x in (middle, values.min(), values.max())]
        row = {"measured": name, "threads": options.threads, "rounds": options.pairs}
        rows.append(row | dict(zip(("median", "smallest", "largest"), numbers)))
    write_rows(ROWS, rows)
    print(markdown([*rows[0]], [[*row.values()] for row in read_rows(ROWS)]))


if __name__ == "__main__":
    main()
