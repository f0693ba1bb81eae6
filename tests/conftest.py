"""What the tests of whole runs share: runs so small that each takes a tenth of a second."""

import csv
import shutil
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import train  # noqa: E402

SMALL = "--layers 1 --width 16 --steps 2 --prompts 8 --group-size 4 --device cpu".split()
torch.set_num_threads(1)  # the tensors are tiny; more threads only wait for each other


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Few problems and almost no warm-up; so a response counts as correct if its length is odd."""
    patch.setattr(train, "WARM_UP", dict.fromkeys(train.TASKS, (0.0, 1.0)))  # ends after 20 steps
    patch.setattr(train, "DRAWS", 40)
    patch.setattr(train.Task, "reward", lambda task, problem, response: len(response) % 2.0)


def read_metrics(folder: Path) -> list[dict]:
    """The rows of metrics.csv without their seconds; each must be whole and in its place."""
    text = (folder / "metrics.csv").read_bytes().decode()
    rows = list(csv.DictReader(text.splitlines()))
    assert text.endswith("\r\n") and all(None not in row.values() for row in rows)
    assert [row["step"] for row in rows] == [str(step + 1) for step in range(len(rows))]
    assert all(row.pop("seconds") for row in rows)
    return rows


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """The base checkpoint that most runs here start from, beside a finished run of no steps."""
    out = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        assert train.main([*SMALL, "--steps", "0", "--out", str(out)]) == 0
    return next(out.glob("*.pt"))


@pytest.fixture
def out(base, tmp_path) -> Path:
    """An output folder that has the base checkpoint."""
    folder = tmp_path / "out"
    folder.mkdir()
    shutil.copy(base, folder)
    return folder


@pytest.fixture
def run(monkeypatch, tmp_path):
    """run("--variant nthr") gives the exit status of a small run with its files in tmp_path/out."""
    shrink(monkeypatch)
    small = [*SMALL, "--out", str(tmp_path / "out")]
    return lambda arguments="": train.main(small + arguments.split())


@pytest.fixture
def folder(tmp_path):
    """folder("--variant nthr") is that of this small run."""
    small = [*SMALL, "--out", str(tmp_path / "out")]

    def of(arguments="") -> Path:
        args = train.parse_arguments(small + arguments.split())
        return Path(args.out, args.name)

    return of


@pytest.fixture
def loop(monkeypatch, out):
    """loop("--variant nthr") gives a small base model and the loop over steps that trains it."""

    def prepare(arguments: str):
        args = train.parse_arguments([*SMALL, "--out", str(out), *arguments.split()])
        model = train.base_model(args)
        return model, train.train(args, model)

    shrink(monkeypatch)
    return prepare
