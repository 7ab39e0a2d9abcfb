"""Some elements of every tensor, spread over it: enough to see that it moved, at a small part of a full pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

ELEMENTS = 256
"""Elements looked at in a tensor; all of them in a smaller one."""


@dataclass(frozen=True)
class WeightSample:
    """What was looked at. N elements."""

    sizes: Mapping[str, int]
    """Elements of each tensor, by name, in the order in which they lie in `elements_N`."""
    dtypes: Mapping[str, torch.dtype]
    elements_N: Tensor
    """A copy, in float32: every narrower type fits."""

    def differing(self, other: WeightSample) -> list[str]:
        """Return the names of tensors whose values differ; NaN equals NaN.

        Two types are compared in the coarser of them. Both samples are of tensors with the same names and shapes.
        """
        import torch

        if not self.sizes:
            return []
        here_N = self.elements_N
        there_N = other.elements_N.to(here_N.device)
        if self.dtypes != other.dtypes:
            here_N, there_N = self._rounded(here_N, other), self._rounded(there_N, other)
        differs_N = (here_N != there_N) & ~((here_N != here_N) & (there_N != there_N))
        ends = torch.tensor(list(accumulate(self.sizes.values(), initial=0)), device=here_N.device)
        # How many differ up to the end of each tensor, in one transfer: on a GPU each waits for the queue.
        up_to = torch.cat([ends.new_zeros(1), differs_N.cumsum(0)])[ends].tolist()
        return [
            name for name, (before, after) in zip(self.sizes, pairwise(up_to), strict=True) if before < after
        ]

    def _rounded(self, elements_N: Tensor, other: WeightSample) -> Tensor:
        """Return elements in the coarser of the two types of each tensor, as float32."""
        import torch

        types = zip(self.dtypes.values(), other.dtypes.values(), strict=True)
        coarser = [min(pair, key=lambda dtype: dtype.itemsize) for pair in types]
        if len(set(coarser)) == 1:
            return elements_N.to(coarser[0]).float()
        parts = torch.split(elements_N, list(self.sizes.values()))
        return torch.cat([part.to(dtype).float() for part, dtype in zip(parts, coarser, strict=True)])


def sample_weights(weights: Mapping[str, Tensor]) -> WeightSample:
    """Return elements of tensors, evenly spread over each, always the same ones for one size."""
    import torch

    parts = {name: _spread(weight.detach()) for name, weight in weights.items()}
    dtypes = {name: weight.dtype for name, weight in weights.items()}
    if len(set(dtypes.values())) == 1:
        elements_N = torch.cat(list(parts.values())).float()
    else:
        elements_N = torch.cat([part.float() for part in parts.values()]) if parts else torch.empty(0)
    return WeightSample(
        sizes={name: part.numel() for name, part in parts.items()}, dtypes=dtypes, elements_N=elements_N
    )


def _spread(weight: Tensor) -> Tensor:
    """Return a view of some elements."""
    flat = weight.reshape(-1)
    # An odd stride shares no factor with the powers of two that widths are: every row and column is met in time.
    return flat[:: flat.numel() // ELEMENTS | 1] if flat.numel() > ELEMENTS else flat
