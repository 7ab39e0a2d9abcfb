"""The generated pages that are committed are those that the tables give now."""

from __future__ import annotations

from pathlib import Path

import pytest

from seatrial.cli.docs import pages
from seatrial.relations.registry import all_relations
from seatrial.vocabulary import stacks

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGES = pages(DOCS)


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_the_generated_one(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name], "run: make docs"


def test_nothing_is_left_out() -> None:
    for stack in stacks().values():
        for tag, name in stack.tags.items():
            assert f"| `{tag}` | `{name}` |" in PAGES["vocabulary.md"]
    for relation in all_relations():
        for law in relation.laws:
            assert f"| {law.name.replace('|', chr(92) + '|')} |" in PAGES["relations.md"]
