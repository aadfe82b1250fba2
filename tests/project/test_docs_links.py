"""Links in Markdown lead to files and headings that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / ".github").rglob("*.md")]
)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """Return the text without code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    found: set[str] = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for heading in re.findall(r"^#+ +(.*?) *$", text, flags=re.M):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        number = 1
        name = words
        while name in found:
            name = f"{words}-{number}"
            number += 1
        found.add(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Seen to fail with a letter of a file's name, and of an anchor, changed."""
    broken = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_readme_names_every_page() -> None:
    """Each page is linked from the README or from docs/index.md. Seen to fail with a new page."""
    linked = {
        (start.parent / link.partition("#")[0]).resolve()
        for start in (ROOT / "README.md", ROOT / "docs" / "index.md")
        for link in LINK.findall(prose(start))
    }
    # Pages of the site that show a file above docs/.
    shown = {"contributing.md", "changelog.md"}
    pages = {p for p in (ROOT / "docs").glob("*.md") if p.name not in {"index.md", *shown}}
    assert sorted(page.name for page in pages - linked) == []
