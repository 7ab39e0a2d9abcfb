"""What refrl's syncs, layouts and models say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from refrl.config import DeltaCompressionConfig
from refrl.distributed import World
from refrl.models.loading import end_ids
from refrl.policy.dtensor.meshes import Meshes
from refrl.timing import Timer
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.transferred import TransferredWeights

WEIGHTS = "prepare_for_generation/weight_transfer/"
WHOLE = ("producer/collect_tensors",)
CHANGES = (
    *("producer/collect_tensors", "producer/sparse_nonzero", "producer/sparse_encode"),
    *("consumer/decode_sparse", "consumer/load_delta"),
)
"""Documented phases of a sync, below `WEIGHTS`."""


class _Source:
    """A policy of two tensors."""

    shares_weights = True

    def __init__(self) -> None:
        self.version = 0
        self.weights = {"a": torch.arange(600.0), "b": torch.ones(3)}

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.weights.items()


def phases() -> Iterator[tuple[str, Sequence[str], Mapping[str, float]]]:
    """Yield the documented phases of a sync, and the seconds of those that it timed."""
    source, timer = _Source(), Timer()
    held = {name: torch.zeros_like(tensor) for name, tensor in source.weights.items()}
    receiver = Receiver(lambda: iter(held.items()), load_batch_bytes=64)
    delta = DeltaCompressionConfig(enabled=True)
    sync = TransferredWeights(source, receiver, bucket_bytes=1000, delta=delta, timer=timer)
    yield "all tensors", [WEIGHTS + name for name in WHOLE], timer.take()
    source.weights["a"][7] += 1.0
    source.version += 1
    sync.sync()
    yield "changes", [WEIGHTS + name for name in CHANGES], timer.take()


def sizes() -> list[tuple[str, Mapping[str, int], Mapping[str, int]]]:
    """Return what the meshes of a run of unequal dimensions say."""

    def mesh(size: int) -> Any:
        return SimpleNamespace(size=lambda: size)

    made = Meshes(
        data=World(rank=0, size=6),
        context=mesh(2),
        tensor=mesh(3),
        shards=mesh(12),
        experts=mesh(4),
        expert_copies=mesh(5),
    )
    return [("dtensor", {"data": 6, "context": 2, "tensor": 3, "expert": 4}, made.sizes())]


def end_ids_of(own: Any, of_generation: Any) -> frozenset[int]:
    """Return the end tokens of a model whose configurations name these."""
    model: Any = SimpleNamespace(
        config=SimpleNamespace(eos_token_id=own),
        generation_config=SimpleNamespace(eos_token_id=of_generation),
    )
    return end_ids(model)
