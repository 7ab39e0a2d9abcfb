"""What is trained or measured within a policy's forward pass in addition to the policy loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from torch import Tensor

from refrl.algorithms.batching import Batch

Share = tuple[Tensor, dict[str, Tensor]]
"""A micro-batch's share of a loss, and its shares of metrics: both add up over the micro-batches of an update."""


class Positions:
    """Which positions of a row this process gives to the model's layers: all of them."""

    def own(self, values_BS: Tensor) -> Tensor:
        """Return values of the positions that the layers have here, in their order; 0 where one is only filled up."""
        return values_BS

    def total(self, part: Tensor) -> Tensor:
        """Return the sum over the processes that have parts of the same rows; each keeps its part's gradient."""
        return part


WHOLE = Positions()


class Auxiliary:
    """A term in addition to the policy loss, computed from a micro-batch's forward pass; this one is none."""

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
        """Return the tensors that it needs to resume from a checkpoint, live and by name."""
        return {}

    def resume(self, num_updates_done: int) -> None:
        """Continue after so many updates, with the tensors of a checkpoint."""

    def write(self, folder: Path) -> None:
        """Write what it trains of its own into the folder of a model that is exported."""


NONE = Auxiliary()


class Together(Auxiliary):
    """Several auxiliaries as one."""

    def __init__(self, parts: Sequence[Auxiliary]) -> None:
        """Combine them."""
        self._parts = [part for part in parts if part is not NONE]

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Let each observe the forward pass."""
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.watching())
            yield

    def share(self, micro: Batch, update: Batch) -> Share:
        """Return the sum of the shares, and all metrics."""
        total, metrics = super().share(micro, update)
        for part in self._parts:
            loss, more = part.share(micro, update)
            total, metrics = total + loss, {**metrics, **more}
        return total, metrics

    def step(self) -> None:
        """Update each."""
        for part in self._parts:
            part.step()

    def finished(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Let each add its metrics."""
        done = dict(metrics)
        for part in self._parts:
            done = part.finished(done)
        return done

    @property
    def weights(self) -> Sequence[Tensor]:
        """Weights of all."""
        return [weight for part in self._parts for weight in part.weights]

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return the tensors of all."""
        return {name: tensor for part in self._parts for name, tensor in part.state_tensors().items()}

    def resume(self, num_updates_done: int) -> None:
        """Resume each."""
        for part in self._parts:
            part.resume(num_updates_done)

    def write(self, folder: Path) -> None:
        """Let each write its files."""
        for part in self._parts:
            part.write(folder)
