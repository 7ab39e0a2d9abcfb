"""Starts a server of `tests.forked` when a first process asks for it, and ends it."""

import contextlib
import os
import select
import shlex
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.forked.client import OURS

PYTHON = "python"
"""Name in the folder of what stands in for Python, with the stack imported."""
PYTEST_PYTHON = "python-pytest"
"""The same, with pytest imported and nothing else."""
TESTS_PYTHON = "python-tests"
"""As PYTHON, for the processes that run tests: their hashes have another seed than those of what they start."""
SERVER = "tests.forked.server"


class Activation:
    """Listens in place of the server until that is needed: most runs of a few tests never do."""

    def __init__(self, folder: Path, name: str) -> None:
        """Listen; the path of the folder is short, as those of sockets have to be.

        Args:
            folder: of what stands in for Python, and of its socket.
            name: of what stands in for Python: PYTHON, PYTEST_PYTHON or TESTS_PYTHON.
        """
        self._python, self._script = sys.executable, folder / name
        address = folder / f"s{len(name)}"
        modules = ("pytest",) if name == PYTEST_PYTHON else OURS
        client = Path(__file__).with_name("client.py")
        words = shlex.join(
            [sys.executable, "-I", "-S", str(client), sys.executable, str(address), ",".join(modules)]
        )
        script = self._script
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(address))
        self._listening.listen(64)
        self._server: subprocess.Popen[bytes] | None = None
        self._ending, self._end = os.pipe()
        self._thread = threading.Thread(target=self._start_when_asked, daemon=True, name="fork-server")
        self._thread.start()

    def _start_when_asked(self) -> None:
        ready, _, _ = select.select([self._listening, self._ending], [], [])
        if self._ending not in ready:
            root = Path(__file__).resolve().parents[2]
            self._server = subprocess.Popen(
                [self._python, "-m", SERVER, str(self._listening.fileno()), str(self._script)],
                stdin=self._ending,
                pass_fds=[self._listening.fileno()],
                cwd=root,
                start_new_session=True,
            )
        self._listening.close()

    def close(self) -> None:
        """End the server, or the waiting for one."""
        os.close(self._end)
        self._thread.join()
        if self._server is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._server.wait(10)
            self._server.kill()
            self._server.wait()
        os.close(self._ending)
