"""From configuration to a client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from refrl.config.data_plane import DataPlaneConfig
from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.errors import StoreUnavailableError
from refrl.errors import ConfigError


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
        from refrl.data_plane.local import local_client

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
