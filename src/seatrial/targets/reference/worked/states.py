"""Worked examples of further states: nested and derived values, a second file or call, errors on the way, a resume."""

from __future__ import annotations

import enum
import sys
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from refrl.data_plane.client import StoreClient
from refrl.data_plane.columns import decode, encode, pad
from refrl.data_plane.errors import StoreUnavailableError
from refrl.data_plane.factory import local_client
from refrl.data_plane.filters import BaseRolloutFilter
from refrl.data_plane.flow import ConsumePlan, consume
from refrl.data_plane.metadata import KVBatchMeta
from refrl.data_plane.records import Sparse, Waste
from refrl.data_plane.store import BlockGoneError
from refrl.logging import run_info
from refrl.training import sft, step_records
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.exported import of_exports
from seatrial.targets.reference.worked.layers import of_layers
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.model_states import of_models
from seatrial.targets.reference.worked.steps import stepped
from seatrial.targets.reference.worked.trained_parts import of_trained
from seatrial.targets.reference.worked.validations import tuned


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_values()
    yield from _of_claims()
    yield from _of_commands()
    yield from _of_rates()
    yield from of_models()
    yield from of_layers()
    yield from of_trained()
    yield from of_exports()


class _Text(str):
    """A text of a derived type."""


class _Number(enum.IntEnum):
    ONE = 1


class _Pair(NamedTuple):
    one: int


def _objects(*values: Any) -> np.ndarray:
    made = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        made[place] = value
    return made


def _there_and_back(value: Any) -> Any:
    """Return the values of a field once they are stored and read, each with its type, by way of a store."""
    client = local_client(lease_s=60.0)
    num_rows = value.size(0) if _nested(value) else len(value)
    client.register_partition("p", ["x"], num_rows, ["train"])
    names = [str(number) for number in range(num_rows)]
    client.put_samples(names, "p", {"x": value})
    found = client.get_samples(names[::-1], "p", ["x"])["x"]
    direct = decode(encode(value, "x"))
    for one in (found, direct):
        if isinstance(one, np.ndarray):
            continue
        for row in one:
            row.add_(0)  # rows can be written
    return _listed(found)[::-1], _listed(direct)


def _nested_of(rows: list[Tensor]) -> Tensor:
    """Return a nested tensor, without torch's warning that their form may change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(rows)


def _nested(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_nested


def _listed(value: Any) -> Any:
    return [row.tolist() if isinstance(row, Tensor) else row for row in value]


def _of_values() -> Iterator[WorkedExample]:
    rows = [[1.0, 2.0], [3.0, 4.0, 5.0], [6.0]]
    tensors = [torch.tensor(row) for row in rows]
    wide = [[[1, 2]], [[3, 4], [5, 6]]]
    plain = [{"a": [1, 1.0, True, None]}, "é", [], {}, -0.0]
    for name, value, right in (
        ("a list of rows", tensors, rows),
        ("a nested tensor", _nested_of(tensors), rows),
        ("a jagged tensor", torch.nested.nested_tensor(tensors, layout=torch.jagged), rows),
        ("rows of rows", [torch.tensor(row) for row in wide], wide),
        ("rows, one of them empty", [torch.zeros(0), torch.ones(1)], [[], [1.0]]),
        ("a dense tensor that is transposed", torch.arange(6).reshape(2, 3).T, [[0, 3], [1, 4], [2, 5]]),
        ("numbers with a gradient", torch.ones(2, requires_grad=True), [1.0, 1.0]),
        ("JSON values", _objects(*plain), plain),
    ):
        yield example(f"stored and read: {name}", (right, right), _there_and_back, value)
    for name, given in {
        "a NumPy number": np.float64(0.5),
        "an ordered mapping": OrderedDict(a=1),
        "a derived text": _Text("a"),
        "a named number": _Number.ONE,
        "a named tuple": _Pair(1),
        "a tuple in a list": [(1, 2)],
        "a derived value in a mapping": {"a": [_Text("b")]},
        "a key that is a number": {1: "a"},
    }.items():
        words = "row 1 of field 'x' would not come back as it is"
        yield refused(words, f"stored: {name}", encode, _objects(1, given), "x")
    for name, given in {"NaN": float("nan"), "a set": {1}, "an integer of NumPy": np.int64(1)}.items():
        words = "row 1 of field 'x' is no JSON value"
        yield refused(words, f"stored: {name}", encode, _objects(1, given), "x")
    no_fields: Mapping[str, Any] = {
        "one number": torch.tensor(1.0),
        "no rows in a list": [],
        "a list of numbers": [1.0],
        "numbers in an array": np.zeros(2),
        "objects in two dimensions": np.empty((1, 1), dtype=object),
        "rows of two types": [torch.zeros(1), torch.zeros(1).long()],
        "rows of two widths": [torch.zeros(1, 2), torch.zeros(1, 3)],
        "rows without a length": [torch.tensor(1.0)],
    }
    for name, value in no_fields.items():
        yield refused("field 'x'", f"no field: {name}", encode, value, "x")
    yield example(
        "rows widened by a value", [[1.0, 2.0, 7.0, 7.0]], lambda: pad([torch.tensor(rows[0])], 7.0, 4)
    )
    yield example("rows as wide as the longest", [[6.0, 0.0], [1.0, 2.0]], lambda: pad(tensors[::-2], 0.0))
    yield example("a wide tensor widened", [[1.0, 1.0, 7.0]], lambda: pad(torch.ones(1, 2), 7.0, 3))
    yield example("a tensor of numbers stays", [1.0], lambda: pad(torch.ones(1), 7.0, 3))
    yield refused("a row has 3 tokens, more than the 2", "rows too long to be widened", pad, tensors, 0.0, 2)


class _Drops(BaseRolloutFilter):
    """Drops a sample, or raises."""

    name = "drops"

    def __init__(self, error: BaseException | None) -> None:
        self._error = error

    def keeps(self, meta: KVBatchMeta, **state: Any) -> Sequence[bool]:
        """See `BaseRolloutFilter`."""
        if self._error is not None:
            raise self._error
        return [sample != "b" for sample in meta.sample_ids]


def _consumed(where: str, error: BaseException | None, ranks: int = 1) -> Any:
    """Return what came of a step with an error somewhere: the error, who is served after it, and who is taken."""
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["x"], 4, ["train"])
    client.put_samples(list("abcd"), "p", {"x": torch.arange(4.0)})
    seen: list[Any] = []

    def fail(at: str) -> None:
        if at == where and error is not None:
            raise error

    def train(batches: Any) -> None:
        seen.extend(batch.columns["x"].tolist() for batch in batches)
        seen.append(sorted(client.acknowledged("p", "train")))
        fail("train")

    plan = ConsumePlan(
        partition_id="p",
        task_name="train",
        fields=["x"],
        batch_size=4,
        min_batch_size=4,
        filters=[_Drops(error if where == "filter" else None)],
        dp_world=ranks,
        timeout_s=0.0,
    )
    said = ""
    returned: list[str] = []
    try:
        done = consume(client, plan, train, current_weight_version=1, on_drop=lambda name, part: fail("drop"))
        said, returned = f"{sorted(done.trained.sample_ids)} {done.dropped}", done.returned
    except (ValueError, KeyboardInterrupt, StoreUnavailableError) as raised:
        said = type(raised).__name__
    try:
        served = sorted(client.claim_meta("p", "train", ["x"], 4, timeout_s=0.0).sample_ids)
    except TimeoutError:
        served = []
    return said, seen, returned, served


def _of_claims() -> Iterator[WorkedExample]:
    taken = ["a", "c", "d"]
    for name, where, error, ranks, right in (
        (
            "without an error",
            "",
            None,
            1,
            ("['a', 'c', 'd'] {'drops': ['b']}", [[0.0, 2.0, 3.0], taken], [], []),
        ),
        (
            "of two ranks",
            "",
            None,
            2,
            ("['a', 'c'] {'drops': ['b']}", [[0.0], [2.0], taken[:2]], ["d"], ["d"]),
        ),
        ("whose filter fails", "filter", ValueError(), 1, ("ValueError", [], [], list("abcd"))),
        (
            "that is interrupted",
            "filter",
            KeyboardInterrupt(),
            1,
            ("KeyboardInterrupt", [], [], list("abcd")),
        ),
        (
            "whose store is gone",
            "filter",
            StoreUnavailableError("x"),
            1,
            ("StoreUnavailableError", [], [], []),
        ),
        ("whose note fails", "drop", ValueError(), 1, ("ValueError", [], [], taken)),
        ("whose training fails", "train", ValueError(), 1, ("ValueError", [[0.0, 2.0, 3.0], taken], [], [])),
    ):
        yield example(f"a step {name}", right, _consumed, where, error, ranks)
    yield example("blocks that are moved", MOVED, _moved)


MOVED = (
    [
        ("drop", ["d"]),
        ("move", "two", "new 0", 8, [1]),
        ("drop", ["two"]),
        ("move", "three", "new 1", 16, [0, 2]),
    ],
    [("y", [1.0]), ("z", [0.0, 2.0])],
)


def _moved() -> Any:
    """Return what a client does with three sparse blocks, of which another client has moved the first."""
    calls: list[Any] = []
    saved: list[Any] = []

    class Store:
        def drop(self, names: list[str]) -> None:
            calls.extend([("drop", names)] if names else [])

        def read(self, wanted: Mapping[str, list[int]]) -> Any:
            ((name, rows),) = wanted.items()
            if name == "one":
                raise BlockGoneError(name)
            return {name: (encode(torch.arange(3.0), "x"), rows)}

        def save(self, columns: Mapping[str, Any]) -> Any:
            ((field, column),) = columns.items()
            saved.append((field, column.values.tolist()))
            return [SimpleNamespace(name=f"new {len(saved) - 1}", num_bytes=8 * len(column.values) + 0)]

    def call(name: str, *words: Any) -> Waste:
        calls.append((name, *words))
        return Waste([words[0]] if words[0] == "two" else [], [])

    client: Any = SimpleNamespace(_store=Store(), _call=call)
    client._tidy = lambda waste: StoreClient._tidy(client, waste)
    sparse = [Sparse("one", "p", "x", [0]), Sparse("two", "p", "y", [1]), Sparse("three", "p", "z", [0, 2])]
    StoreClient._tidy(client, Waste(["d"], sparse))
    return calls, saved


def _of_rates() -> Iterator[WorkedExample]:
    """Yield what is logged of a step's rates, where the device has known peaks."""
    # Prompts of 2, 2, 1 and 1 tokens with 3, 3, 1 and 2 sampled ones; two prompts and two answers of 2 tokens.
    rows, prompts = (4, 15.0, 9.0, 1), (2, 8.0, 0, 1)
    for loop, numbers, module in (("grpo", rows, step_records), ("sft", prompts, sft)):
        right = ({"rate": numbers, "share": (numbers[0], 1)}, True)
        yield example(f"rates and shares of {loop}", right, _rates, loop, module)


def _rates(loop: str, module: Any) -> Any:
    """Return the rates that a step logs, and whether they are of the seconds that it logs."""
    seen: list[Any] = []

    def rates(seconds: Any, **numbers: Any) -> Any:
        seen.append(dict(seconds))
        return {"rate": tuple(numbers.values())}

    def shares(seconds: Any, made: Any, model: Any, num_processes: int) -> Any:
        seen.append(dict(seconds))
        return {"share": (made.num_rows, num_processes)}

    with (
        patch.object(module, "performance_metrics", rates),
        patch.object(module, "utilization_metrics", shares),
    ):
        session = (stepped(steps=(2,)) if loop == "grpo" else tuned(steps=(2,)))[0]
    logged = session.logger.of("timing/train", 2)
    return session.logger.of("performance", 2), seen == [logged] * 2


def _of_commands() -> Iterator[WorkedExample]:
    words = [
        "refrl",
        "grpo",
        "logger.wandb_api_key=abc",
        "policy.model_name=https://u:pw@host/x",
        "grpo.seed=1",
    ]
    right = [
        "refrl",
        "grpo",
        "logger.wandb_api_key=[masked]",
        "policy.model_name=https://[masked]@host/x",
        words[-1],
    ]

    def recorded() -> list[str]:
        with patch.object(sys, "argv", words):
            return list(run_info("cpu")["argv"])

    yield example("secrets of a command that is recorded", right, recorded)
