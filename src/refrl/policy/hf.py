"""A Hugging Face causal language model on one device, or on one device per process.

The model stays in evaluation mode throughout: with dropout, the log-probabilities before an update and those inside
it would differ, and the ratio would not be 1 on the first update.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.algorithms.metrics import merge_metrics
from refrl.config import PolicyConfig
from refrl.distributed import ALONE, World
from refrl.models import save_directory
from refrl.policy.base import LossFunction
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import make_scoring
from refrl.weight_sync import WeightSync


class HFPolicy:
    """A `refrl.policy.base.Policy`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        config: PolicyConfig,
        *,
        device: torch.device,
        num_updates: int,
        temperature: float,
        with_reference: bool,
        world: World = ALONE,
    ) -> None:
        """Move the model to the device and precision, and freeze a copy of it where one is needed.

        Args:
            model: trained in place.
            tokenizer: exported beside it.
            config: batch sizes and form, precision, optimizer, whether generation is colocated.
            device: where everything is computed.
            num_updates: optimizer steps of the whole run, for the schedule.
            temperature: that completions are sampled at; log-probabilities are those of the same distribution.
            with_reference: keep a frozen copy of the model as it is now.
            world: the processes that share the rows of a batch.

        Raises:
            ConfigError: the model cannot be scored, or checkpointed, as the configuration asks.
        """
        self.model = model.eval()
        self.model.to(device=device, dtype=getattr(torch, config.precision))
        self._tokenizer = tokenizer
        self._config = config
        self._device = device
        self._world = world
        self._scoring = make_scoring(config, self.model, temperature)
        self._reference = copy.deepcopy(self.model).requires_grad_(False) if with_reference else None
        self._sync = None if config.generation.colocated.enabled else WeightSync(self.model)
        self._optimizer = ClippedAdamW(self.model, config, num_updates)

    @property
    def generation_model(self) -> PreTrainedModel:
        """The model to sample with: the live one, or the generator's own copy."""
        return self.model if self._sync is None else self._sync.replica

    def prepare_for_generation(self) -> None:
        """Free the gradients, and bring the generator's own copy of the weights up to date where it has one."""
        self._optimizer.clear_gradients()
        if self._sync is not None:
            self._sync.sync(self._optimizer.num_updates_done)

    def logprobs(self, batch: Batch) -> Tensor:
        """Return logprobs_BT under the current weights, without gradient, on the batch's device."""
        return self._score(self.model, batch)

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where none is kept."""
        return None if self._reference is None else self._score(self._reference, batch)

    def train(self, batch: Batch, loss: LossFunction) -> dict[str, float]:
        """Take one optimizer step per `train_global_batch_size` rows, in their order.

        A step whose rows are all masked is left out. Stops at the first gradient norm that is not finite; that step
        changes no weight. A batch of one optimizer step that was not scored before (`old_logprobs_BT` is None) gets the
        values of the pass it is trained by: the weights are those that sampled it.

        Returns:
            The loss's metrics merged over micro-batches, ranks and steps; `grad_norm` (before clipping) and `lr`,
            their means over the steps.

        Raises:
            ValueError: no row has a token to train on.
            refrl.distributed.DivergenceError: the ranks' weights are no longer the same.
        """
        parts: list[dict[str, Tensor | float]] = []
        norms: list[float] = []
        rates: list[float] = []
        for update in _split(batch, self._config.train_global_batch_size):
            if not update.num_valid_tokens:
                continue
            parts += self._accumulate(update, loss, scores=update is batch and batch.old_logprobs_BT is None)
            norm, rate = self._optimizer.step()
            self._world.check_agreement(norm, self._optimizer.weights)
            norms.append(norm)
            rates.append(rate)
            if not math.isfinite(norm):
                break
        if not norms:
            raise ValueError("every row of the batch is masked: there is nothing to train on")
        return {
            **merge_metrics(parts, num_updates=len(norms)),
            "grad_norm": sum(norms) / len(norms),
            "lr": sum(rates) / len(rates),
        }

    def save(self, directory: Path) -> None:
        """Export weights, configuration and tokenizer."""
        save_directory(self.model, self._tokenizer, directory)

    def _accumulate(
        self, batch: Batch, loss: LossFunction, *, scores: bool
    ) -> list[dict[str, Tensor | float]]:
        """Add up the gradients of one optimizer step over its micro-batches and ranks; return the metrics of all.

        With `scores`, the batch gets the log-probabilities of this pass as its `old_logprobs_BT`.
        """
        update = batch.to(self._device)
        parts: list[dict[str, Tensor | float]] = []
        scored_BT = torch.zeros_like(update.mask_BT) if scores else None
        for rows, micro in self._scoring.train_cut.micro_batches(self._own(update)):
            logprobs_BT, entropy_BT = self._scoring.train_forward(self.model, micro)
            if scored_BT is not None:
                micro.old_logprobs_BT = logprobs_BT.detach()
                scored_BT[self._world.share(update.num_rows)][rows, : logprobs_BT.shape[1]] = (
                    micro.old_logprobs_BT
                )
            share, metrics = loss(
                logprobs_BT,
                entropy_BT,
                micro,
                global_valid_tokens=update.num_valid_tokens,
                global_valid_seqs=update.num_valid_seqs,
            )
            share.backward()
            self._optimizer.add_gradients()
            parts.append({**metrics})
        if scored_BT is not None:
            batch.old_logprobs_BT = self._world.sum_rows(scored_BT).to(batch.mask_BT.device)
        if self._world.size == 1:
            return parts
        self._world.sum_gradients(self._optimizer.weights)
        return self._world.gather([{name: float(value) for name, value in part.items()} for part in parts])

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        scored_BT = torch.zeros_like(batch.mask_BT, device=self._device)
        own = self._world.share(batch.num_rows)
        if own.start < own.stop:
            own_BT = scored_BT[own]
            for rows, micro in self._scoring.logprob_cut.micro_batches(self._own(batch)):
                logprobs_BT = self._scoring.forward(model, micro.to(self._device))[0]
                own_BT[rows, : logprobs_BT.shape[1]] = logprobs_BT
        return self._world.sum_rows(scored_BT).to(batch.input_ids_BS.device)

    def _own(self, batch: Batch) -> Batch:
        """Return this rank's rows of a batch."""
        return batch if self._world.size == 1 else batch.rows(self._world.share(batch.num_rows))


def _split(batch: Batch, num_rows: int) -> list[Batch]:
    """Cut a batch into parts of at most `num_rows` rows."""
    if batch.num_rows <= num_rows:
        return [batch]
    return [batch.rows(slice(start, start + num_rows)) for start in range(0, batch.num_rows, num_rows)]
