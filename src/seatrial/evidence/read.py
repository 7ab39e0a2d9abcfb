"""Reads any log that a stack writes: the reader is chosen by what the files contain, not by their names.

A module in `readers` with NAME, PRIORITY, `claims` and `read` is a reader. Another package adds one with an entry
point of the group `seatrial.readers` that names such a module:

    [project.entry-points."seatrial.readers"]
    mylog = "mypackage.mylog"
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import stat
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from seatrial.errors import BlockedError
from seatrial.evidence import readers
from seatrial.evidence.readers.coverage import describe_missing
from seatrial.evidence.readers.opening import head_of
from seatrial.evidence.runlog import Damage, RunLog

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
        module = importlib.import_module(f"{name}.folder" if item.ispkg else name)
        if not _missing_parts(module):
            yield cast("Reader", module)


def _added(point: EntryPoint) -> Reader:
    what = f"reader {point.name} ({point.value}) of {point.dist.name if point.dist else 'an unknown package'}"
    try:
        module = point.load()
    except ImportError as error:
        raise BlockedError(f"{what} cannot be imported: {error}; repair or uninstall that package") from error
    if missing := _missing_parts(module):
        raise BlockedError(
            f"{what} has no {', '.join(missing)}; see docs/use/logs.md, or uninstall that package"
        )
    return cast("Reader", module)


def _missing_parts(module: ModuleType) -> list[str]:
    return [part for part in _PARTS if not hasattr(module, part)]


HEAD_BYTES = 4096
_SPECIAL = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_logs(
    path: Path | str, tags: Collection[str] | None = None, sources: Collection[str] | None = None
) -> RunLog:
    """Read a log file, or a folder of logs, whole.

    Args:
        path: A file, or a folder that is searched with its sub-folders. Its name is taken as it is: brackets and
            stars have no meaning.
        tags: Read only these tags; the others are listed in `RunLog.other_tags`. None reads all.
        sources: Read only these files of the folder, as `RunLog.runs` names them. None reads all.

    Raises:
        BlockedError: nothing can be read at all: missing, empty, garbage, no permission.
    """
    path = Path(path)
    try:
        if not path.exists():
            raise BlockedError(f"{path}: no such file or folder; give the one that the run logged to")
        special = _SPECIAL.get(stat.S_IFMT(path.stat().st_mode))
        if special:
            raise BlockedError(f"{path}: {special}, not a file; write what comes out of it to a file first")
        damage: list[Damage] = []
        files = _files(path, damage) if path.is_dir() else [path]
        files = [file for file in files if sources is None or str(file) in sources]
        heads = _heads(files, damage)
        log = _read(path, heads, tags, damage)
    except OSError as error:
        name = error.filename or path
        raise BlockedError(
            f"{name}: {error.strerror or error}; make it readable, or name another log"
        ) from error
    return replace(
        log, damage=[*damage, *log.damage], notes=[*log.notes, *describe_missing(dict(log.series))]
    )


def _read(
    path: Path, heads: dict[Path, bytes], tags: Collection[str] | None, damage: Sequence[Damage]
) -> RunLog:
    root = path if path.is_dir() else path.parent
    known = all_readers()
    for number, reader in enumerate(known):
        mine = [file for file, head in heads.items() if reader.claims(file, head)]
        if mine:
            log = reader.read(root, mine, tags)
            read = set(mine)
            others = _others(known[number + 1 :], {file: heads[file] for file in heads if file not in read})
            return replace(log, notes=[*log.notes, *others])
    if path.is_file() and heads.get(path, b"").lstrip().startswith(b"{"):
        # Named by the user, it may be an object of bare numbers, or a damaged document: its reader says which.
        return next(one for one in known if one.NAME == "metrics.json").read(root, [path], tags)
    raise BlockedError(
        f"{path}: no log can be read there ({_why_unread(heads, damage)}); known forms: "
        f"{', '.join(reader.NAME for reader in known)}"
    )


def _why_unread(heads: dict[Path, bytes], damage: Sequence[Damage]) -> str:
    """Say what there is instead of a log."""
    if damage:
        return damage[0].what
    if not any(heads.values()):
        return "empty"
    is_text = all(b"\0" not in head for head in heads.values())
    return "text in which no line is a row of metrics" if is_text else "of an unknown form, or garbage"


def _others(later: Sequence[Reader], heads: dict[Path, bytes]) -> list[str]:
    """Name logs of other formats that lie in the same folder and were not read."""
    found = {
        reader.NAME: sum(reader.claims(file, head) for file, head in heads.items())
        for reader in later
        if reader.PRIORITY >= SIGNATURE
    }
    return [
        f"{count} {name} file(s) lie there too and were not read" for name, count in found.items() if count
    ]


def _files(folder: Path, damage: list[Damage]) -> list[Path]:
    """Return the regular files under a folder, each once, in the order of their names."""

    def note(error: OSError) -> None:
        what = f"the folder cannot be listed: {error.strerror}"
        damage.append(Damage(path=str(error.filename), what=what))

    found: dict[Path, Path] = {}
    for parent, folders, names in os.walk(folder, onerror=note):
        folders.sort()
        for name in sorted(names):
            file = Path(parent, name)
            if file.is_file():
                found.setdefault(file.resolve(), file)
    return list(found.values())


def _heads(files: Sequence[Path], damage: list[Damage]) -> dict[Path, bytes]:
    heads: dict[Path, bytes] = {}
    for file in files:
        try:
            heads[file] = head_of(file, HEAD_BYTES)
        except OSError as error:
            damage.append(Damage(path=str(file), what=f"cannot be opened: {error.strerror}"))
    return heads
