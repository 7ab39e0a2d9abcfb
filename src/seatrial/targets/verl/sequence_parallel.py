"""verl's Ulysses sequence parallelism, with threads as ranks."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.sequence_parallel import slices
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.verl.adapted import Adapted

ULYSSES = "verl.utils.ulysses"
SECONDS = 60.0
"""That a rank waits for the others before it gives up."""


class ThreadRanks:
    """Collectives of `torch.distributed` between threads of this process; it is its own group."""

    def __init__(self, num_ranks: int) -> None:
        """Take the number of ranks."""
        self.num_ranks = num_ranks
        self.barrier = threading.Barrier(num_ranks, timeout=SECONDS)
        self.given: list[Any] = [None] * num_ranks
        self.local = threading.local()

    def get_world_size(self, group: Any = None) -> int:
        return self.num_ranks

    def get_rank(self, group: Any = None) -> int:
        return int(self.local.rank)

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], group: Any = None, async_op: bool = False
    ) -> None:
        with self._shared(inputs) as given:
            for output, own in zip(outputs, given, strict=True):
                output.copy_(own[self.local.rank])

    def all_gather_into_tensor(
        self, output: Tensor, own: Tensor, group: Any = None, async_op: bool = False
    ) -> None:
        with self._shared(own) as given:
            output.copy_(torch.cat(given))

    @contextlib.contextmanager
    def _shared(self, own: Any) -> Iterator[list[Any]]:
        """Give what each rank brings; no rank continues before all have taken it."""
        self.given[self.local.rank] = own
        self.barrier.wait()
        yield list(self.given)
        self.barrier.wait()

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Return what each rank's work gives; raises the first error of one."""
        found: list[Any] = [None] * self.num_ranks
        errors: list[BaseException] = []

        def start(rank: int) -> None:
            self.local.rank = rank
            try:
                found[rank] = work(rank)
            except BaseException as error:  # noqa: BLE001  raised again below, in the caller's thread
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=start, args=(rank,)) for rank in range(self.num_ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise next(
                (one for one in errors if not isinstance(one, threading.BrokenBarrierError)), errors[0]
            )
        return found


def on_ranks(num_ranks: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what each rank's work gives, with a group of threads in place of that of processes."""
    ulysses = importlib.import_module(ULYSSES)
    ranks = ThreadRanks(num_ranks)
    before = ulysses.get_ulysses_sequence_parallel_group()
    with mock.patch.object(ulysses, "dist", ranks):
        ulysses.set_ulysses_sequence_parallel_group(ranks)
        try:
            return ranks.run(work)
        finally:
            ulysses.set_ulysses_sequence_parallel_group(before)


class VerlSequenceParallel(Adapted):
    """Padding, shares, and what ranks exchange."""

    def __init__(self) -> None:
        """Find those that the installed release has."""
        super().__init__(ADAPTED)


def _takes_value(function: Any, value: int) -> dict[str, int]:
    if "pad_value" in function.__code__.co_varnames[: function.__code__.co_argcount]:
        return {"pad_value": value}
    if value:
        raise NotServed(f"{function.__name__} of verl {release('verl')} pads with zeros")
    return {}


def _serves(positions: Tensor | None, ranks: int = 2) -> None:
    if positions is not None and positions.dim() == 3 and ranks > 1:
        source = inspect.getsource(importlib.import_module(ULYSSES))
        if "position_ids_rmpad.dim() == 3" not in source:
            raise NotServed(f"verl {release('verl')} pads positions of one axis")


def _padded(pad: Any) -> Callable[..., Any]:
    def padded(ids: Tensor, positions: Tensor | None, ranks: int, value: int) -> Any:
        _serves(positions, ranks)
        return pad(ids, positions, ranks, **_takes_value(pad, value))

    return padded


def _shares(share: Any) -> Callable[..., Any]:
    def shares(ids: Tensor, positions: Tensor | None, ranks: int, value: int, whole: bool) -> Any:
        _serves(positions, ranks)
        if positions is not None and positions.dim() == 3 and not whole:
            raise NotServed("positions of several axes are divided along the axes' rows")
        more = _takes_value(share, value)
        if "skip_position_ids_rmpad" in share.__code__.co_varnames:
            more["skip_position_ids_rmpad"] = whole
        elif whole:
            raise NotServed(f"verl {release('verl')} divides positions")
        return on_ranks(ranks, lambda _: share(ids, positions, ranks, **more))

    return shares


def _slices(cut: Any) -> Callable[..., Any]:
    return lambda values, dim, ranks: on_ranks(ranks, lambda _: cut(values, dim))


def _by_heads(exchange: Any) -> Callable[..., Any]:
    def by_heads(values: Tensor, weights: Tensor, ranks: int, tokens: int) -> Any:
        def work(rank: int) -> tuple[Tensor, Tensor]:
            own = values.chunk(ranks, 1)[rank].clone().requires_grad_()
            output = exchange(own, seq_dim=1, head_dim=2, unpadded_dim_size=tokens)
            loss = (output * weights.chunk(ranks, 2)[rank][:, :tokens]).sum()
            return output.detach(), torch.autograd.grad(loss, own)[0]

        found = on_ranks(ranks, work)
        return tuple([one[part] for one in found] for part in (0, 1))

    return by_heads


def _by_tokens(exchange: Any) -> Callable[..., Any]:
    def by_tokens(values: Tensor, weights: Tensor, ranks: int) -> Any:
        def work(rank: int) -> tuple[Tensor, Tensor]:
            own = values.chunk(ranks, 2)[rank].clone().requires_grad_()
            output = exchange(own, head_dim=2, seq_dim=1)
            return output.detach(), torch.autograd.grad(
                (output * slices(weights, 1, ranks)[rank]).sum(), own
            )[0]

        found = on_ranks(ranks, work)
        return tuple([one[part] for one in found] for part in (0, 1))

    return by_tokens


def _gathered(gather: Any) -> Callable[..., Any]:
    def gathered(values: Tensor, weights: Tensor, ranks: int, dim: int, added: int, scaled: bool) -> Any:
        def work(rank: int) -> tuple[Tensor, Tensor]:
            own = values.chunk(ranks, dim)[rank].clone().requires_grad_()
            output = gather(own, gather_dim=dim, unpad_dim=dim, padding_size=added, grad_scaler=scaled)
            loss = (output * weights.narrow(dim, 0, output.shape[dim])).sum()
            return output.detach(), torch.autograd.grad(loss, own)[0]

        found = on_ranks(ranks, work)
        return tuple([one[part] for one in found] for part in (0, 1))

    return gathered


def _with_ends(pad: Any) -> Callable[..., Any]:
    def padded(tokens: Tensor, ends: Sequence[int], longest: int, size: int) -> Any:
        found = pad(tokens, torch.tensor(ends), longest, size)
        return found[0], found[1].tolist(), int(found[2])

    return padded


ADAPTED: Mapping[str, tuple[Sequence[str], Callable[..., Callable[..., Any]]]] = {
    "padded for ranks": ([f"{ULYSSES}:ulysses_pad"], _padded),
    "packed and padded": (
        ["verl.workers.engine.utils:pad_packed_inputs"],
        lambda pad: lambda ids, positions, added, value: pad(ids, positions, added, pad_value=value),
    ),
    "packed with ends": (["verl.utils.model:pad_packed_inputs"], _with_ends),
    "shares of ranks": ([f"{ULYSSES}:ulysses_pad_and_slice_inputs"], _shares),
    "slices of ranks": ([f"{ULYSSES}:slice_input_tensor"], _slices),
    "tokens to heads": ([f"{ULYSSES}:gather_seq_scatter_heads"], _by_heads),
    "heads to tokens": ([f"{ULYSSES}:gather_heads_scatter_seq"], _by_tokens),
    "gathered of ranks": ([f"{ULYSSES}:gather_outputs_and_unpad"], _gathered),
}
"""By the name of the contract: functions of the release, and what fits them to it."""

ADAPTERS: dict[str, type[Any]] = {"sequence-parallel": VerlSequenceParallel}
