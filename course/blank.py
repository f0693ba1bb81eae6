"""Functions to write yourself: python -m course.blank policy_loss Block.forward

Of each function signature and docstring stay, and `raise NotImplementedError` takes the place of
its body. Prints the commands that check what you write. --all: every function of the assignment,
course/README.md. Run it in a copy of the project.
"""

import ast
import re
from argparse import SUPPRESS, ArgumentParser
from pathlib import Path
from subprocess import getoutput


def assignment() -> dict[str, tuple[str, str]]:
    """function -> its file, and the command that checks it: from the headings of the parts."""
    found = {}
    for part in Path("course/README.md").read_text().split("\n### ")[1:]:
        path, *functions = re.findall("`(.+?)`", part.splitlines()[0])
        command = re.search("python -m pytest .+", part)[0]
        found |= dict.fromkeys(functions, (path, command))
    return found


def blanked(source: str, name: str) -> str:
    """The source with a function, or a class's method, that is still to be written."""
    node = ast.parse(source)
    for part in name.split("."):
        [node] = [child for child in node.body if getattr(child, "name", None) == part]
    doc = node.body[0]
    lines = source.splitlines(keepends=True)
    lines[doc.end_lineno : node.end_lineno] = [" " * doc.col_offset + "raise NotImplementedError\n"]
    return "".join(lines)


if __name__ == "__main__":
    parser = ArgumentParser("course.blank", SUPPRESS, __doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a function of the assignment")
    parser.add_argument("--all", action="store_true", help="all its functions")
    parser.add_argument("--force", action="store_true", help="even if changes are lost")
    options = parser.parse_args()
    parts = assignment()
    names = parts if options.all else options.names
    if not names or set(names) - set(parts):
        parser.error(f"allowed are --all and {', '.join(parts)}")
    # Not empty if a file has changes, is not under version control, or if there is no git.
    state = getoutput("git status --porcelain --ignored " + " ".join(parts[x][0] for x in names))
    if state and not options.force:
        parser.error(f"commit this first, or give --force and lose it: {' '.join(state.split())}")
    for name in names:
        path = Path(parts[name][0])
        path.write_text(blanked(path.read_text(), name))
    print(*dict.fromkeys(parts[name][1] for name in names), sep="\n")
