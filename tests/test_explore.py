"""The page of tools.explore in a real browser: its numbers are those of the variants."""

import html
import re
import shutil
import subprocess

import pytest
import torch

from advantages import VARIANTS
from test_grpo import FAIL, MIXED, sample, tiny_gpt
from tools import explore

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --dump-dom"


@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")
def test_the_page_shows_what_the_variants_say(tmp_path):
    """Numbers of another token, response, step, level or variant; a mark on what is correct."""
    kept = []
    says = {name: VARIANTS[name] for name in explore.NAMES}
    for step, share in ((0, 0.1), (25, 0.3)):
        x = sample(tiny_gpt(), (2, 5), seed=step)
        x.rewards = torch.tensor([MIXED, FAIL])
        row = {"step": step, "sampled_by_level": {2: share, 5: 0.4}}
        kept.append(row | {"groups": explore.records(x)})
    path = tmp_path / "page.html"
    path.write_text(explore.page({"add-grpo": {"problems": x.problems, "kept": kept}}))
    command = [BROWSER, *FLAGS.split(), "--no-first-run", f"--user-data-dir={tmp_path}"]
    for i, level, variant in ((0, 2, "nthr"), (1, 5, "likelihood")):
        address = f"{path.as_uri()}#step=25&level={level}&variant={variant}&token=2.1"
        shown = subprocess.check_output([*command, address], text=True, timeout=300)
        shown = html.unescape(shown).replace("\u2212", "-")
        cells = re.findall(r'aria-label="(.), (incorrect, )?advantage (.*?)"', shown)
        texts = [(y + "$")[:n] for y, n in zip(x.texts[i], x.mask[i].sum(-1))]
        solution = f"{x.problems[i].solution}$".ljust(99, "?")
        marks = [(c, c != solution[t]) for y in texts for t, c in enumerate(y)]
        assert [(character, bool(mark)) for character, mark, _ in cells] == marks
        A = says[variant](x).A[i][x.mask[i]].tolist()
        assert [float(number) for *_, number in cells] == pytest.approx(A, abs=0.0051)
        for name, function in says.items():
            number = float(re.search(rf">{name} (\S+?)</", shown)[1])
            assert number == pytest.approx(function(x).A[i, 1, 0].item(), abs=0.0051)
        assert f"pi = {x.logprobs[i, 1, 0].exp():.2f}." in shown
        assert "by digits: 2: 30, 5: 40." in shown
