"""The ids that a filter of sampling (top-p, top-k) kept at each place, carried with a batch to where it is scored.

A token that was drawn from a filtered distribution is scored under that distribution: softmax over the ids that the
filter kept when it was drawn, not over what the policy would keep now. Then numerator and denominator of the importance
ratio have one support, and the first ratio is 1 (DeepSeek-V3.2, arXiv 2512.02556, section 3.1, keeps the sampling mask
likewise). That the reference policy is restricted to the same ids is a convention of this project: the KL compares
two distributions over what could be sampled.

The ids of all places are concatenated, so memory is proportional to what the filter kept. A rectangle as wide as the
largest kept set would be filled for the sake of one flat distribution, which keeps most of a vocabulary of 152k; a bit
for every id costs 19 kB a token at that size, regardless of the filter.

Shapes: B rows, T completion tokens, N chosen places, M kept ids of all places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeptIds:
    """What was kept at each completion token of a batch."""

    ids_M: Tensor
    """Int32: the ids of every place, places in order, row after row."""
    counts_BT: Tensor
    """Long: how many ids were kept; 0 where no filter was on, or nothing was sampled: every id is kept there."""

    def rows(self, index: slice | Tensor) -> KeptIds:
        """Return those of the chosen rows, in the order of `index`."""
        return KeptIds(_chosen(self.ids_M, self.counts_BT.sum(1), index), self.counts_BT[index])

    def trimmed(self, num_tokens: int) -> KeptIds:
        """Return those of the first `num_tokens` completion tokens."""
        B, T = self.counts_BT.shape
        stays_BT = (torch.arange(T, device=self.ids_M.device) < num_tokens).expand(B, T)
        ids_M = _chosen(self.ids_M, self.counts_BT.flatten(), stays_BT.flatten())
        return KeptIds(ids_M, self.counts_BT[:, :num_tokens])

    def to(self, device: torch.device | str) -> KeptIds:
        """Return the same on a device."""
        return KeptIds(self.ids_M.to(device), self.counts_BT.to(device))

    def at(self, valid_BT: Tensor) -> Support:
        """Return the supports of the places where `valid_BT` is true."""
        ids_M = _chosen(self.ids_M, self.counts_BT.flatten(), valid_BT.flatten())
        return Support(ids_M.long(), self.counts_BT[valid_BT])


class Support:
    """The ids that N distributions are restricted to."""

    def __init__(self, ids_M: Tensor, counts_N: Tensor) -> None:
        """Hold ids (long) place after place, and how many belong to each; a place without any is not restricted."""
        self.ids_M = ids_M
        self._restricted_N1 = (counts_N > 0).unsqueeze(1)
        self._places_M = torch.arange(len(counts_N), device=ids_M.device).repeat_interleave(counts_N)
        self._ends = [0, *counts_N.cumsum(0).tolist()]

    def excluded(self, places: slice, entries: slice) -> Tensor:
        """Return, for a tile of places and vocabulary entries, true where an id was not kept."""
        width = entries.stop - entries.start
        flat = slice(self._ends[places.start], self._ends[places.stop])
        column_M = self.ids_M[flat] - entries.start
        # Ids outside the tile fall into a column of their own: to select the others would wait for the device.
        column_M = torch.where((column_M >= 0) & (column_M < width), column_M, width)
        excluded = self._restricted_N1[places].repeat(1, width + 1)
        excluded[self._places_M[flat] - places.start, column_M] = False
        return excluded[:, :width]


def gather_kept_ids(rows: Sequence[Sequence[Sequence[int]]], num_tokens: int) -> KeptIds:
    """Lay out kept ids by row and token; rows are filled up to `num_tokens` with places where every id is kept."""
    counts = [[len(ids) for ids in row] + [0] * (num_tokens - len(row)) for row in rows]
    flat = list(chain.from_iterable(chain.from_iterable(rows)))
    return KeptIds(torch.tensor(flat, dtype=torch.int32), torch.tensor(counts))


def _chosen(ids_M: Tensor, counts_X: Tensor, chosen: slice | Tensor) -> Tensor:
    """Return the ids of the chosen ones of X parts, which hold `counts_X` ids each."""
    counts_Y = counts_X[chosen]
    first_Y = (counts_X.cumsum(0) - counts_X)[chosen]
    shift_M = (first_Y - counts_Y.cumsum(0) + counts_Y).repeat_interleave(counts_Y)
    return ids_M[torch.arange(len(shift_M), device=ids_M.device) + shift_M]
