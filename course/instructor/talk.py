"""Prepares the talks: grade.py ../week-*/* --talks WORD ../talks > sheets.txt

For each student it draws two questions of talk-questions.md, of two parts. Then it makes a mistake
in one function that the student has handed in: another sign, axis or comparison, or a call that is
dropped. A mistake is kept if the tests of its part fail with it and pass without it. What the
examiner needs is printed. The function with the mistake, for the student, is in ../talks/NAME.txt,
without comments and docstrings, because these could say what the right line is.
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
TEXT = re.compile(r"""(?m)^ *(\"{3}|'{3}|["'])(?s:.*?)\1\n""")  # statements that are only a string


def mistakes(source: bytes, function: ast.AST):
    """Yields begin, end, new text, kind of the places where a function can be given a mistake."""
    at = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]  # of each line

    def span(node):  # its place in the source; columns are counted in bytes
        return at[node.lineno - 1] + node.col_offset, at[node.end_lineno - 1] + node.end_col_offset

    blocks = [x for x in ast.walk(function) if ast.unparse(x).startswith("if loss_type == ")]
    given = {x for block in blocks for x in ast.walk(block)}  # the student has not written them
    for x in [x for x in ast.walk(function) if x not in given]:
        if isinstance(x, (ast.BinOp, ast.Compare)):
            right = x.right if isinstance(x, ast.BinOp) else x.comparators[0]
            left = span(x.left)[1]
            found = re.search(rb"[<>=!]=|[-+<>]", source[left : span(right)[0]])
            if found and ast.unparse(right) != "1e-06":
                places = left + found.start(), left + found.end()
                yield *places, OTHERS[found[0].decode()], "another sign or comparison"
        elif isinstance(x, ast.Call):
            values = [*x.args, *(keyword.value for keyword in x.keywords)]
            for axis in [node for node in values if ast.unparse(node) in AXES]:
                yield *span(axis), AXES[ast.unparse(axis)], "another axis or number"
            if isinstance(x.func, ast.Attribute) and ast.unparse(x.func.value) not in MODULES:
                dot = span(x.func)[1] - len(x.func.attr) - 1
                yield dot, span(x)[1], "", "a dropped call"


def shown(source: bytes, name: str) -> list[str]:
    """A name and the numbered lines of its function or entry, without comments and docstrings."""
    held, place = locate(ast.parse(source), name)
    lines = TEXT.sub("", ast.unparse(held[place])).splitlines()
    return [name, *(f"{i:4}  {line}" for i, line in enumerate(lines, 1))]


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
        tests = passing(part)
        places = [*mistakes(source, tree)]
        turn = {kind: rng.random() for *_, kind in places}  # each kind is as likely to be first
        places.sort(key=lambda place: (turn[place[3]], rng.random()))
        for begin, end, new, kind in [(0, 0, "", ""), *places]:
            changed = source[:begin] + new.encode() + source[end:]
            with TemporaryDirectory() as folder:
                path = Path(folder, file)
                path.write_bytes(changed)
                failed = graded(part._replace(files={file: [name]}), path, tests).failed
            if failed and not kind:  # without a mistake
                break
            if kind and any(test.startswith("test_") for test in failed):
                was, now = (shown(x, name) for x in (source, changed))
                i = [x == y for x, y in zip(was, now)].index(False)
                where = f"{kind} in {name}. The line\n{now[i]}\nwas\n{was[i]}\nThese tests fail: "
                return part, f"{where}{', '.join(failed)}.", "\n".join([part.title, *now])
    raise LookupError("not made, because no function passes its tests. Ask the third question.")


def prepare(name: str, files: dict[str, Path], parts: list[Part], word: str, out: Path) -> None:
    """Prints the examiner's sheet of a student, and writes the student's page into the folder."""
    page = read("course/instructor/talk-questions.md")
    sections = dict(re.findall(r"(?ms)^## (.+?)\n\n(.+?)(?=^## |\Z)", page))
    rng = random.Random(word + name)
    try:
        part, where, text = spoilt(files, parts, rng)
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name.replace('/', '-')}.txt").write_text(text, encoding="utf-8")
    except LookupError as error:
        part, where = None, str(error)
    titles = sorted({x.title for x, *_ in handed_in(files, parts) if x != part})
    drawn = rng.sample(titles, min(2 + (part is None), len(titles)))
    asked = [rng.choice(re.findall(r"(?ms)^- (.+?)\s*(?=^- |\Z)", sections[x])) for x in drawn]
    asked = [f"Part {title}: {question}" for title, question in zip(drawn, asked)]
    print(f"# {name}", *asked, f"The mistake is {where}", "", sep="\n\n", flush=True)
