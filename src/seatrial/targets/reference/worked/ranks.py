"""Worked examples of ranks: what they exchange, sum and compare, and how a run joins and leaves them."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl import distributed
from refrl.config import ClusterConfig, ConfigError
from refrl.distributed import World, groups_of_processes, leave_groups
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.clusters import of_clusters
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.made_ranks import by_rank
from seatrial.targets.reference.worked.placements import of_placements
from seatrial.targets.reference.worked.rank_actors import of_rank_actors
from seatrial.targets.reference.worked.steps import quietly


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_worlds()
    yield from _of_joins()
    yield from of_placements()
    yield from of_clusters()
    yield from of_rank_actors()


def _world(size: int, function: Callable[[World, int], Any]) -> list[Any]:
    return by_rank(size, lambda group, rank: function(World(rank, size, group), rank))  # type: ignore[arg-type]


def rank_weight(gradient: Sequence[float] | None, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    """Return a weight with a gradient, or without."""
    weight = nn.Parameter(torch.zeros(2, dtype=dtype))
    weight.grad = None if gradient is None else torch.tensor(gradient, dtype=dtype)
    return weight


def _summed(size: int) -> list[Any]:
    """Return the sums of gradients: of all ranks, of one rank alone, of none, and of another type."""

    def call(world: World, rank: int) -> Any:
        weights = [
            rank_weight([rank + 1.0, 2.0]),
            rank_weight([5.0, 7.0] if rank == 1 else None),
            rank_weight(None),
            rank_weight([rank, 1.0], torch.bfloat16),
        ]
        world.sum_gradients(weights)
        return [None if weight.grad is None else weight.grad.float().tolist() for weight in weights]

    return _world(size, call)


def _alone() -> Tensor | None:
    weight = rank_weight([1.0, 2.0])
    World().sum_gradients([weight])
    return weight.grad


def _agreed(values: Sequence[tuple[float, float]]) -> list[Any]:
    """Return how ranks with these gradient norms and weights compare."""
    return _world(
        len(values),
        lambda world, rank: world.check_agreement(values[rank][0], [torch.tensor([values[rank][1], 2.0])]),
    )


def _of_worlds() -> Iterator[WorkedExample]:
    yield example("items of all ranks", [[0, 10, 11, 20, 21, 22]] * 3, _world, 3, _gathered)
    yield example(
        "rows of all ranks",
        [[1.0, 2.0, 3.0]] * 3,
        _world,
        3,
        lambda world, rank: world.sum_rows(
            torch.tensor([(number == rank) * (rank + 1.0) for number in range(3)])
        ),
    )
    yield example("gradients of all ranks", [[[3.0, 4.0], [5.0, 7.0], None, [1.0, 2.0]]] * 2, _summed, 2)
    yield example(
        "the gradient of one rank alone",
        [1.0, 2.0],
        _alone,
    )
    yield example(
        "several buckets of gradients",
        [[[3.0, 4.0], [5.0, 7.0], None, [1.0, 2.0]]] * 2,
        lambda: _patched(distributed, "BUCKET_BYTES", 1, lambda: _summed(2)),
    )
    sizes = [1, 1, 1, 3, 1]
    yield example("gradients in buckets of 8 bytes", [[1, 1], [1], [3], [1]], _bucketed, sizes)
    placed = {"by": "inline", "ranks": [{"node": socket.gethostname(), "pid": os.getpid()}] * 2}
    yield example(
        "where two ranks are", [placed] * 2, _world, 2, lambda world, rank: distributed.placement(world)
    )
    yield example("ranks that agree", [None, None], _agreed, [(1.5, 3.0), (1.5, 3.0)])
    yield example("ranks that agree on NaN", [None, None], _agreed, [(math.nan, 3.0), (math.nan, 3.0)])
    for name, values in (("norm", (1.25, 3.0)), ("weight", (1.5, 4.0)), ("sign of a weight", (1.5, -3.0))):
        yield example(
            f"a rank of another {name}",
            True,
            lambda values=values: str(_agreed([(1.5, 3.0), (1.5, 3.0), values])[0]).startswith(
                "DivergenceError: after an update rank 2 has gradient norm"
            ),
        )


def _bucketed(sizes: Sequence[int]) -> list[list[int]]:
    with patch.object(distributed, "BUCKET_BYTES", 8):
        return [
            [len(one) for one in bucket]
            for bucket in distributed._buckets([torch.zeros(size) for size in sizes])
        ]


def _gathered(world: World, rank: int) -> Any:
    return world.gather([10 * rank + number for number in range(rank + 1)])


def _patched(owner: Any, name: str, value: Any, call: Callable[[], Any]) -> Any:
    with patch.object(owner, name, value):
        return call()


def _joined(environment: Mapping[str, str], number: int, *, fails: bool = False, device: str = "cpu") -> Any:
    """Return what a rank joins with, what it prints, and whether it leaves the others."""
    noted: list[Any] = []
    known = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "REFRL_RENDEZVOUS", "TORCHELASTIC_RUN_ID", "REFRL_LIFELINE")
    own = {name: value for name, value in os.environ.items() if name not in known}

    def init(backend: str, **options: Any) -> None:
        noted.append((backend, options))

    def call() -> None:
        with distributed.join(ClusterConfig(num_processes=number, device=device)) as world:  # type: ignore[arg-type]
            print("in a run")
            noted.append((world.rank, world.size))
            if fails:
                raise ArithmeticError("no")

    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {**own, **environment}, clear=True))
        stack.enter_context(patch("torch.distributed.init_process_group", init))
        stack.enter_context(patch("torch.distributed.destroy_process_group", lambda: noted.append("left")))
        try:
            printed = quietly(call)
        except ArithmeticError:
            printed = "failed"
    return noted, printed.strip()


def _backend(environment: Mapping[str, str], has_cuda: bool, device: str) -> str:
    with patch("torch.cuda.is_available", lambda: has_cuda):
        return str(_joined(environment, 2, device=device)[0][0][0])


def _of_joins() -> Iterator[WorkedExample]:
    started = {"REFRL_RENDEZVOUS": "file:///there", "WORLD_SIZE": "2"}

    def joined(rank: int) -> Any:
        return ("gloo", {"rank": rank, "world_size": 2, "init_method": "file:///there"}), (rank, 2)

    yield example("one process", ([(0, 1)], "in a run"), _joined, {}, 1)
    yield example("variables of another launcher", ([(0, 1)], "in a run"), _joined, {"WORLD_SIZE": "2"}, 1)
    for rank, printed in ((0, "in a run"), (1, "")):
        given = {**started, "RANK": str(rank)}
        yield example(f"rank {rank} joins", ([*joined(rank), "left"], printed), _joined, given, 2)
    yield example(
        "a rank that fails does not leave the others",
        ([*joined(0)], "failed"),
        _joined,
        {**started, "RANK": "0"},
        2,
        fails=True,
    )
    for has_cuda, device, backend in (
        (True, "auto", "cpu:gloo,cuda:nccl"), (True, "cpu", "gloo"), (False, "auto", "gloo"),
    ):  # fmt: skip
        name = f"the backend of ranks on {device}, with GPUs: {has_cuda}"
        yield example(name, backend, _backend, {**started, "RANK": "0"}, has_cuda, device)
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1"}
    meets = {"rank": 1, "world_size": 2, "init_method": "env://"}
    yield example("a rank of torchrun", ([("gloo", meets), (1, 2), "left"], ""), _joined, torchrun, 2)

    def place(environment: Mapping[str, str], count: int, device: str = "auto") -> Any:
        noted: list[Any] = []
        config = ClusterConfig(num_processes=2, device=device)  # type: ignore[arg-type]
        own = {name: value for name, value in os.environ.items() if name != distributed.SHARING}
        with ExitStack() as stack:
            stack.enter_context(patch.dict(os.environ, {**own, **environment}, clear=True))
            stack.enter_context(patch("torch.cuda.is_available", lambda: count > 0))
            stack.enter_context(patch("torch.cuda.device_count", lambda: count))
            stack.enter_context(patch("torch.cuda.set_device", noted.append))
            stack.enter_context(patch("torch.backends.cuda.enable_cudnn_sdp", lambda on: noted.append(on)))
            try:
                return str(distributed.local_device(config)), noted
            except ConfigError as error:
                return str(error).partition(":")[0]

    for words, given, number in (
        ("2 processes were started and cluster.num_processes=1: start them with", started, 1),
        ("1 processes were started and cluster.num_processes=2", {}, 2),
        ("or with torchrun --nproc-per-node=3", torchrun, 3),
    ):
        yield refused(words, f"ranks of {given} for {number}", _joined, {**given, "RANK": "0"}, number)
    meeting = {"MASTER_ADDR": "host", "MASTER_PORT": "77"}
    for where, given in (("file:///there", started), ("host:77", {**torchrun, **meeting})):
        words = f"the ranks cannot meet at {where}: no port; if another process has the port"
        yield refused(words, f"ranks that cannot meet at {where}", _apart, {**given, "RANK": "0"})
    for has_cuda, left in ((False, ["b"]), (True, [])):
        yield example(f"groups that are given up, with GPUs: {has_cuda}", left, _left, has_cuda)
    second = {**started, "RANK": "3", "LOCAL_RANK": "1"}
    none = "cluster.device=cuda, and torch finds no CUDA device; use cluster.device=cpu"
    yield example("no device where one is wanted", none, place, second, 0, "cuda")
    yield example("the device of a rank", ("cuda:1", [1, False]), place, second, 2)
    yield example("the device of a run", ("cuda:0", [0, False]), place, {"LOCAL_RANK": "1"}, 2)
    yield example("no device", ("cpu", []), place, second, 0)
    yield example("a device that is not wanted", ("cpu", []), place, second, 2, "cpu")
    few = "cluster.num_processes=2 and 1 CUDA devices"
    yield example("too few devices", few, place, second, 1)
    yield example(
        "a device that is shared", ("cuda:0", [0, False]), place, {**second, distributed.SHARING: "1"}, 1
    )


def _apart(environment: Mapping[str, str]) -> None:
    """Join ranks that do not find one another."""
    error = torch.distributed.DistNetworkError("no\n  port")
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, environment))
        stack.enter_context(patch("torch.distributed.init_process_group", side_effect=error))
        if "REFRL_RENDEZVOUS" not in environment:
            os.environ.pop("REFRL_RENDEZVOUS", None)
        stack.enter_context(distributed.join(ClusterConfig(num_processes=2, device="cpu")))


def _left(has_cuda: bool) -> list[str]:
    """Return which groups are given up of `b`, which is there, and `c`, which is not; `a` is another's."""
    left: list[str] = []
    world = SimpleNamespace(pg_map={"a": 1, "b": 2})
    with (
        patch.object(torch.distributed.distributed_c10d, "_world", world),
        patch("torch.cuda.is_available", lambda: has_cuda),
        patch("torch.distributed.destroy_process_group", left.append),
    ):
        assert sorted(map(str, groups_of_processes())) == ["a", "b"]
        leave_groups(iter(cast(Any, ["b", "c"])))
    return left
