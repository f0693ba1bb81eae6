"""How fast is it? This project against TRL and transformers, and against the processor.

    python -m studies.speed [--pairs 20] [--device cpu] [--out runs/speed] [--quick]

Measured in one run, in alternation, so that whatever else the machine does slows both sides alike:
1. a grpo step against a step of TRL's GRPOTrainer, and sampling against transformers' generate;
2. the time that a grpo step's multiply-adds would take at the rate that this machine multiplies
   matrices of these shapes, as a share of the time that the step takes;
3. a step of every variant as a share of a grpo step;
4. how time grows with group size, response length and width.

Both sides: the same size of GPT after the same supervised warm-up, the same problems, 32 prompts x
8 responses of at most 24 tokens at temperature 1, one optimiser step a rollout, without a KL term.
The learning rate is 0: the arithmetic is the same, and the models and so the response lengths stay
what they are. Written: speed.csv in --out, docs/speed.png; printed: the tables of the README.
Without the packages of studies/requirements-speed.txt, TRL and transformers are left out.
"""

import argparse
import csv
import importlib.metadata
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, critic_loss, grpo, solved
from grpo import Rollout, answer_likelihood, descend, encode, sample_rollout, token_bias, update
from model import GPT, GPTConfig, generate
from tasks import EOS, PAD, TASKS, Problem, build_tokenizer

TASK, TOKENIZER = TASKS["sum"], build_tokenizer()
PROMPTS, GROUP, LAYERS, WIDTH, HEADS = 32, 8, 3, 64, 4
NEW_TOKENS = len(TASK.longest.solution) + 1
COLUMNS = len(TASK.longest.prompt) + NEW_TOKENS
GROUPS, WIDTHS, LEVELS = (2, 4, 8, 16, 32, 64), (32, 64, 128, 256), TASK.levels[::2]
WARM = 3  # steps of each side that are not counted
FIELDS = ("name", "setting", "median", "min", "max", "unit", "pairs")


# ---- arithmetic ----


def row(name: str, setting: str, values: list[float], unit: str) -> dict:
    """Repeated measurements of one thing as a row of speed.csv: median and spread."""
    spread = (statistics.median(values), min(values), max(values))
    return dict(zip(FIELDS, (name, setting, *spread, unit, len(values))))


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    """ours / theirs, pair by pair."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def forward_multiply_adds(start: int, end: int, layers: int, width: int) -> int:
    """Multiply-adds of the blocks for one row's tokens in columns start..end-1.

    A token and block: 12 D^2 in the matrices (3 for q, k, v, 1 behind the attention, 8 in the MLP)
    and 2 D for each column that the token sees, its own included.
    """
    seen = (end * (end + 1) - start * (start + 1)) // 2  # sum of c + 1 over the columns c
    return layers * (12 * width**2 * (end - start) + 2 * width * seen)


def step_multiply_adds(
    prompts: list[int], responses: list[list[int]], layers: int, width: int, vocab: int
) -> tuple[int, int]:
    """(sampling, update): multiply-adds of a grpo step, from P prompt and P x G response lengths.

    Only tokens that are there: no padding, and not a row's last token, behind which nothing is
    asked. A prompt is read once for its group. The update reads all again, and its backward pass
    costs twice its forward pass.
    """
    forward = 0
    for prompt, group in zip(prompts, responses, strict=True):
        forward += forward_multiply_adds(0, prompt, layers, width)
        for response in group:
            forward += forward_multiply_adds(prompt, prompt + response - 1, layers, width)
            forward += response * width * vocab  # the unembedding
    return forward, 3 * forward


# ---- this project ----


@dataclass
class Ours:
    """A policy and a critic of the same size, each with its optimiser."""

    policy: GPT
    critic: GPT
    optimizer: torch.optim.Optimizer
    critic_optimizer: torch.optim.Optimizer


def make_ours(device: str, width: int = WIDTH, warm: bool = True) -> Ours:
    """Untrained models answer in 13 tokens on average, warm ones as the task demands."""
    torch.manual_seed(0)
    config = GPTConfig(TOKENIZER.get_vocab_size(), COLUMNS + NEW_TOKENS, LAYERS, width, HEADS)
    policy = GPT(config).to(device)
    critic = GPT(GPTConfig(**{**vars(config), "outputs": 1})).to(device)
    if warm:
        train.warm_up(policy, TOKENIZER, TASK, device)
    make = [torch.optim.AdamW(m.parameters(), lr=0.0, weight_decay=0.0) for m in (policy, critic)]
    return Ours(policy, critic, *make)


def clock(device: str) -> float:
    """Seconds, when all work of the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step(
    ours: Ours, problems: list[Problem], group_size: int = GROUP, variant: str = "grpo"
) -> tuple[float, float, Rollout]:
    """One step as train.py makes it. Seconds of sampling, seconds of the whole, and the rollout.

    The same problems and group size give the same rollout, whatever the variant.
    """
    device = next(ours.policy.parameters()).device.type
    rng = torch.Generator(device).manual_seed(0)
    start = clock(device)
    rollout = sample_rollout(
        ours.policy, TOKENIZER, TASK, problems, group_size, max_new_tokens=NEW_TOKENS, generator=rng
    )
    sampled = clock(device)
    if variant == "likelihood":
        rollout.answer_likelihood = answer_likelihood(ours.policy, rollout)
    if variant == "culling":
        solved(rollout).tolist()
    if variant == "critic":
        bias = token_bias(ours.critic, rollout)
        rollout.token_bias = bias.detach()
        descend(ours.critic_optimizer, critic_loss(bias, grpo(rollout), rollout.mask))
    options = {"minibatches": 1, "max_length": NEW_TOKENS, **LOSS.get(variant, {})}
    update(ours.policy, ours.optimizer, rollout, VARIANTS[variant](rollout), **options)
    return sampled - start, clock(device) - start, rollout


def our_sampling(ours: Ours, problems: list[Problem]) -> tuple[float, int]:
    """From prompts as text to responses as tokens: seconds, tokens of the responses."""
    start, eos = time.perf_counter(), TOKENIZER.token_to_id(EOS)
    prompts, lengths = encode(TOKENIZER, [p.prompt for p in problems], "cpu")
    _, mask, *_ = generate(ours.policy, prompts, lengths, GROUP, NEW_TOKENS, eos, 1.0, None)
    return time.perf_counter() - start, int(mask.sum())


def make_batches(count: int) -> list[list[Problem]]:
    """The problems of `count` steps, in the order of a run with seed 0."""
    problems = train.make_problems(TASK, train.TRAIN_SIZE, held=False)
    full = (b for b in train.batches(problems, PROMPTS, 0, set()) if len(b) == PROMPTS)
    return [next(full) for _ in range(count)]


# ---- TRL and transformers ----


class Logits(nn.Module):
    """A transformers model as train.warm_up expects one: tokens (B, L) -> logits (B, L, V)."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens).logits


def make_theirs(warm: bool = True) -> tuple:
    """(GPT-2 of the same size, transformers tokenizer), after the same warm-up as ours."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.set_verbosity_error()
    warnings.simplefilter("ignore", FutureWarning)
    special = {"eos_token": EOS, "pad_token": PAD, "padding_side": "left"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER, **special)
    size = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS, "vocab_size": len(tokenizer)}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False}
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    positions = {"n_positions": COLUMNS + NEW_TOKENS, "bos_token_id": None}
    torch.manual_seed(0)
    config = GPT2Config(**size, **off, **ids, **positions, activation_function="relu")
    model = GPT2LMHeadModel(config)
    if warm:
        train.warm_up(Logits(model), TOKENIZER, TASK, "cpu")
    return model, tokenizer


def their_rollout(model: nn.Module, tokenizer, problems: list[Problem]) -> tuple[float, int]:
    """transformers' generate as it comes, with its cache: seconds, tokens of the responses."""
    start = time.perf_counter()
    prompts = tokenizer([p.prompt for p in problems], return_tensors="pt", padding=True)
    size = {"max_new_tokens": NEW_TOKENS, "num_return_sequences": GROUP}
    with torch.no_grad():
        rows = model.generate(**prompts.to("cpu"), do_sample=True, top_k=0, top_p=1.0, **size)
    seconds = time.perf_counter() - start
    responses = rows[:, prompts["input_ids"].size(1) :]
    ended = (responses == tokenizer.eos_token_id).long()
    return seconds, int((ended.cumsum(1) - ended == 0).sum())


def trl_steps(model: nn.Module, tokenizer, batches: list[list[Problem]], between) -> tuple:
    """Steps of TRL's GRPOTrainer, `between(problems)` after each. Seconds, response lengths."""
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    seconds, lengths = [], []
    problems = {p.prompt: p for batch in batches for p in batch}

    def reward(prompts, completions, completion_ids, **_) -> list[float]:
        lengths.append(statistics.mean(map(len, completion_ids)))
        return [TASK.reward(problems[p], text) for p, text in zip(prompts, completions)]

    class Stopwatch(TrainerCallback):
        def on_step_begin(self, *_, **__):
            self.start = time.perf_counter()

        def on_step_end(self, args, state, *_, **__):
            seconds.append(time.perf_counter() - self.start)
            between(batches[state.global_step - 1])

    work = {"per_device_train_batch_size": PROMPTS * GROUP, "num_generations": GROUP}
    work |= {"max_completion_length": NEW_TOKENS, "gradient_accumulation_steps": 1}
    work |= {"num_iterations": 1, "beta": 0.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    plain = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none"}
    plain |= {"logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    plain |= {"learning_rate": 0.0, "max_steps": len(batches), "shuffle_dataset": False}
    data = Dataset.from_list([{"prompt": p.prompt} for batch in batches for p in batch])
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(output_dir=folder, **work, **plain)
        parts = {"args": config, "train_dataset": data, "processing_class": tokenizer}
        trainer = GRPOTrainer(model, reward, callbacks=[Stopwatch()], **parts)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return seconds, lengths


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---- what is measured ----


def peak_memory(theirs: bool, steps: int) -> tuple[float, float]:
    """MB of this process at its peak, and by how much that is above what it held before step 1."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    batches = make_batches(steps)
    if theirs:
        from trl import GRPOTrainer  # noqa: F401  (the library itself counts as held before)

        model, tokenizer = make_theirs(warm=False)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        trl_steps(model, tokenizer, batches, lambda problems: None)
    else:
        ours = make_ours("cpu", warm=False)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for problems in batches:
            step(ours, problems)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / unit, (peak - before) / unit


def measure_memory(pairs: int, compare: bool) -> list[dict]:
    """Each side in a process of its own, with untrained models.

    To be called first: a process counts what its parent held when it was started.
    """
    rows, settings = [], ("peak memory of a process", "of it, above what it held before")
    for name in tqdm(["this project"] + ["TRL"] * compare, desc="peak memory"):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            peaks = process.submit(peak_memory, name == "TRL", pairs).result()
        rows += [row(name, setting, [peak], "MB") for setting, peak in zip(settings, peaks)]
    if compare:
        for setting, a, b in zip(settings, rows[:2], rows[2:]):
            rows.append(row("ratio", setting, [b["median"] / a["median"]], "x"))
    return rows


def measure_steps(ours: Ours, theirs: tuple, pairs: int) -> list[dict]:
    """A grpo step here and in TRL, then sampling here and in transformers, in alternation."""
    batches, mine = make_batches(WARM + pairs), []
    with tqdm(total=len(batches), desc="steps, in turn with TRL") as bar:

        def between(problems: list[Problem]) -> None:
            mine.append(step(ours, problems))
            bar.update()

        seconds, lengths = trl_steps(*theirs, batches, between)
    a, b = [whole for _, whole, _ in mine[WARM:]], seconds[WARM:]
    length = [r.mask.sum(-1).float().mean().item() for _, _, r in mine[WARM:]]
    rows = [row("this project", "a grpo step", a, "s"), row("TRL", "a grpo step", b, "s")]
    rows.append(row("ratio", "a grpo step", ratios(b, a), "x"))
    rows.append(row("this project", "mean response length", length, "tokens"))
    rows.append(row("TRL", "mean response length", lengths[WARM:], "tokens"))
    a, b, responses = [], [], PROMPTS * GROUP
    theirs[0].eval()
    for problems in tqdm(batches, desc="sampling, in turn with transformers"):
        seconds, tokens = our_sampling(ours, problems)
        a.append(tokens / seconds)
        seconds, tokens = their_rollout(*theirs, problems)
        b.append(tokens / seconds)
        lengths.append(tokens / responses)
    a, b = a[WARM:], b[WARM:]
    rows.append(row("this project", "sampling", a, "tokens/s"))
    rows.append(row("transformers", "sampling", b, "tokens/s"))
    rows.append(row("ratio", "sampling", ratios(a, b), "x"))
    rows.append(row("transformers", "mean response length", lengths[-pairs:], "tokens"))
    return rows


def multiply_add_rate(device: str, repeats: int = 30) -> float:
    """Multiply-adds a second in the products of a block, with the best number of rows, at best."""
    best = 0.0
    for rows in (PROMPTS * GROUP, 1024, 2048, 6144):
        for a, b in ((WIDTH, 3 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)):
            x, w = torch.randn(rows, a, device=device), torch.randn(a, b, device=device)
            y = torch.empty(rows, b, device=device)
            for _ in range(repeats):
                start = clock(device)
                for _ in range(5):
                    torch.mm(x, w, out=y)
                best = max(best, 5 * rows * a * b / (clock(device) - start))
    return best


def measure_share(ours: Ours, pairs: int, device: str) -> list[dict]:
    """Seconds that a grpo step's multiply-adds alone would take, and their share of its seconds.

    A prompt counts once for its group, as it is read here; and, last, once for each response, as
    trainers read it that do not share it.
    """
    settings = ("sampling", "update", "a grpo step", "a grpo step, a prompt a response")
    rate, parts = multiply_add_rate(device), {setting: [] for setting in settings}
    size = (LAYERS, WIDTH, TOKENIZER.get_vocab_size())
    for problems in tqdm(make_batches(WARM + pairs), desc="share of the arithmetic limit"):
        sampling, whole, rollout = step(ours, problems)
        lengths = rollout.lengths.tolist(), rollout.mask.sum(-1).tolist()
        each = [n for n in lengths[0] for _ in range(GROUP)], [[n] for g in lengths[1] for n in g]
        limits = step_multiply_adds(*lengths, *size)
        limits = (*limits, sum(limits), sum(step_multiply_adds(*each, *size)))
        measured = (sampling, whole - sampling, whole, whole)
        for part, limit, seconds in zip(parts.values(), limits, measured, strict=True):
            part.append((limit / rate, seconds))
    rows = [row("measured", "matrix products", [2e-9 * rate], "GFLOP/s")]
    for setting, values in parts.items():
        limit, seconds = (list(column) for column in zip(*values[WARM:]))
        rows += [row("limit", setting, limit, "s"), row("measured", setting, seconds, "s")]
        rows.append(row("share", setting, [100 * r for r in ratios(limit, seconds)], "%"))
    return rows


def measure_variants(ours: Ours, pairs: int) -> list[dict]:
    """A step of each variant over the mean of the grpo steps before and after it: same rollout.

    The neighbours on both sides cancel a machine that is getting slower or faster.
    """
    others = [name for name in VARIANTS if name != "grpo"]
    seconds, shares = {name: [] for name in VARIANTS}, {name: [] for name in others}
    for i, problems in enumerate(tqdm(make_batches(1 + pairs), desc="cost of the variants")):
        before = step(ours, problems)[1]
        for name in others:
            seconds[name].append(step(ours, problems, variant=name)[1])
            after = step(ours, problems)[1]
            seconds["grpo"].append(after)
            shares[name].append(100 * seconds[name][-1] / ((before + after) / 2))
            before = after
    rows = [row("a step", "grpo", seconds["grpo"][len(others) :], "s")]
    for name in others:  # the first round is not counted
        rows.append(row("a step", name, seconds[name][1:], "s"))
        rows.append(row("share of a grpo step", name, shares[name][1:], "%"))
    return rows


def measure_growth(ours: Ours, device: str, repeats: int) -> list[dict]:
    """Seconds by group size, by level (response length) and by width (untrained models).

    The first line of each of the three is what the others are compared with, round by round.
    """
    some, levels = make_batches(1)[0], {}
    for p in train.make_problems(TASK, train.TRAIN_SIZE, held=False):
        levels.setdefault(p.level, []).append(p)
    wide = {width: make_ours(device, width, warm=False) for width in WIDTHS}
    families = [{f"group size {G}": (ours, some, G) for G in GROUPS}]
    families.append({f"level {n}": (ours, levels[n][:PROMPTS], GROUP) for n in LEVELS})
    families.append({f"width {width}": (wide[width], some, GROUP) for width in WIDTHS})
    rows = []
    for family in families:
        times = {setting: [] for setting in family}
        for _ in tqdm(range(1 + repeats), desc=f"growth from {next(iter(family))}"):
            for setting, arguments in family.items():
                times[setting].append(step(*arguments))
        first = [s for s, _, _ in next(iter(times.values()))[1:]]
        for setting, values in times.items():
            sampling, whole, rollouts = (list(column) for column in zip(*values[1:]))
            length = rollouts[0].mask.sum(-1).float().mean().item()
            rows.append(row("mean response length", setting, [length], "tokens"))
            rows.append(row("sampling", setting, sampling, "s"))
            rows.append(row("times the first", setting, ratios(sampling, first), "x"))
            rows.append(row("a step", setting, whole, "s"))
    return rows


# ---- what is written ----


def table(rows: list[dict]) -> str:
    """Rows as a markdown table: a line a setting, a column a name, median (min to max)."""
    names, settings = (list(dict.fromkeys(r[key] for r in rows)) for key in ("name", "setting"))
    cells = {}
    for r in rows:
        spread = f" ({r['min']:.3g} to {r['max']:.3g})" if r["pairs"] > 1 else ""
        cells[r["name"], r["setting"]] = f"{r['median']:.3g} {r['unit']}{spread}"
    lines = [["", *names], ["---"] * (1 + len(names))]
    lines += [[setting, *(cells.get((n, setting), "") for n in names)] for setting in settings]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw(rows: list[dict], path: Path) -> None:
    """Growth of a step with group size and width, the cost of the variants, and TRL beside us."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(12, 3.6))
    find = {(r["name"], r["setting"]): r["median"] for r in rows}
    ours = "this project" if ("this project", "a grpo step") in find else "measured"
    names = [name for name in ("limit", ours, "TRL") if (name, "a grpo step") in find]
    axes[0].barh(names, [find[name, "a grpo step"] for name in names])
    axes[0].set_yticks(names, ["arithmetic alone", "this project", "TRL"][: len(names)])
    axes[0].set(title="a grpo step", xlabel="seconds")
    for name in ("sampling", "a step"):
        seconds = [find[name, f"group size {G}"] for G in GROUPS]
        axes[1].loglog(GROUPS, seconds, "o-", base=2, label=name)
        linear = [seconds[0] * G / GROUPS[0] for G in GROUPS]
        axes[1].loglog(GROUPS, linear, "k:", base=2, lw=0.8)
    axes[1].set(title="time and group size (dotted: linear)", xlabel="group size", ylabel="seconds")
    axes[1].legend()
    shares = {s: m for (n, s), m in find.items() if n == "share of a grpo step"}
    axes[2].barh(list(shares), [m - 100 for m in shares.values()])
    axes[2].set(title="a variant's step, above grpo's", xlabel="% of a grpo step")
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.speed")
    parser.add_argument("--out", default="runs/speed", help="folder of speed.csv")
    parser.add_argument("--pairs", type=int, default=20, help="of measurements, at least 5")
    parser.add_argument("--quick", action="store_true", help="a smoke test: the numbers are noise")
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    parser.add_argument("--device", choices=devices, default="cpu", help="cuda: this project only")
    args = parser.parse_args(argv)
    out, pairs = Path(args.out), 2 if args.quick else max(args.pairs, 5)
    out.mkdir(parents=True, exist_ok=True)
    train.WARMUP_STEPS[TASK.name] //= 10 if args.quick else 1
    compare = args.device == "cpu" and None not in (version("trl"), version("transformers"))
    print(f"torch {torch.__version__}, {args.device}, {torch.get_num_threads()} threads")
    if compare:
        print(f"TRL {version('trl')}, transformers {version('transformers')}")
    else:
        print("TRL and transformers are left out: not installed, or not for this device.")
    versus = measure_memory(pairs, compare) if args.device == "cpu" else []
    ours = make_ours(args.device)
    versus += measure_steps(ours, make_theirs(), pairs) if compare else []
    tables = [versus, measure_share(ours, pairs, args.device), measure_variants(ours, pairs)]
    tables.append(measure_growth(ours, args.device, max(2, pairs // 4)))
    if args.device == "cuda":
        peak = torch.cuda.max_memory_allocated() / 2**20
        tables[0].append(row("this project", "peak memory of the GPU", [peak], "MB"))
    print("\n\n".join(table(rows) for rows in tables if rows))
    rows = [r for rows in tables for r in rows]
    with open(out / "speed.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    draw(rows, out / "speed.png" if args.quick else Path("docs/speed.png"))
    return 0


if __name__ == "__main__":
    import matplotlib  # noqa: F401  (if it is missing, say so now, not after all the work)

    sys.exit(main(sys.argv[1:]))
