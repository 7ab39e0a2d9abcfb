"""Contracts of the precision of numbers, and of prompts as tokens.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from seatrial.relations.contracts.run import ShortRun

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Precision(ShortRun, Protocol):
    """Short runs in `policy.precision` float32 (the default) and bfloat16, whose master weights are float32."""

    def stored_weights(self) -> Mapping[str, Tensor]:
        """Return the tensors of the model's file, by the names that a run uses, as they are stored: in float32."""
        ...

    def sampler_dtypes(self, options: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the type (`bfloat16`) of each parameter that a generator with weights of its own computes with."""
        ...


@runtime_checkable
class TokenizedRun(ShortRun, Protocol):
    """Short runs whose prompts are rendered by `policy.tokenizer.chat_template`, a Jinja template or None."""

    bos_id: int | None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, special tokens shown."""
        ...
