"""Contracts of generation: the sampler, and the way that weights take to it.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seatrial.relations.records import PoolReply, Sampled

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


class OpenPool(Protocol):
    """Several engines as one, within one event loop."""

    async def generate(self, request: int) -> PoolReply:
        """Return the whole reply of one engine; a reply whose finish reason is `abort` is not one."""
        ...

    async def stop(self) -> None:
        """Let nothing begin, and return when nothing runs."""
        ...

    def resume(self) -> None:
        """Let requests begin again."""
        ...


@runtime_checkable
class GenerationPool(Protocol):
    """Generation over several engines that a weight sync can stop."""

    def open_pool(
        self, engines: Sequence[Callable[[int], Awaitable[PoolReply]]], *, capacity: int
    ) -> OpenPool:
        """Return a pool over these engines, each of which takes at most `capacity` requests at once."""
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
