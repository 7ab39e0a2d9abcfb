"""A Hugging Face causal language model on one device.

The model stays in evaluation mode throughout: with dropout, the log-probabilities before an update and those inside
it would differ, and the ratio would not be 1 on the first update.
"""

from __future__ import annotations

import copy
import math
from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.algorithms.metrics import merge_metrics
from refrl.algorithms.ops import compute_logprobs
from refrl.config import PolicyConfig
from refrl.models import save_directory
from refrl.policy.base import LossFunction
from refrl.policy.optimizer import ClippedAdamW


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
    ) -> None:
        """Move the model to the device and precision, and freeze a copy of it where one is needed.

        Args:
            model: trained in place.
            tokenizer: exported beside it.
            config: batch sizes, precision, optimizer.
            device: where everything is computed.
            num_updates: optimizer steps of the whole run, for the schedule.
            temperature: that completions are sampled at; log-probabilities are those of the same distribution.
            with_reference: keep a frozen copy of the model as it is now.
        """
        self.model = model.eval()
        self.model.to(device=device, dtype=getattr(torch, config.precision))
        self._tokenizer = tokenizer
        self._config = config
        self._device = device
        self._temperature = temperature
        self._reference = copy.deepcopy(self.model).requires_grad_(False) if with_reference else None
        self._optimizer = ClippedAdamW(self.model, config, num_updates)

    def prepare_for_generation(self) -> None:
        """Free the gradients: the torch engine samples with the live weights, so that nothing is transferred."""
        self._optimizer.clear_gradients()

    def logprobs(self, batch: Batch) -> Tensor:
        """Return logprobs_BT under the current weights, without gradient, on the batch's device."""
        return self._score(self.model, batch)

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where none is kept."""
        return None if self._reference is None else self._score(self._reference, batch)

    def train(self, batch: Batch, loss: LossFunction) -> dict[str, float]:
        """Take one optimizer step per `train_global_batch_size` rows, in their order.

        Stops at the first gradient norm that is not finite; that step changes no weight.

        Returns:
            The loss's metrics merged over micro-batches and steps; `grad_norm` (before clipping) and `lr`, their
            means over the steps.
        """
        parts: list[dict[str, Tensor]] = []
        norms: list[float] = []
        rates: list[float] = []
        for update in _split(batch, self._config.train_global_batch_size):
            parts += self._accumulate(update, loss)
            norm, rate = self._optimizer.step()
            norms.append(norm)
            rates.append(rate)
            if not math.isfinite(norm):
                break
        return {
            **merge_metrics(parts, num_updates=len(norms)),
            "grad_norm": sum(norms) / len(norms),
            "lr": sum(rates) / len(rates),
        }

    def save(self, directory: Path) -> None:
        """Export weights, configuration and tokenizer."""
        save_directory(self.model, self._tokenizer, directory)

    def _accumulate(self, update: Batch, loss: LossFunction) -> list[dict[str, Tensor]]:
        """Add up the gradients of one optimizer step over its micro-batches."""
        update = _to_device(update, self._device)
        parts = []
        for micro in _split(update, self._config.train_micro_batch_size):
            logprobs_BT, entropy_BT = self._forward(self.model, micro)
            share, metrics = loss(
                logprobs_BT,
                entropy_BT,
                micro,
                global_valid_tokens=update.num_valid_tokens,
                global_valid_seqs=update.num_valid_seqs,
            )
            share.backward()
            self._optimizer.add_gradients()
            parts.append(metrics)
        return parts

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        rows = _split(batch, self._config.logprob_batch_size)
        scored = [self._forward(model, _to_device(micro, self._device))[0] for micro in rows]
        return torch.cat(scored).to(batch.input_ids_BS.device)

    def _forward(self, model: PreTrainedModel, batch: Batch) -> tuple[Tensor, Tensor]:
        logits_BSV = model(
            input_ids=batch.input_ids_BS, attention_mask=batch.attention_mask_BS, use_cache=False
        ).logits
        return compute_logprobs(
            logits_BSV,
            batch.completion_ids_BT,
            batch.prompt_lens_B,
            temperature=self._temperature,
            mask_BT=batch.mask_BT,
        )


def _split(batch: Batch, num_rows: int) -> list[Batch]:
    """Cut a batch into parts of at most `num_rows` rows."""
    if batch.num_rows <= num_rows:
        return [batch]
    return [batch.rows(slice(start, start + num_rows)) for start in range(0, batch.num_rows, num_rows)]


def _to_device(batch: Batch, device: torch.device) -> Batch:
    if batch.input_ids_BS.device == device:
        return batch
    values = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return replace(
        batch, **{name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)}
    )
