"""The common part of the policies of a Hugging Face model, replicated or sharded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError
from refrl.distributed import World
from refrl.policy.auxiliary import Auxiliary
from refrl.policy.base import LossFunction, Update
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import Cut, Scoring
from refrl.policy.tensors import FROZEN_DIFFER, digest
from refrl.policy.updates import Accumulated, Parts, UpdatingPolicy, row_numbers

Pass = tuple[slice | list[int] | None, Batch]
"""(own rows, micro-batch) of one pass through the model; None for a pass that only keeps up with other processes."""


class ModulePolicy(UpdatingPolicy):
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
        data: World,
    ) -> None:
        """Store the common parts.

        Args:
            model: the module that is called.
            scoring: how rows are cut into micro-batches and scored.
            optimizer: of its weights, or of this process's parts of them.
            auxiliary: what is trained or measured in addition to the policy loss.
            global_batch_size: rows of an optimizer step.
            data: the processes that share the rows of a batch.
        """
        self.model = model
        self._scoring = scoring
        self._optimizer = optimizer
        self._auxiliary = auxiliary
        self._global_batch_size = global_batch_size
        self._data = data
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

    def accumulate(
        self,
        batch: Batch,
        loss: LossFunction,
        micro_batches: Sequence[Sequence[int]] | None = None,
        *,
        scores: bool = False,
        with_rows: bool = False,
    ) -> Accumulated:
        """Add up the gradients of one optimizer step (see `refrl.policy.updates.UpdatingPolicy`)."""
        update = batch.to(self.model.device)
        share = self._data.share(update.num_rows)
        parts: Parts = []
        scored_BT = torch.zeros_like(update.mask_BT)
        passes = self._passes(update, self._scoring.train_cut, micro_batches)
        own = [(rows, micro) for rows, micro in passes if rows is not None]
        own_rows = list(range(update.num_rows))[share]
        rows_of_all = self._data.gather(row_numbers(own, own_rows)) if with_rows else []
        for rows, micro in passes:
            logprobs_BT, metrics = self._learn(micro, update, loss, scores=scores)
            if rows is not None:
                scored_BT[share][rows, : logprobs_BT.shape[1]] = logprobs_BT
                parts.append(metrics)
        if scores:
            batch.old_logprobs_BT = self._data.sum_rows(scored_BT).to(batch.mask_BT.device)
        self._sum_gradients()
        plain: Parts = [{name: float(value) for name, value in part.items()} for part in parts]
        return Accumulated(self._data.gather(plain), rows_of_all)

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
        for weight in self._auxiliary.weights:
            weight.grad = None

    def logprobs(self, batch: Batch) -> Tensor:
        """Return logprobs_BT under the current weights, without gradient, on the batch's device."""
        return self._score(self.model, batch)

    def train(
        self, batch: Batch, loss: LossFunction, watch: Callable[[Update], None] | None = None
    ) -> dict[str, float]:
        """Take one optimizer step per global batch of rows (see `refrl.policy.updates.take_updates`)."""
        return self._auxiliary.finished(super().train(batch, loss, watch))

    def _learn(
        self, micro: Batch, update: Batch, loss: LossFunction, *, scores: bool
    ) -> tuple[Tensor, dict[str, Tensor | float]]:
        """Add the gradient of a micro-batch and of its auxiliary loss.

        Args:
            micro: its rows; with `scores`, they get the log-probabilities of this pass as the old ones.
            update: all rows of the optimizer step: the loss is divided by their counts.
            loss: the share of a micro-batch.
            scores: see `refrl.policy.updates.UpdatingPolicy`.

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
    def _sum_gradients(self) -> None:
        """Sum the gradients over the processes that have other rows, as far as the backward pass did not."""

    @abstractmethod
    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights that a checkpoint holds, as they are held: the model's, or its adapters'."""

    @abstractmethod
    def _frozen_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's weights under adapters; nothing where there are none."""

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        """Return logprobs_BT under a model, without gradient, on the batch's device."""
        scored_BT = torch.zeros_like(batch.mask_BT, device=model.device)
        own_BT = scored_BT[self._data.share(batch.num_rows)]
        for rows, micro in self._passes(batch, self._scoring.logprob_cut):
            logprobs_BT = self._scoring.forward(model, micro.to(model.device))[0]
            if rows is not None:
                own_BT[rows, : logprobs_BT.shape[1]] = logprobs_BT
        return self._data.sum_rows(scored_BT).to(batch.input_ids_BS.device)

    def _passes(
        self, batch: Batch, cut: Cut, micro_batches: Sequence[Sequence[int]] | None = None
    ) -> Sequence[Pass]:
        """Return the passes over this process's rows, in the given micro-batches or by the cut."""
        share = self._data.share(batch.num_rows)
        own = batch if self._data.size == 1 else batch.rows(share)
        if micro_batches is not None:
            return self._even([(list(rows), own.rows(rows)) for rows in micro_batches], batch)
        return self._even(cut.micro_batches(own) if share.start < share.stop else [], batch)

    def _even(self, passes: Sequence[Pass], batch: Batch) -> Sequence[Pass]:
        """Return passes of the number that every process needs."""
        del batch
        return passes
