"""Worked examples of several processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.targets.common.ranks import call_on_ranks
from seatrial.targets.common.worked_rows import Row, unlike

ACCELERATOR = "accelerate:Accelerator"
LOADER = "accelerate.data_loader:prepare_data_loader"
MODULE = "seatrial.targets.accelerate.worked.ranked"


def _on(num_ranks: int, function: str, payload: Mapping[str, Any], found: Any) -> Sequence[Any]:
    """Return what each process returns."""
    return call_on_ranks(
        f"{MODULE}:{function}", payload, num_ranks, ("torch", "accelerate") if num_ranks > 2 else ()
    )


def _on_two(function: str, **payload: Any) -> Any:
    return partial(_on, 2, function, payload)


def _one_cycle() -> list[float]:
    """Return rates after each second step of seven."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=7)
    rates = [float(schedule.get_last_lr()[0])]
    for _ in range(6):
        optimizer.step()
        schedule.step()
        rates.append(float(schedule.get_last_lr()[0]))
    return [rates[2], rates[4], rates[6]]


def _cycled(found: Any) -> list[str]:
    """Return what differs of the steps that two processes take; two more must not raise."""
    return [text for rates in _on(2, "cycled", {}, found) for text in unlike(rates[:3], _one_cycle(), "rate")]


def _same_rows(mesh: Mapping[str, int], shuffle: bool, found: Any) -> list[Any]:
    """Return how many parts of rows there are, whether processes of one have the same, and all rows."""
    rows = _on(4, "on_mesh", {"mesh": mesh, "shuffle": shuffle}, found)
    shared = mesh.get("tp", 1) * mesh.get("cp", 1)
    groups = [rows[start : start + shared] for start in range(0, 4, shared)]
    flat = sorted(row for group in groups for batch in group[0] for row in batch)
    return [len(groups), all(one == group[0] for group in groups for one in group), flat]


SEVERAL_ROWS: Sequence[Row] = (
    *(
        Row("ranks", ACCELERATOR, what, _on_two(function), [[], []], since="1.3")
        for function, what in (
            ("gathered", "nested values that are gathered"),
            ("reduced", "nested values that are reduced"),
            ("padded", "dimensions, sides and dtypes of padding"),
            ("synchronised", "random states that are shared"),
        )
    ),
    Row(
        "ranks",
        ACCELERATOR,
        "who goes first, and who runs functions",
        _on_two("in_order"),
        [
            [[], ["main", "local main", "process 0"], ["main", "local main", "", "", "", "process 0"]],
            [
                [True, True],
                ["last", "process 1", "local process 1"],
                ["", "", "last", "process 1", "local process 1", ""],
            ],
        ],
    ),
    Row(
        "ranks",
        ACCELERATOR,
        "an exchange in a late backward pass",
        _on_two("synced_late"),
        [[1.0, 4.0, 3.5], [2.0, 4.0, 3.5]],
    ),
    Row(
        "ranks",
        ACCELERATOR,
        "two models that accumulate",
        _on_two("of_models"),
        [[-6.0, -12.0], [-6.0, -12.0]],
    ),
    Row("ranks", ACCELERATOR, "shapes that are checked", _on_two("debugged"), [[True, True], [True, True]]),
    Row(
        "ranks",
        LOADER,
        "a function that cuts batches",
        _on_two("sliced"),
        [
            [[[0, 2], [4, 6]], [[0, 2]]],
            [[[1, 3], [5, 7]], [[1, 2]]],
        ],
        since="1.3",
    ),
    Row("rates", ACCELERATOR, "one cycle, and steps after its end", _cycled, []),
    *(
        Row(
            "batches",
            LOADER,
            f"a mesh of {mesh}{', shuffled' * shuffle}",
            partial(_same_rows, mesh, shuffle),
            [4 // shared, True, list(range(16))],
            since="1.10",
        )
        for mesh, shared in (
            ({"dp_shard": 2, "tp": 2}, 2),
            ({"dp_replicate": 2, "dp_shard": 2}, 1),
            ({"dp_replicate": 2, "cp": 2}, 2),
        )
        for shuffle in (False, True)
    ),
    Row(
        "batches",
        "accelerate.data_loader:DataLoaderDispatcher",
        "nested columns",
        _on_two("nested_batches", rows=10, batch=2, split=False, even=True),
        [[[[0, 1], [4, 5], [8]], 0], [[[2, 3], [6, 7], [9]], 0]],
    ),
    Row(
        "batches",
        "accelerate.data_loader:DataLoaderDispatcher",
        "nested columns, split",
        _on_two("nested_batches", rows=8, batch=4, split=True, even=True),
        [[[[0, 1], [4, 5]], 0], [[[2, 3], [6, 7]], 0]],
    ),
    Row(
        "ranks",
        "accelerate.parallelism_config:ParallelismConfig",
        "a mesh of four",
        partial(_on, 4, "hybrid_mesh", {"sizes": {"dp_replicate_size": 2, "dp_shard_size": 2}}),
        [
            [[0, 0], [4, 2, 4], [0, 0, 0]],
            [[0, 1], [4, 2, 4], [1, 1, 1]],
            [[1, 0], [4, 2, 4], [2, 0, 2]],
            [[1, 1], [4, 2, 4], [3, 1, 3]],
        ],
    ),
    Row(
        "ranks",
        "accelerate.parallelism_config:ParallelismConfig",
        "a mesh of four with tensors in parts",
        partial(_on, 4, "hybrid_mesh", {"sizes": {"dp_shard_size": 2, "tp_size": 2}}),
        [
            [[0, 0], [2, 2, 2], [0, 0, 0]],
            [[0, 1], [2, 2, 2], [0, 0, 0]],
            [[1, 0], [2, 2, 2], [1, 1, 1]],
            [[1, 1], [2, 2, 2], [1, 1, 1]],
        ],
    ),
)
