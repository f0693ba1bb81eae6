"""Trains a small GPT on arithmetic by reinforcement learning: python train.py --variant nthr

    base model -> each step: problems -> rollout -> advantages -> update -> metrics -> report

The base model is warmed up by supervised learning, until it is right now and then. It is made once
and kept in the output folder, so that every variant and every seed starts from the same weights.
"""

import argparse
import copy
import csv
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from advantages import LOSS, VARIANTS, critic_loss, grpo, solved
from grpo import Rollout, answer_likelihood, descend, encode, entropy, likelihood_change
from grpo import sample_rollout, token_bias, update
from model import GPT, GPTConfig
from tasks import EOS, PAD, TASKS, Problem, Task, build_tokenizer, held_out

# Problems, see make_problems. They and the base model are the same whatever a run's --seed.
TRAIN_SIZE, EVAL_SIZE, DATA_SEED = 4480, 700, 0
EVALUATE_EVERY, LR_RISE = 20, 10  # steps; the learning rate rises for 10, then falls towards 0
WARMUP_STEPS = {"sum": 1000, "add": 600, "mul": 500}  # of supervised learning
# The rate does not fall: the base model stays unsettled, which leaves more to be gained afterwards.
# A level comes 0.85 times as often as the one below it.
WARMUP_BATCH, WARMUP_LR, WARMUP_EASE = 64, 2e-3, 0.85
COLUMNS = """step reward all_fail all_pass loss grad_norm clip_fraction approx_kl entropy length
    coherence seconds accuracy likelihood_change mean_abs_advantage mean_abs_bias prompts_left"""
NUMBERS = {  # flag: default, smallest, largest, help
    "steps": (450, 0, 10**9, "rollouts to learn from"),
    "seed": (0, 0, 2**63 - 1, "of the order of the problems and of sampling"),
    "prompts": (64, 1, 10**6, "prompts in a rollout"),
    "group-size": (8, 2, 10**6, "responses to each prompt"),
    "lr": (4e-4, sys.float_info.min, sys.float_info.max, "learning rate: rises, then falls to 0"),
    "kl": (0.0, 0.0, sys.float_info.max, "weight of the KL term"),
    "layers": (3, 1, 24, "blocks of the GPT"),
    "width": (64, 4, 2048, "width of the GPT, a multiple of its 4 heads"),
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise ValueError(message)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The command line as settings. ValueError, naming what is valid, for all else."""
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    parser = Parser(prog="train.py", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--variant", choices=VARIANTS, default="grpo", help="how advantages are computed")
    add("--task", choices=TASKS, default="sum", help="the arithmetic to learn")
    for name, (default, low, high, text) in NUMBERS.items():
        add(f"--{name}", type=type(default), default=default, help=f"{text}, {low:g} to {high:g}")
    add("--device", choices=devices, default=devices[-1], help="where to compute")
    add("--out", default="runs", help="folder of all runs and base models")
    args = parser.parse_args(argv)
    for name, (_, low, high, text) in NUMBERS.items():
        value = getattr(args, name.replace("-", "_"))
        if not low <= value <= high or name == "width" and value % GPTConfig.heads:
            parser.error(f"argument --{name}: {value} is not valid, {low:g} to {high:g} ({text})")
    return args


def save(path: Path, write) -> None:
    """Lets write(part) make a file, then moves it to path: it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    write(part)
    part.replace(path)


def make_problems(task: Task, size: int, held: bool) -> list[Problem]:
    """About `size` distinct problems, all held out or none of them; the same ones in every run.

    Held out: as many of each level. For training: of level after level 1, 2, 3, ... parts, since
    the harder ones need more practice. A level that has fewer problems gives what it has.
    """
    rng, problems, n = np.random.default_rng(DATA_SEED), [], len(task.levels)
    for i, level in enumerate(task.levels, 1):
        count = size // n if held else size * i * 2 // (n * (n + 1))
        tries = (task.problem(rng, level) for _ in range(20 * count))
        distinct = {p.prompt: p for p in tries if held_out(p.prompt) == held}
        problems += list(distinct.values())[:count]
    return problems


def batches(problems: list[Problem], size: int, seed: int, culled: set[str]):
    """Yields `size` problems at a time (fewer at an epoch's end), each epoch in a new order.

    Prompts that are in `culled` when an epoch begins are left out. Ends when no problem is left.
    """
    rng = np.random.default_rng(seed)
    while left := [p for p in problems if p.prompt not in culled]:
        order = rng.permutation(len(left))
        for start in range(0, len(left), size):
            yield [left[i] for i in order[start : start + size]]


def warm_up(model: GPT, tokenizer, task: Task, device: str) -> None:
    """Supervised learning in place: cross-entropy of the solution's tokens and end-of-sequence.

    On one thread: so many large steps amplify rounding, which depends on the number of threads.
    """
    threads, _ = torch.get_num_threads(), torch.set_num_threads(1)
    rng, share = np.random.default_rng(DATA_SEED), WARMUP_EASE ** np.arange(len(task.levels))
    optimizer = torch.optim.AdamW(model.parameters(), lr=WARMUP_LR, weight_decay=0.0)
    for _ in tqdm(range(WARMUP_STEPS[task.name]), desc="supervised warm-up of the base model"):
        levels = rng.choice(task.levels, WARMUP_BATCH, p=share / share.sum())
        # Of each level drawn, a problem p, unless it is held out.
        problems = [p for n in levels if not held_out((p := task.problem(rng, n)).prompt)]
        rows, ends = encode(tokenizer, [p.prompt + p.solution + EOS for p in problems], device)
        starts = torch.tensor([len(p.prompt) for p in problems], device=device)
        columns = torch.arange(1, rows.size(1), device=device)
        learnt = (columns >= starts[:, None]) & (columns < ends[:, None])  # (B, L - 1)
        logits = model(rows[:, :-1])  # (B, L - 1, V)
        descend(optimizer, torch.nn.functional.cross_entropy(logits[learnt], rows[:, 1:][learnt]))
    torch.set_num_threads(threads)


def load_base(model: GPT, settings: dict, path: Path) -> None:
    """Fills the model with the kept weights; ValueError if they are damaged or of another model."""
    try:
        made_with, weights = torch.load(path, map_location="cpu", weights_only=True)
        if made_with != settings or not all(w.isfinite().all() for w in weights.values()):
            raise ValueError(f"made with {made_with}, or not finite")
        model.load_state_dict(weights)
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(f"{path} is no base model with {settings}; move it away ({error!r:.200})")


def evaluate(model: GPT, tokenizer, task: Task, problems, samples=1, **sampling):
    """Accuracy, all levels weighted alike; by level, e.g. {2: 0.9, 3: 0.4}; and the responses."""
    rollout = sample_rollout(model, tokenizer, task, problems, samples, **sampling)
    levels, correct = np.array([p.level for p in problems]), rollout.rewards.mean(1).cpu().numpy()
    by_level = {level: float(correct[levels == level].mean()) for level in task.levels}
    return float(np.mean(list(by_level.values()))), by_level, rollout


def rollout_metrics(rollout: Rollout, task: Task) -> dict[str, float]:
    r, pairs = rollout.rewards, zip(rollout.problems, rollout.texts)
    coherent = torch.tensor([task.coherent(p, text) for p, texts in pairs for text in texts])
    values = {"reward": r, "all_fail": (r == 0).all(1), "all_pass": (r == 1).all(1)}
    values |= {"entropy": entropy(rollout), "length": rollout.mask.sum(-1), "coherence": coherent}
    return {name: value.float().mean().item() for name, value in values.items()}


def train(args, model: GPT, tokenizer, held: list[Problem], file, rows: list[dict]) -> tuple:
    """The loop over steps, a row of metrics each. Returns the last rollout and its advantages."""
    task, variant, rollout, advantages = TASKS[args.task], args.variant, None, None
    problems, culled = make_problems(task, TRAIN_SIZE, held=False), set()
    rng = torch.Generator(args.device).manual_seed(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)  # lr: set at each step
    options = {"kl": args.kl, "max_length": len(task.longest.solution) + 1, **LOSS.get(variant, {})}
    options["reference"] = copy.deepcopy(model).requires_grad_(False) if args.kl else None
    if variant == "critic":
        critic = GPT(GPTConfig(**{**vars(model.config), "outputs": 1})).to(args.device)
        critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=args.lr, weight_decay=0.0)
    writer = csv.DictWriter(file, COLUMNS.split())
    writer.writeheader()
    bar = tqdm(range(1, args.steps + 1), desc=f"{variant} on {task.name}")
    for step, batch in zip(bar, batches(problems, args.prompts, args.seed, culled)):
        started = time.perf_counter()
        optimizer.param_groups[0]["lr"] = args.lr * min(step / LR_RISE, 1 - (step - 1) / args.steps)
        rollout = sample_rollout(model, tokenizer, task, batch, args.group_size, generator=rng)
        row = {"step": step, **rollout_metrics(rollout, task)}
        if variant == "likelihood":
            rollout.answer_likelihood = answer_likelihood(model, rollout)
        if variant == "culling":
            # In place: batches() holds the same set.
            culled |= {p.prompt for p, done in zip(batch, solved(rollout)) if done}
            row["prompts_left"] = len(problems) - len(culled)
        if variant == "critic":
            bias = token_bias(critic, rollout)
            rollout.token_bias = bias.detach()
            row["mean_abs_bias"] = rollout.token_bias[rollout.mask].abs().mean().item()
            descend(critic_optimizer, critic_loss(bias, grpo(rollout), rollout.mask))
        advantages = VARIANTS[variant](rollout)
        row["mean_abs_advantage"] = advantages[rollout.mask].abs().mean().item()
        row |= update(model, optimizer, rollout, advantages, **options)
        row["seconds"] = time.perf_counter() - started
        if step % EVALUATE_EVERY == 0 or step == args.steps:
            row["accuracy"] = evaluate(model, tokenizer, task, held, temperature=0)[0]
            row["likelihood_change"] = likelihood_change(model, rollout)
            bar.set_description(f"{variant} on {task.name}, accuracy {row['accuracy']:.1%}")
        bar.set_postfix({name: f"{row[name]:.2f}" for name in ("reward", "all_fail", "entropy")})
        writer.writerow(row)
        file.flush()
        rows.append(row)
    return rollout, advantages


def coloured(text: str, A: list[float]) -> str:
    """The text, each character on green if its advantage is positive, on red if negative.

    The colour is full from an advantage of 2 on.
    """
    pale = [round(255 - 155 * min(abs(a) / 2, 1)) for a in A]
    colours = [f"{p};255;{p}" if a > 0 else f"255;{p};{p}" for p, a in zip(pale, A)]
    return "".join(f"\x1b[30;48;2;{c}m{t}" for c, t in zip(colours, text)) + "\x1b[0m"


def report(rollout: Rollout | None, advantages, greedy: Rollout) -> None:
    """Prints a group of the last step, its tokens coloured by advantage, and some mistakes."""
    if rollout is not None:
        i = int((rollout.rewards.mean(1) - 0.5).abs().argmin())  # the most mixed group
        print(f"\nThe last step's responses to {rollout.problems[i].prompt} ($ ends a response):")
        for j, text in enumerate(rollout.texts[i]):
            A = advantages[i, j][rollout.mask[i, j]].tolist()
            text = (text.replace(PAD, "_") + "$")[: len(A)]
            text = coloured(text, A) if sys.stdout.isatty() else text
            print(f"  {rollout.rewards[i, j]:.0f}  {min(A):+.2f} to {max(A):+.2f}  {text}")
    print("\nMistakes on held-out problems:")
    wrong = [(p, y) for p, (y,), r in zip(greedy.problems, greedy.texts, greedy.rewards) if not r]
    for p, text in wrong[:: len(wrong) // 5 + 1]:
        print(f"  {p.prompt}{text}  where {p.solution} is right")


def run(args, model: GPT, tokenizer, settings: dict, base: Path, folder: Path, rows: list) -> None:
    """One run, from the base model to its files; adds each step's metrics to rows."""
    task, started = TASKS[args.task], time.perf_counter()
    print(f"{args.variant}: {args.steps} steps of {args.prompts} x {args.group_size} responses.")
    print("2 to 3 minutes by default, on two cores, and 40 seconds more for a new base model.")
    if not base.exists():
        warm_up(model, tokenizer, task, args.device)
        save(base, lambda part: torch.save((settings, model.state_dict()), part))
    for name in ("summary.json", "config.json", "metrics.csv", "model.pt", "tokenizer.json"):
        (folder / name).unlink(missing_ok=True)
    save(folder / "config.json", lambda part: part.write_text(json.dumps(vars(args) | settings)))
    summary = {"variant": args.variant, "task": args.task, "seed": args.seed}
    held = make_problems(task, EVAL_SIZE, held=True)

    def measure(when: str) -> Rollout:
        rng = torch.Generator(args.device).manual_seed(DATA_SEED)
        sampled, _, _ = evaluate(model, tokenizer, task, held, samples=4, generator=rng)
        mean, each, greedy = evaluate(model, tokenizer, task, held, temperature=0)
        summary.update({f"{when}_accuracy": mean, f"{when}_sampled": sampled})
        summary[f"{when}_accuracy_by_level"] = each
        print(f"{when} accuracy {mean:.1%}; levels", *(f"{k}: {a:.0%}" for k, a in each.items()))
        return greedy

    measure("base")
    with open(folder / "metrics.csv", "w", newline="") as file:
        rollout, advantages = train(args, model, tokenizer, held, file, rows)
    save(folder / "model.pt", lambda part: torch.save(model.state_dict(), part))
    save(folder / "tokenizer.json", lambda part: tokenizer.save(str(part)))
    report(rollout, advantages, measure("final"))
    summary |= {"steps": len(rows), "seconds": time.perf_counter() - started}
    summary["seconds_per_step"] = float(np.median([r["seconds"] for r in rows])) if rows else None
    save(folder / "summary.json", lambda part: part.write_text(json.dumps(summary, indent=2)))
    change = f"{summary['base_accuracy']:.1%} to {summary['final_accuracy']:.1%}"
    why = " (no prompt is left: all were solved)" if len(rows) < args.steps else ""
    print(f"\nGreedy accuracy on held-out problems went from {change} in {len(rows)} steps{why}.")
    print(f"Look next at reward, all_fail and entropy in {folder}/metrics.csv.")


def main(argv: list[str]) -> int:
    """Runs a command line; returns the exit status: 0, 1 (stopped), 2 (bad input), 130 (Ctrl-C)."""
    try:
        args = parse_arguments(argv)
        tokenizer, task, rows = build_tokenizer(), TASKS[args.task], []
        torch.manual_seed(DATA_SEED)
        columns = len(task.longest.prompt) + 2 * (len(task.longest.solution) + 1)
        config = GPTConfig(tokenizer.get_vocab_size(), columns, args.layers, args.width)
        model, settings = GPT(config), {"task": args.task, "warmup_steps": WARMUP_STEPS[args.task]}
        base = Path(args.out) / f"base-{args.task}-{args.layers}x{args.width}.pt"
        folder = Path(args.out) / f"{args.task}-{args.variant}-seed{args.seed}"
        if base.exists():
            load_base(model, settings, base)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.csv").open("a").close()  # can files be written there?
    except (ValueError, OSError, RuntimeError) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    try:
        run(args, model.to(args.device), tokenizer, settings, base, folder, rows)
    except (KeyboardInterrupt, FloatingPointError, RuntimeError, OSError) as error:
        print(f"\nStopped at step {len(rows) + 1} of {folder} by {error!r}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
