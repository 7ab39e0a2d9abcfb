"""Contracts of what becomes a batch: built, cut to fit, chosen by reward, and how stale it may be.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seatrial.relations.records import BuiltBatch, Row

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class BatchBuilder(Protocol):
    """Ragged rows to padded tensors."""

    def make_batch(self, rows: Sequence[Row]) -> BuiltBatch:
        """Return one padded row per input row, in the same order."""
        ...


@runtime_checkable
class ClampedBatch(Protocol):
    """Ragged rows to padded tensors of a few widths, cut where they do not fit."""

    def make_clamped_batch(
        self, rows: Sequence[Row], max_sequence_length: int | None, sequence_buckets: Sequence[int]
    ) -> BuiltBatch:
        """Return one row per input row, in the same order; completions are cut at their end, prompts never.

        A row is cut by its own length alone: to `max_sequence_length` and to the largest bucket, in tokens of prompt
        plus completion. `num_cut_tokens` counts the completion tokens cut off. The width is a bucket wherever one
        holds the longest prompt plus the longest completion kept.
        """
        ...


@runtime_checkable
class GroupFilter(Protocol):
    """Dynamic sampling's choice of rows."""

    def keep_rows(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        """Return a bool per row: true exactly where the rewards of the row's group differ."""
        ...


class Cadences(Protocol):
    """What a schedule answers; versions count optimizer steps."""

    @property
    def accumulation_steps(self) -> int:
        """Forward-backward passes of an optimizer step."""
        ...

    def is_fresh(self, sample_version: int, trainer_version: int) -> bool:
        """Return whether a sample may be trained on; ValueError for a sample of the future."""
        ...

    def syncs_sampler(self, trainer_version: int) -> bool:
        """Return whether the sampler gets the weights after this many steps."""
        ...

    def syncs_reference(self, trainer_version: int) -> bool:
        """Return whether the reference gets the weights after this many steps."""
        ...


@runtime_checkable
class StalenessSchedule(Protocol):
    """Cadences of updates and syncs, and the bound on staleness."""

    def make_schedule(
        self,
        *,
        prompts_per_step: int,
        prompts_per_forward_backward: int,
        prompts_per_sync: int | None,
        prompts_per_reference_sync: int | None,
        max_staleness: int,
    ) -> Cadences:
        """Return the schedule; None syncs the sampler after every step, and the reference never.

        Raises:
            ValueError: a cadence does not come out even or is not positive, or no sample could be fresh enough in
                the last step before a sync.
        """
        ...
