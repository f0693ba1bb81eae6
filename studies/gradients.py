"""What is one rollout's gradient worth? python -m studies.gradients [--tasks mul] [--seeds 1 2]

Or for a function of one's own in VARIANTS: python -m studies.gradients --variant NAME [--task mul]

The weights are fixed: those of grpo's run after 0, 100 and 400 steps. Rollouts are sampled as in
training. There are two halves, A and B, the same for all arms.

    g      minus the gradient of an arm's loss on one rollout of half A: the direction of a step. At
           ratio 1, all groups in one mini-batch, not scaled down. m is the mean of K of them.
    u      the same on one rollout of half B, with rloo's advantage and the constant denominator. So
           it estimates grad J without bias, up to a factor; J is the expected reward. v is the mean
           of K' of them.

    M      = (K |m|^2 - mean |g|^2) / (K - 1)   |E g|^2: |m|^2 without its noise; V: the same of u
    bias   = <m, v> / sqrt(M V)                 cosine of E g with grad J
    one    = mean of <g, v> / (|g| sqrt(V))     how far one rollout points uphill; a g of 0 counts 0
    signal = bias^2 M / mean |g|^2              s: |uphill part of E g|^2 over mean |g|^2
    worth  = s / (1 - s) over that of grpo      with that many times the samples grpo is as good

No cosine is cut off at 1. NaN means "not measurable": an M or a V that is needed does not exceed
three of its errors. Errors are by the jackknife, which leaves out one rollout at a time. Intervals
resample base models. The cosine of one rollout is skewed, so 80 can look surer than they are: the
error within one base model may be too small. Differences from grpo are paired. Only the arms
grpo_G2 to grpo_G64, whose groups have another size, have other rollouts: with as many responses, at
step 0.

docs/tables/gradients.csv has a row a task, base seed, step and arm. What is there is not computed
again. docs/tables/gradients.md and docs/gradients.png are made from it alone. The weights of grpo's
runs are kept in --out as kept-<step>.pt; remove them when the core has changed.
"""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import chain, product
from pathlib import Path

import numpy as np
import torch
from scipy import optimize, stats
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, critic, grpo, likelihood, negative, nthr, on_tokens, rloo
from grpo import Rollout, answer_likelihood, encode, response_logprobs, sample_rollout
from grpo import token_bias, token_weights
from model import GPT
from studies.common import REPLICATES, ROOT, TABLES, at, commit, fill, markdown, options, publish
from studies.common import pyplot, read_rows, settings, shown, with_errors
from tasks import MARKER, TASKS, TOKENIZER

ROWS = TABLES / "gradients.csv"
KEPT = (0, 100, 200, 400)  # steps of grpo's run whose weights are kept
STEPS = (0, 100, 400)  # those that are measured here
ROLLOUTS = (80, 160)  # K and K'. A rollout of half B is cheap: it has one arm
OWN = (50, 100)  # the same for a variant of one's own
RESPONSES = 512  # of a rollout
CONSTANT = ("rloo", "no_baseline", "prefix_baseline")  # arms with this denominator, as in dr_grpo
SIZES = {f"grpo_G{G}": G for G in (2, 4, 16, 32, 64)}  # arms at step 0: other group sizes
AGES = {f"critic_{age}": age for age in (10, 40, 160)}  # arms: updates of the critic
SCALED = (1, 2)  # base seeds of the look at AdamW's scaling
COLUMNS = {"one": ".3f", "one_minus_grpo": "+.3f", "bias": ".2f", "signal": ".3f"}
COLUMNS |= {"log_worth": ".2f", "spared": ".2f"}
SEED_A, SEED_B, SEED_CRITIC = 1001, 1002, 1003  # of rollouts; no run of training has these


# ---- The arms that are no variants: functions of a rollout, as in advantages.py
def no_baseline(rollout: Rollout) -> Tensor:
    """A = r. All-pass groups are pushed up too."""
    return on_tokens(rollout, rollout.rewards)


def half(rollout: Rollout) -> Tensor:
    """grpo with its negative advantages halved."""
    A = grpo(rollout)
    return torch.where(A < 0, A / 2, A)


def random_sparing(rollout: Rollout) -> Tensor:
    """grpo, but as many tokens get 0 as nthr selects, and none of those.

    Each token that nthr selects has one partner: another token with A < 0 of the rollout, with 1 -
    pi near its own. The sum of the differences is the least possible. If there are fewer such
    tokens than nthr selects, all are partners.
    """
    A = grpo(rollout)
    selected = (A < 0) & (nthr(rollout, eta=0.0) == 0)
    others = (A < 0) & ~selected
    pi = rollout.logprobs.exp()
    _, partners = optimize.linear_sum_assignment((pi[selected][:, None] - pi[others]).abs().cpu())
    A.view(-1)[others.flatten().nonzero()[partners, 0]] = 0.0
    return A


def truth(rollout: Rollout) -> Tensor:
    """grpo, but what is correct in incorrect responses gets 0. An oracle.

    Correct is a token before the marker that the solution has in the same place. Here the verifier
    knows the solution; that of a language model knows only the answer.
    """
    tokens = rollout.tokens  # (P, G, T)
    solutions = encode([p.solution for p in rollout.problems], tokens.device)
    longer = tokens.size(-1) - solutions.size(-1)  # below 0 if no response is as long
    solutions = torch.nn.functional.pad(solutions, (0, longer))[:, None]  # (P, 1, T)
    before = (tokens == TOKENIZER.token_to_id(MARKER)).cumsum(-1) == 0
    A = grpo(rollout)
    return A.masked_fill((A < 0) & before & (tokens == solutions), 0.0)


def shuffled_L(rollout: Rollout) -> Tensor:
    """likelihood with the L of each all-fail group in random order: the same sizes, no meaning."""
    order = torch.rand_like(rollout.rewards).argsort(1)
    L = rollout.answer_likelihood.gather(1, order)
    return likelihood(replace(rollout, answer_likelihood=L))


def alike(rollout: Rollout) -> Tensor:
    """Whether responses i and j of a group have the same tokens up to t, (P, G, G, T)."""
    return (rollout.tokens[:, :, None] == rollout.tokens[:, None]).cumprod(-1).bool()


def shared_prefix(rollout: Rollout) -> Tensor:
    """grpo, but 0 for tokens of an incorrect response as long as a correct one is the same."""
    correct = (rollout.rewards == 1)[:, None, :, None]
    A = grpo(rollout)
    return A.masked_fill((A < 0) & (alike(rollout) & correct).any(2), 0.0)


def prefix_baseline(rollout: Rollout) -> Tensor:
    """A_{i,t} = r_i - the mean reward of the other responses that are the same before t.

    If there are none, of all others, as in rloo. This baseline does not depend on y_{i,t} or on
    what follows, so it adds no bias (grpo.py); but it is a mean of fewer rewards.
    """
    G = rollout.rewards.size(1)
    others = ~torch.eye(G, dtype=torch.bool, device=rollout.mask.device)[..., None]  # (G, G, 1)
    before = torch.nn.functional.pad(alike(rollout)[..., :-1], (1, 0), value=True) & others
    counted = torch.where(before.any(2, keepdim=True), before, others).float()  # (P, G, G, T)
    r = rollout.rewards[:, None, :, None]
    baseline = (counted * r).sum(2) / counted.sum(2)  # (P, G, T)
    return on_tokens(rollout, rollout.rewards[..., None] - baseline)


def judged_by(model: GPT, rollout: Rollout) -> Tensor:
    """critic, with this model as it is."""
    return critic(replace(rollout, token_bias=token_bias(model, rollout)))


FUNCTIONS = {name: f for name, f in VARIANTS.items() if name not in ("critic", "culling")}
FUNCTIONS |= {f.__name__: f for f in (no_baseline, half, random_sparing, truth, shuffled_L)}
FUNCTIONS |= {f.__name__: f for f in (shared_prefix, prefix_baseline)}  # the two invented ones
FUNCTIONS |= {f"negative_{c}": partial(negative, c=c) for c in (0.1, 0.3)}
FUNCTIONS["nthr_eta0"] = partial(nthr, eta=0.0)
# culling has the gradient of grpo; critic is in AGES
AGGREGATE = {x: LOSS.get(x, {}).get("aggregate", "token") for x in FUNCTIONS}
AGGREGATE |= dict.fromkeys(CONSTANT, "constant")
ARMS = {name: (f, AGGREGATE[name]) for name, f in FUNCTIONS.items()}


# ---- The measures, functions of matrices
def jackknife(values: Tensor, K: int) -> float:
    """The error of values[0], from what replicates gives.

    The root of the sum over both halves of (K - 1) / K sum_i (x_i - mean x)^2, x_i without i.
    """
    halves = (values[1 : 1 + K], values[1 + K :])
    return sum((len(x) - 1) * x.var(correction=0) for x in halves).sqrt().item()


def replicates(G: Tensor, U: Tensor) -> dict[str, Tensor]:
    """The measures of G (K, N) and U (K', N), and size = mean |g|^2: name -> (1 + K + K',).

    The first is that of all rollouts; then each of half A is left out; then each of half B.
    """
    K, Ku = len(G), len(U)
    a = torch.cat([torch.ones(1, K), 1 - torch.eye(K), torch.ones(Ku, K)]).double()  # 0: left out
    b = torch.cat([torch.ones(1 + K, Ku), 1 - torch.eye(Ku)]).double()
    n = a.sum(1)  # of g, (1 + K + K',)
    k = b.sum(1)
    both = torch.cat([G, U]).double()
    products = both @ both.T
    GG, GU, UU = products[:K, :K], products[:K, K:], products[K:, K:]
    size = a @ GG.diag() / n
    M = (((a @ GG) * a).sum(1) / n - size) / (n - 1)
    V = (((b @ UU) * b).sum(1) / k - b @ UU.diag() / k) / (k - 1)
    found = {"M": M, "V": V, "size": size}
    M, V = (x if x[0] > 3 * jackknife(x, K) else x * torch.nan for x in (M, V))
    cosines = (GU / GG.diag().sqrt()[:, None]).nan_to_num(0.0)  # <g, u> / |g|; 0 / 0 counts 0
    found["one"] = ((a @ cosines) * b).sum(1) / (n * k) / V.sqrt()
    found["bias"] = ((a @ GU) * b).sum(1) / (n * k) / (M * V).sqrt()
    return found | {"signal": found["bias"] ** 2 * M / size}


def measures(G: Tensor, U: Tensor, reference: dict) -> dict[str, float]:
    """M, V, size, bias, one, signal of G (K, N) and U (K', N); and name_error, the error of each.

    reference: the replicates of grpo, for one_minus_grpo and for log_worth, the logarithm of worth
    on this base model. Both are paired differences.
    """
    found = replicates(G, U)
    found["one_minus_grpo"] = found["one"] - reference["one"]
    found["log_worth"] = found["signal"].logit() - reference["signal"].logit()
    errors = {f"{name}_error": jackknife(x, len(G)) for name, x in found.items()}
    return {name: x[0].item() for name, x in found.items()} | errors


def resampled(values: list[float], errors: list[float]) -> tuple[float, float, float]:
    """Mean over base models, and its 95 % interval by resampling them. NaN are left out.

    Of one base model: its value, and two of its errors to each side. worth is exp of the three
    numbers of log_worth.
    """
    if len(values) == 1:
        return values[0], values[0] - 2 * errors[0], values[0] + 2 * errors[0]
    found = [x for x in values if x == x] or [np.nan]
    means = np.random.default_rng(0).choice(found, (10_000, len(found))).mean(1)
    return np.mean(found), *np.quantile(means, [0.025, 0.975])


# ---- The gradients
def sampled(model: GPT, task: str, seed: int, K: int, G: int = 8):
    """Yields K rollouts of training problems, drawn with replacement; G responses to each."""
    problems = train.make_problems(TASKS[task], held=False)
    order = np.random.default_rng(seed)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(K):
        batch = [problems[i] for i in order.integers(len(problems), size=RESPONSES // G)]
        yield sample_rollout(model, TASKS[task], batch, G, generator=rng)


def weighted(rollout: Rollout, arms: dict) -> Tensor:
    """What a token counts in the loss, times its advantage, for each arm: (arms, P, G, T)."""
    count = partial(token_weights, rollout.mask, max_length=rollout.max_length)
    return torch.stack([count(aggregate) * f(rollout) for f, aggregate in arms.values()])


def gradient(model: GPT, goal: Tensor) -> Tensor:
    """That of a number, as one vector (N,). Another one can follow on the same graph."""
    return parameters_to_vector(torch.autograd.grad(goal, [*model.parameters()], retain_graph=True))


def gradients(model: GPT, rollout: Rollout, weights: Tensor) -> Tensor:
    """The gradient of sum_{i,t} weights_{i,t} ln pi(y_{i,t}) for each of weights (arms, P, G, T).

    Of `weighted` that is minus the gradient of policy_loss at ratio 1, for each arm (arms, N). All-
    fail, mixed and all-pass groups are read apart, for in each kind some arms are the same.
    """
    p = rollout.rewards.mean(1)
    found = 0
    for kind in (p == 0, (p > 0) & (p < 1), p == 1):
        if kind.any():
            logprobs = response_logprobs(model, rollout, kind)
            distinct, which = weights[:, kind].unique(dim=0, return_inverse=True)
            rows = [gradient(model, (weight * logprobs).sum()) for weight in distinct]
            found = found + torch.stack(rows)[which]
    return found


def vectors(model: GPT, rollouts, arm: tuple) -> Tensor:
    """The gradients of one arm, a row for each rollout."""
    return torch.cat([gradients(model, x, weighted(x, {"": arm})) for x in rollouts])


def critics(args, model: GPT) -> dict:
    """The arms of AGES: one critic, trained as in train.train on rollouts of the fixed model."""
    judge = train.new_model(args, outputs=1)
    optimizer = torch.optim.Adam(judge.parameters(), args.lr)
    arms = {}
    for age, rollout in enumerate(sampled(model, args.task, SEED_CRITIC, max(AGES.values())), 1):
        train.train_critic(judge, optimizer, rollout)
        if age in AGES.values():
            arms[f"critic_{age}"] = (partial(judged_by, deepcopy(judge)), "token")
    return arms


def cell(args, model: GPT, names: list[str], K: int, Ku: int) -> list[dict]:
    """The rows of grpo and of these arms at fixed weights, from K and K' rollouts.

    spared: of the tokens that grpo pushes down, the share with advantage 0; random_sparing found no
    partner for 1 minus its share over that of nthr_eta0. one_scaled: `one` after each coordinate is
    divided by the root of its mean square over grpo's rollouts, as AdamW would.
    """
    arms = {name: ARMS[name] for name in ["grpo", *names] if name in ARMS}
    if AGES.keys() & names:
        arms |= critics(args, model)
    draw = partial(sampled, model, args.task)
    U = vectors(model, tqdm(draw(SEED_B, Ku), "half B", Ku), (rloo, "constant"))
    torch.manual_seed(0)  # of shuffled_L
    G = {name: torch.zeros(K, U.size(1)) for name in arms}
    spared = dict.fromkeys(arms, 0.0)
    for k, rollout in enumerate(tqdm(draw(SEED_A, K), "half A", K)):
        rollout.answer_likelihood = answer_likelihood(model, rollout)
        weights = weighted(rollout, arms)
        pushed = weights[0] < 0
        for name, weight, g in zip(arms, weights, gradients(model, rollout, weights)):
            G[name][k] = g
            spared[name] += (weight[pushed] == 0).float().mean().item() / K
    for name in [name for name in SIZES if name in names]:
        G[name] = vectors(model, draw(SEED_A, K, SIZES[name]), ARMS["grpo"])
    reference = replicates(G["grpo"], U)
    scale = 1 / (G["grpo"].square().mean(0).sqrt() + 1e-8)  # AdamW has the same 1e-8
    rows = []
    for name, g in G.items():
        row = {"arm": name, "K": K, "spared": spared.get(name, np.nan), "one_scaled": np.nan}
        if args.base_seed in SCALED:
            row["one_scaled"] = replicates(g * scale, U * scale)["one"][0].item()
        rows.append(row | measures(g, U, reference))
    return rows


def kept(args, step: int) -> GPT:
    """grpo's model after one of KEPT steps; the run is made if its last weights are not there."""
    paths = {n: Path(args.out, f"kept-{n}.pt") for n in KEPT}
    if not paths[args.steps].exists():
        paths[args.steps].parent.mkdir(parents=True, exist_ok=True)
        model = train.base_model(args)
        for n, _ in enumerate(chain(["the base model"], train.train(args, model))):
            if n in KEPT:
                torch.save(model.state_dict(), paths[n])
    model = train.new_model(args)
    model.load_state_dict(torch.load(paths[step], weights_only=True))
    return model


def measure(task: str, seed: int, out: str, steps):
    """The rows of one base model that are not there yet."""
    args = settings(task, seed, out)
    for step in steps:
        head = {"task": task, "seed": seed, "step": step}
        there = [row["arm"] for row in at(read_rows(ROWS), **head)]
        names = [x for x in (*ARMS, *AGES, *([] if step else SIZES)) if x not in there]
        if names:
            rows = cell(args, kept(args, step), names, *ROLLOUTS)
            yield from (head | {"commit": commit()} | x for x in rows if x["arm"] in names)


# ---- The tables, the figure, the command line
def means(rows: list[dict], column: str) -> dict[str, tuple]:
    """arm -> what resampled gives of a column; the largest first."""
    found = {}
    for row in rows:
        pair = (float(row[column]), float(row.get(f"{column}_error", "nan")))
        found.setdefault(row["arm"], []).append(pair)
    found = {arm: resampled(*zip(*pairs)) for arm, pairs in found.items()}
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def table(rows: list[dict]) -> str:
    """The arms, best `one` first: means over base models, with intervals; of one task and step.

    The last column counts the base models whose bias is measurable.
    """
    found = {column: means(rows, column) for column in COLUMNS}
    found["log_worth"] = {arm: np.exp(x) for arm, x in found["log_worth"].items()}
    clear = [row["arm"] for row in rows if str(row["bias"]) != "nan"]
    cells = []
    for arm in found["one"]:
        _, low, high = found["one_minus_grpo"][arm]
        near = "cannot be told apart" if low <= 0 <= high and arm != "grpo" else ""
        texts = [shown(found[column][arm], 1, form) for column, form in COLUMNS.items()]
        cells.append([f"`{arm}`", near, *texts, str(clear.count(arm))])
    header = [column.removeprefix("log_") for column in COLUMNS]
    return markdown(["arm", "from grpo", *header, "with a bias"], cells)


def after_scaling(rows: list[dict]) -> float:
    """Rank correlation over the arms of `one` with one_scaled, of one base model; NaN if none."""
    pairs = [(float(row["one"]), float(row["one_scaled"])) for row in rows]
    return stats.spearmanr(pairs).statistic if pairs else np.nan


def figure(rows: list[dict]) -> None:
    """`one` minus grpo's by arm, at the base models, with intervals over them."""
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(9, 6), sharex=True, sharey=True, layout="constrained")
    found = {task: means(at(rows, task=task, step=0), "one_minus_grpo") for task in ("add", "mul")}
    arms = [arm for arm in found["add"] if arm not in ("grpo", *SIZES)][::-1]
    for ax, task in zip(axes, found):
        mean, error = with_errors([found[task][arm] for arm in arms], 1)
        ax.errorbar(mean, arms, xerr=error, fmt="o")
        ax.axvline(0, color="grey", linewidth=0.8)
        ax.set(title=task, xlabel="alignment of one rollout, minus that of grpo")
    plt.savefig(ROOT / "docs" / "gradients.png", dpi=100)


def own(variant: str, task: str, seed: int, out: str) -> None:
    """Prints one variant among others on one base model, and what the CSV has of the same arms."""
    args = settings(task, seed, out)
    names = ["grpo", "nthr", "pos_only", "likelihood", variant]
    rows = cell(args, train.base_model(args), names, *OWN)
    committed = [x for x in at(read_rows(ROWS), task=task, step=0) if x["arm"] in names]
    print(f"Base seed {seed}, {OWN[0]} rollouts; intervals are two errors:\n\n{table(rows)}\n")
    print(f"{ROWS.name}, step 0; intervals resample base models:\n\n{table(committed)}")


def main() -> None:
    parser = options(__doc__, range(1, REPLICATES + 1), ("add", "mul"))
    parser.add_argument("--steps", nargs="+", type=int, choices=STEPS, default=STEPS)
    parser.add_argument("--variant", choices=ARMS, help="this one, on the first task and seed")
    args = parser.parse_args()
    if args.variant:
        return own(args.variant, args.tasks[0], args.seeds[0], args.out)
    fill(ROWS, measure, product(args.tasks, args.seeds, [args.out], [args.steps]), args.jobs)
    rows = read_rows(ROWS)
    text = "# What is one rollout's gradient worth?\n\nstudies/gradients.py has the formulas.\n"
    for task, step in product(("add", "mul"), STEPS):
        text += f"\n## {task}, step {step}\n\n{table(at(rows, task=task, step=step))}\n"
    for task, seed in product(("add", "mul"), SCALED):
        rank = after_scaling(at(rows, task=task, seed=seed, step=0))
        text += f"\nRank correlation after AdamW's scaling, {task}, base seed {seed}: {rank:.2f}\n"
    publish(ROWS, text)
    figure(rows)


if __name__ == "__main__":
    main()
