"""Records which lines of a package run, in this process and in every Python process that it starts.

Python imports `sitecustomize` at its start. Each line is written when it first runs: processes of a run may be killed.

What is called from an observer is left out: it is not the run that executes it.

`SEATRIAL_LINES_OF`: folder of the package. `SEATRIAL_LINES_TO`: folder for the record, one file `PATH:LINE` a process.
`SEATRIAL_LINES_NOT_BY`: folder of the observers.
"""

from __future__ import annotations

import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any


def _record(package: str, folder: str, observers: str) -> None:
    path = os.path.join(folder, f"{os.getpid()}-{os.urandom(8).hex()}.txt")  # noqa: PTH118
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # By the identity of the code, which is kept alive: the hash of a code object reads all of it.
    left: dict[int, tuple[CodeType, set[int]]] = {}

    def in_line(frame: FrameType, event: str, argument: Any) -> Any:
        lines = left[id(frame.f_code)][1]
        if event == "line" and frame.f_lineno in lines:
            lines.discard(frame.f_lineno)
            os.write(file, f"{frame.f_code.co_filename[len(package) :]}:{frame.f_lineno}\n".encode())
        return in_line

    observing = threading.local()

    def in_observer(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "return":  # or it yields, or raises
            observing.now = False
        return in_observer

    def in_call(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if getattr(observing, "now", False):
            return None
        if code.co_filename.startswith(observers):
            observing.now = True
            return in_observer
        if not code.co_filename.startswith(package):
            return None
        if id(code) not in left:
            left[id(code)] = (code, {line for _, _, line in code.co_lines() if line})
        return in_line if left[id(code)][1] else None

    threading.settrace(in_call)
    sys.settrace(in_call)


if os.environ.get("SEATRIAL_LINES_TO") and os.environ.get("SEATRIAL_LINES_OF"):
    _record(
        os.environ["SEATRIAL_LINES_OF"] + os.sep,
        os.environ["SEATRIAL_LINES_TO"],
        os.environ["SEATRIAL_LINES_NOT_BY"] + os.sep,
    )
