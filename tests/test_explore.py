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
TEMPLATE = (explore.ROOT / "studies" / "explore.html").read_text()


def opened(page: str, address: str, folder) -> str:
    """What the browser makes of the page at this address."""
    path = folder / "page.html"
    path.write_text(page)
    command = [BROWSER, *FLAGS.split(), f"--user-data-dir={folder}", "--dump-dom"]
    options = {"capture_output": True, "text": True, "check": True, "timeout": 300}
    done = subprocess.run([*command, f"{path.as_uri()}#{address}"], **options)
    return html.unescape(done.stdout).replace("\u2212", "-")


@pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")
@pytest.mark.parametrize("variant, i", [("nthr", 0), ("critic", 0), ("likelihood", 1)])
def test_the_page_shows_what_the_variants_say(variant, i, tmp_path):
    """Numbers of another token, response, step, level or variant; a wrong sign or scale."""
    runs = {"steps": [0, 25], "accuracy": [[0.1, 0.2], [0.3, 0.4]], "prompts": ["1+2=", "3+4="]}
    rollouts = [sample(tiny_gpt(), (2, 8), seed=seed) for seed in (0, 1)]
    for x in rollouts:
        x.rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
        x.token_bias = torch.randn(x.mask.size())
        x.answer_likelihood = torch.rand(x.rewards.size())
    runs["groups"] = [explore.records(x) for x in rollouts]
    page = explore.page({"grpo": runs}, [2, 8])
    address = f"run=grpo&step=25&level={(2, 8)[i]}&variant={variant}&token=2.1"
    shown = opened(page, address, tmp_path)
    cells = re.findall(r'aria-label="(.), advantage (.*?)"', shown)
    rows = zip(x.texts[i], x.mask[i].sum(-1))
    texts = [(text.replace("<pad>", "_") + "$")[:length] for text, length in rows]
    assert "".join(character for character, _ in cells) == "".join(texts)
    A = VARIANTS[variant](x)[i][x.mask[i]]
    assert [float(number) for _, number in cells] == pytest.approx(A.tolist(), abs=0.0051)
    for name, function in VARIANTS.items():
        number = float(re.search(rf">{name} (\S+?)</", shown)[1])
        assert number == pytest.approx(function(x)[i, 1, 0].item(), abs=0.0051)
    assert f"pi = {x.logprobs[i, 1, 0].exp():.3f}." in shown
    assert "by terms: 2: 30, 8: 40" in shown
    if variant == "nthr":
        s = nthr_scores(x)[0]
        tau = min(s[k].sum() / x.mask[0, k].sum() for k in (0, 3))
        assert f"s = {s[1, 0]:.2f}, tau = {tau:.2f}." in shown
    assert "damaged" in opened(page[: len(page) - 200], address, tmp_path).split("<main")[0]


def test_the_page_is_of_the_template():
    """A template that was changed, and a page that was not made again."""
    assert explore.PAGE.read_text().startswith(TEMPLATE.split("DATA")[0])
