"""Contract of the loss that a value model is trained by.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ValueSpec:
    """Which loss the stack says it computes: half the squared error to the returns, a mean over what trains."""

    clip: float | None = 0.2
    """With it, the larger of the errors of the value and of the value clipped to old - clip .. old + clip (PPO)."""
    factor: float = 0.5
    reduction: Literal["token", "sequence"] = "token"
    """The mean over the tokens, or over the rows of the mean over a row's tokens."""


@dataclass(frozen=True, kw_only=True)
class ValueInputs:
    """Arguments of a value loss; tensors of shape [B, T]."""

    values_BT: Tensor
    """Values that are trained; the leaf that gradients are taken of."""
    old_values_BT: Tensor
    returns_BT: Tensor
    mask_BT: Tensor
    """1 on tokens that train, 0 elsewhere; the other tensors may hold anything where it is 0."""
    global_valid_tokens: float
    """Number of training tokens of the whole optimizer batch, of which this may be a part."""
    global_valid_seqs: float
    """Number of rows of the whole optimizer batch that have at least one training token."""


@runtime_checkable
class ValueLoss(Protocol):
    """The value loss of a micro-batch; what it claims to be is in the attribute `value_spec`."""

    value_spec: ValueSpec

    def value_loss(self, inputs: ValueInputs) -> Tensor:
        """Return a scalar whose sum over micro-batches is the loss of the optimizer batch."""
        ...
