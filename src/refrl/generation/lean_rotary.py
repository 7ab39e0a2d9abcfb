"""Rotary position embeddings (arXiv 2104.09864): whole heads or a part of each, by halves or by neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rotary:
    """Turns pairs of a head's dimensions by angles that grow with the position."""

    inv_freq: torch.Tensor
    """Frequencies, one per pair; dimensions after the last pair stay as they are."""
    scaling: float
    """Factor on the turned dimensions (above 1 with yarn)."""
    head_dim: int
    is_interleaved: bool
    """Whether pairs are neighbours (0, 1), (2, 3); else dimension i is paired with i + the number of pairs."""
    parts: tuple[int, ...]
    """Sizes: first of each pair, second of each pair, and what stays as it is, if anything."""

    @classmethod
    def of(
        cls, inv_freq: torch.Tensor, scaling: float, *, head_dim: int, is_interleaved: bool = False
    ) -> Rotary:
        """Return the embedding with these frequencies."""
        num_pairs = len(inv_freq)
        rest = head_dim - 2 * num_pairs
        parts = (num_pairs, num_pairs, rest) if rest else (num_pairs, num_pairs)
        return cls(inv_freq, scaling, head_dim, is_interleaved, parts)

    def tables(self, num_positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos_SH and sin_SH; sin is negated where it multiplies the second of a pair.

        With `x` and the dimensions of its pairs exchanged, `x * cos + exchanged * sin` is the rotation.
        """
        positions_S = torch.arange(num_positions, device=self.inv_freq.device, dtype=torch.float32)
        angles = positions_S[:, None] * self.inv_freq.float()
        cos, sin = angles.cos() * self.scaling, angles.sin() * self.scaling
        if self.is_interleaved:
            cos_SH, sin_SH = cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)
        else:
            cos_SH, sin_SH = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        if len(self.parts) == 3:
            still = cos.new_ones(num_positions, self.parts[2])
            cos_SH, sin_SH = torch.cat([cos_SH, still], dim=-1), torch.cat([sin_SH, 0 * still], dim=-1)
        return cos_SH.to(dtype), sin_SH.to(dtype)

    def turn(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return the heads [..., H], turned by the rows of the tables at their positions."""
        if self.is_interleaved:
            exchanged = heads.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        else:
            first, second, *rest = heads.split_with_sizes(self.parts, dim=-1)
            exchanged = torch.cat([second, first, *rest], dim=-1)
        return torch.addcmul(heads * cos, exchanged, sin)
