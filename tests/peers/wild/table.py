"""Draws the table of docs/evidence/wild.md from what recorded.json holds.

python -m tests.peers.wild.table docs/evidence/wild.md
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.peers.wild.runner import OF_EVERY_RUN, PAIRS, RECORD

HEADER = (
    "| pair | releases | bug | flagged | the law that fires | fixed release clean | runs |",
    "|---|---|---|---|---|---|---|",
)


def drawn(page: str) -> str:
    """Return the page with the table between its marks drawn anew."""
    rows = {row["name"]: row for row in json.loads(RECORD.read_text(encoding="utf-8"))}
    return between_marks(page, "table", [*HEADER, *(_row(pair, rows[pair["name"]]) for pair in PAIRS)])


def between_marks(page: str, name: str, lines: Iterable[str]) -> str:
    """Return a page with what stands between the marks of a table replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = "\n".join([begin, *lines, end])
    return re.sub(f"{begin}.*{end}", lambda _: text, page, flags=re.DOTALL)


def _row(pair: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    flagged = "yes" if pair["law"] in found["buggy_breaks"] else "no"
    clean = f"no: {', '.join(found['fixed_breaks'])}" if found["fixed_breaks"] else "yes"
    notes = list(dict.fromkeys([*pair.get("residuals", {}).values(), *found["fixed_declares"]]))
    clean = f"{clean} ({'; '.join(notes)})" if notes else clean
    releases = " to ".join(_release(found[side]) for side in ("buggy", "fixed"))
    runs = "always" if pair["name"] == OF_EVERY_RUN else "nightly"
    cells = (pair["name"], releases, pair["what"], flagged, f"`{pair['law']}`", clean, runs)
    return f"| {' | '.join(cells)} |"


def _release(words: Iterable[str]) -> str:
    return next(iter(words)).replace("==", " ").replace("transformers-", "transformers ")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(drawn(path.read_text(encoding="utf-8")), encoding="utf-8")
