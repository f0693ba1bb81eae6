"""Functions to write yourself: python -m course.blank policy_loss FORMULAS.rloo

The body of a function becomes `raise NotImplementedError`; its signature and docstring stay. In a
part that begins with loops the docstring also goes, because it shows the formula. In policy_loss
the lines of the loss types gspo and cispo stay as well. `FORMULAS.rloo` means the entry "rloo" of
the table FORMULAS, which is removed. The program prints the commands that check what you write.
With --all it blanks the whole assignment, course/README.md. With --all --without 8 it leaves part 8
written, and a note at the top of the page says so. Run it in a copy of the project. It refuses to
overwrite a file that is not committed as it is.
"""

import ast
import re
import sys
from argparse import SUPPRESS, ArgumentParser
from collections import namedtuple
from pathlib import Path
from subprocess import run
from symtable import symtable


# A part of the page. files: file -> functions to write there
Part = namedtuple("Part", "title points files command mistakes question week")
PART = r"(?s)(.+?) \((\d+) p.+?Write\S+ (.+?)\n\n.+?(python -m pytest.+?)\n.+?mistakes\S+ (.+?)\n\n"
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
            title, points, write, command, mistakes = re.match(PART, text).groups()
            found = re.findall(r"(.+?)\s+in\s+`(\w+\.py)`", write, re.DOTALL)
            files = {file: re.findall("`(.+?)`", names) for names, file in found}
            mistakes = " ".join(mistakes.split())
            question = text.partition("**Question.** ")[2].split("\n\n")[0].strip()
            week = section[5:6]  # of Week 1
            parts.append(Part(title, int(points), files, command, mistakes, question, week))
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
    """The source with a function or an entry still to be written; as it is if that is blank."""
    try:
        held, place = locate(ast.parse(source), name)
    except LookupError:
        if name.startswith("FORMULAS."):  # an entry is blank if it is not there
            return source
        raise
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


def is_committed(file: str) -> bool:
    """Whether the last commit has this file as it is now. Settings of git cannot hide a change."""
    git = 'git -c "safe.directory=*"'  # git may not know who owns the folder
    command = f'{git} rev-parse -q --verify "HEAD:./{file}" && {git} hash-object {file}'
    hashes = run(command, shell=True, capture_output=True, text=True).stdout.split()
    return len(hashes) == 2 and hashes[0] == hashes[1]


def main() -> None:
    parser = ArgumentParser("course.blank", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a function of the assignment")
    parser.add_argument("--all", action="store_true", help="all functions of the assignment")
    parser.add_argument("--without", help="with --all, leave this part written", **WITHOUT)
    parser.add_argument("--force", action="store_true", help="even if changes are lost")
    options = parser.parse_args()
    files = [(part, file) for part in assignment(options.without) for file in part.files]
    where = {name: (part, file) for part, file in files for name in part.files[file]}
    names = [x for x in where if x in options.names or options.all]
    if not names or set(options.names) - set(where):
        parser.error(f"allowed are --all and {', '.join(where)}")
    sources = {}  # file -> what it will be: nothing is written before everything is known
    for name in names:
        part, file = where[name]
        page = f"What to write is described in course/README.md: {part.title}."
        try:
            before = sources.get(file) or read(file)
            sources[file] = blanked(before, name, page if "test_grpo.py" in part.files else "")
            ast.parse(sources[file])
        except (LookupError, OSError, ValueError, SyntaxError) as error:
            parser.error(f"nothing is changed, because {file} cannot be read: {error}")
        if sources[file] == before:
            print(f"{name} is blank already.", file=sys.stderr)
    page = read("course/README.md")
    left = [part.points for part in assignment(options.without)]
    note = NOTE.format(", ".join(options.without), sum(left), 3 * len(left))
    if options.all and options.without and note not in page:
        sources["course/README.md"] = page.replace("\n", note, 1)
    changed = {file: source for file, source in sources.items() if source != read(file)}
    lost = [file for file in changed if not is_committed(file)]
    if lost and not options.force:
        parser.error(f"commit this first, or give --force and overwrite it: {' '.join(lost)}")
    for file, source in changed.items():
        Path(file).write_text(source, encoding="utf-8")
    print(*dict.fromkeys(where[name][0].command for name in names), sep="\n")


if __name__ == "__main__":
    main()
