"""The corpus itself: every row is tested, and the page of the docs shows what stands in it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.false_passes.corpus import all_rows, page

HERE = Path(__file__).parent


def test_ids_are_unique_and_each_row_has_a_test() -> None:
    rows = all_rows()
    ids = [row.id for row in rows]
    assert len(ids) == len(set(ids))
    named = set(re.findall(r'"(FP\d\d)"', "".join(path.read_text() for path in HERE.glob("test_*.py"))))
    assert set(ids) <= named


def test_the_page_of_the_docs_is_the_one_that_is_generated() -> None:
    shown = (HERE.parents[1] / "docs/false_passes.md").read_text()
    assert shown == page(), "run: python -m tests.false_passes.corpus > docs/false_passes.md"


def test_the_page_is_a_table_per_family() -> None:
    for row in all_rows():
        assert f"| {row.id} | {row.evidence} |" in page()
    assert page().count("\n## ") == len({row.family for row in all_rows()})
