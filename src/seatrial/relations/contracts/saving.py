"""Contract of saving itself: which checkpoints are kept, what a background writer writes, and random streams.

Part of `seatrial.relations.contracts`, which lists every component. Whole runs that end and begin again: `resume`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Numbers that one rank drew from its global random streams."""

    unbroken: tuple[float, ...]
    """If it continues."""
    resumed: tuple[float, ...]
    """If it is stopped before them and resumed from the checkpoint."""


@runtime_checkable
class Saving(Protocol):
    """The stack's own checkpoints, of a state that is made."""

    def kept_of(
        self, metrics: Sequence[float | None], *, keep: int, higher_is_better: bool
    ) -> tuple[int, ...]:
        """Save after each of the steps 1, 2, ... and return the steps whose checkpoints are there at the end.

        Args:
            metrics: what each is ranked by; None: there was none at that step.
            keep: the best of them to be kept, in addition to the latest.
            higher_is_better: how they are ranked.
        """
        ...

    def saved_behind(self, tensors: Mapping[str, Tensor], change: Callable[[], None]) -> Mapping[str, Tensor]:
        """Save these tensors, call `change` as soon as training may continue, and return what the checkpoint has."""
        ...

    def kept_when_a_write_fails(
        self, metrics: Sequence[float | None], *, keep: int, bytes_a_file: int
    ) -> tuple[tuple[int, ...], bool]:
        """Save after each step as `kept_of` does, higher being better, where the last one's files find a full disk.

        Args:
            metrics: what each is ranked by.
            keep: the best of them to be kept, in addition to the latest.
            bytes_a_file: no file may then grow beyond; the state is larger.

        Returns:
            The steps whose checkpoints are there at the end, whole; and whether the failure was raised.
        """
        ...

    def resumed_with_damage(self, tensors: Mapping[str, Tensor]) -> Mapping[str, int | None]:
        """Save these tensors after the steps 1 and 2, and look which checkpoint a run would resume from.

        Returns:
            By each file of the second checkpoint, while one byte in its middle is flipped, the step of the checkpoint
            that a run resumes from; None where it resumes from none. Under the empty name: with no damage.
        """
        ...

    def drawn_after_resume(self, seeds: Sequence[int]) -> Sequence[Draws]:
        """Seed the global streams of as many ranks, save, and return what each draws next, by rank."""
        ...
