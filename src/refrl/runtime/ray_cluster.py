"""The Ray cluster of a run: the one that it joins, or one of its own that begins and ends with it."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from refrl.config import ConfigError, GRPORunConfig

STARTS = 3
"""How often a cluster of a run's own is tried: on a busy machine a node may need more than the 30 s that Ray gives."""
TOO_SLOW = "timed out during startup"
"""What Ray says then, in an exception of no class of its own."""
LONGEST_PLACE = 107 - len("/ray-01234567/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Bytes. Linux allows 107 for the path of a socket, and Ray puts its own there."""
SHORT_PLACE = "/tmp"


@contextmanager
def ray_cluster(config: GRPORunConfig) -> Iterator[None]:
    """Have Ray for the block, where the configuration places something on it and this process has none yet.

    A cluster of the run's own lives on this host, in a temporary folder, and nobody else's is looked for. At the end
    this process leaves the cluster; what the run started there ends with it, and its own cluster too.

    Raises:
        ConfigError: Ray is not installed, or `cluster.ray_address` does not answer.
    """
    if not needs_ray(config):
        yield
        return
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            "the configuration places parts of the run on Ray, which is not installed: pip install 'seatrial[ray]'"
        ) from error
    if ray.is_initialized():
        yield
        return
    with ExitStack() as folders:
        try:
            _init(config, folders)
        except (ConnectionError, RuntimeError, ValueError) as error:
            place = config.cluster.ray_address or "null (a cluster of the run's own)"
            raise ConfigError(f"cluster.ray_address={place}: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()


def needs_ray(config: GRPORunConfig) -> bool:
    """Return whether a part of the run is placed on Ray."""
    return config.policy.generation.placement == "ray" or config.data_plane.implementation != "local"


def place_for_sockets() -> str:
    """Return the folder in which Ray's own is made: of temporary files, or /tmp where that has too long a path."""
    place = tempfile.gettempdir()
    return place if len(os.fsencode(place)) <= LONGEST_PLACE else SHORT_PLACE


def _init(config: GRPORunConfig, folders: ExitStack) -> None:
    import ray

    common = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "namespace": "refrl",
    }
    if config.cluster.ray_address is not None:
        ray.init(address=config.cluster.ray_address, **common)
        return
    # CPUs are counted, not measured: the replicas share what there is. TransferQueue's two actors ask for one each.
    num_cpus = 1 + config.grpo.async_grpo.num_replicas
    if config.data_plane.implementation == "transfer_queue":
        num_cpus += 2
    for number in range(1, STARTS + 1):
        made = tempfile.TemporaryDirectory(prefix="ray-", dir=place_for_sockets(), ignore_cleanup_errors=True)
        folder = folders.enter_context(made)
        try:
            ray.init(address="local", num_cpus=num_cpus, _temp_dir=folder, **common)
        except Exception as error:
            if TOO_SLOW not in str(error):
                raise
            ray.shutdown()
            if number == STARTS:
                raise RuntimeError(f"{error} It was tried {STARTS} times.") from error
        else:
            return
