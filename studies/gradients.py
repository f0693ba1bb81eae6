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
means "not measurable": M or V is not positive. Intervals resample base models; that of the
correlation with the effects resamples variants.

critic's network begins with outputs near 0, so at a base model critic is grpo. Therefore it is
trained as in train.train, by 160 updates on other rollouts of the same weights, and then kept as it
is. culling has the gradient of grpo. grpo_G2 to grpo_G64 have groups of that size, as many
responses and other rollouts.

results/gradients.csv has a row a task, base seed and variant or control; what is there is not
measured again. results/gradients.md is made from it alone, results/gradients.png from it and
results/compare.csv.
"""

import numpy as np
import torch
from scipy.stats import spearmanr
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

import train
from advantages import LOSS, VARIANTS, Critic, grpo, rloo
from grpo import Rollout, policy_loss, response_logprobs, sample_rollout, token_weights
from studies.common import TABLES, TWELVE, at, by_seed, complete, markdown, options, paired
from studies.common import publish, read_rows, resampled, settings, shown
from studies.ablations import CONTROLS, CONTROLS_LOSS
from studies.analysis import NAMES, effects
from studies.analysis import ROWS as RUNS
from studies.pictures import WIDTH, look, name_lines, picture
from tasks import TASKS, make_problems

ROWS = TABLES / "gradients.csv"
K = 40  # rollouts in each half
RESPONSES = 512  # of a rollout
UPDATES = 160  # of the critic
SEED_A, SEED_B, SEED_CRITIC = 1001, 1002, 1003  # of rollouts; no run of training has these
SIZES = {f"grpo_G{G}": G for G in (2, 4, 16, 64)}
LEFT_OUT = ("culling", "substituted", "substituted_up")
FUNCTIONS = {x: f for x, f in (VARIANTS | CONTROLS).items() if x not in LEFT_OUT}
FUNCTIONS = {x: f for x, f in FUNCTIONS.items() if not isinstance(f, type)}
LOSSES = LOSS | CONTROLS_LOSS
BESIDE = ["grpo", "nthr", "pos_only", "half", "likelihood", "verifree"]  # a variant of one's own
COLUMNS = {"cosine": "cosine", "mean_cosine": "mean cosine", "snr": "signal-to-noise ratio"}


# ---- The gradients
def sampled(model, task: str, seed: int, rollouts: int, G: int = 8):
    """Yields rollouts of training problems, drawn with replacement; G responses to each."""
    problems = make_problems(TASKS[task], held=False)
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


def trained_critic(args, model) -> Critic:
    """critic, after UPDATES updates; with a learning rate of 0 it stays as it is."""
    network = train.new_model(args, outputs=1)
    critic = Critic(network, args.lr)
    for rollout in sampled(model, args.task, SEED_CRITIC, UPDATES):
        critic(rollout)
    return Critic(network, lr=0.0)


def without_noise(X: torch.Tensor) -> torch.Tensor:
    """M, or V, of the rows of X: |E x|^2. NaN if it is not positive."""
    K = len(X)
    square = (K * X.mean(0).square().sum() - X.square().sum(1).mean()) / (K - 1)
    return square if square > 0 else square * torch.nan


def measures(G: torch.Tensor, U: torch.Tensor) -> dict[str, float]:
    """cosine, mean_cosine and snr; G (K, N) has the g as rows, U (K', N) the u."""
    v = U.mean(0)
    M = without_noise(G)
    V = without_noise(U)
    cosine = G.mean(0) @ v / (M * V).sqrt()
    of_one = (G @ v / G.norm(dim=1)).nan_to_num(0.0) / V.sqrt()  # 0 / 0 counts 0
    s = cosine**2 * M / G.square().sum(1).mean()
    found = {"cosine": cosine, "mean_cosine": of_one.mean(), "snr": s / (1 - s)}
    return {name: x.item() for name, x in found.items()}


def measure(task: str, seed: int, out: str, names=(*FUNCTIONS, "critic", *SIZES)) -> list[dict]:
    """The rows of one base model."""
    args = settings(task, seed, out)
    model = train.base_model(args)
    functions = {name: FUNCTIONS[name] for name in names if name in FUNCTIONS}
    if "critic" in names:
        functions["critic"] = trained_critic(args, model)
    half_B = tqdm(sampled(model, task, SEED_B, K), "half B", K)
    U = torch.stack([direction(model, rloo(rollout), "constant") for rollout in half_B]).double()
    torch.manual_seed(0)  # of shuffled_L
    found = {name: [] for name in functions}
    for rollout in tqdm(sampled(model, task, SEED_A, K), "half A", K):
        for name, function in functions.items():
            aggregate = LOSSES.get(name, {}).get("aggregate", "token")
            found[name].append(direction(model, function(rollout), aggregate))
    for name in [name for name in SIZES if name in names]:
        rollouts = sampled(model, task, SEED_A, K, SIZES[name])
        found[name] = [direction(model, grpo(rollout)) for rollout in rollouts]
    found = {name: measures(torch.stack(vectors).double(), U) for name, vectors in found.items()}
    return [{"task": task, "seed": seed, "variant": name} | row for name, row in found.items()]


# ---- Table and picture, from the CSV files alone
def means(values) -> tuple[float, float, float]:
    """Mean over base models, with an interval."""
    values = np.array([*values] or [np.nan])
    return resampled(lambda drawn: np.nanmean(values[drawn]), len(values))


def relative(rows: list[dict]) -> dict[str, tuple]:
    """variant -> signal-to-noise ratio over grpo's: geometric mean and interval; largest first."""
    found = {}
    for name in dict.fromkeys(row["variant"] for row in rows):
        ours, of_grpo = paired(rows, "snr", {"variant": name}, {"variant": "grpo"})
        found[name] = tuple(np.exp(means(np.log(ours / of_grpo))))
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def table(rows: list[dict]) -> str:
    """Means over base models of one task, with intervals."""
    cells = []
    for name, ratio in relative(rows).items():
        values = [by_seed(rows, column, variant=name).values() for column in COLUMNS]
        texts = [shown(x, 1, ".2f") for x in (*map(means, values), ratio)]
        cells.append([f"`{name}`", *texts])
    return markdown(["variant or control", *COLUMNS.values(), "relative to `grpo`"], cells)


def own(variant: str, task: str, seed: int, out: str) -> None:
    """Prints one variant among others on one base model, and what the CSV has of the same."""
    names = [*BESIDE, variant]
    rows = measure(task, seed, out, names)
    committed = [row for row in at(read_rows(ROWS), task=task) if row["variant"] in names]
    print(f"Base model {seed} of {task}. The numbers of one base model are noisy.\n\n{table(rows)}")
    print(f"\nMeans over the base models of {ROWS.name}:\n\n{table(committed)}")


def dots(task: str) -> list[tuple]:
    """Of variants and controls name, relative signal-to-noise ratio, and effect in studies.compare.

    The effect is at the rates chosen there.
    """
    ratios = relative(at(read_rows(ROWS), task=task))
    others = [x for x in effects(read_rows(RUNS)) if x["own"] and x["variant"] != "grpo"]
    found = [x for x in at(others, task=task) if x["variant"] in ratios]
    return [(x["variant"], ratios[x["variant"]][0], x) for x in found]


def draw(ax, task: str) -> None:
    """A dot a variant, a cross a control; grpo is where lines cross; in colour the significant.

    What loses more than 25 points is left out of the picture, but not of the correlation.
    """
    found = dots(task)
    for name, ratio, x in found:
        how = look(name) if x["significant"] else {"color": "0.5"}
        ax.plot(ratio, 100 * x["average"][0], "o" if name in NAMES else "x", label=name, **how)
    ax.set_title(task)
    if len(found) > 2:
        points = np.array([(ratio, x["average"][0]) for _, ratio, x in found])  # (dots, 2)
        correlation = resampled(lambda drawn: spearmanr(points[drawn]).statistic, len(found))
        ax.set_title(f"{task}\nSpearman {shown(correlation, 1, '.2f')}", fontsize=10)
    ax.axhline(0, color="0.8", zorder=0)
    ax.axvline(1, color="0.8", zorder=0)
    ax.set(xlabel="signal-to-noise ratio, over grpo's", xscale="log", ylim=(-25, None))
    ax.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", 1, 2, 4])
    ax.minorticks_off()
    name_lines(ax, 0.05)


def main() -> None:
    tasks = ("add", "mul")
    parser = options(__doc__, TWELVE, tasks)
    parser.add_argument("--variant", choices=[*FUNCTIONS, "critic"], help="on one base model")
    args = parser.parse_args()
    if args.variant:
        return own(args.variant, args.tasks[0], args.seeds[0], args.out)
    rows = complete(ROWS, measure, args)
    tables = [f"\n## {task}\n\n{table(at(rows, task=task))}\n" for task in tasks]
    publish(ROWS, "\n".join(["# Bias and noise. studies/gradients.py has the formulas", *tables]))
    with picture("gradients.png", 2, figsize=(WIDTH, 5)) as axes:
        axes[0].set_ylabel("average accuracy during training\nminus grpo's, points")
        for ax, task in zip(axes, tasks):
            draw(ax, task)


if __name__ == "__main__":
    main()
