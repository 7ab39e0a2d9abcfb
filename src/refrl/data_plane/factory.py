"""From configuration to a client."""

from __future__ import annotations

from refrl.config.data_plane import DataPlaneConfig
from refrl.data_plane.base import DataPlaneClient


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
