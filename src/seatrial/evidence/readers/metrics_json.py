"""NeMo RL's metrics.json: `{tag: {"step": number}}`, or a bare number under a tag.

Source: NVIDIA-NeMo/RL tests/json_dump_tb_logs.py (the writer) and its evaluation scripts (`{"score": 0.3}`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.evidence.readers.opening import read_text, suffix_of
from seatrial.evidence.readers.points import Number, PointBuffer, Segment, decode, decode_step
from seatrial.evidence.readers.rows import assemble
from seatrial.evidence.runlog import Damage, RunLog

NAME = "metrics.json"
PRIORITY = 30

PROVENANCE_KEY = "//seatrial"
"""Where `seatrial dump` says where the numbers came from; no tag may have this name."""

FORM = 1
"""Version of its form."""

_MAX_DAMAGES = 8

Pairs = list[tuple[str, Any]]


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is a JSON object whose entries are series or numbers.

    Configuration files are objects with numbers too: among other files, one without any series counts only when it
    is called metrics.json.
    """
    if suffix_of(file) != ".json" or not head.lstrip().startswith(b"{"):
        return False
    if file.name in {"metrics.json", "metrics.json.gz"}:
        return True
    try:
        document = json.loads(read_text(file))
    except (ValueError, RecursionError, BlockedError):
        return False
    if not isinstance(document, dict):
        return False
    contents = document.values()
    # An object of columns may hold a series by step too; `json_columns` reads both.
    lists = sum(isinstance(content, list) and len(content) > 1 for content in contents)
    return sum(_is_series(content) for content in contents) > lists


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read one metrics.json.

    Raises:
        BlockedError: there are several, or the file is not one JSON object, or it holds no number at all.
        OSError: the file cannot be read.
    """
    if len(paths) > 1:
        names = ", ".join(str(path) for path in paths[:5])
        raise BlockedError(
            f"{root}: holds {len(paths)} files in the form of metrics.json ({names}); name one of them"
        )
    path = paths[0]
    document = _load(path)
    segment = Segment(source=str(path))
    scalars: dict[str, float] = {}
    damage: list[Damage] = []
    unread: dict[str, str] = {}
    notes: list[str] = []
    dropped: dict[str, npt.NDArray[np.int64]] = {}
    for tag, content in document:
        if tag == PROVENANCE_KEY:
            dropped = _read_provenance(content, path, damage, notes, unread)
        elif tag in segment.points or tag in scalars:
            damage.append(Damage(path=str(path), what=f"the key {tag!r} appears twice: one hides the other"))
        elif isinstance(content, _Object):
            segment.points[tag] = _points(tag, content.pairs, path, damage).points()
        elif (number := decode(content)) is None:
            unread[tag] = "text" if isinstance(content, str) else type(content).__name__
        elif number.null:
            unread[tag] = "null"
        else:
            scalars[tag] = number.value
    if not (segment.points or scalars):
        raise BlockedError(f"{path}: holds no metric; run the job again or name another log")
    log = assemble([str(path)], [segment], tags, scalars=scalars, damage=damage, unread=unread, notes=notes)
    provenance = next((content for tag, content in document if tag == PROVENANCE_KEY), None)
    return _with_doubts(
        replace(log, dropped={tag: steps for tag, steps in dropped.items() if tag in log.series}), provenance
    )


def _with_doubts(log: RunLog, provenance: Any) -> RunLog:
    """Restore which steps had two values, and which runs there were, when the log was dumped."""
    held = dict(provenance.pairs) if isinstance(provenance, _Object) else {}
    disputed = held.get("disputed")
    series = dict(log.series)
    for tag, steps in disputed.pairs if isinstance(disputed, _Object) else []:
        if tag in series:
            series[tag] = replace(series[tag], disputed=_steps(steps))
    runs = held.get("runs")
    named = (
        [[str(source) for source in run] for run in runs if isinstance(run, list)]
        if isinstance(runs, list)
        else []
    )
    return replace(log, series=series, runs=named or log.runs)


def _steps(held: Any) -> npt.NDArray[np.int64]:
    steps = [decode_step(item) for item in held] if isinstance(held, list) else []
    return np.array([step for step in steps if step is not None], dtype=np.int64)


def _read_provenance(
    content: Any, path: Path, damage: list[Damage], notes: list[str], unread: dict[str, str]
) -> dict[str, npt.NDArray[np.int64]]:
    """Read what was lost, noted and left out when the log was dumped; return the steps that its writer dropped."""
    held = dict(content.pairs) if isinstance(content, _Object) else {}
    for item in held.get("damage") or []:
        lost = dict(item.pairs) if isinstance(item, _Object) else {}
        what, source = str(lost.get("what", "not said")), str(lost.get("path", "the log"))
        what = f"when it was dumped, {source} was damaged: {what}"
        damage.append(Damage(path=str(path), what=what, is_cut=lost.get("is_cut") is True))
    notes += [f"when it was dumped: {note}" for note in held.get("notes") or [] if isinstance(note, str)]
    kinds = held.get("unread")
    if isinstance(kinds, _Object):
        unread.update({tag: str(kind) for tag, kind in kinds.pairs})
    dropped = held.get("dropped")
    return {
        tag: _steps(steps)
        for tag, steps in (dropped.pairs if isinstance(dropped, _Object) else [])
        if isinstance(steps, list)
    }


class _Object:
    """A JSON object with all its pairs, so that a key that appears twice is noticed."""

    def __init__(self, pairs: Pairs) -> None:
        self.pairs = pairs


def _load(path: Path) -> Pairs:
    try:
        document = json.loads(read_text(path), object_pairs_hook=_Object)
    except (ValueError, RecursionError) as error:
        raise BlockedError(
            f"{path}: not a JSON document ({error}); write it again or name another log"
        ) from error
    if not isinstance(document, _Object):
        raise BlockedError(f"{path}: not an object of tags, as metrics.json is; name another log")
    return document.pairs


def _points(tag: str, pairs: Pairs, path: Path, damage: list[Damage]) -> PointBuffer:
    buffer = PointBuffer()
    for key, raw in pairs:
        step = decode_step(key)
        number: Number | None = decode(raw)
        if step is not None and number is not None:
            buffer.add(step, number)
        elif len(damage) < _MAX_DAMAGES:
            shown = "an object" if isinstance(raw, _Object) else f"{str(raw)[:40]!r}"
            damage.append(
                Damage(path=str(path), what=f"{tag} at {key[:40]!r}: {shown} is no number at a step")
            )
    return buffer


def _is_series(content: Any) -> bool:
    return (
        isinstance(content, Mapping)
        and bool(content)
        and all(decode_step(key) is not None and decode(value) is not None for key, value in content.items())
    )
