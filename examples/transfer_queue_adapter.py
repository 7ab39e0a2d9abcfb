"""TransferQueue's own client under the battery of the data plane, as it is: nothing is made up for.

    seatrial relations transfer_queue_adapter:TransferQueue --component data_plane

run in this folder, in an environment with Ray and TransferQueue. What TransferQueue has no word for (a lease, an
acknowledgement, registered partitions) does nothing here; the laws say what follows from that.
"""

import os
import signal
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

import psutil
import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict

from seatrial.relations import NotServed

CONFIG = {
    "controller": {"polling_mode": True},
    "backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}},
}
ALL = 1000
"""A batch size that means all rows that are ready."""
HANG_S = 15.0
"""A call that takes longer counts as one that never returns."""


@dataclass
class Meta:
    """Samples of a claim."""

    partition_id: str
    sample_ids: list[str]
    fields: list[str]
    tags: list[dict[str, Any]]

    @property
    def sequence_lengths(self) -> list[int] | None:
        """What the tags say."""
        lengths = [tags.get("input_lengths") for tags in self.tags]
        return None if None in lengths else lengths


class Client:
    """TransferQueue's key-value calls, and its claims by way of indexes."""

    def register_partition(self, partition_id, fields, num_samples, consumer_tasks):
        """Nothing is registered: a partition is there with its first row."""

    def put_samples(self, sample_ids, partition_id, fields=None, tags=None):
        """One call."""
        row = None
        if fields is not None:
            nested = {
                name: torch.nested.as_nested_tensor(value, layout=torch.jagged)
                if isinstance(value, list)
                else (list(value) if not isinstance(value, torch.Tensor) else value)
                for name, value in fields.items()
            }
            row = TensorDict(nested, batch_size=[len(sample_ids)])
        own = None if tags is None else [dict(each) for each in tags]
        hung(lambda: transfer_queue.kv_batch_put(list(sample_ids), partition_id, row, own))

    def get_samples(self, sample_ids, partition_id, select_fields):
        """One call."""
        found = hung(lambda: transfer_queue.kv_batch_get(list(sample_ids), partition_id, list(select_fields)))
        return {name: found[name] for name in found.keys()}  # noqa: SIM118  a TensorDict is not its keys

    def claim_meta(
        self,
        partition_id,
        task_name,
        required_fields,
        batch_size,
        *,
        blocking=True,
        timeout_s=60.0,
        lease_s=None,
    ):
        """Poll, as NeMo RL's adapter does.

        TransferQueue returns exactly as many rows as requested, or none, and has no request for all that are ready:
        those are claimed one by one, so that this one property does not break every law.
        """
        everything = batch_size >= ALL
        end, found = time.monotonic() + timeout_s, Meta(partition_id, [], list(required_fields), [])
        while True:
            got = self._fetch(found, task_name, 1 if everything else batch_size)
            if found.sample_ids and not (everything and got):
                return found
            if not blocking and not got:
                return found
            if time.monotonic() >= end and not found.sample_ids:
                raise TimeoutError("no rows")
            if not got:
                time.sleep(0.01)

    def _fetch(self, found, task_name, batch_size):
        """Add one claim to what was found; return whether it brought anything."""
        client, partition_id = transfer_queue.get_client(), found.partition_id
        got = hung(
            lambda: client.get_meta(found.fields, batch_size, partition_id, mode="fetch", task_name=task_name)
        )
        indexes = list(got.global_indexes)
        if indexes:
            found.sample_ids += client.kv_retrieve_keys(indexes, partition_id)
            found.tags += [dict(own) for own in got.custom_meta]
        return bool(indexes)

    def acknowledge(self, meta):
        """There is no such thing."""

    def release(self, meta):
        """There is no such thing."""

    def get_data(self, meta, select_fields=None):
        """By the keys."""
        return self.get_samples(
            meta.sample_ids, meta.partition_id, meta.fields if select_fields is None else select_fields
        )

    def check_consumption_status(self, partition_id, task_names):
        """Task by task."""
        client = transfer_queue.get_client()
        return all(
            hung(lambda task=task: client.check_consumption_status(task, partition_id)) for task in task_names
        )

    def clear_samples(self, sample_ids, partition_id):
        """All keys where none are given."""
        known = list(hung(lambda: transfer_queue.kv_list(partition_id)).get(partition_id, {}))
        chosen = known if sample_ids is None else [sample for sample in sample_ids if sample in known]
        if chosen:
            hung(lambda: transfer_queue.kv_clear(chosen, partition_id))

    def partitions(self):
        """As the controller lists them."""
        return transfer_queue.get_client().get_partition_list()

    def close(self):
        """TransferQueue's own, which also ends the controller, is left out here: no law could run after it."""
        raise NotServed("close ends the controller for everybody")


class Plane:
    """The one TransferQueue of a cluster."""

    def __init__(self) -> None:
        """Begin it."""
        ray.init(
            address="local",
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=1 << 30,
            log_to_driver=False,
            logging_level="ERROR",
            _temp_dir=tempfile.mkdtemp(prefix="sea-"),
        )
        transfer_queue.init(OmegaConf.create(CONFIG))

    def client(self):
        """Processes share one client."""
        return Client()

    def bytes_held(self, partition_id):
        """The memory of the storage unit's process."""
        return psutil.Process(_unit()[1]).memory_info().rss

    def kill_store(self):
        """Kill the storage unit."""
        _kill(_unit()[1])

    def kill_control(self):
        """Kill the controller."""
        _kill(_pid_of(ray.get_actor("TransferQueueController", namespace="transfer_queue")))


class TransferQueue:
    """The adapter."""

    def __init__(self) -> None:
        """Nothing is begun before it is asked for."""
        self._plane: Plane | None = None

    def data_plane(self):
        """One for all laws."""
        if self._plane is None:
            self._plane = Plane()
        return self._plane

    def data_plane_to_break(self):
        """Another cluster."""
        if ray.is_initialized():
            hung(transfer_queue.close, 60.0)
            ray.shutdown()
        return Plane()

    def shard(self, meta, ranks):
        """It has no such part."""
        raise NotServed("TransferQueue shares rows among ranks by samplers of its own")

    def filter_stale(self, meta, tags, *, max_staleness, current_weight_version):
        """It has no such part."""
        raise NotServed("TransferQueue has no filter")


def hung(call, seconds=HANG_S):
    """Return what a call returns; a call that does not end is an error that says so."""
    answer, failure = [], []

    def run():
        try:
            answer.append(call())
        except Exception as error:  # noqa: BLE001  raised again by the caller
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not answer:
        raise RuntimeError(f"the call did not end within {seconds:g} s")
    return answer[0]


def _unit():
    for named in ray.util.list_named_actors(all_namespaces=True):
        if "StorageUnit" in named["name"]:
            actor = ray.get_actor(named["name"], namespace=named["namespace"])
            return actor, _pid_of(actor)
    raise RuntimeError("no storage unit")


def _pid_of(actor):
    return ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))


def _kill(pid):
    os.kill(pid, signal.SIGKILL)
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
