"""Contracts of adapters that are used in other ways than a plain forward pass, moved to other models, or placed apart.

Part of `seatrial.relations.contracts`, which lists every component. An adapter that offers one of them offers
`Adapters` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from seatrial.relations.contracts.adapters import AdaptedModel, AdapterSpec, Precision

Call = Literal[
    "embeddings given",
    "without a mask",
    "as a tuple",
    "in training",
    "with a cache",
    "generated",
    "generated from padded rows",
]
"""How logits are asked for; padded rows of a generation are padded on the left."""
Transfer = Literal[
    "tensors set in a new model",
    "tensors set in a new model, low memory",
    "tensors of a given state",
    "injected into a plain model",
    "file, low memory",
    "file without safetensors",
    "file, another name",
    "file of an adapter with the name of a module",
    "file read by its names",
    "file with its base and a tokenizer of fewer tokens",
    "file with its base and a tokenizer of more tokens",
    "file with embeddings",
    "file loaded by the model itself",
    "file of an adapter that the model itself added",
    "file with its base, loaded as one model",
    "file written while disabled",
    "file written while merged",
    "file of the change since its start",
    "merged into its base, in one file",
    "over the one that is there",
    "copied",
    "converted to low rank",
    "converted to low rank by energy",
]
"""How an adapter gets into another model with the same base."""
CALLS: tuple[Call, ...] = get_args(Call)
TRANSFERS: tuple[Transfer, ...] = get_args(Transfer)


@runtime_checkable
class RoutedAdapters(Protocol):
    """A type of adapter whose outputs are the same in every way to ask for them, and in every copy."""

    adapter_spec: AdapterSpec
    vocab_size: int

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        """See `Adapters`."""
        ...

    def answered(self, model: AdaptedModel, ids_BS: Tensor, call: Call) -> tuple[Tensor, Tensor]:
        """Return logits [B, S', V] that were asked for in a way, and the ids [B, S'] that they are of.

        Generated ids come after those given; the logits are then those of the positions that predict them alone.

        Raises:
            NotServed: the stack refuses it, or the base has no such way.
        """
        ...

    def transferred(self, model: AdaptedModel, ids_BS: Tensor, transfer: Transfer) -> Tensor:
        """Return the logits [B, S, V] of another model that got the adapter `first` of this one.

        Raises:
            NotServed: the stack refuses it.
        """
        ...


@runtime_checkable
class AdaptersElsewhere(Protocol):
    """A type of adapter of which a second one is on other layers, of another size, without what is saved whole."""

    adapter_spec: AdapterSpec
    vocab_size: int

    def adapted(self, *, seed: int, dtype: Precision, dropout: float = 0.0) -> AdaptedModel:
        """See `Adapters`."""
        ...

    def elsewhere(self, *, seed: int, dtype: Precision) -> AdaptedModel:
        """Return a new model with such an adapter alone, which is named `second`.

        Raises:
            NotServed: there are no such options for this type.
        """
        ...

    def add_elsewhere(self, model: AdaptedModel, name: str) -> None:
        """Add such an adapter to a model, not in use."""
        ...


LeftOut = Literal["tokens without a label", "padding"]
"""What the start of an adapter is not computed from."""


@runtime_checkable
class PreparedAdapters(Protocol):
    """A type of adapter whose start is computed from rows that are given."""

    def started(self, *, seed: int, rows: int, left_out: LeftOut, ids: int) -> Mapping[str, Tensor]:
        """Return the tensors of a new adapter that train, by name.

        Args:
            seed: of all that is random but the rows.
            rows: the seed of the ids that count.
            left_out: what the last ids of each row are.
            ids: the seed of those last ids.
        """
        ...
