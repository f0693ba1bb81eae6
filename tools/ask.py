"""Ask a trained model: python -m tools.ask runs/add-nthr-seed0 347+285 [--group]

Prints the solution, then four responses at temperature 1 and the greedy one, each with its reward
and with [ ] around its first mistake.

With --group it prints a group of eight responses and how a variant pushes each of their tokens.
Without a problem it shows the one of 64 groups that the run's variant pushes most differently from
grpo. If it pushes all of them as grpo does, it shows the most mixed one. --variant NAME shows how
another variant would push the same responses. A group is always drawn and pushed with the others,
because some variants look at the batch.
"""

import json
import random
import re
import sys
from argparse import SUPPRESS, ArgumentParser
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import torch

import train
from advantages import VARIANTS, grpo, with_advantages
from grpo import Rollout, sample_rollout
from tasks import TASKS, TOKENIZER, Problem, Task, make_problems, mark_mistake
from tools import end_with_the_reader

RULES = {  # task: what its problems are
    "add": "two numbers with equally many digits, 2 to 5, as in 347+285",
    "mul": "a number of 2 to 5 digits times one digit from 2 to 9, as in '347*8'",
    "sum": "3 to 8 terms of one digit, as in 7+8+5",
}


def finished(folder: Path) -> tuple:
    """Settings and model of a finished run, on the processor."""
    args = train.Namespace(**json.loads((folder / "summary.json").read_text()))
    args.device = "cpu"
    model = train.new_model(args)
    model.load_state_dict(torch.load(folder / "model.pt", map_location="cpu", weights_only=True))
    return args, model


def asked(task: Task, text: str) -> Problem | None:
    """The problem whose prompt the text is, with or without "=" and spaces; None if there is none.

    So a text is a problem if and only if the task can draw it.
    """
    text = text.replace(" ", "").removesuffix("=") + "="
    numbers = re.findall("[0-9]{1,9}", text)
    for level in task.levels:
        given = map(int, numbers)
        # These numbers take the place of random ones. One that the level does not have is replaced
        # by the nearest that it has, and then the prompt is another.

        def near(low, high, given=given):
            return min(max(next(given, low), low), high - 1)

        problem = task.problem(SimpleNamespace(integers=near), level)
        if problem.prompt.replace(" ", "") == text:
            return problem
    return None


# ---- A group
NOTES = {  # variant: what else a reader of its group must know
    "verifree": "These texts, with the true answer, are trained. Rewards and mistakes are of the\n"
    "sampled responses.",
    "likelihood": "In an all-fail group, likelihood pushes a response up if the true answer is\n"
    "likelier after its reasoning than after that of the others. Its own answer is also pushed.",
    "nthr": "nthr pushes a token down less if its score is above the threshold of the group. The\n"
    "score says how the push moves the correct responses, not whether the token is wrong.",
    "gspo": "gspo has the advantages of grpo and another ratio in the loss.",
    "cispo": "cispo has the advantages of grpo and another clip in the loss.",
}


def in_words(pushes: list[float]) -> str:
    """The advantages of a response's tokens in one clause."""
    sizes = [f"{a:+.2f}" if a else "no push" for a in pushes]
    counts = {size: sizes.count(size) for size in sorted(sizes)}
    if len(counts) > 3:
        return f"from {min(pushes):+.2f} to {max(pushes):+.2f}"
    return ", ".join(f"{size} on {n} token{'s' * (n > 1)}" for size, n in counts.items())


def pushed(rollout: Rollout, name: str) -> tuple[Rollout, torch.Tensor]:
    """The rollout with A of a variant, and by how much each group's differs from grpo's, (P,)."""
    variant = VARIANTS.get(name, grpo)  # somebody's own may be missing
    trained = with_advantages(rollout, grpo if isinstance(variant, type) else variant)
    difference = (trained.A - grpo(rollout)[..., None]).abs() * trained.mask
    return trained, difference.sum((1, 2)) / trained.mask.sum((1, 2))  # the mean over tokens


def show_group(args, model, problem: Problem | None, name: str) -> None:
    """Prints a group, and under each response how the variant `name` pushes its tokens.

    The group is that of the problem. If there is none, the run's own variant picks it.
    """
    task = TASKS[args.task]
    generator = torch.Generator().manual_seed(0)
    pool = make_problems(task, held=True)
    problems = random.Random(0).sample(pool, min(64, len(pool)))
    if problem and problem not in problems:
        problems[0] = problem
    rollout = sample_rollout(model, task, problems, 8, args.temperature, generator=generator)
    network = isinstance(VARIANTS[name], type)
    trained, differs = pushed(rollout, name)
    plain = grpo(rollout)  # (P, G)
    picked = f"Of {len(problems)} groups, this is the"
    if problem:
        p, picked = problems.index(problem), ""
    elif (own := pushed(rollout, args.variant)[1]).any():
        p = own.argmax()
        picked += f" one that {args.variant} pushes most differently from grpo.\n"
    else:
        p = rollout.rewards.var(1).argmax()
        picked += " most mixed one.\n"
    problem = problems[p]
    correct = int((rollout.rewards[p] == 1).sum())
    group = (rollout.texts, trained.tokens, trained.mask, trained.A, rollout.rewards, plain)
    responses = sorted(zip(*(x[p] for x in group)), key=lambda x: -x[4])  # correct ones first
    blocks = Counter()  # a response with its pushes: how many of the group are the same
    for text, tokens, mask, A, reward, usual in responses:
        _, remark = mark_mistake(problem, text, reward)
        shown = TOKENIZER.decode(tokens[mask].tolist())
        weaker = (A * usual > 0) & (A.abs() < 0.999 * usual.abs())  # the same direction
        push = A.sign() * (2 - weaker.int())
        marks = "".join("-d0u+"[int(n) + 2] for n in push[mask])
        response = f"{shown}  reward {reward:g}  {remark}".rstrip()
        blocks[f"{response}\n      {marks}  {in_words(A[mask].tolist())}"] += 1
    print(f"{problem.prompt.replace(' ', '')}\n  {problem.solution}$  solution\n")
    print(f"{picked}Correct answers: {correct} of 8. Equal responses are shown once and counted.")
    print(f"Under each are the advantages of {name} (--variant NAME shows another's):")
    used = {*"".join(block.split("\n")[1].split()[0] for block in blocks)}
    weaker = "; u up and d down, but weaker than grpo" * bool(used & {*"ud"})
    print(f"+ up, - down, 0 no push{weaker}. $ is the end.")
    if not plain[p].any():
        kind = {0: "all-fail", 1: "all-pass"}.get(rollout.rewards[p, 0].item(), "of equal rewards")
        print(f"The group is {kind}: for grpo no response is better than another. It pushes none.")
    if name != "grpo" and not network and not differs[p]:
        print(f"{name} pushes this group as grpo does.")
    if not network and not trained.A[p].any():
        print("No token is pushed, so this group teaches nothing.")
    second = f"{name} has a second network, which no run saves. This is the part of grpo."
    note = second if network else NOTES.get(name, "")
    print(note + "\n" * bool(note))
    for block, count in blocks.items():
        print(f"  {count} x {block}")


def main(argv: list[str]) -> None:
    # Without the usage an error is one line.
    parser = ArgumentParser("python -m tools.ask", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a finished run")
    parser.add_argument("problem", nargs="*", help="for example 347+285, '347 + 285' or 347+285=")
    parser.add_argument("--group", action="store_true", help="eight responses and their pushes")
    parser.add_argument("--variant", choices=VARIANTS, metavar="NAME", help="with --group")
    options = parser.parse_intermixed_args(argv)  # the problem may stand behind --group
    try:
        args, model = finished(options.run)
        task = TASKS[args.task]
    except Exception as error:  # which one depends on what a broken file holds
        why = f"{type(error).__name__}: {error}".splitlines()[0][:100]
        parser.error(f"{options.run} is not the folder of a finished run of a known task ({why})")
    text = " ".join(options.problem)
    problem = asked(task, text)
    if problem is None and (text or not options.group):
        rule = RULES.get(args.task, f"one like {task.longest.prompt.strip()}")
        parser.error(f"{text[:40]!r} is not a problem of {args.task}; give {rule}")
    if options.variant and not options.group:
        parser.error("--variant says how a group is pushed, so it needs --group")
    name = options.variant or args.variant
    if name not in VARIANTS:
        parser.error(f"{name} is not in advantages.VARIANTS; choose one with --variant")
    if options.group:
        return show_group(args, model, problem, name)
    print(f"{problem.prompt.replace(' ', '')}\n  solution  {problem.solution}")
    width = len(problem.solution) + 2
    for kind, samples, temperature in (("sampled", 4, 1.0), ("greedy", 1, 0.0)):
        rollout = sample_rollout(model, task, [problem], samples, temperature)
        for text, reward in zip(rollout.texts[0], rollout.rewards[0]):
            text, remark = mark_mistake(problem, text, reward)
            print(f"  {kind:10}{text:{width}}  reward {reward:g}  {remark}".rstrip())


if __name__ == "__main__":
    end_with_the_reader()
    main(sys.argv[1:])
