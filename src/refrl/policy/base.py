"""What every policy offers to the loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch

Forward = Callable[[PreTrainedModel, Batch], tuple[Tensor, Tensor]]
"""(model, micro-batch on its device) -> (logprobs_BT, entropy_BT), 0 where the mask is 0."""


class LossFunction(Protocol):
    """The share of one micro-batch of the loss, and of its metrics; shares add up over an optimizer step."""

    def __call__(
        self,
        logprobs_BT: Tensor,
        entropy_BT: Tensor,
        batch: Batch,
        *,
        global_valid_tokens: Tensor,
        global_valid_seqs: Tensor,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (share of the loss, shares of the metrics)."""
        ...


class Policy(Protocol):
    """A causal language model under training."""

    def prepare_for_generation(self) -> None:
        """Give back what only training needs, and bring the generator's weights up to date: before every sampling."""
        ...

    def logprobs(self, batch: Batch) -> Tensor:
        """Return logprobs_BT of the batch's completions under the current weights, without gradient."""
        ...

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where the policy keeps none."""
        ...

    def train(self, batch: Batch, loss: LossFunction) -> dict[str, float]:
        """Take one optimizer step per global batch of rows, and return the merged metrics."""
        ...

    def save(self, directory: Path) -> None:
        """Export the model and its tokenizer as a Hugging Face directory."""
        ...
