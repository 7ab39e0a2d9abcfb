"""Worked examples of stores that processes share: types and shapes of what travels, and time limits of calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import torch

from refrl.config.run import DataPlaneConfig
from refrl.data_plane import factory
from refrl.data_plane.columns import Column
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example
from seatrial.targets.reference.worked.made_packages import imported_with
from seatrial.targets.reference.worked.made_ray import Cluster

MODULES = ["refrl.data_plane.ray", "refrl.data_plane.transfer_queue"]
TYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)
SECONDS = 77.5
"""Configured limit of a store: no other limit has it."""


def of_limits() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield example("columns of every type and shape, sent to Ray and TransferQueue", [], _columns)
    for kind in ("local", "ray", "transfer_queue"):
        yield example(f"rows of every type, empty ones too, from {kind}", [], _rows, kind)
    calls = ("kv_batch_get", "kv_batch_put", "kv_clear", "kv_list")
    within = {name: [SECONDS] for name in calls}
    yield example("time limits of calls to TransferQueue", {**within, "init": ["the start's"]}, _queue_limits)
    for kind in ("ray", "transfer_queue"):
        right = ["the configured one", "the start's"]
        yield example(f"time limits of answers from the actors of {kind}", right, _ray_limits, kind)


def _plain(values: torch.Tensor) -> tuple[str, tuple[int, ...], Any]:
    return str(values.dtype), tuple(values.shape), values.tolist()


def _columns() -> list[str]:
    """Return the columns that come back other than they were sent."""
    wrong = []
    with imported_with(Cluster().modules(), MODULES) as (ray, queue):
        for dtype, shape in product(TYPES, ((0,), (0, 3), (2, 0), (3,), (2, 3))):
            values = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
            lengths = (0, len(values)) if len(shape) == 1 else None
            column = Column("dense" if lengths is None else "jagged", values, lengths)
            for found in (ray.from_wire(ray.to_wire(column)), queue.from_bytes(queue.to_bytes(column))):
                same = (found.kind, found.lengths) == (column.kind, lengths)
                if not same or _plain(found.values) != _plain(values):
                    wrong.append(f"{dtype} {shape}: {found}")
    return wrong


def _config(kind: str) -> DataPlaneConfig:
    if kind == "local":
        return DataPlaneConfig()
    return DataPlaneConfig(implementation=kind, name="own", timeout_s=SECONDS)  # type: ignore[arg-type]


def _rows(kind: str) -> list[str]:
    """Return the types of which rows of no, one and two values come back from a store other than they were put."""
    wrong = []
    with imported_with(Cluster().modules(), MODULES), factory.opened_data_plane(_config(kind)) as client:
        fields = [str(dtype).removeprefix("torch.") for dtype in TYPES]
        client.register_partition("p", fields, 4, ["t"])
        for names, sizes in (("ab", (0, 0)), ("cd", (1, 2))):
            put = {
                field: [torch.ones(size, dtype=dtype) for size in sizes]
                for field, dtype in zip(fields, TYPES, strict=True)
            }
            client.put_samples(list(names), "p", put)
            found: Any = client.get_samples(list(names), "p", fields)
            wrong += [
                f"{field}: {sizes}"
                for field in fields
                if [_plain(one) for one in found[field]] != [_plain(one) for one in put[field]]
            ]
    return wrong


def _used(kind: str) -> None:
    """Put, read and clear rows."""
    with factory.opened_data_plane(_config(kind)) as client:
        client.register_partition("p", ["x"], 2, ["t"])
        client.put_samples(["a", "b"], "p", {"x": torch.tensor([1.0, 2.0])})
        client.get_samples(["b"], "p", ["x"])
        client.claim_meta("p", "t", ["x"], 2, timeout_s=0.0)
        client.clear_samples(["a", "b"], "p")


def _queue_limits() -> dict[str, list[Any]]:
    """Return the time limits of each of TransferQueue's functions; None is a call without one."""
    found: dict[str, set[Any]] = {}
    limit: list[float] = []
    with imported_with(Cluster().modules(), MODULES) as (_, queue):

        def within(seconds: float, call: Callable[[], Any], needed: Any) -> Any:
            limit.append(seconds)
            try:
                return call()
            finally:
                limit.pop()

        def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def noted(*words: Any, **options: Any) -> Any:
                own = limit[-1] if limit else None
                found.setdefault(name, set()).add("the start's" if own == queue.START_S else own)
                return call(*words, **options)

            return noted

        for name in ("init", "kv_batch_put", "kv_batch_get", "kv_list", "kv_clear"):
            setattr(queue.transfer_queue, name, noting(name, getattr(queue.transfer_queue, name)))
        with patch.object(queue, "within", within):
            _used("transfer_queue")
    return {name: sorted(limits, key=str) for name, limits in found.items()}


def _ray_limits(kind: str) -> list[str]:
    """Return which time limits answers are waited for with; what is left of the configured one is it, too."""
    found: set[str] = set()
    cluster = Cluster()
    with imported_with(cluster.modules(), MODULES) as (ray, queue):
        get = ray.ray.get

        def noted(answer: Any, timeout: float | None = None) -> Any:
            known = {None: "none", ray.START_S: "the start's", queue.END_S: "the end's"}
            own = timeout is not None and SECONDS - 5 < timeout <= SECONDS
            found.add("the configured one" if own else known.get(timeout, str(timeout)))
            return get(answer, timeout or 1.0)

        ray.ray.get = noted
        _used(kind)
    return sorted(found - {"the end's"})
