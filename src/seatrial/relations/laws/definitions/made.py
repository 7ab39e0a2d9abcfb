"""Made inputs of the laws of definitions, and what a stack without a part declares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from seatrial.relations.cases.case import Case


@dataclass(frozen=True, kw_only=True)
class Seeded(Case):
    """The seed of random values."""

    seed: int = 0

    def stream(self) -> torch.Generator:
        """Return a stream of random numbers that begins with the seed."""
        return torch.Generator().manual_seed(self.seed)


def seeded(stack: Any, seed: int, tidy: bool) -> Seeded:
    """Return the case of a seed."""
    return Seeded(seed=seed)


def without(name: str) -> Callable[[Any], str | None]:
    """Return a law's `excluded`: the declaration of a stack that does not have this part."""
    return lambda stack: None if name in stack.definitions else f"definitions without {name!r}"
