"""Metadata of rows without their bytes: ids, tags and lengths, aligned through every transform."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Tags = dict[str, Any]
"""Scalars of one sample: JSON numbers, text, true, false, None."""


@dataclass(frozen=True, kw_only=True)
class KVBatchMeta:
    """A receipt of a put, or a claim. Nothing in it is shared with another one, or with who made it."""

    partition_id: str
    sample_ids: list[str]
    task_name: str | None = None
    fields: list[str] | None = None
    """Those of the put or the claim; not all that the samples have."""
    sequence_lengths: list[int] | None = None
    """Of prompt and completion, row by row (tag `input_lengths`)."""
    extra_info: dict[str, Any] = field(default_factory=dict)
    tags: list[Tags] | None = None
    lease_id: str | None = None
    """Of a claim; its holder may renew, acknowledge or release it."""

    def __post_init__(self) -> None:
        """Copy what was given, and hold the lengths against one another.

        Raises:
            ValueError: tags or lengths are not as many as the samples.
        """
        for name in ("sample_ids", "fields", "sequence_lengths"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else list(given))
        object.__setattr__(self, "extra_info", copy.deepcopy(self.extra_info))
        object.__setattr__(self, "tags", None if self.tags is None else [dict(tags) for tags in self.tags])
        for name in ("tags", "sequence_lengths"):
            given = getattr(self, name)
            if given is not None and len(given) != self.size:
                raise ValueError(f"{len(given)} {name} of {self.size} samples: give one a sample, or None")

    @property
    def size(self) -> int:
        """How many samples."""
        return len(self.sample_ids)

    def subset(self, indices: Sequence[int]) -> KVBatchMeta:
        """Return these rows, in this order.

        Raises:
            IndexError: one is not there, or is negative.
        """
        wrong = [index for index in indices if not 0 <= index < self.size]
        if wrong:
            raise IndexError(f"rows {wrong} of {self.size} samples")
        return replace(
            self,
            sample_ids=[self.sample_ids[index] for index in indices],
            sequence_lengths=_picked(self.sequence_lengths, indices),
            tags=_picked(self.tags, indices),
        )

    def slice(self, start: int, stop: int) -> KVBatchMeta:
        """Return rows `start` to `stop`, as a list slices."""
        return self.subset(range(self.size)[start:stop])

    def drop(self, indices: Iterable[int]) -> KVBatchMeta | None:
        """Return the rows but these; None where nothing is left."""
        dropped = set(indices)
        kept = [index for index in range(self.size) if index not in dropped]
        return self.subset(kept) if kept else None

    def concat(self, *others: KVBatchMeta) -> KVBatchMeta:
        """Return all rows, one after the other; tags and lengths only where every part has them.

        The lease stays where all parts have the same one.

        Raises:
            ValueError: a part is of another partition.
        """
        parts = (self, *others)
        foreign = sorted({part.partition_id for part in parts} - {self.partition_id})
        if foreign:
            raise ValueError(f"partitions {foreign} cannot be joined to {self.partition_id!r}")
        leases = {part.lease_id for part in parts}
        return replace(
            self,
            sample_ids=[sample for part in parts for sample in part.sample_ids],
            sequence_lengths=_chained([part.sequence_lengths for part in parts]),
            tags=_chained([part.tags for part in parts]),
            lease_id=self.lease_id if len(leases) == 1 else None,
        )

    def with_fields(self, fields: Iterable[str]) -> KVBatchMeta:
        """Return the same rows with more fields, each once, in order."""
        return replace(self, fields=list(dict.fromkeys([*(self.fields or ()), *fields])))

    def stamp_tags(self, columns: Mapping[str, Sequence[Any]]) -> KVBatchMeta:
        """Return the same rows with these tags added or replaced.

        Raises:
            ValueError: a column has not one value a row.
        """
        for name, values in columns.items():
            if len(values) != self.size:
                raise ValueError(f"tag {name!r} has {len(values)} values for {self.size} samples")
        old = self.tags or [{} for _ in range(self.size)]
        return replace(
            self,
            tags=[
                {**tags, **{name: values[row] for name, values in columns.items()}}
                for row, tags in enumerate(old)
            ],
        )


def _picked(values: list[Any] | None, indices: Sequence[int]) -> list[Any] | None:
    return None if values is None else [values[index] for index in indices]


def _chained(parts: Sequence[list[Any] | None]) -> list[Any] | None:
    if any(part is None for part in parts):
        return None
    return [value for part in parts for value in part or ()]
