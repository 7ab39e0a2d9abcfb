"""The corpus itself: every row is tested, every test's row exists, and the page of the docs shows them."""

from __future__ import annotations

from tests.false_passes.corpus import HERE, all_rows, held_by, page

LISTED = {f"FP{number:02}" for number in [*range(1, 17), *range(20, 54)]}
"""Every false pass that was met so far; FP17 to FP19 were never given out."""


def test_the_corpus_lacks_no_row() -> None:
    ids = [row.id for row in all_rows()]
    assert len(ids) == len(set(ids))
    assert set(ids) == LISTED


def test_each_row_has_a_test_and_each_test_a_row() -> None:
    assert set(held_by()) == LISTED


def test_the_page_of_the_docs_is_the_one_that_is_generated() -> None:
    shown = (HERE.parents[1] / "docs/evidence/false_passes.md").read_text()
    assert shown == page(), "run: make docs"


def test_the_page_is_a_table_per_family_and_names_the_tests() -> None:
    lines = page().splitlines()
    tests = held_by()
    for row in all_rows():
        [line] = [line for line in lines if line.startswith(f"| {row.id} |")]
        assert row.evidence in line and row.right in line
        assert f"[{tests[row.id][0].partition('::')[0]}]" in line
    assert page().count("\n## ") == len({row.family for row in all_rows()})
