"""The data plane over the public TransferQueue package, adapted so that our contract holds.

TransferQueue only keeps bytes here: the samples, tags, claims and leases are in our own control
(`refrl.data_plane.ray.Control`), since TransferQueue shows rows before their tags, drops a crashed client's claims, and
omits what is missing from an answer. A column of a put is one row of it, so that freeing it frees its buffer. Every
call has a deadline: without one, calls to a TransferQueue whose controller has crashed never end. One TransferQueue
serves a Ray cluster; stores of several names share it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import ray
import ray.exceptions
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor

from refrl.config.run import DataPlaneConfig
from refrl.data_plane.client import StoreClient
from refrl.data_plane.columns import Column
from refrl.data_plane.errors import StoreUnavailableError
from refrl.data_plane.ray import START_S, Caller, Control, RayControl, end_store, processes, start_actor
from refrl.data_plane.records import NewBlock
from refrl.data_plane.store import BlockGoneError, new_blocks

CONTROLLER = "TransferQueueController"
"""The name that TransferQueue gives its actor."""
STORAGE_UNIT = "TransferQueueStorageUnit"
"""What the name begins with that it gives the actor that has the bytes."""
LOOK_S = 0.5
"""Between two looks, by a call that waits for its answer, whether TransferQueue's actors live."""
END_S = 2.0
"""Time limit for an actor to answer that it is alive before it is stopped."""
FIELD = "bytes"
PROBE = "probe"
HEADER_BYTES = 8
T = TypeVar("T")


def _as_they_are(*words: Any, **options: Any) -> AbstractContextManager[None]:
    return nullcontext()


# TransferQueue sets torch's number of threads in each call, for the whole process, and afterwards to what it was when
# TransferQueue was imported: what is sampled or trained meanwhile, and from then on, is rounded otherwise.
transfer_queue.client.limit_pytorch_auto_parallel_threads = _as_they_are


class TransferQueueStore:
    """A `refrl.data_plane.store.ColumnStore` in TransferQueue's storage unit."""

    def __init__(self, partition: str, seconds: float) -> None:
        """Put a probe, by which `check` knows that bytes can be had.

        Raises:
            StoreUnavailableError: they cannot.
        """
        self._partition = partition
        self._seconds = seconds
        self._actors = actors()
        self._put(PROBE, torch.zeros(1, dtype=torch.uint8))

    def check(self) -> None:
        """See `ColumnStore`."""
        self._get(PROBE)

    def save(self, columns: Mapping[str, Column]) -> list[NewBlock]:
        """See `ColumnStore`."""
        blocks = new_blocks(columns)
        # What a failed put leaves at TransferQueue's controller is unknown; finding out takes another deadline.
        for block, column in zip(blocks, columns.values(), strict=True):
            self._put(block.name, to_bytes(column))
        return blocks

    def read(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, tuple[Column, Sequence[int]]]:
        """See `ColumnStore`."""
        return {name: (from_bytes(self._get(name)), rows) for name, rows in wanted.items()}

    def drop(self, names: Sequence[str]) -> None:
        """See `ColumnStore`. Checks first that the storage units are alive: TransferQueue would ignore a dead one."""
        if names:
            self.check()
            known = self._within(lambda: transfer_queue.kv_list(self._partition))
            there = [name for name in names if name in known.get(self._partition, {})]
            if there:
                self._within(lambda: transfer_queue.kv_clear(there, self._partition))

    def _put(self, name: str, values: Tensor) -> None:
        row = TensorDict({FIELD: values.unsqueeze(0)}, batch_size=[1])
        self._within(lambda: transfer_queue.kv_batch_put([name], self._partition, row))

    def _get(self, name: str) -> Tensor:
        def get() -> Any:
            return transfer_queue.kv_batch_get([name], self._partition, [FIELD])

        try:
            found = self._within(get)
        except ValueError as error:
            raise BlockGoneError(f"block {name} is not in TransferQueue: {error}") from error
        values = found.get(FIELD, None)
        if values is None or len(values) != 1:
            raise BlockGoneError(f"block {name} is not in TransferQueue")
        row: Tensor = values[0]
        return row

    def _within(self, call: Callable[[], T]) -> T:
        return within(self._seconds, call, self._actors)


def end_transfer_queue(config: DataPlaneConfig) -> None:
    """End a store that this process began, and the cluster's TransferQueue with it."""
    end_store(config)
    for actor in actors().values():
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=END_S)
        except (ray.exceptions.GetTimeoutError, ray.exceptions.RayActorError):
            ray.kill(actor)  # its end would be waited for
    # Not in a thread that may outlive it: a call to Ray after the run's cluster has ended would start another cluster.
    transfer_queue.close()


def transfer_queue_processes(config: DataPlaneConfig) -> dict[str, int]:
    """Return the processes of a store: its control's, and that of TransferQueue's storage unit."""
    found = processes(config)
    for name, actor in actors().items():
        if name != CONTROLLER:
            asked = actor.__ray_call__.remote(lambda unit: os.getpid())
            found["TransferQueue"] = ray.get(asked, timeout=config.timeout_s)
    return found


def actors() -> dict[str, Any]:
    """Return the living actors of the cluster's TransferQueue by name: its controller, and its storage unit."""
    return {
        named["name"]: ray.get_actor(named["name"], namespace=named["namespace"])
        for named in ray.util.list_named_actors(all_namespaces=True)
        if named["name"].startswith((CONTROLLER, STORAGE_UNIT))
    }


def within(seconds: float, call: Callable[[], T], needed: Mapping[str, Any]) -> T:
    """Return what a call to TransferQueue returns, in time.

    Args:
        seconds: for which it is waited for.
        call: what is called.
        needed: actors by name; the death of one ends the wait. TransferQueue itself would wait for ten minutes.

    Raises:
        StoreUnavailableError: it did not end, reports a failure of its own, or an actor that it needs is dead.
        ValueError: as the call.
    """
    answer: list[T] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            answer.append(call())
        except Exception as error:  # noqa: BLE001  handed to the thread that waits
            failure.append(error)

    # A call that hangs cannot be ended: its thread is left behind, and ends with the process.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    end = time.monotonic() + seconds
    thread.join(min(seconds, LOOK_S))
    while thread.is_alive() and (left := end - time.monotonic()) > 0:
        check_alive(needed)
        thread.join(min(left, LOOK_S))
    if answer:
        return answer[0]
    if not failure:
        raise StoreUnavailableError(
            f"TransferQueue did not answer within {seconds:g} s: is its storage unit alive? Where it is only busy, "
            "raise data_plane.timeout_s"
        )
    if isinstance(failure[0], ValueError):
        raise failure[0]
    raise StoreUnavailableError(f"TransferQueue failed: {failure[0]}") from failure[0]


def check_alive(needed: Mapping[str, Any]) -> None:
    """Ask actors whether they live; one that is busy need not answer.

    Raises:
        StoreUnavailableError: one is dead.
    """
    asked = {name: actor.__ray_ready__.remote() for name, actor in needed.items()}
    for name, answer in asked.items():
        try:
            ray.get(answer, timeout=LOOK_S / len(asked))
        except ray.exceptions.ActorDiedError as error:
            raise StoreUnavailableError(f"TransferQueue failed: its actor {name!r} is dead") from error
        except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
            continue  # whether it lives is not known yet


def to_bytes(column: Column) -> Tensor:
    """Return a column as one row of bytes: the length of its description, the description, its values."""
    words = [column.kind, column.dtype_of_values, list(column.values.shape), column.lengths]
    text = json.dumps(words).encode()
    head = np.frombuffer(len(text).to_bytes(HEADER_BYTES, "little") + text, dtype=np.uint8)
    values = column.values.contiguous().view(-1).view(torch.uint8)
    return torch.cat([torch.from_numpy(head.copy()), values])


def from_bytes(row: Tensor) -> Column:
    """Return the column of `to_bytes`."""
    end = HEADER_BYTES + int.from_bytes(row[:HEADER_BYTES].numpy().tobytes(), "little")
    kind, dtype, shape, lengths = json.loads(row[HEADER_BYTES:end].numpy().tobytes())
    # A copy: what follows the description need not lie where its dtype may begin.
    values = row[end:].clone().view(getattr(torch, dtype)).reshape(shape)
    return Column(kind, values, None if lengths is None else tuple(lengths))


def transfer_queue_client(config: DataPlaneConfig, *, bootstrap: bool) -> StoreClient:
    """Return a client of the store of this name; see `refrl.data_plane.build_data_plane_client`.

    Raises:
        StoreUnavailableError: Ray is not initialised; with `bootstrap`, there is a store of this name; without, none.
    """
    if not ray.is_initialized():
        raise StoreUnavailableError(
            "Ray is not initialised in this process: call ray.init before building the client"
        )
    if bootstrap:
        words = {
            "backend": {"storage_backend": "SimpleStorage", "SimpleStorage": {"num_data_storage_units": 1}}
        }
        within(START_S, lambda: transfer_queue.init(OmegaConf.create(words)), {})
        start_actor(Control, config.name, config, config.journal, restarts=config.journal is not None)
    else:
        # TransferQueue's init would begin a system of its defaults where there is none to join.
        Caller(CONTROLLER, config.timeout_s, restarts=False, namespace="transfer_queue")
        within(START_S, transfer_queue.init, {})
    control = Caller(config.name, config.timeout_s, restarts=config.journal is not None)
    store = TransferQueueStore(f"refrl-{config.name}", config.timeout_s)
    return StoreClient(RayControl(control), store, lease_s=config.lease_s)
