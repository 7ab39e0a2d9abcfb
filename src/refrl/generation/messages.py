"""Messages between a training process and a generator's: a header of JSON, then the bytes of tensors.

A message is the length of its header (8 bytes, little-endian), the header, and the bytes of each tensor that the
header lists. Nothing that arrives is unpickled or run.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from refrl.weight_sync.base import Part
from refrl.weight_sync.tensors import as_bytes

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}
_LENGTH = 8
_MOST_HEADER = 2**30


@dataclass(frozen=True)
class Message:
    """A message between two processes."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """JSON values."""
    tensors: Sequence[Tensor] = ()


def send(connection: socket.socket, message: Message) -> None:
    """Write a message whole.

    Raises:
        OSError: the other side is gone, or took too long.
    """
    listed = [[dtype_name(tensor.dtype), list(tensor.shape)] for tensor in message.tensors]
    header = json.dumps({"kind": message.kind, "fields": message.fields, "tensors": listed}).encode()
    connection.sendall(len(header).to_bytes(_LENGTH, "little") + header)
    for tensor in message.tensors:
        if tensor.numel():
            connection.sendall(as_bytes(tensor.cpu()))


def receive(connection: socket.socket) -> Message:
    """Read a message whole; its tensors are on the CPU.

    Raises:
        EOFError: the other side is gone.
        OSError: it took too long.
    """
    length = int.from_bytes(_read(connection, _LENGTH), "little")
    if length > _MOST_HEADER:
        raise EOFError(f"a header of {length} bytes is none: the stream is out of step")
    header = json.loads(_read(connection, length))
    tensors = [_read_tensor(connection, _DTYPES[dtype], shape) for dtype, shape in header["tensors"]]
    return Message(header["kind"], header["fields"], tensors)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a type's name without its package: `float32`."""
    return str(dtype).removeprefix("torch.")


def named_dtype(name: str) -> torch.dtype:
    """Return the type of a name."""
    return _DTYPES[name]


def pack_parts(parts: Iterable[Part]) -> Message:
    """Return a bucket of weights as a message."""
    listed, tensors = [], []
    for part in parts:
        listed.append([part.name, part.start, part.indices_N is not None])
        tensors += [part.values_N] if part.indices_N is None else [part.values_N, part.indices_N]
    return Message("receive", {"parts": listed}, tensors)


def unpack_parts(message: Message) -> list[Part]:
    """Return the bucket of weights that a message holds."""
    tensors = iter(message.tensors)
    return [
        Part(name, values_N=next(tensors), start=start, indices_N=next(tensors) if is_sparse else None)
        for name, start, is_sparse in message.fields["parts"]
    ]


def _read_tensor(connection: socket.socket, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    tensor = torch.empty(tuple(shape), dtype=dtype)
    if tensor.numel():
        _fill(connection, as_bytes(tensor))
    return tensor


def _read(connection: socket.socket, length: int) -> bytes:
    data = bytearray(length)
    _fill(connection, memoryview(data))
    return bytes(data)


def _fill(connection: socket.socket, view: memoryview) -> None:
    while view:
        count = connection.recv_into(view)
        if not count:
            raise EOFError("the other side is gone")
        view = view[count:]
