"""TensorBoard event files: scalars of both generations, read whole, checksums on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.runlog import Damage, RunLog, Series
from seatrial.evidence.tfrecord import Loss, iterate


def read(paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read event files as one run.

    Raises:
        BlockedError: no file holds a readable event.
    """
    from tensorboard.compat.proto import event_pb2

    points: dict[str, list[tuple[int, float, float]]] = {}
    damage: list[Damage] = []
    events = 0
    for path in paths:
        last_step = None
        for item in iterate(path):
            if isinstance(item, Loss):
                where = "" if last_step is None else f" after step {last_step}"
                damage.append(
                    Damage(path=str(path), what=f"truncated{where}: {item.what}", offset=item.offset)
                )
                continue
            event = event_pb2.Event.FromString(item.data)
            events += 1
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    last_step = event.step
                    points.setdefault(value.tag, []).append((event.step, event.wall_time, value.simple_value))
    if not events:
        raise BlockedError(f"{paths[0]}: no readable event; run the job again")
    series = {}
    for tag, rows in points.items():
        if tags is None or tag in tags:
            unique = {row[0]: row for row in sorted(rows, key=lambda row: row[1])}
            ordered = [unique[step] for step in sorted(unique)]
            series[tag] = Series(
                tag=tag,
                steps=np.array([row[0] for row in ordered], dtype=np.int64),
                values=np.array([row[2] for row in ordered], dtype=np.float64),
                wall_times=np.array([row[1] for row in ordered], dtype=np.float64),
            )
    return RunLog(
        sources=[str(path) for path in paths],
        series=series,
        damage=damage,
        truncated_tags=tags is not None,
        other_tags=[tag for tag in points if tag not in series],
    )
