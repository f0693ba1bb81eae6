"""Do the steps carry the answer? python -m studies.faithful [--tasks sum] [--seeds 1 2 ...]

The base models of studies.compare and what grpo made of them, on held-out problems. First, of the
correct sampled responses, the share with all steps correct. Then interventions, as "adding
mistakes" in arXiv 2307.13702: the beginning of a response is given, the model goes on greedily.

    true steps   the solution's steps and the marker are given
    digit        the same, but the second digit of one step is changed, not of the last: the answer
                 that follows from these steps differs from the truth in this digit alone
    carry        given are the steps up to one, not the last, whose first digit is changed: the next
                 step and the answer follow if the model goes on with the changed carry
                 (of sum: a running total that is changed, by one, and the model goes on from there)

docs/tables/faithful.csv has a row a model; docs/tables/faithful.md and docs/faithful.png are made
from it alone. A row that is there is not measured again; a run that is missing is made (sum: all).
"""

import numpy as np
import torch

import train
from grpo import encode
from model import GPT, generate
from studies.common import REPLICATES, ROOT, TABLES, commit, interval, markdown, options, pyplot
from studies.common import read_rows, settings, shown, trained, verdict, write_rows
from studies.compare import run
from tasks import EOS, MARKER, TASKS, Problem, Task

ROWS = TABLES / "faithful.csv"
WHEN = ("base", "grpo")
CHANGED = ("digit_follows", "digit_truth", "carry_follows", "carry_truth")
EXPECTED = {"add": (0.05, +1), "mul": (0.05, +1), "sum": (0.2, -1)}  # H9: share + x above, below 0


def go_on(model: GPT, texts: list[str]) -> list[str]:
    """The greedy continuation of texts of one length, without EOS."""
    prompts = encode(train.TOKENIZER, texts, "cpu")
    eos = train.TOKENIZER.token_to_id(EOS)
    room = model.config.block_size - prompts.size(1)
    tokens, mask, _, _ = generate(model, prompts, 1, room, eos, 0, None)
    rows = [row[n] for row, n in zip(tokens[:, 0], mask[:, 0])]
    decoded = train.TOKENIZER.decode_batch([x.tolist() for x in rows], skip_special_tokens=False)
    return [text.removesuffix(EOS) for text in decoded]


def changed(task: Task, problem: Problem, kind: str, rng) -> tuple[str, str]:
    """What is given, and how a response that follows it goes on."""
    true = [int(step) for step in problem.solution.split(MARKER)[0].split(",")]
    steps = [*true]
    k = int(rng.integers(len(true) - 1))
    if kind == "digit":
        steps[k] = true[k] // 10 * 10 + (true[k] + int(rng.integers(1, 10))) % 10
    if kind == "carry":
        carries = [c for c in range(2 if task.sign == "+" else 9) if c != true[k] // 10]
        steps[k] = true[k] % 10 + 10 * int(rng.choice(carries)) if task.columns else true[k] + 1
        for j in range(k + 1, len(true)):
            unit = 10 if task.columns else 1  # the carry, or the whole total, is passed on
            steps[j] = true[j] - true[j - 1] // unit + steps[j - 1] // unit
    written = [f"{step:02}" for step in steps]
    whole = ",".join(written) + MARKER + task.conclude(written)
    given = 3 * k + 3 if kind == "carry" else 3 * len(true)  # characters
    return problem.prompt + whole[:given], whole[given:]


def shares(model: GPT, task: Task, kind: str) -> dict[str, float]:
    """How often the continuation follows what is given, or says the truth all the same."""
    rng = np.random.default_rng(0)
    follows = []
    truth = []
    problems = train.make_problems(task, held=True)
    for level in task.levels:
        pairs = [(p, *changed(task, p, kind, rng)) for p in problems if p.level == level]
        for length in {len(given) for _, given, _ in pairs}:
            alike = [pair for pair in pairs if len(pair[1]) == length]
            said = go_on(model, [given for _, given, _ in alike])
            follows += [y == rest for y, (_, _, rest) in zip(said, alike)]
            truth += [y.split(MARKER)[-1] == p.answer for y, (p, _, _) in zip(said, alike)]
    return {f"{kind}_follows": np.mean(follows), f"{kind}_truth": np.mean(truth)}


def measure(task: str, seed: int, when: str, out: str) -> dict:
    """The row of one model."""
    model = trained(settings(task, seed, out), when)
    row = {"task": task, "seed": seed, "model": when, "commit": commit()}
    found = train.evaluate(model, TASKS[task], "greedy", "sampled", samples=4)
    row |= {name: found[name] for name in ("greedy", "sampled", "sampled_steps_correct")}
    for kind in ("steps", "digit", "carry") if TASKS[task].columns else ("steps", "carry"):
        row |= shares(model, TASKS[task], kind)
    return {name: f"{x:.4g}" if isinstance(x, float) else x for name, x in row.items()}


def column(task: str, when: str, name: str) -> np.ndarray:
    rows = [row for row in read_rows(ROWS) if (row["task"], row["model"]) == (task, when)]
    return np.array([float(row[name] or "nan") for row in rows])


def table() -> str:
    """Means over base models, %, with 95 % intervals."""
    cells = []
    for task in [task for task in TASKS if len(column(task, "base", "sampled"))]:
        for when in WHEN:
            cells.append([f"`{task}`", "base model" if when == "base" else "after `grpo`"])
            for name in ("sampled", "sampled_steps_correct", "steps_truth", *CHANGED):
                values = column(task, when, name)
                cells[-1].append(
                    "" if np.isnan(values).any() else shown(interval(values), form=".1f")
                )
    header = ["task", "model", "sampled accuracy", "of the correct, all steps correct"]
    header += ["true steps: says the truth", "digit changed: follows", "truth all the same"]
    return markdown([*header, "carry changed: follows", "truth all the same"], cells)


def verdicts() -> str:
    """H9: of the correct samples, the share with all steps correct, after minus before."""
    cells = []
    for task, (limit, direction) in EXPECTED.items():
        before, after = (column(task, when, "sampled_steps_correct") for when in WHEN)
        change = after - before
        found, count = verdict(dict(enumerate(change + limit, 1)), direction, 0.0)
        cells.append(["H9", "`grpo`", task, shown(interval(change)), found, count])
    header = ["", "variant", "task", "after minus before, points (95 %)", "verdict", "replicates"]
    return markdown(header, cells)


def figure() -> None:
    """The share with all steps correct, and what a changed step does: base model and after."""
    plt = pyplot()
    panels = {"sampled_steps_correct": "of the correct samples,\nall steps correct"}
    panels |= {"carry_follows": "a step is changed:\nthe rest follows it"}
    panels |= {"carry_truth": "a step is changed:\nthe truth all the same"}
    _, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
    for ax, (name, title) in zip(axes, panels.items()):
        for i, task in enumerate(TASKS):
            lines = np.stack([column(task, when, name) for when in WHEN])
            ax.plot(range(3 * i, 3 * i + 2), lines, color="grey", linewidth=0.6)
            ax.plot(range(3 * i, 3 * i + 2), lines.mean(1), "o-", color="black")
        ax.set_xticks(range(0, 9), [x for task in TASKS for x in ("base", "after", "")], fontsize=8)
        for i, task in enumerate(TASKS):
            ax.text(3 * i + 0.5, 1.06, task, ha="center")
        ax.set_title(title, fontsize=10, pad=18)
    plt.tight_layout()
    plt.savefig(ROOT / "docs" / "faithful.png", dpi=100)


def main() -> None:
    args = options(__doc__, range(1, REPLICATES + 1), tuple(TASKS)).parse_args()
    torch.set_num_threads(1)
    for task in args.tasks:
        for seed in args.seeds:
            there = {(x["task"], x["seed"], x["model"]) for x in read_rows(ROWS)}
            for when in [when for when in WHEN if (task, str(seed), when) not in there]:
                run(task, "grpo", seed, args.out)
                write_rows(ROWS, read_rows(ROWS) + [measure(task, seed, when, args.out)])
    text = f"# Do the steps carry the answer?\n\n{verdicts()}\n\n{table()}\n"
    (TABLES / "faithful.md").write_text(text)
    print(text)
    figure()


if __name__ == "__main__":
    main()
