"""Contracts of adapters: small trainable tensors that change what the frozen weights of a model compute.

Part of `seatrial.relations.contracts`, which lists every component. A component is one type of adapter with one set of
options on one tiny model, whose weights are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

Precision = Literal["float32", "bfloat16", "float16"]
Combination = Literal[
    "linear",
    "cat",
    "svd",
    "magnitude_prune_svd",
    "ties_svd",
    "magnitude_prune",
    "ties",
    "dare_linear",
    "dare_ties",
    "dare_linear_svd",
    "dare_ties_svd",
]
"""How several adapters become one: of their changes of the weights (`_svd`, `cat`), or factor by factor."""
DENSITY = 0.5
"""The part that pruned combinations keep: the largest ones, or any (`dare`), which are divided by it."""


class Spread(NamedTuple):
    """Of the values of a new tensor, by the description of its type."""

    mean: float
    deviation: float
    """0 where all values are the mean."""


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
    drops_added: bool = True
    """Whether dropout is of what the adapter adds to the base; False where the adapter also takes a part out."""
    drops_all: bool = True
    """Whether nothing of the adapter is left in training where dropout has a rate of 1."""
    rescales_dropout: bool | None = True
    """Whether what dropout keeps is scaled, so that its mean is that of evaluation; None where the mean is another."""
    closed_form: bool = True
    """Whether `updates` gives what the adapter makes of each weight."""
    refuses: tuple[Literal["two at once", "mixed batch", "checkpointing", "rescaling", "swapping"], ...] = ()
    """What the stack refuses in its own words, or does not offer for this type."""
    also_trains: tuple[str, ...] = ()
    """Parts of names of tensors of the model that train with the adapter: biases, or whole modules."""
    keeps_dtype: bool = False
    """Whether its tensors are copies of the base's, in its precision."""
    casts_added: bool = True
    """Whether an adapter that is added to a model in half precision is cast to float32, as the first one is."""
    adds_to_loss: bool = False
    """Whether the loss has a term of the adapter's own."""
    weights: frozenset[str] | None = None
    """Weights of the base that the options name, by the documentation; None where they name none."""
    one_weight: tuple[str, str] | None = None
    """Two weights of the base that an adapter leaves one tensor, or writes as one where it is merged for good."""
    reads_ahead: bool = False
    """Whether the outputs of a position depend on later ones, so that rows cannot be padded."""


@dataclass(frozen=True, kw_only=True)
class WeightUpdate:
    """What an adapter makes of one weight of the base model; `oracles.adapters` computes it in float64."""

    weight: str
    """Its name in the base model."""
    form: Literal[
        "low rank",
        "diagonal core",
        "hadamard",
        "kronecker",
        "rows",
        "columns",
        "vectors",
        "spectrum",
        "rotated outputs",
        "reflected inputs",
        "modulated",
        "places",
        "normalised",
        "circulant",
        "wavelets",
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

    def outputs(
        self, ids_BS: Tensor, *, names: Sequence[str] | None = None, mask_BS: Tensor | None = None
    ) -> Tensor:
        """Return logits [B, S, V] in evaluation mode.

        Args:
            ids_BS: the rows.
            names: gives each row its adapter, or `base`; None: the adapters in use.
            mask_BS: 1 for ids, 0 for padding, which is at the end; None: there is no padding.
        """
        ...

    def loss(self, ids_BS: Tensor, labels_BS: Tensor, mask_BS: Tensor) -> float:
        """Return the mean loss of the labels that are not -100, in evaluation mode; a label is that of its own id.

        Raises:
            NotServed: the model gives no loss.
        """
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

    def use(self, names: Sequence[str], *, trains: bool = True) -> None:
        """Use these adapters, to train them or for inference, and no others.

        Raises:
            NotServed: the stack does not offer inference of this type.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove an adapter.

        Raises:
            NotServed: it is merged, and the stack refuses to remove it.
        """
        ...

    def disabled(self) -> AbstractContextManager[None]:
        """Return a block in which the model has no adapter."""
        ...

    def set_trainable(self, name: str, trainable: bool) -> None:
        """Say whether the tensors of an adapter train, by name."""
        ...

    def counts(self) -> tuple[int, int]:
        """Return how many numbers the stack says that train, and how many there are."""
        ...

    def rescaled(self, factor: float) -> AbstractContextManager[None]:
        """Return a block in which what the adapter adds is multiplied by a factor."""
        ...

    def merge(self, *, safe: bool = False, names: Sequence[str] | None = None) -> None:
        """Write adapters into the weights, from where they can be taken out again; None: those in use."""
        ...

    def unmerge(self) -> None:
        """Take them out again."""
        ...

    def cast(self, dtype: Precision) -> None:
        """Give the whole model this precision, its adapters included."""
        ...

    def optimizer(self, lr: float) -> Callable[[Tensor], None]:
        """Return a step of Adam on ids [B, S], of an optimizer that is made now; the loss is that of `gradients`."""
        ...

    def base_weights(self) -> Mapping[str, Tensor]:
        """Return the weights of the base model as they are at the moment, under the base model's names."""
        ...

    def merged(self) -> Mapping[str, Tensor]:
        """Merge for good and return all tensors of the plain model that is left; this model is not used again."""
        ...

    def unloaded(self) -> Mapping[str, Tensor]:
        """Remove the adapters and return all tensors of the plain model; this model is not used again."""
        ...

    def save(self, folder: Path, name: str) -> Sequence[str]:
        """Write one adapter as a user would and return the names of the tensors in its file."""
        ...

    def load(self, folder: Path, name: str) -> None:
        """Load the adapter of a folder as another one, not in use."""
        ...

    def swap(self, folder: Path, name: str) -> None:
        """Replace the tensors of an adapter by those of a folder."""
        ...

    def prepare_swaps(self, more_rank: int) -> None:
        """Pad adapters to a rank that is larger by this, so that larger ones are swapped in without compiling again.

        Raises:
            NotServed: the stack does not offer it.
        """
        ...

    def state(self, name: str) -> Mapping[str, Tensor]:
        """Return the tensors of one adapter as the stack gives them, copied."""
        ...

    def set_state(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Set the tensors of one adapter from what `state` gave of any adapter."""
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

    def loaded(self, folder: Path, *, dtype: Precision, trainable: bool = True) -> AdaptedModel:
        """Return a new model with the adapter of a folder, to be trained or for inference."""
        ...

    def plain_weights(self, *, dtype: Precision) -> Mapping[str, Tensor]:
        """Return the weights of the base model before any adapter."""
        ...

    def plain_outputs(self, ids_BS: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        """Return the logits of a plain base model with these weights, in their dtype."""
        ...


@runtime_checkable
class VariedAdapters(Protocol):
    """A type of adapter with an option at another value; an adapter that offers it offers `Adapters` too."""

    adapter_spec: AdapterSpec
    vocab_size: int

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        """See `Adapters`."""
        ...

    def unvaried(self) -> Adapters:
        """Return the type without the option."""
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
        """Add the adapter `new` as the weighted sum; those of changes have a rank that loses nothing.

        Where only one weight is not zero, a stack's own choice of a rank must lose nothing.

        Raises:
            NotServed: the stack refuses it.
        """
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
