"""What one value of a TensorBoard summary is: a scalar of either generation, or something that is not read.

Source: tensorboard/compat/proto/summary.proto, tensor.proto and types.proto.
"""

from __future__ import annotations

import math
import struct
from typing import Any

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
