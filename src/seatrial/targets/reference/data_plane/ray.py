"""refrl's data planes that live in processes of a Ray cluster, offered to the relations.

`seatrial relations seatrial.targets.reference.data_plane.ray:RayDataPlane --component data_plane`
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
import uuid
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import psutil
import ray

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import build_data_plane_client
from refrl.data_plane.ray import NAMESPACE
from seatrial.targets.reference.data_plane.local import ReferenceDataPlane

TIMEOUT_S = 8.0
"""Of every call: a law allows ten seconds and a little."""


class RayPlane:
    """A store of its own name, as `seatrial.relations.contracts.data_plane.OpenPlane`; its control is restored."""

    timeout_s = TIMEOUT_S

    def __init__(self, implementation: Literal["ray", "transfer_queue"]) -> None:
        name = f"plane-{uuid.uuid4().hex[:8]}"
        self._folder = tempfile.TemporaryDirectory(prefix="plane-", ignore_cleanup_errors=True)
        self.config = DataPlaneConfig(
            implementation=implementation,
            name=name,
            timeout_s=self.timeout_s,
            journal=str(Path(self._folder.name) / "journal.jsonl"),
        )
        self._client: Any = build_data_plane_client(self.config)

    def client(self) -> Any:
        return build_data_plane_client(self.config, bootstrap=False)

    def bytes_held(self, partition_id: str) -> int:
        """Return the bytes of the store, all partitions together: what its control says of them is no evidence."""
        blocks = ray.get_actor(f"{self.config.name}-blocks", namespace=NAMESPACE)
        return int(ray.get(blocks.__ray_call__.remote(_bytes), timeout=self.timeout_s))

    def kill_store(self) -> None:
        kill_actor(f"{self.config.name}-blocks")

    def kill_control(self) -> None:
        kill_actor(self.config.name)


class RayDataPlane(ReferenceDataPlane):
    """`data_plane.implementation=ray`."""

    data_plane_in_process = False

    def data_plane_to_break(self) -> Any:
        start_ray()
        return RayPlane("ray")


class TransferQueuePlane(RayPlane):
    """Its bytes are with the one storage unit of the cluster's TransferQueue."""

    def bytes_held(self, partition_id: str) -> int:
        """As `RayPlane.bytes_held`: every row that TransferQueue has of the store is read."""
        import transfer_queue

        store = f"refrl-{self.config.name}"
        names = sorted(transfer_queue.kv_list(store).get(store, {}))
        rows = [transfer_queue.kv_batch_get([name], store, ["bytes"])["bytes"][0] for name in names]
        return sum(row.numel() for row in rows)

    def kill_store(self) -> None:
        for named in ray.util.list_named_actors(all_namespaces=True):
            if "StorageUnit" in named["name"]:
                kill_actor(named["name"], named["namespace"])


class TransferQueueDataPlane(ReferenceDataPlane):
    """`data_plane.implementation=transfer_queue`."""

    data_plane_in_process = False

    @cached_property
    def _plane(self) -> Any:
        start_ray()
        return TransferQueuePlane("transfer_queue")

    def data_plane_to_break(self) -> Any:
        # There is one TransferQueue in a cluster, and what is broken stays broken: another cluster.
        stop_transfer_queue()
        ray.shutdown()
        start_ray()
        return TransferQueuePlane("transfer_queue")


def start_ray() -> None:
    """Begin a cluster of this process alone, unless Ray is initialised."""
    if not ray.is_initialized():
        folder = tempfile.mkdtemp(prefix="sea-")  # Ray's sockets lie there: short
        ray.init(
            address="local",
            num_cpus=4,  # Ray starts as many workers at once; TransferQueue needs two
            include_dashboard=False,
            object_store_memory=1 << 30,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=folder,
        )


def stop_transfer_queue() -> None:
    """Disconnect this process from its TransferQueue, whether that still runs or not."""
    import transfer_queue

    from refrl.data_plane.transfer_queue import within

    within(60.0, transfer_queue.close, {})


def kill_actor(name: str, namespace: str = NAMESPACE) -> None:
    """Kill the process of an actor, and return when it is gone."""
    actor = ray.get_actor(name, namespace=namespace)
    pid = ray.get(actor.__ray_call__.remote(_pid))
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def _pid(actor: Any) -> int:
    return os.getpid()


def _bytes(blocks: Any) -> int:
    return sum(column.num_bytes for column in blocks._columns.values())
