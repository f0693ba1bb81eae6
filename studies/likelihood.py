"""Does an update make correct responses likelier? python -m studies.likelihood [--seeds 1 2 ...]

The protocol of arXiv 2505.18830, section 3, on `sum` and on `wall`: a base model samples eight
responses to a training problem; mixed groups are kept. Then, for each of them and each arm anew
from the base model's weights, one update on that group alone, its gradient not scaled down, and

    Delta(x) = (1/N+) sum_{i correct} [ln pi_theta'(y_i|x) - ln pi_theta(y_i|x)]            Eq. 2

Arms: grpo; pos_only; nthr with eta = 0, as in the paper's figures; nthr with its usual eta; random,
which spares as many tokens of each incorrect response as nthr does, but any. The paper does not
name its optimiser. Here: SGD with a small step, as the theory is about gradient flow, and a fresh
AdamW with the training's learning rate. The SGD step was fixed on base model 0, which the study
does not use (--calibrate). GWHES (Eq. 5) is to say beforehand where grpo's Delta is small.

docs/tables/likelihood.csv has a row a question; a base model that is there, of the same core, is
not measured again. Tables and docs/likelihood.png are made from it alone.
"""

import copy
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import train
from advantages import VARIANTS, grpo, nthr, nthr_scores
from grpo import Rollout, likelihood_change, policy_loss, response_logprobs
from model import GPT
from studies.common import ROOT, TABLES, base_model, core_checksum, interval, markdown
from studies.common import mixed_groups, options, pyplot, read_rows, rows_of_last_core, settings
from studies.common import shown, write_rows
from tasks import TASKS

ROWS = TABLES / "likelihood.csv"
# The largest of CALIBRATED at which grpo's Delta, at the median question, is within a fifth of ten
# times that of a tenth of the step.
SGD_STEP = 3e-4
CALIBRATED = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3)
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=SGD_STEP),
    "AdamW": partial(torch.optim.AdamW, lr=train.NUMBERS["lr"][0], weight_decay=0.0),
}
ARMS = ("grpo", "pos_only", "nthr-0", "nthr", "random")


def random_tokens(rollout: Rollout, spared: Tensor, rng: torch.Generator) -> Tensor:
    """grpo's advantages (P, G, T), but 0 on as many random tokens of a response as are spared."""
    keys = torch.rand(spared.size(), generator=rng).masked_fill(~rollout.mask, torch.inf)
    rank = keys.argsort(-1).argsort(-1)  # of a response's tokens, in a random order
    return grpo(rollout).masked_fill(rank < spared.sum(-1, keepdim=True), 0.0)


def gwhes(rollout: Rollout) -> float:
    """Group weighted hidden embedding score of a mixed group, large where Delta will be small.

    arXiv 2505.18830, Eq. 5, averaged over the N+ correct responses. With s of nthr_scores, which
    already sums over the correct responses,

        GWHES = (p- sum_{j incorrect} sum_k s_{j,k}  -  p+ sum_{i correct} sum_k s_{i,k}) / N+
        p+ = sqrt((1-p)/p),   p- = sqrt(p/(1-p)),   p the share of correct responses
    """
    s = nthr_scores(rollout).sum(-1)[0]  # (G,)
    correct = rollout.rewards[0] == 1
    p = correct.float().mean()
    pull = (p / (1 - p)).sqrt() * s[~correct].sum()
    push = ((1 - p) / p).sqrt() * s[correct].sum()
    return ((pull - push) / correct.sum()).item()


def arms(rollout: Rollout, seed: int) -> dict[str, Tensor]:
    """The advantages (1, G, T) of every arm for one mixed group."""
    found = {name: VARIANTS[name](rollout) for name in ("grpo", "pos_only", "nthr")}
    found["nthr-0"] = nthr(rollout, eta=0.0)
    spared = rollout.mask & (found["nthr-0"] == 0)  # in a mixed group grpo leaves no token at 0
    found["random"] = random_tokens(rollout, spared, torch.Generator().manual_seed(seed))
    return found


def changes(model: GPT, rollout: Rollout, advantages: dict, optimizers: dict) -> dict[str, float]:
    """Delta of one update by optimiser and arm. The model is put back to where it was."""
    weights = copy.deepcopy(model.state_dict())
    parameters = list(model.parameters())
    logprobs = response_logprobs(model, rollout)
    losses = [policy_loss(logprobs, rollout.logprobs, A, rollout.mask) for A in advantages.values()]
    gradients = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    found = {}
    for name, optimizer in optimizers.items():
        for arm, gradient in zip(advantages, gradients):
            for parameter, slope in zip(parameters, gradient):
                parameter.grad = slope
            optimizer(parameters).step()
            with torch.no_grad():
                found[f"{name} {arm}"] = likelihood_change(model, rollout)
            model.load_state_dict(weights)
    return found


def measure(task: str, base: int, questions: int, out: str) -> list[dict]:
    """The rows of one base model."""
    model = base_model(settings(task, base, Path(out) / f"{task}-{base}"))
    groups = mixed_groups(model, TASKS[task], questions)
    rows = []
    for i, rollout in enumerate(tqdm(groups, f"{task}, base model {base}")):
        advantages = arms(rollout, i)
        spared = rollout.mask & (advantages["nthr-0"] == 0)
        incorrect = rollout.mask & (rollout.rewards == 0)[..., None]
        row = {"task": task, "base": base, "core": core_checksum(), "question": i}
        row |= {"level": rollout.problems[0].level, "correct": int(rollout.rewards.sum())}
        row |= {"incorrect_tokens": int(incorrect.sum()), "spared": int(spared.sum())}
        values = {"gwhes": gwhes(rollout)} | changes(model, rollout, advantages, OPTIMIZERS)
        rows.append(row | {name: f"{value:.4g}" for name, value in values.items()})
    return rows


def calibrate() -> None:
    """How far grpo's Delta is from linear at each SGD step: base model 0 of sum, 40 groups."""
    model = base_model(settings("sum", 0, Path("runs")))
    off = []
    for rollout in mixed_groups(model, TASKS["sum"], 40):
        advantages = {"grpo": grpo(rollout)}
        sizes = {(n, x): partial(torch.optim.SGD, lr=n / x) for n in CALIBRATED for x in (10, 1)}
        pairs = np.array(list(changes(model, rollout, advantages, sizes).values())).reshape(-1, 2)
        off.append(abs(pairs[:, 1] / (10 * pairs[:, 0]) - 1))
    for step, median in zip(CALIBRATED, np.median(off, 0)):
        print(f"SGD step {step:g}: off by {median:.0%}")


def columns(task: str, name: str) -> np.ndarray:
    """One column of the rows of a task, (base models, questions)."""
    rows = [row for row in rows_of_last_core(ROWS) if row["task"] == task]
    bases = sorted({int(row["base"]) for row in rows})
    return np.array([[float(row[name]) for row in rows if int(row["base"]) == b] for b in bases])


def arm_table(task: str) -> str:
    """Delta of each arm; where nthr spares tokens, how often it is above grpo's.

    Intervals over base models.
    """
    cells = []
    spares = columns(task, "spared") > 0
    for optimizer in OPTIMIZERS:
        usual, other = (columns(task, f"{optimizer} {arm}") for arm in ("grpo", "random"))
        for arm in ARMS:
            delta = columns(task, f"{optimizer} {arm}")
            line = [optimizer, f"`{arm}`"]
            for values in (delta, delta - usual, delta - other):
                line.append(shown(interval(values.mean(1)), 1, "+.3f"))
            above = [np.mean((a > b)[chosen]) for a, b, chosen in zip(delta, usual, spares)]
            cells.append([*line, shown(interval(above), form=".0f")])
    header = ["optimiser", "arm", "mean Delta, nats", "minus grpo", "minus random"]
    table = markdown([*header, "above grpo on, %"], cells)
    return f"nthr spares tokens in {spares.mean():.0%} of the questions.\n\n{table}"


def verdict(task: str) -> str:
    """H8: nthr as in the paper's figures, SGD, at the level of the whole family of hypotheses."""
    ours = columns(task, "SGD nthr-0")
    lines = []
    for arm in ("grpo", "random"):
        gains = (ours - columns(task, f"SGD {arm}")).mean(1)
        found = interval(gains, 1 - 0.05 / 16)
        lines.append(f"SGD, nthr-0 minus {arm}, at 1 - 0.05/16: {shown(found, 1, '+.3f')} nats.")
    return "\n".join(lines)


def gwhes_table(task: str) -> str:
    """Of the K questions with the largest GWHES, how many are among those with the least Delta."""
    scores = columns(task, "gwhes")
    cells = []
    for optimizer in OPTIMIZERS:
        delta = columns(task, f"{optimizer} grpo")
        for share in (0.2, 0.3):
            K = round(share * scores.shape[1])
            pairs = zip((-scores).argsort(1)[:, :K], delta.argsort(1)[:, :K])
            both = [len(np.intersect1d(a, b)) / K for a, b in pairs]
            cells.append([optimizer, str(K), shown(interval(both), form=".0f"), f"{share:.0%}"])
    return markdown(["optimiser", "K", "overlap, %", "by chance"], cells)


def figure(tasks: list[str]) -> None:
    """How much more each arm raises Delta than grpo: a dot a base model, a bar their mean."""
    plt = pyplot()
    _, axes = plt.subplots(1, 2, figsize=(8, 3))
    for ax, optimizer in zip(axes, OPTIMIZERS):
        for offset, task in zip((-0.15, 0.15), tasks):
            usual = columns(task, f"{optimizer} grpo")
            for i, arm in enumerate(ARMS[1:]):
                gains = (columns(task, f"{optimizer} {arm}") - usual).mean(1)
                colour = "#0072B2" if task == "sum" else "#D55E00"
                label = task if i == 0 else None
                places = np.full(len(gains), i + offset)
                ax.plot(places, gains, ".", color=colour, alpha=0.6, label=label)
                ax.plot([i + offset - 0.1, i + offset + 0.1], [gains.mean()] * 2, color=colour)
        ax.axhline(0, color="black", linewidth=0.8)
        ax.set_xticks(range(len(ARMS) - 1), ARMS[1:])
        ax.set_title(f"{optimizer}", fontsize=10)
    axes[0].set_ylabel("Delta minus grpo's, nats")
    axes[0].legend(frameon=False)
    plt.tight_layout()
    plt.savefig(ROOT / "docs" / "likelihood.png", dpi=110)


def main() -> None:
    parser = options(__doc__, range(1, 11))
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--calibrate", action="store_true", help="only try SGD steps")
    args = parser.parse_args()
    out = f"{args.out}/{core_checksum()}"
    torch.set_num_threads(1)
    if args.calibrate:
        return calibrate()
    for task in args.tasks:
        for base in args.seeds:
            kept = [
                row for row in read_rows(ROWS) if (row["task"], row["base"]) != (task, str(base))
            ]
            there = [row for row in read_rows(ROWS) if row not in kept]
            made = {(row["core"], len(there)) for row in there}
            if made != {(core_checksum(), args.questions)}:
                write_rows(ROWS, kept + measure(task, base, args.questions, out))
    text = ""
    tasks = [task for task in ("sum", "wall") if len(columns(task, "gwhes"))]
    for task in tasks:
        text += f"## {task}, {len(columns(task, 'gwhes'))} base models\n\n{arm_table(task)}\n\n"
        text += f"{verdict(task)}\n\n{gwhes_table(task)}\n\n"
    (TABLES / "likelihood.md").write_text("# Likelihood change\n\n" + text)
    print(text)
    figure(tasks)


if __name__ == "__main__":
    main()
