"""GPUs of this machine through the driver's management library (NVML), without CUDA or a Python package.

Source: NVML API reference (nvmlInit_v2, nvmlDeviceGetCount_v2, nvmlDeviceGetMemoryInfo).
"""

from __future__ import annotations

import ctypes
import functools
import os
from dataclasses import dataclass

_SUCCESS = 0
_NAME_BYTES = 96


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`: bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device that this process may use."""

    index: int
    """Number of the device in the driver's order."""
    uuid: str
    name: str


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Return the initialised driver library; None on a machine without a driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return library if library.nvmlInit_v2() == _SUCCESS else None


@functools.cache
def _handle(index: int) -> ctypes.c_void_p | None:
    library = _library()
    handle = ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != _SUCCESS:
        return None
    return handle


def visible_gpus() -> list[Gpu]:
    """Return the devices of this machine that `CUDA_VISIBLE_DEVICES` does not hide."""
    library = _library()
    if library is None:
        return []
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
        return []
    gpus = [
        Gpu(index=index, uuid=_text("nvmlDeviceGetUUID", index), name=_text("nvmlDeviceGetName", index))
        for index in range(count.value)
    ]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if wanted is None else _chosen(gpus, wanted)


def _chosen(gpus: list[Gpu], wanted: str) -> list[Gpu]:
    """Return the named devices in that order; as in CUDA, the first unknown name ends the list."""
    chosen = []
    for word in (part.strip() for part in wanted.split(",")):
        match = next((g for g in gpus if word == str(g.index) or (word and g.uuid.startswith(word))), None)
        if match is None:
            break
        chosen.append(match)
    return chosen


def _text(function: str, index: int) -> str:
    library, handle = _library(), _handle(index)
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    if library is None or handle is None:
        return "unknown"
    if getattr(library, function)(handle, buffer, _NAME_BYTES) != _SUCCESS:
        return "unknown"
    return buffer.value.decode(errors="replace")


def used_bytes(gpu: Gpu) -> int | None:
    """Return the memory in use on a device, by all processes; None if the driver does not report it."""
    library, handle, memory = _library(), _handle(gpu.index), _Memory()
    if library is None or handle is None:
        return None
    if library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != _SUCCESS:
        return None
    return int(memory.used)
