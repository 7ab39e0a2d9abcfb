"""Whole weights out of what the ranks have, under Hugging Face names, with adapters merged where there are some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from refrl.policy.megatron.adapters import MegatronAdapters
from refrl.policy.megatron.architecture import rotary_buffers
from refrl.policy.megatron.checkpoint_files import save_directory
from refrl.policy.megatron.conversion import in_memory
from refrl.policy.megatron.exchange import gather
from refrl.policy.megatron.model import LocalModel


@dataclass(frozen=True)
class Weights:
    """The weights of a model; every rank takes what is yielded."""

    local: LocalModel
    dtype: torch.dtype
    """That the model computes in."""
    adapters: MegatronAdapters | None = None
    """Trained in place of its weights."""

    @property
    def trained(self) -> LocalModel:
        """Return this rank's share of what training changes."""
        return self.local if self.adapters is None else self.adapters.local

    @property
    def _device(self) -> torch.device:
        return next(iter(self.local.parameters.values())).device

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield a copy of every parameter, merged, gathered one by one, and every buffer."""
        yield from in_memory(self._merged(), self.local.architecture)
        yield from rotary_buffers(self.local.architecture, self._device).items()

    def base_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield a copy of every parameter without adapters, and every buffer."""
        yield from in_memory(self._base(), self.local.architecture)
        yield from rotary_buffers(self.local.architecture, self._device).items()

    def own_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield a copy of what a checkpoint holds: every parameter and buffer, or the adapters."""
        return self.named_weights() if self.adapters is None else self.trained_weights()

    def trained_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield a copy of every weight that training changes."""
        return self.whole(self.trained.parameters.get, self.dtype)

    def whole(self, own: Callable[[str], Tensor | None], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield whole tensors laid out as what is trained, named as the Hugging Face model has them in memory.

        Args:
            own: see `refrl.policy.megatron.exchange.gather`.
            dtype: of the tensors.
        """
        return in_memory(gather(own, self.trained, dtype), self.local.architecture)

    def as_loaded(self) -> AbstractContextManager[None]:
        """Let the model be the frozen one, without adapters."""
        return nullcontext() if self.adapters is None else self.adapters.off()

    def save(self, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
        """Export weights, configuration and tokenizer; adapters merged, and in `adapter/` in PEFT's format.

        Raises:
            OSError: it cannot be written.
        """
        adapters = self.adapters
        trained = None if adapters is None else (dict(self.trained_weights()), adapters.config)
        save_directory(
            self._merged(), self.local.architecture, self.dtype, tokenizer, directory, adapters=trained
        )

    def _base(self) -> Iterator[tuple[str, Tensor]]:
        return gather(self.local.parameters.get, self.local, self.dtype)

    def _merged(self) -> Iterator[tuple[str, Tensor]]:
        if self.adapters is None:
            return self._base()
        return self.adapters.merged(self._base(), dict(self.trained_weights()))
