"""Which process is meant: by number, or by the name that the run gave it in `parts.json`.

Only that process is ever signalled. A number that now belongs to a younger process than the file that names it is
refused: the part is gone, and somebody else has its number.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from seatrial.errors import UsageError
from seatrial.nearest import hint

PARTS = "parts.json"
"""What a run writes into its log folder: the number of the process of each part, by name."""


@dataclass(frozen=True)
class Victim:
    """A process that is there."""

    name: str
    """As the run calls it; the number where it has no name."""
    process: psutil.Process


def find_victim(who: str, logs: Path | None) -> Victim:
    """Return the process of a part, or of a number.

    Raises:
        UsageError: there is none, the name is unknown, or the number belongs to this process or to a younger one.
    """
    if who.isdecimal():
        return Victim(who, _process(int(who), who))
    if logs is None:
        raise UsageError(
            f"{who!r} is no process number: name the run's log folder with --log, whose {PARTS} has names"
        )
    path = logs / PARTS
    parts = read_parts(path)
    if who not in parts:
        raise UsageError(f"{path} names no part {who!r}; {hint(who, parts)}")
    process = _process(parts[who], who)
    if process.create_time() > path.stat().st_mtime:
        raise UsageError(
            f"{who} had process {parts[who]}, which has ended: the number belongs to a younger process now, which is "
            "left alone"
        )
    return Victim(who, process)


def read_parts(path: Path) -> dict[str, int]:
    """Return the processes of a run by name.

    Raises:
        UsageError: the file is missing or is not such a file.
    """
    try:
        parts = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; the run has not started, or names no parts: give a number"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(parts, dict) or not all(type(number) is int for number in parts.values()):
        raise UsageError(f"{path} must map names of parts to process numbers")
    return parts


def _process(number: int, who: str) -> psutil.Process:
    if number in (0, 1, os.getpid(), os.getppid()):
        raise UsageError(f"{who}: process {number} is not a part of a run")
    try:
        return psutil.Process(number)
    except psutil.NoSuchProcess as error:
        raise UsageError(f"{who}: there is no process {number}") from error
