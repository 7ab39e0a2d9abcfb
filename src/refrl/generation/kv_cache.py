"""A key/value cache allocated once per call of `generate`; a row leaves it without the others being copied.

Shapes: L layers, B rows, K key/value heads, S slots, T slots appended at once, H width of a head.
"""

from __future__ import annotations

import torch


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
        """Slots that hold keys and values in every layer."""

    def append(
        self, layer: int, keys_BTKH: torch.Tensor, values_BTKH: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's next T slots; return keys_BKSH and values_BKSH of all slots up to them, as views.

        Call `advance(T)` after the last layer.
        """
        start, end = self.num_filled, self.num_filled + keys_BTKH.shape[1]
        keys_BKSH, values_BKSH = self._store_L2BKSH[layer, ..., :end, :].unbind()
        keys_BKSH[:, :, start:] = keys_BTKH.transpose(1, 2)
        values_BKSH[:, :, start:] = values_BTKH.transpose(1, 2)
        return keys_BKSH, values_BKSH

    def advance(self, num_slots: int) -> None:
        """Count the slots that every layer has appended."""
        self.num_filled += num_slots

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
