"""Contract of a family of language models with adapters: what an adapter computes, however it is used.

Part of `seatrial.relations.contracts`, which lists every component. Each kind of adapter on one model: `AdaptedModel`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Layers = Literal["linear layers", "experts", "embeddings and head"]
"""What is adapted: every linear layer but the head, parameters of experts that are one tensor, or both ends."""
Use = Literal[
    "merged",
    "unmerged",
    "merged for good",
    "disabled",
    "saved and loaded",
    "loaded by the model itself",
    "next to another",
    "checkpointed",
]


@runtime_checkable
class AdaptedFamily(Protocol):
    """One tiny model of a family, in float32, without dropout."""

    vocab_size: int

    def adapted_pairs(
        self, rows: Sequence[Sequence[int]], layers: Layers, use: Use
    ) -> list[tuple[Tensor, Tensor]]:
        """Return logits of each row, each with those that they have to equal.

        Args:
            rows: of ids.
            layers: that have a low-rank adapter with drawn factors.
            use: of the adapter. `disabled` equals the model without one; the others equal the adapted model.
                `checkpointed` gives gradients of the adapter in place of logits, with activations computed again.

        Raises:
            NotServed: the family has no such layers, or the stack refuses to adapt them.
        """
        ...

    def misplaced(self, layers: Layers) -> list[str]:
        """Return the names of layers that have an adapter and should have none, or the other way round.

        Raises:
            NotServed: as in `adapted_pairs`.
        """
        ...

    def untrained(self, rows: Sequence[Sequence[int]], layers: Layers) -> list[str]:
        """Return the tensors of the adapter that a step of training gives no gradient."""
        ...
