"""Weights sent to a generator in buckets, whole or as changes, and compared with the policy's afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

import torch
from torch import Tensor

from refrl.config import DeltaCompressionConfig
from refrl.timing import Timer
from refrl.weight_sync.base import Part, TensorSpec, WeightReceiver, WeightSource
from refrl.weight_sync.changes import Changes, changes
from refrl.weight_sync.tensors import fingerprints

_PHASES = "prepare_for_generation/weight_transfer"


class TransferredWeights:
    """A `refrl.weight_sync.base.WeightSync` that shares nothing with the generator.

    With delta compression a sync carries the new values at the places that changed since the last one, bit by bit, in
    the type `delta_compression.dtype`: nothing adds up, and the generator has exactly the policy's weights in that
    type. A tensor goes whole where its changes would take more bytes. Every `full_sync_interval`-th sync, and the one
    after a failure, carries every element.
    """

    def __init__(
        self,
        source: WeightSource,
        receiver: WeightReceiver,
        *,
        bucket_bytes: int,
        delta: DeltaCompressionConfig,
        timer: Timer,
    ) -> None:
        """Send the weights as they are now.

        Raises:
            WeightSyncError: the generator did not get them whole.
        """
        self._source, self._receiver, self._timer = source, receiver, timer
        self._delta = delta
        self._bucket_bytes = delta.sparse_bucket_size_bytes if delta.enabled else bucket_bytes
        self._sent: dict[str, Tensor] = {}
        """As they were sent last; empty: the next sync carries every element."""
        self._syncs_since_full = 0
        self._version: int | None = None
        self._report: Mapping[str, float] = {}
        """Of the sync that brought the weights that the generator has."""
        self.sync()

    def sync(self) -> Mapping[str, float]:
        """Send what the generator does not have, and compare every tensor's fingerprint.

        Raises:
            WeightSyncError: the generator did not get the weights whole; it names the tensors.
        """
        if self._version == self._source.version:
            return self._report
        # What the generator has is known again when everything has arrived.
        (known, self._sent), (based_on, self._version) = (self._sent, {}), (self._version, None)
        if not known or self._syncs_since_full + 1 >= self._delta.full_sync_interval:
            known, based_on = {}, None
        version = self._source.version
        with self._phase("collect_tensors"):
            weights = {name: self._as_sent(tensor) for name, tensor in self._source.named_weights()}
            expected = _fingerprints(weights, self._receiver.specs())
        num_bytes = largest = 0
        self._receiver.begin(version, based_on)
        for bucket in bucketed(self._parts(weights, known), self._bucket_bytes):
            num_bytes += sum(map(_num_bytes, bucket))
            largest = max(largest, sum(map(_num_bytes, bucket)))
            self._receiver.receive(bucket)
        receipt = self._receiver.commit(expected)
        for name, seconds in receipt.seconds.items():
            self._timer.add(f"{_PHASES}/consumer/{name}", seconds)
        self._version = version
        self._syncs_since_full = 0 if based_on is None else self._syncs_since_full + 1
        self._sent = weights if self._delta.enabled else {}
        self._report = {
            "weight_sync/tensors_verified": float(receipt.num_tensors),
            "weight_sync/bytes_sent": float(num_bytes),
            "weight_sync/largest_message_bytes": float(largest),
            "weight_sync/largest_load_bytes": float(receipt.largest_load_bytes),
            "weight_sync/full": float(based_on is None),
        }
        return self._report

    def _as_sent(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the type it travels in; with delta compression a copy, to be compared with the next."""
        if not self._delta.enabled:
            return tensor.detach()
        name = self._delta.dtype
        dtype = getattr(torch, name) if name is not None and tensor.is_floating_point() else tensor.dtype
        return tensor.detach().to(dtype, copy=True)

    def _parts(self, weights: Mapping[str, Tensor], known: Mapping[str, Tensor]) -> Iterator[Part]:
        """Yield the missing parts of each tensor, one tensor at a time."""
        for name, tensor in weights.items():
            flat_N = tensor.reshape(-1)
            before = known.get(name)
            if before is None or before.shape != tensor.shape:
                yield Part(name, flat_N)
                continue
            with self._phase("sparse_nonzero"):
                changed = changes(flat_N, before.reshape(-1))
            with self._phase("sparse_encode"):
                part = _ENCODINGS[self._delta.transport](name, flat_N, changed)
            if part.values_N.numel():
                yield part

    def _phase(self, name: str) -> AbstractContextManager[None]:
        return self._timer.time(f"{_PHASES}/producer/{name}")


def bucketed(parts: Iterable[Part], bucket_bytes: int) -> Iterator[list[Part]]:
    """Yield the parts in buckets of at most so many bytes; a part that does not fit is cut, down to single elements."""
    bucket: list[Part] = []
    space = bucket_bytes
    for part in parts:
        element = _num_bytes(part) // max(1, part.values_N.numel())
        rest: Part | None = part
        while rest is not None:
            if bucket and space < element:
                yield bucket
                bucket, space = [], bucket_bytes
            piece, rest = _cut(rest, max(1, space // max(1, element)))
            bucket.append(piece)
            space -= _num_bytes(piece)
    if bucket:
        yield bucket


def _cut(part: Part, count: int) -> tuple[Part, Part | None]:
    """Return the first elements of a part, and the rest of it where there is one."""
    if part.values_N.numel() <= count:
        return part, None
    if part.indices_N is not None:
        return (
            replace(part, values_N=part.values_N[:count], indices_N=part.indices_N[:count]),
            replace(part, values_N=part.values_N[count:], indices_N=part.indices_N[count:]),
        )
    return (
        replace(part, values_N=part.values_N[:count]),
        replace(part, values_N=part.values_N[count:], start=part.start + count),
    )


def _sparse(name: str, flat_N: Tensor, changed: Changes) -> Part:
    """Return the values at these places, or all values where that is less to send."""
    part = Part(name, changed.values_K, indices_N=changed.places_K)
    whole = Part(name, flat_N)
    return part if _num_bytes(part) < _num_bytes(whole) else whole


def _num_bytes(part: Part) -> int:
    """Return how much travels of a part, its places included."""
    indices = 0 if part.indices_N is None else part.indices_N.nbytes
    return part.values_N.nbytes + indices


def _fingerprints(weights: Mapping[str, Tensor], specs: Mapping[str, TensorSpec]) -> dict[str, str]:
    """Return the fingerprint of each tensor as the generator will hold it: in the type that it has there."""
    return fingerprints(
        {name: tensor.to(specs[name].dtype) if name in specs else tensor for name, tensor in weights.items()}
    )


_ENCODINGS = {"sparse_indices": _sparse}
"""How changes are written down, by the name that `delta_compression.transport` takes."""
