"""A Hugging Face causal language model whose weights, layers, sequences and experts are spread over processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.distributed import World
from refrl.policy.auxiliary import Auxiliary
from refrl.policy.base import Backend
from refrl.policy.dtensor.replicas import check_replicas
from refrl.policy.dtensor.spread_model import SpreadModel
from refrl.policy.module_policy import ModulePolicy, Pass
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import Scoring
from refrl.policy.tensors import class_name, forms, whole


class DTensorPolicy(ModulePolicy):
    """A `refrl.policy.base.Policy`; `refrl.training.build.build_policy` makes one from a configuration."""

    shares_weights = False

    def __init__(
        self,
        spread: SpreadModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        scoring: Scoring,
        optimizer: ClippedAdamW,
        reference: SpreadModel | None,
        global_batch_size: int,
        world: World,
        auxiliary: Auxiliary,
    ) -> None:
        """Put the parts together.

        Args:
            spread: the model that is trained; it stays in evaluation mode.
            tokenizer: exported with the model.
            scoring: how rows are cut into micro-batches and scored.
            optimizer: of the model's own parts of the weights.
            reference: a frozen copy, spread alike, or with adapters `spread` itself; None where no KL is asked for.
            global_batch_size: rows of an optimizer step.
            world: all processes of the run.
            auxiliary: what is trained or measured in addition to the policy loss.
        """
        super().__init__(
            spread.model,
            scoring=scoring,
            optimizer=optimizer,
            auxiliary=auxiliary,
            global_batch_size=global_batch_size,
            data=spread.meshes.data,
        )
        self._spread = spread
        self._tokenizer = tokenizer
        self._reference = reference
        self._world = world

    @property
    def backend(self) -> Backend:
        """What serves it."""
        return Backend(
            name="dtensor",
            model=class_name(self.model),
            mesh=self._spread.meshes.sizes(),
            weights=forms(self._optimizer.weights),
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Gather and yield every parameter and buffer under its Hugging Face name, merged, in `policy.precision`."""
        return self._spread.named_weights()

    def trained_weights(self) -> Mapping[str, Tensor]:
        """Gather and return every weight that training changes, float32."""
        return {name: whole(weight.detach()) for name, weight in self._trained()}

    def reference_weights(self) -> Iterator[tuple[str, Tensor]] | None:
        """Gather and yield the weights of the frozen reference; None where none is kept."""
        return None if self._reference is None else self._reference.base_weights()

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where none is kept."""
        if self._reference is None:
            return None
        with self._reference.as_loaded():
            return self._score(self._reference.model, batch)

    def named_gradients(self) -> dict[str, Tensor]:
        """Gather and return the raw gradient of each trainable weight; zero where there is none."""
        return {
            name: torch.zeros_like(whole(weight.detach()))
            if weight.grad is None
            else whole(weight.grad).clone()
            for name, weight in self._trained()
        }

    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients; return (gradient norm before clipping, learning rate).

        Raises:
            refrl.distributed.DivergenceError: weights that processes hold alike are no longer the same.
        """
        norm, rate = self._optimizer.step()
        self._auxiliary.step()
        if self._auxiliary.weights:
            self._world.check_agreement(norm, self._auxiliary.weights)
        check_replicas(norm, dict(self._trained()), self._spread.meshes, self._world)
        return norm, rate

    def save(self, directory: Path) -> None:
        """Export weights, configuration and tokenizer, and adapters in PEFT's format; the first process writes them."""
        self._spread.save(self._tokenizer, directory, self._auxiliary.write, writes=self._world.rank == 0)

    def _sum_gradients(self) -> None:
        """Sum the gradients of shared experts over the processes that have the same ones, and auxiliary gradients."""
        copies = self._spread.meshes.expert_copies
        for weight in self._spread.experts:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if copies.size() > 1:
                assert isinstance(weight.grad, DTensor)
                dist.all_reduce(weight.grad.to_local(), group=copies.get_group())
        self._data.sum_gradients(self._auxiliary.weights)

    def _even(self, passes: Sequence[Pass], batch: Batch) -> Sequence[Pass]:
        """Add passes of a masked row where other processes have more: the model exchanges weights in each."""
        most = max(self._data.gather([len(passes)]))
        masked = batch.rows(slice(0, 1))
        masked.mask_BT = torch.zeros_like(masked.mask_BT)
        return [*passes, *[(None, masked)] * (most - len(passes))]

    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._spread.own_weights()

    def _frozen_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(()) if self._spread.adapters is None else self._spread.base_weights()

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad)
