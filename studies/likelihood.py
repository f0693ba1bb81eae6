"""Does an update make right responses likelier, and does sparing tokens of wrong ones help?

    python -m studies.likelihood [--questions 200] [--seed 0] [--out runs/likelihood] [--quick]
    python -m studies.likelihood --calibrate

The likelihood change of arXiv 2505.18830, section 3, on training problems of the default task. The
base model samples 8 responses to a question; mixed groups are kept. Then, for every question and
every arm anew from the base model's weights, one update on that group alone, and

    Delta(x) = (1/N+) sum_{i correct} [ln pi_theta'(y_i|x) - ln pi_theta(y_i|x)]            Eq. 2

Arms: GRPO; Pos Only; NTHR with beta = 1 and eta = 0; Random, which spares as many tokens of each
wrong response as NTHR, but any. Ablations: NTHR with other beta and eta. The paper does not name
its optimiser; here plain SGD with a small step, as the theory is about gradient flow, and a fresh
AdamW at the training rate, whose first step moves every weight by about that rate, however short
the gradient. Gradients are not shortened (train.py shortens long ones).

The SGD step was fixed on the first 40 mixed groups (--calibrate), which the study does not use.
GWHES (Eq. 5) is to foresee on which questions GRPO's Delta is small: its overlap, against chance.

Written: likelihood.csv in --out, a row a question (a killed run goes on where it was), and
docs/likelihood.png; printed: the tables of the README. The base model is made in --out if missing.
"""

import argparse
import csv
import dataclasses
import functools
import itertools
import json
import math
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import train
from advantages import VARIANTS, nthr
from grpo import Rollout, policy_loss, response_logprobs, sample_rollout
from model import GPT, GPTConfig
from tasks import TASKS, build_tokenizer

TASK, TOKENIZER = TASKS["sum"], build_tokenizer()
GROUP, BATCH = 8, 64  # responses to a question; questions that are sampled at once
CALIBRATION, STEPS = 40, (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)  # questions, SGD steps to try
SGD_STEP = 3e-4
# The largest of STEPS at which the change is still close to linear: at the median calibration
# question GRPO's Delta is within 20 % of ten times that of a tenth of the step (--calibrate: 6 %;
# 21 % at 1e-3). Which arm is ahead played no part.
ADAM_RATE = train.NUMBERS["lr"][0]
OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=SGD_STEP),
    "AdamW": functools.partial(torch.optim.AdamW, lr=ADAM_RATE, weight_decay=0.0),
}
ARMS = {"grpo": "GRPO", "pos_only": "Pos Only", "nthr": "NTHR", "random": "Random"}
ABLATIONS = {  # label: arm; eta = 0 in those of beta, beta = 1 in those of eta
    "beta = -inf (is Pos Only)": "pos_only",  # every token of wrong responses is spared
    "beta = 0": "beta 0",
    "beta = 0.1": "beta 0.1",
    "beta = 1, eta = 0 (is NTHR)": "nthr",
    "eta = p": "eta p",
    "eta = 1 - p": "eta 1-p",
    "eta = 2 abs(p - 1/2)": "eta 2|p-1/2|",
}


# ---- arithmetic ----


def unembedding_gradients(rollout: Rollout) -> Tensor:
    """sum_k g_{i,k} h_{i,k}^T of each response, (P, G, V, D): d log pi(y_i) / d unembedding.

    g = one-hot of the token - pi, h the hidden vector that predicts it (as advantages.nthr_scores).
    """
    mask = rollout.mask[..., None]
    tokens = rollout.tokens.masked_fill(~rollout.mask, 0)
    one_hot = torch.zeros_like(rollout.probs).scatter(-1, tokens[..., None], 1.0)
    g = torch.where(mask, one_hot - rollout.probs, 0.0)  # (P, G, T, V)
    return g.transpose(2, 3) @ torch.where(mask, rollout.hidden, 0.0)


def gwhes(rollout: Rollout) -> Tensor:
    """Group weighted hidden embedding score of mixed groups (P,): large where Delta will be small.

    arXiv 2505.18830, Eq. 5, averaged over the correct responses i:
        p- sum_{j wrong} sum_{k,k'} <g_i,g_j><h_i,h_j> - p+ sum_{i' correct} sum_{k,k''} (the same)
        p+ = (1-p) / sqrt(p(1-p)),   p- = p / sqrt(p(1-p)),   p the share of correct responses
    <g, g'><h, h'> is the inner product of the matrices g h^T and g' h'^T, so the sums over tokens
    and responses can be taken of the matrices, one a group: M+ of the correct ones, M- of the wrong
        GWHES = (p- <M+, M-> - p+ <M+, M+>) / N+
    """
    gradients, r = unembedding_gradients(rollout), rollout.rewards[..., None, None]
    right, wrong = (r * gradients).sum(1), ((1 - r) * gradients).sum(1)  # M+ and M-, (P, V, D)
    p = rollout.rewards.mean(1)
    pull, push = (p / (1 - p)).sqrt(), ((1 - p) / p).sqrt()  # p- and p+
    weighted = pull[:, None, None] * wrong - push[:, None, None] * right
    return (right * weighted).sum((1, 2)) / rollout.rewards.sum(1)


def random_arm(rollout: Rollout, spared: Tensor, rng: torch.Generator) -> Tensor:
    """GRPO's advantages, but 0 on as many random tokens of each response as `spared` has.

    All (P, G, T); spared is bool.
    """
    keys = torch.rand(spared.size(), generator=rng).masked_fill(~rollout.mask, math.inf)
    order = keys.argsort(-1)  # of a response's tokens, at random; padding stays behind them
    return VARIANTS["grpo"](rollout).masked_fill(order < spared.sum(-1, keepdim=True), 0.0)


def arms(rollout: Rollout, rng: torch.Generator) -> dict[str, Tensor]:
    """The advantages (1, G, T) of every arm and ablation for one mixed group."""
    p = rollout.rewards.mean().item()
    advantages = {"grpo": VARIANTS["grpo"](rollout), "pos_only": VARIANTS["pos_only"](rollout)}
    advantages["nthr"] = nthr(rollout, beta=1.0, eta=0.0)
    spared = rollout.mask & (advantages["nthr"] == 0)  # in a mixed group no token of GRPO has 0
    advantages["random"] = random_arm(rollout, spared, rng)
    advantages |= {f"beta {beta:g}": nthr(rollout, beta=beta, eta=0.0) for beta in (0.0, 0.1)}
    etas = {"p": p, "1-p": 1 - p, "2|p-1/2|": 2 * abs(p - 0.5)}
    return advantages | {f"eta {name}": nthr(rollout, eta=eta) for name, eta in etas.items()}


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    share, width = successes / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / width
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / width
    return max(centre - half, 0.0), min(centre + half, 1.0)


def bootstrap(values: np.ndarray, resamples: int = 10_000) -> tuple[float, float]:
    """95 % interval of the mean over questions: percentiles of the means of random resamples."""
    rng, n = np.random.default_rng(0), len(values)
    means = values[rng.integers(n, size=(resamples, n))].mean(1)
    return tuple(np.quantile(means, [0.025, 0.975]))


def overlap(scores: np.ndarray, changes: np.ndarray, K: int) -> int:
    """How many of the K questions with the largest scores are among the K with smallest Delta."""
    return len({*np.argsort(-scores)[:K]} & {*np.argsort(changes)[:K]})


def chance_of_overlap(least: int, K: int, n: int) -> float:
    """P(two random sets of K out of n share at least so many), hypergeometric; mean K K/n."""
    ways = sum(math.comb(K, x) * math.comb(n - K, K - x) for x in range(least, K + 1))
    return ways / math.comb(n, K)


# ---- measuring ----


def base_model(out: Path) -> GPT:
    """The base model of train.py, which is made in that folder if it is not there."""
    layers, width = (train.NUMBERS[name][0] for name in ("layers", "width"))
    path = out / f"base-{TASK.name}-{layers}x{width}.pt"
    if not path.exists() and train.main(["--steps", "0", "--device", "cpu", "--out", str(out)]):
        sys.exit("there is no base model")
    columns = len(TASK.longest.prompt) + 2 * (len(TASK.longest.solution) + 1)
    model = GPT(GPTConfig(TOKENIZER.get_vocab_size(), columns, layers, width))
    settings = {"task": TASK.name, "warmup_steps": train.WARMUP_STEPS[TASK.name]}
    train.load_base(model, settings, path)
    return model


def mixed_groups(model: GPT, count: int, seed: int) -> list[Rollout]:
    """The first `count` mixed groups, a Rollout with P = 1 each, of training problems shuffled."""
    problems, found = train.make_problems(TASK, train.TRAIN_SIZE, held=False), []
    rng = torch.Generator().manual_seed(seed)
    shuffled = train.batches(problems, BATCH, seed, set())
    for batch in itertools.islice(shuffled, math.ceil(len(problems) / BATCH)):  # one epoch
        rollout = sample_rollout(model, TOKENIZER, TASK, batch, GROUP, generator=rng)
        share = rollout.rewards.mean(1)
        for i in ((share > 0) & (share < 1)).nonzero()[:, 0].tolist():
            parts = {k: v for k, v in vars(rollout).items() if isinstance(v, Tensor | list)}
            group = {k: v[i : i + 1] for k, v in parts.items()}
            found.append(dataclasses.replace(rollout, **group))
        if len(found) >= count:
            return found[:count]
    sys.exit(f"only {len(found)} of {len(problems)} training problems gave a mixed group")


def gradients(model: GPT, rollout: Rollout, advantages: dict[str, Tensor]) -> tuple:
    """Before any update: log-probabilities (1, G, T), gradient of each arm's loss, and `ascent`.

    ascent: the gradient of the mean ln pi(y_i|x) of the correct responses, which Delta follows.
    """
    parameters = list(model.parameters())
    logp = response_logprobs(model, rollout)
    rightness = logp.sum(-1)[rollout.rewards == 1].mean()
    ascent = torch.autograd.grad(rightness, parameters, retain_graph=True)
    by_arm = {}
    for arm, A in advantages.items():  # with the model that sampled: every ratio is 1
        loss = policy_loss(logp, logp.detach(), A, rollout.mask)
        by_arm[arm] = torch.autograd.grad(loss, parameters, retain_graph=True)
    return logp.detach(), by_arm, ascent


@torch.no_grad()
def change(model: GPT, rollout: Rollout, before: Tensor, gradient, ascent, optimizer) -> tuple:
    """(Delta of Eq. 2, its first-order prediction <theta' - theta, ascent>) of one update.

    optimizer: makes a fresh one for given parameters. The model is put back to where it was.
    """
    parameters = list(model.parameters())
    base = [p.clone() for p in parameters]
    for p, g in zip(parameters, gradient):
        p.grad = g
    optimizer(parameters).step()
    after = response_logprobs(model, rollout)
    first_order = sum(((p - b) * a).sum() for p, b, a in zip(parameters, base, ascent))
    for p, b in zip(parameters, base):
        p.copy_(b)
        p.grad = None
    delta = (after - before).sum(-1)[rollout.rewards == 1].mean()
    return delta.item(), first_order.item()


def measure(model: GPT, rollout: Rollout, seed: int) -> dict:
    """The row of a question in likelihood.csv."""
    advantages = arms(rollout, torch.Generator().manual_seed(seed))
    before, by_arm, ascent = gradients(model, rollout, advantages)
    (problem,), wrong = rollout.problems, rollout.rewards == 0
    spared = rollout.mask & (advantages["nthr"] == 0)
    row = {"prompt": problem.prompt, "level": problem.level, "p": rollout.rewards.mean().item()}
    row |= {"tokens": rollout.mask.sum().item(), "wrong_tokens": rollout.mask[wrong].sum().item()}
    row |= {"spared_tokens": spared.sum().item(), "gwhes": gwhes(rollout).item()}
    for name, optimizer in OPTIMIZERS.items():
        for arm, gradient in by_arm.items():
            values = change(model, rollout, before, gradient, ascent, optimizer)
            row[f"{name} {arm}"], row[f"{name} {arm} first order"] = values
    return row


def calibrate(model: GPT, seed: int) -> str:
    """Delta by SGD step, and how linear it is, as a markdown table."""
    names = [f"mean Delta, {name}" for name in ARMS.values()]
    lines = [["SGD step", *names, "off ten times a tenth", "near first order"], ["---"] * 7]
    sizes = sorted({*STEPS, *(step / 10 for step in STEPS)})
    deltas = {(arm, step): [] for arm in ARMS for step in sizes}
    linear = []  # of GRPO, a step of 1
    groups = mixed_groups(model, CALIBRATION, seed)
    for i, rollout in enumerate(tqdm(groups, desc="calibration questions")):
        advantages = arms(rollout, torch.Generator().manual_seed(seed + i))
        before, by_arm, ascent = gradients(model, rollout, {arm: advantages[arm] for arm in ARMS})
        linear.append(-sum((g * a).sum() for g, a in zip(by_arm["grpo"], ascent)).item())
        for arm, step in deltas:
            sgd = functools.partial(torch.optim.SGD, lr=step)
            delta, _ = change(model, rollout, before, by_arm[arm], ascent, sgd)
            deltas[arm, step].append(delta)
    for step in STEPS:
        whole, tenth = (np.array(deltas["grpo", s]) for s in (step, step / 10))
        off = np.median(abs(whole / (10 * tenth) - 1))
        near = np.mean(abs(whole / (step * np.array(linear)) - 1) <= 0.2)
        means = [f"{np.mean(deltas[arm, step]):+.4f}" for arm in ARMS]
        lines.append([f"{step:g}", *means, f"{off:.0%}", f"{near:.0%}"])
    return markdown(lines)


# ---- what is written ----


def whole_lines(path: Path) -> str:
    """The text of a file that may end within a line, or not be there, up to its last whole line."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1]


def measure_all(model: GPT, count: int, seed: int, out: Path) -> dict[str, np.ndarray]:
    """The numbers of likelihood.csv by column; measures what is missing.

    Other settings: from the start. A question's random numbers are its own, wherever a run goes on.
    """
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    settings = {"questions": count, "seed": seed, "group": GROUP, "base": zlib.crc32(weights)}
    text = json.dumps(settings | {"sgd": SGD_STEP, "adam": ADAM_RATE})
    names = ("likelihood.csv", "likelihood.csv.part", "likelihood.json")
    path, part, kept = (out / name for name in names)
    if not kept.exists() or kept.read_text() != text:
        path.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
        kept.write_text(text)
    if not path.exists():
        part.write_text(whole_lines(part))
        groups = mixed_groups(model, CALIBRATION + count, seed)[CALIBRATION:]
        with open(part, "r+", newline="") as file:
            done = len(list(csv.DictReader(file)))
            for i in tqdm(range(done, count), desc="questions", initial=done, total=count):
                row = measure(model, groups[i], 10_000 * seed + i)
                writer = csv.DictWriter(file, row, lineterminator="\n")
                if i == 0:
                    writer.writeheader()
                writer.writerow(row)
                file.flush()
        part.replace(path)
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(r[name]) for r in rows]) for name in rows[0] if name != "prompt"}


def markdown(lines: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def mean_and_interval(values: np.ndarray) -> str:
    low, high = bootstrap(values)
    return f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def share_and_interval(true: np.ndarray) -> str:
    low, high = wilson(int(true.sum()), len(true))
    return f"{100 * true.mean():.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def arm_table(data: dict[str, np.ndarray]) -> str:
    """A line for each optimiser and arm; every difference is paired, question by question."""
    head = ["optimiser", "arm", "mean Delta, nats", "minus GRPO", "minus Random"]
    lines = [[*head, "above GRPO", "Delta below 0"], ["---"] * 7]
    for name in OPTIMIZERS:
        grpo, random = data[f"{name} grpo"], data[f"{name} random"]
        for arm, label in ARMS.items():
            delta = data[f"{name} {arm}"]
            line = [name, label, mean_and_interval(delta)]
            line.append("" if arm == "grpo" else mean_and_interval(delta - grpo))
            line.append("" if arm == "random" else mean_and_interval(delta - random))
            line.append("" if arm == "grpo" else share_and_interval(delta > grpo))
            lines.append([*line, share_and_interval(delta < 0)])
    return markdown(lines)


def ablation_table(data: dict[str, np.ndarray]) -> str:
    head = [f"{name}, {what}" for name in OPTIMIZERS for what in ("mean Delta", "minus GRPO")]
    lines = [["", *head], ["---"] * (1 + len(head))]
    for label, arm in ABLATIONS.items():
        lines.append([label])
        for name in OPTIMIZERS:
            delta, grpo = data[f"{name} {arm}"], data[f"{name} grpo"]
            lines[-1] += [mean_and_interval(delta), mean_and_interval(delta - grpo)]
    return markdown(lines)


def gwhes_table(data: dict[str, np.ndarray]) -> str:
    head = ["optimiser", "K", "overlap", "chance", "as many by chance"]
    lines, n = [head, ["---"] * 5], len(data["gwhes"])
    for name in OPTIMIZERS:
        for K in (round(0.2 * n), round(0.3 * n)):
            both = overlap(data["gwhes"], data[f"{name} grpo"], K)
            cells = [f"{both} of {K} = {100 * both / K:.0f} %", f"{100 * K / n:.0f} %"]
            lines.append([name, str(K), *cells, f"p = {chance_of_overlap(both, K, n):.2g}"])
    return markdown(lines)


def facts(data: dict[str, np.ndarray]) -> str:
    """What the tables rest on, in sentences."""
    none, share = sum(data["spared_tokens"] == 0), data["spared_tokens"] / data["wrong_tokens"]
    first_order = (
        f"{name} {ARMS[arm]} {data[f'{name} {arm} first order'].mean():+.3f}"
        for name, arm in itertools.product(OPTIMIZERS, ("grpo", "nthr"))
    )
    return f"""{len(share)} mixed groups of {GROUP}, {data["p"].mean():.0%} of responses correct.
NTHR spares {share.mean():.0%} of a group's wrong tokens on average, and none in {none} groups.
Mean Delta to first order, <theta' - theta, gradient>: {", ".join(first_order)}.
Intervals of 95 %: of means by bootstrap over questions, of shares Wilson's."""


def draw(data: dict[str, np.ndarray], path: Path) -> None:
    """Questions sorted by GRPO's Delta, its bars grey; the other arm's Delta as dots, above or not.

    As Figures 1 and 4 of the paper, but with a panel for each optimiser and arm.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    others = [arm for arm in ARMS if arm != "grpo"]
    shape = len(others), len(OPTIMIZERS)
    figure, axes = plt.subplots(*shape, figsize=(9, 8.5), sharex=True, sharey="col")
    titles = (f"SGD, step {SGD_STEP:g}", f"fresh AdamW, rate {ADAM_RATE:g}")
    for column, (name, title) in enumerate(zip(OPTIMIZERS, titles)):
        grpo = data[f"{name} grpo"]
        order = grpo.argsort()
        x = np.arange(len(order))
        for row, arm in enumerate(others):
            axis, delta = axes[row, column], data[f"{name} {arm}"][order]
            axis.bar(x, grpo[order], width=1.0, color="0.75", label="GRPO")
            above = delta > grpo[order]
            axis.plot(x[above], delta[above], ".", ms=4, color="#0072B2", label="above GRPO")
            axis.plot(x[~above], delta[~above], "x", ms=4, color="#D55E00", label="not above")
            axis.axhline(0, color="k", lw=0.6)
            axis.set_title(f"{ARMS[arm]}, {title}: above on {above.mean():.0%}", fontsize=10)
        axes[-1, column].set_xlabel("question, sorted by GRPO's Delta")
    for axis in axes[:, 0]:
        axis.set_ylabel("Delta, nats")
    axes[0, 0].legend(loc="upper left", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.likelihood")
    parser.add_argument("--questions", type=int, default=200, help="mixed groups, 10 or more")
    parser.add_argument("--seed", type=int, default=0, help="of the questions and of sampling")
    parser.add_argument("--out", default="runs/likelihood", help="folder of likelihood.csv")
    parser.add_argument("--calibrate", action="store_true", help="try SGD steps, nothing else")
    parser.add_argument("--quick", action="store_true", help="10 questions, a smoke test")
    args = parser.parse_args(argv)
    out, count = Path(args.out), 10 if args.quick else max(10, args.questions)
    out.mkdir(parents=True, exist_ok=True)
    try:
        model = base_model(out)
    except ValueError as error:  # damaged, or of other settings
        parser.error(str(error))
    if args.calibrate:
        print(calibrate(model, args.seed))
        return 0
    data = measure_all(model, count, args.seed, out)
    tables = [table(data) for table in (facts, arm_table, ablation_table, gwhes_table)]
    print(*tables, sep="\n\n")
    draw(data, out / "likelihood.png" if args.quick else Path("docs/likelihood.png"))
    return 0


if __name__ == "__main__":
    import matplotlib  # noqa: F401  (if it is missing, say so now, not after all the work)

    sys.exit(main(sys.argv[1:]))
