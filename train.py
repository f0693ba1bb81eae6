"""Trains a small GPT on arithmetic by GRPO or a variant: python train.py --variant nthr

    base model -> each training step: problems -> rollout -> advantages -> update -> metrics

The loop comes first. The numbers beside its lines are the steps at the top of grpo.py.
"""

import csv
import json
import os
import shlex
import sys
import time
from argparse import SUPPRESS, ArgumentDefaultsHelpFormatter, ArgumentParser
from argparse import ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from contextlib import suppress
from copy import deepcopy
from inspect import getdoc
from io import BytesIO
from pathlib import Path
from textwrap import fill

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from advantages import LOSS, VARIANTS
from grpo import Rollout, descend, encode, judge, response_logprobs, sample_rollout, update
from model import GPT
from tasks import EOS, MARKER, PAD_ID, TASKS, TOKENIZER, Problem, Task, make_problems, marked

# The warm-up ends at this share of correct samples, which is low, so that most is learned from
# rewards. It shows a problem this many times as often as a problem of the level below.
WARM_UP = {"add": (0.13, 1.5), "mul": (0.1, 1.0), "sum": (0.4, 0.8)}


def train(args: Namespace, model: GPT, variants: dict = VARIANTS):
    """The loop over training steps. Yields rollout, trained rollout (with A), metrics of each."""
    task = TASKS[args.task]
    pool = make_problems(task, held=False)
    order = np.random.default_rng(args.seed)
    rng = torch.Generator(args.device).manual_seed(args.seed)
    sampling = {"temperature": args.temperature, "generator": rng}
    names = "minibatches clip_low clip_high loss_type aggregate kl max_grad_norm"
    settings = {name: getattr(args, name) for name in names.split()}  # of update
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    variant = variants[args.variant]
    if isinstance(variant, type):  # it has a memory, so each run makes a new one
        variant = variant(new_model(args, outputs=1).to(args.device), args.lr)
    reference = deepcopy(model).requires_grad_(False)  # for the KL term
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        # The learning rate rises over ten training steps, and falls to nearly 0 until the end.
        optimizer.param_groups[0]["lr"] = args.lr * min(step / 10, 1 - (step - 1) / args.steps)
        batch = [pool[i] for i in order.integers(len(pool), size=args.prompts)]  # 1 draw
        rollout = sample_rollout(model, task, batch, args.group_size, **sampling)  # 2, 3 rollout
        trained = variant(rollout)  # 4 advantages
        if args.kl > 0:
            trained.reference_logprobs = response_logprobs(reference, trained)
        learned = update(model, optimizer, trained, **settings)  # 5 read, 6 loss, 7 step
        row = {"step": step} | rollout_metrics(rollout, trained, task) | learned  # metrics
        # Solved problems are not drawn again (culling). If none is left, all come back.
        pool = [p for p in pool if p not in trained.solved] or make_problems(task, held=False)
        row["seconds"] = time.perf_counter() - started
        logits = model.unembed(model(rollout.prompts[:1])[0])  # finite weights can overflow here
        check_finite(step, row["loss"], row["grad_norm"], logits, *model.parameters())
        if step % 25 == 0 or step == args.steps:
            row |= accuracy(model, task)
        yield rollout, trained, row


def check_finite(step: int, *numbers) -> None:
    """Raises FloatingPointError, which names the training step, if a number is not finite."""
    if not all(torch.as_tensor(x).isfinite().all() for x in numbers):
        raise FloatingPointError(f"training step {step}: a number is not finite; is --lr too high?")


# ---- The base model
def new_model(args: Namespace, outputs: int | None = None) -> GPT:
    """A GPT on the CPU, with random weights that depend on --base-seed."""
    longest = TASKS[args.task].longest
    # Room for a prompt, the longest response with EOS, and `likelihood`'s marker, answer and EOS.
    columns = len(longest.prompt) + len(longest.solution) + len(longest.answer) + 3
    torch.manual_seed(args.base_seed)
    return GPT(TOKENIZER.get_vocab_size(), columns, args.layers, args.width, outputs)


def check_task(name: str) -> None:
    """Raises ValueError if a task of your own lacks what a run needs."""
    found = [{p.level for p in make_problems(TASKS[name], held)} for held in (True, False)]
    if name not in WARM_UP or not {*TASKS[name].levels} == found[0] == found[1]:
        needs = "an entry in WARM_UP of train.py, and held-out and other problems of every level"
        raise ValueError(f"task {name} needs {needs}")


def base_model(args: Namespace, say=lambda line: None) -> GPT:
    """The base model of these settings. It is made on one thread: their number changes rounding."""
    say(f"\nThe warm-up imitates solutions until {WARM_UP[args.task][0]:.0%} of samples are right.")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = new_model(args).to(args.device)
    steps, correct = warm_up(model, TASKS[args.task], args.base_seed, *WARM_UP[args.task])
    say(f"It reached {correct:.0%} in {steps} supervised steps. Next, answers are rewarded.")
    torch.set_num_threads(threads)
    return model


def warm_up(model, task, seed, share, ratio, steps=2000, rate=lambda step: 2e-3):
    """Supervised learning (SFT) in place: cross-entropy of the tokens of the solution and of EOS.

    It ends when the share of correct samples for training problems reaches `share`, or after
    `steps` optimiser steps. It returns the number of optimiser steps and the share that was
    measured last. A problem is shown `ratio` times as often as one of the level below. rate:
    optimiser step (from 1) -> learning rate.
    """
    rng = np.random.default_rng(seed)
    problems = make_problems(task, held=False)
    weights = ratio ** np.array([problem.level for problem in problems])
    texts = [problem.prompt + problem.solution + EOS for problem in problems]
    rows, _ = encode(texts, next(model.parameters()).device)  # (N, L)
    start = len(task.longest.prompt)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    correct = 0.0
    bar = progress(range(1, steps + 1), "warm-up")
    for step in bar:
        optimizer.param_groups[0]["lr"] = rate(step)
        batch = rows[rng.choice(len(rows), 64, p=weights / weights.sum())]  # (64, L)
        h, _ = model(batch[:, :-1])
        logits = model.unembed(h[:, start - 1 :]).transpose(1, 2)  # (64, V, L - start)
        descend(optimizer, cross_entropy(logits, batch[:, start:], ignore_index=PAD_ID))
        if step % 20 == 0:
            correct = sample_rollout(model, task, problems[::8], 1).rewards.mean().item()
            bar.set_postfix_str(f"{correct:.0%} correct")
            if correct >= share:
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

    Returns three entries. name: the share of correct responses, as the mean over levels.
    name_by_level: {2: 0.9, ...}. name_reasoning_correct: the share of the correct responses whose
    steps are correct.
    """
    problems = make_problems(task, held=True)
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    rollout = sample_rollout(model, task, problems, samples, temperature, generator=generator)
    correct = rollout.rewards.cpu() == 1  # (P, samples)
    levels = torch.tensor([problem.level for problem in problems])
    by_level = {n: round(correct[levels == n].float().mean().item(), 4) for n in task.levels}
    mean = sum(by_level.values()) / len(by_level)
    share = judge(task.reasoning_correct, problems, rollout.texts)[correct].mean().nan_to_num()
    return {name: mean, f"{name}_by_level": by_level, f"{name}_reasoning_correct": share.item()}


def accuracy(model: GPT, task: Task, samples: int = 1) -> dict:
    """Evaluates greedily, and with `samples` samples of each problem at temperature 1."""
    greedy = evaluate(model, task, "greedy", temperature=0)
    return greedy | evaluate(model, task, "sampled", temperature=1, samples=samples)


# ---- The files of a run
COLUMNS = """step reward all_fail all_pass entropy length coherence reasoning_correct
mean_abs_advantage loss grad_norm clip_fraction approx_kl seconds greedy sampled sampled_by_level
sampled_reasoning_correct"""


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file under another name and then renames it, so the file is whole or not there."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def cells(row: dict) -> dict:
    """A row as metrics.csv holds it: shares by level are separated by spaces."""
    return {k: " ".join(map(str, x.values())) if isinstance(x, dict) else x for k, x in row.items()}


def run(args: Namespace, model: GPT | None = None, variants: dict = VARIANTS) -> None:
    """Trains, prints, and writes the files of a run. model: the base model; None makes it here."""
    started = time.perf_counter()
    task = TASKS[args.task]
    check_task(args.task)
    folder = Path(args.out, args.name)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "summary.json").exists():
        say(f"\nThis replaces the finished run in {folder}.")
    # Each row is flushed when its line ends. A full disk may leave a part of the last one.
    with open(folder / "metrics.csv", "w", buffering=1, newline="", encoding="utf-8") as file:
        (folder / "summary.json").unlink(missing_ok=True)  # only a finished run has one
        table = csv.DictWriter(file, COLUMNS.split(), extrasaction="ignore")
        table.writeheader()
        model = model or base_model(args, say)
        base = accuracy(model, task, samples=4)
        rows = [{"step": 0} | base]
        table.writerow(cells(rows[0]))
        show_row(rows[0], model, task)
        mixed = []  # the problems of the last rollout whose groups are mixed
        bar = progress(train(args, model, variants), args.variant, args.steps)
        for x, _, row in bar:
            rows.append(row)
            table.writerow(cells(row))
            bar.set_postfix_str(f"reward {row['reward']:.2f}", refresh=False)
            if "greedy" in row:
                show_row(row, model, task)
            mixed = [p for p, r in zip(x.problems, x.rewards) if r.min() < r.max()]
    weights = BytesIO()
    torch.save(model.state_dict(), weights)
    write_whole(folder / "model.pt", weights.getvalue())
    summary = vars(args) | {"torch": torch.__version__}
    summary |= {f"base_{name}": x for name, x in base.items()}
    summary |= {f"final_{name}": x for name, x in accuracy(model, task, samples=4).items()}
    summary["seconds"] = time.perf_counter() - started
    summary["seconds_per_step"] = float(np.median([row["seconds"] for row in rows[1:]] or [0]))
    write_whole(folder / "summary.json", json.dumps(summary, indent=2).encode())
    show_end(summary, task, folder, mixed)


# ---- Printing: text on standard output, bars on standard error
HEAD = "step reward all-fail sampled greedy entropy "
SHOWN = dict(zip(HEAD.replace("-", "_").split(), ("", ".2f", ".0%", ".1%", ".1%", ".2f")))


def progress(steps, name: str, total: int | None = None) -> tqdm:
    """A bar that goes when it ends. There is none without a terminal or if TQDM_DISABLE is set."""
    off = bool(os.environ.get("TQDM_DISABLE")) or None
    return tqdm(steps, name, total, leave=False, ascii=" #", disable=off)


def say(text: str) -> None:
    """Prints a text above the bar at once."""
    with tqdm.external_write_mode():
        print(text.rstrip(), flush=True)


def show_start(args: Namespace, task: Task, doc: str) -> None:
    """Says what is learned, and how: the first two paragraphs of doc, the variant's docstring."""
    work = getdoc(task.work) or "no docstring."
    work = work.replace("`level`", f"{task.levels[0]} to {task.levels[-1]}")
    say(f"Task {args.task}: " + work.replace(": ", ".\n") + f" The answer follows after {MARKER}.")
    say(f"The answer is rewarded, the steps are not.\n\nVariant {args.variant} (in advantages.py):")
    parts = doc.split("\n\n")[:2]
    say("\n".join(x if x[:1] == " " else fill(x.rstrip(".:") + ".", 80) for x in parts))
    say(f"\nEach step samples {args.group_size} responses to each of {args.prompts} problems.")
    say("Accuracy, sampled or greedy, is measured on problems that training never sees.")
    say("On the right is a greedy response to one of them, with its first mistake in [ ].")


def show_row(row: dict, model: GPT, task: Task) -> None:
    """One line: the metrics of a training step, and a response to the same example every time."""
    example = make_problems(task, held=True)[-4:][0]  # a hard one: base models get it wrong
    if row["step"] == 0:
        say(f"\n{HEAD} response to {example.prompt}\n{'':45}{example.solution} solution")
    shown = [f"{format(row[x], form) if x in row else '':>{len(x)}}" for x, form in SHOWN.items()]
    response = sample_rollout(model, task, [example], 1, temperature=0).texts[0][0]
    text, mistake = marked(example, response)
    rewarded = " rewarded" * int(task.reward(example, response))
    say(f"{' '.join(shown)}  {text}{rewarded if mistake else ' correct'}")


def show_end(summary: dict, task: Task, folder: Path, mixed: list[Problem]) -> None:
    """The result, accuracy before and after training, and where to look next."""
    done = "\nDone in {seconds:.0f} s. Correct answers to problems never trained on: "
    say((done + "{base_sampled:.1%} -> {final_sampled:.1%}").format(**summary))
    say(f"\n{task.unit:17}" + "".join(f"{n:>6}" for n in (*task.levels, "all")) + "   (%)")
    for kind in ("sampled", "greedy"):
        for name, when in (("base", "before"), ("final", "after")):
            shares = [*summary[f"{name}_{kind}_by_level"].values(), summary[f"{name}_{kind}"]]
            say(f"{f'{kind}, {when}':17}" + "".join(f"{100 * x:6.1f}" for x in shares))
    shares = [summary[f"{x}_sampled_reasoning_correct"] for x in ("base", "final")]
    say("Of the correct samples, {:.1%} had correct steps before, {:.1%} after.".format(*shares))
    say(f"Saved in {folder} (tools/README.md explains the files).")
    prompts = [problem.prompt.replace(" ", "") for problem in mixed[:1]]
    group = shlex.join(["ask", str(folder), *prompts, "--group"])
    say(f"See a group of it:  python -m tools.{group}")
    say("Draw its curves:    python -m tools." + shlex.join(["curves", str(folder)]))


# ---- The command line
def number(kind: type, low: float, high: float = 10**9, multiple: int | None = None):
    """An argparse type: turns a text into a number from low to high."""

    def convert(text: str):
        with suppress(ValueError):
            value = kind(text)
            if low <= value <= high and not (multiple and value % multiple):
                return value
        what = f"multiple of {multiple}" if multiple else kind.__name__
        raise ArgumentTypeError(f"{text!r} is not allowed; every {what} from {low} to {high} is")

    return convert


# The CPU is the default even if there is a GPU, because all numbers of studies/ come from it.
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


class Layout(ArgumentDefaultsHelpFormatter, RawDescriptionHelpFormatter):
    """The layout of --help: it shows defaults, and the list of variants keeps its lines."""


def parse_arguments(argv: list[str], variants: dict = VARIANTS, losses: dict = LOSS) -> Namespace:
    """The command line as settings. A bad one raises SystemExit(2) after a line on standard error.

    variants and losses: the tables of advantages.py, or larger ones.
    """
    ideas = ["names:"] + [f"  {v:13}{str(getdoc(x)).splitlines()[0]}" for v, x in variants.items()]
    # We suppress the usage, so that an error is one line.
    cli = ArgumentParser("train.py", SUPPRESS, None, "\n".join(ideas), [], Layout, add_help=False)
    add = cli.add_argument_group("what to train").add_argument
    add("--variant", choices=variants, default="grpo", metavar="NAME", help="one of those below")
    add("--task", choices=TASKS, default="add", help="the arithmetic to learn")
    add("--steps", type=number(int, 0), default=400, help="training steps; each samples a rollout")
    add("--seed", type=number(int, 0), default=0, help="seed of the problems and the samples")
    add = cli.add_argument_group("GRPO").add_argument
    add("--prompts", type=number(int, 1), default=64, help="prompts in a rollout")
    add("--group-size", type=number(int, 2), default=8, help="responses to each prompt")
    add("--temperature", type=number(float, 1e-3), default=1.0, help="temperature of sampling")
    add("--lr", type=number(float, 1e-12), default=3e-4, help="learning rate; it rises, then falls")
    add("--max-grad-norm", type=number(float, 1e-12), default=0.01, help="limit of gradient norms")
    add("--minibatches", type=number(int, 1), default=4, help="optimiser steps per rollout")
    add("--clip-high", type=number(float, 0), default=0.2, help="a push up ends at ratio 1 + this")
    add("--clip-low", type=number(float, 0, 1), default=0.2, help="a push down ends at 1 - this")
    add("--loss-type", choices=["grpo", "gspo", "cispo"], default="grpo", help="ratio and clip")
    lengths = ["token", "response", "constant"]  # the mean length, its own, or the greatest
    add("--aggregate", choices=lengths, default="token", help="which length the loss divides by")
    add("--kl", type=number(float, 0), default=0.0, help="coefficient of the KL term in the loss")
    add = cli.add_argument_group("the model and this computer").add_argument
    add("--base-seed", type=number(int, 0), default=0, help="seed of the base model")
    add("--layers", type=number(int, 1, 24), default=2, help="blocks of the GPT")
    add("--width", type=number(int, 4, 2048, 4), default=64, help="vector length, a multiple of 4")
    add("--threads", type=number(int, 1, 1024), default=1, help="CPU threads for training")
    add("--device", choices=DEVICES, default="cpu", help="where to compute")
    add("--out", default="runs", help="folder for the runs, one folder each")
    # Variant and loss type come first, because their loss settings are the defaults of other flags.
    first, _ = cli.parse_known_args(argv, Namespace(loss_type=None))  # None if it is not given
    own = losses.get(first.variant, {})
    other = first.loss_type not in (None, own.get("loss_type", "grpo"))
    cli.set_defaults(**losses.get(first.loss_type, {}) if other else own)
    add("--help", "-h", action="help", help="show this, with the defaults of --variant")
    args = cli.parse_args(argv)
    if args.loss_type == "cispo" and args.clip_low < 1:
        cli.error("argument --clip-low: cispo has no lower limit, so only 1 is allowed")
    args.name = folder_name(args, cli.get_default)
    return args


def folder_name(args: Namespace, default) -> str:
    """It contains every setting that differs from its default, but not threads and device."""
    names = sorted(vars(args).keys() - {"task", "variant", "seed", "threads", "device", "out"})
    changed = [f"{k}{vars(args)[k]}" for k in names if vars(args)[k] != default(k)]
    return "-".join([args.task, args.variant, f"seed{args.seed}", *changed])


def main(argv: list[str]) -> None:
    """Runs a command line. SystemExit: 2 for a bad line, 1 for another error, 130 for Ctrl-C."""
    sys.stderr = sys.stderr or open(os.devnull, "w")  # None after 2>&-
    args = parse_arguments(argv)
    try:
        torch.set_num_threads(args.threads)
        show_start(args, TASKS[args.task], getdoc(VARIANTS[args.variant]) or "No docstring")
        run(args)
    except (OSError, FloatingPointError, ValueError) as error:
        sys.exit(f"train.py: error: {error}")
    except KeyboardInterrupt:
        print(f"train.py: stopped by Ctrl-C; see {Path(args.out, args.name)}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main(sys.argv[1:])
