"""Worked examples of stores that several processes share: what is theirs while they are open, and after their end."""

from __future__ import annotations

import os
import random
import tempfile
import time
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
    for kind in ("ray", "transfer_queue"):
        orders = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [3.0, 1.0], [2.0]]
        right = {"read": orders, "claimed": [list("abc")] * 2, "held": [2, 0], "limits of threads": 0}
        yield example(f"rows in a store of {kind} whose control crashes twice", right, _lived, kind)
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


def _lived(kind: str) -> Any:
    """Return what is read in any order, claimed around crashes, and held before and after rows are cleared."""
    cluster = Cluster()
    with tempfile.TemporaryDirectory() as folder, imported_with(cluster.modules(), MODULES) as (ray, _):
        config = _config(kind, journal=f"{folder}/journal").model_copy(update={"lease_s": 0.02})

        def num_held() -> int:
            if kind == "ray":
                return len(cluster.actors[ray.NAMESPACE, "own-blocks"].made._columns)
            return sum(name != "probe" for name in cluster.rows["refrl-own"])

        with factory.opened_data_plane(config) as client:
            client.register_partition("p", ["x", "y"], 3, ["t"])
            values = {"x": torch.tensor([1.0, 2.0, 3.0]), "y": torch.zeros(3, 2)}
            client.put_samples(list("abc"), "p", values)
            held, claimed = [num_held()], []
            read: list[Any] = [
                client.get_samples(list(names), "p", ["x"])["x"] for names in ("abc", "cba", "ca", "b")
            ]
            for _ in range(2):
                claimed.append(client.claim_meta("p", "t", ["x"], 3, timeout_s=0.0).sample_ids)
                for _ in range(2):
                    cluster.crash("own", ray.NAMESPACE)
                time.sleep(0.03)
            client.clear_samples(list("ab"), "p")
            client.clear_samples(["c"], "p")
            held.append(num_held())
    return {
        "read": [one.tolist() for one in read],
        "claimed": claimed,
        "held": held,
        "limits of threads": cluster.num_limits,
    }


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
