"""A key/value cache allocated once per call of `generate`; a row leaves it without the others being copied.

Shapes: L layers, B rows, K key/value heads, S slots, T slots appended at once, H width of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class LayerSlots(NamedTuple):
    """Views into the cache of one layer, for T new tokens."""

    new_keys_BKTH: torch.Tensor
    """To be written."""
    new_values_BKTH: torch.Tensor
    """To be written."""
    keys_BKSH: torch.Tensor
    """All slots up to and with the new ones."""
    values_BKSH: torch.Tensor
    """All slots up to and with the new ones."""


class KVCache:
    """Keys and values of all layers; every row fills the same slots, so a step writes one slot of each row."""

    def __init__(
        self,
        *,
        num_layers: int,
        num_rows: int,
        num_heads: int,
        num_slots: int,
        head_dim: int,
        like: torch.Tensor,
    ) -> None:
        """Allocate on the device and in the type of `like`; `num_slots` is the most that can be appended."""
        self._store_L2BKSH = like.new_empty(num_layers, 2, num_rows, num_heads, num_slots, head_dim)
        self.num_filled = 0
        """Slots that hold keys and values."""

    @property
    def filled_L2BKSH(self) -> torch.Tensor:
        """Keys and values of all layers, in the slots that are filled."""
        return self._store_L2BKSH[..., : self.num_filled, :]

    def extend(self, num_tokens: int) -> list[LayerSlots]:
        """Count the next T slots as filled; return the views of each layer, which is to write them before it reads."""
        start, end = self.num_filled, self.num_filled + num_tokens
        self.num_filled = end
        filled = self._store_L2BKSH[..., :end, :].flatten(0, 1).unbind()
        new = self._store_L2BKSH[..., start:end, :].flatten(0, 1).unbind()
        return [
            LayerSlots(new[number], new[number + 1], filled[number], filled[number + 1])
            for number in range(0, len(filled), 2)
        ]

    def expand(self, rows: torch.Tensor) -> None:
        """Make row b a copy of the present row `rows[b]`: a shared prompt is read once, then repeated."""
        old = self._store_L2BKSH
        num_layers, _, _, num_heads, num_slots, head_dim = old.shape
        self._store_L2BKSH = old.new_empty(num_layers, 2, len(rows), num_heads, num_slots, head_dim)
        self._store_L2BKSH[..., : self.num_filled, :] = old[:, :, rows, :, : self.num_filled]

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order; only a row that changes its place is copied."""
        moved = (rows != torch.arange(len(rows), device=rows.device)).nonzero().squeeze(-1)
        filled = self._store_L2BKSH[:, :, :, :, : self.num_filled]
        filled[:, :, moved] = filled[:, :, rows[moved]]
        self._store_L2BKSH = self._store_L2BKSH[:, :, : len(rows)]
