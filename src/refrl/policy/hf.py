"""A Hugging Face causal language model on one device, or on one device per process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.distributed import ALONE, World
from refrl.models.loading import save_directory
from refrl.policy.adapter_files import save_merged
from refrl.policy.auxiliary import NONE, Auxiliary
from refrl.policy.base import Backend
from refrl.policy.lora import Adapters
from refrl.policy.module_policy import ModulePolicy
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import Scoring
from refrl.policy.tensors import class_name, forms, named_weights


class HFPolicy(ModulePolicy):
    """A `refrl.policy.base.Policy`; `refrl.training.build.build_policy` makes one from a configuration."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        scoring: Scoring,
        optimizer: ClippedAdamW,
        reference: PreTrainedModel | None,
        global_batch_size: int,
        world: World = ALONE,
        adapters: Adapters | None = None,
        auxiliary: Auxiliary = NONE,
    ) -> None:
        """Put the parts together.

        Args:
            model: trained in place, on its device and in its precision.
            tokenizer: exported with the model.
            scoring: how rows are cut into micro-batches and scored.
            optimizer: of this model.
            reference: a frozen copy, or with adapters the model itself; None where no KL is asked for.
            global_batch_size: rows of an optimizer step.
            world: the processes that share the rows of a batch.
            adapters: of the model, where they are trained in place of its weights.
            auxiliary: what is trained or measured in addition to the policy loss.
        """
        super().__init__(
            model,
            scoring=scoring,
            optimizer=optimizer,
            auxiliary=auxiliary,
            global_batch_size=global_batch_size,
            data=world,
        )
        self._tokenizer = tokenizer
        self._reference = reference
        self._adapters = adapters

    @property
    def backend(self) -> Backend:
        """What serves it: the model's own code, a whole copy on each process."""
        weights = self._optimizer.weights
        return Backend(
            name="hf",
            model=class_name(self.model),
            mesh={"data": self._data.size},
            weights=forms(weights),
            kernels=self._scoring.kernels,
        )

    @property
    def shares_weights(self) -> bool:
        """Whether `named_weights` yields the tensors that are trained: yes."""
        return True

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield every parameter and buffer, live, under its Hugging Face name; those with an adapter merged."""
        return named_weights(self.model) if self._adapters is None else self._adapters.named_weights()

    def trained_weights(self) -> Mapping[str, Tensor]:
        """Return every weight that training changes, live."""
        return {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}

    def reference_weights(self) -> Iterator[tuple[str, Tensor]] | None:
        """Return the weights of the frozen reference; None where none is kept."""
        if self._reference is None or self._adapters is None:
            return None if self._reference is None else named_weights(self._reference)
        return self._adapters.base_weights()

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        """Take in the number of updates (see `ModulePolicy`), and bring merged weights up to date."""
        super().load_state_facts(facts)
        if self._adapters is not None:
            self._adapters.refresh()

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where none is kept."""
        if self._reference is None:
            return None
        with contextlib.nullcontext() if self._adapters is None else self._adapters.off():
            return self._score(self._reference, batch)

    def named_gradients(self) -> dict[str, Tensor]:
        """Return a copy of the raw gradient of each trainable weight; zero where there is none."""
        names = [name for name, weight in self.model.named_parameters() if weight.requires_grad]
        return {
            name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
            for name, weight in zip(names, self._optimizer.weights, strict=True)
        }

    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients; return (gradient norm before clipping, learning rate).

        Raises:
            refrl.distributed.DivergenceError: the ranks' weights are no longer the same.
        """
        norm, rate = self._optimizer.step()
        self._auxiliary.step()
        if self._adapters is not None:
            self._adapters.refresh()
        self._data.check_agreement(norm, [*self._optimizer.weights, *self._auxiliary.weights])
        return norm, rate

    def save(self, directory: Path) -> None:
        """Export weights, configuration and tokenizer; adapters merged, and in `adapter/` in PEFT's format."""
        if self._data.rank:
            return
        if self._adapters is None:
            save_directory(self.model, self._tokenizer, directory, self._auxiliary.write)
        else:
            adapters = self._adapters
            merged, weights = adapters.named_weights(), adapters.weights()
            save_merged(adapters, self._tokenizer, directory, merged=merged, weights=weights)

    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self.named_weights() if self._adapters is None else iter(self._adapters.weights().items())

    def _frozen_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(()) if self._adapters is None else self._adapters.base_weights()

    def _sum_gradients(self) -> None:
        self._data.sum_gradients([*self._optimizer.weights, *self._auxiliary.weights])
