"""Contract of masking for masked language models.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class MaskingPlan(Case):
    """Rows and the shares of their ids that are masked; a made input."""

    rows: tuple[tuple[int, ...], ...]
    """Of ordinary ids; the adapter puts a special id before and after each."""
    share: float = 0.15
    """Of ordinary ids, that train."""
    replaced: float = 0.8
    """Of those, that the mask takes the place of."""
    random: float = 0.1
    """Of those, that another id takes the place of."""
    seed: int = 0

    def smaller(self) -> Iterator[MaskingPlan]:
        """Yield the plan of fewer rows."""
        if len(self.rows) > 8:
            yield replace(self, rows=self.rows[: len(self.rows) // 2])


class MaskedRow(NamedTuple):
    """One row of a batch, without padding."""

    ids: tuple[int, ...]
    """As they were, special ids included."""
    seen: tuple[int, ...]
    """What the model reads."""
    labels: tuple[int | None, ...]
    """None where nothing trains."""


@runtime_checkable
class Masking(Protocol):
    """Masks rows of unequal lengths in one batch."""

    ordinary_ids: Sequence[int]
    special_ids: Collection[int]
    mask_id: int
    word_size: int
    """Ids of a word that are masked together, counted from the first ordinary one of a row; 1: each for itself."""

    def masked(self, plan: MaskingPlan) -> list[MaskedRow]:
        """Return the rows of one batch.

        Raises:
            NotServed: the release has no such shares.
        """
        ...
