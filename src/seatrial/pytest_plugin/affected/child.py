"""The log that a watched child process writes: one line per use, under the test that was running.

`startup/sitecustomize.py` loads it by its path, together with `watch`: it uses only the standard library. A line is
appended as soon as something is used, so a killed process leaves a complete log.
"""

# ruff: noqa: PTH118
# pathlib would double what each child process pays at its start.

from __future__ import annotations

import json
import os
from types import FrameType
from typing import Final

CURRENT: Final = "current"
"""File in the session's folder: the token of the running test or fixture, padded to `TOKEN_BYTES`."""
TOKEN_BYTES: Final = 24
ROOT: Final = "root"
"""File in the session's folder: the project's root directory."""


def read_token(folder: str) -> str:
    """Return the token of what is running; empty if nothing is, or the session is over."""
    try:
        descriptor = os.open(os.path.join(folder, CURRENT), os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(descriptor, TOKEN_BYTES).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


class ChildLog:
    """Appends what this process uses to its own log."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._written: set[tuple[str, str, str]] = set()
        # A Ray worker serves many tests; the one that ran when it started need not use it.
        self._born = "" if "RAY_RAYLET_PID" in os.environ else read_token(folder)

    def emit(self, kind: str, name: str, frame: FrameType | None) -> None:
        """Record one use, under the test that is running and the one that started this process."""
        for token in {read_token(self._folder), self._born} - {""}:
            row = (token, kind, name)
            if row not in self._written:
                self._written.add(row)
                self._append(json.dumps(row) + "\n")

    def _append(self, line: str) -> None:
        path = os.path.join(self._folder, f"{os.getpid()}.log")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError:
            return
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
