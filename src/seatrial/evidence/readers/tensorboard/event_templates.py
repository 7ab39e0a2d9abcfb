"""Templates of event records with one scalar: where time, step and value stand in them.

A logger writes the same tag again and again: the records of one tag have the same bytes but for these three
fields, at the same places. A template is learned from one record and proved by changing each field and parsing the
changed record with tensorboard's own protobuf; it then holds for every record whose other bytes are the same.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from seatrial.evidence.readers.tensorboard.event_values import scalar_or_kind

WALL_TIME = slice(1, 9)
STEP_AT = 10
MAX_STEP_BYTES = 10


class Layout(NamedTuple):
    """Where the fields of a record stand; the time is always at `WALL_TIME`, the step at `STEP_AT`."""

    length: int
    """Bytes of the record."""
    step_size: int
    """Bytes that the step takes; 0 where it is left out, which stands for step 0."""
    value_at: int
    value_type: str
    """`<f4` or `<f8`."""

    @property
    def value(self) -> slice:
        """Where the value stands."""
        return slice(self.value_at, self.value_at + int(self.value_type[2]))

    @property
    def fields(self) -> tuple[slice, slice, slice]:
        """Where time, step and value stand."""
        return WALL_TIME, slice(STEP_AT, STEP_AT + self.step_size), self.value

    def blank(self, record: bytes) -> bytes:
        """Return the record with its fields set to zero bytes."""
        blanked = bytearray(record)
        for span in self.fields:
            blanked[span] = bytes(span.stop - span.start)
        return bytes(blanked)


class Template(NamedTuple):
    """A record form that is proved."""

    tag: str
    layout: Layout


class _Parsed(NamedTuple):
    tag: str
    wall_time: float
    step: int
    value: float


def learn(record: bytes, step_size: int) -> Template | None:
    """Return the template of a record with one scalar, or None when it has another form."""
    head = _parse(record)
    if head is None:
        return None
    # The last place is tried first: there the value of a plain scalar stands.
    for value_at in range(len(record) - 4, STEP_AT + step_size, -1):
        for value_type in ("<f4", "<f8"):
            layout = Layout(len(record), step_size, value_at, value_type)
            if layout.value.stop <= len(record) and _proves(record, head.tag, layout):
                return Template(head.tag, layout)
    return None


def _parse(record: bytes) -> _Parsed | None:
    """Parse a record; None when it is not an event with exactly one scalar."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto import event_pb2

    try:
        event = event_pb2.Event.FromString(record)
    except DecodeError:
        return None
    if len(event.summary.value) != 1 or event.HasField("session_log"):
        return None
    held = event.summary.value[0]
    value = scalar_or_kind(held)
    if isinstance(value, str):
        return None
    return _Parsed(held.tag, event.wall_time, event.step, value)


def _proves(record: bytes, tag: str, layout: Layout) -> bool:
    """Say whether changing each field at its place changes what is parsed in just that way."""
    changed = bytearray(record)
    changed[WALL_TIME] = struct.pack("<d", 1234.5)
    step = 0
    for place in range(layout.step_size):
        more = 0x80 if place < layout.step_size - 1 else 0
        changed[STEP_AT + place] = more | 0x01
        step |= 1 << 7 * place
    changed[layout.value] = struct.pack("<f" if layout.value_type == "<f4" else "<d", 2.75)
    signed = (step + 2**63) % 2**64 - 2**63
    return _parse(bytes(changed)) == _Parsed(tag, 1234.5, signed, 2.75)
