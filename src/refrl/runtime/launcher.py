"""Starts the processes of a data-parallel run on this host, and ends them all when one of them ends badly.

Each is the same command with a rank in its environment (`RANK`, `LOCAL_RANK`, `WORLD_SIZE`, as torchrun sets them).
They meet in a file, so that no port can be taken by another. No process outlives the launcher, however that ends:
each holds the reading end of a pipe whose writing end the launcher alone has, and leaves when it closes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from refrl.config.loading import ConfigError
from refrl.lifeline import LIFELINE, RENDEZVOUS

COMMAND: tuple[str, ...] = (sys.executable, "-m", "refrl")
"""What a rank runs, before its words; a program that wraps refrl names itself here."""

GRACE_SECONDS = 5.0
"""Between asking a rank to end and killing it."""


class RankError(OSError):
    """A rank ended badly."""


@dataclass(frozen=True)
class Rank:
    """A started process."""

    number: int
    process: subprocess.Popen[bytes]
    errors: Path
    """What it wrote to standard error."""


def is_launcher(num_processes: int) -> bool:
    """Tell whether this process is to start the others, and is not one of them itself."""
    return num_processes > 1 and RENDEZVOUS not in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ


def launch(words: Sequence[str], num_processes: int) -> None:
    """Run `python -m refrl WORDS` as so many ranks, and return when all have ended well.

    Rank 0's standard output is this process's. Standard error is shown at the end: rank 0's after success, and after
    a failure that of the rank that failed first (the others fail because of it).

    Raises:
        ConfigError: a rank refused the configuration (exit status 2); in its words.
        RankError: a rank ended otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="refrl-") as folder, _lifeline() as (reading, environment):
        ranks: list[Rank] = []
        try:
            for number in range(num_processes):
                ranks.append(_start(words, number, num_processes, Path(folder), reading, environment))
            failed = _first_failure(ranks)
        finally:
            _end(ranks)
        if failed is not None:
            _report(failed, words[0])
        with ranks[0].errors.open(encoding="utf-8", errors="replace") as errors:
            shutil.copyfileobj(errors, sys.stderr)


@contextlib.contextmanager
def _lifeline() -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the reading end of the pipe, and the variables that tell a rank of it."""
    reading, writing = os.pipe()
    try:
        yield reading, {LIFELINE: str(reading)}
    finally:
        os.close(reading)
        os.close(writing)


def _start(
    words: Sequence[str],
    number: int,
    num_processes: int,
    folder: Path,
    reading: int,
    environment: Mapping[str, str],
) -> Rank:
    # As torchrun does, but by the processors that there are: ranks that each take all of them wait for one another.
    threads = str(max(1, (os.cpu_count() or 1) // num_processes))
    errors = folder / f"rank{number}.err"
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if number else None,
            stderr=file,
            pass_fds=(reading,),
            env={
                "OMP_NUM_THREADS": threads,
                **os.environ,
                **environment,
                RENDEZVOUS: (folder / "rendezvous").as_uri(),
                "RANK": str(number),
                "LOCAL_RANK": str(number),
                "WORLD_SIZE": str(num_processes),
            },
        )
    return Rank(number, process, errors)


def _first_failure(ranks: Sequence[Rank]) -> Rank | None:
    """Wait until all ranks have ended well, or one has not."""
    ended: queue.SimpleQueue[Rank] = queue.SimpleQueue()

    def wait(rank: Rank) -> None:
        rank.process.wait()
        ended.put(rank)

    for rank in ranks:
        threading.Thread(target=wait, args=(rank,), daemon=True).start()
    for _ in ranks:
        rank = ended.get()
        if rank.process.returncode:
            return rank
    return None


def _end(ranks: Sequence[Rank]) -> None:
    """End what still runs: with a word first, then without."""
    running = [rank for rank in ranks if rank.process.poll() is None]
    for rank in running:
        rank.process.terminate()
    for rank in running:
        try:
            rank.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()


def _report(failed: Rank, command: str) -> None:
    """Say in the failed rank's own words what happened.

    Raises:
        ConfigError: its exit status is 2.
        RankError: any other status.
    """
    status = failed.process.returncode
    text = failed.errors.read_text(encoding="utf-8", errors="replace").strip()
    prefix = f"refrl {command}: "
    last = text.splitlines()[-1].removeprefix(prefix) if text else "it said nothing"
    if status == 2:
        raise ConfigError(last)
    how = f"ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
    if text.count("\n"):
        print(text, file=sys.stderr)
    raise RankError(f"rank {failed.number} {how}, and the others were ended: {last}")
