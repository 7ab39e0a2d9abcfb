"""Some elements of a tensor, spread over it: enough to see that it moved, at a small part of a full pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ELEMENTS = 256
"""Elements looked at in a tensor; all of them in a smaller one."""


@dataclass(frozen=True)
class Sampled:
    """What was looked at."""

    shape: tuple[int, ...]
    elements: Tensor
    """Shape [at most 256], a copy."""

    def equals(self, other: Sampled) -> bool:
        """Whether both hold the same values, compared in the coarser precision of the two; NaN equals NaN."""
        if self.elements.shape != other.elements.shape:
            return False
        coarse = min(self.elements.dtype, other.elements.dtype, key=lambda dtype: dtype.itemsize)
        one, two = self.elements.to(coarse), other.elements.to(coarse).to(self.elements.device)
        return bool(((one == two) | ((one != one) & (two != two))).all())


def sample_of(weight: Tensor) -> Sampled:
    """Return elements of a tensor, evenly spread, always the same ones for one size."""
    import torch

    flat = weight.detach().reshape(-1)
    number = flat.numel()
    if number > ELEMENTS:
        # An odd stride that shares no small factor with powers of two meets every row and column in time.
        places = torch.arange(ELEMENTS, device=flat.device) * (number // ELEMENTS | 1) % number
        flat = flat[places]
    return Sampled(tuple(weight.shape), flat.clone())
