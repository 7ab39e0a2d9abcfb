"""The interface of every policy to the training loops, on any backend.

If several processes run, each has a policy and calls it in the same order: methods that return whole tensors of
distributed weights gather them (`named_weights`, `trained_weights`, `named_gradients`, `state_tensors`, `save`), and
scoring and training exchange what the backend needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch

Forward = Callable[[PreTrainedModel, Batch], tuple[Tensor, Tensor]]
"""(model, micro-batch on its device) -> (logprobs_BT, entropy_BT), 0 where the mask is 0."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The backend of a policy, read from the live objects and not from the configuration."""

    name: str
    """`hf`, `dtensor` or `megatron`."""
    model: str
    """Class of the module that is called, with its package."""
    mesh: Mapping[str, int]
    """Processes along each dimension of the live process groups; `data` share the rows of a batch."""
    weights: Mapping[str, int]
    """How many of the trained tensors are held in which form: `Tensor`, `DTensor[Shard(dim=0)]`."""
    kernels: str = "the model's own"
    """What computes norms, gates and rotary embeddings, and why not the fused kernels if they could be asked for."""


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


@dataclass(frozen=True, kw_only=True)
class Update:
    """One optimizer step of `Policy.train`."""

    first_row: int
    """Index of its first row in the training batch; its rows are contiguous."""
    num_rows: int
    gradients: Mapping[str, Tensor]
    """Raw gradient of each trainable weight by name, before clipping."""
    grad_norm: float
    """Norm before clipping."""
    learning_rate: float
    micro_batches: Sequence[Sequence[int]]
    """Rows of the batch in each micro-batch."""
    weights: Mapping[str, Tensor]
    """Copies of all weights after the step."""


class Policy(Protocol):
    """A causal language model under training. It may hold a share of a batch's rows, or of the model."""

    @property
    def backend(self) -> Backend:
        """The live backend."""
        ...

    @property
    def shares_weights(self) -> bool:
        """Whether `named_weights` yields the tensors that are trained, and not whole copies of them."""
        ...

    @property
    def version(self) -> int:
        """Optimizer steps that the weights have seen."""
        ...

    @property
    def in_training_mode(self) -> bool:
        """Whether dropout and the like are on; a policy scores and trains with them off."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model knows."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model takes, in tokens; None where it names none."""
        ...

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter and buffer, whole and under its Hugging Face name; live where `shares_weights` says so.

        Every process takes all of them.
        """
        ...

    def trained_weights(self) -> Mapping[str, Tensor]:
        """Return every weight that training changes, as `named_weights` does: those of the model, or its adapters."""
        ...

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return every tensor that a run needs to resume: weights, float32 copies, moments.

        They are named alike on every backend (`model.<Hugging Face name>`, `optimizer.<Hugging Face name>.exp_avg`) and
        have the shape of the whole weight; a sharded one is a DTensor. Training continues with what is written into
        them before `load_state_facts` is called. What training does not change, and `policy.model_name` provides
        again, may be omitted.
        """
        ...

    def state_facts(self) -> Mapping[str, Any]:
        """Return the counters, and digests of what `state_tensors` omits, as JSON values."""
        ...

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        """Restore the counters after the tensors have been written, and refresh what is derived from them.

        Raises:
            ConfigError: what `state_tensors` omits has changed.
        """
        ...

    def reference_weights(self) -> Iterator[tuple[str, Tensor]] | None:
        """Return the weights of the frozen reference as `named_weights` does; None where the policy keeps none."""
        ...

    def free_gradients(self) -> None:
        """Give back the memory that only training needs."""
        ...

    def logprobs(self, batch: Batch) -> Tensor:
        """Return logprobs_BT of the batch's completions under the current weights, without gradient."""
        ...

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where the policy keeps none."""
        ...

    def gradients(
        self, batch: Batch, loss: LossFunction, micro_batches: Sequence[Sequence[int]] | None = None
    ) -> dict[str, float]:
        """Add up the gradient of one optimizer step over its micro-batches; return the merged metrics.

        Args:
            batch: all rows of the step.
            loss: divides by the counts of the whole batch.
            micro_batches: rows of each forward and backward pass, of those that this process has; None takes the
                configuration's.
        """
        ...

    def named_gradients(self) -> dict[str, Tensor]:
        """Return a whole copy of the current gradient of each trainable weight; zero if it has none."""
        ...

    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients; return (gradient norm before clipping, learning rate)."""
        ...

    def train(
        self, batch: Batch, loss: LossFunction, watch: Callable[[Update], None] | None = None
    ) -> dict[str, float]:
        """Take one optimizer step per global batch of rows, and return the merged metrics.

        Args:
            batch: rows of one or more optimizer steps.
            loss: the share of a micro-batch.
            watch: called after each optimizer step with what it did.
        """
        ...

    def save(self, directory: Path) -> None:
        """Export the model and its tokenizer as a Hugging Face directory; the first process writes it."""
        ...
