"""The connection of ranks with their launcher: where they rendezvous, their placement, a pipe that ends with it."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading

RENDEZVOUS = "REFRL_RENDEZVOUS"
"""Variable with the URL of the file or of the port at which ranks meet; set in ranks that `refrl.runtime` started."""
LISTENING = "REFRL_LISTENING"
"""Variable of rank 0 with the descriptor of a socket bound to that port, so that no other process can take it."""
LIFELINE = "REFRL_LIFELINE"
"""Variable with the number of the pipe's reading end."""
RAY_NODE = "REFRL_RAY_NODE"
"""Variable with the id of the node of a Ray cluster on which the rank was placed."""
RAY_CLUSTER = "REFRL_RAY_CLUSTER"
"""Variable with the address of that cluster."""
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets in the ranks that it starts."""
LOST_LAUNCHER = 1
"""Exit status of a rank whose launcher is gone."""


PARENT = "REFRL_PARENT"
"""Variable of a generator's process with the number of the process that started it."""


def end_with_parent() -> None:
    """Have the kernel kill this process when its parent exits; call it before anything slow is imported.

    Linux alone can do it; elsewhere, and in a process that was not started by `PARENT` itself, nothing is set. The
    kernel acts when the *thread* that started this process ends, so `PARENT` is set by main threads only.
    """
    parent = int(os.environ.pop(PARENT, "0"))
    if not parent:
        return
    if os.getppid() == parent and sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:  # it exited before the signal was set
            os._exit(LOST_LAUNCHER)


_SET_PARENT_DEATH_SIGNAL = 1


def is_started() -> bool:
    """Return whether this process was started as a rank, by refrl or torchrun; other launchers are not recognised."""
    return RENDEZVOUS in os.environ or TORCHRUN in os.environ


def placed_by() -> str:
    """Return what started this process as a rank: `ray`, `process`, `torchrun`; `inline` where nothing did."""
    kinds = {RAY_NODE: "ray", RENDEZVOUS: "process", TORCHRUN: "torchrun"}
    return next((kind for name, kind in kinds.items() if name in os.environ), "inline")


def node() -> str:
    """Return where this process is: the id of its node of a Ray cluster, or the name of its host."""
    return os.environ.get(RAY_NODE) or socket.gethostname()


def watch_lifeline() -> None:
    """Leave this process at once when the launcher is gone; without a launcher nothing is watched."""
    number = os.environ.get(LIFELINE)
    if number is None:
        return

    def watch() -> None:
        os.read(int(number), 1)
        os._exit(LOST_LAUNCHER)

    threading.Thread(target=watch, daemon=True, name="refrl-lifeline").start()
