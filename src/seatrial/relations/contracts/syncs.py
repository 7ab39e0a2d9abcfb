"""Contracts of weight syncs between updates: a policy that trains, and the engine that samples for it.

Part of `seatrial.relations.contracts`, which lists every component. Tensors are given as copies, by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from seatrial.relations.records import Sampled


@dataclass(frozen=True, kw_only=True)
class Filters:
    """How tokens are drawn."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """An episode of several turns."""

    row: Sampled
    """Includes what the environment wrote, with any log-probability."""
    mask: tuple[int, ...]
    """1 on the tokens that were sampled."""


class OpenSync(Protocol):
    """A policy and its engine, whose weights are those of the policy."""

    def train(self) -> int:
        """Take one optimizer step that moves every trainable tensor; return the version of the weights."""
        ...

    def sync(self) -> Mapping[str, float]:
        """Bring the engine's weights up to date, as before a rollout; return what there is to log of it."""
        ...

    def trained_tensors(self) -> Mapping[str, Tensor]:
        """Return parameters and buffers of the policy, in the type in which they travel to the engine."""
        ...

    def served_tensors(self) -> Mapping[str, Tensor]:
        """Return those that the engine computes with, under the same names."""
        ...

    def served_version(self) -> int:
        """Return the weight version that the engine reports."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], *, seed: int, filters: Filters | None = None
    ) -> list[Sampled]:
        """Return one completion of seven tokens per prompt, in order.

        Args:
            prompts: ids.
            seed: of what is drawn.
            filters: in place of those of `open_sync`; given to stacks with `engines_draw_alike` alone.
        """
        ...

    def converse(self, prompts: Sequence[Sequence[int]], words: Sequence[str], *, seed: int) -> list[Spoken]:
        """Return an episode per prompt, of 60 tokens at most.

        Args:
            prompts: ids.
            words: what the environment writes after each turn but the last, so many turns at most. About half of the
                ids end a turn.
            seed: of what is drawn.
        """
        ...

    def score(
        self, rows: Sequence[Sampled], masks: Sequence[tuple[int, ...]] | None = None
    ) -> list[tuple[float, ...]]:
        """Return the policy's log-probability of each token of these completions, as for training.

        Args:
            rows: completions.
            masks: of each, 1 on the tokens that were sampled; None: all were.
        """
        ...

    def close(self) -> None:
        """Stop the engine."""
        ...


@runtime_checkable
class TrainedSync(Protocol):
    """Policy, engine and weight sync as the configuration has them: in one storage, copied, or sent.

    An adapter of a stack with several engines names those other than the configured one in its attribute
    `other_engines`; its `open_sync` then takes `engine=NAME`. `engines_draw_alike = True` says that all of them draw
    the same tokens from the same seed.
    """

    def open_sync(self, *, tied: bool, sent: bool, filters: Filters) -> OpenSync:
        """Start them.

        Args:
            tied: with a model whose head is its embedding.
            sent: to an engine with weights of its own, sent in parts, for any configuration.
            filters: how the engine draws; prompts of 180 tokens fit.

        Raises:
            seatrial.relations.NotServed: the stack excludes this by design.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How a sync splits weights into messages."""

    bucket_bytes: int
    """Largest size of a message."""
    order: tuple[int, ...]
    """Places of the tensors, in the order in which they are sent."""
    changes_alone: bool
    """Send what changed since the last sync, where there was one."""
    whole_every: int = 1000
    """Every `whole_every`-th sync sends all elements; so does the first one."""


class OpenCutSync(Protocol):
    """Weights that are sent, in parts, to a receiver with tensors of its own."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the sender's."""
        ...

    def change(self, tensors: Mapping[str, Tensor]) -> None:
        """Give the sender's tensors of these names other values; its version is the next."""
        ...

    def sync(self) -> tuple[Mapping[str, float], Sequence[int]]:
        """Send; return what there is to log of it (`bytes`: how many were sent), and the bytes of each message."""
        ...

    def received(self) -> Mapping[str, Tensor]:
        """Return the receiver's tensors."""
        ...

    def stop_after(self, num_messages: int) -> bool | None:
        """Send the weights as they are now again, and let the link end after so many messages of them.

        Returns:
            Whether the receiver would serve; None where the sync was whole before.
        """
        ...


@runtime_checkable
class CutSync(Protocol):
    """Weights that travel in parts."""

    def open_cut_sync(self, shapes: Sequence[tuple[int, ...]], cut: Cut) -> OpenCutSync:
        """Return a sender with float32 tensors of these shapes, and a receiver of the same, both full of zeros."""
        ...
