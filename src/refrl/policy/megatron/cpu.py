"""Megatron-core on a machine without CUDA: replacements for the device calls that it makes.

Megatron-core allocates on `torch.cuda.current_device()` and by `device="cuda"`, and waits for streams. Its own modules
get a `torch` that answers for the CPU; torch itself, and every module outside Megatron-core, stay as they are. Nothing
of this acts where a CUDA device exists; what every machine needs is apart.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from refrl.policy.megatron.context import positions_of_context

_FACTORIES = (
    "arange",
    "empty",
    "full",
    "ones",
    "rand",
    "randn",
    "tensor",
    "zeros",
    "empty_like",
    "zeros_like",
)


def prepare() -> None:
    """Make Megatron-core usable on this machine; may be called repeatedly."""
    _on_every_machine()
    if not torch.cuda.is_available():
        _without_cuda()


def _on_every_machine() -> None:
    from megatron.core.models.common.language_module.language_module import LanguageModule
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter

    # Megatron-core 0.16.1 reads the name and, without Transformer Engine, leaves it undefined.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    # The first and the last stage read a tied embedding from the files, and need not exchange it when they are made.
    LanguageModule._is_in_embd_group = _no
    # It is compiled again in every router, to do nothing: no router has such a bias here.
    TopKRouter._apply_expert_bias = _nothing


def _no(module: Any) -> bool:
    del module
    return False


def _nothing(*arguments: Any, **keywords: Any) -> None:
    del arguments, keywords


def _without_cuda() -> None:
    from megatron.core import tensor_parallel
    from megatron.core.models.common.embeddings import rotary_pos_embedding
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import token_dispatcher

    random.CudaRNGStatesTracker.fork = _no_fork
    tensor_parallel.checkpoint = _checkpoint
    rotary_pos_embedding.get_pos_emb_on_this_cp_rank = _own_positions
    # It copies to the host; here every tensor is on the host already.
    token_dispatcher.maybe_move_tensor_to_cpu = _on_host
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and getattr(module, "torch", None) is torch:
            module.__dict__["torch"] = _TORCH


@contextlib.contextmanager
def _no_fork(tracker: Any, name: str = "") -> Iterator[None]:
    """Leave the random state as it is: a policy has no dropout and takes its weights from files."""
    del tracker, name
    yield


def _own_positions(embedding: torch.Tensor, dim: int, group: Any) -> torch.Tensor:
    """Return what Megatron-core's function of this place does, which puts its indices on a CUDA device."""
    places = positions_of_context(embedding.shape[dim], group.rank(), group.size(), embedding.device)
    return embedding.index_select(dim, places)


def _on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    del record_stream
    return tensor.numpy() if as_numpy and isinstance(tensor, torch.Tensor) else tensor


def _checkpoint(function: Callable[..., Any], spreads_inputs: bool, *arguments: Any) -> Any:
    """Compute a part again in the backward pass; Megatron-core's own keeps random states of CUDA for it."""
    del spreads_inputs
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


class _Standin(ModuleType):
    """A module with some of its names replaced; the others are the real module's."""

    def __init__(self, real: ModuleType, replaced: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        self.__dict__.update(replaced)
        self.__dict__["_real"] = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)


class _Stream:
    """A stream, or an event of one: everything is in order already."""

    __init__ = _nothing

    wait_stream = wait_event = record = wait = synchronize = _nothing

    def record_event(self, *_: Any) -> _Stream:
        """Return an event, which has happened."""
        return self


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory of tensors that takes `device="cuda"` for the CPU, and pins no memory."""

    def make(*arguments: Any, **keywords: Any) -> torch.Tensor:
        device = keywords.get("device")
        if device is not None and torch.device(device).type == "cuda":
            keywords["device"] = torch.device("cpu")
        keywords.pop("pin_memory", None)
        return factory(*arguments, **keywords)

    return make


_TORCH = _Standin(
    torch,
    {
        **{name: _on_cpu(getattr(torch, name)) for name in _FACTORIES},
        "cuda": _Standin(
            torch.cuda,
            {
                "current_device": lambda: torch.device("cpu"),
                "synchronize": lambda *_: None,
                "current_stream": lambda *_: _Stream(),
                "default_stream": lambda *_: _Stream(),
                "Stream": _Stream,
                "Event": _Stream,
                "stream": lambda _: contextlib.nullcontext(),
            },
        ),
    },
)
