"""One rank as a process of this host: it is started, watched, ended, and does not outlive the process that holds it."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from refrl.lifeline import LIFELINE, RENDEZVOUS

GRACE_SECONDS = 5.0
"""Between asking a rank to end and killing it."""
CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    status: int | None
    """Exit status; negative: the number of a signal; None: it was lost with what held it."""
    errors: str
    """What it wrote to standard error."""
    where: str = ""
    """Address of its host; empty: this one."""

    @property
    def how(self) -> str:
        """In words."""
        if self.status is None:
            return "was lost with its actor"
        return (
            f"ended by signal {-self.status}" if self.status < 0 else f"ended with exit status {self.status}"
        )


class Rank(Protocol):
    """A started rank, wherever it is."""

    @property
    def number(self) -> int:
        """Which it is."""
        ...

    def wait(self) -> Ended:
        """Wait until it has ended; what rank 0 prints until then goes to this process's standard output."""
        ...

    def terminate(self) -> None:
        """Ask it to end, where it still runs."""
        ...

    def finish(self) -> None:
        """Wait for `GRACE_SECONDS` until it has ended, then kill it; it is asked for nothing more."""
        ...


def variables(number: int, num_processes: int, rendezvous: str, *, local_rank: int) -> dict[str, str]:
    """Return what tells a rank who it is, and where it meets the others."""
    return {
        RENDEZVOUS: rendezvous,
        "RANK": str(number),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(num_processes),
    }


def threads(num_here: int) -> str:
    """Return OMP_NUM_THREADS of a rank where the user set none.

    As torchrun does, but by the processors that there are: ranks that each take all of them wait for one another.

    Args:
        num_here: ranks on this host.
    """
    return str(max(1, (os.cpu_count() or 1) // num_here))


class RankProcess:
    """A `Rank` of this host. It holds the reading end of a pipe whose writing end this process alone has."""

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: int | None,
        directory: str | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        """Start it.

        Args:
            number: of the rank.
            command: what it runs.
            environment: all its variables.
            stdout: as of `subprocess.Popen`; with PIPE, `output` reads it.
            directory: that it works in; None: this process's.
            inherited: further files that it has open.
        """
        self.number = number
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with this object
        reading, self._writing = os.pipe()
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=self._errors,
                pass_fds=(reading, *inherited),
                cwd=directory,
                env={**environment, LIFELINE: str(reading)},
            )
        except OSError:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def output(self) -> bytes:
        """Return what it prints next; nothing where that is at its end, or not read here."""
        stream = self._process.stdout
        return b"" if stream is None else os.read(stream.fileno(), CHUNK_BYTES)

    def wait(self) -> Ended:
        """See `Rank`."""
        status = self._process.wait()
        # Not by its place in the file, which it shares with the rank's own children.
        text = os.pread(self._errors.fileno(), os.fstat(self._errors.fileno()).st_size, 0)
        return Ended(status, text.decode("utf-8", errors="replace"))

    def terminate(self) -> None:
        """See `Rank`."""
        if self._process.poll() is None:
            self._process.terminate()

    def finish(self) -> None:
        """See `Rank`."""
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._writing)


def end(ranks: Sequence[Rank]) -> None:
    """End what still runs: all with a word first, then without."""
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        rank.finish()
