"""The data plane over the public TransferQueue package, adapted so that our contract holds.

TransferQueue keeps bytes here, and nothing else: the samples, tags, claims and leases are our own control's
(`refrl.data_plane.ray.Control`), since TransferQueue shows rows before their tags, forgets a claimer that dies, and
leaves out of an answer what is missing. A column of a put is one row of it, so that freeing it frees its buffer. Every
call has a deadline: without one, calls to a TransferQueue whose controller died never end. One TransferQueue serves a
Ray cluster; stores of several names share it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import ray
import torch
import transfer_queue
from omegaconf import OmegaConf
from tensordict import TensorDict
from torch import Tensor

from refrl.config.data_plane import DataPlaneConfig
from refrl.data_plane.client import StoreClient
from refrl.data_plane.columns import Column
from refrl.data_plane.errors import StoreUnavailableError
from refrl.data_plane.ray import START_S, Caller, Control, RayControl, start_actor
from refrl.data_plane.records import NewBlock
from refrl.data_plane.store import BlockGoneError, new_blocks

CONTROLLER = "TransferQueueController"
"""The name that TransferQueue gives its actor."""
FIELD = "bytes"
PROBE = "probe"
HEADER_BYTES = 8
T = TypeVar("T")


class TransferQueueStore:
    """A `refrl.data_plane.store.ColumnStore` in TransferQueue's storage unit."""

    def __init__(self, partition: str, seconds: float) -> None:
        """Put a probe, by which `check` knows that bytes can be had.

        Raises:
            StoreUnavailableError: they cannot.
        """
        self._partition = partition
        self._seconds = seconds
        self._put(PROBE, torch.zeros(1, dtype=torch.uint8))

    def check(self) -> None:
        """See `ColumnStore`."""
        self._get(PROBE)

    def save(self, columns: Mapping[str, Column]) -> list[NewBlock]:
        """See `ColumnStore`."""
        blocks = new_blocks(columns)
        # What a failed put leaves at TransferQueue's controller is known to nobody; asking takes a deadline more.
        for block, column in zip(blocks, columns.values(), strict=True):
            self._put(block.name, to_bytes(column))
        return blocks

    def read(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, tuple[Column, Sequence[int]]]:
        """See `ColumnStore`."""
        return {name: (from_bytes(self._get(name)), rows) for name, rows in wanted.items()}

    def drop(self, names: Sequence[str]) -> None:
        """See `ColumnStore`. A storage unit that is dead would be told of and forgotten: it is asked first."""
        if names:
            self.check()
            known = within(self._seconds, lambda: transfer_queue.kv_list(self._partition))
            there = [name for name in names if name in known.get(self._partition, {})]
            if there:
                within(self._seconds, lambda: transfer_queue.kv_clear(there, self._partition))

    def _put(self, name: str, values: Tensor) -> None:
        row = TensorDict({FIELD: values.unsqueeze(0)}, batch_size=[1])
        within(self._seconds, lambda: transfer_queue.kv_batch_put([name], self._partition, row))

    def _get(self, name: str) -> Tensor:
        def get() -> Any:
            return transfer_queue.kv_batch_get([name], self._partition, [FIELD])

        try:
            found = within(self._seconds, get)
        except ValueError as error:
            raise BlockGoneError(f"block {name} is not in TransferQueue: {error}") from error
        values = found.get(FIELD, None)
        if values is None or len(values) != 1:
            raise BlockGoneError(f"block {name} is not in TransferQueue")
        row: Tensor = values[0]
        return row


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return what a call to TransferQueue returns, in time.

    Raises:
        StoreUnavailableError: it did not end, or reports a failure of its own.
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
    thread.join(seconds)
    if answer:
        return answer[0]
    if not failure:
        raise StoreUnavailableError(
            f"TransferQueue did not answer within {seconds:g} s: is its storage unit alive?"
        )
    if isinstance(failure[0], ValueError):
        raise failure[0]
    raise StoreUnavailableError(f"TransferQueue failed: {failure[0]}") from failure[0]


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
        within(START_S, lambda: transfer_queue.init(OmegaConf.create(words)))
        start_actor(Control, config.name, config, config.journal, restarts=config.journal is not None)
    else:
        # TransferQueue's init would begin a system of its defaults where there is none to join.
        Caller(CONTROLLER, config.timeout_s, restarts=False, namespace="transfer_queue")
        within(START_S, transfer_queue.init)
    control = Caller(config.name, config.timeout_s, restarts=config.journal is not None)
    store = TransferQueueStore(f"refrl-{config.name}", config.timeout_s)
    return StoreClient(RayControl(control), store, lease_s=config.lease_s)
