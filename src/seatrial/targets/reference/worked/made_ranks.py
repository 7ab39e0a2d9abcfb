"""Threads that exchange tensors as the ranks of a run do, for the worked examples of ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

SECONDS = 5.0
"""How long a rank waits for the others."""
FIRST = 4
"""Number of a group's first rank in the whole run: a rank's place in its group is another number."""


class Group:
    """Ranks in threads, each of which calls the functions of torch.distributed in the same order."""

    def __init__(self, size: int) -> None:
        """Make a group of so many ranks."""
        self._size = size
        self._barrier = threading.Barrier(size)
        self._box: list[Any] = [None] * size
        self._own = threading.local()

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def rank(self) -> int:
        """Return the rank of the calling thread."""
        number: int = self._own.number
        return number

    def exchanged(self, value: Any) -> list[Any]:
        """Return what each rank gave, in their order."""
        self._box[self.rank()] = value
        self._barrier.wait(SECONDS)
        found = list(self._box)
        self._barrier.wait(SECONDS)
        return found

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Return what a function of the rank returns on each; an error is its type and message."""
        found: list[Any] = [None] * self._size

        def call(number: int) -> None:
            self._own.number = number
            try:
                found[number] = function(number)
            except threading.BrokenBarrierError:
                found[number] = "another rank failed"
            except Exception as error:  # noqa: BLE001  the result of a rank that refuses
                found[number] = f"{type(error).__name__}: {error}"

        threads = [threading.Thread(target=call, args=(number,)) for number in range(self._size)]
        with _exchanging():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        return found


class Mesh:
    """A mesh of one dimension over a group."""

    def __init__(self, group: Group, name: str = "made") -> None:
        """Take a group's ranks."""
        self._group = group
        self.mesh_dim_names = (name,)

    def size(self) -> int:
        """Return the number of processes."""
        return self._group.size()

    def get_group(self) -> Group:
        """Return the processes."""
        return self._group

    def get_local_rank(self) -> int:
        """Return the place of this one."""
        return self._group.rank()


ALONE = Group(1)


@contextmanager
def _exchanging() -> Iterator[None]:
    """Let the functions of torch.distributed exchange between the threads of a group."""

    def all_reduce(values: Tensor, op: Any = torch.distributed.ReduceOp.SUM, *, group: Group) -> None:
        stacked = torch.stack([one.clone() for one in group.exchanged(values.clone())])
        values.copy_(stacked.amax(0) if op == torch.distributed.ReduceOp.MAX else stacked.sum(0))

    def all_gather(parts: Sequence[Tensor], own: Tensor, *, group: Group) -> None:
        for part, found in zip(parts, group.exchanged(own.clone()), strict=True):
            part.copy_(found)

    def all_gather_object(shares: list[Any], items: Any, *, group: Group) -> None:
        shares[:] = group.exchanged(items)

    def broadcast(values: Tensor, *, src: int, group: Group) -> None:
        values.copy_(group.exchanged(values.clone())[src - FIRST])

    def broadcast_object_list(box: list[Any], *, src: int, group: Group) -> None:
        box[:] = group.exchanged(list(box))[src - FIRST]

    made = {
        "all_reduce": all_reduce,
        "all_gather": all_gather,
        "all_gather_object": all_gather_object,
        "broadcast": broadcast,
        "broadcast_object_list": broadcast_object_list,
        "get_global_rank": lambda group, rank: rank + FIRST,
    }
    with ExitStack() as stack:
        for name, function in made.items():
            stack.enter_context(patch(f"torch.distributed.{name}", function))
        yield


def by_rank(size: int, function: Callable[[Group, int], Any]) -> list[Any]:
    """Return what a function of (group, rank) returns on each rank of a group."""
    group = Group(size)
    return group.run(lambda number: function(group, number))


def backward(function: Callable[[Tensor], Tensor], values: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a function gives, and the gradient of its input where each output counts by its weight."""
    given = values.clone().requires_grad_()
    found = function(given)
    (gradient,) = torch.autograd.grad((found * weights).sum(), [given])
    return found.detach(), gradient
