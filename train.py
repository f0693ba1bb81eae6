"""Trains a small GPT on arithmetic by reinforcement learning: python train.py --variant nthr

    base model -> each step: problems -> rollout -> advantages -> update -> metrics -> report

The loop comes first; the numbers beside its lines are those of the README's algorithm. What stands
around it follows: problems, the base model, measuring, files, the report, the command line. A step
is a training step: a rollout and the update that learns from it.
"""

import csv
import json
import sys
import time
import zlib
from argparse import SUPPRESS, ArgumentParser, Namespace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from advantages import LOSS, VARIANTS, critic_loss, grpo, solved
from grpo import Rollout, answer_likelihood, descend, encode, judge, response_logprobs
from grpo import sample_rollout, token_bias, update
from model import GPT
from tasks import EOS, PAD, TASKS, Problem, Task, build_tokenizer, held_out

TOKENIZER = build_tokenizer()
DRAWS = 1250  # problems of each level, of which some are the same; one in ten is held out
# The share of correct samples at which the warm-up ends, so low that most is left to learn from
# rewards; and how much more often it shows a problem than one of the level below.
WARM_UP = {"add": (0.13, 1.5), "mul": (0.1, 1.0), "sum": (0.4, 0.8)}


def train(args, model: GPT, evaluate_every: int = 25, rise: int = 10):
    """The loop over steps. Yields after each: rollout, advantages (P, G, T), metrics.

    The learning rate is args.lr times the smaller of two lines: one rises to 1 in `rise` steps, one
    falls to 0 over the run. The numbers beside the lines are those of the README's algorithm.
    """
    task = TASKS[args.task]
    pool = make_problems(task, held=False)
    order = np.random.default_rng(args.seed)
    rng = torch.Generator(args.device).manual_seed(args.seed)
    draw = {"temperature": args.temperature, "generator": rng}
    clip = (args.clip_low, args.clip_high)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    reference = base_model(args).requires_grad_(False) if args.kl else None
    critic = new_model(args, outputs=1)  # only the variant `critic` uses it
    critic_optimizer = torch.optim.AdamW(critic.parameters(), args.lr, weight_decay=0.0)
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        batch = [pool[i] for i in order.integers(len(pool), size=args.prompts)]  # 1
        rollout = sample_rollout(model, TOKENIZER, task, batch, args.group_size, **draw)  # 2, 3
        if args.variant == "likelihood":
            rollout.answer_likelihood = answer_likelihood(model, rollout)
        if args.variant == "critic":
            train_critic(critic, critic_optimizer, rollout)
        if args.variant == "culling":  # if no problem is left, all come back
            gone = {problem for problem, done in zip(batch, solved(rollout)) if done}
            pool = [p for p in pool if p not in gone] or make_problems(task, held=False)
        if args.kl:
            rollout.reference_logprobs = response_logprobs(reference, rollout)
        A = VARIANTS[args.variant](rollout)  # 4
        optimizer.param_groups[0]["lr"] = args.lr * min(step / rise, 1 - (step - 1) / args.steps)
        row = {"step": step} | rollout_metrics(rollout, A, task)
        # 5 to 7, then 8
        row |= update(model, optimizer, rollout, A, args.minibatches, args.kl, clip, args.aggregate)
        row["seconds"] = time.perf_counter() - started
        if step % evaluate_every == 0 or step == args.steps:
            row |= evaluate(model, task, "accuracy", "accuracy_sampled")
        yield rollout, A, row


def train_critic(critic: GPT, optimizer, rollout: Rollout) -> None:
    """Fills rollout.token_bias, then makes one optimiser step of the critic."""
    bias = token_bias(critic, rollout)
    descend(optimizer, critic_loss(bias, grpo(rollout), rollout.mask))
    rollout.token_bias = bias.detach()


def make_problems(task: Task, held: bool) -> list[Problem]:
    """Distinct problems, held-out or for training: the same in every run, as many draws a level."""
    rng = np.random.default_rng(0)
    draws = [task.problem(rng, level) for level in task.levels for _ in range(DRAWS)]
    return [problem for problem in dict.fromkeys(draws) if held_out(problem.prompt) == held]


def new_model(args, outputs: int | None = None) -> GPT:
    """A GPT with random weights, of which --base-seed decides."""
    # A prompt, a response of full length with EOS and, for `likelihood`, a marker, an answer, EOS.
    columns = sum(len(text) for text in TASKS[args.task].longest[:3]) + 3
    torch.manual_seed(args.base_seed)
    model = GPT(len(TOKENIZER.get_vocab()), columns, args.layers, args.width, outputs)
    return model.to(args.device)


def base_model(args) -> GPT:
    """The base model of these settings: the one kept in args.out, or a new one, which is kept.

    The file's name says what decides about it, the text of tasks.py and model.py included. It holds
    its own name, so that a renamed one is noticed. OSError if it is damaged or of another model, or
    if it cannot be kept.
    """
    model = new_model(args)
    code = [Path(__file__).with_name(name).read_text() for name in ("tasks.py", "model.py")]
    decides = zlib.crc32(repr([WARM_UP[args.task], args.layers, args.width, *code]).encode())
    path = Path(args.out, f"base-{args.task}-seed{args.base_seed}-{decides:08x}.pt")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        warm_up(model, TASKS[args.task], *WARM_UP[args.task], args.base_seed, [2e-3] * 2000)
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

    An optimiser step for each learning rate in `rates`, until `share` of the samples for training
    problems is correct. Returns the number of optimiser steps.
    """
    rng = np.random.default_rng(seed)
    problems = make_problems(task, held=False)
    weights = ratio ** np.array([p.level for p in problems])
    texts = [p.prompt + p.solution + EOS for p in problems]
    rows = encode(TOKENIZER, texts, next(model.parameters()).device)  # (N, L)
    pad = TOKENIZER.token_to_id(PAD)
    start = len(task.longest.prompt)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.0, fused=True)
    for step, lr in enumerate(tqdm(rates, "supervised warm-up of the base model"), 1):
        optimizer.param_groups[0]["lr"] = lr
        batch = rows[rng.choice(len(rows), 64, p=weights / weights.sum())]  # (64, L)
        h, _ = model(batch[:, :-1])
        logits = model.unembed(h[:, start - 1 :]).transpose(1, 2)  # (64, V, L - start)
        loss = torch.nn.functional.cross_entropy(logits, batch[:, start:], ignore_index=pad)
        descend(optimizer, loss)
        if step % 20 == 0:
            sampled = sample_rollout(model, TOKENIZER, task, problems[::8], 1)
            if sampled.rewards.mean() >= share:
                break
    return step


def rollout_metrics(rollout: Rollout, advantages: torch.Tensor, task: Task) -> dict[str, float]:
    """Means over groups, responses or tokens; docs/files.md defines each."""
    values = {"reward": rollout.rewards, "all_fail": (rollout.rewards == 0).all(1)}
    values["all_pass"] = solved(rollout)
    values["entropy"] = torch.special.entr(rollout.probs).sum(-1)[rollout.mask]  # nats
    values["length"] = rollout.mask.sum(-1)
    values["coherence"] = judge(task.coherent, rollout.problems, rollout.texts)
    values["steps_correct"] = judge(task.steps_correct, rollout.problems, rollout.texts)
    values["mean_abs_advantage"] = advantages[rollout.mask].abs()
    return {name: value.float().mean().item() for name, value in values.items()}


def evaluate(model: GPT, task: Task, greedy: str, sampled: str, samples: int = 1) -> dict:
    """Correct responses to the held-out problems, under two names: greedy, and at temperature 1.

    name: their share, the mean over levels; name_by_level: {2: 0.9, ...}; name_steps_correct: of
    the correct responses, the share with all steps correct.
    """
    found = {}
    problems = make_problems(task, held=True)
    levels = torch.tensor([problem.level for problem in problems])
    rng = torch.Generator(next(model.parameters()).device).manual_seed(0)
    for name, temperature, G in ((greedy, 0.0, 1), (sampled, 1.0, samples)):
        rollout = sample_rollout(model, TOKENIZER, task, problems, G, temperature, generator=rng)
        correct = rollout.rewards.cpu() == 1
        by_level = {n: round(correct[levels == n].float().mean().item(), 4) for n in task.levels}
        steps_correct = judge(task.steps_correct, problems, rollout.texts)
        found[name] = sum(by_level.values()) / len(by_level)
        found[f"{name}_by_level"] = by_level
        found[f"{name}_steps_correct"] = steps_correct[correct].mean().nan_to_num().item()
    return found


def run(args, model: GPT) -> None:
    """One run, from the base model to its files and what is printed."""
    started = time.perf_counter()
    folder = Path(args.out, args.name)
    save(folder / "config.json", lambda part: part.write_text(json.dumps(vars(args), indent=2)))
    (folder / "summary.json").unlink(missing_ok=True)
    summary = vars(args) | evaluate(model, TASKS[args.task], "base_accuracy", "base_sampled", 4)
    seconds = []
    with open(folder / "metrics.csv", "w", newline="", buffering=1) as file:  # line by line
        writer = csv.DictWriter(file, COLUMNS.split(), extrasaction="ignore")
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
    summary |= evaluate(model, TASKS[args.task], "final_accuracy", "final_sampled", 4)
    summary["seconds"] = time.perf_counter() - started
    summary["seconds_per_step"] = float(np.median(seconds or [0]))
    save(folder / "summary.json", lambda part: part.write_text(json.dumps(summary, indent=2)))
    if seconds:
        report(rollout, advantages)
    for name in ("base_sampled", "final_sampled", "base_accuracy", "final_accuracy"):
        print(f"{name}: {summary[name]:.1%}, by level {summary[f'{name}_by_level']}")
    print(f"of the correct with all steps correct: {summary['final_sampled_steps_correct']:.1%}")
    print(f"The files are in {folder}.")


def save(path: Path, write) -> None:
    """Lets write(part) make a file, then moves it to path: it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    write(part)
    part.replace(path)


def report(rollout: Rollout, advantages: torch.Tensor) -> None:
    """Prints the last step's most mixed group with a mark for each advantage, and some mistakes."""
    i = int((rollout.rewards.mean(1) - 0.5).abs().argmin())
    print(f"\nResponses to {rollout.problems[i].prompt} ({EOS} is the end). Below each token:")
    print("* + pushed up, = - pushed down, . neither; * and = are the strongest of their response.")
    for text, row in zip(rollout.texts[i], advantages[i]):
        strongest = 0.95 * row.abs().max()
        # 0, or 1 with the advantage's sign, or 2 if it is one of the strongest
        sizes = (row.sign() * (1 + (row.abs() >= strongest))).int().tolist()
        marks = ["=-.+*"[size + 2] for size in sizes]
        print(f"  {text}{EOS}\n  {''.join(marks[: len(text) + 1])}")
    print("\nMistakes in the last step:")
    for p, i in (rollout.rewards == 0).nonzero().tolist()[:5]:
        prompt, solution, *_ = rollout.problems[p]
        print(f"  {prompt}{rollout.texts[p][i]}  correct: {solution}")


COLUMNS = """step reward all_fail all_pass entropy length coherence steps_correct mean_abs_advantage
loss grad_norm clip_fraction approx_kl seconds accuracy accuracy_sampled accuracy_sampled_by_level
accuracy_sampled_steps_correct"""


def number(kind, low, high=10**9, multiple=None):
    """An argparse type: a text becomes a number from low to high."""

    def number(text: str):
        value = kind(text)
        if not low <= value <= high or (multiple and value % multiple):
            raise ValueError
        return value

    # argparse puts this name into its message, for a ValueError of kind(text) too
    number.__name__ = (
        f"({f'multiple of {multiple}' if multiple else kind.__name__} from {low} to {high})"
    )
    return number


def parse_arguments(argv: list[str]) -> Namespace:
    """The command line as settings. SystemExit(2) after a line on standard error if it is bad."""
    devices = ["cpu"] + ["cuda"] * torch.cuda.is_available()
    cli = ArgumentParser("train.py", usage=SUPPRESS)  # without the usage an error is one line
    add = cli.add_argument
    add("--variant", choices=VARIANTS, default="grpo", help="the advantages")
    add("--task", choices=TASKS, default="add", help="the arithmetic to learn")
    add("--steps", type=number(int, 0), default=400, help="rollouts to learn from")
    add("--prompts", type=number(int, 1), default=64, help="in a rollout")
    add("--group-size", type=number(int, 2), default=8, help="responses to each prompt")
    add("--temperature", type=number(float, 1e-3), default=1.0, help="of sampling")
    add("--lr", type=number(float, 1e-12), default=3e-4, help="learning rate: rises, falls to 0")
    add("--minibatches", type=number(int, 1), default=4, help="optimiser steps on a rollout")
    add("--clip-low", type=number(float, 0, 1), default=0.2, help="the ratio's bound is 1 minus it")
    add("--clip-high", type=number(float, 0), default=0.2, help="its upper bound is 1 plus this")
    add("--aggregate", choices=["token", "response", "constant"], default="token", help="a mean")
    add("--kl", type=number(float, 0), default=0.0, help="coefficient of the KL term")
    add("--seed", type=number(int, 0), default=0, help="of the order of problems, and of sampling")
    add("--base-seed", type=number(int, 0), default=0, help="of first weights and warm-up")
    add("--layers", type=number(int, 1, 24), default=2, help="blocks of the GPT")
    add("--width", type=number(int, 4, 2048, 4), default=64, help="of the GPT, a multiple of 4")
    add("--threads", type=number(int, 1, 1024), default=1, help="of the processor")
    add("--device", choices=devices, default=devices[-1], help="where to compute")
    add("--out", default="runs", help="folder of all runs and base models")
    # The variant is parsed first: its own loss is the default where no flag is given.
    cli.set_defaults(**LOSS.get(cli.parse_args(argv).variant, {}))
    args = cli.parse_args(argv)
    # The name of the run's folder has all that differs from its default: no run replaces another.
    names = sorted(vars(args).keys() - {"task", "variant", "seed", "threads", "device", "out"})
    changed = [f"{k}{vars(args)[k]}" for k in names if vars(args)[k] != cli.get_default(k)]
    args.name = "-".join([args.task, args.variant, f"seed{args.seed}", *changed])
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
