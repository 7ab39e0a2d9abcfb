"""From configuration to a client."""

from __future__ import annotations

from refrl.config.data_plane import DataPlaneConfig
from refrl.data_plane.base import DataPlaneClient
from refrl.data_plane.local import local_client


def build_data_plane_client(config: DataPlaneConfig) -> DataPlaneClient:
    """Return a client of a new store."""
    return local_client(lease_s=config.lease_s)
