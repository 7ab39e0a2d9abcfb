"""Keeps what a stack and its libraries print out of a command's own output."""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from seatrial.errors import BlockedError, UsageError
from seatrial.files import not_written

TAIL_LINES = 30


@dataclass
class Captured:
    """Where the output of a stack went, and where the command itself prints."""

    path: Path
    console: TextIO

    def print(self, text: str) -> None:
        """Print to the console of the command."""
        print(text, file=self.console, flush=True)

    def num_lines(self) -> int:
        """Return how many lines were captured."""
        with self.path.open("rb") as file:
            return sum(1 for _ in file)


@contextmanager
def captured_output(path: Path | None) -> Iterator[Captured]:
    """Write everything that this process, its C code and its children print to a file.

    File descriptors 1 and 2 lead to the file, and so do `sys.stdout` and `sys.stderr`. If the block raises an
    error that is not ours, the last lines of the file are printed to standard error.

    Args:
        path: the file; None for a new one in the folder for temporary files, which is removed if nothing was printed.

    Raises:
        BlockedError: the file cannot be written.
    """
    keep = path is not None
    if path is None:
        handle, name = tempfile.mkstemp(prefix="seatrial-relations-", suffix=".log")
        path = Path(name)
    else:
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise not_written("write", path, error, option="--log") from error
    streams = sys.stdout, sys.stderr
    for stream in streams:
        stream.flush()
    descriptors = os.dup(1), os.dup(2)
    is_real = _descriptor(sys.stdout) == 1
    console = (
        os.fdopen(descriptors[0], "w", encoding=sys.stdout.encoding, closefd=False) if is_real else sys.stdout
    )
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = sys.stderr = os.fdopen(handle, "w", encoding="utf-8", errors="replace", buffering=1)
    captured = Captured(path, console)
    failed = False
    try:
        yield captured
    except (BlockedError, UsageError, KeyboardInterrupt):
        raise
    except BaseException:
        failed = True
        raise
    finally:
        # Not closed: log handlers that libraries made in the block keep the stream, and may write when Python exits.
        sys.stdout.flush()
        sys.stdout, sys.stderr = streams
        console.flush()
        for number, descriptor in enumerate(descriptors, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        if failed:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
            print(f"the last output of the stack, from {path}:", *lines, sep="\n", file=sys.stderr)
        elif not keep and path.stat().st_size == 0:
            path.unlink()


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return None
