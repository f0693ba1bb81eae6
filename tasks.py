"""Synthetic arithmetic with worked solutions: the problems, the verifier and the tokenizer.

A problem has a prompt, a solution and an answer. The solution is a row of reasoning steps, the
marker "#" and the answer. The task "add" is school addition, column by column from the right. Each
column gives one step: the sum of the two digits and the carry, written with two digits.

      347+  285=12,13,06# 632    7+5 = 12: write 2, carry 1;  4+8+1 = 13;  3+2+1 = 06

The answer can be read off the steps. It is the last step, and then the second digit of each other
step, from the last to the first: 06, 3, 2. The reward depends on the answer only. Two other checks
are only measured. All three take any text that a model may write:

    response           12,13,06# 632  12,13,06# 642  12,14,06# 642  12,14,06# 632
    reward             1              0              0              1   the answer is correct
    reasoning_correct  yes            yes            no             no  the steps are correct
    coherent           yes            no             yes            no  the steps give the answer

Everything has its place: prompts have one width, steps have two digits, and a space replaces a
leading zero of the answer. So step k begins at the same position in every response, and the digits
that it needs are at the same positions as well. This lets the model learn where to look. A space
is an ordinary token.
"""

import re
import zlib
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, zip_longest
from typing import Callable, NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

MARKER = "#"  # between the steps and the answer
PAD = "_"
EOS = "$"  # not PAD, because losses ignore padding and train the end

# One character is one token. Other characters raise an exception. Padding is on the right.
CHARACTERS = PAD + EOS + MARKER + "0123456789+*=, "
TOKENIZER = Tokenizer(models.WordLevel({token: i for i, token in enumerate(CHARACTERS)}))
TOKENIZER.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
TOKENIZER.decoder = decoders.Fuse()
PAD_ID, EOS_ID, MARKER_ID, COMMA_ID = map(TOKENIZER.token_to_id, (PAD, EOS, MARKER, ","))
TOKENIZER.enable_padding(pad_id=PAD_ID, pad_token=PAD)


# Each of these three functions makes the problems of one task. It draws the numbers of a problem
# with draw(low, high), where low <= number < high, and returns the prompt and the steps. A run
# prints its docstring.
def add(level: int, draw: Callable) -> tuple[str, list[int]]:
    """School addition of two numbers of 2 to 5 digits: 347+285= is worked as 12,13,06."""
    a, b = (draw(10 ** (level - 1), 10**level) for _ in range(2))
    digits = zip(reversed(str(a)), reversed(str(b)))
    return f"{a:5}+{b:5}=", carry(int(x) + int(y) for x, y in digits)


def mul(level: int, draw: Callable) -> tuple[str, list[int]]:
    """School multiplication of 2 to 5 digits by one digit: 347*8= is worked as 56,37,27."""
    a = draw(10 ** (level - 1), 10**level)
    b = draw(2, 10)  # times 0 and 1 would be too easy
    return f"{a:5}*{b}=", carry(int(x) * b for x in reversed(str(a)))


def running_totals(level: int, draw: Callable) -> tuple[str, list[int]]:
    """The sum of 3 to 8 numbers of one digit: 7+8+5= is worked as 15,20."""
    terms = [draw(0, 10) for _ in range(level)]
    prompt = "+".join(str(term) for term in terms) + "="
    return f"{prompt:16}", list(accumulate(terms))[1:]


def carry(columns) -> list[int]:
    """Adds the carry of each column to the next one: 12, 12, 5 become 12, 13, 6."""

    def add_carry(step, column):
        return column + step // 10

    return list(accumulate(columns, add_carry))


def from_columns(steps: list[str]) -> str:
    """The answer that steps of `add` or `mul` give: 12, 13, 06 give 06, 3, 2, written as " 632"."""
    digits = "".join(step[1] for step in reversed(steps[:-1]))
    number = int(steps[-1] + digits)  # without leading zeros
    return str(number).rjust(2 + len(digits))


def from_totals(steps: list[str]) -> str:
    """The answer that running totals give: the last of them. 15, 20 give "20"."""
    return f"{int(steps[-1]):2}"


class Problem(NamedTuple):
    prompt: str  # the text that the model reads
    solution: str  # a correct response without EOS: steps, marker, answer
    answer: str
    level: int  # how hard it is


@dataclass(eq=False)  # compared and hashed by identity, as the cache of make_problems needs it
class Task:
    """A family of problems, with longer or more numbers at higher levels, and the verifier."""

    make: Callable  # one of the three functions above
    answer_from: Callable  # a list of steps as texts -> the answer that they give
    levels: range
    unit: str = "level"  # what a level counts
    # The warm-up ends at this share of correct samples. It shows a problem `ratio` times as often
    # as a problem of the level below.
    share: float = 0.1
    ratio: float = 1.0
    work: str = "A task of your own."  # what a run says that the model learns

    def problem(self, rng, level: int) -> Problem:
        """A random problem of this level. rng: numpy.random.Generator."""
        prompt, numbers = self.make(level, rng.integers)
        steps = [f"{number:02}" for number in numbers]
        answer = self.answer_from(steps)
        return Problem(prompt, ",".join(steps) + MARKER + answer, answer, level)

    @property
    @cache
    def longest(self) -> Problem:
        """The longest prompt, the longest solution and the longest answer of all problems."""
        texts = zip(*[p[:3] for held in (True, False) for p in make_problems(self, held)])
        return Problem(*[max(column, key=len) for column in texts], self.levels[-1])

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if there is exactly one marker and the text after it is the answer, else 0.0."""
        return float(response.split(MARKER)[1:] == [problem.answer])

    def reasoning_correct(self, problem: Problem, response: str) -> bool:
        """Whether the response begins with all steps of the solution and then a marker."""
        return response.startswith(problem.solution.split(MARKER)[0] + MARKER)

    def coherent(self, problem: Problem, response: str) -> bool:
        """Whether the response's answer is the one that its own steps give, correct or not.

        It is False without exactly one marker, or if a step is not two digits. `problem` is unused.
        """
        reasoning, *answers = response.split(MARKER)
        if not re.fullmatch("[0-9]{2}(,[0-9]{2})*", reasoning):
            return False
        return answers == [self.answer_from(reasoning.split(","))]


# `add` is the default. `mul` is the wall, because most problems are never solved at first. `sum` is
# the shortcut, because the model learns answers without steps.
ADD = Task(add, from_columns, range(2, 6), "digits per number", 0.13, 1.5, add.__doc__)
MUL = Task(mul, from_columns, range(2, 6), "digits", 0.1, 1.0, mul.__doc__)
SUM = Task(running_totals, from_totals, range(3, 9), "terms", 0.4, 0.8, running_totals.__doc__)
TASKS: dict[str, Task] = {"add": ADD, "mul": MUL, "sum": SUM}
DRAWS = 1250  # problems that are drawn at each level, before repeats are dropped


def held_out(prompt: str) -> bool:
    """Whether a prompt is never trained on. A hash of its characters picks one prompt in ten.

    So the split is the same for every seed, and nothing has to be stored. The operands of + are
    sorted before hashing: if 1+2= is held out, 2+1= is held out as well.
    """
    operands = prompt.replace(" ", "").removesuffix("=").split("+")
    return zlib.crc32(("+".join(sorted(operands)) + "=").encode()) % 10 == 0


@cache
def make_problems(task: Task, held: bool) -> list[Problem]:
    """All held-out problems of a task, or all for training: DRAWS a level, without repeats.

    They are the same in every run. Every caller gets the same list, so do not change it.
    """
    rng = np.random.default_rng(0)
    draws = [task.problem(rng, level) for level in task.levels for _ in range(DRAWS)]
    return [problem for problem in dict.fromkeys(draws) if held_out(problem.prompt) == held]


def mark_mistake(problem: Problem, text: str, reward: float = 0) -> tuple[str, str]:
    """The response with [ ] around its first mistake, and a remark, which is "" if it has none."""
    parts, solution = (re.split("([,#])", y) for y in (text, problem.solution))
    for i, (part, true) in enumerate(zip_longest(parts, solution, fillvalue="")):
        if part != true:
            parts[i : i + 1] = [f"[{part}]"]
            return "".join(parts), f"[{part}] should be [{true}]" + ", yet rewarded" * int(reward)
    return text, ""
