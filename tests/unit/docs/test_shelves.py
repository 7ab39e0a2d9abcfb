"""The three shelves of docs/: short pages of use that begin with a command, and links that lead to a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatrial.cli import COMMANDS
from seatrial.trials.plan import all_trials

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
USE = sorted((DOCS / "use").glob("*.md"))
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]
LINK = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`\(?", re.DOTALL)


def test_there_are_at_most_twenty_pages_of_use() -> None:
    assert len(USE) <= 20


@pytest.mark.parametrize("page", USE, ids=lambda page: page.stem)
def test_a_page_of_use_is_short_and_begins_with_a_command(page: Path) -> None:
    """Title, command, what it prints."""
    text = page.read_text()
    assert len(text.splitlines()) <= 200
    title, empty, fence, command, output = text.splitlines()[:5]
    assert title.startswith("# ")
    assert (empty, fence) == ("", "```console")
    assert re.match(r"\$ (seatrial|refrl|pytest|python) ", command)
    assert output != "```"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_to_a_heading_leads_to_one(page: Path) -> None:
    for path, anchor in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if not re.match(r"[a-z]+:", path):
            target = page.parent / path if path else page
            assert anchor in anchors(target), f"{path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that MkDocs and GitHub give to the headings of a page."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = (heading.lower().replace("`", "") for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    found = set()
    for heading in headings:
        kept = re.sub(r"[^\w\s-]", "", heading).strip()
        found |= {re.sub(r"[-\s]+", "-", kept), kept.replace(" ", "-")}
    return found


def test_the_first_page_names_every_command() -> None:
    named = set(re.findall(r"`seatrial ([a-z]+)`", (DOCS / "index.md").read_text()))
    assert named == set(COMMANDS)


def test_the_page_of_run_has_every_trial_at_its_level() -> None:
    rows = re.findall(r"^\| (\d) \| (`[^|]+) \|", (DOCS / "use/run.md").read_text(), re.MULTILINE)
    listed = {(int(level), name) for level, names in rows for name in re.findall(r"`([^`]+)`", names)}
    assert listed == {(trial.level, trial.name) for trial in all_trials()}


def test_messages_of_the_code_name_pages_that_exist() -> None:
    for source in (ROOT / "src").rglob("*.py"):
        for name in re.findall(r"\bdocs/[a-z_/]+\.md", source.read_text()):
            assert (ROOT / name).is_file(), f"{source}: {name}"
