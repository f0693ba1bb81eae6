"""Trains a small GPT on arithmetic by GRPO or a variant: python train.py --variant nthr

    base model -> each training step: problems -> rollout -> advantages -> update -> metrics

The loop comes first. The numbers beside its lines are the steps at the top of grpo.py.
"""

import argparse
import csv
import json
import sys
import time
from argparse import Namespace
from copy import deepcopy
from inspect import getdoc
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from advantages import LOSS, VARIANTS, with_advantages
from grpo import Rollout, descend, encode, judge, response_logprobs, sample_rollout, update
from model import GPT
from tasks import EOS, MARKER, PAD_ID, TASKS, TOKENIZER, Problem, Task, make_problems, mark_mistake


def train(args: Namespace, model: GPT):
    """The loop. After each step it yields the rollout, the same with A, and the step's metrics."""
    task = TASKS[args.task]
    pool = make_problems(task, held=False)
    order = np.random.default_rng(args.seed)
    rng = torch.Generator(args.device).manual_seed(args.seed)
    names = "minibatches clip_low clip_high loss_type aggregate kl max_grad_norm"
    settings = {name: vars(args)[name] for name in names.split()}  # of update
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    variant = VARIANTS[args.variant]
    if isinstance(variant, type):  # it has a memory, so each run makes a new one
        variant = variant(new_model(args, outputs=1).to(args.device), args.lr)
    reference = deepcopy(model).requires_grad_(False) if args.kl else None
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        # The learning rate rises over ten training steps, and falls to nearly 0 by the end.
        optimizer.param_groups[0]["lr"] = args.lr * min(step / 10, 1 - (step - 1) / args.steps)
        batch = [pool[i] for i in order.integers(len(pool), size=args.prompts)]  # 1 draw
        # 2 sample, 3 reward
        rollout = sample_rollout(model, task, batch, args.group_size, args.temperature, rng)
        trained = with_advantages(rollout, variant)  # 4 advantages
        if args.kl:
            trained.reference_logprobs = response_logprobs(reference, trained)
        learned = update(model, optimizer, trained, **settings)  # 5 read, 6 loss, 7 step
        row = {"step": step} | rollout_metrics(rollout, trained, task) | learned  # metrics
        if args.cull:  # a problem is solved if all its responses are correct
            solved = {*batch} - {p for p, r in zip(batch, rollout.rewards) if r.min() < 1}
            pool = [p for p in pool if p not in solved] or make_problems(task, held=False)
        row["seconds"] = time.perf_counter() - started
        if step % args.every == 0 or step == args.steps:
            row |= accuracy(model, task)
        yield rollout, trained, row


# ---- The base model
def base_model(args: Namespace) -> GPT:
    """The base model of these settings. It sets one thread for the whole run."""
    torch.set_num_threads(1)
    model = new_model(args).to(args.device)
    steps, correct = warm_up(model, TASKS[args.task], args.base_seed)
    say(f"Base model: {steps} steps of imitation, {correct:.0%} correct on training problems.\n")
    return model


def new_model(args: Namespace, outputs: int | None = None) -> GPT:
    """A GPT on the CPU, with random weights that depend on --base-seed."""
    # Room for a prompt, the longest response with EOS, and `likelihood`'s marker, answer and EOS.
    columns = sum(len(text) for text in TASKS[args.task].longest[:3]) + 3
    torch.manual_seed(args.base_seed)
    return GPT(TOKENIZER.get_vocab_size(), columns, args.layers, args.width, outputs)


def warm_up(model: GPT, task: Task, seed: int, steps=2000) -> tuple[int, float]:
    """Supervised learning (SFT) in place: cross-entropy of the tokens of the solution and of EOS.

    It ends when the share of correct samples for training problems reaches task.share, or after
    `steps` optimiser steps. Returns their number and the last share.
    """
    rng = np.random.default_rng(seed)
    problems = make_problems(task, held=False)
    weights = task.ratio ** np.array([problem.level for problem in problems])
    texts = [problem.prompt + problem.solution + EOS for problem in problems]
    rows, _ = encode(texts, next(model.parameters()).device)  # (N, L)
    start = len(task.longest.prompt)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    for step in tqdm(range(1, steps + 1), "warm-up", leave=False, disable=None):
        batch = rows[rng.choice(len(rows), 64, p=weights / weights.sum())]  # (64, L)
        h, _ = model(batch[:, :-1])
        logits = model.unembed(h[:, start - 1 :]).transpose(1, 2)  # (64, V, L - start)
        descend(optimizer, cross_entropy(logits, batch[:, start:], ignore_index=PAD_ID))
        if step % 20 == 0 or step == steps:
            correct = sample_rollout(model, task, problems[::8], 1).rewards.mean().item()
            if correct >= task.share:
                break
    return step, correct


# ---- Measuring
def rollout_metrics(rollout: Rollout, trained: Rollout, task: Task) -> dict[str, float]:
    """Means over groups, responses or tokens of a rollout. tools/README.md defines each of them."""
    values = {
        "reward": rollout.rewards,
        "all_fail": (rollout.rewards == 0).all(1),
        "all_pass": (rollout.rewards == 1).all(1),
        "entropy": torch.special.entr(rollout.probs).sum(-1)[rollout.mask],  # nats
        "length": rollout.mask.sum(-1),
        "coherence": judge(task.coherent, rollout.problems, rollout.texts),
        "reasoning_correct": judge(task.reasoning_correct, rollout.problems, rollout.texts),
        "mean_abs_advantage": trained.A[trained.mask].abs(),
    }
    return {name: value.float().mean().item() for name, value in values.items()}


def evaluate(model: GPT, task: Task, name: str, temperature: float, samples: int = 1) -> dict:
    """Accuracy on all held-out problems. Temperature 0 is greedy decoding.

    Returns three entries. name_by_level: the share of correct responses, {2: 0.9, ...}, with four
    decimals. name: its mean over levels. name_reasoning_correct: the share of the correct responses
    whose steps are correct.
    """
    problems = make_problems(task, held=True)
    rng = torch.Generator(next(model.parameters()).device).manual_seed(0)
    rollout = sample_rollout(model, task, problems, samples, temperature, rng)
    correct = (rollout.rewards.cpu() == 1).float()  # (P, samples)
    level = torch.tensor([problem.level for problem in problems])
    by_level = {n: round(correct[level == n].mean().item(), 4) for n in level.unique().tolist()}
    mean = sum(by_level.values()) / len(by_level)
    steps = judge(task.reasoning_correct, problems, rollout.texts)[correct == 1].mean().nan_to_num()
    return {name: mean, f"{name}_by_level": by_level, f"{name}_reasoning_correct": steps.item()}


def accuracy(model: GPT, task: Task, samples: int = 1) -> dict:
    """Evaluates greedily, and with `samples` samples of each problem at temperature 1."""
    return evaluate(model, task, "greedy", 0) | evaluate(model, task, "sampled", 1, samples)


# ---- A run: what it writes and what it prints
COLUMNS = """step reward all_fail all_pass entropy length coherence reasoning_correct
mean_abs_advantage loss grad_norm clip_fraction approx_kl seconds greedy sampled sampled_by_level
sampled_reasoning_correct"""
HEAD = "step reward all-fail all-pass sampled greedy  response to"
ROW = "{step:4} {reward:6.2f} {all_fail:8.0%} {all_pass:8.0%} {sampled:7.1%} {greedy:6.1%}"
BASE = "{step:4} {sampled:32.1%} {greedy:6.1%}"  # before training


def say(text: str) -> None:
    """Prints a line above the bar. It is there at once, also in a pipe or a file."""
    tqdm.write(text)
    sys.stdout.flush()


def run(args: Namespace, make_model=base_model) -> None:
    """Makes a model, trains it, shows how, and writes the files of the run.

    make_model(args) returns the model that training begins with. It has the interface of model.GPT.
    """
    started = time.perf_counter()
    task = TASKS[args.task]
    folder = Path(args.out, args.name).expanduser()  # some shells do not in --out=~/runs
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)  # only a finished run has one
    idea = "\n\n".join(str(getdoc(VARIANTS[args.variant])).split("\n\n")[:2])
    say(f"Task {args.task}: {task.work}\n\nVariant {args.variant}, in advantages.py:\n{idea}\n")
    model = make_model(args)
    base = accuracy(model, task, samples=4)
    example = make_problems(task, held=True)[-4:][0]  # a long one
    say(f"{HEAD} {example.prompt}\n{'':46}{example.solution} solution")
    steps = tqdm(train(args, model), args.variant, args.steps, leave=False, disable=None)
    with open(folder / "metrics.csv", "w", buffering=1, newline="") as file:  # 1: line by line
        table = csv.DictWriter(file, COLUMNS.split(), extrasaction="ignore")
        table.writeheader()
        try:
            for _, trained, row in chain([(None, None, {"step": 0} | base)], steps):
                if "greedy" in row:
                    show_row(row, model, task, example)
                    row["sampled_by_level"] = " ".join(map(str, row["sampled_by_level"].values()))
                table.writerow(row)
        except FloatingPointError as error:
            raise FloatingPointError(f"step {row['step'] + 1}: {error}: is --lr too high?")
    final = accuracy(model, task, samples=4)
    summary = vars(args) | {"torch": torch.__version__, "seconds": time.perf_counter() - started}
    summary |= {f"base_{name}": x for name, x in base.items()}
    summary |= {f"final_{name}": x for name, x in final.items()}
    if args.save:
        torch.save(model.state_dict(), folder / "model.pt")
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    if trained:
        show_group(trained)
    show_end(task, base, final, folder)


def show_row(row: dict, model: GPT, task: Task, example: Problem) -> None:
    """One line: the metrics of a training step, and a greedy response to the example."""
    shown = sample_rollout(model, task, [example], 1, temperature=0)
    numbers = (ROW if "reward" in row else BASE).format(**row)
    verdict = " rewarded" * (shown.rewards.item() == 1)
    say(f"{numbers}  {mark_mistake(example, shown.texts[0][0])[0]}{verdict}")


def show_group(trained: Rollout) -> None:
    """A correct and an incorrect response to one problem, and the advantage of each token.

    The problem is the one whose group is nearest to half correct. Of its responses of each kind, we
    show the one whose advantages differ most from token to token.
    """
    correct = trained.rewards == 1  # (P, G)
    p = (correct.float().mean(1) - 0.5).abs().argmin().item()
    share = f"{correct[p].sum()} of {len(correct[p])}"
    prompt = trained.problems[p].prompt.replace(" ", "")
    say(f"\n{share} responses to {prompt} were correct. Advantages (a dot: the same again):")
    spread = trained.A[p].where(trained.mask[p], trained.A[p, :, :1]).std(-1)  # (G,)
    for kind in correct[p].unique().flip(0):
        i = spread.masked_fill(correct[p] != kind, -1.0).argmax().item()
        tokens, A = (x[p, i][trained.mask[p, i]].tolist() for x in (trained.tokens, trained.A))
        A = [f"{a:z.1f}" for a in A]
        changes = ["." if a == b else a for a, b in zip(A, [None, *A])]
        say(f"reward {trained.rewards[p, i]:g}")
        for n in range(0, len(A), 16):  # tokens in a line
            for cells in (TOKENIZER.decode(tokens), changes):
                say("".join(f" {cell:>5}" for cell in cells[n : n + 16]))


def show_end(task: Task, base: dict, final: dict, folder: Path) -> None:
    """Accuracy before and after training, and where to look next."""
    say("\nOn problems that training never saw, before -> after:")
    say(f"  sampled accuracy   {base['sampled']:6.1%} -> {final['sampled']:6.1%}")
    say(f"  greedy accuracy    {base['greedy']:6.1%} -> {final['greedy']:6.1%}")
    if MARKER in task.longest.solution:  # the task has steps
        steps = [x["sampled_reasoning_correct"] for x in (base, final)]
        say("  of the rewarded samples, {:.1%} -> {:.1%} have correct steps".format(*steps))
    say(f"The files are in {folder} (tools/README.md explains them).")
    if task.make.__module__ == "tasks":  # the tool knows no others
        say(f'See a group of it:  python -m tools.ask "{folder}" --group')


# ---- The command line
class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the defaults, and keeps the lines of the list of variants."""


def at_least(low):
    """The type of a flag: a number that is not below low. It is whole if low is."""

    def number(text: str):
        if low <= type(low)(text) < torch.inf:
            return type(low)(text)
        raise argparse.ArgumentTypeError(f"must be {low:g} or more, not {text}")

    return number


def parse_arguments(argv: list[str] | None = None, parents=(), **defaults) -> Namespace:
    """The command line as settings. A bad one raises SystemExit(2) after one line of error.

    What is not given is as LOSS has it for the variant. parents: of argparse, more flags.
    """
    ideas = [f"  {name:13}{str(getdoc(x)).splitlines()[0]}" for name, x in VARIANTS.items()]
    cli = argparse.ArgumentParser(usage=argparse.SUPPRESS, formatter_class=Help, parents=parents)
    cli.epilog = "\n".join(["names (some have defaults of their own, table LOSS):", *ideas])
    add = cli.add_argument
    add("--variant", default="grpo", choices=VARIANTS, metavar="NAME", help="a name below")
    add("--task", default="add", choices=TASKS, help="the arithmetic to learn")
    add("--steps", type=at_least(0), default=400, help="training steps; each samples a rollout")
    add("--seed", type=at_least(0), default=0, help="seed of the problems and the samples")
    add("--prompts", type=at_least(1), default=64, help="prompts in a rollout")
    add("--group-size", type=at_least(2), default=8, help="responses to each prompt")
    add("--temperature", type=at_least(1e-6), default=1.0, help="temperature of sampling")
    add("--lr", type=at_least(1e-12), default=3e-4, help="learning rate; it rises, then falls")
    add("--max-grad-norm", type=at_least(1e-12), default=0.01, help="limit of gradient norms")
    add("--minibatches", type=at_least(1), default=4, help="optimiser steps per rollout, at most")
    add("--clip-low", type=at_least(0.0), default=0.2, help="a push down ends at ratio 1 - this")
    add("--clip-high", type=at_least(0.0), default=0.2, help="a push up ends at ratio 1 + this")
    add("--kl", type=at_least(0.0), default=0.0, help="coefficient of the KL term in the loss")
    add("--aggregate", default="token", choices=["token", "response", "constant"], help="divisor")
    add("--every", type=at_least(1), default=25, help="training steps between printed rows")
    add("--base-seed", type=at_least(0), default=0, help="seed of the base model")
    add("--layers", type=at_least(1), default=2, help="blocks of the GPT")
    add("--width", type=int, choices=[2**n for n in range(2, 11)], default=64, help="of the GPT")
    # The CPU is the default even if there is a GPU, because all numbers of studies/ come from it.
    devices = ["cpu", "cuda"][: 1 + torch.cuda.is_available()]
    add("--device", default="cpu", choices=devices, help="where to compute")
    add("--out", default="runs", help="folder for the runs, one folder each")
    cli.set_defaults(**{"loss_type": "grpo", "cull": False, "save": True} | defaults)
    cli.set_defaults(**LOSS.get(cli.parse_args(argv).variant, {}))
    args = cli.parse_args(argv)
    if args.loss_type == "cispo" and args.clip_low != cli.get_default("clip_low"):
        cli.error("argument --clip-low: cispo has no lower limit")
    # The name of a run has every setting that differs from its default, but not these.
    unnamed = "task variant seed every device save out".split()
    changed = sorted(vars(args).items() - vars(cli.parse_args([])).items())
    parts = [f"{name}{value}" for name, value in changed if name not in unnamed]
    args.name = "-".join([args.task, args.variant, f"seed{args.seed}", *parts])
    return args


def main(argv: list[str] | None = None) -> None:
    """Runs a command line. A bad one raises SystemExit(2) after one line on standard error."""
    run(parse_arguments(argv), base_model)


if __name__ == "__main__":
    main()
