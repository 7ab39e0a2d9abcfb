"""Seconds per phase of a step, under NeMo RL's names (`timing/train/<phase>`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timer:
    """Adds up seconds by phase until they are taken."""

    def __init__(self) -> None:
        """Start with no phase."""
        self._seconds: dict[str, float] = {}

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the seconds that the block takes to a phase; a block that raises is counted too."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - started)

    def add(self, phase: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """Return the seconds of every phase since the last call, and reset them."""
        taken, self._seconds = self._seconds, {}
        return taken
