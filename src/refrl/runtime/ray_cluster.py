"""The Ray cluster of a run: one that it joins, or its own that starts and stops with it."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from refrl.config import ConfigError, GRPORunConfig, SFTRunConfig
from refrl.lifeline import RAY_CLUSTER, is_started

STARTS = 3
"""How often starting an own cluster is tried: on a busy machine a node may need more than the 30 s that Ray allows."""
TOO_SLOW = "timed out during startup"
"""Part of Ray's message for that; the exception has no class of its own."""
LONGEST_PLACE = 107 - len("/ray-01234567/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
"""Bytes. Linux allows 107 for the path of a socket, and Ray appends its own."""
SHORT_PLACE = "/tmp"


@contextmanager
def ray_cluster(config: GRPORunConfig | SFTRunConfig) -> Iterator[None]:
    """Connect to Ray for the block, if the configuration places something on it and this process is not connected.

    An own cluster lives on this host, in a temporary folder; other clusters on the host are not searched for. At the
    end this process disconnects; what the run started there ends with it, and so does its own cluster. A rank that was
    placed in a cluster joins that one.

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
    if not hasattr(ray, "is_initialized"):
        where = getattr(ray, "__file__", None) or "an empty folder"
        raise ConfigError(
            f"the module 'ray' is {where}, which is not Ray: rename it, or take it off PYTHONPATH"
        )
    if ray.is_initialized():
        yield
        return
    with ExitStack() as folders:
        try:
            with _own_handler_of_sigterm():
                _init(config, folders)
        except (ConnectionError, RuntimeError, ValueError) as error:
            place = config.cluster.ray_address or "null (a cluster of the run's own)"
            raise ConfigError(f"cluster.ray_address={place}: {error}") from error
        try:
            yield
        finally:
            ray.shutdown()


def needs_ray(config: GRPORunConfig | SFTRunConfig) -> bool:
    """Return whether this process places something on Ray: a part of the run, or the ranks that it starts."""
    places_ranks = config.cluster.placement == "ray" and not is_started()
    return places_ranks or config.policy.generation.placement == "ray" or _stores_on_ray(config)


def _stores_on_ray(config: GRPORunConfig | SFTRunConfig) -> bool:
    return isinstance(config, GRPORunConfig) and config.data_plane.implementation != "local"


def cpus_of(config: GRPORunConfig | SFTRunConfig) -> int:
    """Return how many CPUs an own cluster declares: logical counts; its parts share the real ones.

    Each rank has a generator, and one more serves validations; TransferQueue's two actors need a CPU each.
    """
    replicas = config.grpo.async_grpo.num_replicas if isinstance(config, GRPORunConfig) else 1
    queue = isinstance(config, GRPORunConfig) and config.data_plane.implementation == "transfer_queue"
    ranks = config.cluster.num_processes
    return ranks * (1 + replicas + (config.cluster.placement == "ray")) + 2 * queue


@contextmanager
def _own_handler_of_sigterm() -> Iterator[None]:
    """Keep this process's SIGTERM handler, which Ray replaces: a run that is terminated exits with status 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    own = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, own)


def place_for_sockets() -> str:
    """Return the parent of Ray's temporary folder: the system's, or /tmp if that path is too long for a socket."""
    place = tempfile.gettempdir()
    return place if len(os.fsencode(place)) <= LONGEST_PLACE else SHORT_PLACE


def _init(config: GRPORunConfig | SFTRunConfig, folders: ExitStack) -> None:
    import ray

    common = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "namespace": "refrl",
    }
    address = os.environ.get(RAY_CLUSTER, config.cluster.ray_address)
    if address is not None:
        ray.init(address=address, **common)
        return
    num_cpus = cpus_of(config)
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
