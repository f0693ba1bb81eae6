"""Synthetic arithmetic with worked solutions: the problems, the verifier and the tokenizer.

A problem is a prompt ("7+8+5="), a solution that works in steps towards an answer ("15,20#20"), and
the answer alone ("20"). All tasks write alike: steps separated by commas, the marker "#", and the
answer, which repeats the last step. So a response can reason well and still answer incorrectly, or
the reverse, and both are checked exactly:

    response     15,20#20     15,20#21     15,21#20     20
    reward       1            0            1            0      does it end in "#20", its only "#"?
    coherent     yes          no           no           no     does the answer repeat the last step?

Both checks compare strings and parse no number, so any text that a model may write can be judged.

All prompts of a task have one width, with spaces in front ("          7+8+5="). So every response
begins in the same column, and no code has to know how long a prompt is.
"""

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

MARKER = "#"  # stands between the steps and the answer
# Two different tokens: if they were one, masking the padding would mask the end of a response.
PAD = "<pad>"
EOS = "<eos>"

# What the model reads, a solution that it could write (without EOS), the answer, how hard it is.
Problem = NamedTuple(
    "Problem", [("prompt", str), ("solution", str), ("answer", str), ("level", int)]
)


class Task(NamedTuple):
    """A family of problems: prompts like "7+8+5=", with more or longer numbers at higher levels."""

    sign: str
    levels: range
    shown: range  # the levels that the supervised warm-up shows
    digits: Callable[[int], list[int]]  # level -> how many digits each number of the prompt has
    work: Callable[[list[int]], list[int]]  # numbers -> the steps; the last one is the answer

    def write(self, numbers: list[int], level: int) -> Problem:
        """The problem with these numbers; its prompt is as wide as the longest one."""
        steps = [str(step) for step in self.work(numbers)]
        solution = ",".join(steps) + MARKER + steps[-1]
        prompt = self.sign.join(map(str, numbers)) + "="
        width = sum(d + 1 for d in self.digits(self.levels[-1]))  # each with a sign or "=" after it
        return Problem(prompt.rjust(width), solution, steps[-1], level)

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        """A random problem of that level. No number has a leading zero."""
        digits = self.digits(level)
        numbers = [int(rng.integers(10 ** (d - 1) if d > 1 else 0, 10**d)) for d in digits]
        return self.write(numbers, level)

    @property
    def longest(self) -> Problem:
        """No problem of this task has a longer prompt, solution or answer: all digits are 9.

        A larger digit makes no step shorter.
        """
        nines = [10**d - 1 for d in self.digits(self.levels[-1])]
        return self.write(nines, self.levels[-1])

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if there is exactly one marker, and after it the answer and no more; else 0.0."""
        return float(response.split(MARKER)[1:] == [problem.answer])

    def coherent(self, problem: Problem, response: str) -> bool:
        """Whether the final answer, correct or not, is the response's own last step.

        False without a marker, with more than one, and without a step before it. `problem` is not
        looked at; a task whose answer does not repeat its last step would need it.
        """
        reasoning, *answers = response.split(MARKER)
        last_step = reasoning.split(",")[-1]
        return last_step != "" and answers == [last_step]


def held_out(prompt: str) -> bool:
    """Whether a prompt is never trained on. A hash of its characters picks one prompt in ten.

    So the split is the same for every seed, and nothing has to be stored.
    """
    return zlib.crc32(prompt.replace(" ", "").encode()) % 10 == 0


def running_totals(terms: list[int]) -> list[int]:
    """7+8+5= is worked as 15,20."""
    return [sum(terms[:n]) for n in range(2, len(terms) + 1)]


def column_sums(addends: list[int]) -> list[int]:
    """347+285= is worked as 12,132,632: column by column from the right, 7+5, 47+85, 347+285.

    Step k adds the last k digits of both. If the sum has k + 1 digits, the first one is the carry.
    """
    return [sum(n % 10**k for n in addends) for k in range(1, len(str(max(addends))) + 1)]


def partial_products(factors: list[int]) -> list[int]:
    """347*8= is worked as 56,320,376,2400,2776: 7*8; 40*8 and the total; 300*8 and the total."""
    a, b = factors
    parts = [(a // 10**k % 10 * 10**k, a % 10 ** (k + 1)) for k in range(len(str(a)))]
    # Of 347 (7, 7), (40, 47), (300, 347): a digit's value, then all digits up to it.
    return [n * b for pair in parts for n in pair][1:]  # the first product is the first total


# Level of "sum": how many one-digit terms. Of "add": digits of both addends. Of "mul": digits of
# the first factor; the second has one, and so a level 1 would have nothing to add up.
SUM = Task("+", range(2, 9), range(2, 9), lambda level: [1] * level, running_totals)
ADD = Task("+", range(1, 5), range(1, 5), lambda level: [level, level], column_sums)
MUL = Task("*", range(2, 4), range(2, 4), lambda level: [level, 1], partial_products)
WALL = SUM._replace(shown=range(2, 5))  # longer sums have to be found by exploration
TASKS: dict[str, Task] = {"sum": SUM, "add": ADD, "mul": MUL, "wall": WALL}


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
