"""Bugs of earlier releases of stacks that later ones fix, by names of adapters: see `targets/fixed_bugs.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from seatrial.relations.expected import OF_PARTS

TABLE = Path(__file__).parents[1] / "fixed_bugs.toml"


@dataclass(frozen=True, kw_only=True)
class FixedBug:
    """A bug that a release has fixed."""

    what: str
    """What was wrong."""
    target: str
    """The target whose adapters see it, and the package whose release fixes it."""
    adapters: tuple[str, ...]
    """Names, where `*` is any text."""
    laws: tuple[str, ...]
    """`RELATION/law`, or `RELATION/law::part` for a part of a law, where `*` is any text."""
    before: str
    """The first release without it, or the end of what was looked at."""
    since: str = "0"
    """The first release with it, of which one knows: earlier ones may break the laws for other reasons."""
    shown: tuple[str, ...] = ()
    """Adapters whose laws fail all the same, with the bug as explanation."""

    def __str__(self) -> str:
        """Return what was wrong and which release fixes it."""
        return f"{self.what}, fixed in {self.target} {self.before}"

    def is_of(self, target: str, adapter: str) -> bool:
        """Return whether an adapter of a target may see it."""
        return target == self.target and any(fnmatchcase(adapter, name) for name in self.adapters)

    def breaks(self, law: str) -> bool:
        """Return whether it breaks `RELATION/law`, or that part of a law; one of a whole law breaks all its parts."""
        whole = law.partition(OF_PARTS)[0]
        return any(fnmatchcase(one, pattern) for one in (law, whole) for pattern in self.laws)

    def keys(self, laws: Sequence[str]) -> list[str]:
        """Return the keys of `expected_failures` that stand for it, of these laws."""
        found = []
        for pattern in self.laws:
            law, separator, parts = pattern.partition(OF_PARTS)
            found += [one + separator + parts for one in laws if fnmatchcase(one, law)]
        return found


@cache
def all_fixed_bugs() -> tuple[FixedBug, ...]:
    """Return the bugs of the table."""
    rows: list[dict[str, Any]] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["bug"]
    return tuple(
        FixedBug(
            what=row["what"],
            target=row["target"],
            adapters=tuple(row["adapters"]),
            laws=tuple(row["laws"]),
            before=row["before"],
            since=row.get("since", "0"),
            shown=tuple(row.get("shown", ())),
        )
        for row in rows
    )
