"""What stands in for Python (see `tests.forked`): `client.py PYTHON ADDRESS WORDS`, run isolated and without `site`."""

import json
import os
import signal
import socket
import sys
from types import FrameType

OURS = ("refrl", "seatrial", "tests")
HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(python: str, address: str, *words: str) -> int:
    """Ask for a process, hand signals on, and end as it does."""
    if words[:1] == ("-u",):  # of torchrun: what is written reaches its reader at the end, if not before
        words = words[1:]
    if words[:1] != ("-m",) or words[1].partition(".")[0] not in OURS:
        os.execv(python, [python, *words])
    files = _inherited()
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(address)

        def hand_on(number: int, _: FrameType | None) -> None:
            asked.sendall(bytes([number]))

        for number in HANDED_ON:
            signal.signal(number, hand_on)
        request = {
            "words": words[1:],
            "environment": dict(os.environ),
            "folder": os.getcwd(),  # noqa: PTH109  pathlib takes as long to import as the rest
            "files": files,
        }
        message = json.dumps(request).encode()
        socket.send_fds(asked, [len(message).to_bytes(4, "big")], files)
        asked.sendall(message)
        status = int(asked.recv(16) or b"1")
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _inherited() -> list[int]:
    """Return the numbers of the files that are open: whoever started this handed them on."""
    files = []
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        try:
            os.fstat(int(name))
        except OSError:  # of the listing itself
            continue
        files.append(int(name))
    return sorted(files)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
