"""Where verl's parts compute here: in float32, in the only process of a group, without a GPU whose memory is logged."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from seatrial.targets.common.trainers import temporary_folder


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """Leave out casts to bfloat16, and what the stack prints."""

    def nothing(*_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()

    with mock.patch.object(torch, "autocast", nothing), contextlib.redirect_stdout(io.StringIO()):
        yield


def one_process() -> None:
    """Start the only process of a gloo group."""
    if not torch.distributed.is_initialized():
        rendezvous = Path(temporary_folder()) / "verl-engine"
        torch.distributed.init_process_group("gloo", init_method=rendezvous.as_uri(), rank=0, world_size=1)


def no_memory_log() -> None:
    """Let the log of GPU memory have none to read, in modules that are imported."""
    for place in ("verl.utils.profiler.performance", "verl.utils.debug.performance"):
        if place in sys.modules and hasattr(sys.modules[place], "_get_current_mem_info"):
            vars(sys.modules[place])["_get_current_mem_info"] = _no_memory


def _no_memory(unit: str = "GB", precision: int = 2) -> tuple[str, ...]:
    return ("0",) * 4
