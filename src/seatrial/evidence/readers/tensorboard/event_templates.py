"""Templates of event records with one scalar: where the time, step and value are.

A logger writes the same tag again and again: the records of one tag have the same bytes except for these three
fields, at the same places. A template is learned from one record and verified by changing each field and parsing the
changed record with tensorboard's own protobuf; it then holds for every record whose other bytes are the same.
Source: tensorboard/compat/proto/summary.proto, tensor.proto and types.proto.
"""

from __future__ import annotations

import math
import struct
from typing import Any, NamedTuple

Scalar = float
Kind = str

_FLOAT, _DOUBLE, _INT32, _UINT8, _INT16, _INT8, _STRING, _INT64, _BOOL = 1, 2, 3, 4, 5, 6, 7, 9, 10
_BFLOAT16, _HALF, _UINT32, _UINT64 = 14, 19, 22, 23

_CONTENT = {
    _FLOAT: "<f",
    _DOUBLE: "<d",
    _INT32: "<i",
    _UINT8: "<B",
    _INT16: "<h",
    _INT8: "<b",
    _INT64: "<q",
    _BOOL: "<?",
    _HALF: "<e",
    _UINT32: "<I",
    _UINT64: "<Q",
}
_FIELDS = {
    _FLOAT: "float_val",
    _DOUBLE: "double_val",
    _INT32: "int_val",
    _UINT8: "int_val",
    _INT16: "int_val",
    _INT8: "int_val",
    _INT64: "int64_val",
    _BOOL: "bool_val",
    _UINT32: "uint32_val",
    _UINT64: "uint64_val",
}
_PLUGINS = {"histograms": "histogram", "images": "image"}


def scalar_or_kind(value: Any) -> Scalar | Kind:
    """Return the number that a Summary.Value holds, or the kind of thing that it is instead."""
    field = value.WhichOneof("value")
    if field == "simple_value":
        return float(value.simple_value)
    if field == "tensor":
        plugin = value.metadata.plugin_data.plugin_name
        if plugin in ("", "scalars"):
            number = _tensor_scalar(value.tensor)
            if number is not None:
                return number
        return _PLUGINS.get(plugin, plugin) or ("text" if value.tensor.dtype == _STRING else "tensor")
    if field == "histo" or field == "obsolete_old_style_histogram":
        return "histogram"
    return str(field or value.metadata.plugin_data.plugin_name or "nothing")


def _tensor_scalar(tensor: Any) -> float | None:
    """Return the one number that a tensor holds, or None when it holds none or several."""
    if tensor.tensor_shape.unknown_rank or math.prod(dim.size for dim in tensor.tensor_shape.dim) != 1:
        return None
    dtype = tensor.dtype
    if tensor.tensor_content:
        return _from_content(tensor.tensor_content, dtype)
    if dtype in (_HALF, _BFLOAT16) and len(tensor.half_val) == 1:
        return _from_bits(tensor.half_val[0] & 0xFFFF, dtype)
    held: Any = getattr(tensor, _FIELDS[dtype]) if dtype in _FIELDS else ()
    if len(held) == 1:
        return float(held[0])
    # TensorFlow leaves out the values of a tensor of zeros.
    return 0.0 if dtype in _CONTENT and not held else None


def _from_content(content: bytes, dtype: int) -> float | None:
    if dtype == _BFLOAT16 and len(content) == 2:
        return _from_bits(int.from_bytes(content, "little"), dtype)
    form = _CONTENT.get(dtype)
    if form is None or len(content) != struct.calcsize(form):
        return None
    return float(struct.unpack(form, content)[0])


def _from_bits(bits: int, dtype: int) -> float:
    if dtype == _BFLOAT16:
        return float(struct.unpack("<f", struct.pack("<I", bits << 16))[0])
    return float(struct.unpack("<e", struct.pack("<H", bits))[0])


WALL_TIME = slice(1, 9)
STEP_AT = 10
MAX_STEP_BYTES = 10


class Layout(NamedTuple):
    """Where the fields of a record are; the time is always at `WALL_TIME`, the step at `STEP_AT`."""

    length: int
    """Bytes of the record."""
    step_size: int
    """Bytes that the step takes; 0 where it is left out, which means step 0."""
    value_at: int
    value_type: str
    """`<f4` or `<f8`."""

    @property
    def value(self) -> slice:
        """Where the value is."""
        return slice(self.value_at, self.value_at + int(self.value_type[2]))

    @property
    def fields(self) -> tuple[slice, slice, slice]:
        """Where time, step and value are."""
        return WALL_TIME, slice(STEP_AT, STEP_AT + self.step_size), self.value

    def blank(self, record: bytes) -> bytes:
        """Return the record with its fields set to zero bytes."""
        blanked = bytearray(record)
        for span in self.fields:
            blanked[span] = bytes(span.stop - span.start)
        return bytes(blanked)


class Template(NamedTuple):
    """A record form that is verified."""

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
    # The last place is tried first: it holds the value of a plain scalar.
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
    """Whether changing each field at its place changes the parsed event in exactly that way."""
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
