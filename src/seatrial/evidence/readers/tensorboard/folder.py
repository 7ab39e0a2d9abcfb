"""TensorBoard folders: all event files of a run, read whole, checksums on, attempts put together.

tensorboard's own EventAccumulator keeps a sample of 10,000 points, hides tensor scalars and stops at damage without
a word; the files are read here by their framing (`tfrecord`) and by tensorboard's protobufs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.readers.attempts import merge
from seatrial.evidence.readers.points import Segment
from seatrial.evidence.readers.tensorboard.event_file import EventFile
from seatrial.evidence.readers.tensorboard.event_rows import Decoder
from seatrial.evidence.readers.tensorboard.tfrecord import is_header
from seatrial.evidence.runlog import Damage, RunLog

NAME = "TensorBoard"
PRIORITY = 100


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is an event file; one that is called so and holds something else is damaged evidence."""
    return is_header(head) or ".tfevents." in file.name


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read event files as one run.

    Args:
        root: Folder that the lanes of the run (sub-folders) are named from.
        paths: The files.
        tags: Read only these; None reads all.

    Raises:
        BlockedError: no file holds a readable event.
        OSError: a file cannot be read.
    """
    lanes = {
        path: path.parent.relative_to(root).as_posix() if root in path.parents else "." for path in paths
    }
    # Where a newer attempt took over shows in all its tags, so several files are read whole.
    wanted = None if tags is None or len(paths) > 1 else frozenset(tags)
    decoder = Decoder(wanted)
    segments: list[Segment] = []
    damage: list[Damage] = []
    unread: dict[str, str] = {}
    others: set[str] = set()
    num_events = 0
    for path in paths:
        file = EventFile(path, decoder, wanted)
        segments += file.segments(lanes[path])
        damage += file.damage
        unread |= file.unread
        others |= set(file.tags)
        num_events += file.num_events
    if not num_events:
        raise BlockedError(
            f"{paths[0]}: holds no readable event ({damage[0].what if damage else 'it is empty'}); "
            "run the job again, or name the folder of another run"
        )
    merged = merge(segments)
    series = {tag: one for tag, one in merged.series.items() if tags is None or tag in tags}
    # Read whole, tags that several writers have go by the names they now have.
    exist = set(merged.series) | (set() if wanted is None else others)
    return RunLog(
        sources=[str(path) for path in paths],
        series=series,
        damage=damage,
        unread={tag: kind for tag, kind in unread.items() if tag not in others},
        notes=merged.notes,
        truncated_tags=tags is not None,
        runs=merged.runs,
        parts=merged.parts,
        other_tags=[] if tags is None else sorted(exist - set(series)),
    )
