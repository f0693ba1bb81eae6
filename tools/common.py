"""What two tools need: finished runs, CSV tables, markdown, figures."""

import csv
import json
from pathlib import Path

import torch

import train

ROOT = Path(__file__).parent.parent


def finished(folder: Path) -> tuple:
    """Settings and model of a finished run, on the processor."""
    args = train.Namespace(**json.loads((folder / "summary.json").read_text()))
    args.device = "cpu"
    model = train.new_model(args)
    model.load_state_dict(torch.load(folder / "model.pt", map_location="cpu", weights_only=True))
    return args, model


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; none if there is no such file."""
    text = path.read_text() if path.exists() else ""
    return [*csv.DictReader(text.splitlines())]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def pyplot():
    """matplotlib's pyplot, drawing to files."""
    import matplotlib.pyplot as plt  # here, because some tools do without it

    plt.switch_backend("Agg")
    plt.rcParams.update({"font.size": 10, "axes.spines.top": False, "axes.spines.right": False})
    return plt
