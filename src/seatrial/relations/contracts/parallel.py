"""Contract of training that several processes share.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from seatrial.relations.records import Row

if TYPE_CHECKING:
    from torch import Tensor


class LayoutFacts(NamedTuple):
    """What a layout takes."""

    num_processes: int
    model: str
    """Which of the stack's models is trained in it: `dense`, `moe`."""
    thorough: bool = False
    """Whether only a thorough run trains in it: other layouts have all that it has, or it takes long."""


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one process saw of: scoring, the gradient of one update, that update, and a few more on the same rows."""

    backend: str
    """What served the policy, as the objects that ran say."""
    mesh: Mapping[str, int]
    """Processes by dimension."""
    logprobs_BT: Tensor
    """Of all rows, under the weights of the start."""
    reference_logprobs_BT: Tensor
    gradients: Mapping[str, Tensor]
    """Raw and whole, of all rows, before clipping."""
    grad_norm: float
    """Before clipping."""
    metrics: Mapping[str, float]
    """Logged of the first update; `global_valid_toks` and the like among them."""
    later_metrics: Sequence[Mapping[str, float]]
    weights: Mapping[str, Tensor]
    """Whole, after all updates."""
    random_streams_untouched: bool
    """Whether training left the global random streams of this process alone."""


@runtime_checkable
class ParallelTraining(Protocol):
    """Training of given rows in layouts of several processes: data, tensor, sequence, context, expert parallel."""

    def layouts(self) -> Mapping[str, LayoutFacts]:
        """Return every layout that the stack has."""
        ...

    def train_in_layouts(
        self, names: Sequence[str], rows: Sequence[Row]
    ) -> Mapping[str, Sequence[RankRecord]]:
        """Train the rows in each layout, from the same start; return the record of each rank, in their order."""
        ...

    def train_alone(self, name: str, rows: Sequence[Row]) -> RankRecord:
        """Train the rows in one process, with the model of a layout, by the plainest way that the stack has."""
        ...
