"""One JSON object of columns, `{tag: [values]}`, as a custom training loop writes its history.

A column with the name of a step gives the steps; without one, points are numbered from 1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.readers import jsonl
from seatrial.evidence.readers.opening import read_text, suffix_of
from seatrial.evidence.readers.points import PointBuffer, Segment, decode, decode_step
from seatrial.evidence.readers.rows import assemble
from seatrial.evidence.runlog import Damage, RunLog

NAME = "JSON object of columns"
PRIORITY = 15

_COLUMN = re.compile(rb'"\s*:\s*\[\s*[-\d"NIn]')
_STEP_NAMES = (*jsonl.STEP_KEYS, "steps", "global_steps", "iterations")


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is an object most of whose entries are lists of numbers."""
    if suffix_of(file) != ".json" or not head.lstrip().startswith(b"{") or not _COLUMN.search(head):
        return False
    columns = _load(file)
    return 2 * sum(_is_column(held) for held in columns.values()) > len(columns)


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read one object of columns.

    Raises:
        BlockedError: there are several files, or the file is none.
        OSError: the file cannot be read.
    """
    if len(paths) > 1:
        names = ", ".join(str(path) for path in paths[:5])
        raise BlockedError(f"{root}: holds {len(paths)} objects of columns ({names}); name one of them")
    path = paths[0]
    columns = _load(path)
    steps = _steps(columns)
    segment, damage, notes = Segment(source=str(path)), list[Damage](), list[str]()
    unread: dict[str, str] = {}
    for tag, held in columns.items():
        if tag in _STEP_NAMES and steps is not None:
            continue
        if not isinstance(held, list) or (held and not any(decode(raw) for raw in held)):
            unread[tag] = "list" if isinstance(held, list) else type(held).__name__
        elif steps is not None and len(held) != len(steps):
            what = f"{tag} has {len(held)} values where there are {len(steps)} steps: it was left out"
            damage.append(Damage(path=str(path), what=what))
        else:
            segment.points[tag] = _points(tag, held, steps, path, damage).points()
    if not segment.points:
        raise BlockedError(f"{path}: holds no column of numbers; name another log")
    if steps is None:
        notes.append(f"{path.name}: no column has the name of a step; points are numbered from 1")
    return assemble([str(path)], [segment], tags, damage=damage, unread=unread, notes=notes)


def _points(
    tag: str, held: Sequence[Any], steps: Sequence[int] | None, path: Path, damage: list[Damage]
) -> PointBuffer:
    buffer = PointBuffer()
    odd = 0
    for place, raw in enumerate(held):
        number = decode(raw)
        if number is None:
            odd += 1
        else:
            buffer.add(place + 1 if steps is None else steps[place], number)
    if odd:
        damage.append(Damage(path=str(path), what=f"{tag}: {odd} values are no numbers", tag=tag))
    return buffer


def _steps(columns: Mapping[str, Any]) -> list[int] | None:
    for name in _STEP_NAMES:
        held = columns.get(name)
        if isinstance(held, list) and held:
            steps = [decode_step(raw) for raw in held]
            whole = [step for step in steps if step is not None]
            if len(whole) == len(steps):
                return whole
    return None


def _is_column(held: Any) -> bool:
    return isinstance(held, list) and len(held) > 1 and decode(held[0]) is not None


def _load(path: Path) -> Mapping[str, Any]:
    try:
        held = jsonl.parse(read_text(path))
    except BlockedError:
        return {}
    return held if isinstance(held, Mapping) else {}
