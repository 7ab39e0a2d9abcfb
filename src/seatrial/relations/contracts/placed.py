"""Contract of models that a library lists, prepares, saves in parts, loads and offloads.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case

if TYPE_CHECKING:
    from torch import Tensor

ModelTrait = Literal["plain", "tied", "buffers", "own parameter", "shared layer", "half"]
Placing = Literal[
    "listed",
    "prepared",
    "prepared in bfloat16",
    "prepared twice",
    "buffers added later",
    "saved",
    "saved in parts",
    "saved in parts without safetensors",
    "made empty and loaded",
    "loaded half to disk",
    "offloaded",
    "offloaded to disk",
    "offloaded and brought back",
]


@dataclass(frozen=True, kw_only=True)
class PlacedPlan(Case):
    """What a model has, and what is done with it."""

    trait: ModelTrait = "plain"
    placing: Placing = "listed"
    seed: int = 0


class PlacedModel(NamedTuple):
    """A model before and after."""

    outputs: Tensor
    """[B, D] in evaluation mode."""
    plain_outputs: Tensor
    """Of the same inputs, before."""
    tensors: Mapping[str, Tensor]
    """What the library gives as the state of the model, or what the loaded model has."""
    plain_tensors: Mapping[str, Tensor]
    """The state dictionary of the plain model."""


@runtime_checkable
class PlacedModels(Protocol):
    """Places models of several traits."""

    def placed(self, plan: PlacedPlan) -> PlacedModel:
        """Return the model before and after.

        Raises:
            NotServed: the placing is not one for a model with this trait.
        """
        ...
