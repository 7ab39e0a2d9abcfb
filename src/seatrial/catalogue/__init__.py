"""The catalogue of silent bugs: what the ids SBnnn in messages of relations, rules and faults refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from seatrial.strict_yaml import read_yaml

_FOLDER = Path(__file__).resolve().parent
SEEN = {
    "curves": "in the curves that runs log",
    "probe": "with one more measurement, such as the gap between sampler and trainer",
    "hidden": "not in curves: only a comparison with a reference or a second run shows it",
}
"""Where a bug shows, in words."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A group of bugs with one usual cause."""

    title: str
    cause: str
    do: str
    """What to do when a check names such a bug."""


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One bug that a public project had."""

    kind: str
    """Key of `kinds`."""
    seen: str
    """Key of `SEEN`."""
    stack: str
    source: str
    """Pull request, issue or commit of that project."""
    what: str


@cache
def bugs() -> Mapping[str, Bug]:
    """Return every bug by its id."""
    return {name: Bug(**fields) for name, fields in _table("bugs").items()}


@cache
def kinds() -> Mapping[str, Kind]:
    """Return every kind by its key."""
    return {name: Kind(**fields) for name, fields in _table("kinds").items()}


def _table(name: str) -> dict[str, Any]:
    table = read_yaml(_FOLDER / f"{name}.yaml", "catalogue")
    assert isinstance(table, dict)
    return table
