"""Blanks the functions of the assignment: python -m course.blank [--without 8]

The body of a function becomes `raise NotImplementedError`; its signature and docstring stay. In a
part that begins with loops the docstring also goes, because it shows the formula. In policy_loss
the lines of the loss types gspo and cispo stay as well. `FORMULAS.rloo` means the entry "rloo" of
the table FORMULAS, which is removed. With --without 8 part 8 stays written, and a note at the top
of the page course/README.md says so. Run it in a copy of the project. It refuses to overwrite a
file that is not committed as it is.
"""

import ast
import re
from argparse import SUPPRESS, ArgumentParser
from collections import namedtuple
from pathlib import Path
from subprocess import DEVNULL, run
from symtable import symtable


# A part of the page. files: file -> functions to write there
Part = namedtuple("Part", "title points files command question week")
PART = r"(?s)(.+?) \((\d+) p.+?Write\S+ (.+?)\n\n.+?(python -m pytest.+?)\n"
NOTE = """

**Skip these parts, because they are already solved in this copy: {}.** Their points and their
questions do not count, so you can reach {} points for code and {} for answers and week 4.
"""
WITHOUT = {"action": "append", "default": [], "metavar": "PART", "choices": [*"123456789", "10"]}


def read(path: Path | str) -> str:
    return Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark


def assignment(without: list[str] = []) -> list[Part]:
    """The parts of the page, except those with these numbers."""
    parts = []
    for section in read("course/README.md").split("\n## "):
        for text in section.split("\n### ")[1:]:
            title, points, write, command = re.match(PART, text).groups()
            found = re.findall(r"(.+?)\s+in\s+`(\w+\.py)`", write, re.DOTALL)
            files = {file: re.findall("`(.+?)`", names) for names, file in found}
            question = text.partition("**Question.** ")[2].split("\n\n")[0].strip()
            week = section[5:6]  # of Week 1
            parts.append(Part(title, int(points), files, command, question, week))
    return [part for part in parts if part.title.split(".")[0] not in without]


def bound(statement: ast.stmt) -> list[str]:
    """The names that a statement defines: of a function, an import, an assignment."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):  # without reading its body
        return [statement.name]
    symbols = symtable(ast.unparse(statement), "", "exec").get_symbols()
    return [symbol.get_name() for symbol in symbols if symbol.is_local()]


def locate(tree: ast.Module, name: str) -> tuple[list, int]:
    """The list that holds a function, a method or an entry of a table, and its place there."""
    outer, _, last = name.rpartition(".")
    assignments = [x for x in tree.body if isinstance(x, ast.Assign)]
    entries = [x for x in assignments if ast.unparse(x).startswith(f"{outer}['{last}'] = ")]
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


def is_blank(node: ast.AST) -> bool:
    return ast.unparse(node).endswith("raise NotImplementedError")


def blanked(source: str, name: str, docstring: str = "") -> str:
    """The source with a function or an entry still to be written."""
    held, place = locate(ast.parse(source), name)
    node = held[place]
    lines = re.findall(r".*\n|.+", source)  # splitlines() also ends a line at a form feed
    if isinstance(node, ast.expr):
        del lines[node.lineno - 1 : node.end_lineno]
    else:
        first = node.body[0]  # the docstring
        start = first.lineno - 1 if docstring else first.end_lineno
        indent = " " * first.col_offset
        body = [f'{indent}"""{docstring}"""\n'] * bool(docstring)
        for given in [x for x in node.body if ast.unparse(x).startswith("if loss_type == ")]:
            body += lines[given.lineno - 1 : given.end_lineno]
        lines[start : node.end_lineno] = [*body, f"{indent}raise NotImplementedError\n"]
    return "".join(lines)


def main() -> None:
    parser = ArgumentParser("course.blank", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("--without", help="leave this part written", **WITHOUT)
    parser.add_argument("--force", action="store_true", help="even if changes are lost")
    options = parser.parse_args()
    parts = assignment(options.without)
    sources = {file: read(file) for part in parts for file in part.files}
    for part in parts:
        page = f"What to write is described in course/README.md: {part.title}."
        begins = page if "test_grpo.py" in part.files else ""
        for file, names in part.files.items():
            for name in names:
                sources[file] = blanked(sources[file], name, begins)
    if options.without:
        left = sum(part.points for part in parts)
        note = NOTE.format(", ".join(options.without), left, 3 * len(parts))
        sources["course/README.md"] = read("course/README.md").replace("\n", note, 1)
    git = ["git", "-c", "safe.directory=*", "diff", "--quiet", "HEAD", "--", *sources]
    if not options.force and run(git, stderr=DEVNULL).returncode:
        parser.error(f"commit these files first, or lose changes with --force: {' '.join(sources)}")
    for file, source in sources.items():
        Path(file).write_text(source, encoding="utf-8")


if __name__ == "__main__":
    main()
