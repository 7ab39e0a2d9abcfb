"""A Hugging Face causal language model whose weights, layers, sequences and experts are spread over processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.distributed import World
from refrl.policy.auxiliary import Auxiliary
from refrl.policy.base import Backend, LossFunction
from refrl.policy.cuts import row_numbers
from refrl.policy.dtensor.replicas import check_replicas
from refrl.policy.dtensor.spread_model import SpreadModel
from refrl.policy.module_policy import ModulePolicy
from refrl.policy.optimizer import ClippedAdamW
from refrl.policy.scoring import Cut, Scoring
from refrl.policy.tensors import class_name, forms, whole
from refrl.policy.updates import Accumulated, Parts


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
        )
        self._spread = spread
        self._data = spread.meshes.data
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
        update = batch.to(self.model.device)
        parts: Parts = []
        scored_BT = torch.zeros_like(update.mask_BT)
        share = self._data.share(update.num_rows)
        if micro_batches is None:
            passes = self._passes(self._scoring.train_cut, update)
        else:
            own = update.rows(share)
            passes = self._even([(list(rows), own.rows(rows)) for rows in micro_batches], update)
        real = [(rows, micro) for rows, micro in passes if rows is not None]
        own_rows = list(range(update.num_rows))[share]
        rows_of_all = self._data.gather(row_numbers(real, own_rows)) if with_rows else []
        for rows, micro in passes:
            logprobs_BT, metrics = self._learn(micro, update, loss, scores=scores)
            if rows is not None:
                scored_BT[share][rows, : logprobs_BT.shape[1]] = logprobs_BT
                parts.append({name: float(value) for name, value in metrics.items()})
        if scores:
            batch.old_logprobs_BT = self._data.sum_rows(scored_BT).to(batch.mask_BT.device)
        self._sum_experts()
        self._data.sum_gradients(self._auxiliary.weights)
        return Accumulated(self._data.gather(parts), rows_of_all)

    def _sum_experts(self) -> None:
        """Sum the gradients of shared experts over the processes that have the same ones."""
        copies = self._spread.meshes.expert_copies
        for weight in self._spread.experts:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if copies.size() > 1:
                assert isinstance(weight.grad, DTensor)
                dist.all_reduce(weight.grad.to_local(), group=copies.get_group())

    def _passes(self, cut: Cut, batch: Batch) -> list[tuple[slice | list[int] | None, Batch]]:
        """Return (own rows, micro-batch) of each pass through the model."""
        share = self._data.share(batch.num_rows)
        return self._even(cut.micro_batches(batch.rows(share)) if share.start < share.stop else [], batch)

    def _even(
        self, passes: Sequence[tuple[slice | list[int], Batch]], batch: Batch
    ) -> list[tuple[slice | list[int] | None, Batch]]:
        """Add passes of a masked row where other processes have more: the model exchanges weights in each."""
        most = max(self._data.gather([len(passes)]))
        masked = batch.rows(slice(0, 1))
        masked.mask_BT = torch.zeros_like(masked.mask_BT)
        return [*passes, *[(None, masked)] * (most - len(passes))]

    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._spread.own_weights()

    def _frozen_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(()) if self._spread.adapters is None else self._spread.base_weights()

    @torch.no_grad()
    def _score(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        scored_BT = torch.zeros_like(batch.mask_BT, device=model.device)
        own_BT = scored_BT[self._data.share(batch.num_rows)]
        for rows, micro in self._passes(self._scoring.logprob_cut, batch):
            logprobs_BT = self._scoring.forward(model, micro.to(model.device))[0]
            if rows is not None:
                own_BT[rows, : logprobs_BT.shape[1]] = logprobs_BT
        return self._data.sum_rows(scored_BT).to(batch.input_ids_BS.device)

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad)
