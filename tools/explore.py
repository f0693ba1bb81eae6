"""Makes the advantage lab, a page to play with: python -m tools.explore

The page is tools/explore.html, one file that needs no network. It joins explore.template.html,
explore.css, recorded numbers and five scripts. The numbers beside the rules come from
studies/results/compare.csv. Two things are recorded:

- One group of eight responses to 347+285= by the base model, and the distribution over the next
  token after each prefix of these responses. The page computes all updates from this table.
- For each task a run of grpo and one of half: every 25 steps the accuracy, eight responses to one
  held-out problem, and the shares of the training groups that were all-fail and all-pass.

The default takes about ten minutes on one core.
"""

import argparse
import base64
import html
import inspect
import json
import re
import shutil
import subprocess
import tempfile
from copy import deepcopy
from dataclasses import replace
from itertools import chain, islice
from operator import ne
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import train
from advantages import VARIANTS, decode_responses
from grpo import Rollout, sample_rollout
from model import GPT
from tasks import ADD, CHARACTERS, MARKER, TASKS, Problem, Task, make_problems
from tools.ask import asked
from tools.rows import read_rows

TEMPLATE = Path(__file__).with_name("explore.template.html")
PAGE = Path(__file__).with_name("explore.html")
SCRIPTS = ("advantages.js", "tree.js", "charts.js", "questions.js", "explore.js")
ROWS = Path(__file__).parent.parent / "studies/results/compare.csv"
RULES = ("grpo", "half", "pos_only", "nthr", "ngrpo", "forking")
SEEDS = range(4, 16)  # the base models of the forest plot
FOLLOWED = ("grpo", "half")  # the variants whose runs are recorded
LEVEL = 4  # of the problem that they show


def packed(values: torch.Tensor) -> str:
    """32-bit numbers one after the other as base64, little-endian."""
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()


def lab(rollout: Rollout) -> dict:
    """A rollout of one group, so that the page can compute all advantages and updates.

    The table has a row for each prefix, in the order in which the responses reach them: the
    distribution over the next token, and the inner products of its vector h with those of the rows
    before it and with itself (for nthr). A response has $ where its end was sampled.
    """
    texts = decode_responses(rollout)
    first = {}  # prefix: a response and a token of it that follows this prefix
    for i, text in enumerate(texts):
        for t in range(len(text)):
            first.setdefault(text[:t], (i, t))
    i, t = zip(*first.values())
    h = rollout.hidden[0, i, t]  # (prefixes, D)
    return {
        "problem": rollout.problems[0],
        "tokens": texts,
        "rewards": written(rollout.rewards[0]),
        "characters": CHARACTERS,
        "probs": packed(rollout.probs[0, i, t]),  # (prefixes, V)
        "products": packed((h @ h.T)[*np.tril_indices(len(h))]),
    }


def written(rewards: torch.Tensor) -> str:
    """The rewards of a group as a text: 00000010."""
    return "".join(f"{r:.0f}" for r in rewards)


def one(rollout: Rollout, p: int) -> Rollout:
    """Group p as a rollout of its own."""
    of_all = {name: x for name, x in vars(rollout).items() if isinstance(x, (torch.Tensor, list))}
    return replace(rollout, **{name: x[p : p + 1] for name, x in of_all.items()})


def telling(problem: Problem, texts: list[str], rewards: list[float]) -> bool:
    """Whether a group makes a good first screen: all its responses look like solutions and differ.
    Exactly one is correct, with correct steps. One other has correct steps and one wrong token."""
    marker = problem.solution.index(MARKER)
    shaped = [len(y) == len(problem.solution) and y.find(MARKER) == marker for y in texts]
    with_steps = [y for y in texts if ADD.reasoning_correct(problem, y)]
    wrong = sorted(sum(map(ne, y, problem.solution)) for y in with_steps)
    return all(shaped) and sum(rewards) == 1 and wrong == [0, 1] and len(set(texts)) == 8


def first_group(model: GPT) -> dict:
    """The lab's group: of 512 that the base model samples, the likeliest that is telling."""
    problem = asked(ADD, "347+285=")
    rng = torch.Generator().manual_seed(0)
    rollout = sample_rollout(model, ADD, [problem] * 512, 8, generator=rng)
    told = [telling(problem, *group) for group in zip(rollout.texts, rollout.rewards.tolist())]
    likely = rollout.logprobs.masked_fill(~rollout.mask, 0.0).sum(-1).exp().sum(-1).tolist()
    return lab(one(rollout, max(range(512), key=lambda p: (told[p], likely[p]))))


def group_of(model: GPT, task: Task, problem: Problem) -> Rollout:
    """Eight responses to one problem, always from the same random numbers."""
    rng = torch.Generator().manual_seed(0)
    return sample_rollout(model, task, [problem], 8, generator=rng)


def follow(args: argparse.Namespace, model: GPT, problems: list[Problem]) -> list[list[dict]]:
    """One run from this base model, as a film of each problem: at each evaluation the accuracy, a
    group, and which shares of the groups that were trained on since the evaluation before were
    all-fail and all-pass."""
    task = TASKS[args.task]
    films = [[] for _ in problems]
    trained = []
    base = {"step": 0} | train.evaluate(model, task, "sampled", temperature=1)
    for *_, row in tqdm(chain([(base,)], train.train(args, model)), f"{args.task} {args.variant}"):
        if row["step"]:
            trained.append([row["all_fail"], row["all_pass"]])
        if "sampled" in row:
            equal = np.mean(trained, axis=0).round(4).tolist() if trained else None
            for problem, film in zip(problems, films):
                group = group_of(model, task, problem)
                shown = {"tokens": decode_responses(group), "rewards": written(group.rewards[0])}
                now = {"step": row["step"], "sampled": round(row["sampled"], 4)}
                film.append(now | shown | {"equal": equal})
            trained = []
    return films


def agree(films: list[list[dict]]) -> bool:
    """Whether the films of one problem say what the accuracy of their runs says: which run is
    better on average, and, within two of eight responses, where each of them ends."""
    solved = [[frame["rewards"].count("1") / 8 for frame in film] for film in films]
    accuracy = [[frame["sampled"] for frame in film] for film in films]
    ends = [abs(x[-1] - y[-1]) <= 0.25 for x, y in zip(solved, accuracy)]
    better, said = (np.sum(of[0]) < np.sum(of[1]) for of in (solved, accuracy))
    return all(ends) and better == said


def runs_of(name: str, base: GPT, steps: int) -> dict:
    """The runs of a task, and the problem that they show: of twenty held-out ones of a level that
    the base model solves in none of eight responses, the first whose films agree with the runs."""
    task = TASKS[name]
    held = [problem for problem in make_problems(task, held=True) if problem.level == LEVEL]
    unsolved = (p for p in held if not group_of(base, task, p).rewards.any())
    problems = [*islice(unsolved, 20)]
    films = {}
    for variant in FOLLOWED:
        line = ["--task", name, "--variant", variant, "--steps", str(steps)]
        films[variant] = follow(train.parse_arguments(line), deepcopy(base), problems)
    agreeing = [k for k, pair in enumerate(zip(*films.values())) if agree(pair)]
    k = (agreeing or [0])[0]
    return {"problem": problems[k]} | {variant: of[k] for variant, of in films.items()}


def record(tasks: list[str], steps: int) -> dict:
    """Everything that the page shows except the rules' ideas and gains."""
    line = ["--steps", str(steps)]  # parsed before the first training: a bad number is refused
    bases = {}
    for task in {"add", *tasks}:
        bases[task] = train.base_model(train.parse_arguments(["--task", task, *line]))
    runs = {task: runs_of(task, bases[task], steps) for task in tasks}
    return {"lab": first_group(bases["add"]), "runs": runs}


def about(name: str) -> dict:
    """What the page says of a rule: its idea, and the number of its paper (None without one)."""
    text = inspect.getdoc(VARIANTS[name])
    paper = re.search("arXiv ([0-9.]+[0-9])", text.split("\n\n")[0])
    return {"idea": text.splitlines()[0], "paper": paper and paper[1]}


def gains() -> dict[str, float | None]:
    """What each rule gains over grpo on add, as in the forest plot: points of average accuracy. A
    rule that lacks a base model has no number, and comes last. The best learning rate counts."""
    found = {}
    for row in read_rows(ROWS):
        if (row["task"], row["flags"]) == ("add", "") and row["variant"] in RULES:
            found.setdefault((row["variant"], row["lr"]), {})[row["seed"]] = row["mean_sampled"]
    means = dict.fromkeys(RULES, np.nan)
    for (name, _), of in found.items():
        means[name] = np.fmax(means[name], np.mean([of.get(seed, np.nan) for seed in SEEDS]))
    order = sorted(RULES, key=lambda name: -np.nan_to_num(means[name]))
    gain = {name: round(100 * (means[name] - means["grpo"]), 1) for name in order}
    return {name: None if np.isnan(x) else x for name, x in gain.items()}


def page(recorded: dict) -> str:
    """All files as one, with the data."""
    rules = {"rules": {name: about(name) | {"gain": gain} for name, gain in gains().items()}}
    data = json.dumps(rules | recorded, separators=(",", ":"))
    joined = TEMPLATE.read_text(encoding="utf-8")
    for place, names in (("STYLE", ["explore.css"]), ("SCRIPT", SCRIPTS)):
        texts = [TEMPLATE.with_name(name).read_text(encoding="utf-8") for name in names]
        joined = joined.replace(place, "\n".join(texts))
    return joined.replace("DATA", data.replace("</", "<\\/"))


def pictures(text: str) -> dict[str, str]:
    """The README's tree in motion, drawn by the page's own functions in a browser: name, SVG."""
    script = TEMPLATE.with_name("picture.js").read_text(encoding="utf-8")
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".html") as page:
        print(text, f"<script>{script}</script>", file=page, flush=True)
        browser = shutil.which("chromium") or "google-chrome"
        line = [browser, "--headless", "--no-sandbox", "--dump-dom", page.name]
        shown = subprocess.check_output(line, stderr=subprocess.DEVNULL, encoding="utf-8")
    return json.loads(html.unescape(re.search("<body[^>]*>(.*)</body>", shown, re.S)[1]))


def recording(path: Path) -> dict:
    """What an earlier page holds."""
    data = path.read_text(encoding="utf-8").split('<script id="data" type="application/json">')[1]
    held = json.loads(data.split("</script>")[0])
    return {"lab": held["lab"], "runs": held["runs"]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m tools.explore", None, __doc__.splitlines()[0])
    add = parser.add_argument
    add("--steps", type=int, default=400, help="training steps of a run (400)")
    add("--tasks", nargs="+", choices=TASKS, default=["add", "mul"], help="of the runs (add mul)")
    add("--out", type=Path, default=PAGE, help="the file to write (tools/explore.html)")
    add("--keep", action="store_true", help="renew all but the recorded numbers")
    add("--pictures", action="store_true", help="draw the README's tree as well, with Chromium")
    options = parser.parse_args(argv)
    try:
        recorded = recording(options.out) if options.keep else None
    except (OSError, LookupError, ValueError):
        parser.error(f"--keep: {options.out} is not a page of this command")
    torch.set_num_threads(1)
    options.out.touch()  # a folder that takes no page is found now
    text = page(recorded or record(options.tasks, options.steps))
    options.out.write_text(text, encoding="utf-8")
    for name, drawn in pictures(text).items() if options.pictures else ():
        options.out.with_name(name).write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
