"""The barrier: how many samples does it take until a group is not all-fail?

    python -m studies.allfail [--runs runs/compare] [--seed 1] [--prompts 50] [--samples 1024]
                              [--out runs/allfail] [--quick]

GRPO learns nothing from a group whose responses all fail. For held-out problems of the default
task, --prompts of each level, each model samples --samples responses, of which c are correct. From
that, for groups of N responses, the chance that not all fail: pass@N, by the unbiased estimator

    1 - C(n - c, N) / C(n, N),   n samples, c of them correct       arXiv 2107.03374, Eq. 1

averaged over a level's prompts; and the smallest N at which half of a level's groups are not
all-fail. Were all prompts of a level alike, each response correct with probability p, pass@N would
be 1 - (1-p)^N: a wall for small p, but one that N = ln 2 / -ln(1-p) samples cross half the time.

Models: the base model, and what `train.py --variant V --seed S` left in --runs (of the study
compare) for grpo, culling, negative and ngrpo. A model that is not there is left out.

Written: allfail.csv in --out, a row a model, level and N, with 95 % intervals over prompts;
counts-MODEL.csv, a row a prompt, which a later run reuses if model and settings are the same; and
docs/allfail.png. Printed: tables. The base model is made in --out if it is not in --runs.
"""

import argparse
import csv
import math
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import train
from grpo import sample_rollout
from model import GPT
from studies.likelihood import TASK, TOKENIZER, base_model, markdown
from tasks import Problem

VARIANTS = ("grpo", "culling", "negative", "ngrpo")
SHOWN = (1, train.NUMBERS["group-size"][0])  # the N of the first table, and the largest one
COLOURS = {  # of Okabe and Ito
    "base": ("black", "-"),
    "grpo": ("#0072B2", "-"),
    "culling": ("#E69F00", "--"),
    "negative": ("#009E73", "-."),
    "ngrpo": ("#CC79A7", "-"),
}
TICKS = (1, 8, 64, 512)
BAND = "base, 95 % interval"
TINY = 1e-9  # rounding, of what may be exactly 1/2


# ---- arithmetic ----


def all_fail(c: np.ndarray, n: int) -> np.ndarray:
    """P(N responses drawn without replacement from n, c of them correct, all fail), N = 1 to n.

    C(n - c, N) / C(n, N) = (n-c)! (n-N)! / (n! (n-c-N)!), 0 if N > n - c. The factorials as sums of
    logarithms, which do not overflow. c (prompts,) -> (prompts, n).
    """
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
    c, N = np.asarray(c)[:, None], np.arange(1, n + 1)
    left = n - c - N
    # In this order c = 0 gives exactly 1.
    log_ratio = (log_factorial[n - c] - log_factorial[n]) + (
        log_factorial[n - N] - log_factorial[np.maximum(left, 0)]
    )
    return np.where(left < 0, 0.0, np.exp(log_ratio))


def half(fails: np.ndarray) -> np.ndarray:
    """The smallest N at which no more than half of the groups are all-fail, infinity if none.

    fails (..., n): the share of all-fail groups of size 1 to n, which falls with N.
    """
    reached = fails <= 0.5 + TINY
    return np.where(reached.any(-1), reached.argmax(-1) + 1.0, math.inf)


def exponential_half(p: float) -> float:
    """The same, not rounded up, if every response is correct with probability p: (1-p)^N = 1/2."""
    return math.inf if p <= 0 else 0.0 if p >= 1 else math.log(2) / -math.log1p(-p)


def resampled(fails: np.ndarray, resamples: int = 2000) -> np.ndarray:
    """Means over prompts drawn again with replacement: (prompts, n) -> (resamples, n)."""
    k = len(fails)
    return np.random.default_rng(0).multinomial(k, np.full(k, 1 / k), resamples) @ fails / k


# ---- measuring ----


def held_out_problems(prompts: int) -> list[Problem]:
    """The first `prompts` held-out problems of each level; of all, if a level has fewer."""
    problems = train.make_problems(TASK, train.EVAL_SIZE, held=True)
    return [p for level in TASK.levels for p in [q for q in problems if q.level == level][:prompts]]


def find_models(runs: Path, seed: int, out: Path) -> dict[str, GPT]:
    """The base model and those trained ones that are there."""
    layers, width = (train.NUMBERS[name][0] for name in ("layers", "width"))
    there = (runs / f"base-{TASK.name}-{layers}x{width}.pt").exists()
    models = {"base": base_model(runs if there else out)}
    for variant in VARIANTS:
        path = runs / f"{TASK.name}-{variant}-seed{seed}" / "model.pt"
        if path.exists():
            models[variant] = GPT(models["base"].config)
            weights = torch.load(path, map_location="cpu", weights_only=True)
            models[variant].load_state_dict(weights)
        else:
            print(f"{variant} is left out: there is no {path}")
    return models


def count(name: str, model: GPT, problems: list[Problem], n: int, seed: int, out: Path) -> list:
    """How many of n samples are correct, for each problem: from counts-<name>.csv or counted."""
    path = out / f"counts-{name}.csv"
    weights = zlib.crc32(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    keys = [(str(p.level), p.prompt, str(n), str(seed), str(weights)) for p in problems]
    if path.exists():
        with open(path, newline="") as file:
            _, *rows = csv.reader(file)
        if [tuple(row[:-1]) for row in rows] == keys:
            return [int(row[-1]) for row in rows]
    rng, counts, start = torch.Generator().manual_seed(seed), [], time.perf_counter()
    tokens = 0
    for problem in tqdm(problems, desc=f"{name}, prompts"):
        rollout = sample_rollout(model, TOKENIZER, TASK, [problem], n, generator=rng)
        counts.append(int(rollout.rewards.sum()))
        tokens += int(rollout.mask.sum())
    print(f"{name}: {tokens / (time.perf_counter() - start):,.0f} tokens a second")
    head = ("level", "prompt", "samples", "seed", "weights", "correct")
    write_csv(path, [head, *((*key, c) for key, c in zip(keys, counts))])
    return counts


# ---- what is written ----


def write_csv(path: Path, rows: list) -> None:
    """The file is there whole or not at all."""

    def write(part: Path) -> None:
        with open(part, "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(rows)

    train.save(path, write)


def number(N: float, n: int) -> str:
    return f"> {n}" if N > n else f"{N:.0f}"


def tables(c: dict[str, dict[int, np.ndarray]], n: int) -> str:
    """pass@N, and the N of half the groups, by level and model; from counts c[model][level]."""
    sizes, head = sorted({N for N in (*SHOWN, n) if N <= n}), ["level", *c]
    text = "pass@" + ", ".join(map(str, sizes)) + ", %:\n\n"
    passes, halves = [head, ["---"] * len(head)], [head, ["---"] * len(head)]
    for level in TASK.levels:
        passes.append([str(level)])
        halves.append([str(level)])
        for by_level in c.values():
            fails = all_fail(by_level[level], n)
            mean = fails.mean(0)
            passes[-1].append(" / ".join(f"{100 * (1 - mean[N - 1]):.1f}" for N in sizes))
            low, high = np.quantile(half(resampled(fails)), [0.025, 0.975], method="nearest")
            alike = exponential_half(1 - mean[0])
            spread = f"{number(low, n)} to {number(high, n)}"
            halves[-1].append(f"{number(half(mean), n)} ({spread}); {alike:.1f}")
    text += markdown(passes) + "\n\nThe smallest N with half of the groups not all-fail (95 % "
    text += "interval over prompts); ln 2 / -ln(1 - pass@1), as if all prompts were alike:\n\n"
    return text + markdown(halves)


def curves(c: dict[str, dict[int, np.ndarray]], n: int) -> list[tuple]:
    """allfail.csv: (model, level, N, pass@N, ends of its 95 % interval), N = 1, 2, 4, ..., n."""
    rows = []
    sizes = [2**k for k in range(n.bit_length()) if 2**k <= n]
    for model, by_level in c.items():
        for level, correct in by_level.items():
            fails = all_fail(correct, n)
            high, low = 1 - np.quantile(resampled(fails), [0.025, 0.975], axis=0)
            for N in sizes:
                values = (1 - fails[:, N - 1].mean(), low[N - 1], high[N - 1])
                rows.append((model, level, N, *(round(float(v), 6) for v in values)))
    return rows


def draw(rows: list[tuple], path: Path) -> None:
    """A panel a level, pass@N over N, a line a model; dotted: the base model's exponential."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, 4, figsize=(9, 4.8), sharex=True, sharey=True, layout="constrained"
    )
    for axis, level in zip(axes.flat, TASK.levels):
        for model, (colour, style) in COLOURS.items():
            line = np.array([r[2:] for r in rows if r[:2] == (model, level)])
            if not len(line):
                continue
            N, mean, low, high = line.T
            axis.plot(N, mean, style, color=colour, lw=1.5, label=model)
            if model == "base":
                axis.fill_between(N, low, high, color=colour, alpha=0.15, lw=0, label=BAND)
                alike = 1 - (1 - mean[0]) ** N
                axis.plot(N, alike, ":", color=colour, lw=1.2, label="base, if prompts were alike")
        axis.set_xscale("log", base=2)
        axis.set_xticks(TICKS, TICKS)
        axis.set_title(f"level {level}", fontsize=10)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(TASK.levels) :]:
        axis.axis("off")
        axis.legend(*axes[0, 0].get_legend_handles_labels(), loc="center", fontsize=8)
    figure.supxlabel("N, responses in a group", fontsize=10)
    figure.supylabel("pass@N: share of groups not all-fail", fontsize=10)
    figure.savefig(path, dpi=100)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.allfail")
    add = parser.add_argument
    add("--runs", default="runs/compare", help="folder of the trained models")
    add("--seed", type=int, default=1, help="of the runs, and of sampling")
    add("--prompts", type=int, default=50, help="of each level (level 2 has only 16)")
    add("--samples", type=int, default=1024, help="responses to a prompt, and the largest N")
    add("--out", default="runs/allfail", help="folder of allfail.csv and of the counts")
    add("--quick", action="store_true", help="3 prompts of each level, 64 samples: a smoke test")
    args = parser.parse_args(argv)
    if args.quick:
        args.prompts, args.samples = 3, 64
    if args.prompts < 1 or args.samples < 2:
        parser.error("--prompts must be 1 or more, --samples 2 or more")
    out, n = Path(args.out), args.samples
    out.mkdir(parents=True, exist_ok=True)
    models, problems = find_models(Path(args.runs), args.seed, out), held_out_problems(args.prompts)
    levels, c = np.array([p.level for p in problems]), {}
    for name, model in models.items():
        counts = np.array(count(name, model, problems, n, args.seed, out))
        c[name] = {level: counts[levels == level] for level in TASK.levels}
    rows = curves(c, n)
    write_csv(out / "allfail.csv", [("model", "level", "N", "pass", "low", "high"), *rows])
    print(tables(c, n))
    draw(rows, out / "allfail.png" if args.quick else Path("docs/allfail.png"))
    return 0


if __name__ == "__main__":
    import matplotlib  # noqa: F401  (if it is missing, say so now, not after all the work)

    sys.exit(main(sys.argv[1:]))
