"""A policy on Megatron-core's GPTModel, over any layout of ranks that it knows.

Megatron-core has the layers, the process groups, the schedules of micro-batches and the sums of gradients over ranks.
Losses, micro-batches, log-probabilities, AdamW and clipping are those of the `hf` backend. Weights, gradients and
optimizer state leave and enter whole, under Hugging Face names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError, PolicyConfig
from refrl.policy.base import Backend, LossFunction
from refrl.policy.megatron.exchange import take
from refrl.policy.megatron.forward import Scorer, even_passes, score_passes, train_passes
from refrl.policy.megatron.optimizer import MegatronOptimizer
from refrl.policy.megatron.weights import Weights
from refrl.policy.scoring import make_cuts
from refrl.policy.tensors import FROZEN_DIFFER, class_name, digest, forms
from refrl.policy.updates import Accumulated, Parts, UpdatingPolicy, row_numbers


class MegatronPolicy(UpdatingPolicy):
    """A `refrl.policy.base.Policy`; `refrl.policy.megatron.making.make_policy` makes one from a configuration."""

    def __init__(
        self,
        weights: Weights,
        trained: DistributedDataParallel,
        tokenizer: PreTrainedTokenizerBase,
        config: PolicyConfig,
        *,
        scorer: Scorer,
        optimizer: MegatronOptimizer,
        reference: Weights | None,
    ) -> None:
        """Put the parts together.

        Args:
            weights: this rank's share of the model, in its precision, and of its adapters.
            trained: the module that is called, which adds up the gradients.
            tokenizer: exported with the model.
            config: how a batch is cut, and the model's directory.
            scorer: how micro-batches go through the model.
            optimizer: of this rank's share of what is trained.
            reference: a frozen copy of the share, or with adapters `weights` itself; None where no KL is asked for.
        """
        self._weights, local = weights, weights.local
        self._local = local
        self._trained = trained
        self._tokenizer = tokenizer
        self._global_batch_size = config.train_global_batch_size
        self._train_cut, self._logprob_cut = make_cuts(config)
        self._scorer = scorer
        self._optimizer = optimizer
        self._reference = reference
        self._parallel = local.parallel
        self._rows = local.parallel.rows
        self._device = next(iter(local.parameters.values())).device
        self._state: dict[str, Tensor] = {}
        self._frozen: str | None = None

    @property
    def backend(self) -> Backend:
        """What serves it: Megatron-core, over the process groups that are there."""
        return Backend(
            name="megatron",
            model=class_name(self._local.module),
            mesh=self._parallel.sizes(),
            weights=forms(self._optimizer.adamw.weights),
        )

    @property
    def shares_weights(self) -> bool:
        """Whether `named_weights` yields the tensors that are trained: no, they lie otherwise in Megatron-core."""
        return False

    @property
    def version(self) -> int:
        """Optimizer steps that the weights have seen."""
        return self._optimizer.adamw.num_updates_done

    @property
    def in_training_mode(self) -> bool:
        """Whether dropout and the like are on in any part of the model."""
        return any(module.training for module in self._trained.modules())

    @property
    def vocab_size(self) -> int:
        """Number of ids that the model knows."""
        return self._local.architecture.vocab_size

    @property
    def max_positions(self) -> int | None:
        """Longest sequence that the model takes, in tokens; None where it names none."""
        return getattr(self._local.architecture.config, "max_position_embeddings", None)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield a copy of every parameter, merged and gathered, and every buffer, under its Hugging Face name."""
        return self._weights.named_weights()

    def trained_weights(self) -> Mapping[str, Tensor]:
        """Return a copy of every weight that training changes."""
        return dict(self._weights.trained_weights())

    def reference_weights(self) -> Iterator[tuple[str, Tensor]] | None:
        """Return the weights of the frozen reference; None where none is kept."""
        return None if self._reference is None else self._reference.base_weights()

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return whole copies of the weights and of what the optimizer keeps; `load_state_facts` takes them back."""
        self._state = {f"model.{name}": tensor.clone() for name, tensor in self._weights.own_weights()}
        names = [name for name, _ in self._weights.trained_weights()]
        for kind, tensors in self._optimizer.state().items():
            for name, tensor in self._weights.whole(tensors.get, torch.float32):
                self._state[f"optimizer.{name}.{kind}"] = tensor.clone()
        steps = torch.tensor(float(self._optimizer.adamw.num_updates_done), device=self._device)
        self._state |= {f"optimizer.{name}.step": steps.clone() for name in names}
        return self._state

    def state_facts(self) -> Mapping[str, Any]:
        """Return the number of updates, and a digest of the weights that stay as they are."""
        if self._frozen is None:
            frozen = {} if self._weights.adapters is None else dict(self._weights.base_weights())
            frozen |= {f"reference {name}": tensor for name, tensor in self.reference_weights() or ()}
            self._frozen = digest(frozen)
        return {"num_updates_done": self._optimizer.adamw.num_updates_done, "frozen": self._frozen}

    def load_state_facts(self, facts: Mapping[str, Any]) -> None:
        """Take in the tensors that `state_tensors` gave out, and the number of updates.

        Raises:
            ConfigError: frozen weights or the reference are not those that the checkpoint was trained with.
        """
        if facts["frozen"] != self.state_facts()["frozen"]:
            raise ConfigError(FROZEN_DIFFER)
        weights = {
            name.removeprefix("model."): tensor
            for name, tensor in self._state.items()
            if name.startswith("model.")
        }
        trained = self._weights.trained
        take(weights, trained.parameters, trained)
        for kind, targets in self._optimizer.state().items():
            ending = f".{kind}"
            moments = {
                name.removeprefix("optimizer.").removesuffix(ending): tensor
                for name, tensor in self._state.items()
                if name.startswith("optimizer.") and name.endswith(ending)
            }
            take(moments, targets, trained)
        self._optimizer.set_steps(facts["num_updates_done"])
        self._state = {}

    def free_gradients(self) -> None:
        """Clear the gradients; Megatron-core keeps the memory that they are summed in."""
        self._optimizer.adamw.clear_gradients()

    def logprobs(self, batch: Batch) -> Tensor:
        """Return logprobs_BT under the current weights, without gradient, on the batch's device."""
        return self._score(self._trained, batch)

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where none is kept."""
        if self._reference is None:
            return None
        with self._reference.as_loaded():
            return self._score(self._reference.local.module, batch)

    def named_gradients(self) -> dict[str, Tensor]:
        """Return a whole copy of the raw gradient of each trainable weight; zero where there is none."""
        gathered = self._weights.whole(self._optimizer.gradient, torch.float32)
        return {name: gradient.clone() for name, gradient in gathered}

    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients; return (gradient norm before clipping, learning rate).

        Raises:
            refrl.distributed.DivergenceError: weights that ranks hold alike are no longer the same.
        """
        norm, rate = self._optimizer.adamw.step()
        trained = self._weights.trained
        self._parallel.check_agreement(norm, trained.parameters, trained.links)
        return norm, rate

    def save(self, directory: Path) -> None:
        """Export weights, configuration and tokenizer; the first process writes what all of them gather."""
        self._weights.save(self._tokenizer, directory)

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
        update = batch.to(self._device)
        tokens, sequences = update.num_valid_tokens, update.num_valid_seqs
        own = self._own(update)
        cut = (
            self._train_cut.micro_batches(own)
            if micro_batches is None
            else [(list(rows), own.rows(rows)) for rows in micro_batches]
        )

        def share(
            logprobs_BT: Tensor, entropy_BT: Tensor, micro: Batch
        ) -> tuple[Tensor, tuple[dict[str, Any], Tensor]]:
            if scores:
                micro.old_logprobs_BT = logprobs_BT.detach()
            value, metrics = loss(
                logprobs_BT, entropy_BT, micro, global_valid_tokens=tokens, global_valid_seqs=sequences
            )
            return value, (dict(metrics), logprobs_BT.detach())

        if not self._optimizer.has_gradients:
            self._trained.zero_grad_buffer()
        passes = even_passes([micro for _, micro in cut], self._parallel)
        kept = train_passes(self._trained, self._scorer, passes, share)[: len(cut)]
        self._optimizer.take_gradients()
        if scores:
            scored = self._laid_out(batch, [rows for rows, _ in cut], [logprobs for _, logprobs in kept])
            batch.old_logprobs_BT = scored.to(batch.mask_BT.device)
        own_rows = list(range(update.num_rows))[self._rows.share(update.num_rows)]
        return Accumulated(
            self._parts([metrics for metrics, _ in kept]),
            self._rows.gather(row_numbers(cut, own_rows)) if with_rows else [],
        )

    def _parts(self, own: Parts) -> Parts:
        """Return the metrics of all rows, on every rank: those of the last stage, of all who share rows."""
        if self._parallel.alone:
            return own
        plain: Parts = [{name: float(value) for name, value in part.items()} for part in own]
        return self._rows.gather(self._parallel.objects_from_last_stage(plain))

    def _score(self, module: nn.Module, batch: Batch) -> Tensor:
        own = self._own(batch)
        cut = self._logprob_cut.micro_batches(own) if own.num_rows else []
        micro_batches = [micro.to(self._device) for _, micro in cut]
        passes = even_passes(micro_batches, self._parallel) if micro_batches else []
        logprobs = score_passes(module, self._scorer, passes)[: len(cut)] if passes else []
        return self._laid_out(batch, [rows for rows, _ in cut], logprobs).to(batch.input_ids_BS.device)

    def _laid_out(self, batch: Batch, cut: Sequence[slice | list[int]], logprobs: Sequence[Tensor]) -> Tensor:
        """Return the log-probabilities of all rows on every rank, from those of this rank's micro-batches."""
        scored_BT = torch.zeros_like(batch.mask_BT, device=self._device)
        own_BT = scored_BT[self._rows.share(batch.num_rows)]
        for rows, values_BT in zip(cut, logprobs, strict=False):
            num_rows = len(range(len(own_BT))[rows]) if isinstance(rows, slice) else len(rows)
            own_BT[rows, : values_BT.shape[1]] = values_BT[:num_rows]
        return self._rows.sum_rows(self._parallel.from_last_stage(scored_BT))

    def _own(self, batch: Batch) -> Batch:
        """Return the rows that this rank trains on."""
        return batch if self._rows.size == 1 else batch.rows(self._rows.share(batch.num_rows))
