"""Contracts of generation: the sampler, and the way that weights take to it.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seatrial.relations.records import Sampled

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class WeightSync(Protocol):
    """The generator's own copy of the weights, beside a tiny trained model; tensors are given as copies by name."""

    def start_sync(self) -> None:
        """Start again: version 0, the copy equal to the trained model."""
        ...

    def advance(self, version: int, *, with_buffers: bool) -> None:
        """Change every trained parameter (and buffer) as training to this version would."""
        ...

    def sync(self) -> None:
        """Bring the generator's copy up to date with the trained model, as before a rollout."""
        ...

    def trainer_tensors(self) -> Mapping[str, Tensor]:
        """Return parameters and buffers of the trained model."""
        ...

    def sampler_tensors(self) -> Mapping[str, Tensor]:
        """Return those of the generator's copy, under the same names."""
        ...

    def sampler_version(self) -> int:
        """Return the version that the generator says it has."""
        ...


@runtime_checkable
class Sampler(Protocol):
    """Generation with the adapter's own tiny model."""

    vocab_size: int

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> list[Sampled]:
        """Return one completion per prompt, in order; the same prompt twice is sampled twice."""
        ...
