"""What was measured of the planted faults: `seen.json`, written by `python -m seatrial.faults.sweep`; no torch here."""

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
    """What sees a fault."""

    by: str | None
    """Id of the relation that was the first to see it, or `level 0`; None where nothing did."""
    said: str
    """What it said."""


def data_file() -> Path:
    """Return where the data stand."""
    return Path(str(resources.files("seatrial.faults").joinpath(DATA)))


def load(path: Path) -> dict[str, Seen]:
    """Return what was measured, by fault; nothing where there is no file."""
    if not path.exists():
        return {}
    return {name: Seen(**seen) for name, seen in json.loads(path.read_text(encoding="utf-8")).items()}


@cache
def recorded() -> Mapping[str, Seen]:
    """Return what is recorded in the package."""
    return load(data_file())


def save(path: Path, found: Mapping[str, Seen]) -> None:
    """Write the data, one fault a line."""
    lines = [f"{json.dumps(name)}: {json.dumps(asdict(seen))}" for name, seen in sorted(found.items())]
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")
