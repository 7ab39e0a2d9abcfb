"""GPUs as the driver's library tells of them, through a STAND-IN of that library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import pytest

from seatrial.pytest_plugin import gpus

NAMES = ["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA A10"]


class StandInLibrary:
    """STAND-IN for libnvidia-ml: three devices, of which the second does not tell its memory."""

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(NAMES)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, buffer: Any, size: int) -> int:
        buffer.value = NAMES[(handle.value or 0) - 1].encode()
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, buffer: Any, size: int) -> int:
        buffer.value = f"GPU-{'abc'[(handle.value or 0) - 1]}123".encode()
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: ctypes.c_void_p, memory: Any) -> int:
        if handle.value == 2:
            return 3  # not supported
        memory._obj.used = 7 << 30
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gpus._handle.cache_clear()
    monkeypatch.setattr(gpus, "_library", StandInLibrary)
    yield
    gpus._handle.cache_clear()


@pytest.mark.parametrize(
    ("variable", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("2,0", [2, 0]),
        ("GPU-b123", [1]),
        ("0,7,1", [0]),  # as CUDA does, the first unknown device ends the list
        ("-1", []),
    ],
)
def test_cuda_visible_devices_hides_and_orders(
    driver: None, monkeypatch: pytest.MonkeyPatch, variable: str | None, indices: list[int]
) -> None:
    if variable is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    found = gpus.visible_gpus()
    assert [gpu.index for gpu in found] == indices
    assert [gpu.name for gpu in found] == [NAMES[index] for index in indices]


def test_memory_is_what_the_driver_says_or_nothing(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [gpus.used_bytes(gpu) for gpu in gpus.visible_gpus()] == [7 << 30, None, 7 << 30]


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "_library", lambda: None)
    assert gpus.visible_gpus() == []
