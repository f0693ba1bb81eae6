"""Functions to write yourself: python -m course.blank policy_loss FORMULAS.rloo

The body of a function becomes `raise NotImplementedError`; its signature and docstring stay. In a
part that begins with loops the docstring also goes, because it shows the formula. `FORMULAS.rloo`
means the entry "rloo" of the table FORMULAS, which is removed. The program prints the commands that
check what you write. With --all it blanks the whole assignment, course/README.md, except the extra
part. With --all --without 8 it leaves part 8 written, and a note at the top of the page says so.
Run it in a copy of the project.
"""

import ast
import re
from argparse import SUPPRESS, ArgumentParser
from collections import namedtuple
from pathlib import Path
from subprocess import getoutput
from symtable import symtable


# A part of the page. files: file -> functions to write there. points: 0 for an extra part
Part = namedtuple("Part", "title points files command mistakes question")
PART = r"(?s)(.+?) \((\d+) p.+?Write\S+ (.+?)\n\n.+?(python -m pytest.+?)\n.+?mistakes\S+ (.+?)\n\n"
NOTE = """

**Skip these parts, because they are already solved in this copy: {}.** Their points and their
questions do not count, so you can reach fewer than 70 and 30 points.
"""
WITHOUT = {"action": "append", "default": [], "metavar": "PART", "choices": [*"123456789", "10"]}


def read(path: Path | str) -> str:
    return Path(path).read_text(encoding="utf-8")


def assignment(without: list[str] = []) -> list[Part]:
    """The parts of the page, except those with these numbers."""
    parts = []
    for text in read("course/README.md").split("\n### ")[1:]:
        title, points, write, command, mistakes = re.match(PART, text).groups()
        found = re.findall(r"(.+?)\s+in\s+`(\w+\.py)`", write, re.DOTALL)
        files = {file: re.findall("`(.+?)`", names) for names, file in found}
        question = text.partition("**Question.** ")[2].split("\n\n")[0].strip()
        parts.append(Part(title, int(points), files, command, " ".join(mistakes.split()), question))
    return [part for part in parts if part.title.split(".")[0] not in without]


def bound(statement: ast.stmt) -> list[str]:
    """The names that a statement defines: of a function, an import, an assignment."""
    symbols = symtable(ast.unparse(statement), "", "exec").get_symbols()
    return [symbol.get_name() for symbol in symbols if symbol.is_local()]


def locate(tree: ast.Module, name: str) -> tuple[list, int]:
    """The list that holds a function, a method or an entry of a table, and its place there."""
    outer, _, last = name.rpartition(".")
    entries = [x for x in tree.body if ast.unparse(x).startswith(f"{outer}['{last}'] = ")]
    if entries:  # FORMULAS["rloo"] = ... below the table
        return [x.value for x in entries], len(entries) - 1
    holder = next((x for x in tree.body if outer in bound(x)), tree)
    if isinstance(holder, ast.Assign) and isinstance(holder.value, ast.Dict):
        held = holder.value.values
        names = [[getattr(key, "value", "")] for key in holder.value.keys]
    else:
        held = getattr(holder, "body", [])
        names = [bound(x) for x in held]
    places = {name: i for i, some in enumerate(names) for name in some}
    if last not in places:
        raise LookupError(f"There is no {name}.")
    return held, places[last]


def blanked(source: str, name: str, docstring: str = "") -> str:
    """The source with a function or an entry still to be written."""
    held, place = locate(ast.parse(source), name)
    node = held[place]
    lines = source.splitlines(keepends=True)
    if isinstance(node, ast.expr):
        del lines[node.lineno - 1 : node.end_lineno]
    else:
        first = node.body[0]  # the docstring
        start = first.lineno - 1 if docstring else first.end_lineno
        body = [f'"""{docstring}"""\n'] * bool(docstring) + ["raise NotImplementedError\n"]
        lines[start : node.end_lineno] = [" " * first.col_offset + line for line in body]
    return "".join(lines)


def main() -> None:
    parser = ArgumentParser("course.blank", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a function of the assignment")
    parser.add_argument("--all", action="store_true", help="all its functions, no extra part")
    parser.add_argument("--without", help="with --all, leave this part written", **WITHOUT)
    parser.add_argument("--force", action="store_true", help="even if changes are lost")
    options = parser.parse_args()
    files = [(part, file) for part in assignment(options.without) for file in part.files]
    where = {name: (part, file) for part, file in files for name in part.files[file]}
    names = [x for x in where if x in options.names or options.all and where[x][0].points]
    if not names or set(options.names) - set(where):
        parser.error(f"allowed are --all and {', '.join(where)}")
    # Not empty if a file has changes, is not under version control, or if there is no git.
    state = getoutput("git status --porcelain --ignored " + " ".join(where[x][1] for x in names))
    if state and not options.force:
        parser.error(f"commit this first, or give --force and lose it: {' '.join(state.split())}")
    for name in names:
        part, file = where[name]
        page = f"What to write is described in course/README.md: {part.title}."
        source = blanked(read(file), name, page if "test_grpo.py" in part.files else "")
        Path(file).write_text(source, encoding="utf-8")
    if options.all and options.without:
        page = read("course/README.md").replace("\n", NOTE.format(", ".join(options.without)), 1)
        Path("course/README.md").write_text(page, encoding="utf-8")
    print(*dict.fromkeys(where[name][0].command for name in names), sep="\n")


if __name__ == "__main__":
    main()
