"""One rank as a process of this host: started, watched, and stopped at the latest with its parent."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from refrl.lifeline import LIFELINE, RENDEZVOUS

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for a rank."""
CHUNK_BYTES = 2**16


@dataclass(frozen=True)
class Ended:
    """How a rank ended."""

    status: int | None
    """Exit status; negative: the number of a signal; None: it was lost with its actor."""
    errors: str
    """Its standard error."""
    where: str = ""
    """Address of its host; empty: this host."""

    @property
    def how(self) -> str:
        """The outcome as part of a sentence."""
        if self.status is None:
            return "was lost with its actor"
        return (
            f"ended by signal {-self.status}" if self.status < 0 else f"ended with exit status {self.status}"
        )


class Rank(Protocol):
    """A started rank, local or in an actor."""

    @property
    def number(self) -> int:
        """Its rank."""
        ...

    def wait(self) -> Ended:
        """Wait until it has ended; until then, rank 0's output goes to this process's standard output."""
        ...

    def terminate(self) -> None:
        """Send SIGTERM if it still runs."""
        ...

    def finish(self) -> None:
        """Wait `GRACE_SECONDS` for it to end, then kill it; the last call on it."""
        ...


def variables(number: int, num_processes: int, rendezvous: str, *, local_rank: int) -> dict[str, str]:
    """Return the environment variables of a rank: its number, and where the ranks rendezvous."""
    return {
        RENDEZVOUS: rendezvous,
        "RANK": str(number),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(num_processes),
    }


def threads(num_here: int) -> str:
    """Return OMP_NUM_THREADS of a rank for which the user set none.

    As torchrun does, but scaled to the processors: ranks that each use all of them wait for one another.

    Args:
        num_here: ranks on this host.
    """
    return str(max(1, (os.cpu_count() or 1) // num_here))


class RankProcess:
    """A `Rank` of this host. It holds the reading end of a pipe whose writing end only this process has."""

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
            number: its rank.
            command: what it runs.
            environment: all its variables.
            stdout: as for `subprocess.Popen`; with PIPE, `output` reads it.
            directory: its working directory; None: this process's.
            inherited: further file descriptors that it inherits.
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
        """Return what it prints next; empty at the end of its output, or if the output is not a pipe."""
        stream = self._process.stdout
        return b"" if stream is None else os.read(stream.fileno(), CHUNK_BYTES)

    def wait(self) -> Ended:
        """See `Rank`."""
        status = self._process.wait()
        # pread, not read: the file offset is shared with the rank's own children.
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
    """Stop all ranks that still run: with SIGTERM first, then SIGKILL."""
    for rank in ranks:
        rank.terminate()
    for rank in ranks:
        rank.finish()
