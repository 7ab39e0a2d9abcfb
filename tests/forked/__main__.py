"""The command; see `tests.forked`."""

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType

INHERITED = ("REFRL_LIFELINE",)
"""Variables that hold the number of a file that is handed on."""


def main(address: str, *words: str) -> int:
    """Ask for a process, hand signals on, and end as it does."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(address)

        def hand_on(number: int, _: FrameType | None) -> None:
            asked.sendall(bytes([number]))

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, hand_on)
        inherited = [name for name in INHERITED if name in os.environ]
        request = {
            "words": words,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "inherited": inherited,
        }
        socket.send_fds(
            asked, [json.dumps(request).encode()], [0, 1, 2, *(int(os.environ[name]) for name in inherited)]
        )
        status = int(asked.recv(16) or b"1")
    if status < 0:
        with contextlib.suppress(OSError):  # SIGKILL has no other
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
