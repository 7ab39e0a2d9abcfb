"""Makes a run log of segments: attempts put together, tags filtered, everything that was lost kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.readers.attempts import merge
from seatrial.evidence.readers.rows import RowLog
from seatrial.evidence.readers.segments import Segment
from seatrial.evidence.runlog import Damage, RunLog


def assemble(
    sources: Sequence[str],
    segments: Sequence[Segment],
    tags: Collection[str] | None,
    *,
    scalars: Mapping[str, float] | None = None,
    damage: Sequence[Damage] = (),
    unread: Mapping[str, str] | None = None,
    notes: Sequence[str] = (),
    known_tags: Collection[str] = (),
    lanes_are_runs: bool = False,
) -> RunLog:
    """Return the run log of these segments.

    Args:
        sources: Files read.
        segments: What each process wrote.
        tags: Tags asked for; None keeps all.
        scalars: Numbers without a step.
        damage: What could not be read.
        unread: Tags that hold no scalars, with their kind.
        notes: Facts about the reading.
        known_tags: Tags that exist, also where no point of theirs is in the segments.
        lanes_are_runs: As in `merge`.
    """
    merged = merge(segments, lanes_are_runs=lanes_are_runs)
    alone = dict(scalars or {})
    exist = {*known_tags, *merged.series, *alone}
    asked = exist if tags is None else exist & set(tags)
    return RunLog(
        sources=sources,
        series={tag: one for tag, one in merged.series.items() if tag in asked},
        scalars={tag: value for tag, value in alone.items() if tag in asked},
        damage=damage,
        unread={tag: kind for tag, kind in (unread or {}).items() if tag not in exist},
        notes=[*notes, *merged.notes],
        truncated_tags=tags is not None,
        other_tags=[] if tags is None else sorted(exist - asked),
        runs=[] if lanes_are_runs else merged.runs,
    )


def assemble_rows(
    logs: Sequence[RowLog],
    tags: Collection[str] | None,
    *,
    notes: Sequence[str] = (),
    lanes_are_runs: bool = False,
) -> RunLog:
    """Return the run log of files of rows.

    Raises:
        BlockedError: no row of any file could be read.
    """
    segments = [segment for log in logs for segment in log.segments()]
    damage = [item for log in logs for item in log.damage]
    if not any(log.num_rows for log in logs):
        why = damage[0].what if damage else "it holds no rows"
        raise BlockedError(
            f"{logs[0].source}: nothing could be read ({why}); run the job again or name another log"
        )
    return assemble(
        [log.source for log in logs],
        segments,
        tags,
        scalars={tag: value for log in logs for tag, value in log.scalars.items()},
        damage=damage,
        unread={tag: kind for log in logs for tag, kind in log.unread.items()},
        notes=notes,
        lanes_are_runs=lanes_are_runs,
    )


def row_logs(root: Path, paths: Sequence[Path]) -> list[RowLog]:
    """Return an empty log for each file; among several, each is a writer of its own, named by its path."""
    lanes = (
        {path: path.relative_to(root).with_suffix("").as_posix() for path in paths} if len(paths) > 1 else {}
    )
    return [RowLog(str(path), lane=lanes.get(path, ".")) for path in paths]
