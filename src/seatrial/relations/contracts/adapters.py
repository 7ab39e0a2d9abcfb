"""Contracts of adapters: small trainable tensors that change what the frozen weights of a model compute.

Part of `seatrial.relations.contracts`, which lists every component. A component is one type of adapter with one set of
options on one tiny model, whose weights are the same every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Precision = Literal["float32", "bfloat16", "float16"]
Combination = Literal["linear", "cat", "svd"]


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """What a type of adapter claims to be."""

    starts_as_base: bool = True
    """Whether the model computes the same before and after the adapter is added."""
    start_bound: float = 1e-5
    """Largest change at the start, relative to the largest output; wider where the start is a decomposition."""
    changes_base: bool = False
    """Whether adding the adapter moves part of the base weights into it."""
    disables_all: bool = True
    """Whether the disabled model is the base; False where biases of the base train, and stay trained."""
    merges: bool = True
    """Whether the adapter can be written into the base weights."""
    trains_at_once: bool = True
    """Whether every tensor has a gradient after one step; False where some tensors train later by design."""
    saves_all: bool = True
    """Whether its file has all that it needs; the base weights are given."""
    takes_dropout: bool = True
    """Whether the type has dropout."""
    closed_form: bool = True
    """Whether `updates` gives what the adapter makes of each weight."""
    refuses: tuple[Literal["two at once", "mixed batch", "checkpointing"], ...] = ()
    """What the stack refuses in its own words."""
    also_trains: tuple[str, ...] = ()
    """Parts of names of tensors of the model that train with the adapter: biases, or whole modules."""


@dataclass(frozen=True, kw_only=True)
class WeightUpdate:
    """What an adapter makes of one weight of the base model; `oracles.adapters` computes it in float64."""

    weight: str
    """Its name in the base model."""
    form: Literal[
        "low rank", "diagonal core", "hadamard", "kronecker", "rows", "columns", "vectors", "spectrum"
    ]
    factors: Mapping[str, Tensor]
    scaling: float = 1.0
    """By the options of the plan, not as the stack computed it."""
    magnitude: Tensor | None = None
    """Norm of each row of the result, as in DoRA."""
    transposed: bool = False
    """Whether the weight is kept as [in, out]; factors are for [out, in]."""
    bias: Mapping[str, Tensor] = field(default_factory=dict)
    """What is added to biases of the base model, by name, scaling included."""


class AdaptedModel(Protocol):
    """A model of its own with one adapter named `first`; its methods change this model alone."""

    def outputs(self, ids_BS: Tensor, *, names: Sequence[str] | None = None) -> Tensor:
        """Return logits [B, S, V] in evaluation mode; `names` gives each row its adapter, or `base`."""
        ...

    def gradients(self, ids_BS: Tensor, *, checkpointing: bool = False) -> Mapping[str, Tensor]:
        """Return the gradient of every trainable tensor, zeros for one that has none, in training mode.

        The loss is the mean of the squared logits; dropout is off unless the options say otherwise.
        """
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """Return all tensors by name, not copied: who changes one changes the model."""
        ...

    def trainable(self) -> frozenset[str]:
        """Return the names of the tensors that training may change."""
        ...

    def tensors_of(self, name: str) -> frozenset[str]:
        """Return the names of the tensors of one adapter."""
        ...

    def updates(self, name: str) -> Sequence[WeightUpdate] | None:
        """Return what an adapter makes of each weight; None if no closed form is known for its type."""
        ...

    def add(self, name: str) -> None:
        """Add another adapter with the same options, not in use."""
        ...

    def use(self, names: Sequence[str]) -> None:
        """Use these adapters, which train, and no others."""
        ...

    def delete(self, name: str) -> None:
        """Remove an adapter."""
        ...

    def disabled(self) -> AbstractContextManager[None]:
        """Return a block in which the model has no adapter."""
        ...

    def merge(self, *, safe: bool = False) -> None:
        """Write the adapters in use into the weights; they can be taken out again."""
        ...

    def unmerge(self) -> None:
        """Take them out again."""
        ...

    def base_weights(self) -> Mapping[str, Tensor]:
        """Return the weights of the base model as they are at the moment, under the base model's names."""
        ...

    def merged(self) -> Mapping[str, Tensor]:
        """Merge for good and return all tensors of the plain model that is left; this model is not used again."""
        ...

    def save(self, folder: Path, name: str) -> Sequence[str]:
        """Write one adapter as a user would and return the names of the tensors in its file."""
        ...


@runtime_checkable
class Adapters(Protocol):
    """A type of adapter with its options."""

    adapter_spec: AdapterSpec
    vocab_size: int

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        """Return a new model with a new adapter; the seed is that of the adapter, the base weights stay.

        Raises:
            NotServed: the adapter takes no dropout.
        """
        ...

    def loaded(self, folder: Path, *, dtype: Precision) -> AdaptedModel:
        """Return a new model with the adapter of a folder."""
        ...

    def plain_weights(self, *, dtype: Precision) -> Mapping[str, Tensor]:
        """Return the weights of the base model before any adapter."""
        ...

    def plain_outputs(self, ids_BS: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of a plain base model with these weights, in their dtype."""
        ...


@runtime_checkable
class CombinedAdapters(Protocol):
    """Adapters that can be combined to a new one; an adapter that offers it offers `Adapters` too."""

    adapter_spec: AdapterSpec
    vocab_size: int

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        """See `Adapters`."""
        ...

    def combine(
        self, model: AdaptedModel, names: Sequence[str], weights: Sequence[float], how: Combination, new: str
    ) -> None:
        """Add the adapter `new` as the weighted sum; `svd` and `cat` have a rank that loses nothing."""
        ...


@dataclass(frozen=True, kw_only=True)
class OptimizerGroup:
    """One group of an optimizer."""

    names: tuple[str, ...]
    lr: float
    weight_decay: float


Role = Literal["A", "B", "embedding", "other"]


@runtime_checkable
class AdapterGroups(Protocol):
    """Optimizer groups of LoRA+: another rate for the factors that start at zero."""

    def optimizer_groups(
        self, *, lr: float, ratio: float, embedding_lr: float, weight_decay: float
    ) -> tuple[Sequence[OptimizerGroup], Mapping[str, Role]]:
        """Return the groups, and the role of every trainable tensor by its name."""
        ...
