"""Contract of the options of a model's configuration: one model with one option, or two, at another value.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seatrial.relations.contracts.families import ModelFamily
from seatrial.relations.records import StepResult

if TYPE_CHECKING:
    from torch import Tensor


class OptionedModel(ModelFamily, Protocol):
    """A tiny model whose weights are drawn by their names: models that differ in an option share theirs."""

    def packed_logits(self, rows: Sequence[Sequence[int]], attention: str) -> list[Tensor]:
        """Return [S, V] logits of each row, all laid end to end in one, with positions that begin again."""
        ...

    def option_step(
        self, rows: Sequence[Sequence[int]], *, attention: str = "eager", num_items: int | None = None
    ) -> StepResult:
        """Return loss and gradients as `family_step` does.

        Args:
            rows: of ids, each a label.
            attention: kind of attention.
            num_items: that the sum of losses is divided by; None: the number of labels that are predicted.
        """
        ...

    def drawn_logits(self, rows: Sequence[Sequence[int]], seed: int, attention: str) -> list[Tensor]:
        """Return logits in training mode, each row by itself, with dropout drawn from a seed."""
        ...

    def options_lost(self) -> Sequence[str]:
        """Return what is another value in the configuration after the model was saved and loaded."""
        ...


@runtime_checkable
class ModelOptions(Protocol):
    """A family's options."""

    vocab_size: int
    option_names: Sequence[str]
    """Of models with other values: one for each value of an option, then pairs of them."""
    trains_alone: Sequence[str]
    """Those that act in training mode alone, as dropout does."""

    def with_option(self, name: str) -> OptionedModel:
        """Return the model with an option; the empty name: the tiny model itself.

        Raises:
            NotServed: the library refuses the configuration.
        """
        ...

    def option_excludes(self, law: str, name: str) -> str | None:
        """Return why a law is not about an option, by the library's design; None if it is."""
        ...

    def option_failures(self, law: str) -> Mapping[str, str]:
        """Return the known failures of a law, by how the option's name begins; the text names the finding."""
        ...
