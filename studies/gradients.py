"""What is a variant worth? python -m studies.gradients [--tasks mul] [--seeds 1 2] [--jobs 2]

Or for one's own function in VARIANTS: python -m studies.gradients --variant NAME [--task mul]

At fixed weights, those of grpo's run after 0, 100 and 400 steps, rollouts are sampled as in
training, in two halves, A and B. An arm's vector g is minus the gradient of its loss on one rollout
of A, at ratio 1, all groups in one mini-batch, not scaled down. Minus the gradient is the direction
of the step. The vector u is that of rloo with the constant denominator, on a rollout of B: its
expectation is the gradient of J, the expected reward, up to a factor. K vectors g (half A) have the
mean m, K' vectors u (half B) the mean v.

    M = (K |m|^2 - mean |g|^2) / (K - 1)         |E g|^2, for |m|^2 holds noise; V is the same of u
    bias   = <m, v> / sqrt(M V)                  cosine of E g with the gradient of J
    one    = mean <g, v> / (|g| sqrt(V))         how far one rollout points uphill
    signal = <m, v>^2 / (V mean |g|^2)           of |g|^2 the part that points uphill: s
    worth  = s / (1 - s) over that of grpo       with that many times the samples grpo is as good

A g of 0 counts 0 in `one`. No cosine is cut off at 1. NaN, "not measurable", is what needs an M or
a V that does not exceed three of its errors. Errors are those of the jackknife, which leaves out
one rollout at a time; intervals resample base models. All arms of a base model have the same
rollouts, so differences from grpo are paired; only other group sizes have rollouts of their own, of
as many responses.

docs/tables/gradients.csv has a row a task, base seed, step and arm. What is there is not computed
again. docs/tables/gradients.md and docs/gradients.png are made from it alone. The weights of
grpo's runs are kept in the folder --out; after a change of the core they must be removed.
"""

from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, critic, grpo, likelihood, negative, nthr, on_tokens, rloo
from grpo import Rollout, answer_likelihood, encode, response_logprobs, sample_rollout
from grpo import token_bias, token_weights
from model import GPT
from studies.common import REPLICATES, ROOT, TABLES, commit, markdown, options, publish, pyplot
from studies.common import read_rows, settings, shown, write_rows
from tasks import MARKER, TASKS

ROWS = TABLES / "gradients.csv"
KEPT = (0, 100, 200, 400)  # steps of grpo's run whose weights are kept
STEPS = (0, 100, 400)  # those that are measured
ROLLOUTS = (100, 200)  # K of half A, K' of half B, which is cheap: it has one arm
OWN = (60, 120)  # the same for a variant of one's own
RESPONSES = 512  # of a rollout
SIZES = {f"grpo_G{G}": G for G in (2, 4, 16, 32, 64)}  # arms at step 0
AGES = {f"critic_{age}": age for age in (10, 40, 160)}  # arms; the age in updates
SCALED = (1, 2)  # base seeds of the look at AdamW's scaling
A_SEED, B_SEED, CRITIC_SEED = 1001, 1002, 1003  # of rollouts; no run of training has these


# ---- The arms that are no variants: functions of a rollout, as in advantages.py
def no_baseline(rollout: Rollout) -> Tensor:
    """A = r: nothing is subtracted, all-pass groups are pushed up too."""
    return on_tokens(rollout, rollout.rewards)


def half(rollout: Rollout) -> Tensor:
    """grpo with its negative advantages halved."""
    A = grpo(rollout)
    return torch.where(A < 0, A / 2, A)


def random_sparing(rollout: Rollout) -> Tensor:
    """grpo, but as many tokens are spared (A = 0) as nthr with eta 0 spares, and none of those.

    For each token that nthr selects, in random order, the nearest in 1 - pi among the other tokens
    of incorrect responses of mixed groups. Each is used once; if there are too few, all are spared.
    """
    A = grpo(rollout)
    selected = (A < 0) & (nthr(rollout, eta=0.0) == 0)
    others = (A < 0) & ~selected
    error = 1 - rollout.logprobs.exp()
    wanted = error[selected]
    wanted = wanted[torch.randperm(len(wanted))][: others.sum()]
    offered = error.masked_fill(~others, torch.inf).flatten()
    for x in wanted:
        nearest = (offered - x).abs().argmin()
        offered[nearest] = torch.inf
        A.view(-1)[nearest] = 0.0
    return A


def truth(rollout: Rollout) -> Tensor:
    """grpo, but incorrect responses are spared where they agree with the solution.

    An oracle: before the marker, a token that the solution has in the same place gets 0. Here the
    solution is known; a language model's verifier knows the answer alone.
    """
    tokens = rollout.tokens
    solutions = encode(rollout.tokenizer, [p.solution for p in rollout.problems], tokens.device)
    missing = tokens.size(-1) - solutions.size(-1)  # below 0: the longest responses are shorter
    solutions = torch.nn.functional.pad(solutions, (0, missing))[:, None]  # (P, 1, T)
    before = (tokens == rollout.tokenizer.token_to_id(MARKER)).cumsum(-1) == 0
    A = grpo(rollout)
    return A.masked_fill((A < 0) & before & (tokens == solutions), 0.0)


def shuffled_L(rollout: Rollout) -> Tensor:
    """likelihood with the L_i of each all-fail group in random order: same sizes, no meaning."""
    order = torch.rand_like(rollout.rewards).argsort(1)
    L = rollout.answer_likelihood.gather(1, order)
    return likelihood(replace(rollout, answer_likelihood=L))


def judged_by(model: GPT, rollout: Rollout) -> Tensor:
    """The variant critic with this critic, as it is."""
    with torch.no_grad():
        return critic(replace(rollout, token_bias=token_bias(model, rollout)))


FUNCTIONS = {name: f for name, f in VARIANTS.items() if name not in ("critic", "culling")}
FUNCTIONS |= {f.__name__: f for f in (no_baseline, half, random_sparing, truth, shuffled_L)}
FUNCTIONS["nthr_eta0"] = partial(nthr, eta=0.0)
FUNCTIONS |= {f"negative_{c}": partial(negative, c=c) for c in (0.1, 0.3)}
UNBIASED = dict.fromkeys(("no_baseline", "rloo"), {"aggregate": "constant"})
# arm -> function and the loss's aggregate. culling has the gradient of grpo; critic comes by age.
ARMS = {
    name: (f, (LOSS | UNBIASED).get(name, {}).get("aggregate", "token"))
    for name, f in FUNCTIONS.items()
}


# ---- The measures, functions of matrices
def replicates(G: Tensor, U: Tensor) -> dict[str, Tensor]:
    """The measures of G (K, N) and U (K', N), as in the module's docstring, (1 + K + K',) each.

    First from all rollouts, then without each of A, then without each of B. size is mean |g|^2.
    """
    K, Ku = len(G), len(U)
    a = torch.cat([torch.ones(1, K), 1 - torch.eye(K), torch.ones(Ku, K)]).double()
    b = torch.cat([torch.ones(1 + K, Ku), 1 - torch.eye(Ku)]).double()
    n = a.sum(1)
    k = b.sum(1)
    a = a / n[:, None]  # the weights of the g in each mean, (1 + K + K', K)
    b = b / k[:, None]
    G = G.double()
    U = U.double()
    GG = G @ G.T
    GU = G @ U.T
    UU = U @ U.T
    size = a @ GG.diag()
    M = (n * ((a @ GG) * a).sum(1) - size) / (n - 1)
    V = (k * ((b @ UU) * b).sum(1) - b @ UU.diag()) / (k - 1)
    uphill = ((a @ GU) * b).sum(1)  # <m, v>
    cosines = (GU / GG.diag().sqrt()[:, None]).nan_to_num(0.0)  # <g, u> / |g|; 0 / 0 is 0
    one = ((a @ cosines) * b).sum(1) / V.sqrt()
    found = {"M": M, "V": V, "size": size, "one": one, "bias": uphill / (M * V).sqrt()}
    return found | {"signal": uphill**2 / (V * size)}


def jackknife(values: Tensor, K: int) -> float:
    """The error of values[0], from values (1 + K + K',) in the order of replicates.

    The root of the sum over both halves of (K - 1) / K sum_i (x_i - mean x)^2.
    """
    halves = (values[1 : 1 + K], values[1 + K :])
    return sum((len(x) - 1) * x.var(correction=0) for x in halves).sqrt().item()


def measures(G: Tensor, U: Tensor, reference: dict | None = None) -> dict[str, float]:
    """The measures of G (K, N) and U (K', N), and of each its error, as name_error.

    reference: the replicates of grpo, for paired differences: one_minus_grpo, and log_worth, the
    logarithm of worth on this base model. NaN: not measurable.
    """
    found = replicates(G, U)
    if reference:
        found["one_minus_grpo"] = found["one"] - reference["one"]
        found["log_worth"] = found["signal"].logit() - reference["signal"].logit()
    row = {}
    for name, x in found.items():
        row |= {name: x[0].item(), f"{name}_error": jackknife(x, len(G))}
    unclear = {name for name in ("M", "V") if not row[name] > 3 * row[f"{name}_error"]}
    needs = {"one": "V", "one_minus_grpo": "V", "bias": "MV", "signal": "MV", "log_worth": "MV"}
    for name in found.keys() & needs:
        if unclear & {*needs[name]}:
            row |= {name: np.nan, f"{name}_error": np.nan}
    return row


def resampled(values) -> tuple[float, float, float]:
    """Mean over base models, and its 95 % interval by resampling them; NaN are left out."""
    values = np.array([x for x in values if x == x] or [np.nan])
    means = np.random.default_rng(0).choice(values, (10_000, len(values))).mean(1)
    return values.mean(), *np.quantile(means, [0.025, 0.975])


# ---- The gradients
def sampled(model: GPT, task: str, seed: int, K: int, G: int = 8):
    """Yields K rollouts of training problems, drawn with replacement; G responses to each."""
    problems = train.make_problems(TASKS[task], held=False)
    order = np.random.default_rng(seed)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(K):
        batch = [problems[i] for i in order.integers(len(problems), size=RESPONSES // G)]
        yield sample_rollout(model, train.TOKENIZER, TASKS[task], batch, G, generator=rng)


def weighted(rollout: Rollout, arms: dict) -> Tensor:
    """Weight times advantage of each token in the loss of each arm, (arms, P, G, T)."""
    count = partial(token_weights, rollout.mask, max_length=rollout.max_length)
    return torch.stack([count(aggregate) * f(rollout) for f, aggregate in arms.values()])


def gradients(model: GPT, rollout: Rollout, weights: Tensor) -> Tensor:
    """The gradients of sum_{i,t} weights_{i,t} ln pi(y_{i,t}), weights (arms, P, G, T): (arms, N).

    With the weights of `weighted` that is minus the gradient of policy_loss at ratio 1. All-fail,
    mixed and all-pass groups are read apart, because most arms have only zeros in some of them.
    """
    parameters = list(model.parameters())
    found = torch.zeros(len(weights), sum(p.numel() for p in parameters))
    p = rollout.rewards.mean(1)
    for kind in (p == 0, (p > 0) & (p < 1), p == 1):
        if kind.any():
            logprobs = response_logprobs(model, rollout, kind)
            distinct, which = weights[:, kind].unique(dim=0, return_inverse=True)
            sums = [(weight * logprobs).sum() for weight in distinct]
            parts = [torch.autograd.grad(x, parameters, retain_graph=True) for x in sums]
            rows = [torch.cat([part.flatten() for part in row]) for row in parts]
            found += torch.stack(rows)[which]
    return found


def critics(args, model: GPT) -> dict:
    """Arms with critics of several ages, trained as by train.py on rollouts of these weights."""
    judge = train.new_model(args, outputs=1)
    optimizer = torch.optim.AdamW(judge.parameters(), args.lr, weight_decay=0.0)
    arms = {}
    for age, rollout in enumerate(sampled(model, args.task, CRITIC_SEED, max(AGES.values())), 1):
        train.train_critic(judge, optimizer, rollout)
        if f"critic_{age}" in AGES:
            arms[f"critic_{age}"] = (partial(judged_by, deepcopy(judge)), "token")
    return arms


def cell(args, model: GPT, names: list[str], K: int, Ku: int, quiet: bool = True) -> list[dict]:
    """The rows of these arms at these weights, and of grpo.

    spared: of the tokens that grpo pushes down, the share whose advantage is 0. one_scaled: `one`
    after each coordinate is divided by the root of its mean square over grpo's g, as by AdamW.
    """
    arms = {name: ARMS[name] for name in ["grpo", *names] if name in ARMS}
    if AGES.keys() & names:
        arms |= critics(args, model)
    draw = partial(sampled, model, args.task)
    true = {"u": (rloo, "constant")}
    U = torch.cat([gradients(model, x, weighted(x, true)) for x in draw(B_SEED, Ku)])
    G = {name: torch.zeros(K, U.size(1)) for name in arms}
    spared = torch.zeros(len(arms))
    torch.manual_seed(0)  # of the arms that draw
    for k, rollout in enumerate(tqdm(draw(A_SEED, K), "rollouts", K, disable=quiet)):
        rollout.answer_likelihood = answer_likelihood(model, rollout)
        weights = weighted(rollout, arms)
        pushed = weights[0] < 0
        spared += (weights[:, pushed] == 0).sum(1) / pushed.sum().clamp(min=1) / K
        for g, found in zip(G.values(), gradients(model, rollout, weights)):
            g[k] = found
    shares = dict(zip(arms, spared.tolist()))
    only = {"grpo": ARMS["grpo"]}
    for name in SIZES.keys() & names:
        rollouts = draw(A_SEED, K, SIZES[name])
        G[name] = torch.cat([gradients(model, x, weighted(x, only)) for x in rollouts])
    reference = replicates(G["grpo"], U)
    scale = 1 / (G["grpo"].square().mean(0).sqrt() + 1e-8)  # 1e-8 as in AdamW
    rows = []
    for name, g in G.items():
        row = {"arm": name, "K": K, "spared": shares.get(name)} | measures(g, U, reference)
        if args.base_seed in SCALED:
            row["one_scaled"] = measures(g * scale, U * scale)["one"]
        rows.append(row)
    return rows


def kept(task: str, seed: int, out: str) -> dict[int, Path]:
    """Files with the weights of grpo's run after each of KEPT steps; made if one is missing."""
    torch.set_num_threads(1)
    args = settings(task, seed, out)
    paths = {step: Path(args.out, f"kept-{step}.pt") for step in KEPT}
    if not all(path.exists() for path in paths.values()):
        model = train.base_model(args)
        steps = train.train(args, model, evaluate_every=args.steps)
        for step, _ in enumerate(chain(["the base model"], steps)):
            if step in paths:
                train.save(paths[step], lambda part: torch.save(model.state_dict(), part))
    return paths


def measure(task: str, seed: int, step: int, names: list[str], out: str) -> list[dict]:
    """The rows of these arms after so many steps of grpo's run of this base seed."""
    args = settings(task, seed, out)
    model = train.new_model(args)
    model.load_state_dict(torch.load(kept(task, seed, out)[step], weights_only=True))
    head = {"task": task, "seed": seed, "step": step, "commit": commit()}
    return [head | row for row in cell(args, model, names, *ROLLOUTS) if row["arm"] in names]


# ---- The tables, the figure, the command line
def values(rows: list[dict], task: str, step: int, arm: str, column: str) -> list[float]:
    """A column of an arm's rows, a number a base model."""
    wanted = (task, str(step), arm)
    found = [row[column] for row in rows if (row["task"], row["step"], row["arm"]) == wanted]
    return [float(x or "nan") for x in found]


def table(rows: list[dict], task: str, step: int) -> str:
    """All arms, best `one` first: means over base models, with intervals."""
    cells = []
    for arm in (*ARMS, *AGES, *SIZES):
        of = partial(values, rows, task, step, arm)
        one = of("one")
        if one:
            difference = of("one_minus_grpo")
            texts = [f"{resampled(one)[0]:.3f}", shown(resampled(difference), 1, "+.3f")]
            texts += [f"{sum(x > 0 for x in difference)} of {len(one)}"]
            texts += [f"{resampled(of('one_minus_grpo_error'))[0]:.3f}"]
            texts += [shown(resampled(of(name)), 1, ".2f") for name in ("bias", "signal")]
            texts += [shown(np.exp(resampled(of("log_worth"))), 1, ".2f")]
            texts += [f"{resampled(of(name))[0]:.3f}" for name in ("spared", "one_scaled")]
            cells.append([f"`{arm}`", *texts])
    header = (
        "one; minus grpo (95 %); above 0; error within one; bias; signal; worth; spared; scaled"
    )
    cells.sort(key=lambda line: line[1], reverse=True)
    return markdown(["arm", *header.split("; ")], cells)


def figure(rows: list[dict]) -> None:
    """`one` minus grpo's of each arm, by step, with intervals over base models."""
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(10, 7), layout="constrained")
    for ax, task in zip(axes, ("add", "mul")):
        one = {arm: values(rows, task, 0, arm, "one") for arm in (*ARMS, *AGES, *SIZES)}
        arms = sorted([arm for arm in one if one[arm]], key=lambda arm: np.nanmean(one[arm]))
        for i, step in enumerate(STEPS):
            found = [resampled(values(rows, task, step, x, "one_minus_grpo")) for x in arms]
            mean, low, high = np.array(found).T
            y = np.arange(len(arms)) - 0.2 * i
            ax.errorbar(mean, y, xerr=[mean - low, high - mean], fmt=".", label=f"step {step}")
        ax.axvline(0, color="grey", linewidth=0.8)
        ax.set(title=task, xlabel="one, minus grpo's", yticks=range(len(arms)), yticklabels=arms)
    axes[0].legend(frameon=False)
    plt.savefig(ROOT / "docs" / "gradients.png", dpi=100)


def own(variant: str, task: str, seed: int, out: str) -> None:
    """Prints one variant among others on one base model, beside the committed differences."""
    args = settings(task, seed, out)
    names = ["nthr", "pos_only", "likelihood", variant]
    rows = cell(args, train.base_model(args), names, *OWN, quiet=False)
    cells = []
    for row in sorted(rows, key=lambda row: -row["one"]):
        difference, error = row["one_minus_grpo"], row["one_minus_grpo_error"]
        told = "cannot be told apart" if abs(difference) < 2 * error else f"{difference:+.3f}"
        there = values(read_rows(ROWS), task, 0, row["arm"], "one_minus_grpo")
        texts = [f"{row[name]:.3f}" for name in ("one", "one_minus_grpo_error", "bias", "signal")]
        cells.append([row["arm"], texts[0], told, *texts[1:], shown(resampled(there), 1, "+.3f")])
    header = "arm; one; minus grpo; its error; bias; signal; minus grpo, committed base models"
    print(markdown(header.split("; "), cells))


def main() -> None:
    parser = options(__doc__, range(1, REPLICATES + 1), ("add", "mul"))
    parser.add_argument("--jobs", type=int, default=2, help="side by side, one thread each")
    parser.add_argument("--variant", choices=ARMS, help="print this one, on one base model")
    parser.add_argument("--task", choices=TASKS, default="add", help="for --variant")
    parser.add_argument("--base-seed", type=int, default=1, help="for --variant")
    args = parser.parse_args()
    if args.variant:
        return own(args.variant, args.task, args.base_seed, args.out)
    there = {(x["task"], int(x["seed"]), int(x["step"]), x["arm"]) for x in read_rows(ROWS)}
    jobs = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        seeds = [*product(args.tasks, args.seeds, [args.out])]
        list(pool.map(kept, *zip(*seeds)))
        for (task, seed, out), step in product(seeds, STEPS):
            names = [*ARMS, *AGES, *([] if step else SIZES)]
            names = [name for name in names if (task, seed, step, name) not in there]
            if names:
                jobs.append(pool.submit(measure, task, seed, step, names, out))
        for job in tqdm(as_completed(jobs), "models", len(jobs)):
            write_rows(ROWS, read_rows(ROWS) + job.result())
    rows = read_rows(ROWS)
    text = "# What is one rollout's gradient worth?\n"
    for task, step in product(("add", "mul"), STEPS):
        text += f"\n## {task}, step {step}\n\n{table(rows, task, step)}\n"
    publish(ROWS, text)
    figure(rows)


if __name__ == "__main__":
    main()
