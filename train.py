"""Trains a small GPT on arithmetic by reinforcement learning: python train.py --variant nthr

    base model -> each step: problems -> rollout -> advantages -> update -> metrics -> report

The loop comes first; the numbers beside its lines are those of the README's algorithm. What stands
around it follows: what three variants need, problems, the base model, measuring, files, the report,
the command line.
"""

import csv
import json
import sys
import time
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from itertools import islice
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
EVAL_SIZE = 560  # held-out problems
# The share of correct samples at which the warm-up ends, so low that most is left to learn from
# rewards; and how much more often it shows a level than the one below.
WARM_UP = {"add": (0.13, 1.5), "mul": (0.1, 1.0), "sum": (0.4, 0.8)}


def train(args, model: GPT, evaluate_every: int = 25, rise: int = 10):
    """The loop over steps. Yields after each: rollout, advantages (P, G, T), metrics.

    Each epoch has a new order; its last batch may be smaller. The learning rate is args.lr times
    the smaller of two lines: one rises to 1 in `rise` steps, one falls from 1 to 0 over the run.
    """
    task = TASKS[args.task]
    problems = make_problems(task, held=False)
    eval_problems = make_problems(task, held=True)
    order = np.random.default_rng(args.seed)
    rng = torch.Generator(args.device).manual_seed(args.seed)
    draw = {"temperature": args.temperature, "generator": rng}
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    options = {name: getattr(args, name) for name in UPDATE_FLAGS}
    options["max_length"] = len(task.longest.solution) + 1
    options["reference"] = base_model(args) if args.kl else None
    critic = new_critic(args) if args.variant == "critic" else None
    epoch = []
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        epoch = epoch or [problems[i] for i in order.permutation(len(problems))]
        batch = epoch[: args.prompts]  # 1
        epoch = epoch[args.prompts :]
        rollout = sample_rollout(model, TOKENIZER, task, batch, args.group_size, **draw)  # 2, 3
        problems = prepare(args.variant, rollout, model, critic, problems)  # culling drops some
        advantages = VARIANTS[args.variant](rollout)  # 4
        optimizer.param_groups[0]["lr"] = args.lr * min(step / rise, 1 - (step - 1) / args.steps)
        losses = update(model, optimizer, rollout, advantages, **options)  # 5 to 7
        row = {"step": step} | rollout_metrics(rollout, advantages, task) | losses  # 8
        row["seconds"] = time.perf_counter() - started
        if step % evaluate_every == 0 or step == args.steps:
            row |= evaluate(model, task, eval_problems, "accuracy", "accuracy_sampled")
            row["likelihood_change"] = likelihood_change(model, rollout)
        yield rollout, advantages, row


def new_critic(args) -> tuple[GPT, torch.optim.Optimizer]:
    critic = new_model(args, outputs=1)
    return critic, torch.optim.AdamW(critic.parameters(), lr=args.lr, weight_decay=0.0)


def prepare(variant: str, rollout: Rollout, model: GPT, critic, problems: list) -> list[Problem]:
    """What three variants need beside their function. Returns the problems of the next epoch.

    likelihood: rollout.answer_likelihood. critic, a network and its optimizer: rollout.token_bias,
    then one step on the critic's loss. culling: solved problems leave; if none would be left, all
    stay.
    """
    if variant == "likelihood":
        rollout.answer_likelihood = answer_likelihood(model, rollout)
    if variant == "critic":
        network, optimizer = critic
        bias = token_bias(network, rollout)
        descend(optimizer, critic_loss(bias, grpo(rollout), rollout.mask))
        rollout.token_bias = bias.detach()
    if variant == "culling":
        gone = {p.prompt for p, done in zip(rollout.problems, solved(rollout)) if done}
        problems = [p for p in problems if p.prompt not in gone] or problems
    return problems


def make_problems(task: Task, held: bool) -> list[Problem]:
    """Distinct problems, held-out or for training, the same in every run.

    As many of each level; fewer of a level that does not have so many.
    """
    rng = np.random.default_rng(0)
    count = (EVAL_SIZE if held else TRAIN_SIZE) // len(task.levels)
    problems = []
    for level in task.levels:
        draws = (task.problem(rng, level) for _ in range(20 * count))
        fitting = islice((p for p in draws if held_out(p.prompt) == held), 2 * count)
        problems += list(dict.fromkeys(fitting))[:count]
    return problems


def new_model(args, outputs: int | None = None) -> GPT:
    """A GPT with random weights, of which --base-seed decides."""
    # A prompt, a response of full length with EOS and, for `likelihood`, a marker, an answer, EOS.
    columns = sum(len(text) for text in TASKS[args.task].longest[:3]) + 3
    torch.manual_seed(args.base_seed)
    config = GPTConfig(len(TOKENIZER.get_vocab()), columns, args.layers, args.width, 4, outputs)
    return GPT(config).to(args.device)


def base_model(args) -> GPT:
    """The base model of these settings: the one kept in args.out, or a new one, which is kept.

    The file's name says what decides about it. It holds its own name, so that a renamed one is
    noticed. OSError if it is damaged or of another model, or if it cannot be kept.
    """
    model = new_model(args)
    share, ratio = WARM_UP[args.task]
    name = f"base-{args.task}-{args.layers}x{args.width}-{share}-{ratio}-seed{args.base_seed}.pt"
    path = Path(args.out) / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        warm_up(model, TASKS[args.task], share, ratio, args.base_seed, [2e-3] * 2000)
        save(path, lambda part: torch.save({path.name: model.state_dict()}, part))
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)[path.name]
        # A weight that is not finite counts as missing.
        model.load_state_dict({name: w for name, w in weights.items() if w.isfinite().all()})
    except Exception:  # a damaged file can raise nearly anything
        raise OSError(f"{path} is damaged, or no base model for these settings; move it away")
    return model


def warm_up(model: GPT, task: Task, share: float, ratio: float, seed: int, rates) -> int:
    """Supervised learning (SFT) in place: cross-entropy of the solution's tokens and EOS.

    A step for each learning rate in `rates`, until `share` of the samples for training problems is
    correct. Returns the number of steps.
    """
    rng = np.random.default_rng(seed)
    weights = ratio ** np.arange(len(task.levels))
    problems = make_problems(task, held=False)[::8]
    start = len(task.longest.prompt)
    pad = TOKENIZER.token_to_id(PAD)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    for step, lr in enumerate(tqdm(rates, "supervised warm-up of the base model"), 1):
        optimizer.param_groups[0]["lr"] = lr
        levels = rng.choice(task.levels, 64, p=weights / weights.sum())
        drawn = [task.problem(rng, level) for level in levels]
        texts = [p.prompt + p.solution + EOS for p in drawn if not held_out(p.prompt)]
        rows = encode(TOKENIZER, texts, next(model.parameters()).device)  # (B, L)
        logits = model(rows[:, :-1])[:, start - 1 :].transpose(1, 2)  # (B, V, L - start)
        loss = torch.nn.functional.cross_entropy(logits, rows[:, start:], ignore_index=pad)
        descend(optimizer, loss)
        if step % 20 == 0:
            solved_share = sample_rollout(model, TOKENIZER, task, problems, 1).rewards.mean()
            if solved_share >= share:
                break
    return step


def judged(check, rollout: Rollout) -> torch.Tensor:
    """Task.coherent or Task.steps_correct of each response, (P, G), 0 or 1."""
    groups = zip(rollout.problems, rollout.texts)
    return torch.tensor([[float(check(p, y)) for y in group] for p, group in groups])


def rollout_metrics(rollout: Rollout, advantages: torch.Tensor, task: Task) -> dict[str, float]:
    """Means over groups, responses or tokens; docs/files.md defines each."""
    r = rollout.rewards
    mask = rollout.mask
    values = {"reward": r, "all_fail": (r == 0).all(1), "all_pass": (r == 1).all(1)}
    values["entropy"] = torch.special.entr(rollout.probs).sum(-1)[mask]  # nats
    values["length"] = mask.sum(-1)
    values["coherence"] = judged(task.coherent, rollout)
    values["steps_correct"] = judged(task.steps_correct, rollout)
    values["mean_abs_advantage"] = advantages[mask].abs()
    if rollout.token_bias is not None:
        values["mean_abs_bias"] = rollout.token_bias[mask].abs()
    return {name: value.float().mean().item() for name, value in values.items()}


def accuracy(rollout: Rollout, task: Task, name: str) -> dict:
    """Shares of correct responses: name, the mean over levels, and name_by_level, {2: 0.9, ...};
    name_steps_correct, of the correct responses the share with all steps correct."""
    correct = rollout.rewards.cpu()
    levels = torch.tensor([problem.level for problem in rollout.problems])
    by_level = {n: round(correct[levels == n].mean().item(), 4) for n in task.levels}
    steps = (judged(task.steps_correct, rollout) * correct).sum() / correct.sum().clamp(min=1)
    found = {name: sum(by_level.values()) / len(by_level), f"{name}_steps_correct": steps.item()}
    return found | {f"{name}_by_level": by_level}


def evaluate(model: GPT, task: Task, problems: list, greedy: str, sampled: str, samples=1) -> dict:
    """Accuracy on these problems, greedy and at temperature 1, under these names."""
    best = sample_rollout(model, TOKENIZER, task, problems, 1, temperature=0)
    rng = torch.Generator(next(model.parameters()).device).manual_seed(0)
    drawn = sample_rollout(model, TOKENIZER, task, problems, samples, generator=rng)
    return accuracy(best, task, greedy) | accuracy(drawn, task, sampled)


def save(path: Path, write) -> None:
    """Lets write(part) make a file, then moves it to path: it is there whole or not at all."""
    part = path.with_name(path.name + ".part")
    write(part)
    part.replace(path)


def run(args, model: GPT) -> None:
    """One run, from the base model to its files and what is printed."""
    started = time.perf_counter()
    task = TASKS[args.task]
    problems = make_problems(task, held=True)
    folder = Path(args.out) / f"{args.task}-{args.variant}-seed{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    save(folder / "config.json", lambda part: part.write_text(json.dumps(vars(args), indent=2)))
    (folder / "summary.json").unlink(missing_ok=True)
    summary = {"variant": args.variant, "task": args.task, "seed": args.seed, "steps": args.steps}
    summary |= evaluate(model, task, problems, "base_accuracy", "base_sampled", samples=4)
    seconds = []
    with open(folder / "metrics.csv", "w", newline="", buffering=1) as file:  # line by line
        writer = csv.DictWriter(file, COLUMNS.split())
        writer.writeheader()
        try:
            for rollout, advantages, row in tqdm(train(args, model), args.variant, args.steps):
                levels = {k: " ".join(map(str, v.values())) for k, v in row.items() if "level" in k}
                writer.writerow(row | levels)
                seconds.append(row["seconds"])
        except FloatingPointError as error:
            raise FloatingPointError(f"step {len(seconds) + 1}: {error}; is --lr too high?")
    save(folder / "model.pt", lambda part: torch.save(model.state_dict(), part))
    save(folder / "tokenizer.json", lambda part: TOKENIZER.save(str(part)))
    summary |= evaluate(model, task, problems, "final_accuracy", "final_sampled", samples=4)
    summary["seconds"] = time.perf_counter() - started
    summary["seconds_per_step"] = float(np.median(seconds or [0]))
    save(folder / "summary.json", lambda part: part.write_text(json.dumps(summary, indent=2)))
    if seconds:
        report(rollout, advantages)
    for name in ("base_sampled", "final_sampled", "base_accuracy", "final_accuracy"):
        print(f"{name}: {summary[name]:.1%}, by level {summary[f'{name}_by_level']}")
    steps = summary["final_sampled_steps_correct"]
    print(f"All steps are correct in {steps:.1%} of the correct samples. The files: {folder}")


def report(rollout: Rollout, advantages: torch.Tensor) -> None:
    """Prints the last step's most mixed group, coloured on a terminal, and some mistakes."""
    i = int((rollout.rewards.mean(1) - 0.5).abs().argmin())
    print(f"\nAdvantage and tokens of responses to {rollout.problems[i].prompt} ($ is the end):")
    for text, A in zip(rollout.texts[i], advantages[i].tolist()):
        print(f"  {A[0]:+.2f} ", *map(coloured, text.replace(PAD, "_") + "$", A), sep="")
    print("\nMistakes in the last step:")
    for p, i in (rollout.rewards == 0).nonzero().tolist()[:5]:
        problem = rollout.problems[p]
        print(f"  {problem.prompt}{rollout.texts[p][i]}  correct: {problem.solution}")


def coloured(token: str, advantage: float) -> str:
    """On a terminal the token on green if its advantage is positive, on red if negative."""
    pale = round(255 - 155 * min(abs(advantage) / 2, 1))  # full from 2 on
    colour = f"{pale};255;{pale}" if advantage > 0 else f"255;{pale};{pale}"
    return f"\x1b[30;48;2;{colour}m{token}\x1b[0m" if sys.stdout.isatty() else token


UPDATE_FLAGS = ("minibatches", "kl", "clip_low", "clip_high", "aggregate")
COLUMNS = """step reward all_fail all_pass loss grad_norm clip_fraction approx_kl entropy length
coherence steps_correct seconds accuracy accuracy_sampled likelihood_change accuracy_by_level
accuracy_sampled_by_level accuracy_steps_correct accuracy_sampled_steps_correct
mean_abs_advantage mean_abs_bias"""
NUMBERS = {  # setting: default, smallest, largest, help
    "steps": (400, 0, 10**9, "rollouts to learn from"),
    "seed": (0, 0, 2**63 - 1, "of the order of the problems and of sampling"),
    "base_seed": (0, 0, 2**63 - 1, "of the base model: first weights and warm-up"),
    "prompts": (64, 1, 10**6, "prompts in a rollout"),
    "group_size": (8, 2, 10**6, "responses to each prompt"),
    "minibatches": (4, 1, 10**6, "optimiser steps on a rollout"),
    "lr": (3e-4, sys.float_info.min, sys.float_info.max, "learning rate: rises, then falls to 0"),
    "kl": (0.0, 0.0, sys.float_info.max, "coefficient of the KL term"),
    "temperature": (1.0, 1e-3, 1e3, "of sampling"),
    "clip_low": (0.2, 0.0, 1.0, "the ratio's lower bound is 1 minus this; of ngrpo 0.16"),
    "clip_high": (0.2, 0.0, sys.float_info.max, "the upper bound is 1 plus this; of ngrpo 0.24"),
    "layers": (2, 1, 24, "blocks of the GPT"),
    "width": (64, 4, 2048, "width of the GPT, a multiple of its 4 heads"),
    "threads": (1, 1, 1024, "threads of the processor"),
}


def parse_arguments(argv: list[str]) -> Namespace:
    """The command line as settings. SystemExit(2) after a line on standard error if it is bad."""
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    # Without the usage an error is one line.
    cli = ArgumentParser("train.py", SUPPRESS, formatter_class=ArgumentDefaultsHelpFormatter)
    cli.add_argument("--variant", choices=VARIANTS, default="grpo", help="the advantages")
    cli.add_argument("--task", choices=TASKS, default="add", help="the arithmetic to learn")
    for name, (value, _, _, text) in NUMBERS.items():
        cli.add_argument("--" + name.replace("_", "-"), type=type(value), default=value, help=text)
    means = ("token", "response", "constant")
    cli.add_argument("--aggregate", choices=means, default="token", help="of dr_grpo: constant")
    cli.add_argument("--device", choices=devices, default=devices[-1], help="where to compute")
    cli.add_argument("--out", default="runs", help="folder of all runs and base models")
    args = cli.parse_args(argv)
    cli.set_defaults(**LOSS.get(args.variant, {}))  # what the variant uses where no flag is given
    args = cli.parse_args(argv)
    for name, (_, low, high, text) in NUMBERS.items():
        if not low <= getattr(args, name) <= high or (name == "width" and args.width % 4):
            cli.error(f"argument {name}: must be from {low:g} to {high:g} ({text})")
    return args


def main(argv: list[str]) -> int:
    """Runs a command line; returns the exit status: 0, 1 (stopped), 2 (bad input), 130 (Ctrl-C)."""
    torch.set_num_threads(1)  # the warm-up's: rounding depends on the number of threads
    try:
        args = parse_arguments(argv)
        model = base_model(args)
        torch.set_num_threads(args.threads)
        run(args, model)
    except SystemExit as stop:  # argparse has said why
        return stop.code
    except (OSError, FloatingPointError, KeyboardInterrupt) as error:
        print(f"train.py: error: {str(error) or 'stopped by Ctrl-C'}", file=sys.stderr)
        return {FloatingPointError: 1, KeyboardInterrupt: 130}.get(type(error), 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
