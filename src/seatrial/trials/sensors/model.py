"""What sensors need of a model that they compute again: its logits, and its gradient.

Shapes: S positions of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.schema import LedgerRow

Array = npt.NDArray[np.float64]


class Model(Protocol):
    """A model whose gradient is added up row by row."""

    def logits(self, row: LedgerRow) -> Array:
        """Return logits_SV of a row."""

    def backward(self, gradient_SV: Array, balance: float = 0.0) -> None:
        """Add the gradient of the row that was last computed, with so many times its routers' balance loss."""

    def norms(self) -> dict[str, float]:
        """Return the norm of the gradient of each weight that trains."""

    def trained(self) -> dict[str, tuple[Array, Array]]:
        """Return each weight that trains with the sum of its gradients."""

    def move(self, weights: Mapping[str, Array]) -> None:
        """Set weights, and begin with gradients of zero."""

    def routed(self) -> dict[str, float]:
        """Return the tokens of each expert and the routers' balance loss, by their logged names."""
