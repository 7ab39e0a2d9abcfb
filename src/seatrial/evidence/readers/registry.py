"""Which readers there are: each is a module that says how it knows its format and what it is preferred to.

A module in this folder with NAME, PRIORITY, `claims` and `read` is a reader. A package of one's own adds another by
an entry point of the group `seatrial.readers` that names such a module:

    [project.entry-points."seatrial.readers"]
    mylog = "mypackage.mylog"
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from seatrial.errors import BlockedError
from seatrial.evidence import readers
from seatrial.evidence.runlog import RunLog

GROUP = "seatrial.readers"
"""Group of the entry points by which other packages add readers."""

SIGNATURE = 50
"""Priority from which on files of a format cannot be mistaken for anything else: they are named where not read."""

_PARTS = ("NAME", "PRIORITY", "claims", "read")


class Reader(Protocol):
    """A module that reads one format."""

    NAME: str
    PRIORITY: int
    """A folder is read by the reader of highest priority that finds its format there; see `SIGNATURE`."""

    def claims(self, file: Path, head: bytes) -> bool:
        """Say whether a file has this format; `head` is its first bytes, decompressed."""

    def read(self, root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
        """Read files of this format as one log."""


@cache
def all_readers() -> tuple[Reader, ...]:
    """Return every reader, the preferred first.

    Raises:
        BlockedError: a reader that another package adds cannot be imported, or is none.
    """
    found = [*_own(), *(_added(point) for point in entry_points())]
    return tuple(sorted(found, key=lambda reader: (-reader.PRIORITY, reader.NAME)))


def entry_points() -> list[EntryPoint]:
    """Return what installed packages add; the working directory, which Python may search too, is no place for them."""
    here = Path.cwd()
    places = [place for place in sys.path if place and Path(place) != here]
    return [point for found in distributions(path=places) for point in found.entry_points.select(group=GROUP)]


def _own() -> Iterator[Reader]:
    for item in pkgutil.iter_modules(readers.__path__):
        name = f"{readers.__name__}.{item.name}"
        if name != __name__:
            module = importlib.import_module(f"{name}.folder" if item.ispkg else name)
            if not _lacking(module):
                yield cast("Reader", module)


def _added(point: EntryPoint) -> Reader:
    what = f"reader {point.name} ({point.value}) of {point.dist.name if point.dist else 'an unknown package'}"
    try:
        module = point.load()
    except ImportError as error:
        raise BlockedError(f"{what} cannot be imported: {error}; repair or uninstall that package") from error
    lacking = _lacking(module)
    if lacking:
        raise BlockedError(
            f"{what} lacks {', '.join(lacking)}; see docs/use/logs.md, or uninstall that package"
        )
    return cast("Reader", module)


def _lacking(module: ModuleType) -> list[str]:
    return [part for part in _PARTS if not hasattr(module, part)]
