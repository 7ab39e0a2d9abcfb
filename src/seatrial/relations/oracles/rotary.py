"""Frequencies of rotary embeddings by the kind of their scaling, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from seatrial.relations.contracts.rotary import RotaryPlan


def _plain(plan: RotaryPlan, base: float | None = None) -> Tensor:
    """Return base^(-2 i / d) (Su et al. 2021)."""
    exponents_F = torch.arange(0, plan.head_dim, 2, dtype=torch.float64) / plan.head_dim
    return (plan.base if base is None else base) ** -exponents_F


def _default(plan: RotaryPlan) -> tuple[Tensor, float]:
    return _plain(plan), 1.0


def _linear(plan: RotaryPlan) -> tuple[Tensor, float]:
    """Divide places by the factor (Chen et al. 2023)."""
    return _plain(plan) / plan.options["factor"], 1.0


def _dynamic(plan: RotaryPlan) -> tuple[Tensor, float]:
    """Raise the base with the length of a row beyond the longest (NTK-aware scaling, dynamic)."""
    factor, length = plan.options["factor"], max(plan.lengths[-1], plan.max_positions)
    growth = factor * length / plan.max_positions - (factor - 1)
    return _plain(plan, plan.base * growth ** (plan.head_dim / (plan.head_dim - 2))), 1.0


def _yarn(plan: RotaryPlan) -> tuple[Tensor, float]:
    """Interpolate frequencies of few rotations, with a ramp, and raise the temperature (Peng et al. 2023)."""
    factor, original = plan.options["factor"], plan.options["original_max_position_embeddings"]

    def dimension(rotations: float) -> float:
        return plan.head_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(plan.base))

    low = max(math.floor(dimension(plan.options.get("beta_fast", 32))), 0)
    high = min(math.ceil(dimension(plan.options.get("beta_slow", 1))), plan.head_dim - 1)
    places_F = torch.arange(plan.head_dim // 2, dtype=torch.float64)
    interpolated_F = ((places_F - low) / max(high - low, 1e-3)).clamp(0, 1)
    plain_F = _plain(plan)
    attention = plan.options.get("attention_factor", 0.1 * math.log(factor) + 1)
    return plain_F / factor * interpolated_F + plain_F * (1 - interpolated_F), attention


def _longrope(plan: RotaryPlan) -> tuple[Tensor, float]:
    """Divide each frequency by a factor of its own, of long or of short rows (Ding et al. 2024)."""
    original = plan.options["original_max_position_embeddings"]
    long = plan.lengths[-1] > original
    factors_F = torch.tensor(plan.options["long_factor" if long else "short_factor"], dtype=torch.float64)
    return _plain(plan) / factors_F, math.sqrt(
        1 + math.log(plan.max_positions / original) / math.log(original)
    )


def _llama3(plan: RotaryPlan) -> tuple[Tensor, float]:
    """Divide frequencies of long waves by the factor, with a linear ramp between two wavelengths (Llama 3.1)."""
    options = plan.options
    plain_F = _plain(plan)
    rotations_F = options["original_max_position_embeddings"] * plain_F / (2 * math.pi)
    low, high = options["low_freq_factor"], options["high_freq_factor"]
    kept_F = ((rotations_F - low) / (high - low)).clamp(0, 1)
    return plain_F * kept_F + plain_F / options["factor"] * (1 - kept_F), 1.0


KINDS: Mapping[str, Callable[[RotaryPlan], tuple[Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}


def turned(plan: RotaryPlan) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [S, head_dim]; see `contracts.rotary.Rotary`."""
    frequencies_F, attention = KINDS[plan.kind](plan)
    angles_SF = torch.arange(plan.lengths[-1], dtype=torch.float64)[:, None] * frequencies_F
    angles_SD = torch.cat([angles_SF, angles_SF], dim=1)
    return angles_SD.cos() * attention, angles_SD.sin() * attention
