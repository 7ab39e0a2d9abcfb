"""The page on real bugs says what was recorded, and the record is of the releases that are listed."""

import json
from pathlib import Path

import pytest
from tests.peers.wild.runner import ORDINARY, PAIRS, RECORD, SIDES
from tests.peers.wild.table import drawn

ROWS = {row["name"]: row for row in json.loads(RECORD.read_text(encoding="utf-8"))}


def test_the_table_is_the_one_that_the_record_gives(repository: Path) -> None:
    """Drawn anew, the page is as it stands."""
    page = (repository / "docs/evidence/wild.md").read_text(encoding="utf-8")
    assert drawn(page) == page
    assert all(f"| {pair['name']} |" in page for pair in PAIRS)


@pytest.mark.parametrize("pair", PAIRS, ids=[pair["name"] for pair in PAIRS])
def test_the_record_is_of_these_releases_and_shows_both_ends(pair: dict) -> None:  # type: ignore[type-arg]
    """The law that should tell is broken on one; the other breaks nothing that is not declared, with the reason."""
    row = ROWS[pair["name"]]
    assert {side: row[side] for side in SIDES} == {side: pair[side] for side in SIDES}
    assert pair["law"] in row["buggy_breaks"]
    assert row["fixed_breaks"] == []
    assert set(pair.get("residuals", {}).values()) <= set(row["fixed_declares"])
    assert pair["law"] not in pair.get("residuals", {})


def test_many_pairs_run_over_one_environment() -> None:
    """Of three stacks and more."""
    assert len(ORDINARY) >= 8
    assert len({pair["target"] for pair in ORDINARY}) >= 3
