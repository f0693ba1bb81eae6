"""Synthetic arithmetic with worked solutions: the problems, the verifier and the tokenizer.

A problem is a prompt ("7+8+5="), a solution that works in steps towards an answer ("15,20#20"), and
the answer alone ("20"). All tasks write alike: steps separated by commas, the marker "#", and the
answer, which repeats the last step. So a response can reason well and still answer wrongly, or the
reverse, and both are checked exactly:

    response     15,20#20     15,20#21     15,21#20     20
    reward       1            0            1            0      ends in "#20", its only "#"?
    coherent     yes          no           no           no     does the answer repeat the last step?

Both checks compare strings and parse no number, so any text that a model may write gets an answer.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

MARKER = "#"  # stands between the steps and the answer
PAD, EOS = "<pad>", "<eos>"  # two tokens: if they were one, masking the padding would mask the end


@dataclass(frozen=True)
class Problem:
    """What the model reads, a solution it could write (end-of-sequence apart), its answer."""

    prompt: str
    solution: str
    answer: str
    level: int


@dataclass(frozen=True)
class Task:
    """A family of problems: prompts like "7+8+5=", with more or longer numbers at higher levels."""

    name: str
    sign: str
    levels: range
    digits: Callable[[int], list[int]]  # level -> how many digits each number of the prompt has
    work: Callable[[list[int]], list[int]]  # numbers -> the steps; the last one is the answer

    def write(self, numbers: list[int], level: int) -> Problem:
        *_, answer = steps = [str(step) for step in self.work(numbers)]
        prompt = self.sign.join(map(str, numbers)) + "="
        return Problem(prompt, ",".join(steps) + MARKER + answer, answer, level)

    def problem(self, rng: np.random.Generator, level: int) -> Problem:
        """A random problem of that level."""
        digits = np.array(self.digits(level))
        low = np.where(digits > 1, 10 ** (digits - 1), 0)  # no number has a leading zero
        return self.write(rng.integers(low, 10**digits).tolist(), level)

    @property
    def longest(self) -> Problem:
        """No problem of this task has a longer prompt, solution or answer: all digits are 9."""
        level = self.levels[-1]
        return self.write([10**d - 1 for d in self.digits(level)], level)

    def reward(self, problem: Problem, response: str) -> float:
        """1.0 if there is exactly one marker, and behind it just the answer; else 0.0."""
        _, *answers = response.split(MARKER)
        return float(answers == [problem.answer])

    def coherent(self, problem: Problem, response: str) -> bool:
        """Whether the final answer, right or wrong, is the response's own last step.

        False without a marker, with more than one, and without a step before it.
        """
        reasoning, *answers = response.split(MARKER)
        last_step = reasoning.split(",")[-1]
        return last_step != "" and answers == [last_step]


def held_out(prompt: str) -> bool:
    """Whether a prompt is never trained on, as one in ten is: a matter of the prompt, no seed."""
    return zlib.crc32(prompt.encode()) % 10 == 0


def running_totals(terms: list[int]) -> list[int]:
    """7+8+5= is worked as 15,20."""
    return [sum(terms[:n]) for n in range(2, len(terms) + 1)]


def column_sums(addends: list[int]) -> list[int]:
    """347+285= is worked as 12,132,632: column by column from the right, 7+5, 47+85, 347+285.

    Step k adds the last k digits of both, so that a digit more than k at its front is the carry.
    """
    return [sum(n % 10**k for n in addends) for k in range(1, len(str(max(addends))) + 1)]


def partial_products(factors: list[int]) -> list[int]:
    """347*8= is worked as 56,320,376,2400,2776: 7*8; 40*8 and the total; 300*8 and the total."""
    a, b = factors
    steps = [a % 10 * b]
    for k in range(1, len(str(a))):
        product = a // 10**k % 10 * 10**k * b
        steps += [product, steps[-1] + product]
    return steps


TASKS: dict[str, Task] = {
    # level: how many one-digit terms
    "sum": Task("sum", "+", range(2, 9), lambda level: [1] * level, running_totals),
    # level: digits of both addends
    "add": Task("add", "+", range(1, 5), lambda level: [level, level], column_sums),
    # level: digits of the first factor; the second has one, and so with 1 there is nothing to add
    "mul": Task("mul", "*", range(2, 4), lambda level: [level, 1], partial_products),
}


def build_tokenizer() -> Tokenizer:
    """One character, one token; "<eos>" and "<pad>" are two more. A batch is padded on the right.

    decode() hides these two unless skip_special_tokens=False. Encoding a character that no task
    uses raises an exception.
    """
    tokens = [PAD, EOS, *"0123456789+*=,", MARKER]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}))
    tokenizer.add_special_tokens([PAD, EOS])
    tokenizer.enable_padding(pad_id=tokens.index(PAD), pad_token=PAD)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
