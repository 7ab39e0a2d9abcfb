"""AdamW (arXiv 1711.05101) in closed form, and the steps after which a run validates.

Laws of whole runs compute the moments from recorded gradients. Guards of a live run keep no gradient: they compute it
from two looks at the first moment. Both then use these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def clip_scale(norm: float, limit: float | None) -> float:
    """Return the factor by which clipping to `limit` multiplies gradients of this norm."""
    return 1.0 if limit is None else min(1.0, limit / (norm + 1e-6))


def next_moments(
    first: Tensor, second: Tensor, gradient: Tensor, betas: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """Return the first and second moment after one update with a clipped gradient."""
    beta1, beta2 = betas
    return beta1 * first + (1 - beta1) * gradient, beta2 * second + (1 - beta2) * gradient.square()


def adamw_weights(
    weights: Tensor,
    moments: tuple[Tensor, Tensor],
    options: Mapping[str, Any],
    *,
    update: int,
    rate: float,
    decays: Tensor | bool,
) -> Tensor:
    """Return the weights after an update.

    Args:
        weights: before the update, in float64.
        moments: the first and the second moment after the update.
        options: dotted names (`policy.optimizer.eps`).
        update: number of the update, from 1: both moments are corrected for their start at zero.
        rate: learning rate of the update.
        decays: whether weights decay: of all elements, or of each.
    """
    (beta1, beta2), (first, second) = options["policy.optimizer.betas"], moments
    root = (second / (1 - beta2**update)).sqrt() + options["policy.optimizer.eps"]
    decay = options["policy.optimizer.weight_decay"]
    moved: Tensor = weights * (1 - rate * decay * decays) - rate * (first / (1 - beta1**update)) / root
    return moved


def validations_due(
    options: Mapping[str, Any], *, loop: str = "grpo", first: int = 1, last: int | None = None
) -> list[int]:
    """Return the steps after which a run validates; 0 is before the first step.

    Args:
        options: dotted names (`grpo.val_period`).
        loop: section of the options.
        first: the first step of this attempt.
        last: the last step that was run, of a run that stopped early.
    """
    steps, period = options[f"{loop}.max_num_steps"], options[f"{loop}.val_period"]
    last = steps if last is None else last
    due = {step for step in range(first, last + 1) if period and step % period == 0}
    due |= {0} if options[f"{loop}.val_at_start"] and first == 1 else set()
    return sorted(due | ({last} if options.get(f"{loop}.val_at_end") and first <= last == steps else set()))
