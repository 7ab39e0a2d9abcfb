"""The data plane of a Ray cluster: one actor knows which samples there are, another one keeps their bytes.

The bytes are in Ray's object store, owned by the second actor: a producer or consumer that crashes takes none of them
with it. The first actor writes a journal if one is configured, and Ray restarts it from the journal after a crash. The
second is not restarted: its end loses the bytes, and every later claim, read, put and clear raises an error.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane.client import StoreClient
from refrl.data_plane.columns import Column
from refrl.data_plane.control import ControlState, restored
from refrl.data_plane.errors import DataLostError, StoreUnavailableError
from refrl.data_plane.records import NewBlock
from refrl.data_plane.store import BlockGoneError, new_blocks

NAMESPACE = "refrl"
LOOK_AGAIN_S = 0.01
"""Between two looks for samples, and for an actor that is being started again."""
START_S = 300.0
"""An actor is a process that imports torch: on a busy machine that takes its time."""
_STARTED: dict[str, Any] = {}
"""Handles of actors that this process started, by name: Ray ends an actor with the last handle of its starter."""
_DEAD = (ray.exceptions.RayActorError, ray.exceptions.ActorUnavailableError)
_LOST = (
    ray.exceptions.ObjectLostError,
    ray.exceptions.OwnerDiedError,
    ray.exceptions.ObjectFetchTimedOutError,
)


class Control:
    """The actor that has the shared state."""

    def __init__(self, journal: str | None) -> None:
        """Begin empty, or where the journal ends."""
        self._state = ControlState() if journal is None else restored(Path(journal))

    def call(self, operation: str, words: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call a method of the state."""
        return getattr(self._state, operation)(*words, **options)

    def pid(self) -> int:
        """Return this process."""
        return os.getpid()


class Blocks:
    """The actor that has the bytes.

    A column comes as an argument, which Ray lays into its object store, and stays there for as long as this actor looks
    at it: no second copy is made, and the death of the producer takes nothing away.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._columns: dict[str, Column] = {}

    def ping(self) -> None:
        """Answer."""

    def pid(self) -> int:
        """Return this process."""
        return os.getpid()

    def keep(self, names: Sequence[str], *wires: tuple[Any, ...]) -> None:
        """Hold columns until they are dropped."""
        self._columns.update((name, from_wire(wire)) for name, wire in zip(names, wires, strict=True))

    def read(self, wanted: Mapping[str, Sequence[int]]) -> list[tuple[Any, ...]]:
        """Return rows of columns.

        Raises:
            BlockGoneError: one is not there.
        """
        missing = [name for name in wanted if name not in self._columns]
        if missing:
            raise BlockGoneError(f"blocks {missing} are not there")
        return [to_wire(self._rows(name, rows)) for name, rows in wanted.items()]

    def drop(self, names: Sequence[str]) -> None:
        """Let columns go."""
        for name in names:
            self._columns.pop(name, None)

    def _rows(self, name: str, rows: Sequence[int]) -> Column:
        column = self._columns[name]
        return column if list(rows) == list(range(column.num_rows)) else column.take(rows)


class Caller:
    """Calls one actor, and converts every error of Ray into one of the data plane, within a time limit."""

    def __init__(self, name: str, seconds: float, *, restarts: bool, namespace: str = NAMESPACE) -> None:
        """Find the actor.

        Args:
            name: of the actor.
            seconds: after which an answer is waited for no longer.
            restarts: wait that long for a crashed actor, too: Ray is restarting it.
            namespace: of the name.

        Raises:
            StoreUnavailableError: there is none.
        """
        self.name = name
        self.seconds = seconds
        self._restarts = restarts
        try:
            self.actor = ray.get_actor(name, namespace=namespace)
        except ValueError as error:
            raise StoreUnavailableError(
                f"no actor {name!r} in this Ray cluster: build the store with bootstrap=True, and keep its driver"
            ) from error

    def call(self, method: str, *words: Any) -> Any:
        """Call a method and return what it returns, or raise what it raises.

        Raises:
            StoreUnavailableError: the actor is dead, or did not answer.
        """
        end = time.monotonic() + self.seconds
        while True:
            try:
                left = max(end - time.monotonic(), 0.001)
                return ray.get(getattr(self.actor, method).remote(*words), timeout=left)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.GetTimeoutError as error:
                raise StoreUnavailableError(
                    f"actor {self.name!r} did not answer {method} within {self.seconds:g} s; where it is only busy, "
                    "raise data_plane.timeout_s"
                ) from error
            except ray.exceptions.ObjectStoreFullError as error:
                raise StoreUnavailableError(
                    f"actor {self.name!r} has no memory left: {_first_line(error)}"
                ) from error
            except _LOST as error:
                raise DataLostError(f"what actor {self.name!r} sent is lost: {_first_line(error)}") from error
            except _DEAD as error:
                if not self._restarts or time.monotonic() >= end:
                    raise StoreUnavailableError(
                        f"actor {self.name!r} is dead: {_first_line(error)}"
                    ) from error
                time.sleep(LOOK_AGAIN_S)


class RayControl:
    """A `refrl.data_plane.client.ControlLink` to the actor. A call whose answer was lost is made again."""

    def __init__(self, caller: Caller) -> None:
        """Call this actor."""
        self._caller = caller

    def call(self, operation: str, *words: Any, **options: Any) -> Any:
        """See `ControlLink`."""
        return self._caller.call("call", operation, words, options)

    def wait(self, seconds: float) -> None:
        """See `ControlLink`."""
        time.sleep(min(seconds, LOOK_AGAIN_S))


class RayStore:
    """A `refrl.data_plane.store.ColumnStore` in Ray's object store."""

    def __init__(self, caller: Caller) -> None:
        """Call this actor."""
        self._caller = caller

    def check(self) -> None:
        """See `ColumnStore`."""
        self._caller.call("ping")

    def save(self, columns: Mapping[str, Column]) -> list[NewBlock]:
        """See `ColumnStore`."""
        blocks = new_blocks(columns)
        self._caller.call("keep", [block.name for block in blocks], *map(to_wire, columns.values()))
        return blocks

    def read(self, wanted: Mapping[str, Sequence[int]]) -> dict[str, tuple[Column, Sequence[int]]]:
        """See `ColumnStore`."""
        found = map(from_wire, self._caller.call("read", dict(wanted)))
        return {name: (column, range(column.num_rows)) for name, column in zip(wanted, found, strict=True)}

    def drop(self, names: Sequence[str]) -> None:
        """See `ColumnStore`."""
        if names:
            self._caller.call("drop", list(names))


def to_wire(column: Column) -> tuple[Any, ...]:
    """Return a column as an array of bytes that Ray keeps without copying it, and the words that describe it."""
    values = column.values.contiguous()
    array = values.view(torch.uint8).numpy() if values.numel() else values.float().numpy()
    return column.kind, column.dtype_of_values, tuple(values.shape), array, column.lengths


def from_wire(wire: tuple[Any, ...]) -> Column:
    """Return the column of `to_wire`; its values lie in memory that is not to be written to."""
    kind, dtype, shape, array, lengths = wire
    if not array.size:
        return Column(kind, torch.zeros(shape, dtype=getattr(torch, dtype)), lengths)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        values = torch.from_numpy(array).view(getattr(torch, dtype)).reshape(shape)
    return Column(kind, values, lengths)


def ray_client(config: DataPlaneConfig, *, bootstrap: bool) -> StoreClient:
    """Return a client of the store of this name; see `refrl.data_plane.build_data_plane_client`.

    Raises:
        StoreUnavailableError: Ray is not initialised; with `bootstrap`, there is a store of this name; without, none.
    """
    if not ray.is_initialized():
        raise StoreUnavailableError(
            "Ray is not initialised in this process: call ray.init before building the client"
        )
    if bootstrap:
        start_actor(Control, config.name, config, config.journal, restarts=config.journal is not None)
        start_actor(Blocks, f"{config.name}-blocks", config, restarts=False)
    control = Caller(config.name, config.timeout_s, restarts=config.journal is not None)
    blocks = Caller(f"{config.name}-blocks", config.timeout_s, restarts=False)
    return StoreClient(RayControl(control), RayStore(blocks), lease_s=config.lease_s)


def end_store(config: DataPlaneConfig) -> None:
    """End the actors of a store that this process began; those of a client that joined it stay."""
    for name in (config.name, f"{config.name}-blocks"):
        actor = _STARTED.pop(name, None)
        if actor is not None:
            ray.kill(actor)


def processes(config: DataPlaneConfig) -> dict[str, int]:
    """Return the processes of a store, by what messages call them."""
    return {
        name: ray.get(actor.pid.remote(), timeout=config.timeout_s)
        for name, actor in _STARTED.items()
        if name in (config.name, f"{config.name}-blocks")
    }


def start_actor(what: type, name: str, config: DataPlaneConfig, *words: Any, restarts: bool) -> None:
    """Start an actor that ends with this driver, and wait until it is there.

    Raises:
        StoreUnavailableError: there is one of this name.
    """
    options = {"name": name, "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1 if restarts else 0}
    try:
        actor = ray.remote(what).options(**options).remote(*words)
    except ValueError as error:
        raise StoreUnavailableError(
            f"a data plane {config.name!r} is in this cluster already: join it with bootstrap=False, or set "
            "data_plane.name"
        ) from error
    try:
        ray.get(actor.__ray_ready__.remote(), timeout=START_S)
    except (ray.exceptions.RayError, TimeoutError) as error:
        raise StoreUnavailableError(f"actor {name!r} did not start: {_first_line(error)}") from error
    _STARTED[name] = actor


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
