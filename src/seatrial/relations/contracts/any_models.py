"""Contract of a base model of any kind: of texts, pictures, films, sounds or series of numbers.

Part of `seatrial.relations.contracts`, which lists every component. Models that continue texts: `CausalModel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

AnyForm = Literal[
    "together", "alone", "reversed", "again", "copied", "loaded", "sdpa", "tuple", "asked", "embedded", "mask of ones",
    "nothing masked", "interpolated", "padded", "resized", "training", "float64", "channels last", "uncached",
    "unmasked",
]  # fmt: skip
"""Rows in one batch with eager attention, which other forms are compared with; rows by themselves; rows in reverse, put
back in order; after a call with other rows in training mode; a copy of the model; a model saved and loaded; scaled
dot-product attention; outputs as a tuple; hidden states and attentions returned too; embeddings in place of ids; a mask
that hides nothing; marks that replace nothing; positions interpolated to the size that they have; ids padded on the
right; more embeddings of ids; training mode, without dropout; in float64; pictures with another layout in memory;
without a cache; rows by themselves that have a mask, without it and without a cache."""


@runtime_checkable
class AnyModel(Protocol):
    """A small base model without dropout, and rows of its input."""

    def any_outputs(self, form: AnyForm) -> Mapping[str, Tensor]:
        """Return the model's outputs by name: tensors whose first dimension is that of rows.

        Raises:
            NotServed: the model has no such form.
        """
        ...

    def any_gradients(self, *, checkpointed: bool) -> Mapping[str, Tensor]:
        """Return gradients of the sum of squares of the outputs by weight, in training mode.

        Args:
            checkpointed: whether activations are computed again in the backward pass.

        Raises:
            NotServed: the model does not compute them again.
        """
        ...

    def any_changes(self) -> Sequence[str]:
        """Return the inputs and options that are other ones after the model was made, called and trained a step."""
        ...

    def any_missing(self) -> Sequence[str]:
        """Return weights of a second model with the same seed that are other ones, or shared with the first."""
        ...
