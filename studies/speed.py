"""How fast is it? Beside TRL, transformers and the arithmetic: python -m studies.speed [--threads 2]

Needs the packages of studies/requirements-speed.txt. TRL's GRPOTrainer and transformers' generate
run GPTBigCode, the usual GPT with one head of keys and values. It has this project's architecture
and gets the base model's weights; the logits must agree to 1e-4. All sides have the same problems
of `add` in the same order, 64 with 8 responses each, temperature 1, no KL term, float32. The
learning rate is 0, so the models, and with them the lengths, stay what they are.

In each round all sides take their turn in one process, so that whatever else the machine does slows
all alike; the first three rounds are not counted. Measured are

1. a grpo step with one mini-batch, and a step of TRL, with sampling, rewards and metrics. Here
   groups without an advantage are not read in the update; TRL reads all;
2. sampling, in response tokens a second, here and by generate;
3. what the multiply-adds of step 1 alone would take, at the rate at which this machine multiplies
   matrices of these shapes. They are counted strictly: a prompt is read once for its group, padding
   is not read, nor is a group without an advantage in the update, where a backward pass counts
   twice;
4. a whole default run of grpo, four mini-batches a step, which really learns; its steps are spread
   over the rounds. The update reads fewer groups as more are solved. Evaluation is not counted.

docs/tables/speed.csv has a row a measurement and number of threads: median, smallest and largest of
the rounds. Of the run it is the mean over all steps, and the smallest and largest mean of a round.
"""

import argparse
import os
import tempfile
import time
from collections import defaultdict

import numpy as np
import torch
from datasets import Dataset
from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM, PreTrainedTokenizerFast
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import train
from grpo import Rollout, encode
from model import GPT, generate
from studies.common import TABLES, markdown, read_rows, write_rows
from tasks import ADD, EOS, PAD

ROWS = TABLES / "speed.csv"
NEW_TOKENS = len(ADD.longest.solution) + 1
WARM = 3  # rounds that are not counted


def twin(model: GPT) -> tuple[GPTBigCodeForCausalLM, PreTrainedTokenizerFast]:
    """GPTBigCode with our weights, and its tokenizer. AssertionError if the logits differ."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train.TOKENIZER, pad_token=PAD)
    tokenizer.eos_token = EOS
    V, columns, layers, D, heads, _ = model.config
    size = {"vocab_size": V, "n_positions": columns, "n_layer": layers, "n_embd": D}
    kind = {"n_head": heads, "activation_function": "relu", "tie_word_embeddings": False}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    other = GPTBigCodeForCausalLM(GPTBigCodeConfig(**size, **kind, **off, **ids)).eval()
    weights = model.state_dict().values()  # they come in the same order
    other.load_state_dict(dict(zip(other.state_dict(), weights, strict=True)))
    tokens = torch.arange(V)[None]
    torch.testing.assert_close(other(tokens).logits, model(tokens), atol=1e-4, rtol=0)
    return other, tokenizer


def multiply_adds(model: GPT, rollout: Rollout, groups=slice(None)) -> float:
    """Multiply-adds of one forward pass over all that the tokens of these groups depend on.

    A token and block: D^2 for q, 2D^2/heads for k and v, D^2 after the attention, 8D^2 in the MLP;
    and 2D for each column that it sees, its own included. A response's last token is not read.
    """
    V, _, layers, D, heads, _ = model.config
    n = rollout.mask[groups].sum(-1)  # (P, G) tokens
    P = len(n)
    Lp = rollout.prompts.size(1)
    read = P * Lp + (n - 1).sum()
    seen = P * Lp * (Lp + 1) / 2 + ((n - 1) * (Lp + n / 2)).sum()  # columns, over the tokens read
    return (layers * ((10 + 2 / heads) * D**2 * read + 2 * D * seen) + D * V * n.sum()).item()


def multiply_add_rate(D: int) -> float:
    """Multiply-adds a second in the first product of an MLP, at best."""
    rates = []
    w = torch.randn(D, 4 * D)
    for rows in (512, 2048, 6144) * 20:
        x = torch.randn(rows, D)
        started = time.perf_counter()
        torch.mm(x, w)
        rates.append(rows * w.numel() / (time.perf_counter() - started))
    return max(rates)


class Rounds(TrainerCallback):
    """TRL's loop gives the turns: when it has made a step, the others follow. Keeps all numbers."""

    def __init__(self, model: GPT, args):
        self.model = model
        self.theirs, self.tokenizer = twin(model)
        still = argparse.Namespace(**vars(args) | {"minibatches": 1, "lr": 0.0, "steps": 10**9})
        self.steps = train.train(still, model, evaluate_every=10**9)
        self.run = train.train(args, train.base_model(args), evaluate_every=10**9)
        self.steps_a_round = args.steps // args.pairs
        self.values = defaultdict(list)

    def on_step_begin(self, *_, **__):
        self.started = time.perf_counter()

    def on_step_end(self, *_, **__):
        self.values["a step of TRL, s"].append(time.perf_counter() - self.started)
        rollout, advantages, metrics = next(self.steps)
        self.values["a step with one mini-batch, s"].append(metrics["seconds"])
        self.sample(rollout.problems)
        read = (advantages != 0).any(2).any(1)
        work = multiply_adds(self.model, rollout) + 3 * multiply_adds(self.model, rollout, read)
        limit = work / multiply_add_rate(self.model.config.width)
        self.values["share of the arithmetic in it, %"].append(100 * limit / metrics["seconds"])
        count = self.steps_a_round if len(self.values["a step of TRL, s"]) > WARM else 0
        seconds = [next(self.run)[2]["seconds"] for _ in range(count)]
        self.values["a step of a whole run, mean, s"].append(np.mean(seconds or [np.nan]))

    def sample(self, problems: list) -> None:
        """The same prompts here and by generate."""
        eos = self.tokenizer.eos_token_id
        texts = [p.prompt for p in problems]
        started = time.perf_counter()
        prompts = encode(train.TOKENIZER, texts, "cpu")
        _, mask, _, _ = generate(self.model, prompts, 8, NEW_TOKENS, eos, 1.0, None)
        between = time.perf_counter()
        inputs = self.tokenizer(texts, return_tensors="pt")
        options = {"do_sample": True, "top_k": 0, "top_p": 1.0, "num_return_sequences": 8}
        rows = self.theirs.generate(**inputs, **options, max_new_tokens=NEW_TOKENS)
        ended = time.perf_counter()
        done = rows[:, prompts.size(1) :] == eos
        tokens = (done.cumsum(1) - done.long() == 0).sum().item()
        self.values["sampling, tokens/s"].append(mask.sum().item() / (between - started))
        self.values["generate, tokens/s"].append(tokens / (ended - between))
        self.values["response, tokens"].append(mask.sum().item() / mask[..., 0].numel())
        self.values["response of generate, tokens"].append(tokens / len(rows))


def trl(model: GPT, args, folder: str) -> dict[str, list[float]]:
    """Runs TRL's loop, and with it the rounds; returns their numbers."""
    count = WARM + args.pairs
    problems = train.make_problems(ADD, held=False)
    order = np.random.default_rng(args.seed).permutation(len(problems))[: count * args.prompts]
    by_prompt = {problems[i].prompt: problems[i] for i in order}

    def reward(prompts, completions, **_) -> list[float]:
        return [ADD.reward(by_prompt[p], y) for p, y in zip(prompts, completions)]

    work = {"per_device_train_batch_size": args.prompts * args.group_size, "max_steps": count}
    work |= {"num_generations": args.group_size, "max_completion_length": NEW_TOKENS}
    work |= {"beta": 0.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "learning_rate": 0.0}
    plain = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
    plain |= {"shuffle_dataset": False, "report_to": "none", "save_strategy": "no"}
    config = GRPOConfig(folder, disable_tqdm=True, logging_strategy="no", **work, **plain)
    data = Dataset.from_list([{"prompt": prompt} for prompt in by_prompt])
    rounds = Rounds(model, args)
    other, tokenizer = twin(model)
    parts = {"processing_class": tokenizer, "callbacks": [rounds]}
    GRPOTrainer(other, reward, config, data, **parts).train()
    return rounds.values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, choices=range(1, 61), default=10, metavar="N")
    parser.add_argument("--threads", type=int, default=1, help="threads of the processor")
    parser.add_argument("--out", default="runs", help="folder of the base model")
    options = parser.parse_args()
    args = train.parse_arguments(["--device", "cpu", "--out", options.out])
