"""The console log of a command: redacted line by line, flushed, and limited in size.

A run that prints without end must not fill the disk, and its last lines matter most: the beginning and the end of the
output are kept, and the bytes between them are counted.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

MAX_LOG_BYTES = 64 * 2**20
"""Bytes kept from the start of the output."""
TAIL_LINES = 200
"""Lines kept from the end of the output, once the start is full."""
MAX_LINE_BYTES = 64 * 2**10
"""Longer lines are split, so that output without newlines cannot grow in memory."""


class ConsoleLog:
    """Writes the output of one command to a file; use as a context manager.

    `error` is the first OSError of a write (disk full): the output is still read, so that the command never blocks on
    its pipe, and the caller decides what to do.
    """

    def __init__(self, path: Path, redact: Callable[[str], str], max_bytes: int = MAX_LOG_BYTES) -> None:
        """Open the file for writing.

        Raises:
            OSError: the file cannot be opened.
        """
        self._redact = redact
        self._max_bytes = max_bytes
        self._file = path.open("wb")
        self._pending = b""
        self._written = 0
        self._left_out = 0
        self._closed = False
        self._lock = threading.Lock()
        self._tail: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.last_line = ""
        self.error: OSError | None = None

    def feed(self, chunk: bytes) -> None:
        """Add output, from any thread; output after `close` is dropped."""
        with self._lock:
            if self._closed:
                return
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            for line in lines:
                self._line(line + b"\n")
            while len(self._pending) > MAX_LINE_BYTES:
                self._line(self._pending[:MAX_LINE_BYTES] + b"\n")
                self._pending = self._pending[MAX_LINE_BYTES:]

    def _line(self, line: bytes) -> None:
        text = self._redact(line.decode("utf-8", errors="replace"))
        self.last_line = text.strip() or self.last_line
        data = text.encode("utf-8")
        if self._written + len(data) > self._max_bytes:
            if len(self._tail) == TAIL_LINES:
                self._left_out += len(self._tail[0])
            self._tail.append(data)
            return
        self._written += len(data)
        self._write(data)

    def _write(self, data: bytes) -> None:
        if self.error is not None:
            return
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            self.error = error

    def close(self) -> None:
        """Write the pending line and the tail, and close the file."""
        with self._lock:
            self._closed = True
            if self._pending:
                self._line(self._pending + b"\n")
            if self._left_out:
                self._write(f"[... {self._left_out} bytes of output left out here ...]\n".encode())
            for line in self._tail:
                self._write(line)
            try:
                self._file.close()
            except OSError as error:
                self.error = self.error or error

    def __enter__(self) -> ConsoleLog:
        """Return the log."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()
