"""Reads a CSV. What is torn or foreign is named with its line. This file has no command."""

import csv
from contextlib import suppress
from pathlib import Path


class Row(dict):
    """A row of a CSV. If it has not the column that is asked for, the program ends with a line."""

    def __missing__(self, column: str):
        stop(self.path, 1, f"no column {column}. Its columns are {', '.join(self)}")


def stop(path: Path, line: int, why) -> None:
    """Ends the program with one line about a line of a file."""
    raise SystemExit(f"{path}, line {line}: {why}.")


def read_csv(path: Path) -> list[Row]:
    """The rows, with texts as cells."""
    # utf-8-sig: a spreadsheet may have added a byte order mark.
    *lines, last = path.read_text(encoding="utf-8-sig", errors="replace").split("\n")
    if last:
        stop(path, len(lines) + 1, "it has no end, so it may be torn")
    table = [next(csv.reader([line]), []) for line in lines]  # no cell has several lines
    header = table[0] if table else stop(path, 1, "no header")
    rows = [Row(zip(header, cells)) for cells in table[1:]]
    for n, row in enumerate(rows, 2):
        row.path = path
        if len(table[n - 1]) != len(header) or "\ufffd" in lines[n - 1]:
            stop(path, n, "not as many fields as in the header, or not UTF-8")
    return rows


def number(text: str) -> int | float | str:
    """A cell of a CSV as a number, if it is one."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def read_rows(path: Path) -> list[dict]:
    """The rows of a CSV with their numbers; none if there is no such file."""
    rows = read_csv(path) if path.exists() else []
    for row in rows:
        row.update({name: number(cell) for name, cell in row.items()})
    return rows
