"""How fast is it? This project against its first edition, TRL, transformers and the processor.

    python -m studies.speed [--pairs 10] [--quick] [--threads 1] [--device cpu] [--width 64] ...

All flags but the first two are those of train.py; here the device is cpu unless they say otherwise,
and the task is "sum". Each side runs in a process of its own. The sides
take turns, so that whatever else the machine does slows all alike; the first 3 rounds are not
counted; a ratio is taken within each round, and its median, smallest and largest are given.
Measured are
1. a default step of this code and of the first edition (commit 2fb9140), whose base model comes
   from its own warm-up; seconds as both loops write them to metrics.csv;
2. a step with one mini-batch and one of TRL's GRPOTrainer, in seconds; sampling here and by
   transformers' generate, in response tokens a second. Their model is GPTBigCode, the usual GPT
   with one head of keys and values. It has this project's architecture and gets its weights: the
   logits must agree to 1e-4. Both print the mean response length, which should be the same;
3. a step of each variant as a multiple of a grpo step on the same problems;
4. the share of a step's seconds that its multiply-adds alone would take, at the rate at which this
   machine multiplies matrices of these shapes. They are counted strictly: a prompt is read once for
   its group, in sampling and in the update, and no padding is read; a backward pass counts twice.

Everywhere the same problems of the default mix in the same order, at most 24 tokens a response,
temperature 1, no KL term, float32. The learning rate is 0: the arithmetic is the same, and the
models, and so the lengths, stay what they are. The table is printed. docs/tables/speed.csv keeps a
row for each measurement, setting, number of threads and device, and replaces those measured again.
Part 1 needs the commit; part 2 the packages of studies/requirements-speed.txt. Without them these
parts are left out. --quick is a smoke test with a tiny model: its numbers are noise, not kept.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from multiprocessing import active_children, get_context
from pathlib import Path

import numpy as np
import torch

import train
from advantages import VARIANTS
from grpo import Rollout, encode, sample_rollout
from model import GPT, generate
from studies.common import TABLES, markdown, read_rows, write_rows
from tasks import EOS, PAD, TASKS, Problem

FIRST_EDITION = "2fb9140"
TASK = TASKS["sum"]
NEW_TOKENS = len(TASK.longest.solution) + 1
WARM = 3  # rounds that are not counted
KEY = ("name", "setting", "threads", "device")
FIELDS = (*KEY, "median", "min", "max", "unit", "pairs")


def changed(args, **settings) -> argparse.Namespace:
    return argparse.Namespace(**(vars(args) | settings))


def clock(args) -> float:
    """Seconds, when all work of the device is done."""
    if args.device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def batches(args) -> list[list[Problem]]:
    """The problems of the steps, as train.py's loop takes them in its first epoch."""
    problems = train.make_problems(TASK, held=False)
    order = torch.from_numpy(np.random.default_rng(args.seed).permutation(len(problems)))
    return [[problems[i] for i in batch] for batch in order.split(args.prompts)]


# ---- sides: each calls report(value, ...) after each round; its set-up falls in the first ----


def our_loop(args):
    """train.py's loop without evaluation: yields step, rollout, advantages, metrics."""
    return train.train(args, args.model, [], evaluate_every=args.steps)


def our_step(report, args) -> None:
    for _, _, _, metrics in our_loop(args):
        report(metrics["seconds"], metrics["length"])


def first_edition_step(report, args) -> None:
    for name in ("advantages", "grpo", "model", "tasks", "train"):
        del sys.modules[name]  # the first edition's modules have the same names
    sys.path.insert(0, args.folder)
    import train as old

    tokenizer = old.build_tokenizer()
    torch.manual_seed(args.base_seed)
    model = old.GPT(old.GPTConfig(*args.model.config)).to(args.device)  # one token is never used
    old.warm_up(model, tokenizer, old.TASKS["sum"], args.device)
    problems = [old.Problem(p.prompt.strip(), *p[1:]) for p in train.make_problems(TASK, False)]
    old.make_problems = lambda *_, **__: problems
    old.EVALUATE_EVERY = args.steps

    class Rows(list):  # its loop takes a list, to which it adds the metrics of each step
        def append(self, metrics: dict) -> None:
            report(metrics["seconds"], metrics["length"])

    old.train(args, model, tokenizer, [], open(os.devnull, "w"), Rows())


def twin(args) -> tuple:
    """(GPTBigCode with our weights, a tokenizer for it). AssertionError if the logits differ."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=train.TOKENIZER, pad_token=PAD)
    V, columns, layers, D, heads, _ = args.model.config
    size = {"vocab_size": V, "n_positions": columns, "n_layer": layers, "n_embd": D}
    kind = {"n_head": heads, "multi_query": True, "activation_function": "relu"}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False}
    tokenizer.eos_token = EOS
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = GPTBigCodeConfig(**size, **kind, **off, **ids, bos_token_id=None)
    model = GPTBigCodeForCausalLM(config).to(args.device).eval()
    weights = args.model.state_dict().values()  # they come in the same order
    model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))
    tokens = torch.arange(V, device=args.device)[None]
    torch.testing.assert_close(model(tokens).logits, args.model(tokens), atol=1e-4, rtol=0)
    return model, tokenizer


def trl_step(report, args) -> None:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    problems = {p.prompt: p for batch in batches(args) for p in batch}

    class Stopwatch(TrainerCallback):
        def reward(self, prompts, completions, completion_ids, **_) -> list[float]:
            self.length = np.mean([len(ids) for ids in completion_ids])
            return [TASK.reward(problems[p], y) for p, y in zip(prompts, completions)]

        def on_step_begin(self, *_, **__):
            self.start = clock(args)

        def on_step_end(self, *_, **__):
            report(clock(args) - self.start, self.length)

    work = {"per_device_train_batch_size": args.prompts * args.group_size}
    work |= {"num_generations": args.group_size, "max_completion_length": NEW_TOKENS}
    work |= {"num_iterations": 1, "beta": 0.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    work |= {"learning_rate": 0.0, "max_steps": len(batches(args)), "shuffle_dataset": False}
    plain = {"use_cpu": args.device == "cpu", "bf16": False, "gradient_checkpointing": False}
    plain |= {"report_to": "none", "logging_strategy": "no", "save_strategy": "no"}
    config = GRPOConfig(args.folder, disable_tqdm=True, **work, **plain)
    data = Dataset.from_list([{"prompt": p.prompt} for batch in batches(args) for p in batch])
    watch = Stopwatch()
    model, tokenizer = twin(args)
    parts = {"processing_class": tokenizer, "callbacks": [watch]}
    GRPOTrainer(model, watch.reward, config, data, **parts).train()


def our_sampling(report, args) -> None:
    eos = train.TOKENIZER.token_to_id(EOS)
    for batch in batches(args):
        start = clock(args)
        prompts = encode(train.TOKENIZER, [p.prompt for p in batch], args.device)
        _, mask, _, _ = generate(args.model, prompts, args.group_size, NEW_TOKENS, eos, 1.0, None)
        tokens = int(mask.sum())
        report(tokens / (clock(args) - start), tokens / mask[..., 0].numel())


def their_sampling(report, args) -> None:
    model, tokenizer = twin(args)
    settings = {"max_new_tokens": NEW_TOKENS, "do_sample": True, "top_k": 0, "top_p": 1.0}
    for batch in batches(args):
        start = clock(args)
        prompts = tokenizer([p.prompt for p in batch], return_tensors="pt").to(args.device)
        rows = model.generate(**prompts, **settings, num_return_sequences=args.group_size)
        ended = rows[:, prompts["input_ids"].size(1) :] == tokenizer.eos_token_id
        tokens = int((ended.cumsum(1) - ended.long() == 0).sum())
        report(tokens / (clock(args) - start), tokens / len(rows))


def variants(report, args) -> None:
    """A step of each variant over a grpo step on the same problems; grpo's own shows the noise."""
    loops = [(our_loop(changed(args, variant=name)), our_loop(args)) for name in VARIANTS]
    while True:
        report(*[next(a)[3]["seconds"] / next(b)[3]["seconds"] for a, b in loops])


def multiply_adds(rollout: Rollout, model: GPT) -> float:
    """Multiply-adds of one forward pass over all that a rollout's tokens depend on.

    A token and block: D^2 for q, 2D^2/heads for k and v, D^2 after the attention, 8D^2 in the MLP;
    and 2D for each column that it sees, its own included. A response's last token is not read.
    """
    V, _, layers, D, heads, _ = model.config
    P, Lp = rollout.prompts.size()
    n = rollout.mask.sum(-1)  # (P, G) tokens
    read = P * Lp + (n - 1).sum()
    seen = P * Lp * (Lp + 1) / 2 + ((n - 1) * (Lp + n / 2)).sum()  # columns, over the tokens read
    return (layers * ((10 + 2 / heads) * D**2 * read + 2 * D * seen) + D * V * n.sum()).item()


def multiply_add_rate(args) -> float:
    """Multiply-adds a second in the products of an MLP, at best."""
    rates = []
    w = torch.randn(args.width, 4 * args.width, device=args.device)
    for rows in (512, 2048, 6144) * 50:
        x = torch.randn(rows, args.width, device=args.device)
        start = clock(args)
        torch.mm(x, w)
        rates.append(rows * w.numel() / (clock(args) - start))
    return max(rates)


def share(report, args) -> None:
    """Reports multiply-adds a second, and the shares of sampling, of the rest, and of the whole."""
    rate = multiply_add_rate(args)
    for _, rollout, _, metrics in our_loop(args):
        start = clock(args)
        sample_rollout(args.model, train.TOKENIZER, TASK, rollout.problems, args.group_size)
        seconds = clock(args) - start
        rest = metrics["seconds"] - seconds  # a forward pass and, counted twice, a backward pass
        limit = multiply_adds(rollout, args.model) / rate
        report(rate, limit / seconds, 3 * limit / rest, 4 * limit / metrics["seconds"])


# ---- rounds, rows and the table ----


def serve(pipe, side, args) -> None:
    """A process's work: the side, which waits after each report until its turn comes again."""
    torch.set_num_threads(args.threads)
    args.model.to(args.device)

    def report(*values: float) -> None:
        pipe.send(values)
        pipe.recv()

    pipe.recv()
    side(report, args)


def measure(args, *sides) -> np.ndarray:
    """Lets the sides take turns: (all values that they report, rounds), without the warm rounds."""
    pipes = []
    for side in sides:
        pipe, end = get_context("spawn").Pipe()
        get_context("spawn").Process(target=serve, args=(end, side, args), daemon=True).start()
        end.close()  # so that the pipe breaks if the process does
        pipes.append(pipe)
    rounds = []
    for _ in range(WARM + args.pairs):
        rounds.append([])
        for pipe in pipes:
            pipe.send("go")
            rounds[-1] += pipe.recv()
    for process in active_children():
        process.terminate()
    return np.array(rounds[WARM:]).T


def row(args, name: str, values: np.ndarray, unit: str) -> dict:
    """Repeated measurements of one thing as a row of speed.csv."""
    setting = f"{args.layers}x{args.width}, {args.prompts}x{args.group_size}"
    spread = [f"{x:.4g}" for x in (np.median(values), values.min(), values.max())]
    cells = (name, setting, str(args.threads), args.device, *spread, unit, str(len(values)))
    return dict(zip(FIELDS, cells, strict=True))


def compare(args, what: str, ours, name: str, theirs, unit: str) -> list[dict]:
    """Rows: how many times as fast we are; the speed of both sides and their response lengths."""
    a, our_length, b, their_length = measure(args, ours, theirs)
    rows = [row(args, f"{what}: times as fast as {name}", b / a if unit == "s" else a / b, "x")]
    for side, speed, length in (("here", a, our_length), (name, b, their_length)):
        rows.append(row(args, f"{what}, {side}", speed, unit))
        rows.append(row(args, f"{what}, {side}: mean response", length, "tokens"))
    return rows


def measure_all(args) -> list[dict]:
    rows = []
    unpack = f"git archive {FIRST_EDITION} | tar -x -C '{args.folder}'"
    subprocess.run(unpack, shell=True, capture_output=True, check=False)
    if Path(args.folder, "train.py").exists():
        rows += compare(args, "default step", our_step, "first edition", first_edition_step, "s")
    else:
        print(f"The first edition is left out: git has no commit {FIRST_EDITION} here.")
    if find_spec("trl"):
        print("TRL and transformers run GPTBigCode with this project's weights.")
        one = changed(args, minibatches=1)
        rows += compare(one, "one-update step", our_step, "TRL", trl_step, "s")
        rows += compare(args, "sampling", our_sampling, "transformers", their_sampling, "tokens/s")
    else:
        print("TRL and transformers are left out: see studies/requirements-speed.txt.")
    for name, values in zip(VARIANTS, measure(args, variants), strict=True):
        rows.append(row(args, f"step of {name} / step of grpo", values, "x"))
    rate, *shares = measure(args, share)
    rows.append(row(args, "matrix products, at best", rate / 1e9, "10^9 multiply-adds/s"))
    for name, values in zip(("sampling", "update and metrics", "default step"), shares):
        rows.append(row(args, f"arithmetic share of {name}", 100 * values, "%"))
    return rows


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser("studies.speed", epilog="other flags: see train.py --help")
    parser.add_argument("--pairs", type=int, choices=range(1, 61), default=10, metavar="N")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the numbers are noise")
    own, others = parser.parse_known_args(argv)
    defaults = ["--device", "cpu"] + own.quick * ["--width", "16"]
    args = train.parse_arguments(defaults + others)
    args.pairs = 2 if own.quick else own.pairs
    args.lr = 0.0
    args.steps = 10**9  # more than are asked for
    torch.set_num_threads(1)
    args.model = train.new_model(args)
    train.warm_up(args.model, TASK, train.WARMUP_STEPS["sum"], args.base_seed)
    args.model.cpu()  # to be sent to the processes
    os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    with tempfile.TemporaryDirectory() as args.folder:
        rows = measure_all(args)
    if not own.quick:
        kept = {tuple(r[key] for key in KEY): r for r in read_rows(TABLES / "speed.csv") + rows}
        write_rows(TABLES / "speed.csv", list(kept.values()))
    print(f"torch {torch.__version__}, {args.device}, {args.threads} threads\n")
    cells = [[r["name"], r["median"], f"{r['min']} to {r['max']}", r["unit"]] for r in rows]
    print(markdown(["measured", "median", "min to max", "unit"], cells))


if __name__ == "__main__":
    main(sys.argv[1:])
