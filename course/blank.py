"""Blanks the functions of the assignment: python -m course.blank [--without 8]

The body of a function becomes `raise NotImplementedError`; its signature and docstring stay. In a
part that begins with loops the docstring also goes: it shows the formula. In policy_loss
the lines of the loss types gspo and cispo stay as well. `FORMULAS.rloo` means the entry "rloo" of
the table FORMULAS, which is removed. What else gives an answer away is left out (SHOWN). With
--without 8 part 8 stays written, and a note at the top of the page course/README.md says so. Run it
in a copy of the project. It refuses to overwrite a file that is not committed as it is.
"""

import ast
import re
from argparse import SUPPRESS, ArgumentParser
from collections import namedtuple
from pathlib import Path
from subprocess import DEVNULL, run

# A part of the page. files: file -> functions to write there
Part = namedtuple("Part", "number title files command week")
PART = r"(?s)((\d+)\..+?) \(.+?Write\S+ (.+?)\n\n.+?(python -m pytest.+?)\n"
NOTE = "\n\n**Skip these parts, because they are already solved in this copy: {}.**\n"
NOTE += "Their questions do not count either.\n"
# What else gives an answer away: a file, where it begins, where it ends, and what takes its place.
LATER = "            raise NotImplementedError  # This is only in the complete project.\n"
SHOWN = [
    ("grpo.py", "This only changes the scale", "GRPO\nalso divides", ""),
    ("advantages.py", "section 4.1.2.\n", "    The group's mean", "section 4.1.2.\n\n"),
    ("tests/test_core.py", ": rloo is dr_grpo", "\n\n    Adam removes", "."),
    ("tests/test_core.py", "removes the factor G", " at any limit", "removes the factor"),
    ("test_grpo.py", '"maxrl": l', " if any(", '"maxrl": lambda x, i, t: x.r[i] / mean(x.r) - 1'),
    ("tests/test_trl.py", "    hidden = read_resp", "    logprobs = probs", LATER[8:]),
    ("tools/trl_variants.py", "            # The logits", "        return Rollout(", LATER),
]
WITHOUT = {"action": "append", "default": [], "metavar": "PART", "choices": [*"12345678"]}


def read(path: Path | str) -> str:
    return Path(path).read_text(encoding="utf-8-sig")  # some editors write a byte order mark


def assignment(without: list[str] = []) -> list[Part]:
    """The parts of the page, except those with these numbers."""
    parts = []
    for section in read("course/README.md").split("\n## "):
        for text in section.split("\n### ")[1:]:
            title, number, write, command = re.match(PART, text).groups()
            found = re.findall(r"(.+?)\s+in\s+`(\w+\.py)`", write, re.DOTALL)
            files = {file: re.findall("`(.+?)`", names) for names, file in found}
            parts.append(Part(number, title, files, command, section[5:6]))
    return [part for part in parts if part.number not in without]


def locate(tree: ast.Module, name: str) -> tuple[list, int]:
    """The list that holds a function, a method or an entry of a table, and its place there."""
    outer, _, last = name.rpartition(".")
    held = tree.body
    for node in tree.body if outer else []:
        if isinstance(node, ast.ClassDef) and node.name == outer:
            held = node.body
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == outer:
            return node.value.values, [key.value for key in node.value.keys].index(last)
    return held, [getattr(node, "name", "") for node in held].index(last)


def is_blank(node: ast.AST) -> bool:
    return ast.unparse(node).endswith("raise NotImplementedError")


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
    try:
        for part in parts:
            page = f"What to write is described in course/README.md: {part.title}."
            for file, names in part.files.items():
                for name in names:
                    loops_first = "test_grpo.py" in part.files
                    sources[file] = blanked(sources[file], name, page * loops_first)
        for file, first, last, instead in SHOWN:
            source = sources.get(file) or read(file)
            begin = source.index(first)
            end = source.index(last, begin)
            sources[file] = source[:begin] + instead + source[end:]
    except ValueError as error:
        parser.error(f"{error}: this copy is blank already, or a name in it was changed")
    if options.without:
        note = NOTE.format(", ".join(options.without))
        sources["course/README.md"] = read("course/README.md").replace("\n", note, 1)
    git = ["git", "-c", "safe.directory=*", "diff", "--quiet", "HEAD", "--", *sources]
    if not options.force and run(git, stderr=DEVNULL).returncode:
        parser.error(f"commit these files first, or lose changes with --force: {' '.join(sources)}")
    for file, source in sources.items():
        Path(file).write_text(source, encoding="utf-8")


if __name__ == "__main__":
    main()
