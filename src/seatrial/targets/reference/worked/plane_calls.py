"""Worked examples of what a client of a data plane requests from its parts: limits, checks, what follows an error."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import client as clients
from refrl.data_plane import flow
from refrl.data_plane.client import StoreClient
from refrl.data_plane.columns import Column, encode
from refrl.data_plane.control import ControlState, Journal
from refrl.data_plane.errors import (
    DataLostError,
    DataPlaneError,
    PartitionFullError,
    StoreUnavailableError,
    UnknownPartitionError,
)
from refrl.data_plane.factory import LocalControl, build_data_plane_client, local_client
from refrl.data_plane.filters import BaseRolloutFilter
from refrl.data_plane.flow import ConsumePlan, consume
from refrl.data_plane.metadata import KVBatchMeta
from refrl.data_plane.records import Claim, NewBlock, Sparse, Waste
from refrl.data_plane.store import BlockGoneError, LocalStore
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused


class _Link:
    """A link to a state that answers as planned, and notes every call."""

    def __init__(self, answer: Callable[..., Any]) -> None:
        self.noted: list[Any] = []
        self._answer = answer

    def call(self, operation: str, *words: Any, **options: Any) -> Any:
        self.noted.append((operation, *words, options))
        return self._answer(operation)

    def wait(self, seconds: float) -> None:
        self.noted.append(("wait", seconds))
        _NOW[0] += 1.5


_NOW = [0.0]
TAGGED = Claim(["a", "b"], [{"input_lengths": 3}, {"input_lengths": 5}])
UNTAGGED = Claim(["a", "b"], [{"input_lengths": 3}, {}])
NONE = Claim([], [])


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_claims()
    yield from _of_errors()
    yield from _of_waits()
    yield from _of_flows()


def _of_claims() -> Iterator[WorkedExample]:
    right: Any
    for own, right in ((None, 7.0), (2.0, 2.0), (0.5, 0.5)):
        for attached in (False, True):
            name = f"the lease of a claim with {own}, by another client: {attached}"
            yield example(name, (["check"], right, 2, 1), _lease, own, attached)
    for claim, right in ((TAGGED, ([3, 5], True)), (UNTAGGED, (None, True)), (NONE, ([], False))):
        yield example(f"a claim of {claim.tags}", right, _claimed, claim)
    for seconds, right in ((0.0, []), (1.5, [1.5]), (4.0, [4.0, 2.5, 1.0])):
        yield example(f"a claim that waits for {seconds} s", right, _waited, seconds)
    for kind, limits in (("local", {"lease_s": 33.0}), ("local", {"lease_s": 600.0})):
        config = DataPlaneConfig(implementation=kind, **limits)  # type: ignore[arg-type]
        right = limits["lease_s"]
        yield example(f"the lease of a store with {limits}", right, _configured, config)


def _client(answer: Any, store: Any = None) -> tuple[StoreClient, _Link]:
    link = _Link(answer if callable(answer) else lambda operation: answer)
    return StoreClient(link, store or LocalStore(), lease_s=7.0), link


def _lease(own: float | None, attached: bool) -> Any:
    """Return what is checked before a claim, for how long it is leased, and how many it requests."""
    checked: list[str] = []
    link = _Link(lambda operation: TAGGED)
    store: Any = SimpleNamespace(check=lambda: checked.append("late" if link.noted else "check"))
    client = StoreClient(link, store, lease_s=7.0)
    client = client.attach() if attached else client
    client.claim_meta("p", "t", ["x"], 2, lease_s=own)
    options = link.noted[0][-1]
    return checked, options["seconds"], options["most"], options["least"]


def _claimed(claim: Claim) -> Any:
    client, _ = _client(claim)
    meta = client.claim_meta("p", "t", ["x"], 2, blocking=False)
    return meta.sequence_lengths, meta.lease_id is not None


def _waited(seconds: float) -> list[float]:
    """Return for how long an empty claim waits each time; every wait takes a second and a half."""
    _NOW[0] = 100.0
    client, link = _client(NONE)
    with patch.object(clients, "time", SimpleNamespace(monotonic=lambda: _NOW[0])):
        try:
            client.claim_meta("p", "t", ["x"], 2, timeout_s=seconds)
        except TimeoutError as error:
            assert f"in {seconds:g} s" in str(error), error
    return [one[1] for one in link.noted if one[0] == "wait"]


def _configured(config: DataPlaneConfig) -> Any:
    client: Any = build_data_plane_client(config)
    return client._lease_s


def _of_errors() -> Iterator[WorkedExample]:
    for kind, dropped in (
        (PartitionFullError, 1),
        (ValueError, 1),
        (DataPlaneError, 1),
        (StoreUnavailableError, 0),
    ):
        yield example(
            f"blocks of a put that ends with {kind.__name__}", (kind.__name__, dropped), _refused_put, kind
        )
    for kind in (StoreUnavailableError, DataLostError):
        said = f"{kind.__name__}: gone; asked for samples a, b of 'p'"
        yield example(f"a read that ends with {kind.__name__}", said, _refused_read, kind)
    lost = "DataLostError: the bytes of samples a, b of partition 'p' are gone"
    yield example("a read whose blocks move three times", (lost, 3), _moved, 3)
    yield example("a read whose blocks move twice", ([1.0, 1.0], 3), _moved, 2)
    yield refused("known: none", "a partition of an empty store", local_client(lease_s=1.0).status, "p")
    known = "no partition 'x' is registered; known: a, b"
    yield example("a partition next to others", known, _unknown)
    yield refused("blocks ['b'] are not there", "a block that is gone", _stored, {"a": [0], "b": [0]})
    yield example("a put without samples", ([], ["x"]), _empty_put)
    yield example("objects without rows", ("torch.uint8", ()), _no_objects)
    yield example("what a meta shares with its maker", {"a": [1]}, _shared_meta)
    yield example("a journal two folders down", True, _deep_journal)
    waste = Waste(["one"], [Sparse("two", "p", "x", [1])])
    yield example("what is freed after a put", (["one"], [("move", "two", 1)]), _tidied, waste)


def _refused_put(kind: type[Exception]) -> Any:
    """Return how a put ends that the state refuses, and how many blocks are freed."""
    dropped: list[str] = []

    def refuse(operation: str) -> Any:
        raise kind("no")

    store: Any = SimpleNamespace(
        save=lambda columns: [NewBlock("x", "block", "float32", 8)], drop=lambda names: dropped.extend(names)
    )
    client, _ = _client(refuse, store)
    try:
        client.put_samples(["a", "b"], "p", {"x": torch.ones(2)})
    except (DataPlaneError, ValueError) as error:
        return type(error).__name__, len(dropped)
    return "", len(dropped)


def _refused_read(kind: type[Exception]) -> str:
    def read(wanted: Any) -> Any:
        raise kind("gone")

    client, _ = _client({"x": {"block": ([0, 1], [0, 1])}}, SimpleNamespace(read=read))
    try:
        client.get_samples(["a", "b"], "p", ["x"])
    except DataPlaneError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _moved(times: int) -> Any:
    """Return what is read of blocks that have moved so often when they are looked for, and how often that is."""
    column = encode(torch.ones(2), "x")
    tried: list[int] = []

    def read(wanted: Any) -> Any:
        tried.append(1)
        if len(tried) <= times:
            raise BlockGoneError("moved")
        return {name: (column, rows) for name, rows in wanted.items()}

    client, _ = _client({"x": {"block": ([0, 1], [0, 1])}}, SimpleNamespace(read=read))
    try:
        return client.get_samples(["a", "b"], "p", ["x"])["x"], len(tried)
    except DataPlaneError as error:
        return f"{type(error).__name__}: {error}", len(tried)


def _unknown() -> str:
    client = local_client(lease_s=1.0)
    for name in "ba":
        client.register_partition(name, ["x"], 1, ["t"])
    try:
        client.status("x")
    except UnknownPartitionError as error:
        return str(error)
    return ""


def _stored(wanted: Any) -> Any:
    store = LocalStore()
    store._columns["a"] = encode(torch.ones(1), "x")
    return store.read(wanted)


def _empty_put() -> Any:
    client, link = _client(None)
    meta = client.put_samples([], "p", {"x": torch.ones(0)})
    return link.noted, meta.fields


def _deep_journal() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a", "b", "journal")
        Journal(path)._file.close()
        return path.exists()


def _no_objects() -> Any:
    column: Column = encode(np.empty(0, dtype=object), "x")
    return str(column.values.dtype), column.lengths


def _shared_meta() -> Any:
    given = {"a": [1]}
    meta = KVBatchMeta(partition_id="p", sample_ids=["s"], extra_info=given)
    other = meta.subset([0])
    given["a"].append(2)
    meta.extra_info["a"].append(3)
    return other.extra_info


def _tidied(waste: Waste) -> Any:
    """Return the blocks that are dropped, and what is said of those that are copied."""
    dropped: list[str] = []
    answers = iter((waste, Waste([], [])))
    store: Any = SimpleNamespace(
        save=lambda columns: [NewBlock(name, "new", "float32", 4) for name in columns],
        read=lambda wanted: {name: (encode(torch.ones(3), "x"), rows) for name, rows in wanted.items()},
        drop=dropped.extend,
    )
    client, link = _client(lambda operation: next(answers), store)
    client.put_samples(["a"], "p", {"x": torch.ones(1)})
    moves = [(one[0], one[1], len(one[4])) for one in link.noted if one[0] == "move"]
    assert all(one[2:5] == ("new", 4, [1]) for one in link.noted if one[0] == "move"), link.noted
    return dropped, moves


def _of_waits() -> Iterator[WorkedExample]:
    for seconds, right in ((0.01, 0.01), (0.02, 0.02), (5.0, 0.02)):
        yield example(f"a wait of {seconds} s for a change", [right], _condition, seconds)
    notified = {"publish": 1, "release": 1, "claim": 0, "status": 0, "acknowledge": 0}
    for operation, right in notified.items():
        yield example(f"who waits is notified of {operation}", right, _notified, operation)


def _condition(seconds: float) -> list[Any]:
    control: Any = LocalControl(ControlState())
    waits: list[Any] = []
    with patch.object(control._changed, "wait", waits.append):
        control.wait(seconds)
    return waits


def _notified(operation: str) -> int:
    control: Any = LocalControl(SimpleNamespace(**{operation: lambda: None}))  # type: ignore[arg-type]
    notified: list[int] = []
    with patch.object(control._changed, "notify_all", lambda: notified.append(1)):
        control.call(operation)
    return len(notified)


class _Drops(BaseRolloutFilter):
    """Drops the samples of these names."""

    name = "named"

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        return [sample not in self._names for sample in meta.sample_ids]


def _of_flows() -> Iterator[WorkedExample]:
    right: Any
    for seconds, right in ((0.25, [0.1, 0.1, 0.05]), (0.1, [0.1]), (0.04, [0.04])):
        yield example(f"a flow that waits for {seconds} s", (right, len(right), True), _flowed, seconds)
    for names, dropped in (("", []), ("a", ["a"]), ("ab", ["a", "b"])):
        right = (dropped, [("named", dropped)] if dropped else [])
        yield example(f"a flow that drops {dropped}", right, _dropped, names, 0)
    right = (["a", "b"], [("named", ["a"]), ("named", ["b"])])
    yield example("a flow that drops twice", right, _dropped, "ab", 2)


def _flowed(seconds: float) -> Any:
    """Return the limits of the claims of a flow, how often its caller is asked, and whether its lease is passed on."""
    limits: list[float] = []
    asked: list[float] = []
    leases: list[Any] = []
    now = [100.0]

    def claim(*words: Any, timeout_s: float, lease_s: Any, **options: Any) -> Any:
        limits.append(round(timeout_s, 6))
        leases.append(lease_s)
        now[0] += timeout_s
        raise TimeoutError("nothing")

    plan = ConsumePlan(
        partition_id="p", task_name="t", fields=["x"], batch_size=2, timeout_s=seconds, lease_s=9.0
    )
    client: Any = SimpleNamespace(claim_meta=claim)
    said = ""
    with patch.object(flow, "time", SimpleNamespace(monotonic=lambda: now[0])):
        try:
            consume(
                client,
                plan,
                lambda batches: None,
                current_weight_version=0,
                on_wait=lambda: asked.append(now[0]),
            )
        except TimeoutError as error:
            said = str(error)
    assert said == f"nothing (waited for {seconds:g} s in all)", said
    return limits, len(asked), set(leases) == {9.0}


def _dropped(names: str, min_kept: int) -> Any:
    """Return what a flow reports as dropped, in all and each time; with a minimum, `b` is put after `a` is dropped."""
    client = local_client(lease_s=60.0)
    client.register_partition("p", ["x"], 9, ["t"])
    notified: list[Any] = []

    def put(one: str) -> None:
        client.put_samples([one], "p", {"x": torch.ones(1)})

    def on_drop(name: str, part: KVBatchMeta) -> None:
        notified.append((name, part.sample_ids))
        if min_kept:
            for more in ("b", "d") if part.sample_ids == ["a"] else ("e",):
                put(more)

    for one in "ac" if min_kept else "abc":
        put(one)
    plan = ConsumePlan(
        partition_id="p", task_name="t", fields=["x"], batch_size=2 + (not min_kept), min_kept=min_kept,
        filters=[_Drops(names)], timeout_s=5.0,
    )  # fmt: skip
    done = consume(client, plan, lambda batches: None, current_weight_version=0, on_drop=on_drop)
    return done.dropped["named"], notified
