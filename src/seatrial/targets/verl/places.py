"""Where verl's parts compute here: in float32, in the only process of a group, without a GPU whose memory is logged."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from seatrial.targets.common.trainers import temporary_folder


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """Leave out casts to bfloat16, moves to a GPU, which workers before 0.4 name, and what the stack prints."""
    from tensordict import TensorDict

    def nothing(*_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()

    make = torch.tensor

    def on_cpu(data: Any, *, device: Any = None, **more: Any) -> Tensor:
        return make(data, device=None if str(device).startswith("cuda") else device, **more)

    with (
        mock.patch.object(torch, "tensor", on_cpu),
        mock.patch.object(torch, "autocast", nothing),
        mock.patch.object(torch.cuda, "current_device", lambda: "cpu"),
        mock.patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor),
        mock.patch.object(TensorDict, "cuda", lambda batch, *_, **__: batch),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        yield


def unpad_input(hidden_states: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Return what is shown end to end, its places, sums of lengths from 0 on, the longest row, and the lengths.

    Arguments have the names of flash_attn.
    """
    places, lengths = attention_mask.flatten().nonzero().flatten(), attention_mask.sum(1, dtype=torch.int32)
    sums = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden_states.flatten(0, 1)[places], places, sums, int(lengths.max()), lengths


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Return rows with 0 where nothing was shown."""
    rows = hidden_states.new_zeros(batch * seqlen, *hidden_states.shape[1:])
    rows[indices] = hidden_states
    return rows.view(batch, seqlen, *hidden_states.shape[1:])


@contextlib.contextmanager
def rows_without_flash_attn() -> Iterator[None]:
    """Where flash_attn is missing, let releases that flatten rows with it find its functions here."""
    if find_spec("flash_attn") is not None:
        yield
        return
    given = {
        "unpad_input": unpad_input,
        "pad_input": pad_input,
        "index_first_axis": lambda flat, places: flat[places],
        "rearrange": lambda rows, _: rows.flatten(0, 1),
    }
    own = {"flash_attn": ModuleType("flash_attn"), "flash_attn.bert_padding": ModuleType("bert_padding")}
    vars(own["flash_attn.bert_padding"]).update(given)
    sys.modules.update(own)
    try:
        yield
    finally:
        for name in own:
            del sys.modules[name]


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
