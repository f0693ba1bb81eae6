"""Without these tests links could lead nowhere, and the README could show what is not so."""

import inspect
import json
import re
from pathlib import Path

import pytest
import torch

import advantages
import test_grpo
from advantages import VARIANTS, standardise
from grpo import policy_loss, token_weights, update
from train import COLUMNS

ROOT = Path(__file__).parent.parent
FOLDERS = ("course", "studies", "tools", "tests")  # not git's list: an archive has none
WHERE = [f"{folder}{form}" for folder in ("", "*/", "*/*/") for form in ("*.md", "*.ipynb")]
FOUND = [path.relative_to(ROOT) for form in WHERE for path in ROOT.glob(form)]
PAGES = [str(path) for path in FOUND if path.parts[0] in FOLDERS or len(path.parts) == 1]


def prose(path: Path) -> str:
    """The Markdown of a page, or of a notebook's cells, without its blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ +(.+?) *$", prose(path), re.MULTILINE)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(name):
    """A page was moved or a heading reworded, and a link still has the old name."""
    page = ROOT / name
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    links = re.findall(r"\]\(\s*<?([^)\s>]+)", text) + re.findall(r'(?:src|href)="(.*?)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{name}: {link}"
        if anchor and target.suffix in (".md", ".ipynb"):
            assert anchor in anchors(target), f"{name}: {link}"


@pytest.mark.parametrize("name", PAGES)
def test_no_paragraph_turns_into_a_list(name):
    """A line of a paragraph begins with "1." or "12)" or a dash, and may be shown as an item."""
    before = ""
    for line in prose(ROOT / name).splitlines():
        begins = re.match(r"(\d+[.)]|[-+*]) ", line)
        fine = not begins or not before or re.match(r"(\d+[.)]|[-+*]|  )", before)
        assert fine, f"{name}: {line}"
        before = line.strip() and line


README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"(?:^    .*\n|\n(?=    ))+", README, re.MULTILINE)


def test_lines_of_the_readme_are_the_algorithm():
    """Its loss is a mean over other tokens than ours, or its norm limit is not that of `update`."""
    [block] = [inspect.cleandoc(block) for block in BLOCKS if "clip_grad_norm_" in block]
    *lines, limit = block.splitlines()
    rollout = test_grpo.random_rollout([[1, 0, 0, 1], [0, 0, 0, 1]])
    rewards = rollout.rewards[..., None]
    logprobs = rollout.logprobs + torch.randn_like(rollout.logprobs)
    names = {"torch": torch, "rewards": rewards, "mean": rewards.mean(1, keepdim=True)}
    names |= {"deviation": rewards.std(1, correction=0, keepdim=True), "logprobs": logprobs}
    names |= {"old_logprobs": rollout.logprobs, "mask": rollout.mask, "N": rollout.mask.sum()}
    exec("\n".join(lines), names)
    A = standardise(rollout.rewards)[..., None]
    ours = (logprobs, rollout.logprobs, A.expand_as(logprobs), token_weights(rollout.mask))
    test_grpo.close(names["A"], A)
    test_grpo.close(names["loss"], policy_loss(*ours)[0], 1e-6)
    assert f", {inspect.signature(update).parameters['max_grad_norm'].default})" in limit


def test_the_variants_of_the_readme():
    """A variant or its paper is missing, or its idea is not that of the code."""
    cells = re.findall(r"(?m)^\| \*.+\* \| (.+) \|$", README)
    ideas = [idea.split(": ", 1) for cell in cells for idea in cell.split("<br>")]
    assert sorted(re.findall(r"`(\w+)`", head)[0] for head, _ in ideas) == sorted(VARIANTS)
    for head, idea in ideas:
        first, source, *_ = inspect.getdoc(VARIANTS[re.findall(r"`(\w+)`", head)[0]]).splitlines()
        assert idea == first
        assert re.findall(r"/abs/([\d.]+)", head) == re.findall(r"arXiv (\d{4}\.\d{5})", source)[:1]
        assert ("¹" in head) == source.startswith("Experiment")


def test_the_terminal_of_the_readme():
    """Rows or results of another run than the one whose whole output is kept."""
    kept = (ROOT / "studies" / "results" / "terminal.txt").read_text(encoding="utf-8")
    [end] = [block for block in BLOCKS if "before -> after" in block]
    assert inspect.cleandoc(end) in kept
    [rows] = [
        inspect.cleandoc(block).splitlines() for block in BLOCKS if "before training" in block
    ]
    problem, *responses = rows
    assert f"response to {problem}" in kept and len(responses) == 3
    for step, row in zip((0, 25, 400), responses):
        response = row.split("    ")[0]
        assert re.search(rf"^ *{step} .*  {re.escape(response)}( rewarded)?$", kept, re.MULTILINE)


def test_the_pictures_of_the_readme_are_whole():
    """A <source> that begins a line ends the paragraph before it, so no picture has it."""
    blocks = [block for block in README.split("\n\n") if "<picture>" in block]
    begins = [block.splitlines()[0] for block in blocks if re.search(r"(?m)^ *<source", block)]
    assert len(blocks) == 2 and all(re.match("<p>|<picture>$", line) for line in begins)


def test_own_variant_of_the_readme():
    """The example that readers copy does not run, or its formula is another one."""
    [block] = [inspect.cleandoc(block) for block in BLOCKS if "def neg_only" in block]
    function, line, _ = block.split("\n\n")
    there = dict(vars(advantages))
    exec(function, there)
    formula = eval("{" + line.split("#")[0] + "}", vars(test_grpo).copy())
    rollout = test_grpo.random_rollout([[1, 0, 0, 1], [0, 0, 0, 1]])
    trained = advantages.with_advantages(rollout, there["neg_only"])
    test_grpo.close(trained.A, test_grpo.by_loops(rollout, formula["neg_only"]))


def test_columns_of_the_metrics_are_explained():
    page = (ROOT / "tools" / "README.md").read_text(encoding="utf-8")
    table = page.partition("| column | meaning |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == COLUMNS.split()
