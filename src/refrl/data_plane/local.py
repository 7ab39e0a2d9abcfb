"""The data plane of one process: nothing leaves it, and nothing is served to others."""

from __future__ import annotations

import threading
from typing import Any

from refrl.data_plane.client import StoreClient
from refrl.data_plane.control import ControlState
from refrl.data_plane.store import LocalStore

LOOK_AGAIN_S = 0.02
"""A change between a look at the state and the wait for one is met after this time."""


class LocalControl:
    """A `ControlLink` to a state in this process; for any number of threads."""

    def __init__(self, state: ControlState) -> None:
        """Guard a state."""
        self._state = state
        self._changed = threading.Condition()

    def call(self, operation: str, *words: Any, **options: Any) -> Any:
        """See `ControlLink`."""
        with self._changed:
            answer = getattr(self._state, operation)(*words, **options)
            if operation in ("publish", "release"):
                self._changed.notify_all()
            return answer

    def wait(self, seconds: float) -> None:
        """See `ControlLink`."""
        with self._changed:
            self._changed.wait(min(seconds, LOOK_AGAIN_S))


def local_client(*, lease_s: float) -> StoreClient:
    """Return a client of a new, empty store in this process; threads may share it."""
    return StoreClient(LocalControl(ControlState()), LocalStore(), lease_s=lease_s)
