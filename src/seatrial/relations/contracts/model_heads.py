"""Contract of a model's heads: what classifies rows, tokens, spans and choices, and what predicts masked ids.

Part of `seatrial.relations.contracts`, which lists every component. Heads that a `Trainer` trains: `SupervisedStep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

HeadKind = Literal[
    "row classes", "row numbers", "row labels", "token classes", "spans", "masked ids", "choices", "targets"
]
CLASSES = 3
"""Classes of a row, a token, or labels of which a row may have several."""


@dataclass(frozen=True, kw_only=True)
class HeadForm:
    """How a head is called. The default: each row by itself, with eager attention."""

    together: bool = False
    """Whether rows are one batch, padded on the right."""
    attention: Literal["eager", "sdpa"] = "eager"
    embedded: bool = False
    """Whether the model is given embeddings in place of ids."""
    reloaded: bool = False
    """Whether the model was saved and loaded before."""
    asked: bool = False
    """Whether hidden states and attentions are returned too."""
    as_tuple: bool = False
    """Whether outputs come as a tuple."""
    again: bool = False
    """Whether the model was called with other rows before, in training mode too."""


@runtime_checkable
class ModelHeads(Protocol):
    """Tiny models of one family with every head that it has, in float32, without dropout."""

    vocab_size: int
    end_id: int
    """Of the last id of each row."""

    @property
    def head_kinds(self) -> Sequence[HeadKind]:
        """Kinds of heads that the release has of the family."""
        ...

    def head_excludes(self, kind: HeadKind, form: HeadForm) -> str | None:
        """Return why a head has no such form, by design; None if it has."""
        ...

    def head_outputs(self, kind: HeadKind, rows: Sequence[Sequence[int]], form: HeadForm) -> list[Tensor]:
        """Return the logits of each row: [1, classes], [S, classes], [S, 2] of spans, [1, 2] of choices, or [T, V].

        Args:
            kind: of the head; a choice is between a row and its ids in reverse, targets are those ids too.
            rows: of ids.
            form: how the model is called.
        """
        ...

    def head_loss(self, kind: HeadKind, rows: Sequence[Sequence[int]], labels: Sequence[Any]) -> float:
        """Return the model's own loss of a batch padded on the right.

        Args:
            kind: of the head.
            rows: of ids.
            labels: of each row: a class, a number, 0 or 1 for each label, classes or ids of its places with -100 for
                those that train nothing, first and last place of a span, a choice; for targets what trains of them.
        """
        ...

    def head_changes(self, kind: HeadKind, rows: Sequence[Sequence[int]], labels: Sequence[Any]) -> list[str]:
        """Return the names of input tensors that are other ones after a step of training."""
        ...

    def head_failures(self, law: str) -> Mapping[str, str]:
        """Return the known failures of a law, by the kind of head; the text names the finding."""
        ...
