"""Recorded detections of planted faults: `seen.json`, written by `python -m seatrial.faults.sweep`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from seatrial.files import write_whole

DATA = "seen.json"


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What detects a fault."""

    by: str | None
    """Id of the first relation that detects it, or `level 0`; None if nothing does."""
    said: str
    """Message of the failure."""


def data_file() -> Path:
    """Return the path of the data."""
    return Path(str(resources.files("seatrial.faults").joinpath(DATA)))


def load(path: Path) -> dict[str, Seen]:
    """Return the recorded detections by fault; empty if there is no file."""
    if not path.exists():
        return {}
    return {name: Seen(**seen) for name, seen in json.loads(path.read_text(encoding="utf-8")).items()}


@cache
def recorded() -> Mapping[str, Seen]:
    """Return the detections recorded in the package."""
    return load(data_file())


def save(path: Path, found: Mapping[str, Seen]) -> None:
    """Write the detections, one fault per line."""
    lines = [f"{json.dumps(name)}: {json.dumps(asdict(seen))}" for name, seen in sorted(found.items())]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")
