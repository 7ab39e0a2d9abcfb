"""What stands in for Python (see `tests.forked`): `client.py PYTHON ADDRESS MODULES WORDS`, run isolated and without
`site`; MODULES are those that the server may be asked for."""

import _signal
import _socket
import array
import marshal
import os
import sys
from types import FrameType

# In C: the modules around `_signal` and `_socket`, and json, would take more time than all else here.
OURS = ("refrl", "seatrial", "tests")
"""What the server that has imported the stack is asked for."""
FORK_SERVER = "from multiprocessing.forkserver import main; main("
"""How the program begins by which multiprocessing starts a fork server, which imports what we have imported."""
WORKER = "import sys;exec(eval(sys.stdin.readline()))"
"""The program by which pytest-xdist (execnet) starts a process that runs tests."""
SAFE_PATH = "-P"
"""Nothing is imported from the current folder."""
HANDED_ON = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1, _signal.SIGUSR2)


def main(python: str, address: str, modules: str, *words: str) -> int:
    """Ask for a process, hand signals on, and end as it does."""
    if words[:1] == ("-u",):  # of torchrun: what is written reaches its reader at the end, if not before
        words = words[1:]
    options, asked_for = split(words, tuple(modules.split(",")))
    if not asked_for:
        os.execv(python, [python, *words])
    files = _inherited()
    asked = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    asked.connect(address)

    def hand_on(number: int, _: FrameType | None) -> None:
        asked.sendall(bytes([number]))

    for number in HANDED_ON:
        _signal.signal(number, hand_on)
    request = {
        "words": asked_for,
        "options": options,
        "environment": dict(os.environ),
        "folder": os.getcwd(),  # noqa: PTH109  pathlib takes as long to import as the rest
        "files": files,
    }
    message = marshal.dumps(request)
    numbers = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files))]
    asked.sendmsg([len(message).to_bytes(4, "big")], numbers)
    asked.sendall(message)
    status = int(asked.recv(16) or b"1")
    if status < 0:
        if -status != _signal.SIGKILL:
            _signal.signal(-status, _signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def split(words: tuple[str, ...], modules: tuple[str, ...] = OURS) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `-P`, if it is given, and what is asked for: one of the modules and its words, or `-c` and the program of
    a fork server or of a process that runs tests; nothing for anything else."""
    options = words[: words[:1] == (SAFE_PATH,)]
    rest = words[len(options) :]
    if rest[:1] and rest[0].startswith("-m") and rest[0] != "-m":
        rest = ("-m", rest[0].removeprefix("-m"), *rest[1:])
    if rest[:1] == ("-m",) and rest[1].partition(".")[0] in modules:
        return options, rest[1:]
    if "-c" in words and (words[-1].startswith(FORK_SERVER) or words == ("-c", WORKER)):
        return (), words[-2:]
    return (), ()


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
