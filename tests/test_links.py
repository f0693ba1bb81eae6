"""Relative links of the pages and notebooks lead somewhere, and their paragraphs stay whole."""

import json
import re
from pathlib import Path

import pytest

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
    """A line of a paragraph begins with "1." or with a dash, and is shown as an item of a list."""
    before = ""
    for line in prose(ROOT / name).splitlines():
        begins = re.match(r"(1\.|[-+*]) ", line)
        assert not begins or not before or re.match(r"(1\.|[-+*]|  )", before), f"{name}: {line}"
        before = line.strip() and line
