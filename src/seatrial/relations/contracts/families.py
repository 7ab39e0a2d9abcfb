"""Contract of a family of language models: its forward pass in every form in which a trainer or a sampler calls it.

Part of `seatrial.relations.contracts`, which lists every component. Scores of given rows alone: `Policy` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from seatrial.relations.records import StepResult

if TYPE_CHECKING:
    from torch import Tensor

Decoded = Literal[
    "", "from the cache", "from a static cache", "without a cache", "a chunked prompt", "in two passes"
]


@dataclass(frozen=True, kw_only=True)
class ModelForm:
    """How logits are computed. The default: each row by itself, the whole row at once, with eager attention."""

    together: Literal["", "left", "right"] = ""
    """The side that rows of a batch are padded on; empty: each row by itself."""
    attention: Literal["eager", "sdpa"] = "eager"
    decoded: Decoded = ""
    """How the last ids are generated, one by one, each then replaced by the row's own; empty: they are not.

    `in two passes`: the last ids are given at once, with the cache of those before.
    """
    num_last: int = 0
    """Of the last places of each row that logits are computed of; 0: all."""
    embedded: bool = False
    """Whether the model is given embeddings in place of ids."""
    reloaded: bool = False
    """Whether the model was saved and loaded before."""
    more_ids: int = 0
    """By which the embeddings were resized before; logits of further ids are left out."""


@runtime_checkable
class ModelFamily(Protocol):
    """One tiny model of a family, in float32, without dropout."""

    vocab_size: int

    @property
    def family_checkpoints(self) -> bool:
        """Whether activations can be computed again in the backward pass."""
        ...

    def family_excludes(self, form: ModelForm) -> str | None:
        """Return why the family has no such form, by design; None if it has."""
        ...

    def family_logits(self, rows: Sequence[Sequence[int]], form: ModelForm) -> list[Tensor]:
        """Return [S, V] logits of each row's own places; of its last `num_last` ones where the form says so."""
        ...

    def family_step(self, rows: Sequence[Sequence[int]], *, checkpointed: bool) -> StepResult:
        """Return the model's own loss of a batch padded on the right, every id a label, and its gradients."""
        ...

    padding_id: int
    """The id that rows are padded with, which a row may hold as well."""

    def family_classes(
        self, rows: Sequence[Sequence[int]], side: Literal["left", "right"]
    ) -> tuple[Tensor, Tensor]:
        """Return logits of the head that classifies rows, and those of its matrix on each row's last hidden state.

        Args:
            rows: of ids.
            side: that a batch of them is padded on for the first result; the second takes each row by itself.

        Returns:
            Logits [B, C] of both.

        Raises:
            NotServed: the release has no such head of the family, or it is no matrix.
        """
        ...

    def family_ties(self, *, reloaded: bool) -> bool:
        """Return whether the head has the tensor of the embeddings where the configuration says so.

        Args:
            reloaded: whether the model was saved and loaded before.
        """
        ...
