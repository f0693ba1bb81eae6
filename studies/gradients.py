"""Bias and noise of each variant's gradient: python -m studies.gradients [--tasks mul] [--seeds 4]

Two minutes show one variant beside others: python -m studies.gradients --variant NAME [--task mul].
NAME may be a function that you have added to VARIANTS.

The weights are those of a base model. We sample rollouts as in training, in two halves, A and B.
Each half has K rollouts, and they are the same for all variants.

    g   minus the gradient of a variant's loss on one rollout of half A: where a step goes. It is
        taken at ratio 1, with all groups in one mini-batch, and is not scaled to one length. m is
        the mean of the g.
    u   the same on one rollout of half B, with rloo's advantage and the constant denominator. So u
        estimates grad J, the gradient of the expected reward, without bias, up to a factor. v is
        the mean of the u.

    M           = (K |m|^2 - mean |g|^2) / (K - 1)     estimates |E g|^2: |m|^2 without its noise;
                                                       V is the same of u
    cosine      = <m, v> / sqrt(M V)                   of E g with grad J; below 1 there is a bias
    s           = cosine^2 M / mean |g|^2              the part of E |g|^2 that is E g along grad J
    signal-to-noise ratio = s / (1 - s)                of one rollout: that part over all the rest

The mean of N rollouts has an N-th of the noise. So without bias, the ratio divided by grpo's says
how many rollouts of grpo are worth one rollout. No cosine is cut off at 1. NaN means "not
measurable": M or V is not positive. Intervals resample base models.

The critic's network begins with outputs near 0, so at a base model critic equals grpo. We therefore
train it first, as train.train does, by 160 updates on other rollouts of the same weights, and then
keep it as it is. culling, gspo and cispo have the gradient of grpo at ratio 1, except for the
weights of tokens, so they are left out. So are ppo, double and quarter.

results/gradients.csv has one row for each task, base seed and variant or control. What has a row is
not measured again. studies/gradients_report.py makes results/gradients.md from it and from
results/compare.csv.
"""

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

import train
from advantages import Critic, rloo, with_advantages
from grpo import policy_loss, response_logprobs, sample_rollout, token_weights
from studies.analysis import effects
from studies.common import TABLES, complete, matching, options, publish, read_rows
from studies.gradients_report import page, table
from studies.protocol import ROWS as RUNS, TASKS, TWELVE
from studies.runs import TRAINED, model_after, settings
from tasks import TASKS as ALL_TASKS, make_problems

ROWS = TABLES / "gradients.csv"
K = 40  # rollouts in each half
PROMPTS = 64  # of a rollout
UPDATES = 160  # of the critic
SEED_A, SEED_B, SEED_CRITIC = 1001, 1002, 1003  # of rollouts; no run of training has these
LEFT_OUT = ("culling", "gspo", "cispo", "double", "quarter")
FUNCTIONS = {x: f for x, f in TRAINED.items() if x not in LEFT_OUT and not isinstance(f, type)}
BESIDE = ["grpo", "nthr", "pos_only", "half", "likelihood", "verifree"]  # your own variant


# ---- The gradients
def sampled(model, task: str, seed: int, rollouts: int):
    """Yields rollouts of training problems, drawn with replacement; eight responses to each."""
    problems = make_problems(ALL_TASKS[task], held=False)
    order = np.random.default_rng(seed)
    rng = torch.Generator().manual_seed(seed)
    for _ in range(rollouts):
        batch = [problems[i] for i in order.integers(len(problems), size=PROMPTS)]
        yield sample_rollout(model, ALL_TASKS[task], batch, 8, generator=rng)


def gradient(model, goal: torch.Tensor) -> torch.Tensor:
    """That of a number, as one vector (N,). Another one can follow on the same graph."""
    return parameters_to_vector(torch.autograd.grad(goal, [*model.parameters()], retain_graph=True))


def direction(model, rollout, variant, aggregate: str = "token") -> torch.Tensor:
    """g, (N,), of a variant. Groups whose A is 0 have no gradient, so they are not read."""
    trained = with_advantages(rollout, variant)
    groups = (trained.A != 0).any(2).any(1)
    weights = token_weights(trained.mask, aggregate, trained.max_length)[groups]
    logprobs = response_logprobs(model, trained, groups)
    loss, _ = policy_loss(logprobs, trained.logprobs[groups], trained.A[groups], weights)
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


def bias_and_noise(G: torch.Tensor, U: torch.Tensor) -> dict[str, float]:
    """cosine and snr; G (K, N) has the g as rows, U (K', N) the u."""
    v = U.mean(0)
    M = without_noise(G)
    V = without_noise(U)
    cosine = G.mean(0) @ v / (M * V).sqrt()
    s = cosine**2 * M / G.square().sum(1).mean()
    return {"cosine": cosine.item(), "snr": (s / (1 - s)).item()}


def measure(task: str, seed: int, out: str, names: list[str]) -> list[dict]:
    """The rows of one base model. A row does not depend on which others are measured with it."""
    model = model_after(task, "base", seed, out)
    functions = {name: FUNCTIONS[name] for name in names if name in FUNCTIONS}
    if "critic" in names:
        functions["critic"] = trained_critic(settings(task, seed, out), model)
    parsed = {name: settings(task, seed, out, "--variant", name) for name in functions}
    half_B = tqdm(sampled(model, task, SEED_B, K), "half B", K)
    U = torch.stack([direction(model, rollout, rloo, "constant") for rollout in half_B]).double()
    torch.manual_seed(0)  # of shuffled_L
    directions = {name: [] for name in functions}
    for rollout in tqdm(sampled(model, task, SEED_A, K), "half A", K):
        for name, function in functions.items():
            directions[name].append(direction(model, rollout, function, parsed[name].aggregate))
    found = {name: bias_and_noise(torch.stack(g).double(), U) for name, g in directions.items()}
    return [{"task": task, "seed": seed, "variant": name} | row for name, row in found.items()]


# ---- The command
def beside_others(variant: str, task: str, seed: int, out: str) -> None:
    """Prints one variant among others on one base model, and what the CSV has of the same."""
    names = [*BESIDE, variant]
    rows = measure(task, seed, out, names)
    committed = [row for row in matching(read_rows(ROWS), task=task) if row["variant"] in names]
    print(f"Base model {seed} of {task}. The numbers of one base model are noisy.\n\n{table(rows)}")
    print(f"\nMeans over the base models of {ROWS.name}:\n\n{table(committed)}")


def main() -> None:
    parser = options(__doc__, TWELVE, TASKS)
    parser.add_argument("--variant", choices=[*FUNCTIONS, "critic"], help="on one base model")
    args = parser.parse_args()
    if args.variant:
        return beside_others(args.variant, args.tasks[0], args.seeds[0], args.out)
    rows = complete(ROWS, measure, [*FUNCTIONS, "critic"], args)
    publish(ROWS, page(rows, effects(read_rows(RUNS))))


if __name__ == "__main__":
    main()
