"""NeMo RL's metrics.json: `{tag: {"step": number}}`, or a bare number under a tag.

Source: NVIDIA-NeMo/RL tests/json_dump_tb_logs.py (the writer) and its evaluation scripts (`{"score": 0.3}`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seatrial.errors import BlockedError
from seatrial.evidence.numbers import decode, decode_step
from seatrial.evidence.runlog import Damage, RunLog, Series

PROVENANCE_KEY = "//seatrial"
"""Where `seatrial dump` says where the numbers came from; no tag may have this name."""


def read(path: Path, tags: Collection[str] | None = None) -> RunLog:
    """Read one metrics.json.

    Raises:
        BlockedError: the file is not one JSON object, or holds no number at all.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BlockedError(f"{path}: not a JSON document ({error}); write it again") from error
    if not isinstance(document, dict):
        raise BlockedError(f"{path}: a JSON {type(document).__name__}, not an object of tags")
    series: dict[str, Series] = {}
    scalars: dict[str, float] = {}
    damage: list[Damage] = []
    unread: dict[str, str] = {}
    others: list[str] = []
    for tag, content in document.items():
        if tag == PROVENANCE_KEY:
            continue
        if tags is not None and tag not in tags:
            others.append(tag)
        elif isinstance(content, Mapping):
            series[tag] = _series(tag, content, path, damage)
        elif (number := decode(content)) is not None and not number.null:
            scalars[tag] = number.value
        else:
            unread[tag] = "null" if content is None else type(content).__name__
    if not (series or scalars or others):
        raise BlockedError(f"{path}: holds no metric; run the job again or name another log")
    return RunLog(
        sources=[str(path)],
        series=series,
        scalars=scalars,
        damage=damage,
        unread=unread,
        truncated_tags=tags is not None,
        other_tags=others,
    )


def _series(tag: str, content: Mapping[str, Any], path: Path, damage: list[Damage]) -> Series:
    points: list[tuple[int, float, bool]] = []
    for key, raw in content.items():
        step, number = decode_step(key), decode(raw)
        if step is None or number is None:
            damage.append(
                Damage(path=str(path), what=f"{tag} at {key[:40]!r}: {str(raw)[:40]!r} is not a number")
            )
            continue
        points.append((step, number.value, number.null))
    points.sort(key=lambda point: point[0])
    nulls = np.array([null for _, _, null in points], dtype=np.bool_)
    return Series(
        tag=tag,
        steps=np.array([step for step, _, _ in points], dtype=np.int64),
        values=np.array([value for _, value, _ in points], dtype=np.float64),
        nulls=nulls if nulls.any() else None,
    )
