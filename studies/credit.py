"""Who gets the credit? One group of real responses, each token coloured by its advantage.

    python -m studies.credit [--variants grpo nthr ...] [--seed 0] [--level N] [--groups 200]
                             [--critic-steps 40] [--out runs/credit] [--quick]

The base model of the default task samples 8 responses to training problems, in the order of --seed;
the first --groups mixed groups are kept. The picture's group is the first of them with 3 correct
responses (p = 3/8: nthr multiplies the advantage of what it spares by 2|p - 1/2| = 1/4, not by 0 or
nearly 1) whose wrong responses all begin with a right step; --level asks for one level. Nothing is
trained on it: what is shown is what an update would use.

`critic` needs a trained critic: the one after the first --critic-steps steps of `train.py --variant
critic`, where it learns beside the policy. Here it judges the base model's responses.

Does sparing make sense? A token is still right if the response up to it, the token included, is how
the worked solution begins; end-of-sequence is the solution's last token. Over all kept groups: the
share of the wrong responses' tokens that nthr spares among the right ones, the first wrong one of
each response, and those behind it, with 95 % intervals over groups. A token that the policy was
sure of is hardly pushed (the gradient at its logit is A (1 - pi)) and hardly ever spared, and most
right tokens are such; so the share is also given with each token weighted by 1 - pi.

Written: credit.csv in --out, a row a variant and a token of the picture's group, and
docs/credit.png; printed: the group as text, and the table. Kept in --out: base model and critic.
"""

import argparse
import csv
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

import train
from advantages import VARIANTS, critic_loss, grpo, nthr
from grpo import Rollout, descend, encode, sample_rollout, token_bias, update
from model import GPT, GPTConfig
from studies.likelihood import TASK, TOKENIZER, base_model, markdown, mixed_groups
from tasks import EOS, MARKER, PAD

CORRECT = 3  # responses of the picture's group
PROMPTS, GROUP, STEPS, RATE = (
    train.NUMBERS[name][0] for name in ("prompts", "group-size", "steps", "lr")
)
# In a mixed group culling, negative and likelihood are grpo.
CHOICES = [name for name in VARIANTS if name not in ("culling", "negative", "likelihood")]
DEFAULT = ("grpo", "ngrpo", "compensation", "critic", "nthr")
STAGES = ("still right", "the first wrong one", "behind it")
FIELDS = ("variant", "response", "position", "character", "reward", "advantage", "spared")
SIGNS = {EOS: "$", PAD: "_"}  # what stands for a token that is no character
KEY = """A row is a response, a cell a token ($ is
end-of-sequence), its colour the advantage.

┃  here a response leaves the
    worked solution

□  nthr spares this token: {eta:.2g} of
    grpo's advantage
"""


# ---- arithmetic ----


def still_right(rollout: Rollout) -> Tensor:
    """Whether the response up to this token begins the solution, (P, G, T); False off the mask."""
    solutions = [problem.solution + EOS for problem in rollout.problems]
    right, _ = encode(rollout.tokenizer, solutions, rollout.tokens.device)  # (P, L)
    T = rollout.tokens.size(2)
    right = F.pad(right, (0, T))[:, None, :T]  # (P, 1, T); nothing sampled stands behind an end
    return ((rollout.tokens == right) & rollout.mask).cumprod(-1).bool()


def stages(rollout: Rollout) -> Tensor:
    """0, 1, 2 as in STAGES for each token, (P, G, T); -1 outside the mask."""
    right = still_right(rollout)
    before = F.pad(right, (1, -1), value=True)  # whether the token before was still right
    stage = torch.where(right, 0, torch.where(before, 1, 2))
    return stage.masked_fill(~rollout.mask, -1)


def spared_tokens(rollout: Rollout) -> Tensor:
    """Tokens whose advantage nthr multiplies by eta, (P, G, T) bool: those that eta = 0 changes."""
    return nthr(rollout, eta=0.0) != grpo(rollout)


def counts(rollout: Rollout) -> np.ndarray:
    """[plain, weighted][tokens, spared ones][stage] of a group's wrong responses; weight 1 - pi."""
    stage, spared = stages(rollout), spared_tokens(rollout)
    stage = stage.masked_fill((rollout.rewards == 1)[..., None], -1)
    kinds = [[(stage == i) & m for i in range(len(STAGES))] for m in (rollout.mask, spared)]
    weight = -rollout.logprobs.expm1()  # 1 - pi
    return np.array([[[w[m].sum() for m in row] for row in kinds] for w in (weight**0, weight)])


def shares(sums: np.ndarray) -> np.ndarray:
    """[..., tokens and spared ones, stage] -> [..., 4]: the share spared of each stage, and the
    share of the right tokens minus that of all others."""
    tokens, spared = np.maximum(sums[..., 0, :], 1e-9), sums[..., 1, :]
    each, others = spared / tokens, spared[..., 1:].sum(-1) / tokens[..., 1:].sum(-1)
    return np.concatenate([each, (each[..., 0] - others)[..., None]], -1)


def intervals(groups: np.ndarray, resamples: int = 2000) -> np.ndarray:
    """shares() of the sums over groups (n, ...), and its 95 % interval: (3, ...).

    The tokens of a group are no independent draws, so whole groups are drawn again (bootstrap).
    """
    n = len(groups)
    draws = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), resamples)
    again = shares(np.tensordot(draws, groups, 1))  # (resamples, ...)
    return np.stack([shares(groups.sum(0)), *np.quantile(again, [0.025, 0.975], axis=0)])


# ---- the group and the critic ----


def fits(rollout: Rollout, level: int | None) -> bool:
    """Whether this group (P = 1) may be the picture's: see the module's docstring."""
    (problem,), (texts,), (rewards,) = rollout.problems, rollout.texts, rollout.rewards.tolist()
    step = problem.solution.split(MARKER)[0].split(",")[0]
    begun = [text.startswith(step + ",") for text, r in zip(texts, rewards) if r == 0]
    return sum(rewards) == CORRECT and all(begun) and level in (None, problem.level)


def trained_critic(base: GPT, steps: int, seed: int, path: Path) -> GPT:
    """The critic after the first steps of `train.py --variant critic --seed ...`; kept at path."""
    torch.manual_seed(train.DATA_SEED)
    policy = GPT(base.config)  # made before the critic, as in train.py, for the same random numbers
    critic = GPT(GPTConfig(**{**vars(base.config), "outputs": 1}))
    settings = {"critic": steps, "seed": seed}
    try:
        train.load_base(critic, settings, path)
        return critic
    except ValueError:  # not there, of other settings, or damaged
        policy.load_state_dict(base.state_dict())
    optimizer = torch.optim.AdamW(policy.parameters(), weight_decay=0.0)
    critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=RATE, weight_decay=0.0)
    problems = train.make_problems(TASK, train.TRAIN_SIZE, held=False)
    rng, batches = (
        torch.Generator().manual_seed(seed),
        train.batches(problems, PROMPTS, seed, set()),
    )
    for step, batch in zip(tqdm(range(1, steps + 1), desc="critic beside a policy"), batches):
        rate = RATE * min(step / train.LR_RISE, 1 - (step - 1) / STEPS)
        optimizer.param_groups[0]["lr"] = rate
        rollout = sample_rollout(policy, TOKENIZER, TASK, batch, GROUP, generator=rng)
        bias = token_bias(critic, rollout)
        rollout.token_bias = bias.detach()
        descend(critic_optimizer, critic_loss(bias, grpo(rollout), rollout.mask))
        update(policy, optimizer, rollout, VARIANTS["critic"](rollout))
    train.save(path, lambda part: torch.save((settings, critic.state_dict()), part))
    return critic


# ---- what is written ----


def characters(rollout: Rollout) -> list[list[str]]:
    """Each response of a group (P = 1) as one sign a token."""
    rows = zip(rollout.tokens[0], rollout.mask[0])
    rows = [[TOKENIZER.id_to_token(i) for i in row[mask].tolist()] for row, mask in rows]
    return [[SIGNS.get(token, token) for token in row] for row in rows]


def in_order(rollout: Rollout) -> list[tuple[int, str]]:
    """The responses of a group (P = 1), the correct ones first: (number, "correct" or "wrong")."""
    order = (-rollout.rewards[0]).argsort(stable=True).tolist()
    return [(j, "correct" if rollout.rewards[0, j] else "wrong") for j in order]


def table_rows(rollout: Rollout, advantages: dict[str, Tensor]) -> list[dict]:
    """credit.csv: a row a variant and a token of a group (P = 1), responses as sampled."""
    spared, rows = spared_tokens(rollout)[0], []
    for name, A in advantages.items():
        for j, signs in enumerate(characters(rollout)):
            for t, sign in enumerate(signs):
                numbers = (int(rollout.rewards[0, j]), A[0, j, t].item(), int(spared[j, t]))
                rows.append(dict(zip(FIELDS, (name, j, t, sign, *numbers))))
    return rows


def as_text(rollout: Rollout) -> str:
    """The tokens of a group (P = 1), each above its advantage in nthr; * marks what it spares."""
    (problem,), (A,), (spared,) = rollout.problems, nthr(rollout), spared_tokens(rollout)
    signs = characters(rollout)
    text = f"{problem.prompt} is worked as {problem.solution} ($ ends a response, * is spared)\n\n"
    for j, name in in_order(rollout):
        n = len(signs[j])
        marks = ["*" if s else " " for s in spared[j, :n]]
        text += f"{name:<8}" + "".join(f"{sign:>5} " for sign in signs[j]) + "\n"
        text += " " * 8 + "".join(f"{a:+.2f}{m}" for a, m in zip(A[j, :n], marks)) + "\n"
    return text


def summary(groups: list[Rollout]) -> str:
    """Which share of the wrong responses' tokens nthr spares, by stage, as a markdown table."""
    data = np.stack([counts(rollout) for rollout in groups])
    tokens, values = data.sum(0)[0, 0], intervals(data)  # (stages,), (3, 2, stages + 1)
    lines = [["token of a wrong response", "tokens", "spared", "spared, weighted by 1 - pi"]]
    lines.append(["---"] * 4)
    for i, name in enumerate((*STAGES, "right minus not right, points")):
        cells = [f"{a:.1f} ({b:.1f} to {c:.1f})" for a, b, c in 100 * values[:, :, i].T]
        lines.append([name, f"{tokens[i]:,.0f}" if i < len(STAGES) else "", *cells])
    return markdown(lines)


def facts(groups: list[Rollout]) -> str:
    """What the table rests on, in a sentence."""
    whole, correct = 0, 0
    for g in groups:
        right = g.rewards == 1
        correct += right.sum().item()
        whole += (still_right(g)[right].sum(-1) == g.mask[right].sum(-1)).sum().item()
    return (
        f"{len(groups)} mixed groups of {GROUP}, sampled from the base model. Of the {correct} "
        f"correct responses {whole / correct:.0%} are the worked solution; the others came to the "
        "right answer by other steps.\nShares in % (95 % interval over groups):"
    )


def write(rows: list[dict], path: Path) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def draw(rollout: Rollout, advantages: dict[str, Tensor], path: Path) -> None:
    """A panel a variant; rows are responses, cells tokens, coloured by advantage (1, G, T)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from PIL import Image  # comes with matplotlib

    order, signs = in_order(rollout), characters(rollout)
    T, spared, leaves = max(map(len, signs)), spared_tokens(rollout)[0], stages(rollout)[0] == 1
    limit = 2 * grpo(rollout).abs().max().item()  # compensation goes no further; critic may
    lines = (len(advantages) + 2) // 2  # one more place, for the key
    figure, axes = plt.subplots(lines, 2, figsize=(9, 2.6 * lines), layout="constrained")
    font = {"family": "monospace", "size": 10}
    *panels, key = axes.flat[: len(advantages) + 1]
    for axis, (name, (A,)) in zip(panels, advantages.items()):
        shown = A.masked_fill(~rollout.mask[0], torch.nan)[[j for j, _ in order], :T]
        image = axis.pcolormesh(shown, cmap="RdBu", vmin=-limit, vmax=limit)
        for y, (j, _) in enumerate(order):
            for t, sign in enumerate(signs[j]):
                colour = "white" if abs(A[j, t]) > 0.65 * limit else "black"
                axis.text(t + 0.5, y + 0.5, sign, ha="center", va="center", color=colour, **font)
                if leaves[j, t]:
                    axis.plot([t, t], [y + 0.05, y + 0.95], color="black", lw=2.5)
                if name == "nthr" and spared[j, t]:
                    box = (t + 0.1, y + 0.08), 0.8, 0.84
                    axis.add_patch(plt.Rectangle(*box, fill=False, edgecolor="black", lw=1.2))
        axis.set_yticks(np.arange(len(order)) + 0.5, [label for _, label in order])
        axis.invert_yaxis()
        axis.set_title(name, fontsize=10)
        axis.set_xticks(np.arange(0, T, 5) + 0.5, range(0, T, 5))
        axis.tick_params(labelsize=8, length=0)
    for axis in axes.flat[len(advantages) :]:
        axis.axis("off")
    p = rollout.rewards.mean().item()
    key.text(0, 1, KEY.format(eta=2 * abs(p - 0.5)), va="top", fontsize=9)
    figure.suptitle("{0.prompt}   worked as {0.solution}".format(*rollout.problems), fontsize=10)
    figure.supxlabel("token of the response, from 0", fontsize=9)
    figure.colorbar(image, ax=axes, label="advantage", extend="both", shrink=0.5, aspect=30)
    figure.savefig(path, dpi=100)
    # A palette: a quarter of the size, with so many letters on so many colours.
    Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.credit")
    add = parser.add_argument
    add("--variants", nargs="+", choices=CHOICES, default=DEFAULT, help="a panel each")
    add("--seed", type=int, default=0, help="of the problems' order, of sampling, of the critic")
    add("--level", type=int, choices=TASK.levels, help="of the picture's problem; default: any")
    add("--groups", type=int, default=200, help="mixed groups that are looked at")
    add("--critic-steps", type=int, default=40, help="for which the critic is trained")
    add("--out", default="runs/credit", help="folder of credit.csv, base model and critic")
    add("--quick", action="store_true", help="20 groups, 2 critic steps: a smoke test")
    args = parser.parse_args(argv)
    if args.quick:
        args.groups, args.critic_steps = 20, 2
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    base = base_model(out)
    groups = mixed_groups(base, args.groups, args.seed)
    rollout = next((g for g in groups if fits(g, args.level)), None)
    if rollout is None:
        sys.exit("no group fits the picture: more --groups, or another --seed or --level")
    if "critic" in args.variants:
        critic = trained_critic(base, args.critic_steps, args.seed, out / "critic.pt")
        rollout.token_bias = token_bias(critic, rollout).detach()
        bias = rollout.token_bias[rollout.mask]
        print(f"critic, on this group: b = {bias.mean():+.2f}, standard deviation {bias.std():.2g}")
    advantages = {name: VARIANTS[name](rollout) for name in args.variants}
    print(as_text(rollout), facts(groups), "", summary(groups), sep="\n")
    rows = table_rows(rollout, advantages)
    train.save(out / "credit.csv", lambda part: write(rows, part))
    draw(rollout, advantages, out / "credit.png" if args.quick else Path("docs/credit.png"))
    return 0


if __name__ == "__main__":
    import matplotlib  # noqa: F401  (if it is missing, say so now, not after all the work)

    sys.exit(main(sys.argv[1:]))
