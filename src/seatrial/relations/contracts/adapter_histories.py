"""Contract of adapters through a history: several of them with other options, in any order of what a user may call.

Part of `seatrial.relations.contracts`, which lists every component. An adapter that offers it offers `Adapters` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

from seatrial.relations.contracts.adapters import AdaptedModel, AdapterSpec

if TYPE_CHECKING:
    from seatrial.relations.contracts.adapters import Combination

Options = Literal["own", "elsewhere", "scaled", "saved", "varied"]
"""Of an adapter: those of the type, other layers, another rank and scale, a module that is saved whole, or another
value of any other option, which the seed chooses."""
OPTIONS: tuple[Options, ...] = get_args(Options)


class HistoryModel(AdaptedModel, Protocol):
    """A model of its own with one adapter or more, of any name."""

    def put(self, options: Options, name: str, *, seed: int) -> None:
        """Add an adapter, not in use; the seed is that of its start.

        Raises:
            NotServed: the stack refuses it.
        """
        ...

    def read_in(self, folder: Path, name: str, *, trainable: bool, low_memory: bool) -> None:
        """Load the adapter of a folder, which may replace one of the same name, and put no other in use."""
        ...

    def use_one(self, name: str, *, trains: bool) -> None:
        """Use this adapter alone, to train it or for inference."""
        ...

    def switch(self, on: bool) -> None:
        """Enable or disable adapters until they are switched again."""
        ...

    def active(self) -> Sequence[str]:
        """Return the names of the adapters that the stack says are in use."""
        ...

    def set_scale(self, name: str, factor: float) -> None:
        """Set what an adapter adds to this many times what its options say.

        Raises:
            NotServed: the stack offers it not for this type; so for the other two.
        """
        ...

    def multiply_scale(self, factor: float) -> None:
        """Multiply what the adapters in use add."""
        ...

    def divide_scale(self, factor: float | None) -> None:
        """Divide what the adapters in use add; None: add what the options say again."""
        ...

    def weigh(self, names: Sequence[str], weights: Sequence[float], how: Combination, new: str) -> None:
        """Add the adapter `new` as the weighted sum, with a rank that loses nothing, not in use.

        Raises:
            NotServed: the stack offers it not for this type, or refuses it for these adapters.
        """
        ...

    def copied(self) -> HistoryModel:
        """Return a copy of the model.

        Raises:
            NotServed: it cannot be copied.
        """
        ...


@runtime_checkable
class AdapterHistories(Protocol):
    """A type of adapter, of which a model may have several with other options."""

    adapter_spec: AdapterSpec
    vocab_size: int

    def alone(self, options: Options, name: str, *, seed: int, dropout: float = 0.0) -> HistoryModel:
        """Return a new model with such an adapter alone, of this name; the base weights are always the same.

        Raises:
            NotServed: the type has no such options.
        """
        ...
