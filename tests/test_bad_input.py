"""Bad input: one line on standard error, exit status 2, and nothing written or changed."""

import math
from pathlib import Path

import pytest
import torch

from advantages import VARIANTS
from train import TASKS

BAD = {  # flag: values
    "--variant": ["nope", "GRPO", ""],
    "--task": ["wall", ""],
    "--device": ["tpu", "cuda:99"],
    "--aggregate": ["mean", "Token", ""],
    "--group-size": ["1", "-8", "2.5", "two", ""],
    "--steps": ["-1", "1.5", "nan", "²", ""],
    "--lr": ["0", "-1", "nan", "inf", "-inf", "1e999", "x"],
    "--temperature": ["0", "-1", "nan", "inf"],
    "--clip-low": ["-0.1", "1.1", "nan"],
    "--seed": ["-1", "1e3", "x", "99999999999999999999"],
    "--width": ["6", "3.5", str(2**44)],
    "--nope": ["1", ""],
    "7": [""],
}
BAD |= dict.fromkeys(["--layers", "--prompts", "--minibatches", "--threads"], ["0", "x"])
BAD |= {"--base-seed": ["-1"], "--kl": ["-1", "nan", "inf"], "--clip-high": ["-0.1", "inf", "nan"]}
CHOICES = {"--variant": VARIANTS, "--task": TASKS, "--device": ["cpu"], "--aggregate": ["response"]}


def contents(folder: Path) -> dict:
    """Everything below a folder: what is in each file, None for a folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(status: int, capsys) -> str:
    """The one line on standard error that bad input gets."""
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert printed.err.endswith("\n") and printed.err.count("\n") == 1, printed.err
    return printed.err


@pytest.mark.parametrize("flag, value", [(flag, value) for flag in BAD for value in BAD[flag]])
def test_bad_arguments_are_refused(flag, value, run, out, folder, capsys):
    """A traceback, a message without the valid choices, work or a lost run before the check."""
    earlier = folder() / "summary.json"
    earlier.parent.mkdir()
    earlier.write_text("an earlier run")
    before = contents(out)
    error = refused(run(f"{flag} {value}"), capsys)
    assert flag.strip("-").split("-")[0] in error
    assert value == "" or all(choice in error for choice in CHOICES.get(flag, []))
    assert contents(out) == before


@pytest.mark.parametrize("kind", ["first half", "NaN", "a missing weight", "of another name"])
def test_damaged_base_models_are_refused(kind, base, run, out, capsys):
    """Training on foreign or broken weights, or overwriting a file that cannot be read."""
    assert run("--steps 1") == 0  # a finished run, which must stay as it is
    weights = torch.load(base, weights_only=True)[base.name]
    name = base.name + "x" * (kind == "of another name")
    if kind == "NaN":
        weights["embed_token.weight"] *= math.nan
    if kind == "a missing weight":
        del weights["embed_token.weight"]
    torch.save({name: weights}, out / base.name)
    if kind == "first half":
        (out / base.name).write_bytes(base.read_bytes()[:9999])
    before = contents(out)
    capsys.readouterr()
    assert base.name in refused(run(), capsys)
    assert contents(out) == before


@pytest.mark.parametrize("out_flag", ["file", "file/below", "file/far/below", "in_the_way"])
def test_an_output_folder_that_cannot_be_is_refused(out_flag, run, base, folder, tmp_path, capsys):
    """Finding out only after the warm-up."""
    (tmp_path / "in_the_way").mkdir()
    (tmp_path / "in_the_way" / base.name).write_bytes(base.read_bytes())
    for path in (tmp_path / "file", tmp_path / "in_the_way" / folder().name):
        path.write_text("mine")
    before = contents(tmp_path)
    refused(run(f"--out {tmp_path / out_flag}"), capsys)
    assert contents(tmp_path) == before
