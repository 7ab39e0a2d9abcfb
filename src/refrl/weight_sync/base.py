"""How weights get from the policy to the generator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor


class WeightSource(Protocol):
    """What has the weights: a policy."""

    @property
    def version(self) -> int:
        """Optimizer steps that the weights have seen."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter and buffer, live, under its Hugging Face name."""
        ...


class WeightTarget(Protocol):
    """What takes them: a generator."""

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


class WeightSync(Protocol):
    """Brings a generator's weights up to date; called before every generation."""

    def sync(self) -> None:
        """Give the generator the weights as they are now, and their version."""
        ...
