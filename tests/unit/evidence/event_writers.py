"""Writes TensorBoard event files with tensorboard's own record writer and protobufs."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


def scalar(tag: str, step: int, value: float, wall_time: float) -> event_pb2.Event:
    """Return an event as torch's SummaryWriter.add_scalar makes it."""
    held = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])
    return event_pb2.Event(wall_time=wall_time, step=step, summary=held)


def start(step: int, wall_time: float) -> event_pb2.Event:
    """Return the event by which a writer says that it resumes at `step`."""
    log = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    return event_pb2.Event(wall_time=wall_time, step=step, session_log=log)


def write_events(path: Path, events: Iterable[event_pb2.Event], wall_time: float = 1000.0) -> Path:
    """Write a file that begins with the version, as every event file does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as stream:
        writer = RecordWriter(stream)
        writer.write(event_pb2.Event(wall_time=wall_time, file_version="brain.Event:2").SerializeToString())
        for event in events:
            writer.write(event.SerializeToString())
    return path


def write_series(
    path: Path,
    series: Mapping[str, Mapping[int, float]] | Mapping[str, Sequence[float]],
    wall_time: float = 1000.0,
) -> Path:
    """Write series step by step: a mapping of values by step, or values of the steps 1, 2, ...

    The points of step s carry the time `wall_time` + s.
    """
    by_step = {
        tag: dict(values) if isinstance(values, Mapping) else dict(enumerate(values, start=1))
        for tag, values in series.items()
    }
    steps = sorted({step for values in by_step.values() for step in values})
    events = [
        scalar(tag, step, values[step], wall_time + step)
        for step in steps
        for tag, values in by_step.items()
        if step in values
    ]
    return write_events(path, events, wall_time)


def record_offsets(blob: bytes) -> list[int]:
    """Return where each record of an event file begins, and where the last one ends."""
    offsets = [0]
    while offsets[-1] < len(blob):
        offsets.append(offsets[-1] + 16 + struct.unpack_from("<Q", blob, offsets[-1])[0])
    return offsets
