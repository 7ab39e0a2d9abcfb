"""Bulk decoding of event records of equal length by templates (`event_templates`).

Shapes: N records of one length; rows_NB their bytes, padded to whole 8-byte words with what follows them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.readers.tensorboard.event_templates import (
    MAX_STEP_BYTES,
    STEP_AT,
    WALL_TIME,
    Layout,
    Template,
    learn,
)
from seatrial.evidence.readers.tensorboard.tfrecord import Bytes, Words, add_byte, crc, mask

MIN_BYTES = 20
MAX_BYTES = 1024
"""Longer records hold more than a scalar."""
_MAX_LAYOUTS = 4
_MAX_MISFITS = 64
_NEAR_BITS = 3

Indices = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class Found(NamedTuple):
    """Wanted records of one layout whose checksums are right; all arrays have one length."""

    rows: Indices
    """Which of the records given these are."""
    tags: list[str]
    """All tags met, wanted or not."""
    tag_ids: Indices
    """Index into `tags`."""
    steps: Indices
    wall_times: npt.NDArray[np.float64]
    values: npt.NDArray[np.floating[Any]]


class Decoded(NamedTuple):
    """The records that were decoded, and those that were not."""

    found: list[Found]
    wrong: Indices
    """Records of a template whose checksum is wrong."""
    rest: Indices
    """Records of no template: for the slow path, their checksums not looked at."""


class Decoder:
    """Decodes records by templates, which it keeps from call to call."""

    def __init__(self, wanted: frozenset[str] | None = None) -> None:
        """Make a decoder of the tags wanted; None decodes all.

        With a filter, checksums are verified where a record has a wanted tag, a form not met before, or a tag so
        near to a wanted one that a few flipped bits could have made it; damage to other tags goes unnoticed.
        """
        self._wanted = wanted
        self._layouts: dict[tuple[int, int], list[_Forms]] = {}
        # Drawn in each process, so that no log can be made whose tags collide.
        self._seed = int(np.random.default_rng().integers(1, 2**62)) * 2 + 1

    def decode(
        self, rows_NB: Bytes, length: int, stored_N: Words, is_right: Callable[[int], bool]
    ) -> Decoded:
        """Decode records that follow templates.

        Args:
            rows_NB: The records.
            length: Bytes of each record.
            stored_N: The checksum that the file holds for each.
            is_right: Says whether the checksum of one record is right; asked before a template is learned from it.
        """
        found: list[Found] = []
        wrong: list[Indices] = []
        rest: list[Indices] = []
        sizes = _step_sizes(rows_NB, length)
        for size in range(-1, MAX_STEP_BYTES + 1):
            index = np.flatnonzero(sizes == size)
            forms = self._layouts.setdefault((length, size), [])
            for number in range(_MAX_LAYOUTS if size >= 0 else 0):
                if not len(index):
                    break
                rows = rows_NB if len(index) == len(rows_NB) else rows_NB[index]
                if number == len(forms) and not self._add_layout(forms, rows, index, length, size, is_right):
                    break
                ids = forms[number].match(rows, functools.partial(_at, is_right, index))
                hits = ids >= 0
                if hits.any():
                    taken, bad = forms[number].take(rows, index, ids, stored_N[index], self._wanted)
                    found.append(taken)
                    wrong.append(bad)
                    index = index[~hits]
            rest.append(index)
        return Decoded(found, _join(wrong), _join(rest))

    def _add_layout(
        self,
        forms: list[_Forms],
        rows: Bytes,
        index: Indices,
        length: int,
        size: int,
        is_right: Callable[[int], bool],
    ) -> bool:
        """Learn a further layout from the first record whose checksum is right."""
        for one in range(min(len(index), _NEAR_BITS)):
            if is_right(int(index[one])):
                template = learn(rows[one, :length].tobytes(), size)
                if template is None:
                    return False
                forms.append(_Forms(template.layout, self._seed))
                return True
        return False


class _Forms:
    """The templates of one layout."""

    def __init__(self, layout: Layout, seed: int) -> None:
        self.layout = layout
        self.tags: list[str] = []
        self._seed = np.uint64(seed)
        self._blanks: list[bytes] = []
        self._keys: Hashes = np.zeros(0, dtype=np.uint64)
        """Hash of the fixed bytes of each form met, ascending."""
        self._ids: Indices = np.zeros(0, dtype=np.int64)
        """Index into `tags` for each key; -1 where the record has another layout."""
        self._crcs: Words = np.zeros(0, dtype=np.uint32)
        """CRC of each template with blank fields, by index into `tags`."""
        padded = np.zeros(-(-layout.length // 8) * 8, dtype=np.uint8)
        padded[: layout.length] = 0xFF
        for span in layout.fields:
            padded[span] = 0
        self._masks: Hashes = padded.view("<u8")

    def match(self, rows: Bytes, is_right: Callable[[int], bool]) -> Indices:
        """Return the index of each record's tag in `tags`, -1 for a record of another form."""
        words = rows.view("<u8")
        keys = np.zeros(len(rows), dtype=np.uint64)
        for place in np.flatnonzero(self._masks):
            keys ^= words[:, place] & self._masks[place]
            keys *= self._seed
            keys ^= keys >> np.uint64(29)
        known = self._find(keys)
        if known.min(initial=0) < 0:
            self._learn(rows, keys, np.flatnonzero(known < 0), is_right)
            known = self._find(keys)
        return np.where(known < 0, -1, self._ids[known]) if len(self._ids) else known

    def _find(self, keys: Hashes) -> Indices:
        if not len(self._keys):
            return np.full(len(keys), -1, dtype=np.int64)
        near = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[near] == keys, near, -1)

    def _learn(self, rows: Bytes, keys: Hashes, unknown: Indices, is_right: Callable[[int], bool]) -> None:
        """Learn forms that are met for the first time, from records whose checksum is right."""
        fresh: list[int] = []
        ids: list[int] = []
        misfits = 0
        for first in unknown[np.unique(keys[unknown], return_index=True)[1]]:
            if not is_right(int(first)):
                continue
            record = rows[first, : self.layout.length].tobytes()
            template = learn(record, self.layout.step_size)
            fresh.append(int(keys[first]))
            if template is not None and template.layout == self.layout:
                ids.append(len(self.tags))
                self._add(template, record)
            else:
                ids.append(-1)
                misfits += 1
                if misfits == _MAX_MISFITS:
                    break
        merged = np.concatenate([self._keys, np.array(fresh, dtype=np.uint64)])
        order = np.argsort(merged)
        self._keys = merged[order]
        self._ids = np.concatenate([self._ids, np.array(ids, dtype=np.int64)])[order]

    def _add(self, template: Template, record: bytes) -> None:
        blank = self.layout.blank(record)
        self.tags.append(template.tag)
        self._blanks.append(blank)
        self._crcs = np.append(self._crcs, np.uint32(crc(blank)))

    def take(
        self, rows: Bytes, index: Indices, ids: Indices, stored: Words, wanted: frozenset[str] | None
    ) -> tuple[Found, Indices]:
        """Return the fields of wanted records whose checksum is right, and the records whose checksum is not."""
        chosen = np.array([*self._to_verify(wanted), False], dtype=np.bool_)[ids]
        if not chosen.all():
            rows, index, ids, stored = rows[chosen], index[chosen], ids[chosen], stored[chosen]
        right = self._checksums(rows, ids) == stored
        wrong = index[~right]
        if wanted is not None:
            right &= np.array([tag in wanted for tag in self.tags], dtype=np.bool_)[ids]
        if not right.all():
            rows, index, ids = rows[right], index[right], ids[right]
        steps = np.zeros(len(rows), dtype=np.uint64)
        for place in range(self.layout.step_size):
            steps |= (rows[:, STEP_AT + place] & np.uint8(0x7F)).astype(np.uint64) << np.uint64(7 * place)
        values = _numbers(rows[:, self.layout.value], self.layout.value_type)
        walls = _numbers(rows[:, WALL_TIME], "<f8")
        return Found(index, self.tags, ids, steps.view(np.int64), walls, values), wrong

    def _checksums(self, rows: Bytes, ids: Indices) -> Words:
        crcs = self._crcs[ids]
        if len(rows):
            for span in self.layout.fields:
                for place in range(span.start, span.stop):
                    add_byte(crcs, rows[:, place], self.layout.length - 1 - place)
        return mask(crcs)

    def _to_verify(self, wanted: frozenset[str] | None) -> list[bool]:
        """Say for each tag whether its records must be looked at: it is wanted, or a few bits from a wanted one."""
        if wanted is None:
            return [True] * len(self.tags)
        asked = [blank for tag, blank in zip(self.tags, self._blanks, strict=True) if tag in wanted]
        return [any(_bits_apart(blank, one) <= _NEAR_BITS for one in asked) for blank in self._blanks]


def _step_sizes(rows: Bytes, length: int) -> Indices:
    """Return how many bytes the step of each record takes; 0 where it is left out, -1 where the form is another."""
    sizes = np.full(len(rows), -1, dtype=np.int64)
    sizes[rows[:, 9] == 0x2A] = 0
    open_ = rows[:, 9] == 0x10
    for size in range(1, min(MAX_STEP_BYTES, length - STEP_AT) + 1):
        if not open_.any():
            break
        last = rows[:, STEP_AT + size - 1] < 0x80
        sizes[open_ & last] = size
        open_ &= ~last
    sizes[rows[:, 0] != 0x09] = -1
    return sizes


def _at(is_right: Callable[[int], bool], index: Indices, one: int) -> bool:
    return is_right(int(index[one]))


def _bits_apart(left: bytes, right: bytes) -> int:
    return (int.from_bytes(left, "little") ^ int.from_bytes(right, "little")).bit_count()


def _numbers(columns: Bytes, dtype: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(columns).view(dtype).ravel()


def _join(parts: list[Indices]) -> Indices:
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
