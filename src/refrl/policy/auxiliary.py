"""What is trained or measured within a policy's forward, beside the policy loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from refrl.algorithms.batching import Batch

Share = tuple[Tensor, dict[str, Tensor]]
"""A micro-batch's share of a loss, and its shares of metrics: both add up over the micro-batches of an update."""


class Auxiliary:
    """A term beside the policy loss, of what the forward of a micro-batch shows; this one is none."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See the forward of one micro-batch that is made within the block."""
        yield

    def share(self, micro: Batch, update: Batch) -> Share:
        """Return the share of the micro-batch that was seen last.

        Args:
            micro: its rows.
            update: all rows of the optimizer step, of every rank: means are over them.
        """
        return micro.mask_BT.new_zeros(()), {}

    def step(self) -> None:
        """Update what it trains of its own; called when the policy was updated."""

    def finished(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a whole training step, with those that only their sums give."""
        return dict(metrics)

    @property
    def weights(self) -> Sequence[Tensor]:
        """Weights of its own, whose gradients the ranks add up."""
        return ()

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return, live and by name, what it needs to go on from a checkpoint."""
        return {}

    def save(self, directory: Path) -> None:
        """Write what it trains of its own into the folder of an exported model."""


NONE = Auxiliary()
