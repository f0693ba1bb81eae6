"""Faults in the middle of a run: whatever happens, what is left is whole and claims no more."""

import csv
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from crash import FILES, check, read_metrics

import advantages
import grpo
import train

FULL = OSError(28, "No space left on device")
STOP = KeyboardInterrupt()


def nan(result):
    return result * math.nan


def nan_gradient(result):
    result.register_hook(nan)
    return result


# The function that fails: its owner, its name, at which of its calls; how: an exception (half of
# what it writes is left), or what becomes of its result; the exit status, None for an exception;
# whole rows left, None where the fault comes before the loop. A run has 5 steps of 4 mini-batches.
FAULTS = {
    "advantages NaN": (advantages, "standardise", 3, nan, 1, 2),
    "advantages infinite": (advantages, "standardise", 1, lambda result: result + math.inf, 1, 0),
    "gradient NaN": (grpo, "response_logprobs", 10, nan_gradient, 1, 2),
    "critic's loss NaN": (train, "critic_loss", 3, nan, 1, 2),
    "Ctrl-C in the warm-up": (F, "cross_entropy", 2, STOP, 130, None),
    "Ctrl-C in the first evaluation": (train, "accuracy", 1, STOP, 130, None),
    "Ctrl-C while sampling": (train, "sample_rollout", 5, STOP, 130, 2),
    "Ctrl-C in the update": (grpo, "policy_loss", 14, STOP, 130, 3),
    "Ctrl-C in the last evaluation": (train, "likelihood_change", 1, STOP, 130, 4),
    "Ctrl-C while saving": (torch, "save", 1, STOP, 130, 5),
    "disk full at the base model": (torch, "save", 1, FULL, None, None),
    "disk full at row 3": (csv.DictWriter, "writerow", 4, FULL, None, 2),  # the first: the header
    "disk full at model.pt": (torch, "save", 1, FULL, None, 5),
    "disk full at summary.json": (Path, "write_text", 2, FULL, None, 5),
}


def fail_at(call: int, fault, function):
    """The function, but for one of its calls."""
    calls = []

    def failing(*given, **options):
        calls.append(1)
        if len(calls) != call:
            return function(*given, **options)
        if not isinstance(fault, BaseException):
            return fault(function(*given, **options))
        for path in given:
            if isinstance(path, Path):
                path.write_bytes(b"ha")
        raise fault

    return failing


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_leaves(name, base, run, out, capsys, monkeypatch):
    """A traceback, lost rows, files written in part, a summary.json that says all went well."""
    owner, function, call, fault, status, rows = FAULTS[name]
    arguments = "--steps 5 --variant " + ("critic" if "critic" in name else "grpo")
    folder = out / f"sum-{arguments.split()[-1]}-seed0"
    assert run(arguments) == 0  # what an earlier run left must not look like this one's
    if name in ("Ctrl-C in the warm-up", "disk full at the base model"):
        (out / base.name).unlink()
    monkeypatch.setattr(owner, function, fail_at(call, fault, getattr(owner, function)))
    capsys.readouterr()
    if status is None:
        with pytest.raises(OSError, match="No space left"):
            run(arguments)
    else:
        assert run(arguments) == status
        message = capsys.readouterr().err.splitlines()[-1]
        assert f"step {1 if rows is None else rows + 1} of {folder}" in message
        assert status == 130 or "lr" in message
    monkeypatch.undo()
    check(out)  # each file is whole
    assert not (folder / "summary.json").exists()
    assert (folder / "config.json").exists()
    if rows is not None:
        assert len(read_metrics(folder / "metrics.csv")) == rows
    if (out / base.name).exists():
        assert (out / base.name).read_bytes() == base.read_bytes()
    else:
        assert rows is None


def test_running_again_replaces_the_run(run, out, monkeypatch):
    """What an earlier, longer or stopped run left stays, or changes the next one."""
    folder = out / "sum-grpo-seed0"
    assert run("--steps 3") == 0
    metrics = read_metrics(folder / "metrics.csv")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fail_at(1, STOP, torch.save))
        assert run("--steps 5 --lr 0.01") == 130
    assert run("--steps 3") == 0
    assert read_metrics(folder / "metrics.csv") == metrics
    assert {path.name for path in folder.iterdir()} == FILES
