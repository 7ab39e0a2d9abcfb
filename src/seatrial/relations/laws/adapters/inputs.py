"""Made inputs of adapters: rows of ids, and values that adapters have after some training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.adapters import AdaptedModel, Adapters

MOVED = 0.1
"""Spread of what is added to every trainable tensor: comparable to the tensors themselves."""


@dataclass(frozen=True, kw_only=True)
class AdapterCase(Case):
    """Rows of random ids."""

    num_rows: int = 3
    length: int = 6
    seed: int = 0

    def smaller(self) -> Iterator[AdapterCase]:
        """Yield one row of one id, then fewer."""
        if self.num_rows > 1:
            yield replace(self, num_rows=1)
        if self.length > 1:
            yield replace(self, length=1)


def adapter_case(stack: Adapters, seed: int, tidy: bool) -> AdapterCase:
    """Return rows of ids; when tidy, a row of one id."""
    return AdapterCase(num_rows=1, length=1, seed=seed) if tidy else AdapterCase(seed=seed)


def ids_of(stack: Adapters, case: AdapterCase) -> Tensor:
    """Return the ids [B, S]."""
    generator = torch.Generator().manual_seed(case.seed)
    return torch.randint(4, stack.vocab_size, (case.num_rows, case.length), generator=generator)


def move(model: AdaptedModel, seed: int, *, name: str = "first", spread: float = MOVED) -> None:
    """Add random numbers to every trainable tensor of one adapter, and to those of no adapter, as training would."""
    generator = torch.Generator().manual_seed(1000 + seed)
    tensors = model.tensors()
    other = "second" if name == "first" else "first"
    kept = model.tensors_of(other) - model.tensors_of(name)
    with torch.no_grad():
        for key in sorted(model.trainable() - kept):
            tensor = tensors[key]
            tensor.add_(torch.randn(tensor.shape, generator=generator).to(tensor.dtype) * spread)
