"""`python -m tests.forked.server ADDRESS`: imports the stack, says so, and forks a child for each request.

It ends with its standard input.
"""

import contextlib
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

IMPORTS = (
    "refrl.cli.grpo",
    "refrl.training.grpo",
    "refrl.training.sft",
    "refrl.training.recorder",
    "transformers.models.qwen3.modeling_qwen3",
    "seatrial.targets.reference.components",
)
NUM_STREAMS = 3
NUM_LOOKS, LOOK_SECONDS = 5, 0.1
"""For children to end after the last request, so that their time is counted."""


def main(address: str) -> None:
    """Serve."""
    for name in IMPORTS:
        importlib.import_module(name)
    assert threading.active_count() == 1, "a thread does not live on in a child"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(64)
        print("ready", flush=True)
        while select.select([listening, sys.stdin], [], [])[0] == [listening]:
            asked, _ = listening.accept()
            if not os.fork():
                listening.close()
                _look_after(asked)
            asked.close()
            _bury()
        for _ in range(NUM_LOOKS):
            if not _bury():
                break
            time.sleep(LOOK_SECONDS)


def _bury() -> bool:
    """Take note of the children that have ended; return whether others run."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _look_after(asked: socket.socket) -> None:
    """Fork the process that was asked for, hand signals on to it, and say how it ended."""
    text, streams, _, _ = socket.recv_fds(asked, 2**20, NUM_STREAMS + 8)
    request = json.loads(text)
    child = os.fork()
    if not child:
        asked.close()
        os._exit(_run(request, streams))
    for stream in streams:
        os.close(stream)

    def hand_on() -> None:
        with contextlib.suppress(OSError):
            while number := asked.recv(1):
                os.kill(child, number[0])
            os.kill(child, signal.SIGKILL)  # whoever asked is gone

    threading.Thread(target=hand_on, daemon=True).start()
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(OSError):
        asked.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run(request: dict[str, Any], streams: list[int]) -> int:
    """Return the exit status of `python -m MODULE WORDS`."""
    for number, stream in enumerate(streams[:NUM_STREAMS]):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ.update(request["environment"])
    for name, stream in zip(request["inherited"], streams[NUM_STREAMS:], strict=True):
        os.environ[name] = str(stream)
    os.chdir(request["folder"])
    places = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["folder"], *(place for place in places if place and place not in sys.path[1:])]
    random.seed()
    module, *words = request["words"]
    sys.argv = [module, *words]
    status: Any = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status or 0)


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # the interpreter would take a second to put all of the stack away
