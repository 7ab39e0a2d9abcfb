"""Contract of data collators: rows of features to one batch.

Part of `seatrial.relations.contracts`, which lists every component. Random masks: `masking`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

KINDS = (
    "padding",
    "token classes",
    "sequences",
    "language modeling",
    "choices",
    "default",
    "flattening",
    "permutation",
)
"""What an adapter may collate, each as its documentation says."""


@dataclass(frozen=True, kw_only=True)
class CollatorPlan(Case):
    """Features of rows, and how they become a batch; a made input."""

    kind: str
    """One of `KINDS`."""
    rows: tuple[Mapping[str, Any], ...]
    """Features by name: `input_ids`, and `labels` of one value or of many."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """By the names of Transformers' collators."""
    side: str = "right"
    """That the tokenizer pads on."""
    returns: str = "pt"
    """Kind of arrays: `pt` or `np`."""
    seed: int = 0

    def smaller(self) -> Iterator[CollatorPlan]:
        """Yield the plan of fewer rows."""
        if len(self.rows) > 2:
            yield replace(self, rows=self.rows[:2])


@runtime_checkable
class Collators(Protocol):
    """Collates features."""

    pad_id: int
    mask_id: int
    ordinary_ids: Sequence[int]

    def collated(self, plan: CollatorPlan) -> Mapping[str, Any]:
        """Return the batch as nested lists and numbers, by name.

        Raises:
            NotServed: the release has no such collator, option or kind of arrays.
        """
        ...
