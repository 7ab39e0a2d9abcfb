"""One partition: which samples there are, where their fields lie, their tags, and what every consumer has had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import repeat
from typing import Any

import numpy as np

from refrl.data_plane.errors import (
    FieldNotProducedError,
    PartitionFullError,
    UnknownSampleError,
    UnknownTaskError,
)
from refrl.data_plane.metadata import Tags

Place = tuple[str, int]
"""Location of a value: the block's name, and the row in it."""
NUM_SHOWN = 5
"""Most samples that a message names."""


@dataclass(frozen=True, kw_only=True)
class PartitionSpec:
    """What a partition is registered for."""

    fields: tuple[str, ...]
    """All that samples may ever have."""
    num_samples: int
    """Most live samples: a put beyond is refused, which is what holds producers back."""
    consumer_tasks: tuple[str, ...]
    grpo_group_size: int | None = None
    """Claims contain whole groups of so many; a sample's group is its id before the last `_g`."""
    enums: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that a tag may have."""
    required_tags: tuple[str, ...] = ()
    """Tags that every new sample must bring."""

    def __post_init__(self) -> None:
        """Refuse a partition that could hold or serve nothing.

        Raises:
            ValueError: names the wrong value.
        """
        if not self.fields or len(set(self.fields)) < len(self.fields):
            raise ValueError(f"fields {list(self.fields)}: name at least one, and each once")
        if self.num_samples < 1 or (self.grpo_group_size is not None and self.grpo_group_size < 1):
            raise ValueError("num_samples and grpo_group_size must be at least 1")
        if self.grpo_group_size is not None and self.grpo_group_size > self.num_samples:
            raise ValueError(
                f"a group of {self.grpo_group_size} does not fit into {self.num_samples} samples"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the words that make it again."""
        return asdict(self)

    @classmethod
    def from_json(cls, words: Mapping[str, Any]) -> PartitionSpec:
        """Return what `to_json` said, also after a journey through JSON."""
        lists = {name: tuple(words[name]) for name in ("fields", "consumer_tasks", "required_tags")}
        enums = {name: tuple(values) for name, values in words["enums"].items()}
        return cls(**{**words, **lists, "enums": enums})


@dataclass
class Cursor:
    """The samples that one consumer has had. A sample in neither set was acknowledged."""

    pending: dict[str, None] = field(default_factory=dict)
    """Never claimed, oldest first."""
    returned: dict[str, None] = field(default_factory=dict)
    """Claimed, and given back by a claimer or its death: served before the others."""
    leased: dict[str, str] = field(default_factory=dict)
    """The lease that holds a sample."""

    def discard(self, samples: Iterable[str]) -> None:
        """Take samples out."""
        for sample in samples:
            self.pending.pop(sample, None)
            self.returned.pop(sample, None)
            self.leased.pop(sample, None)


class Partition:
    """State of a partition, with no bytes in it."""

    def __init__(self, spec: PartitionSpec) -> None:
        """Start empty."""
        self.spec = spec
        self.tags: dict[str, Tags] = {}
        """Every live sample with its tags."""
        self.places: dict[str, dict[str, Place]] = {name: {} for name in spec.fields}
        self.dtypes: dict[str, str] = {}
        self.cursors = {task: Cursor() for task in spec.consumer_tasks}

    def check(self, samples: Sequence[str], dtypes: Mapping[str, str], tags: Sequence[Tags] | None) -> None:
        """Refuse a put that could not be kept whole.

        Raises:
            ValueError: samples twice, a field that is not registered or has another dtype, tags missing or not allowed.
            PartitionFullError: see there.
        """
        if len(set(samples)) < len(samples):
            twice = sorted({sample for sample in samples if samples.count(sample) > 1})
            raise ValueError(f"samples {shown(twice)} come twice in one put")
        for name, dtype in dtypes.items():
            if name not in self.places:
                raise ValueError(f"field {name!r} is not registered; known: {', '.join(self.spec.fields)}")
            if self.dtypes.get(name, dtype) != dtype:
                raise ValueError(
                    f"field {name!r} holds {self.dtypes[name]} and cannot take {dtype}: convert before the put"
                )
        new = [row for row, sample in enumerate(samples) if sample not in self.tags]
        if len(self.tags) + len(new) > self.spec.num_samples:
            raise PartitionFullError(
                f"{len(self.tags)} live samples and {len(new)} new ones are more than the {self.spec.num_samples} that "
                "the partition was registered for: clear what was trained on, or register it larger"
            )
        self._check_tags(samples, new, tags)

    def publish(
        self, samples: Sequence[str], blocks: Iterable[tuple[str, str, str]], tags: Sequence[Tags] | None
    ) -> list[str]:
        """Make samples, values and tags visible, all at once; return the blocks that each lost value lay in.

        Args:
            samples: in the order of the blocks' rows.
            blocks: (field, block, dtype).
            tags: merged into what samples have; None leaves that alone.
        """
        new = [sample for sample in samples if sample not in self.tags]
        self.tags.update((sample, {}) for sample in new)
        if tags is not None:
            for sample, given in zip(samples, tags, strict=True):
                self.tags[sample].update(given)
        lost: list[str] = []
        for name, block, dtype in blocks:
            self.dtypes[name] = dtype
            places = self.places[name]
            lost += [places[sample][0] for sample in samples if sample in places]
            places.update(zip(samples, zip(repeat(block), range(len(samples)))))  # noqa: B905
        for cursor in self.cursors.values():
            cursor.pending.update(dict.fromkeys(new))
        return lost

    def cursor(self, task: str) -> Cursor:
        """Return a consumer's.

        Raises:
            UnknownTaskError: it was not registered.
        """
        if task not in self.cursors:
            raise UnknownTaskError(f"no consumer {task!r}; registered: {', '.join(self.cursors) or 'none'}")
        return self.cursors[task]

    def acknowledged(self, task: str) -> list[str]:
        """Return the live samples that a consumer took for good."""
        cursor = self.cursor(task)
        elsewhere = (cursor.pending, cursor.returned, cursor.leased)
        return [sample for sample in self.tags if not any(sample in held for held in elsewhere)]

    def ready(self, task: str, fields: Sequence[str], limit: int) -> list[str]:
        """Return at most `limit` samples that a consumer may claim: given back first, then oldest first.

        Raises:
            ValueError: no field is required.
            FieldNotProducedError: a field is not registered.
            UnknownTaskError: see `cursor`.
        """
        cursor = self.cursor(task)
        if not fields:
            raise ValueError(
                "name the fields that must be there: without any, rows would be served half made"
            )
        for name in fields:
            self._places(name)
        needed = [self.places[name] for name in dict.fromkeys(fields)]
        candidates = (
            sample
            for waiting in (cursor.returned, cursor.pending)
            for sample in waiting
            if all(sample in places for places in needed)
        )
        size = self.spec.grpo_group_size
        return _first(candidates, limit) if size is None else _first_groups(candidates, limit, size)

    def locate(self, samples: Sequence[str], name: str) -> dict[str, tuple[list[int], list[int]]]:
        """Return for each block (its rows, the positions in `samples` that they belong to).

        Raises:
            UnknownSampleError, FieldNotProducedError: a value is not there.
        """
        places = self._places(name)
        found: dict[str, tuple[list[int], list[int]]] = {}
        for position, sample in enumerate(samples):
            place = places.get(sample)
            if place is None:
                self._raise_missing(samples, name)
            block, row = place  # type: ignore[misc]
            if block not in found:
                found[block] = ([], [])
            rows, positions = found[block]
            rows.append(row)
            positions.append(position)
        return found

    def clear(self, samples: Iterable[str]) -> list[str]:
        """Remove samples; return the blocks that held their values. Unknown samples are skipped."""
        known = [sample for sample in dict.fromkeys(samples) if self.tags.pop(sample, None) is not None]
        for cursor in self.cursors.values():
            cursor.discard(known)
        return [
            places.pop(sample)[0] for places in self.places.values() for sample in known if sample in places
        ]

    def _places(self, name: str) -> dict[str, Place]:
        if name not in self.places:
            raise FieldNotProducedError(
                f"the partition has no field {name!r}; known: {', '.join(self.spec.fields)}"
            )
        return self.places[name]

    def _raise_missing(self, samples: Sequence[str], name: str) -> None:
        unknown = [sample for sample in samples if sample not in self.tags]
        if unknown:
            raise UnknownSampleError(f"samples {shown(unknown)} are not there: never put, or cleared")
        without = [sample for sample in samples if sample not in self.places[name]]
        raise FieldNotProducedError(f"field {name!r} is not produced yet for samples {shown(without)}")

    def _check_tags(self, samples: Sequence[str], new: Sequence[int], tags: Sequence[Tags] | None) -> None:
        for name in self.spec.required_tags:
            without = [samples[row] for row in new if tags is None or name not in tags[row]]
            if without:
                raise ValueError(
                    f"samples {shown(without)} lack the tag {name!r}, which the partition requires"
                )
        for name, values in self.spec.enums.items():
            wrong = {given[name] for given in tags or () if name in given and given[name] not in values}
            if wrong:
                raise ValueError(
                    f"tag {name!r} has {sorted(map(str, wrong))}; allowed: {', '.join(map(str, values))}"
                )


def plain_tags(tags: Sequence[Mapping[str, Any]]) -> list[Tags]:
    """Return tags as plain Python scalars, numpy's converted.

    Raises:
        TypeError: a value is no scalar.
    """
    return [{name: _plain(name, value) for name, value in given.items()} for given in tags]


def shown(samples: Sequence[str]) -> str:
    """Return the first few samples for a message."""
    rest = len(samples) - NUM_SHOWN
    return ", ".join(samples[:NUM_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"tag {name!r} is {type(value).__name__}: tags are text, numbers, true, false or None")


def _first(candidates: Iterator[str], limit: int) -> list[str]:
    return [sample for sample, _ in zip(candidates, range(limit))]  # noqa: B905


def _first_groups(candidates: Iterator[str], limit: int, size: int) -> list[str]:
    """Return samples of whole groups only, in the order in which the groups are complete."""
    chosen: list[str] = []
    open_groups: dict[str, list[str]] = {}
    for sample in candidates:
        if len(chosen) + size > limit:
            break
        group = sample.rpartition("_g")[0] or sample
        members = open_groups.setdefault(group, [])
        members.append(sample)
        if len(members) == size:
            chosen += open_groups.pop(group)
    return chosen
