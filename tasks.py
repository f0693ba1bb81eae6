"""Synthetic arithmetic with worked solutions: the problems, the verifier and the tokenizer.

A problem is a prompt, a solution that works in steps towards an answer, and the answer alone. The
marker "#" stands between the steps and the answer. School addition, "add", goes column by column
from the right; a step is the sum of two digits and the carry, written with two digits:

      347+  285=12,13,06# 632    7+5 = 12: write 2, carry 1;  4+8+1 = 13;  3+2+1 = 06

The answer is the last step and before it, from right to left, the second digits of the others. So
the answer can be read off the steps, and a response can be checked in three ways:

    response         12,13,06# 632   12,13,06# 642   12,14,06# 642   12,14,06# 632
    reward           1               0               0               1    the answer is correct
    steps_correct    yes             yes             no              no   the steps are correct
    coherent         yes             no              yes             no   the steps give the answer

The checks compare strings and compute nothing, so any text that a model may write can be judged.

Prompts and steps have their columns. Of "add" and "mul" each number of a prompt is right-aligned in
a field of fixed width; all prompts of a task are equally long; all steps have two digits; a space
stands for an answer's leading zero. So step k stands in the same column in every response, and the
digits that it needs do too: the model can learn where to look. A space is an ordinary token, which
the model reads and writes like others.
"""

import math
import zlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

MARKER = "#"  # stands between the steps and the answer
# If both were one token, a mask that hides padding would also hide the end of a response.
PAD = "<pad>"
EOS = "<eos>"


class Problem(NamedTuple):
    prompt: str  # what the model reads
    solution: str  # what it could write, without EOS: the steps, the marker, the answer
    answer: str
    level: int  # how hard it is


class Task(NamedTuple):
    """A family of problems: prompts like "347+285=", with more or longer numbers as levels rise."""

    sign: str
    levels: range
    ranges: Callable[[int], list[range]]  # level -> what each number of the prompt is drawn from
    total: Callable[[Iterable[int]], int]  # of the numbers: their sum or their product
    columns: bool  # the steps are columns with a carry; else running totals

    def steps(self, numbers: list[int]) -> list[int]:
        """347+285= is worked as 12,13,06 and 347*8= as 56,37,27. Step k adds (or multiplies) the
        last k digits of each number and drops the k - 1 digits that are written already: 47 * 8 =
        376 gives 37. With running totals 7+8+5= is worked as 15,20.
        """
        if not self.columns:
            return [self.total(numbers[:k]) for k in range(2, len(numbers) + 1)]
        places = range(len(str(max(numbers))))
        return [self.total(n % 10 ** (k + 1) for n in numbers) // 10**k for k in places]

    def conclude(self, steps: list[str]) -> str:
        """The answer that these steps give; spaces stand for leading zeros.

        Columns 12,13,06 give " 632": the last step, then the second digits of those before it.
        Running totals 15,20 give the last one, "20".
        """
        written = "".join(step[1] for step in reversed(steps[:-1])) if self.columns else ""
        return f"{int(steps[-1] + written):{2 + len(written)}}"

    def write(self, numbers: list[int], level: int) -> Problem:
        """The problem with these numbers; its prompt is as long as that of any other."""
        widths = [len(str(r[-1])) for r in self.ranges(self.levels[-1])]
        fields = [str(n).rjust(width) for n, width in zip(numbers, widths)]
        prompt = self.sign.join(fields) + "="
        steps = [f"{step:02}" for step in self.steps(numbers)]
        answer = self.conclude(steps)
        solution = ",".join(steps) + MARKER + answer
        return Problem(prompt.ljust(sum(widths) + len(widths)), solution, answer, level)

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        """A random problem of that level. No number has a leading zero."""
        return self.write([int(rng.integers(r[0], r[-1] + 1)) for r in self.ranges(level)], level)

    @property
    def longest(self) -> Problem:
        """No problem of this task has a longer prompt, solution or answer: all digits are 9."""
        return self.write([r[-1] for r in self.ranges(self.levels[-1])], self.levels[-1])

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if there is exactly one marker, and after it the answer and no more; else 0.0."""
        return float(response.split(MARKER)[1:] == [problem.answer])

    def steps_correct(self, problem: Problem, response: str) -> bool:
        """Whether the solution's steps stand before the first marker; False without a marker."""
        return response.startswith(problem.solution.split(MARKER)[0] + MARKER)

    def coherent(self, problem: Problem, response: str) -> bool:
        """Whether the answer is what the response's own steps give, be they correct or not.

        False without a marker or with more than one, and where a step is not two digits.
        `problem` is not looked at.
        """
        reasoning, *answers = response.split(MARKER)
        steps = reasoning.split(",")
        written = all(len(step) == 2 and step.isascii() and step.isdigit() for step in steps)
        return written and answers == [self.conclude(steps)]


def held_out(prompt: str) -> bool:
    """Whether a prompt is never trained on. A hash of its characters picks one prompt in ten.

    So the split is the same for every seed, and nothing has to be stored.
    """
    return zlib.crc32(prompt.replace(" ", "").encode()) % 10 == 0


def of_digits(n: int) -> range:
    return range(10 ** (n - 1), 10**n)


# Level n: of "add", both addends have n digits; of "mul", the first factor has n, the second is 2
# to 9 (by 0 and 1 there is nothing to do); of "sum", there are n terms of one digit.
ADD = Task("+", range(2, 6), lambda n: [of_digits(n), of_digits(n)], sum, columns=True)
MUL = Task("*", range(2, 6), lambda n: [of_digits(n), range(2, 10)], math.prod, columns=True)
SUM = Task("+", range(3, 9), lambda n: [range(10)] * n, sum, columns=False)
TASKS: dict[str, Task] = {"add": ADD, "mul": MUL, "sum": SUM}


def build_tokenizer() -> Tokenizer:
    """One character, one token; "<eos>" and "<pad>" are two more. A batch is padded on the right.

    decode() hides these two unless skip_special_tokens=False. Encoding a character that no task
    uses raises an exception.
    """
    tokens = [PAD, EOS, *"0123456789+*=, ", MARKER]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}))
    tokenizer.add_special_tokens([PAD, EOS])
    tokenizer.enable_padding(pad_id=tokens.index(PAD), pad_token=PAD)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
