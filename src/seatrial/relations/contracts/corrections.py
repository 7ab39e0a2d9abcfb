"""Contract of the correction for a sampler that is another policy than the trainer's: weights, and what is rejected.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class WeightRule:
    """Importance weights: the ratio r of trainer to sampler, of a token or of a row (the product of its tokens)."""

    level: Literal["token", "row"]
    lower: float | None = None
    """With it, weights outside `lower` .. `upper` are 0; without it, weights are at most `upper`."""
    upper: float = 2.0
    mean_one: bool = False
    """Whether weights are then divided by their mean over tokens, or over rows."""


@dataclass(frozen=True, kw_only=True)
class RejectionRule:
    """What is kept: tokens or whole rows whose statistic is within bounds."""

    over: Literal["token", "sum", "mean", "max"]
    """A token's own statistic, or that of a row over its tokens."""
    statistic: Literal["ratio", "k2", "k3"]
    """`ratio` is r (of `sum` the product, of `mean` the geometric mean), k2 is (log r)^2 / 2, k3 is r - 1 - log r."""
    lower: float = 0.0
    upper: float


@runtime_checkable
class SamplerCorrection(Protocol):
    """Weights and masks of a batch."""

    weight_rules: Mapping[str, WeightRule]
    rejection_rules: Mapping[str, RejectionRule]
    """By the stack's own names."""

    def correction_weights(self, log_ratio_BT: Tensor, mask_BT: Tensor, name: str) -> Tensor:
        """Return [B, T] of a weight rule, from log r; what it is where the mask is 0 does not count."""
        ...

    def kept_tokens(self, log_ratio_BT: Tensor, mask_BT: Tensor, name: str) -> Tensor:
        """Return [B, T] of a rejection rule: 1 on training tokens that are kept, 0 elsewhere."""
        ...
