"""Rewards mathematical equivalence (`1/2` is `0.5` is `\\frac{1}{2}`) with the library math-verify.

The comparison runs in a long-lived process, which is stopped when it takes too long: the library's own time limit is an
alarm, which works neither in threads nor in C code.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from refrl.rewards.verifiers import VerifierError, VerifierTimeout

COMMAND: tuple[str, ...] = (sys.executable, "-P", "-m", "refrl.rewards.math_worker")
"""What is started, without modules of the current folder."""
START_SECONDS = 120.0
MAX_LETTERS = 20_000
"""Only this many characters at the end of a completion are searched for an answer."""


@dataclass
class MathVerifier:
    """A verifier that keeps one worker process; calls take turns."""

    timeout_seconds: float = 5.0
    _worker: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _owner: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __call__(self, completion: str, answer: str) -> float:
        """Return 1 where the completion's last answer equals the right one, 0 where it does not or has none.

        Raises:
            VerifierTimeout: the comparison took too long.
            VerifierError: the right answer cannot be parsed, the library failed, or its process ended.
        """
        request = {"completion": completion[-MAX_LETTERS:], "answer": answer}
        with self._lock:
            worker = self._running()
            reply = self._exchange(worker, json.dumps(request).encode() + b"\n")
        if "error" in reply:
            raise VerifierError(f"math_equivalence: {reply['error']}")
        return float(bool(reply["equal"]))

    def close(self) -> None:
        """End the worker; the next call starts another. A forked child leaves its parent's alone."""
        worker, self._worker = self._worker, None
        if worker is None or self._owner != os.getpid():
            return
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                stream.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._worker is not None and self._owner == os.getpid() and self._worker.poll() is None:
            return self._worker
        self.close()
        self._worker = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._owner = os.getpid()
        atexit.register(self.close)
        self._read(self._worker, START_SECONDS)
        return self._worker

    def _exchange(self, worker: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
        assert worker.stdin is not None
        try:
            worker.stdin.write(request)
            worker.stdin.flush()
        except OSError as error:
            self.close()
            raise VerifierError(f"math_equivalence: its process ended: {error}") from error
        return self._read(worker, self.timeout_seconds)

    def _read(self, worker: subprocess.Popen[bytes], seconds: float) -> dict[str, Any]:
        assert worker.stdout is not None
        received, deadline = b"", time.monotonic() + seconds
        while not received.endswith(b"\n"):
            ready, _, _ = select.select([worker.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise VerifierTimeout(f"math_equivalence: no verdict within {seconds:g} s")
            part = os.read(worker.stdout.fileno(), 65536)
            if not part:
                self.close()
                raise VerifierError("math_equivalence: its process ended (is math-verify installed?)")
            received += part
        reply: dict[str, Any] = json.loads(received)
        return reply


math_equivalence = MathVerifier()
"""The verifier that `data.verifier=math_equivalence` takes."""
