"""Does the base model foretell what training brings? python -m studies.prediction

x is `one` minus grpo's at the base model (studies.gradients); y is sampled accuracy, mean over the
run, minus grpo's (studies.compare). Both are means over base models. H10: x ranks y; the rank
correlations are in docs/tables/within.md.

docs/tables/prediction.csv has the predicted y of the arms that are no variants, by least squares
through the seven variants of studies.within, with the 95 % interval of a single point. It was
committed (da77494) before those arms were trained, and never changes. docs/tables/prediction.md is
made from it and from the files of the two studies.
"""

import numpy as np

from studies.common import TABLES, at, interval, markdown, publish, read_rows, shown
from studies.within import effects

ROWS = TABLES / "prediction.csv"
SEEN = ("no_baseline", "half", "nthr_eta0", "negative_0.1")  # in a sketch, before the rule


def beside(row: dict, y: np.ndarray) -> list[str]:
    """The predicted effect, the found one, and "miss" if that is outside the interval."""
    predicted, low, high = (float(row[name]) for name in ("predicted", "low", "high"))
    found = interval(y)
    return [shown((predicted, low, high)), shown(found), "" if low < found[0] < high else "miss"]


def table(rows: list[dict], found: dict) -> str:
    """For each arm the predicted and the found effect, in points."""
    cells = []
    for row in rows:
        seen = "seen" if row["arm"] in SEEN else ""
        cells.append([f"`{row['arm']}`", seen, *beside(row, found[row["arm"]])])
    return markdown(["arm", "", "predicted", "found", ""], cells)


def judged(rows: list[dict], found: dict) -> str:
    """The line's mean squared error and that of "no effect", over the arms not seen before."""
    new = [row for row in rows if row["arm"] not in SEEN]
    y = np.array([np.nanmean(found[row["arm"]]) for row in new])
    line = np.array([float(row["predicted"]) for row in new])
    error, none = (100**2 * np.mean(z**2) for z in (line - y, y))
    return f"the line's mean squared error is {error:.2f}, that of no effect {none:.2f}"


if __name__ == "__main__":
    text = "# Does the base model foretell what training brings? studies/prediction.py says how.\n"
    for task in ("add", "mul"):
        rows = at(read_rows(ROWS), task=task)
        found = {row["arm"]: effects(task, [row["arm"]]) for row in rows}
        text += f"\n## {task}\n\n{table(rows, found)}\n\n{task}: {judged(rows, found)}\n"
    publish(ROWS, text)
