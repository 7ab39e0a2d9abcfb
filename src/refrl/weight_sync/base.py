"""The interfaces of weight syncs, from the policy to the generator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class WeightSource(Protocol):
    """The source of the weights: a policy."""

    @property
    def version(self) -> int:
        """Optimizer steps that the weights have seen."""
        ...

    @property
    def shares_weights(self) -> bool:
        """Whether `named_weights` yields the tensors that are trained, and not whole copies of them."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter and buffer, whole and under its Hugging Face name; every process takes all of them."""
        ...


class WeightTarget(Protocol):
    """The receiver of whole weights: a generator."""

    weight_version: int
    """Optimizer steps that the weights it samples with have seen."""

    def share_weights(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Sample with these very tensors from now on: what is written into them is sampled with."""
        ...

    def load_weights(self, weights: Iterator[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights into its own.

        Raises:
            WeightSyncError: the names or shapes are not its own.
        """
        ...


class WeightSyncError(ValueError):
    """The weights that arrived are not those that the generator has; it names the tensors."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Part:
    """Some elements of one tensor, counted in row-major order. N elements."""

    name: str
    values_N: Tensor
    """In the type that they travel in."""
    start: int = 0
    """Where they begin, when they lie side by side."""
    indices_N: Tensor | None = None
    """Where each belongs, int32 or int64, ascending; None: side by side."""


@dataclass(frozen=True)
class Receipt:
    """What a receiver says of a sync that it has taken whole."""

    num_tensors: int
    """Tensors whose fingerprints are those of the sender."""
    seconds: Mapping[str, float]
    """By phase: `decode_sparse`, `load_delta`."""
    largest_load_bytes: int = 0
    """Of the changed values, with their places, that were put in their places at a time; 0 where every element came."""


class WeightReceiver(Protocol):
    """What takes weights in parts: a generator. From `begin` until `commit` has returned it refuses to sample."""

    weight_version: int
    """Optimizer steps that its weights have seen."""

    def specs(self) -> Mapping[str, TensorSpec]:
        """Return the tensors that it has: no other names are taken."""
        ...

    def begin(self, version: int, based_on: int | None) -> None:
        """Open a sync.

        Args:
            version: what the weights will be.
            based_on: the version to which only changes will come; None: every element will come.

        Raises:
            WeightSyncError: it has no whole weights of the version that the changes belong to.
        """
        ...

    def receive(self, parts: Sequence[Part]) -> None:
        """Put a bucket of parts in their places.

        Raises:
            WeightSyncError: a part is not of a tensor that it has, or does not fit; or no sync is open.
        """
        ...

    def commit(self, fingerprints: Mapping[str, str]) -> Receipt:
        """Close the sync: hold every tensor against its fingerprint, take the version, and sample again.

        Raises:
            WeightSyncError: names the tensors that did not arrive whole; it still refuses to sample.
        """
        ...


class WeightSync(Protocol):
    """Brings a generator's weights up to date; called before every generation."""

    def sync(self) -> Mapping[str, float]:
        """Give the generator the weights as they are now, and their version.

        Returns:
            What there is to log of it, by name.
        """
        ...
