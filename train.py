"""Trains a small GPT on arithmetic by reinforcement learning: python train.py --variant nthr

    base model -> each step: problems -> rollout -> advantages -> update -> metrics -> report

The base model is warmed up by supervised learning, until it is correct now and then. It is made
once and kept in the output folder, so that every variant and every seed starts from the same
weights.
"""

import copy
import csv
import json
import sys
import time
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from advantages import LOSS, VARIANTS, critic_loss, grpo, solved
from grpo import Rollout, answer_likelihood, descend, encode, likelihood_change
from grpo import sample_rollout, token_bias, update
from model import GPT, GPTConfig
from tasks import EOS, PAD, TASKS, Problem, Task, build_tokenizer, held_out

TOKENIZER = build_tokenizer()
TRAIN_SIZE = 4480  # problems; the same in every run
HELD_OUT_SIZE = 700
WARMUP_STEPS = {"sum": 350, "add": 600, "mul": 250, "wall": 1000}  # of supervised learning
COLUMNS = """step reward all_fail all_pass loss grad_norm clip_fraction approx_kl entropy length
coherence seconds accuracy likelihood_change accuracy_by_level mean_abs_advantage mean_abs_bias"""
NUMBERS = {  # setting: default, smallest, largest, help
    "steps": (400, 0, 10**9, "rollouts to learn from"),
    "seed": (0, 0, 2**63 - 1, "of the order of the problems and of sampling"),
    "base_seed": (0, 0, 2**63 - 1, "of the base model: first weights and warm-up"),
    "prompts": (64, 1, 10**6, "prompts in a rollout"),
    "group_size": (8, 2, 10**6, "responses to each prompt"),
    "minibatches": (4, 1, 10**6, "optimiser steps on a rollout"),
    "lr": (4e-4, sys.float_info.min, sys.float_info.max, "learning rate: rises, then falls to 0"),
    "kl": (0.0, 0.0, sys.float_info.max, "weight of the KL term"),
    "layers": (3, 1, 24, "blocks of the GPT"),
    "width": (64, 4, 2048, "width of the GPT, a multiple of its 4 heads"),
    "threads": (1, 1, 1024, "threads of the processor"),
}


def parse_arguments(argv: list[str]) -> Namespace:
    """The command line as settings. SystemExit(2) after a line on standard error if it is bad."""
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    # Without the usage an error is one line.
    cli = ArgumentParser("train.py", SUPPRESS, formatter_class=ArgumentDefaultsHelpFormatter)
    cli.add_argument("--variant", choices=VARIANTS, default="grpo", help="the advantages")
    cli.add_argument("--task", choices=TASKS, default="sum", help="the arithmetic to learn")
    for name, (value, _, _, text) in NUMBERS.items():
        cli.add_argument("--" + name.replace("_", "-"), type=type(value), default=value, help=text)
    cli.add_argument("--device", choices=devices, default=devices[-1], help="where to compute")
    cli.add_argument("--out", default="runs", help="folder of all runs and base models")
    args = cli.parse_args(argv)
    for name, (_, low, high, text) in NUMBERS.items():
        if not low <= getattr(args, name) <= high or (name == "width" and args.width % 4):
            cli.error(f"argument {name}: must be from {low:g} to {high:g} ({text})")
    return args


def make_problems(task: Task, held: bool) -> list[Problem]:
    """Held-out problems, or those for training: as many of each level, the same in every run.

    Held-out ones are distinct. In training a level that has too few repeats them.
    """
    rng = np.random.default_rng(0)
    count = (HELD_OUT_SIZE if held else TRAIN_SIZE) // len(task.levels)
    problems = []
    for level in task.levels:
        tries = [task.problem(rng, level) for _ in range(20 * count)]
        distinct = {p.prompt: p for p in tries if held_out(p.prompt) == held}
        problems += (list(distinct.values()) * (1 if held else count))[:count]
    return problems


def new_model(args, outputs: int | None = None) -> GPT:
    """A GPT with random weights, of which --base-seed decides."""
    longest = TASKS[args.task].longest
    # A prompt, a response of full length and, for `likelihood`, a marker, an answer and EOS.
    columns = len(longest.prompt) + len(longest.solution) + 1 + len(longest.answer) + 2
    torch.manual_seed(args.base_seed)
    config = GPTConfig(len(TOKENIZER.get_vocab()), columns, args.layers, args.width, 4, outputs)
    return GPT(config).to(args.device)


def warm_up(model: GPT, task: Task, steps: int, seed: int, settle: int = 0) -> None:
    """Supervised learning in place: cross-entropy of the solution's tokens and end-of-sequence.

    The learning rate falls to 0 over the last `settle` steps; by default it does not fall.
    """
    rng = np.random.default_rng(seed)
    share = 0.85 ** np.arange(len(task.shown))  # a level comes 0.85 times as often as the one below
    start = len(task.longest.prompt)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    for step in tqdm(range(steps), desc="supervised warm-up of the base model"):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1, (steps - step) / (settle + 1))
        problems = [task.problem(rng, n) for n in rng.choice(task.shown, 64, p=share / share.sum())]
        texts = [p.prompt + p.solution + EOS for p in problems if not held_out(p.prompt)]
        rows = encode(TOKENIZER, texts, next(model.parameters()).device)  # (B, L)
        logits = model(rows[:, :-1])[:, start - 1 :].transpose(1, 2)  # (B, V, L - start)
        pad = TOKENIZER.token_to_id(PAD)
        loss = torch.nn.functional.cross_entropy(logits, rows[:, start:], ignore_index=pad)
        descend(optimizer, loss)


def save(path: Path, write) -> None:
    """Lets write(part) make a file, then moves it to path: it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    write(part)
    part.replace(path)


def base_path(args) -> Path:
    """Where a base model is kept; the name says all that decides about it."""
    made = f"{args.task}-{args.layers}x{args.width}-{WARMUP_STEPS[args.task]}steps"
    return Path(args.out) / f"base-{made}-seed{args.base_seed}.pt"


def load_base(path: Path, model: GPT) -> None:
    """Fills the model with the kept weights; ValueError if they are damaged or of another model."""
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)[path.name]
        # A weight that is not finite counts as missing.
        model.load_state_dict({name: w for name, w in weights.items() if w.isfinite().all()})
    except Exception:  # a damaged file can raise nearly anything
        raise ValueError(f"{path} is damaged, or no base model for these settings; move it away")


def train_critic(critic: GPT, optimizer, rollout: Rollout) -> torch.Tensor:
    """The critic's token bias (P, G, T), without gradient; then one step on the critic's loss."""
    bias = token_bias(critic, rollout)
    descend(optimizer, critic_loss(bias, grpo(rollout), rollout.mask))
    return bias.detach()


def cull(problems: list[Problem], rollout: Rollout) -> list[Problem]:
    """The problems without those that this rollout solved; as they are if none would be left."""
    gone = {problem.prompt for problem, done in zip(rollout.problems, solved(rollout)) if done}
    return [problem for problem in problems if problem.prompt not in gone] or problems


def train(args, model: GPT, held: list[Problem], evaluate_every: int = 20, lr_rise: int = 10):
    """The loop over steps. Yields after each: step, rollout, advantages (P, G, T), metrics.

    Each epoch has a new order; its last batch may be smaller.
    """
    task = TASKS[args.task]
    problems = make_problems(task, held=False)
    problems += [p for p in problems if p.level not in task.shown]  # these come twice an epoch
    rng = torch.Generator(args.device).manual_seed(args.seed)
    order = np.random.default_rng(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0)
    options = {"minibatches": args.minibatches, "kl": args.kl} | LOSS.get(args.variant, {})
    options |= {"reference": copy.deepcopy(model), "max_length": len(task.longest.solution) + 1}
    critic = new_model(args, outputs=1)  # used by `critic` alone
    critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=args.lr, weight_decay=0.0)
    epoch = []
    for step in range(1, args.steps + 1):
        if not epoch:
            epoch = [problems[i] for i in order.permutation(len(problems))]
        batch = epoch[: args.prompts]
        epoch = epoch[args.prompts :]
        optimizer.param_groups[0]["lr"] = args.lr * min(step / lr_rise, 1 - (step - 1) / args.steps)
        started = time.perf_counter()
        rollout = sample_rollout(model, TOKENIZER, task, batch, args.group_size, generator=rng)
        row = {"step": step} | rollout_metrics(rollout, task)
        if args.variant == "likelihood":
            rollout.answer_likelihood = answer_likelihood(model, rollout)
        if args.variant == "critic":
            rollout.token_bias = train_critic(critic, critic_optimizer, rollout)
            row["mean_abs_bias"] = rollout.token_bias[rollout.mask].abs().mean().item()
        if args.variant == "culling":
            problems = cull(problems, rollout)
        advantages = VARIANTS[args.variant](rollout)
        losses = update(model, optimizer, rollout, advantages, **options)
        row |= losses | {"seconds": time.perf_counter() - started}
        row["mean_abs_advantage"] = advantages[rollout.mask].abs().mean().item()
        if step % evaluate_every == 0 or step == args.steps:
            row |= accuracy(model, task, held, "accuracy", temperature=0)
            row["accuracy_by_level"] = " ".join(map(str, row["accuracy_by_level"].values()))
            row["likelihood_change"] = likelihood_change(model, rollout)
        yield step, rollout, advantages, row


def rollout_metrics(rollout: Rollout, task: Task) -> dict[str, float]:
    r = rollout.rewards
    coherent = [task.coherent(p, y) for p, ys in zip(rollout.problems, rollout.texts) for y in ys]
    values = {"reward": r, "all_fail": (r == 0).all(1), "all_pass": (r == 1).all(1)}
    values |= {"length": rollout.mask.sum(-1), "coherence": torch.tensor(coherent)}
    values["entropy"] = torch.special.entr(rollout.probs).sum(-1)[rollout.mask]  # nats
    return {name: value.float().mean().item() for name, value in values.items()}


def accuracy(model: GPT, task: Task, problems: list, name: str, samples=1, **sampling) -> dict:
    """{name: the mean over levels, name_by_level: {2: 0.9, 3: 0.4, ...}}, shares of correct."""
    rng = torch.Generator(next(model.parameters()).device).manual_seed(0)
    rollout = sample_rollout(model, TOKENIZER, task, problems, samples, generator=rng, **sampling)
    levels = torch.tensor([problem.level for problem in problems])
    by_level = {n: round(rollout.rewards[levels == n].mean().item(), 4) for n in task.levels}
    return {name: sum(by_level.values()) / len(by_level), f"{name}_by_level": by_level}


def coloured(token: str, advantage: float) -> str:
    """The token on green if its advantage is positive, on red if negative; full from 2 on."""
    pale = round(255 - 155 * min(abs(advantage) / 2, 1))
    colour = f"{pale};255;{pale}" if advantage > 0 else f"255;{pale};{pale}"
    return f"\x1b[30;48;2;{colour}m{token}\x1b[0m"


def report(rollout: Rollout, advantages: torch.Tensor, greedy: Rollout) -> None:
    """Prints the last step's most mixed group, coloured on a terminal, and some mistakes."""
    i = int((rollout.rewards.mean(1) - 0.5).abs().argmin())
    print(f"\nLast responses to {rollout.problems[i].prompt.strip()} ($ ends a response):")
    for text, reward, A in zip(rollout.texts[i], rollout.rewards[i], advantages[i].tolist()):
        tokens = (text.replace(PAD, "_") + "$")[: len(A)]
        cells = map(coloured, tokens, A) if sys.stdout.isatty() else tokens
        print(f"  reward {reward:.0f}, first advantage {A[0]:+.2f}: ", *cells, sep="")
    print("\nMistakes on held-out problems:")
    missed = [(p, y) for p, (y,), r in zip(greedy.problems, greedy.texts, greedy.rewards) if not r]
    for p, y in missed[:: len(missed) // 5 + 1]:
        print(f"  {p.prompt.strip()}{y}  correct: {p.solution}")


def run(args, model: GPT, folder: Path, rows: list[dict]) -> None:
    """One run, from the base model to its files; adds each step's metrics to rows."""
    started = time.perf_counter()
    task = TASKS[args.task]
    held = make_problems(task, held=True)
    if not base_path(args).exists():
        warm_up(model, task, WARMUP_STEPS[args.task], args.base_seed)
        # The file holds its own name (part.stem is it), so that a renamed one is noticed.
        save(base_path(args), lambda part: torch.save({part.stem: model.state_dict()}, part))
    torch.set_num_threads(args.threads)
    summary = {"variant": args.variant, "task": args.task, "seed": args.seed}
    summary |= accuracy(model, task, held, "base_accuracy", temperature=0)
    summary |= accuracy(model, task, held, "base_sampled", samples=4)
    with open(folder / "metrics.csv", "w", newline="", buffering=1) as file:  # line by line
        writer = csv.DictWriter(file, COLUMNS.split())
        writer.writeheader()
        bar = tqdm(train(args, model, held), f"{args.variant} on {args.task}", args.steps)
        for _, rollout, advantages, row in bar:
            rows.append(row)
            writer.writerow(row)
            bar.set_postfix(reward=row["reward"], all_fail=row["all_fail"], entropy=row["entropy"])
    save(folder / "model.pt", lambda part: torch.save(model.state_dict(), part))
    save(folder / "tokenizer.json", lambda part: TOKENIZER.save(str(part)))
    if rows:
        report(rollout, advantages, sample_rollout(model, TOKENIZER, task, held, 1, temperature=0))
    summary |= accuracy(model, task, held, "final_accuracy", temperature=0)
    summary |= accuracy(model, task, held, "final_sampled", samples=4)
    summary |= {"steps": len(rows), "seconds": time.perf_counter() - started}
    summary["seconds_per_step"] = float(np.median([row["seconds"] for row in rows] or [0]))
    save(folder / "summary.json", lambda part: part.write_text(json.dumps(summary, indent=2)))
    print(f"\nBefore: {summary['base_accuracy']:.1%}, by level", summary["base_accuracy_by_level"])
    print(f"After: {summary['final_accuracy']:.1%}, by level", summary["final_accuracy_by_level"])
    print(f"Look next at reward, all_fail and entropy in {folder}/metrics.csv.")


def main(argv: list[str]) -> int:
    """Runs a command line; returns the exit status: 0, 1 (stopped), 2 (bad input), 130 (Ctrl-C)."""
    torch.set_num_threads(1)  # the warm-up's: rounding depends on the number of threads
    rows = []
    try:
        args = parse_arguments(argv)
        model = new_model(args)
        if base_path(args).exists():
            load_base(base_path(args), model)
        folder = Path(args.out) / f"{args.task}-{args.variant}-seed{args.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / "config.json", lambda part: part.write_text(json.dumps(vars(args), indent=2)))
        (folder / "summary.json").unlink(missing_ok=True)
    except SystemExit as stop:  # argparse has said why
        return stop.code
    except (ValueError, OSError) as error:
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2
    try:
        run(args, model, folder, rows)
    except (KeyboardInterrupt, FloatingPointError) as error:
        print(f"\nStopped at step {len(rows) + 1} of {folder} by {error!r}", file=sys.stderr)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
