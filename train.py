"""Trains a small GPT on arithmetic by GRPO or a variant: python train.py --variant nthr

    base model -> each training step: problems -> rollout -> advantages -> update -> metrics

The loop comes first. The numbers beside its lines are the steps at the top of grpo.py.
"""

import csv
import json
import time
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from copy import deepcopy
from inspect import getdoc
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

from advantages import LOSS, VARIANTS, with_advantages
from grpo import Rollout, descend, encode, judge, response_logprobs, sample_rollout, update
from model import GPT
from tasks import EOS, PAD_ID, TASKS, TOKENIZER, Task, make_problems, mark_mistake


def train(args: Namespace, model: GPT):
    """The loop. After each step it yields the rollout, the same with A, and the step's metrics."""
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
    reference = deepcopy(model).requires_grad_(False) if args.kl else None
    for step in range(1, args.steps + 1):
        started = time.perf_counter()
        # The learning rate rises over ten training steps, and falls to nearly 0 by the end.
        optimizer.param_groups[0]["lr"] = args.lr * min(step / 10, 1 - (step - 1) / args.steps)
        batch = [pool[i] for i in order.integers(len(pool), size=args.prompts)]  # 1 draw
        rollout = sample_rollout(model, task, batch, args.group_size, **sampling)  # 2, 3 rollout
        trained = with_advantages(rollout, variant)  # 4 advantages
        if args.kl:
            trained.reference_logprobs = response_logprobs(reference, trained)
        learned = update(model, optimizer, trained, **settings)  # 5 read, 6 loss, 7 step
        row = {"step": step} | rollout_metrics(rollout, trained, task) | learned  # metrics
        if args.cull:  # a problem is solved if all its responses are correct
            solved = {*batch} - {p for p, r in zip(batch, rollout.rewards) if r.min() < 1}
            pool = [p for p in pool if p not in solved] or make_problems(task, held=False)
        row["seconds"] = time.perf_counter() - started
        if not all(weight.isfinite().all() for weight in model.parameters()):
            raise FloatingPointError("a weight is not finite")
        if step % 25 == 0 or step == args.steps:
            row |= accuracy(model, task)
        yield rollout, trained, row


# ---- The base model
def base_model(args: Namespace) -> GPT:
    """The base model of these settings. It is made on one thread: their number changes rounding."""
    torch.set_num_threads(1)
    model = new_model(args).to(args.device)
    steps, correct = warm_up(model, TASKS[args.task], args.base_seed)
    torch.set_num_threads(args.threads)
    say(f"Base model: {steps} steps of imitation, {correct:.0%} correct on training problems.\n")
    return model


def new_model(args: Namespace, outputs: int | None = None) -> GPT:
    """A GPT on the CPU, with random weights that depend on --base-seed."""
    longest = TASKS[args.task].longest
    # Room for a prompt, the longest response with EOS, and `likelihood`'s marker, answer and EOS.
    columns = len(longest.prompt) + len(longest.solution) + len(longest.answer) + 3
    torch.manual_seed(args.base_seed)
    return GPT(TOKENIZER.get_vocab_size(), columns, args.layers, args.width, outputs)


def warm_up(model: GPT, task: Task, seed: int, steps=2000) -> tuple[int, float]:
    """Supervised learning (SFT) in place: cross-entropy of the tokens of the solution and of EOS.

    It ends when the share of correct samples for training problems reaches task.share, or after
    `steps` optimiser steps. It returns the number of optimiser steps and the share that was
    measured last.
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
    digits. name: its mean over levels. name_reasoning_correct: the share of the correct responses
    whose steps are correct.
    """
    problems = make_problems(task, held=True)
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    rollout = sample_rollout(model, task, problems, samples, temperature, generator=generator)
    correct = rollout.rewards.cpu() == 1  # (P, samples)
    level = torch.tensor([problem.level for problem in problems])
    found = {n: correct[level == n].float().mean().item() for n in task.levels if n in level}
    by_level = {n: round(share, 4) for n, share in found.items()}
    mean = sum(by_level.values()) / len(by_level)
    share = judge(task.reasoning_correct, problems, rollout.texts)[correct].mean().nan_to_num()
    return {name: mean, f"{name}_by_level": by_level, f"{name}_reasoning_correct": share.item()}


def accuracy(model: GPT, task: Task, samples: int = 1) -> dict:
    """Evaluates greedily, and with `samples` samples of each problem at temperature 1."""
    return evaluate(model, task, "greedy", 0) | evaluate(model, task, "sampled", 1, samples)


# ---- A run: what it writes and what it prints
say = tqdm.write  # prints a line above the bar
COLUMNS = """step reward all_fail all_pass entropy length coherence reasoning_correct
mean_abs_advantage loss grad_norm clip_fraction approx_kl seconds greedy sampled sampled_by_level
sampled_reasoning_correct"""
HEAD = "step reward all-fail all-pass sampled greedy  response to"
ROW = "{step:4} {reward:6.2f} {all_fail:8.0%} {all_pass:8.0%} {sampled:7.1%} {greedy:6.1%}"
BASE = "{step:4} {sampled:32.1%} {greedy:6.1%}"  # before training


def run(args: Namespace) -> None:
    """Makes the base model, trains it, shows how, and writes the files of the run."""
    started = time.perf_counter()
    task = TASKS[args.task]
    if not all(make_problems(task, held) for held in (True, False)):
        raise ValueError(f"the task {args.task} has no held-out problem, or none to train on")
    folder = Path(args.out, args.name).expanduser()  # some shells do not in --out=~/runs
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)  # only a finished run has one
    show_start(args)
    model = base_model(args)
    base = accuracy(model, task, samples=4)
    row = {"step": 0} | base
    with open(folder / "metrics.csv", "w", buffering=1, newline="") as file:  # 1: line by line
        table = csv.DictWriter(file, COLUMNS.split(), extrasaction="ignore")
        table.writeheader()
        table.writerow(cells(row))
        show_row(row, model, task)
        steps = tqdm(train(args, model), args.variant, args.steps, leave=False, disable=None)
        try:
            for _, trained, row in steps:
                table.writerow(cells(row))
                if "greedy" in row:
                    show_row(row, model, task)
        except FloatingPointError as error:
            raise FloatingPointError(f"step {row['step'] + 1}: {error}: is --lr too high?")
    final = accuracy(model, task, samples=4)
    summary = vars(args) | {"torch": torch.__version__, "seconds": time.perf_counter() - started}
    summary |= {f"base_{name}": x for name, x in base.items()}
    summary |= {f"final_{name}": x for name, x in final.items()}
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "summary.json").write_text(json.dumps(summary, indent=2))
    if args.steps:
        show_group(trained)
    show_end(args, summary, folder)


def cells(row: dict) -> dict:
    """A row as metrics.csv holds it: shares by level are separated by spaces."""
    return {k: " ".join(map(str, x.values())) if isinstance(x, dict) else x for k, x in row.items()}


def show_start(args: Namespace) -> None:
    """Says what is learned, and how: the first two paragraphs of the variant's docstring."""
    idea = str(getdoc(VARIANTS[args.variant])).split("\n\n")[:2]
    say(f"Task {args.task}: {TASKS[args.task].work}")
    say(f"\nVariant {args.variant}, in advantages.py:\n" + "\n\n".join(idea))
    say(f"\nA group is {args.group_size} responses to a problem. A step has {args.prompts} groups.")
    say("A response is rewarded if its answer is correct, even if a step before it is wrong.")
    say("A group is all-fail if none of its responses is rewarded, and all-pass if all are.\n")


def show_row(row: dict, model: GPT, task: Task) -> None:
    """One line: the metrics of a training step, and a response to the same example every time."""
    example = make_problems(task, held=True)[-4:][0]  # a long one
    if row["step"] == 0:
        say(f"{HEAD} {example.prompt}\n{'':46}{example.solution} solution")
    response = sample_rollout(model, task, [example], 1, temperature=0).texts[0][0]
    numbers = (ROW if "reward" in row else BASE).format(**row)
    verdict = " rewarded" * (task.reward(example, response) == 1)
    say(f"{numbers}  {mark_mistake(example, response)[0]}{verdict}")


def show_group(trained: Rollout) -> None:
    """A correct and an incorrect response to one problem, and the advantage of each token.

    The problem is the one whose group is nearest to half correct. Of its responses of each kind, we
    show the one whose advantages differ most from token to token.
    """
    correct = trained.rewards == 1  # (P, G)
    p = (correct.float().mean(1) - 0.5).abs().argmin().item()
    problem = trained.problems[p]
    if correct[p].all() or not correct[p].any():
        say("\nNo group of the last step has a correct and an incorrect response.")
        return
    prompt = problem.prompt.replace(" ", "")
    say(f"\nTwo responses to {prompt} and the advantages of their tokens (a dot: the same again):")
    spread = trained.A[p].where(trained.mask[p], trained.A[p, :, :1]).std(-1)  # (G,)
    for kind in (True, False):
        i = spread.masked_fill(correct[p] != kind, -1.0).argmax()
        text, _ = mark_mistake(problem, trained.texts[p][i])
        say(f"sampled {text}, reward {trained.rewards[p, i]:g}")
        real = trained.mask[p, i]
        say("".join(f"{x:>4}" for x in TOKENIZER.decode(trained.tokens[p, i][real].tolist())))
        A = [f"{round(a, 1) + 0.0:g}".replace("-0.", "-.") for a in trained.A[p, i][real].tolist()]
        say("".join(f"{'.' if a == b else a:>4}" for a, b in zip(A, [None, *A])))


def show_end(args: Namespace, summary: dict, folder: Path) -> None:
    """The result, accuracy before and after training, and where to look next."""
    say("\nOn problems that training never saw, before -> after:")
    say("  sampled accuracy   {base_sampled:6.1%} -> {final_sampled:6.1%}".format(**summary))
    say("  greedy accuracy    {base_greedy:6.1%} -> {final_greedy:6.1%}".format(**summary))
    steps = [summary[f"{when}_sampled_reasoning_correct"] for when in ("base", "final")]
    say("  of the rewarded samples, {:.1%} -> {:.1%} have correct steps".format(*steps))
    say(f"The files are in {folder} (tools/README.md explains them).")
    say(f"See a group of it:  python -m tools.ask {folder} --group")
    say(f"Draw its curves:    python -m tools.curves {folder}  (needs matplotlib)")
    own = LOSS.get(args.variant, {}).get("loss_type", "grpo")
    usual = vars(parse_arguments(["--variant", args.variant, "--loss-type", args.loss_type]))
    usual |= {"loss_type": own, "name": args.name}
    if args.variant != "grpo":
        changed = {x.replace("_", "-"): y for x, y in vars(args).items() if y != usual[x]}
        flags = "".join(f" --{x}" if y is True else f" --{x} {y}" for x, y in changed.items())
        say(f"Compare with grpo:  python train.py{flags}")


# ---- The command line
NUMBERS = {  # flag: its default, the smallest number that is allowed, and its help
    "steps": (400, 0, "training steps; each samples a rollout"),
    "seed": (0, 0, "seed of the problems and the samples"),
    "prompts": (64, 1, "prompts in a rollout"),
    "group-size": (8, 2, "responses to each prompt"),
    "temperature": (1.0, 1e-6, "temperature of sampling"),
    "lr": (3e-4, 1e-12, "learning rate; it rises, then falls"),
    "max-grad-norm": (0.01, 1e-12, "limit of gradient norms"),
    "minibatches": (4, 1, "optimiser steps per rollout"),
    "clip-low": (0.2, 0, "a push down ends at ratio 1 - this"),
    "clip-high": (0.2, 0, "a push up ends at ratio 1 + this"),
    "kl": (0.0, 0, "coefficient of the KL term in the loss"),
    "base-seed": (0, 0, "seed of the base model"),
    "layers": (2, 1, "blocks of the GPT"),
    "width": (64, 4, "vector length, a multiple of 4"),
    "threads": (1, 1, "CPU threads for training"),
}
OTHERS = {"aggregate": "token", "loss_type": "grpo", "cull": False}


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    """The command line as settings. A bad one raises SystemExit(2) after one line of error.

    What is not given is as LOSS has it for the variant, else the default. If --loss-type is another
    one than the variant's, clip range and aggregate are as LOSS has them for that loss type.
    """
    cli = ArgumentParser("train.py", SUPPRESS, argument_default=SUPPRESS)
    cli.formatter_class = RawDescriptionHelpFormatter  # the list of variants keeps its lines
    ideas = [f"  {name:13}{str(getdoc(x)).splitlines()[0]}" for name, x in VARIANTS.items()]
    cli.epilog = "\n".join(["names (some have defaults of their own, table LOSS):", *ideas])
    add = cli.add_argument
    add("--variant", default="grpo", choices=VARIANTS, metavar="NAME", help="a name below")
    add("--task", default="add", choices=TASKS, help="the arithmetic to learn (default: add)")
    for flag, (default, _, text) in NUMBERS.items():
        add(f"--{flag}", type=type(default), metavar="X", help=f"{text} (default: {default})")
    add("--aggregate", choices=["token", "response", "constant"], help="divisor (default: token)")
    add("--loss-type", choices=["grpo", "gspo", "cispo"], help="ratio and clip (default: grpo)")
    add("--cull", action="store_true", help="draw no solved problem again")
    # The CPU is the default even if there is a GPU, because all numbers of studies/ come from it.
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    add("--device", default="cpu", choices=devices, help="where to compute (default: cpu)")
    add("--out", default="runs", help="folder for the runs, one folder each (default: runs)")
    given = vars(cli.parse_args(argv))
    usual = OTHERS | {x.replace("-", "_"): default for x, (default, _, _) in NUMBERS.items()}
    own = usual | LOSS.get(given["variant"], {})
    if given.get("loss_type", own["loss_type"]) != own["loss_type"]:
        kept = {name: own[name] for name in ("loss_type", "cull")}
        own = usual | LOSS.get(given["loss_type"], {}) | kept
    args = Namespace(**own | given)
    if args.loss_type == "cispo" and "clip_low" in given:
        cli.error("argument --clip-low: cispo has no lower limit")
    for flag, (_, low, text) in NUMBERS.items():
        value = vars(args)[flag.replace("-", "_")]
        if not low <= value < torch.inf or flag == "width" and value % 4:
            cli.error(f"argument --{flag}: must be {low} or more ({text}), not {value}")
    # The name has every setting that differs from its default, but not threads and device.
    unnamed = {"task", "variant", "seed", "threads", "device", "out"}
    changed = [f"{x}{y}" for x, y in sorted(given.items()) if x not in unnamed and y != own[x]]
    args.name = "-".join([args.task, args.variant, f"seed{args.seed}", *changed])
    return args


def main(argv: list[str] | None = None) -> None:
    """Runs a command line. A bad one raises SystemExit(2) after one line on standard error."""
    run(parse_arguments(argv))


if __name__ == "__main__":
    main()
