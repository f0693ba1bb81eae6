"""Prints columns of a run: python -m course.show runs/add-grpo-seed0 step reward sampled

A row is a training step. Steps at which one of the columns is empty are left out.
"""

import sys
from pathlib import Path

from tools import end_with_the_reader
from tools.rows import read_csv


def show(folder: str, names: list[str]) -> None:
    """The columns with these names in the run's metrics.csv (tools/README.md defines them)."""
    rows = read_csv(Path(folder, "metrics.csv"))
    if not names:
        raise LookupError(", ".join(rows[0]))
    print(*(name.rjust(13) for name in names))
    for row in rows:
        if all(row[name] for name in names):
            cells = (" ".join(f"{float(x):.4f}" for x in row[name].split()) for name in names)
            print(*(cell.rjust(13) for cell in cells))


if __name__ == "__main__":
    end_with_the_reader()
    try:
        folder, *names = sys.argv[1:] or [""]
        show(folder, names)
    except (LookupError, OSError, ValueError) as error:
        sys.exit(f"Give the folder of a run, and columns that it has: {error}")
