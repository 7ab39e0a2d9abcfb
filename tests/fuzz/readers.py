"""Feeds damaged files to a reader: it gives a log or says Blocked, and nothing else.

Used by the tests here, and by `tests/peers/formats_worker.py` in the environment of a format's own library.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.read import Reader, read_logs
from seatrial.evidence.runlog import RunLog

HEADROOM = 1 << 30
"""Bytes beyond what the process has: a length that a file only declares cannot be allocated."""

Damager = Callable[[random.Random, bytes], bytes]


@contextmanager
def limited_memory() -> Iterator[None]:
    """Limit the address space while it runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + HEADROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def seeds(cases: int, seconds: float) -> Iterator[int]:
    """Yield seeds from 0 on until there are enough or the time is over."""
    begin = time.monotonic()
    for seed in range(cases):
        if time.monotonic() - begin > seconds:
            return
        yield seed


def fuzz(reader: Reader, path: Path, damage: Damager, cases: int, seconds: float) -> tuple[int, int]:
    """Damage a valid file again and again, and read it by its reader and by its folder.

    Returns:
        How many damaged files were tried, and how often one gave a log.

    Raises:
        AssertionError: what was read is no log.
        BaseException: anything that a reader raises but Blocked; its note holds the seed.
    """
    valid = path.read_bytes()
    tried = num_read = 0
    with limited_memory():
        for seed in seeds(cases, seconds):
            tried += 1
            path.write_bytes(damage(random.Random(seed), valid))
            for read in (lambda: reader.read(path.parent, [path]), lambda: read_logs(path.parent)):
                try:
                    log = read()
                except BlockedError as error:
                    assert str(error).count("\n") <= 1, seed
                    continue
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise
                num_read += 1
                assert isinstance(log, RunLog), seed
                for series in log.series.values():
                    assert len(series.steps) == len(series.values), seed
    return tried, num_read
