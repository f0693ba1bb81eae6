"""What training brings, in samples: python -m studies.samples

docs/rule.md has the rule. docs/tables/samples-prediction.csv has the effect that is predicted for
grpo with each number of prompts: the slope of effect on ln worth between seven variants, times
ln(P / 64). The slope is that of the line through the seven means over base models
(studies.within, "between rules"). In its interval base models are drawn with replacement, and the
seven rules too; a draw has one slope. So it is the interval of the slope alone: how the runs with P
prompts scatter is not in it. The file is written once, before the first run; a file that is there
is not changed.
"""

import numpy as np

from studies.common import TABLES, write_rows
from studies.ruler import DEFAULT, PROMPTS, between, estimate, resampled
from studies.within import SEVEN, effects, log_worth

PREDICTION = TABLES / "samples-prediction.csv"


def predictions(task: str) -> list[dict]:
    """The effect of P prompts by the slope of effect on ln worth between rules, and its interval."""
    _, slopes = between(*resampled(log_worth(task, SEVEN), effects(task, SEVEN), rules=True))
    rows = []
    for P in PROMPTS:
        if P != DEFAULT:
            found = estimate(slopes * np.log(P / DEFAULT))
            rows.append(
                {"task": task, "prompts": P} | dict(zip(("predicted", "low", "high"), found))
            )
    return rows


def predict() -> None:
    """Writes the predictions, unless they are there."""
    if not PREDICTION.exists():
        write_rows(PREDICTION, [row for task in ("add", "mul") for row in predictions(task)])


if __name__ == "__main__":
    predict()
