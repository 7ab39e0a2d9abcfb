"""From configuration to a client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refrl.config.run import DataPlaneConfig
from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.client import StoreClient
from refrl.data_plane.control import ControlState
from refrl.data_plane.errors import StoreUnavailableError
from refrl.data_plane.store import LocalStore
from refrl.errors import ConfigError

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


def build_data_plane_client(config: DataPlaneConfig, *, bootstrap: bool = True) -> DataPlaneClient:
    """Return a client.

    Args:
        config: of the store; every participant gives the same.
        bootstrap: begin the store (its driver does), instead of joining one that is there. What begins here ends with
            this process, not with `close`.

    Raises:
        ValueError: a local store cannot be joined: its client is shared among threads.
        refrl.data_plane.errors.StoreUnavailableError: it cannot be begun, or there is none to join.
        ImportError: a package of the implementation is not installed.
    """
    if config.implementation == "local":
        if not bootstrap:
            raise ValueError(
                "data_plane.implementation=local serves one process: hand its client to the threads that share it, or "
                "use implementation=ray"
            )
        return local_client(lease_s=config.lease_s)
    if config.implementation == "ray":
        from refrl.data_plane.ray import ray_client

        return ray_client(config, bootstrap=bootstrap)
    from refrl.data_plane.transfer_queue import transfer_queue_client

    return transfer_queue_client(config, bootstrap=bootstrap)


@contextmanager
def opened_data_plane(config: DataPlaneConfig) -> Iterator[DataPlaneClient]:
    """Yield a client of a new store, which ends with the block.

    Raises:
        ConfigError: the store cannot be begun, or a package of the implementation is not installed.
    """
    what = f"data_plane.implementation={config.implementation}"
    try:
        client = build_data_plane_client(config)
    except ImportError as error:
        raise ConfigError(f"{what}: {error}: pip install 'seatrial[{config.implementation}]'") from error
    except StoreUnavailableError as error:
        raise ConfigError(f"{what}: {error}") from error
    try:
        yield client
        client.close()
    finally:
        _end(config)


def data_plane_processes(config: DataPlaneConfig) -> dict[str, int]:
    """Return the processes that an open store has besides this one, by what messages call them."""
    if config.implementation == "local":
        return {}
    if config.implementation == "ray":
        from refrl.data_plane.ray import processes

        return processes(config)
    from refrl.data_plane.transfer_queue import transfer_queue_processes

    return transfer_queue_processes(config)


def _end(config: DataPlaneConfig) -> None:
    if config.implementation == "ray":
        from refrl.data_plane.ray import end_store

        end_store(config)
    elif config.implementation == "transfer_queue":
        from refrl.data_plane.transfer_queue import end_transfer_queue

        end_transfer_queue(config)
