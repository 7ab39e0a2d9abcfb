"""Termination as interruption: SIGTERM and SIGHUP to us unwind like Ctrl-C, so that what we started is ended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Within the block SIGTERM and SIGHUP raise KeyboardInterrupt; main thread only.

    A signal that is ignored (as under nohup) stays ignored.
    """
    numbers = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN
    ]
    before = {number: signal.signal(number, _interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
