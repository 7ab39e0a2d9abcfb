"""Contracts of generation: the sampler, the engine and the pool, and weight sync to the sampler.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seatrial.relations.records import PoolReply, Sampled

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class WeightSync(Protocol):
    """The generator's own copy of the weights, and a tiny trained model; tensors are returned as copies by name."""

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
        """Return the weight version that the generator reports."""
        ...


class OpenPool(Protocol):
    """Several engines used as one, within one event loop."""

    async def generate(self, request: int) -> PoolReply:
        """Return the complete reply of one engine, never one with finish reason `abort`.

        Raises:
            Exception: of any kind, if engines abort the request again and again without a stop in between.
        """
        ...

    async def stop(self) -> None:
        """Start no further requests, and return when none is running."""
        ...

    def resume(self) -> None:
        """Start requests again."""
        ...


@runtime_checkable
class GenerationPool(Protocol):
    """Generation over several engines that a weight sync can stop."""

    def open_pool(
        self, engines: Sequence[Callable[[int], Awaitable[PoolReply]]], *, capacity: int
    ) -> OpenPool:
        """Return a pool over these engines, each of which takes at most `capacity` requests at once."""
        ...


class OpenEngine(Protocol):
    """An engine that runs, in this process or in another; its calls share one random stream."""

    def generate(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int) -> list[Sampled]:
        """Return one completion per prompt, no token of which ends it; `abort` is the finish reason of one given up."""
        ...

    def abort(self) -> None:
        """Abort running generation, called from another thread; `generate` returns the tokens so far."""
        ...

    def resume(self) -> None:
        """Allow complete generation again."""
        ...

    def close(self) -> None:
        """Stop the engine."""
        ...


@runtime_checkable
class GenerationEngine(Protocol):
    """A generation engine with the adapter's own tiny model, where the configuration places it."""

    def open_engine(self, *, seed: int) -> OpenEngine:
        """Start one whose random stream begins with this seed; models may generate 200 tokens."""
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


@dataclass(frozen=True, kw_only=True)
class Part:
    """Tokens that a fake engine samples before it aborts; the last part is complete."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int


@dataclass(frozen=True, kw_only=True)
class Continued:
    """A completion that was sampled in parts."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    segments: tuple[tuple[int, int], ...]
    """(first token, weights) of each stretch of one version, the first one included."""
    weight_version: int
    """Version of the whole completion: that of its first token."""
    asked: tuple[tuple[tuple[int, ...], int], ...]
    """Prompt and `max_new_tokens` of each request to the engine."""


@runtime_checkable
class Continuation(Protocol):
    """Completions that are aborted while weights change, and continued with the new weights."""

    def continued(
        self, prompt_ids: Sequence[int], parts: Sequence[Part], *, max_new_tokens: int
    ) -> Continued:
        """Return one completion of the stack's pool over an engine that replies with these parts, one per request."""
        ...


@dataclass(frozen=True, kw_only=True)
class Episode:
    """A completion of several turns, with the environment's messages between them."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    mask: tuple[int, ...]
    """1 on the tokens that were sampled."""
    asked: tuple[tuple[tuple[int, ...], int], ...]
    """Prompt and `max_new_tokens` of each turn's request."""
    words_ids: tuple[tuple[int, ...], ...]
    """Token ids of each message of the environment."""


@runtime_checkable
class SeveralTurns(Protocol):
    """Episodes of several turns with an environment."""

    def episode(
        self, prompt_ids: Sequence[int], turns: Sequence[Part], words: Sequence[str], *, max_new_tokens: int
    ) -> Episode:
        """Roll out one episode: an engine samples these turns, and the environment sends `words` between them."""
        ...
