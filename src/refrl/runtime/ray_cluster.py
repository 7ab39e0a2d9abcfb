"""The Ray cluster of a run: the one that it joins, or one of its own that begins and ends with it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refrl.config import ConfigError, GRPORunConfig

STARTS = 3
"""How often a cluster of a run's own is tried: on a busy machine a node may need more than the 30 s that Ray gives."""
TOO_SLOW = "timed out during startup"
"""What Ray says then, in an exception of no class of its own."""


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
    # Ray's sockets lie in this folder, and the path of a socket must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        try:
            _init(config, Path(folder))
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


def _init(config: GRPORunConfig, folder: Path) -> None:
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
        try:
            ray.init(address="local", num_cpus=num_cpus, _temp_dir=str(folder / str(number)), **common)
        except Exception as error:
            if TOO_SLOW not in str(error):
                raise
            ray.shutdown()
            if number == STARTS:
                raise RuntimeError(f"{error} It was tried {STARTS} times.") from error
        else:
            return
