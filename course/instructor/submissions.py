"""Which files are whose: what the programs of this folder know of what was handed in."""

import os
import re
from pathlib import Path

from course.blank import Part


def students(folders: list[str], parts: list[Part]) -> tuple[dict, list[Part]]:
    """A student's name -> a week -> the folder of this week; and the parts of these weeks.

    A folder week-2/anna has what Anna handed in for week 2. Any other folder has all weeks. The
    name is the path below the folder that has all students, so namesakes differ.
    """
    found = {}
    for folder in dict.fromkeys(map(Path, folders)):
        week = re.fullmatch(r"week-(\d)", folder.parent.name)
        if week:
            found.setdefault(folder.parent.parent / folder.name, {})[week[1]] = folder
        else:
            found[folder] = {part.week: folder for part in parts}
    top = os.path.commonpath([path.parent for path in found])
    names = {os.path.relpath(path, top): weeks for path, weeks in found.items()}
    given = {week for weeks in found.values() for week in weeks}
    return names, [part for part in parts if part.week in given]


def located(weeks: dict[str, Path], parts: list[Part]) -> dict[str, Path]:
    """A week -> where its files are: in its folder, or in the only folder in it that has some."""
    names = [file for part in parts for file in part.files]
    places = {}
    for week, folder in weeks.items():
        paths = [*folder.glob("*.py"), *folder.glob("*/*.py")]
        found = {path.parent for path in paths if path.name in names and path.is_file()}
        if folder not in found and len(found) != 1:
            raise LookupError("it has no files of the assignment, or two sets of them")
        places[week] = folder if folder in found else found.pop()
    return {part.week: places.get(part.week, Path("nothing")) for part in parts}


def written(folder: Path) -> tuple[str, str]:
    """The first line of a student's answers.md, and all of it."""
    page = folder / "answers.md"
    text = page.read_text(encoding="utf-8-sig", errors="replace") if page.is_file() else ""
    return (text.splitlines() or ["no answers.md"])[0], text
