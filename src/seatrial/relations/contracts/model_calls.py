"""Contract of a model's calls: what changes no logits, and options that others can take the place of.

Part of `seatrial.relations.contracts`, which lists every component. Forms of one call: `ModelFamily`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

CallForm = Literal[
    "further outputs",
    "as a tuple",
    "after other calls",
    "in float64",
    "places by a factor",
    "yarn by larger queries",
    "no rows of their own",
    "in bfloat16",
    "in float16",
    "the last state",
    "masks of other types",
    "more ids",
    "fewer ids",
    "routers by argument",
    "routers by configuration",
    "one by one",
    "a cache reordered",
    "rows of a cache chosen",
    "a cache repeated",
    "a cache copied",
    "a cache cut",
    "beams",
    "beams that end",
    "candidates of the prompt",
    "embeddings that generate",
    "generation that continues",
    "experts by definition",
    "logits of routers",
    "ways of computing experts",
    "places in a window",
    "head by definition",
    "the first state",
    "scale of attention",
    "turned queries",
    "a row padded by itself",
    "padded beyond a length",
    "packed beyond a length",
    "generated beyond a length",
    "grown beyond a length",
    "places of an index",
]
IGNORED = -100


@runtime_checkable
class ModelCalls(Protocol):
    """One tiny model that is called in several ways."""

    vocab_size: int

    def call_pairs(self, rows: Sequence[Sequence[int]], form: CallForm) -> list[tuple[Tensor, Tensor]]:
        """Return [S, V] logits of each row in a form, each with those that it has to equal.

        Args:
            rows: of ids.
            form: `places by a factor` has linear scaling of rotary embeddings and places that are as much larger;
                `yarn by larger queries` has a scale of attention (mscale of all places), and in its place queries that
                are larger by its square; `no rows of their own` has the batch in the reverse order; the other names are
                those of the laws of `R5.calls` and `R5.cached`. What experts and routers are due is
                computed from what a layer is given and from the tensors in files. Both tensors may be losses, hidden
                states or ids too.

        Raises:
            NotServed: the model has no such form.
        """
        ...

    def loss_of_labels(
        self, rows: Sequence[Sequence[int]], labels: Sequence[Sequence[int]]
    ) -> tuple[float, list[str]]:
        """Return the model's own loss of a batch padded on the right, and inputs that a step of training changed.

        Args:
            rows: of ids.
            labels: of each row, -100 where nothing trains.
        """
        ...

    def row_logits(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        """Return [S, V] logits of each row by itself."""
        ...
