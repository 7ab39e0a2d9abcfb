"""Worked examples of stores that several processes share: what is theirs while they are open, and after their end."""

from __future__ import annotations

import os
import random
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import factory
from refrl.data_plane.columns import encode
from refrl.data_plane.store import new_blocks
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example
from seatrial.targets.reference.worked.made_packages import imported_with
from seatrial.targets.reference.worked.made_ray import FIRST, Cluster

MODULES = ["refrl.data_plane.ray", "refrl.data_plane.transfer_queue"]


def of_spread_stores() -> Iterator[WorkedExample]:
    """Yield what a driver, and clients that join it, see of a store and leave behind."""
    own, bytes_ = {"own": FIRST + 2}, {"own-blocks": FIRST + 3}
    for kind, due in (
        ("local", {}),
        ("ray", {**own, **bytes_}),
        ("transfer_queue", {"own": FIRST + 4, "TransferQueue": FIRST + 3}),
    ):
        for raises in (False, True):
            name = f"a store of {kind} among others, with an error {raises}"
            yield example(name, ([[1.0, 2.0]] * 2, due, ["other", "other-blocks"]), _opened, kind, raises)
    for has_journal, restarts in ((False, 0), (True, -1)):
        name = f"actors of a store with a journal: {has_journal}"
        yield example(name, {"own": restarts, "own-blocks": 0}, _restarts, has_journal)
    yield example("names of blocks and leases of two processes", 12, _names_of_two_processes)


def _config(kind: str, name: str = "own", journal: str | None = None) -> DataPlaneConfig:
    if kind == "local":
        return DataPlaneConfig()
    return DataPlaneConfig(implementation=kind, name=name, journal=journal)  # type: ignore[arg-type]


def _opened(kind: str, raises: bool) -> Any:
    """Return the rows that a driver and another client read, the store's processes, and which actors it leaves."""
    cluster = Cluster()
    read: list[Any] = []
    named = None
    with imported_with(cluster.modules(), MODULES) as (ray, _):
        other = _config("ray", "other")
        ray.ray_client(other, bootstrap=True)
        config = _config(kind)
        try:
            with factory.opened_data_plane(config) as client:
                client.register_partition("p", ["x"], 2, ["t"])
                client.put_samples(["a", "b"], "p", {"x": torch.tensor([1.0, 2.0])})
                again: Any = client
                if kind != "local":
                    again = factory.build_data_plane_client(config, bootstrap=False)
                found: list[Any] = [one.get_samples(["a", "b"], "p", ["x"])["x"] for one in (client, again)]
                read = [one.tolist() for one in found]
                named = factory.data_plane_processes(config)
                if raises:
                    raise KeyError("x")
        except KeyError:
            assert raises
        return read, named, sorted(cluster.living())


def _restarts(has_journal: bool) -> dict[str, int]:
    """Return how often Ray starts each actor of a store again: -1 is always."""
    cluster = Cluster()
    with tempfile.TemporaryDirectory() as folder, imported_with(cluster.modules(), MODULES) as (ray, _):
        ray.ray_client(_config("ray", journal=f"{folder}/journal" if has_journal else None), bootstrap=True)
        return {name: actor.options["max_restarts"] for (_, name), actor in cluster.actors.items()}


def _names_of_two_processes() -> int:
    """Return how many names two processes of one state give, each to two puts of two columns and to two leases."""
    column = encode(torch.zeros(1), "x")

    def names() -> str:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        client = factory.local_client(lease_s=60.0)
        client.register_partition("p", ["x"], 2, ["t"])
        client.put_samples(["a", "b"], "p", {"x": torch.zeros(2)})
        leases = [client.claim_meta("p", "t", ["x"], 1, timeout_s=0.0).lease_id for _ in range(2)]
        blocks = [block.name for _ in range(2) for block in new_blocks({"x": column, "y": column})]
        return " ".join([*blocks, *map(str, leases)])

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the child makes names and ends
        child = os.fork()
    if child == 0:
        try:
            os.write(writing, names().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        theirs = stream.read().split()
    os.waitpid(child, 0)
    own = names().split()
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return len({*own, *theirs})
