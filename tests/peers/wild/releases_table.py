"""Draws the tables of docs/evidence/releases.md from what releases.json holds.

python -m tests.peers.wild.releases_table docs/evidence/releases.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.peers.wild.releases import (
    KNOWN,
    RECORD,
    RELEASES,
    Found,
    known_bug,
    law_of,
    name_of,
    unknown,
    without_record,
)
from tests.peers.wild.table import between_marks

from seatrial.targets.common.fixed_bugs import FixedBug

HEADER = (
    "| release | files of | over | adapters | component gone | not covered | laws held | broken as declared "
    "| broken by a known bug | broken otherwise | Blocked | without a record |",
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)
MANY = 100
"""Names of which a row says how many there are of each kind."""
BUGS = ("| what was wrong | fixed in | adapters | laws | in |", "|---|---|---|---|---|")


def drawn(page: str) -> str:
    """Return the page with both tables drawn anew."""
    recorded: Mapping[str, Found] = json.loads(RECORD.read_text(encoding="utf-8"))
    releases = [*HEADER, *(_row(entry, recorded[name_of(entry)]) for entry in RELEASES)]
    return between_marks(between_marks(page, "releases", releases), "bugs", [*BUGS, *_bugs(recorded)])


def _row(entry: Mapping[str, Any], found: Found) -> str:
    there = {name: row for name, row in found.items() if "held" in row}
    cells = (
        _plain(name_of(entry)),
        entry["date"].isoformat(),
        "itself" if len(entry["installed"]) == 1 else _plain(entry["installed"][1]),
        sum(row["held"] + len(row["declared"]) + len(row["broken"]) > 0 for row in there.values()),
        _names(found, "gone"),
        _names(found, "uncovered"),
        sum(row["held"] for row in there.values()),
        sum(len({law_of(one) for one in row["declared"]}) for row in there.values()),
        sum(
            len({law_of(one) for one in row["broken"] if known_bug(entry, name, one)})
            for name, row in there.items()
        ),
        ", ".join(unknown(entry, found)) or "0",
        sum(len(row["blocked"]) for row in there.values()),
        sum(len(without_record(entry, found, thorough=thorough)) for thorough in (False, True)),
    )
    return f"| {' | '.join(map(str, cells))} |"


def _names(found: Found, why: str) -> str:
    names = sorted(name for name, row in found.items() if why in row)
    if len(names) > MANY:
        return ", ".join(f"{kind} ({count})" for kind, count in Counter(n.split()[0] for n in names).items())
    return ", ".join(names) or "none"


def _bugs(recorded: Mapping[str, Found]) -> Iterator[str]:
    """Yield a row for each known bug that was met, with the releases that have it."""
    met: dict[FixedBug, list[str]] = defaultdict(list)
    laws: dict[FixedBug, set[str]] = defaultdict(set)
    for entry in RELEASES:
        for adapter, row in recorded[name_of(entry)].items():
            for law in (*row.get("broken", []), *row.get("declared", [])):
                bug = known_bug(entry, adapter, law)
                if bug is not None:
                    met[bug] += [_plain(name_of(entry))]
                    laws[bug] |= {law.partition("/")[0]}
    for bug in KNOWN:
        if bug in met:
            cells = (
                bug.what,
                f"{bug.target} {bug.before}",
                ", ".join(bug.adapters),
                ", ".join(sorted(laws[bug])),
                ", ".join(dict.fromkeys(met[bug])),
            )
            yield f"| {' | '.join(cells)} |"


def _plain(name: str) -> str:
    return name.replace("==", " ").replace("transformers-", "transformers ")


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(drawn(path.read_text(encoding="utf-8")), encoding="utf-8")
