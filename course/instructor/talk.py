"""Prepares the talks: grade.py ../week-*/* --talks WORD ../talks > sheets.txt

For each student it draws two questions of talk-questions.md, of two parts. Then it makes a mistake
in one function that the student has handed in: another sign, axis or comparison, or a call that is
dropped. A mistake is kept if the tests of its part fail with it and pass without it. What the
examiner needs is printed. The function with the mistake, for the student, is in ../talks/NAME.txt.
"""

import ast
import random
import re
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

from checks import graded, passing
from course.blank import Part, is_blank, locate, read

OTHERS = {"+": "-", "-": "+", "<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "=="}
AXES = {"0": "1", "1": "0", "2": "1", "-1": "-2", "-2": "-1"}
MODULES = ("torch", "math", "np", "train", "grpo", "advantages")


def mistakes(source: bytes, function: ast.AST):
    """Yields begin, end, new text, kind of the places where a function can be given a mistake."""
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]

    def span(node):  # its place in the source; columns are counted in bytes
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return starts[node.lineno - 1] + node.col_offset, end

    for x in ast.walk(function):
        if isinstance(x, (ast.BinOp, ast.Compare)):
            right = x.right if isinstance(x, ast.BinOp) else x.comparators[0]
            left = span(x.left)[1]
            found = re.search(rb"[<>=!]=|[-+<>]", source[left : span(right)[0]])
            if found:
                begin, end = found.span()
                new = OTHERS[found[0].decode()]
                yield left + begin, left + end, new, "another sign or comparison"
        elif isinstance(x, ast.Call):
            values = [*x.args, *(keyword.value for keyword in x.keywords)]
            for axis in [node for node in values if ast.unparse(node) in AXES]:
                yield *span(axis), AXES[ast.unparse(axis)], "another axis or number"
            if isinstance(x.func, ast.Attribute) and ast.unparse(x.func.value) not in MODULES:
                dot = span(x.func)[1] - len(x.func.attr) - 1
                yield dot, span(x)[1], "", "a dropped call"


def handed_in(files: dict[str, Path], parts: list[Part]):
    """Yields part, file, name, source, syntax tree of each function that is not blank."""
    for part, file in [(part, file) for part in parts for file in part.files]:
        for name in part.files[file]:
            with suppress(OSError, LookupError, SyntaxError):
                source = read(files[part.week] / file)
                held, place = locate(ast.parse(source), name)
                if not is_blank(held[place]):
                    yield part, file, name, source.encode(), held[place]


def spoilt(files: dict[str, Path], parts: list[Part], rng: random.Random) -> tuple[Part, str, str]:
    """The part, what the examiner should know, and a function of the student with a mistake in it.

    Long functions are tried first. LookupError if no function passes its tests.
    """
    found = [*handed_in(files, parts)]
    rng.shuffle(found)
    for part, file, name, source, tree in sorted(found, key=lambda x: len([*ast.walk(x[4])]) < 80):
        one = part._replace(files={file: [name]})
        tests = passing(part)
        places = [*mistakes(source, tree)]
        for begin, end, new, kind in [(0, 0, "", ""), *rng.sample(places, len(places))]:
            with TemporaryDirectory() as folder:
                path = Path(folder, file)
                path.write_bytes(source[:begin] + new.encode() + source[end:])
                failed = graded(one, path, tests).failed
                lines = read(path).splitlines()
            if failed and not kind:  # without a mistake
                break
            if kind and any(test.startswith("test_") for test in failed):
                line = source[:begin].count(b"\n") + 1
                was = source[begin:end].decode()
                where = f"{kind} in {name}, line {line} of {file}: `{new}` was `{was}`"
                shown = [*enumerate(lines, 1)][tree.lineno - 1 : tree.end_lineno]
                text = "\n".join(f"{i:4}  {line}" for i, line in shown)
                return part, f"{where}. These tests fail: {', '.join(failed)}.", text
    raise LookupError("not made, because no function passes its tests. Ask the third question.")


def prepare(name: str, files: dict[str, Path], parts: list[Part], word: str, out: Path) -> None:
    """Prints the examiner's sheet of a student, and writes the student's page into the folder."""
    page = read("course/instructor/talk-questions.md")
    questions = dict(re.findall(r"(?ms)^## (\d+)\. .+?\n\n(.+?)(?=^## |\Z)", page))
    rng = random.Random(word + name)
    try:
        part, where, shown = spoilt(files, parts, rng)
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name.replace('/', '-')}.txt").write_text(shown, encoding="utf-8")
    except LookupError as error:
        part, where = None, str(error)
    numbers = [x.title.split(".")[0] for x in parts if x != part]
    drawn = rng.sample(numbers, min(2 + (part is None), len(numbers)))
    asked = [rng.choice(re.findall(r"(?ms)^- (.+?)\n(?=- |\Z)", questions[n])) for n in drawn]
    print(f"# {name}", *asked, f"The mistake is {where}", "", sep="\n\n", flush=True)
