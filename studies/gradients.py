"""Bias and noise of each variant's gradient: python -m studies.gradients [--tasks mul] [--seeds 4]

Or, in two minutes, of one variant beside others: python -m studies.gradients --variant NAME
[--task mul]. The name may be that of a function of one's own in VARIANTS.

The weights are those of a base model. Rollouts are sampled as in training, in two halves, A and B,
K in each, the same for all variants.

    g   minus the gradient of a variant's loss on one rollout of half A: where a step goes. At ratio
        1, all groups in one mini-batch, not scaled to one length. m is the mean of the g.
    u   the same on one rollout of half B, with rloo's advantage and the constant denominator. So it
        estimates grad J without bias, up to a factor; J is the expected reward. v is the mean.

    M           = (K |m|^2 - mean |g|^2) / (K - 1)     |E g|^2: |m|^2 without its noise; V: of u
    cosine      = <m, v> / sqrt(M V)                   of E g with grad J; below 1 there is a bias
    mean cosine = mean of <g, v> / (|g| sqrt(V))       of one rollout with grad J; a g of 0 counts 0
    s           = cosine^2 M / mean |g|^2              the share of E |g|^2 that is E g along grad J
    signal-to-noise ratio = s / (1 - s)                of one rollout: that share over all the rest

As long as there is no bias, the last one over grpo's says how many rollouts of grpo one rollout
counts like, for the mean of N rollouts has an N-th of the noise. No cosine is cut off at 1. NaN
means "not measurable": M or V does not exceed three of its errors. Errors are by the jackknife,
which leaves out one rollout at a time. Intervals resample base models.

critic's network begins with outputs near 0, so at a base model critic is grpo. Therefore one critic
is trained as in train.train, on other rollouts of the same weights: critic_10 and critic_160 are
what it says after so many updates. culling has the gradient of grpo. grpo_G2 to grpo_G64 have
groups of that size, as many responses and other rollouts.

docs/tables/gradients.csv has a row a task, base seed and variant or control; what is there is not
measured again. docs/tables/gradients.md is made from it alone, docs/gradients.png from it and
docs/tables/compare.csv.
"""

from copy import deepcopy
from functools import partial

import numpy as np
import torch
from scipy.stats import spearmanr
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, Critic, grpo, on_tokens, rloo, standardise
from grpo import Rollout, policy_loss, response_logprobs, sample_rollout, token_bias
from grpo import token_weights
from studies.common import TABLES, at, commit, complete, look, options, picture, publish
from studies.common import settings, shown
from studies.controls import CONTROLS, CONTROLS_LOSS
from studies.effects import NAMES, effects
from studies.measures import measures, replicates, resampled
from studies.pictures import WIDTH, name_lines
from tasks import TASKS
from tools.common import markdown, read_rows

ROWS = TABLES / "gradients.csv"
SEEDS = range(4, 16)  # base models
K = 40  # rollouts in each half
RESPONSES = 512  # of a rollout
SEED_A, SEED_B, SEED_CRITIC = 1001, 1002, 1003  # of rollouts; no run of training has these
SIZES = {f"grpo_G{G}": G for G in (2, 4, 16, 64)}
CRITICS = {f"critic_{updates}": updates for updates in (10, 160)}
FEW = ["nthr_eta0", "random_sparing", "prefix_baseline", "shuffled_L", "dense", "log_likelihood"]
FEW += ["verifree_undivided"]
FUNCTIONS = {x: f for x, f in (VARIANTS | CONTROLS).items() if x in [*NAMES, *FEW]}
FUNCTIONS = {x: f for x, f in FUNCTIONS.items() if not isinstance(f, type) and x != "culling"}
LOSSES = LOSS | CONTROLS_LOSS
BESIDE = ["grpo", "nthr", "pos_only", "half", "likelihood", "verifree"]  # a variant of one's own
COLUMNS = {"cosine": "cosine", "mean_cosine": "mean cosine", "snr": "signal-to-noise ratio"}


# ---- The gradients
def sampled(model, task: str, seed: int, rollouts: int, G: int = 8):
    """Yields rollouts of training problems, drawn with replacement; G responses to each."""
    problems = train.make_problems(TASKS[task], held=False)
    order = np.random.default_rng(seed)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(rollouts):
        batch = [problems[i] for i in order.integers(len(problems), size=RESPONSES // G)]
        yield sample_rollout(model, TASKS[task], batch, G, generator=rng)


def gradient(model, goal: torch.Tensor) -> torch.Tensor:
    """That of a number, as one vector (N,). Another one can follow on the same graph."""
    return parameters_to_vector(torch.autograd.grad(goal, [*model.parameters()], retain_graph=True))


def direction(model, trained: Rollout, aggregate: str = "token") -> torch.Tensor:
    """g, (N,), of what a variant returned. Groups whose A is 0 have no gradient: not read."""
    groups = (trained.A != 0).any(2).any(1)
    weights = token_weights(trained.mask, aggregate, trained.max_length)[groups]
    logprobs = response_logprobs(model, trained, groups)
    loss = policy_loss(logprobs, trained.logprobs[groups], trained.A[groups], weights)
    return -gradient(model, loss)


def judged_by(network, rollout: Rollout) -> Rollout:
    """What `critic` returns with this network, which stays as it is."""
    A = standardise(rollout.rewards)[..., None]
    return on_tokens(rollout, A + token_bias(network, rollout))


def critics(args, model) -> dict:
    """name -> function, for each of CRITICS."""
    critic = Critic(train.new_model(args, outputs=1), args.lr)
    rollouts = sampled(model, args.task, SEED_CRITIC, max(CRITICS.values()))
    found = {}
    for updates, rollout in enumerate(rollouts, 1):
        critic(rollout)
        if updates in CRITICS.values():
            found[f"critic_{updates}"] = partial(judged_by, deepcopy(critic.network))
    return found


def rows_of(args, model, names: list[str]):
    """The rows of grpo and of these variants, controls, critics and group sizes."""
    functions = {name: FUNCTIONS[name] for name in ["grpo", *names] if name in FUNCTIONS}
    if CRITICS.keys() & names:
        functions |= critics(args, model)
    half_B = tqdm(sampled(model, args.task, SEED_B, K), "half B", K)
    U = torch.stack([direction(model, rloo(rollout), "constant") for rollout in half_B])
    torch.manual_seed(0)  # of shuffled_L
    found = {name: [] for name in functions}
    for rollout in tqdm(sampled(model, args.task, SEED_A, K), "half A", K):
        for name, function in functions.items():
            aggregate = LOSSES.get(name, {}).get("aggregate", "token")
            found[name].append(direction(model, function(rollout), aggregate))
    for name in [name for name in SIZES if name in names]:
        rollouts = sampled(model, args.task, SEED_A, K, SIZES[name])
        found[name] = [direction(model, grpo(rollout)) for rollout in rollouts]
    reference = replicates(torch.stack(found["grpo"]), U)
    for name, vectors in found.items():
        yield {"variant": name, "K": K} | measures(torch.stack(vectors), U, reference)


def measure(task: str, seed: int, out: str):
    """The rows of one base model."""
    args = settings(task, seed, out)
    head = {"task": task, "seed": seed, "commit": commit()}
    for row in rows_of(args, train.base_model(args), [*FUNCTIONS, *CRITICS, *SIZES]):
        yield head | row


# ---- Table and picture, from the CSV files alone
def means(rows: list[dict], column: str) -> dict[str, tuple]:
    """variant -> what resampled gives of a column; the largest first."""
    found = {}
    for row in rows:
        pair = (float(row[column]), float(row[f"{column}_error"]))
        found.setdefault(row["variant"], []).append(pair)
    found = {name: resampled(*zip(*pairs)) for name, pairs in found.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def relative(rows: list[dict]) -> dict[str, tuple]:
    """variant -> signal-to-noise ratio over grpo's: geometric mean and interval; largest first."""
    return {name: tuple(np.exp(x)) for name, x in means(rows, "ln_relative").items()}


def table(rows: list[dict]) -> str:
    """Means over base models of one task; intervals, of one base model two errors to each side."""
    found = {header: means(rows, column) for column, header in COLUMNS.items()}
    found["relative to `grpo`"] = relative(rows)
    cells = []
    for name in found["relative to `grpo`"]:
        cells.append([f"`{name}`", *(shown(x[name], 1, ".2f") for x in found.values())])
    return markdown(["variant or control", *found], cells)


def own(variant: str, task: str, seed: int, out: str) -> None:
    """Prints one variant among others on one base model, and what the CSV has of the same."""
    args = settings(task, seed, out)
    names = [*BESIDE, variant]
    rows = [*rows_of(args, train.base_model(args), names)]
    committed = [row for row in at(read_rows(ROWS), task=task) if row["variant"] in names]
    print(f"Base model {seed} of {task}:\n\n{table(rows)}\n")
    print(f"Twelve base models, {ROWS.name}:\n\n{table(committed)}")


def dots(task: str) -> dict[str, tuple]:
    """variant -> relative signal-to-noise ratio, effect in points, whether that is significant.

    The effect is that of studies.compare, at the rates chosen there: a variant's average accuracy
    during training minus grpo's. critic is critic_160.
    """
    ratios = relative(at(read_rows(ROWS), task=task))
    ratios["critic"] = ratios.get("critic_160")
    found = {}
    for x in effects(read_rows(TABLES / "compare.csv"), read_rows(TABLES / "curves.csv")):
        name = x["variant"]
        if x["own"] and x["task"] == task and name in NAMES[1:] and ratios.get(name):
            found[name] = ratios[name][0], 100 * x["average"][0], x["significant"]
    return found


def spearman(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """The rank correlation, and its 95 % interval by resampling the variants."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(len(x), size=len(x)) for _ in range(2000)]
    ranks = [spearmanr(x[i], y[i]).statistic for i in drawn if len({*x[i]}) > 1]
    return spearmanr(x, y).statistic, *np.quantile(ranks, [0.025, 0.975])


def draw(ax, task: str) -> None:
    """A dot a variant; grpo is where the lines cross; in colour what is significant."""
    found = dots(task)
    ends = {}
    for name, (ratio, effect, significant) in found.items():
        colour = look(name)["color"] if significant else "0.5"
        ax.plot(ratio, effect, "o", color=colour)
        ends[name] = (effect, ratio, colour)
    ax.axhline(0, color="0.8", zorder=0)
    ax.axvline(1, color="0.8", zorder=0)
    title = task
    if len(found) > 2:
        x, y, _ = np.array([*found.values()]).T
        title += f"\nSpearman {shown(spearman(x, y), 1, '.2f')}"
    ax.set_xscale("log")
    ax.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", 1, 2, 4])
    ax.minorticks_off()
    ax.set_title(title, fontsize=10)
    ax.set(xlabel="signal-to-noise ratio, over grpo's")
    name_lines(ax, ends, 0.05)


def main() -> None:
    parser = options(__doc__, SEEDS, ("add", "mul"))
    names = [*FUNCTIONS, *CRITICS]
    parser.add_argument("--variant", choices=names, help="this one, on the first task and seed")
    args = parser.parse_args()
    if args.variant:
        return own(args.variant, args.tasks[0], args.seeds[0], args.out)
    complete(ROWS, measure, args)
    rows = read_rows(ROWS)
    tables = [f"\n## {task}\n\n{table(at(rows, task=task))}\n" for task in ("add", "mul")]
    publish(ROWS, "\n".join(["# Bias and noise. studies/gradients.py has the formulas", *tables]))
    with picture("gradients.png", 2, figsize=(WIDTH, 5), sharey=True) as axes:
        for ax, task in zip(axes, ("add", "mul")):
            draw(ax, task)
        axes[0].set_ylabel("average accuracy during training\nminus grpo's, points")


if __name__ == "__main__":
    main()
