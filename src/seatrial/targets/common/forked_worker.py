"""A rank worker that a fork server starts: the server has imported the stack, which takes a new process seconds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from seatrial.targets.common import rank_worker


class ForkedWorker:
    """The part of `subprocess.Popen` that `ranks` uses."""

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str], errors: Path) -> None:
        """Start it.

        Args:
            preload: modules that the server imports; those of the first process that this one starts count.
            environment: its variables.
            errors: the file of its standard error.
        """
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(preload))
        requests, writing = context.Pipe(duplex=False)
        reading, answers = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_work, args=(requests, answers, dict(environment), str(errors)), daemon=True
        )
        self._process.start()
        self.stdin = os.fdopen(os.dup(writing.fileno()), "w", encoding="utf-8")
        self.stdout = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        for connection in (requests, writing, reading, answers):
            connection.close()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has exited.

        Raises:
            subprocess.TimeoutExpired: it has not within `timeout` seconds.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked rank", timeout or 0.0)

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()


def _work(requests: Connection, answers: Connection, environment: Mapping[str, str], errors: str) -> None:
    """Run as a rank, in the forked process."""
    opened = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number, file in enumerate((requests.fileno(), answers.fileno(), opened)):
        os.dup2(file, number)
    os.close(opened)
    requests.close()
    answers.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  until this process exits
    os.environ.clear()
    os.environ.update(environment)
    rank_worker.main()
