"""Prepares the talks: course/instructor/talk.py ../week-*/* --draw WORD --out ../talks > sheets.txt

For each student it draws two questions of talk-questions.md, of two parts. Then it makes a mistake
in one function that the student has handed in: another sign, axis or comparison, or a call that is
dropped. A mistake is kept if the tests of its part fail with it and pass without it. What the
examiner needs is printed. The function with the mistake, for the student, is in ../talks/NAME.txt.
"""

import ast
import os
import random
import re
import sys
from argparse import SUPPRESS, ArgumentParser
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))
from grade import ROOT, graded, passing  # noqa: E402
from submissions import located, students  # noqa: E402
from course.blank import WITHOUT, Part, assignment, is_blank, locate, read  # noqa: E402

OTHERS = {"+": "-", "-": "+", "<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "=="}
AXES = {"0": "1", "1": "0", "2": "1", "-1": "-2", "-2": "-1"}
MODULES = ("torch", "math", "np", "train", "grpo", "advantages")


def mistakes(source: str, function: ast.AST):
    """Yields begin, end, new text, kind of the places where a function can be given a mistake."""
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]

    def begin(node):  # its place in the source; columns are counted in bytes
        line = source[starts[node.lineno - 1] :].encode()[: node.col_offset]
        return starts[node.lineno - 1] + len(line.decode())

    def end(node):
        return begin(node) + len(ast.get_source_segment(source, node))

    for x in ast.walk(function):
        if isinstance(x, (ast.BinOp, ast.Compare)):
            left, right = x.left, x.right if isinstance(x, ast.BinOp) else x.comparators[0]
            found = re.search(r"[<>=!]=|[-+<>]", source[end(left) : begin(right)])
            if found:
                places = [end(left) + place for place in found.span()]
                yield *places, OTHERS[found[0]], "another sign or comparison"
        elif isinstance(x, ast.Call):
            values = [*x.args, *(keyword.value for keyword in x.keywords)]
            for axis in [node for node in values if ast.unparse(node) in AXES]:
                yield begin(axis), end(axis), AXES[ast.unparse(axis)], "another axis or number"
            if isinstance(x.func, ast.Attribute) and ast.unparse(x.func.value) not in MODULES:
                stop = end(x.func) - len(x.func.attr) - 1  # without .mean
                yield begin(x), end(x), source[begin(x) : stop], "a dropped call"
            elif x.args and not isinstance(x.args[0], ast.Starred):
                kept = ast.get_source_segment(source, x.args[0])
                yield begin(x), end(x), f"({kept})", "a dropped call"


def handed_in(files: dict[str, Path], parts: list[Part]):
    """Yields part, file, name, source, syntax tree of each function that is not blank."""
    for part, file in [(part, file) for part in parts for file in part.files]:
        for name in part.files[file]:
            with suppress(OSError, LookupError, SyntaxError):
                source = read(files[part.week] / file)
                held, place = locate(ast.parse(source), name)
                if not is_blank(held[place]):
                    yield part, file, name, source, held[place]


def spoilt(files: dict[str, Path], parts: list[Part], rng: random.Random) -> tuple[Part, str, str]:
    """The part, what the examiner should know, and a function of the student with a mistake in it.

    Long functions are tried first. LookupError if no function passes its tests.
    """
    found = [*handed_in(files, parts)]
    rng.shuffle(found)
    for part, file, name, source, tree in sorted(found, key=lambda x: len([*ast.walk(x[4])]) < 80):
        one = part._replace(files={file: [name]})
        tests = passing(part, 60)
        places = [*mistakes(source, tree)]
        for begin, end, new, kind in [(0, 0, "", ""), *rng.sample(places, len(places))]:
            with TemporaryDirectory() as folder:
                path = Path(folder, file)
                path.write_text(source[:begin] + new + source[end:], encoding="utf-8")
                failed = graded(one, path, 60, tests).failed
                lines = read(path).splitlines()
            if failed and not kind:  # without a mistake
                break
            if kind and any(test.startswith("test_") for test in failed):
                line = source[:begin].count("\n") + 1
                where = f"{kind} in line {line} of {file}: `{new}` was `{source[begin:end]}`"
                shown = [*enumerate(lines, 1)][tree.lineno - 1 : tree.end_lineno]
                text = "\n".join(f"{i:4}  {line}" for i, line in shown)
                return part, f"{where}. These tests fail: {', '.join(failed)}.", text
    raise LookupError("not made, because no function passes its tests. Ask the third question.")


def main() -> None:
    parser = ArgumentParser("talk.py", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="as for grade.py")
    parser.add_argument("--draw", metavar="WORD", required=True, help="decides what is drawn")
    parser.add_argument("--out", type=os.path.abspath, required=True, metavar="FOLDER")
    parser.add_argument("--without", help="a part that the class does not do", **WITHOUT)
    options = parser.parse_args()
    folders = [Path(os.path.abspath(x)) for x in options.folders]
    os.makedirs(options.out, exist_ok=True)
    os.chdir(ROOT)
    page = read("course/instructor/talk-questions.md")
    asked = dict(re.findall(r"(?ms)^## (\d+)\. .+?\n\n(.+?)(?=^## |\Z)", page))
    names, parts = students(folders, assignment(options.without))
    for name, weeks in names.items():
        rng = random.Random(options.draw + name)
        try:
            part, where, shown = spoilt(located(weeks, parts), parts, rng)
            Path(options.out, name.replace("/", "-") + ".txt").write_text(shown, encoding="utf-8")
        except LookupError as error:
            part, where = None, str(error)
        numbers = [x.title.split(".")[0] for x in parts if x != part]
        drawn = rng.sample(numbers, min(2 + (part is None), len(numbers)))
        questions = [rng.choice(re.findall(r"(?ms)^- (.+?)\n(?=- |\Z)", asked[n])) for n in drawn]
        print(f"# {name}", *questions, f"The mistake is {where}", "", sep="\n\n", flush=True)


if __name__ == "__main__":
    main()
