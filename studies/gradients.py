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

docs/tables/gradients.csv has a row a task, base seed, step and arm. A base model that has rows is
not measured again. docs/tables/gradients.md is made from it alone. The weights of grpo's runs are
kept in --out as kept-<step>.pt; remove them when the core has changed.
"""

from copy import deepcopy
from functools import partial
from itertools import product

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, Critic, rloo
from grpo import response_logprobs, sample_rollout, token_weights
from studies.common import SEEDS, TABLES, at, commit, complete, options, publish, settings, shown
from studies.controls import CONTROLS, CONTROLS_LOSS
from studies.measures import measures, replicates, resampled
from studies.runs import kept
from tasks import TASKS
from tools.common import markdown, read_rows
from tools.explore import judged_by

ROWS = TABLES / "gradients.csv"
STEPS = (0, 100, 400)  # of grpo's run, whose weights are measured
ROLLOUTS = (80, 160)  # K and K'. A rollout of half B is cheap: it has one arm
OWN = (50, 100)  # the same for a variant of one's own
RESPONSES = 512  # of a rollout
SIZES = {f"grpo_G{G}": G for G in (2, 4, 16, 32, 64)}  # arms at step 0: other group sizes
AGES = {f"critic_{age}": age for age in (10, 40, 160)}  # arms: updates of the critic
COLUMNS = {"one": ".3f", "one_minus_grpo": "+.3f", "bias": ".2f", "signal": ".3f"}
COLUMNS["log_worth"] = COLUMNS["spared"] = ".2f"
SEED_A, SEED_B, SEED_CRITIC = 1001, 1002, 1003  # of rollouts; no run of training has these
FUNCTIONS = {name: f for name, f in (VARIANTS | CONTROLS).items() if not isinstance(f, type)}
LOSSES = LOSS | CONTROLS_LOSS | {"rloo": {"aggregate": "constant"}}  # so rloo is unbiased
ARMS = {x: (f, LOSSES.get(x, {}).get("aggregate", "token")) for x, f in FUNCTIONS.items()}
del ARMS["culling"]  # it has the gradient of grpo; critic, which is a class, is in AGES


# ---- The gradients
def sampled(model, task: str, seed: int, K: int, G: int = 8):
    """Yields K rollouts of training problems, drawn with replacement; G responses to each."""
    problems = train.make_problems(TASKS[task], held=False)
    order = np.random.default_rng(seed)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(K):
        batch = [problems[i] for i in order.integers(len(problems), size=RESPONSES // G)]
        yield sample_rollout(model, TASKS[task], batch, G, generator=rng)


def weighted(rollout, arms: dict) -> dict:
    """arm -> the rollout that it trains; what a token counts in its loss, times A (P, G, T)."""
    found = {}
    for name, (f, aggregate) in arms.items():
        x = f(rollout)
        found[name] = x, x.A * token_weights(x.mask, aggregate, x.max_length)
    return found


def gradient(model, goal: torch.Tensor) -> torch.Tensor:
    """That of a number, as one vector (N,). Another one can follow on the same graph."""
    return parameters_to_vector(torch.autograd.grad(goal, [*model.parameters()], retain_graph=True))


def gradients(model, rollout, trained: dict) -> dict[str, torch.Tensor]:
    """arm -> the gradient (N,) of sum_{i,t} weights_{i,t} ln pi(y_{i,t}); trained: of `weighted`.

    That is minus the gradient of policy_loss at ratio 1. Arms that train the sampled tokens are
    read together; one that trains others, as verifree does, is read by itself.
    """
    own = {name: x for name, x in trained.items() if x[0].tokens is not rollout.tokens}
    shared = {name: weights for name, (_, weights) in trained.items() if name not in own}
    found = {}
    if shared:
        rows = of_sampled(model, rollout, torch.stack([*shared.values()]))
        found |= zip(shared, rows)
    for name, (x, weights) in own.items():
        found[name] = gradient(model, (weights * response_logprobs(model, x)).sum())
    return found


def of_sampled(model, rollout, weights: torch.Tensor) -> torch.Tensor:
    """The gradients (arms, N) of weights (arms, P, G, T) on the sampled tokens.

    All-fail, mixed and all-pass groups are read apart, for in each kind some arms are the same.
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


def vectors(model, rollouts, arm: tuple) -> torch.Tensor:
    """The gradients of one arm, a row for each rollout."""
    return torch.stack([gradients(model, x, weighted(x, {"": arm}))[""] for x in rollouts])


def critics(args, model) -> dict:
    """The arms of AGES: one critic, trained as in train.train on rollouts of the fixed model."""
    judge = Critic(train.new_model(args, outputs=1), args.lr)
    arms = {}
    for age, rollout in enumerate(sampled(model, args.task, SEED_CRITIC, max(AGES.values())), 1):
        judge(rollout)
        if age in AGES.values():
            arms[f"critic_{age}"] = (partial(judged_by, deepcopy(judge.network)), "token")
    return arms


def cell(args, model, names: list[str], K: int, Ku: int):
    """The rows of grpo and of these arms at fixed weights, from K and K' rollouts.

    spared: of the tokens that grpo pushes down, the share with advantage 0; random_sparing found no
    partner for 1 minus its share over that of nthr_eta0. NaN where other tokens are trained.
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
        trained = weighted(rollout, arms)
        pushed = trained["grpo"][1] < 0
        for name, g in gradients(model, rollout, trained).items():
            G[name][k] = g
            x, weights = trained[name]
            same = x.tokens is rollout.tokens
            share = (weights[pushed] == 0).float().mean().item() if same else np.nan
            spared[name] += share / K
    for name in [name for name in SIZES if name in names]:
        G[name] = vectors(model, draw(SEED_A, K, SIZES[name]), ARMS["grpo"])
    reference = replicates(G["grpo"], U)
    for name, g in G.items():
        row = {"arm": name, "K": K, "spared": spared.get(name, np.nan)}
        yield row | measures(g, U, reference)


def measure(task: str, seed: int, out: str):
    """The rows of one base model."""
    args = settings(task, seed, out)
    for step in STEPS:
        names = [*ARMS, *AGES, *([] if step else SIZES)]
        head = {"task": task, "seed": seed, "step": step, "commit": commit()}
        yield from (head | row for row in cell(args, kept(args, step), names, *ROLLOUTS))


# ---- The tables, the command line
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
        texts = [shown(found[column][arm], 1, form) for column, form in COLUMNS.items()]
        cells.append([f"`{arm}`", *texts, str(clear.count(arm))])
    header = [column.removeprefix("log_") for column in COLUMNS]
    return markdown(["arm", *header, "with a bias"], cells)


def in_words(rows: list[dict]) -> str:
    """A sentence an arm, best worth first; of one base model the interval is two errors."""
    bias = means(rows, "bias")
    lines = []
    for arm, ln in means(rows, "log_worth").items():
        worth = shown(np.exp(ln), 1, ".2f")
        turned = f"cosine of the mean with grad J: {bias[arm][0]:.2f}"
        lines.append(f"{arm}: one rollout is as good as {worth} of grpo's; {turned}")
    return "\n".join(lines)


def own(variant: str, task: str, seed: int, out: str) -> None:
    """Prints one variant among others on one base model, and what the CSV has of the same arms."""
    args = settings(task, seed, out)
    names = ["grpo", "nthr", "pos_only", "half", "likelihood", variant]
    rows = [*cell(args, train.base_model(args), names, *OWN)]
    committed = [x for x in at(read_rows(ROWS), task=task, step=0) if x["arm"] in names]
    print(f"Base model {seed} of {task}, {OWN[0]} rollouts:\n\n{in_words(rows)}\n")
    print(f"Twelve base models, {ROWS.name}:\n\n{in_words(committed)}")


def main() -> None:
    parser = options(__doc__, SEEDS, ("add", "mul"))
    parser.add_argument("--variant", choices=ARMS, help="this one, on the first task and seed")
    args = parser.parse_args()
    if args.variant:
        return own(args.variant, args.tasks[0], args.seeds[0], args.out)
    complete(ROWS, measure, args)
    rows = read_rows(ROWS)
    text = "# What is one rollout's gradient worth?\n\nstudies/gradients.py has the formulas.\n"
    for task, step in product(("add", "mul"), STEPS):
        text += f"\n## {task}, step {step}\n\n{table(at(rows, task=task, step=step))}\n"
    publish(ROWS, text)


if __name__ == "__main__":
    main()
