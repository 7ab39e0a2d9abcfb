"""The common part of the policies of a Hugging Face model, replicated or sharded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch
from refrl.algorithms.metrics import merge_metrics
from refrl.config import ConfigError
from refrl.policy.auxiliary import Auxiliary
from refrl.policy.base import LossFunction, Update
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import Scoring
from refrl.policy.tensors import FROZEN_DIFFER, digest
from refrl.policy.updates import Accumulated, take_updates


class ModulePolicy(ABC):
    """The part of a `refrl.policy.base.Policy` that does not depend on how weights and rows are distributed.

    The model stays in evaluation mode throughout: with dropout, the log-probabilities before an update and those
    during it would differ, and the ratio would not be 1 on the first update.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        scoring: Scoring,
        optimizer: ClippedAdamW,
        auxiliary: Auxiliary,
        global_batch_size: int,
    ) -> None:
        """Store the common parts.

        Args:
            model: the module that is called.
            scoring: how rows are cut into micro-batches and scored.
            optimizer: of its weights, or of this process's parts of them.
            auxiliary: what is trained or measured in addition to the policy loss.
            global_batch_size: rows of an optimizer step.
        """
        self.model = model
        self._scoring = scoring
        self._optimizer = optimizer
        self._auxiliary = auxiliary
        self._global_batch_size = global_batch_size
        self._frozen: str | None = None

    @property
    def version(self) -> int:
        """Optimizer steps that the weights have seen."""
        return self._optimizer.num_updates_done

    @property
    def in_training_mode(self) -> bool:
        """Whether dropout and the like are on in any part of the model."""
        return any(module.training for module in self.model.modules())

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model knows."""
        return int(self.model.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model takes, in tokens; None where it names none."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @abstractmethod
    def reference_weights(self) -> Iterator[tuple[str, Tensor]] | None:
        """Return the weights of the frozen reference; None where none is kept."""

    @abstractmethod
    def accumulate(
        self,
        batch: Batch,
        loss: LossFunction,
        micro_batches: Sequence[Sequence[int]] | None = None,
        *,
        scores: bool = False,
        with_rows: bool = False,
    ) -> Accumulated:
        """Add up the gradients of one optimizer step (see `refrl.policy.updates.Accumulating`)."""

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return every tensor that a run needs to resume (see `refrl.policy.base.Policy`), or the adapters' alone."""
        state = {f"model.{name}": tensor.detach() for name, tensor in self._own_weights()}
        state |= {f"optimizer.{name}": value for name, value in self._optimizer.state_tensors().items()}
        return {**state, **self._auxiliary.state_tensors()}

    def state_facts(self) -> Mapping[str, Any]:
        """Return the number of updates, and a digest of the weights that stay as they are."""
        if self._frozen is None:
            frozen = dict(self._frozen_weights())
            frozen |= {f"reference {name}": tensor for name, tensor in self.reference_weights() or ()}
            self._frozen = digest(frozen)
        return {"num_updates_done": self._optimizer.num_updates_done, "frozen": self._frozen}

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        """Take in the number of updates (see `refrl.policy.base.Policy`).

        Raises:
            ConfigError: frozen weights or the reference are not those that the checkpoint was trained with.
        """
        if facts["frozen"] != self.state_facts()["frozen"]:
            raise ConfigError(FROZEN_DIFFER)
        self._optimizer.num_updates_done = facts["num_updates_done"]
        self._auxiliary.resume(facts["num_updates_done"])

    def free_gradients(self) -> None:
        """Give back the memory of the gradients."""
        self._optimizer.clear_gradients()

    def logprobs(self, batch: Batch) -> Tensor:
        """Return logprobs_BT under the current weights, without gradient, on the batch's device."""
        return self._score(self.model, batch)

    def gradients(
        self, batch: Batch, loss: LossFunction, micro_batches: Sequence[Sequence[int]] | None = None
    ) -> dict[str, float]:
        """Add up the gradient of one optimizer step (see `refrl.policy.base.Policy`)."""
        return merge_metrics(self.accumulate(batch, loss, micro_batches).parts)

    def train(
        self, batch: Batch, loss: LossFunction, watch: Callable[[Update], None] | None = None
    ) -> dict[str, float]:
        """Take one optimizer step per global batch of rows (see `refrl.policy.updates.take_updates`)."""
        metrics = take_updates(self, batch, loss, watch, global_batch_size=self._global_batch_size)
        return self._auxiliary.finished(metrics)

    def _learn(
        self, micro: Batch, update: Batch, loss: LossFunction, *, scores: bool
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """Add the gradient of a micro-batch and of its auxiliary loss.

        Args:
            micro: its rows; with `scores`, they get the log-probabilities of this pass as the old ones.
            update: all rows of the optimizer step: the loss is divided by their counts.
            loss: the share of a micro-batch.
            scores: see `refrl.policy.updates.Accumulating`.

        Returns:
            (logprobs_BT, shares of the metrics).
        """
        with self._auxiliary.watching():
            logprobs_BT, entropy_BT = self._scoring.train_forward(self.model, micro)
        if scores:
            micro.old_logprobs_BT = logprobs_BT.detach()
        share, metrics = loss(
            logprobs_BT,
            entropy_BT,
            micro,
            global_valid_tokens=update.num_valid_tokens,
            global_valid_seqs=update.num_valid_seqs,
        )
        auxiliary, more = self._auxiliary.share(micro, update)
        share = share + auxiliary
        share.backward()
        self._optimizer.add_gradients()
        return logprobs_BT.detach(), {**metrics, **more}

    @abstractmethod
    def named_gradients(self) -> dict[str, Tensor]:
        """Return whole copies of the raw gradients (see `refrl.policy.base.Policy`)."""

    @abstractmethod
    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield whole weights (see `refrl.policy.base.Policy`)."""

    @abstractmethod
    def trained_weights(self) -> Mapping[str, Tensor]:
        """Return what training changes (see `refrl.policy.base.Policy`)."""

    @abstractmethod
    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients (see `refrl.policy.base.Policy`)."""

    @abstractmethod
    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that a checkpoint holds, as they are held: the model's, or its adapters'."""

    @abstractmethod
    def _frozen_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's weights under adapters; nothing where there are none."""

    @abstractmethod
    def _score(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """Return logprobs_BT under a model, without gradient, on the batch's device."""
