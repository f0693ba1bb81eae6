"""The page of studies.explore in a real browser: its numbers are those of the variants."""

import html
import re
import shutil
import subprocess

import pytest
import torch

from advantages import VARIANTS, nthr_scores
from test_grpo import sample, tiny_gpt

explore = pytest.importorskip("studies.explore")  # tests.mutation copies the core alone
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = "--headless --no-sandbox --disable-gpu --disable-background-networking --no-first-run"


def opened(page: str, state: str, folder) -> str:
    """What the browser makes of the page at the address that ends in #state."""
    path = folder / "page.html"
    path.write_text(page)
    command = [BROWSER, *FLAGS.split(), f"--user-data-dir={folder}", "--dump-dom"]
    options = {"capture_output": True, "text": True, "check": True, "timeout": 300}
    done = subprocess.run([*command, f"{path.as_uri()}#{state}"], **options)
    return html.unescape(done.stdout).replace("\u2212", "-")


@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")
@pytest.mark.parametrize("variant, i", [("nthr", 0), ("critic", 0), ("likelihood", 1)])
def test_the_page_shows_what_the_variants_say(variant, i, tmp_path):
    """Numbers of another token, response, step, level or variant; a mark on what is correct."""
    kept = []
    for step, share in ((0, 0.1), (25, 0.3)):
        x = sample(tiny_gpt(), (2, 5), seed=step)
        x.rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
        x.token_bias = torch.randn(x.mask.size())
        x.answer_likelihood = torch.rand(x.rewards.size())
        row = {"step": step, "accuracy_sampled_by_level": {2: share, 5: 0.4}}
        kept.append(row | {"groups": explore.records(x)})
    page = explore.page({"add-grpo": {"problems": x.problems, "kept": kept}})
    shown = opened(page, f"step=25&level={(2, 5)[i]}&variant={variant}&token=2.1", tmp_path)
    cells = re.findall(r'aria-label="(.), (incorrect, )?advantage (.*?)"', shown)
    texts = [(y + "$")[:n] for y, n in zip(x.texts[i], x.mask[i].sum(-1))]
    solution = f"{x.problems[i].solution}$".ljust(99, "?")
    marks = [(c, c != solution[t]) for y in texts for t, c in enumerate(y)]
    assert [(character, bool(mark)) for character, mark, _ in cells] == marks
    A = VARIANTS[variant](x)[i][x.mask[i]]
    assert [float(number) for *_, number in cells] == pytest.approx(A.tolist(), abs=0.0051)
    each = {name: float(re.search(rf">{name} (\S+?)</", shown)[1]) for name in VARIANTS}
    assert each == pytest.approx({n: f(x)[i, 1, 0].item() for n, f in VARIANTS.items()}, abs=0.0051)
    assert f"pi = {x.logprobs[i, 1, 0].exp():.2f}." in shown
    s = (100 * nthr_scores(x)[0]).round() / 100
    tau = min(s[k, x.mask[0, k]].mean() for k in (0, 3))
    assert variant != "nthr" or f" s = {s[1, 0]:.2f}, tau = {tau:.2f}." in shown
    assert "by digits: 2: 30, 5: 40." in shown
    assert "damaged" in opened(page[:-200], "", tmp_path).split("<main")[0]
