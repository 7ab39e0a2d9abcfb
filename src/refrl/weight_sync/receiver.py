"""The generator's side of a sync in parts: nothing is sampled with weights that are not whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from refrl.timing import Timer
from refrl.weight_sync.base import Part, Receipt, TensorSpec, WeightSyncError
from refrl.weight_sync.tensors import fingerprints as fingerprints_of


class Receiver:
    """Takes parts into the tensors of a model. A `refrl.weight_sync.base.WeightReceiver`."""

    def __init__(
        self, named_weights: Callable[[], Iterator[tuple[str, Tensor]]], *, load_batch_bytes: int
    ) -> None:
        """Take where the tensors are.

        Args:
            named_weights: yields every tensor of the model, live.
            load_batch_bytes: changed values that are put in their places at a time.
        """
        self._named_weights = named_weights
        self._load_batch_bytes = load_batch_bytes
        self._timer = Timer()
        self._tensors: dict[str, Tensor] = {}
        self._arrived: Counter[str] = Counter()
        self._begun: tuple[int, int | None] | None = None
        self._is_whole = True
        self._largest_load = 0
        self.weight_version = 0

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return the tensors of the model."""
        return {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in self._named_weights()}

    def begin(self, version: int, based_on: int | None) -> None:
        """Open a sync (see `refrl.weight_sync.base.WeightReceiver`)."""
        if based_on is not None and not (self._is_whole and based_on == self.weight_version):
            has = f"version {self.weight_version}" if self._is_whole else "none that is whole"
            raise WeightSyncError(
                f"changes to version {based_on} arrived, and the generator has {has}: send every element"
            )
        self._tensors = dict(self._named_weights())
        self._arrived.clear()
        self._largest_load = 0
        self._begun = version, based_on
        self._is_whole = False

    @torch.no_grad()
    def receive(self, parts: Sequence[Part]) -> None:
        """Put a bucket of parts in their places."""
        if self._begun is None:
            raise WeightSyncError("weights arrived, and no sync is open")
        for part in parts:
            flat_N = self._flat(part)
            if part.indices_N is None:
                flat_N[part.start : part.start + part.values_N.numel()].copy_(part.values_N)
            else:
                self._scatter(flat_N, part.indices_N, part.values_N)
            self._arrived[part.name] += part.values_N.numel()

    def commit(self, fingerprints: Mapping[str, str]) -> Receipt:
        """Close the sync (see `refrl.weight_sync.base.WeightReceiver`)."""
        if self._begun is None:
            raise WeightSyncError("a sync was closed that was not open")
        version, based_on = self._begun
        self._begun = None
        if based_on is None:
            _refuse(
                {name: f"{self._arrived[name]} of {tensor.numel()} elements" for name, tensor in self._tensors.items()
                 if self._arrived[name] != tensor.numel()},
                f"of the sync to version {version} there arrived",
            )  # fmt: skip
        unknown = self._tensors.keys() ^ fingerprints.keys()
        _refuse(dict.fromkeys(unknown, "on one side only"), "the tensors of sender and generator differ")
        own = fingerprints_of(self._tensors)
        _refuse(
            {name: "another" for name in own if own[name] != fingerprints[name]},
            f"after the sync to version {version} the generator's fingerprint is not the sender's",
        )  # fmt: skip
        self.weight_version = version
        self._is_whole = True
        return Receipt(
            num_tensors=len(fingerprints),
            seconds=self._timer.take(),
            largest_load_bytes=self._largest_load,
        )

    def check_whole(self) -> None:
        """Refuse to serve between the beginning of a sync and its end.

        Raises:
            WeightSyncError: a sync is open, or the last one failed half-way.
        """
        if not self._is_whole:
            raise WeightSyncError(
                "the generator's weights are not whole: a sync is open, or failed half-way; sync again before sampling"
            )

    def _flat(self, part: Part) -> Tensor:
        tensor = self._tensors.get(part.name)
        if tensor is None:
            raise WeightSyncError(f"{part.name} arrived, and the generator has no tensor of that name")
        if not tensor.is_contiguous():
            raise WeightSyncError(f"{part.name} does not lie in row-major order in the generator")
        last = part.start + part.values_N.numel() if part.indices_N is None else 0
        if part.indices_N is not None and part.indices_N.numel():
            last = int(part.indices_N[-1]) + 1
        if part.start < 0 or last > tensor.numel():
            raise WeightSyncError(
                f"{part.name} has {tensor.numel()} elements, and values for {last} of them arrived"
            )
        return tensor.view(-1)

    def _scatter(self, flat_N: Tensor, indices_N: Tensor, values_N: Tensor) -> None:
        element = indices_N.element_size() + values_N.element_size()
        step = max(1, self._load_batch_bytes // element)
        for start in range(0, values_N.numel(), step):
            with self._timer.time("decode_sparse"):
                indices_C = indices_N[start : start + step].to(flat_N.device, torch.int64)
                values_C = values_N[start : start + step].to(flat_N.device, flat_N.dtype)
            with self._timer.time("load_delta"):
                flat_N.index_copy_(0, indices_C, values_C)
            self._largest_load = max(self._largest_load, len(indices_C) * element)


def _refuse(wrong: Mapping[str, str], what: str) -> None:
    """Raise a WeightSyncError that names the first of the tensors with which something is wrong."""
    if wrong:
        named = ", ".join(f"{name} ({how})" for name, how in sorted(wrong.items())[:3])
        raise WeightSyncError(f"{what} {named}{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}")
