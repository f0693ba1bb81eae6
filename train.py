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
from argparse import ArgumentParser, BooleanOptionalAction, Namespace, RawDescriptionHelpFormatter
from copy import deepcopy
from difflib import get_close_matches
from inspect import getdoc
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from advantages import LOSS, VARIANTS, with_advantages
from grpo import Rollout, descend, encode, judge, response_logprobs, sample_rollout, update
from model import GPT
from tasks import EOS, MARKER, PAD_ID, TASKS, TOKENIZER, Task, make_problems, mark_mistake


def train(args: Namespace, model: GPT):
    """The loop over training steps. Yields rollout, trained rollout (with A), metrics of each."""
    task = TASKS[args.task]
    pool = make_problems(task, held=False)
    order = np.random.default_rng(args.seed)
    rng = torch.Generator(args.device).manual_seed(args.seed)
    sampling = {"temperature": args.temperature, "generator": rng}
    names = "minibatches clip_low clip_high loss_type aggregate kl max_grad_norm"
    settings = {name: vars(args)[name] for name in names.split()}  # of update
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    variant = VARIANTS[args.variant]
    if isinstance(variant, type):  # it has a memory, so each run makes a new one
        variant = variant(new_model(args, outputs=1).to(args.device), args.lr)
    reference = deepcopy(model).requires_grad_(False)  # for the KL term
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        # The learning rate rises over ten training steps, and falls to nearly 0 by the end.
        optimizer.param_groups[0]["lr"] = args.lr * min(step / 10, 1 - (step - 1) / args.steps)
        batch = [pool[i] for i in order.integers(len(pool), size=args.prompts)]  # 1 draw
        rollout = sample_rollout(model, task, batch, args.group_size, **sampling)  # 2, 3 rollout
        trained = with_advantages(rollout, variant)  # 4 advantages
        trained.reference_logprobs = response_logprobs(reference, trained) if args.kl else None
        learned = update(model, optimizer, trained, **settings)  # 5 read, 6 loss, 7 step
        row = {"step": step} | rollout_metrics(rollout, trained, task) | learned  # metrics
        if args.cull:  # a problem is solved if all its responses are correct
            solved = {*batch} - {p for p, r in zip(batch, rollout.rewards) if r.min() < 1}
            pool = [p for p in pool if p not in solved] or make_problems(task, held=False)
        row["seconds"] = time.perf_counter() - started
        check_finite(row["loss"], row["grad_norm"], *model.parameters())
        if step % 25 == 0 or step == args.steps:
            row |= accuracy(model, task)
        yield rollout, trained, row


def check_finite(*numbers) -> None:
    """Raises FloatingPointError if a number is infinite or NaN."""
    if not all(torch.as_tensor(x).isfinite().all() for x in numbers):
        raise FloatingPointError("a number is not finite")


# ---- The base model
def base_model(args: Namespace) -> GPT:
    """The base model of these settings. It is made on one thread: their number changes rounding."""
    torch.set_num_threads(1)
    model = new_model(args).to(args.device)
    steps, correct = warm_up(model, TASKS[args.task], args.base_seed)
    torch.set_num_threads(args.threads)
    say(f"It reached {correct:.0%} in {steps} supervised steps. Next, rewards teach.")
    return model


def new_model(args: Namespace, outputs: int | None = None) -> GPT:
    """A GPT on the CPU, with random weights that depend on --base-seed."""
    longest = TASKS[args.task].longest
    # Room for a prompt, the longest response with EOS, and `likelihood`'s marker, answer and EOS.
    columns = len(longest.prompt) + len(longest.solution) + len(longest.answer) + 3
    torch.manual_seed(args.base_seed)
    return GPT(TOKENIZER.get_vocab_size(), columns, args.layers, args.width, outputs)


def warm_up(model: GPT, task: Task, seed: int, steps=2000, rate=lambda step: 2e-3):
    """Supervised learning (SFT) in place: cross-entropy of the tokens of the solution and of EOS.

    It ends when the share of correct samples for training problems reaches task.share, or after
    `steps` optimiser steps. It returns the number of optimiser steps and the share that was
    measured last. rate: optimiser step (from 1) -> learning rate.
    """
    rng = np.random.default_rng(seed)
    problems = make_problems(task, held=False)
    weights = task.ratio ** np.array([problem.level for problem in problems])
    texts = [problem.prompt + problem.solution + EOS for problem in problems]
    rows, _ = encode(texts, next(model.parameters()).device)  # (N, L)
    start = len(task.longest.prompt)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    correct = 0.0
    bar = progress(None, "warm-up", round(100 * task.share), unit="%")
    for step in range(1, steps + 1):
        optimizer.param_groups[0]["lr"] = rate(step)
        batch = rows[rng.choice(len(rows), 64, p=weights / weights.sum())]  # (64, L)
        h, _ = model(batch[:, :-1])
        logits = model.unembed(h[:, start - 1 :]).transpose(1, 2)  # (64, V, L - start)
        descend(optimizer, cross_entropy(logits, batch[:, start:], ignore_index=PAD_ID))
        if step % 20 == 0:
            correct = sample_rollout(model, task, problems[::8], 1).rewards.mean().item()
            bar.update(min(round(100 * correct), bar.total) - bar.n)
            if correct >= task.share:
                break
    bar.close()
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
    digits. name: its mean over levels. name_reasoning_correct: the share of the correct responses
    whose steps are correct.
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
    return evaluate(model, task, "greedy", 0) | evaluate(model, task, "sampled", 1, samples)


# ---- The files of a run
COLUMNS = """step reward all_fail all_pass entropy length coherence reasoning_correct
mean_abs_advantage loss grad_norm clip_fraction approx_kl seconds greedy sampled sampled_by_level
sampled_reasoning_correct"""


def cells(row: dict) -> dict:
    """A row as metrics.csv holds it: shares by level are separated by spaces."""
    return {k: " ".join(map(str, x.values())) if isinstance(x, dict) else x for k, x in row.items()}


def run(args: Namespace) -> None:
    """Makes the base model, trains it, prints, and writes the files of the run."""
    started = time.perf_counter()
    show_start(args)
    task = TASKS[args.task]
    folder = Path(os.path.expanduser(args.out), args.name)  # some shells do not in --out=~/runs
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "summary.json").exists():
        say(f"This replaces the finished run in {folder}.")
    # Each row is flushed when its line ends. A full disk may leave a part of the last one.
    with open(folder / "metrics.csv", "w", buffering=1, newline="", encoding="utf-8") as file:
        (folder / "summary.json").unlink(missing_ok=True)  # only a finished run has one
        table = csv.DictWriter(file, COLUMNS.split(), extrasaction="ignore")
        table.writeheader()
        model = base_model(args)
        base = accuracy(model, task, samples=4)
        rows = [{"step": 0} | base]
        table.writerow(cells(rows[0]))
        show_row(rows[0], model, task)
        bar = progress(train(args, model), args.variant, args.steps)
        try:
            for _, _, row in bar:
                table.writerow(cells(row))
                bar.set_postfix_str(f"reward {row['reward']:.2f}", refresh=False)
                if "greedy" in row:
                    show_row(row, model, task)
                rows.append(row)
        except FloatingPointError as error:
            raise FloatingPointError(f"training step {len(rows)}: {error}; is --lr too high?")
    summary = vars(args) | {"torch": torch.__version__}
    summary |= {f"base_{name}": x for name, x in base.items()}
    summary |= {f"final_{name}": x for name, x in accuracy(model, task, samples=4).items()}
    summary["seconds"] = time.perf_counter() - started
    summary["seconds_per_step"] = float(np.median([row["seconds"] for row in rows[1:]] or [0]))
    save(model, summary, folder)
    show_end(summary, task, folder)


def save(model: GPT, summary: dict, folder: Path) -> None:
    """Writes model.pt, and then summary.json, which is removed if it cannot be written whole."""
    weights = BytesIO()
    torch.save(model.state_dict(), weights)  # on a full disk, torch would raise another error
    (folder / "model.pt").write_bytes(weights.getvalue())
    try:
        (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    except BaseException:  # Ctrl-C as well
        (folder / "summary.json").unlink(missing_ok=True)
        raise


# ---- Printing: text on standard output, bars on standard error
say = tqdm.write  # prints a line above the bar
HEAD = "step reward all-fail all-pass sampled greedy "
ROW = "{step:4} {reward:6.2f} {all_fail:8.0%} {all_pass:8.0%} {sampled:7.1%} {greedy:6.1%}"
BASE = "{step:4} {sampled:32.1%} {greedy:6.1%}"  # before training


def progress(steps, name: str, total: int, **more) -> tqdm:
    """A bar that goes when it ends. There is none without a terminal."""
    return tqdm(steps, name, total, leave=False, ascii=" #", disable=None, **more)


def show_start(args: Namespace) -> None:
    """Says what is learned, and how: the first two paragraphs of the variant's docstring."""
    doc = getdoc(VARIANTS[args.variant]) or "No docstring."
    idea = "\n\n".join(doc.split("\n\n")[:2])
    task = TASKS[args.task]
    say(f"Task {args.task}: {task.work}")
    say(f"The answer follows after {MARKER}. If it is correct, the reward is 1, else 0.")
    say(f"\nVariant {args.variant} (in advantages.py):\n{idea}")
    say(f"\nA step draws {args.group_size} responses, a group, to each of {args.prompts} problems.")
    say("A group is all-fail if all its answers are wrong, and all-pass if all are correct.")
    say("Reward and these two are of one step. Accuracy is of problems that training never sees.")
    say("On the right is a greedy response to one of them, with its first mistake in [ ].")
    say("It is called rewarded if its answer is correct, even if a step is wrong.\n")
    say(f"The warm-up imitates solutions until {task.share:.0%} of training samples are correct.")


def show_row(row: dict, model: GPT, task: Task) -> None:
    """One line: the metrics of a training step, and a response to the same example every time."""
    example = make_problems(task, held=True)[-4]  # a long one
    if row["step"] == 0:
        say(f"\n{HEAD} response to {example.prompt}\n{'':46}{example.solution} solution")
    numbers = (ROW if "reward" in row else BASE).format(**row)
    response = sample_rollout(model, task, [example], 1, temperature=0).texts[0][0]
    text, _ = mark_mistake(example, response)
    verdict = "rewarded" if task.reward(example, response) else ""
    say(f"{numbers}  {text} {verdict}".rstrip())


def show_end(summary: dict, task: Task, folder: Path) -> None:
    """The result, accuracy before and after training, and where to look next."""
    done = "\nDone in {seconds:.0f} s. Correct answers to problems never trained on: "
    say((done + "{base_sampled:.1%} -> {final_sampled:.1%}").format(**summary))
    say("(Mean over levels, four samples of each problem, as in step 0. Other rows have one.)")
    say(f"\n{task.unit:17}" + "".join(f"{n:>6}" for n in (*task.levels, "all")) + "   (%)")
    for kind in ("sampled", "greedy"):
        for name, when in (("base", "before"), ("final", "after")):
            shares = [*summary[f"{name}_{kind}_by_level"].values(), summary[f"{name}_{kind}"]]
            say(f"{f'{kind}, {when}':17}" + "".join(f"{100 * x:6.1f}" for x in shares))
    shares = [summary[f"{x}_sampled_reasoning_correct"] for x in ("base", "final")]
    say("Of the rewarded samples, {:.1%} had correct steps before, {:.1%} after.".format(*shares))
    if summary["final_sampled"] and shares[1] < 1:
        worse = ", and the steps got worse" if shares[1] < shares[0] else ""
        say(f"The others have wrong or missing steps. Only answers are rewarded{worse}.")
    say(f"Saved in {folder} (tools/README.md explains the files).")
    quoted = f'"{folder}"' if os.name == "nt" else shlex.quote(str(folder))
    say(f"See a group of it:  python -m tools.ask {quoted} --group")
    say(f"Draw its curves:    python -m tools.curves {quoted}")


# ---- The command line
NUMBERS = {  # flag: its default, the smallest and the largest number that is allowed, and its help
    "steps": (400, 0, 10**9, "training steps; each samples a rollout"),
    "seed": (0, 0, 10**9, "seed of the problems and the samples"),
    "prompts": (64, 1, 10**9, "prompts in a rollout"),
    "group-size": (8, 2, 10**9, "responses to each prompt"),
    "temperature": (1.0, 1e-3, 10**9, "temperature of sampling"),
    "lr": (3e-4, 1e-12, 10**9, "learning rate; it rises, then falls"),
    "max-grad-norm": (0.01, 1e-12, 10**9, "limit of gradient norms"),
    "minibatches": (4, 1, 10**9, "optimiser steps per rollout"),
    "clip-high": (0.2, 0, 10**9, "a push up ends at ratio 1 + this"),
    "clip-low": (0.2, 0, 1, "a push down ends at 1 - this"),
    "kl": (0.0, 0, 10**9, "coefficient of the KL term in the loss"),
    "base-seed": (0, 0, 10**9, "seed of the base model"),
    "layers": (2, 1, 24, "blocks of the GPT"),
    "width": (64, 4, 2048, "vector length, a multiple of 4"),
    "threads": (1, 1, 1024, "CPU threads for training"),
}


def parse_arguments(argv: list[str]) -> Namespace:
    """The command line as settings. A bad one raises SystemExit(2) after one line of error."""
    ideas = [f"  {name:13}{str(getdoc(x)).splitlines()[0]}" for name, x in VARIANTS.items()]
    cli = ArgumentParser("train.py", "%(prog)s [--variant NAME] [flags]")
    cli.error = lambda text: cli.exit(2, f"train.py: error: {text}\n")  # one line, no usage
    cli.formatter_class = RawDescriptionHelpFormatter  # the list of variants keeps its lines
    cli.epilog = "\n".join(["names:", *ideas, "", "for example: python train.py --variant half"])

    def add(flag, default, text, **more):
        cli.add_argument(flag, default=default, help=f"{text} (default: %(default)s)", **more)

    add("--variant", "grpo", "a name below; with --help, its own defaults", metavar="NAME")
    add("--task", "add", "the arithmetic to learn", choices=TASKS)
    for flag, (default, _, _, text) in NUMBERS.items():
        kind = type(default)
        add(f"--{flag}", default, text, type=kind, metavar="N" if kind is int else "X")
    add("--aggregate", "token", "divisor of the loss", choices=["token", "response", "constant"])
    add("--loss-type", None, "ratio and clip", choices=["grpo", "gspo", "cispo"])
    add("--cull", False, "draw no solved problem again", action=BooleanOptionalAction)
    # The CPU is the default even if there is a GPU, because all numbers of studies/ come from it.
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    add("--device", "cpu", "where to compute", choices=devices)
    add("--out", "runs", "folder for the runs, one folder each")
    # The defaults are those of the variant in LOSS. If --loss-type is another one than its own,
    # clip and aggregate are those of that loss type.
    first, _ = cli.parse_known_args([x for x in argv if x not in ("-h", "--help")])
    own = {"loss_type": "grpo", "cull": False} | LOSS.get(first.variant, {})
    if first.loss_type not in (None, own["loss_type"]):
        own = LOSS.get(first.loss_type, {}) | {x: own[x] for x in ("loss_type", "cull")}
    cli.set_defaults(**own)
    args = cli.parse_args(argv)
    if args.variant not in VARIANTS:
        near = ", ".join(get_close_matches(args.variant, VARIANTS, cutoff=0))
        cli.error(f"argument --variant: there is no {args.variant!r}; near: {near}; all: --help")
    check_numbers(args, cli.error)
    if args.loss_type == "cispo" and args.clip_low < 1:
        cli.error("argument --clip-low: cispo has no lower limit, so only 1 is allowed")
    # The name has every setting that differs from its default, but not threads and device.
    names = sorted(vars(args).keys() - {"task", "variant", "seed", "threads", "device", "out"})
    changed = [f"{x}{vars(args)[x]}" for x in names if vars(args)[x] != cli.get_default(x)]
    args.name = "-".join([args.task, args.variant, f"seed{args.seed}", *changed])
    return args


def check_numbers(args: Namespace, error) -> None:
    """Calls error with one line if a number is not within its limits (NUMBERS)."""
    for flag, (_, low, high, text) in NUMBERS.items():
        value = vars(args)[flag.replace("-", "_")]
        if not low <= value <= high or flag == "width" and value % 4:
            error(f"argument --{flag}: must be {low} to {high} ({text}), not {value}")


def main(argv: list[str]) -> None:
    """Runs a command line. SystemExit: 2 for a bad line, 1 for an error below, 130 for Ctrl-C."""
    args = parse_arguments(argv)
    try:
        run(args)
    except (OSError, FloatingPointError) as error:
        sys.exit(f"train.py: error: {error}")
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise  # it does not come from the allocator
        sys.exit("train.py: error: not enough memory: try a smaller --prompts or --group-size")
    except KeyboardInterrupt:
        print(f"train.py: stopped by Ctrl-C; see {Path(args.out, args.name)}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # in a pipe as well
    main(sys.argv[1:])
