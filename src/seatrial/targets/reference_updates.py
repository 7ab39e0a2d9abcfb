"""refrl's optimizer steps and learning rates, offered to the relations."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.algorithms.grpo import make_loss
from refrl.config import OptimizerConfig, PolicyConfig, SchedulerConfig
from refrl.generation.pool import GenerationPool
from refrl.policy.hf import HFPolicy
from refrl.policy.optimizer import ClippedAdamW
from refrl.tokenization import make_byte_tokenizer
from refrl.weight_sync import WeightSync
from seatrial.relations.records import PoolReply, Row
from seatrial.targets.reference_batches import ReferenceBatches
from seatrial.targets.reference_model import TEMPERATURE, tiny_model

LEARNING_RATE = 1e-3
ALL_ROWS = 10_000


class ReferenceUpdates(ReferenceBatches):
    """`HFPolicy` on a copy of the tiny model, the schedule that its optimizer follows, and its weights' way out."""

    _trained: PreTrainedModel | None = None
    _policies: dict[tuple[float | None, float | None], HFPolicy]

    def parameters(self) -> Mapping[str, Tensor]:
        """See `contracts.OptimizerStep`."""
        return _tensors(self._model())

    def trainable(self) -> frozenset[str]:
        """See `contracts.OptimizerStep`: everything but buffers."""
        return frozenset(name for name, _ in self._model().named_parameters())

    def update(
        self, rows: Sequence[Row], *, lr: float | None = None, max_grad_norm: float | None = None
    ) -> float:
        """See `contracts.OptimizerStep`; two rows a micro-batch. Other settings get an optimizer of their own."""
        model = self._model()
        if (lr, max_grad_norm) not in self._policies:
            self._policies[lr, max_grad_norm] = HFPolicy(
                model,
                _tokenizer(),
                _policy_config(LEARNING_RATE if lr is None else lr, max_grad_norm or 1.0),
                device=torch.device("cpu"),
                num_updates=100,
                temperature=TEMPERATURE,
                with_reference=False,
            )
        batch = self._batch(rows, padding_side="right")
        return self._policies[lr, max_grad_norm].train(batch, make_loss(self.cell.loss))["grad_norm"]

    def reset(self) -> None:
        """See `contracts.OptimizerStep`."""
        self._trained = copy.deepcopy(tiny_model())
        self._trained.zero_grad(set_to_none=True)
        self._policies = {}

    def learning_rates(
        self, *, lr: float, warmup_steps: int, num_steps: int, schedule: str
    ) -> Sequence[float]:
        """See `contracts.LearningRate`: the rates that the optimizer says it used."""
        weights = torch.nn.Linear(2, 2)
        config = _policy_config(lr, 1.0).model_copy(
            update={"scheduler": SchedulerConfig(name=schedule, warmup_steps=warmup_steps)}  # type: ignore[arg-type]
        )
        optimizer = ClippedAdamW(weights, config, num_steps)
        rates = []
        for _ in range(num_steps):
            weights(torch.ones(2)).sum().backward()
            rates.append(optimizer.step()[1])
        return rates

    def start_sync(self) -> None:
        """See `contracts.WeightSync`."""
        self._source = copy.deepcopy(tiny_model())
        self._sync = WeightSync(self._source)
        self._version = 0

    def advance(self, version: int, *, with_buffers: bool) -> None:
        """See `contracts.WeightSync`."""
        moving = [*self._source.parameters(), *(self._source.buffers() if with_buffers else ())]
        with torch.no_grad():
            for tensor in moving:
                tensor.mul_(1.25).add_(0.125)
        self._version = version

    def sync(self) -> None:
        """See `contracts.WeightSync`."""
        self._sync.sync(self._version)

    def trainer_tensors(self) -> Mapping[str, Tensor]:
        """See `contracts.WeightSync`."""
        return _tensors(self._source)

    def sampler_tensors(self) -> Mapping[str, Tensor]:
        """See `contracts.WeightSync`."""
        return _tensors(self._sync.replica)

    def sampler_version(self) -> int:
        """See `contracts.WeightSync`."""
        return self._sync.version

    def open_pool(
        self, engines: Sequence[Callable[[int], Awaitable[PoolReply]]], *, capacity: int
    ) -> GenerationPool[int, PoolReply]:
        """See `contracts.GenerationPool`."""
        return GenerationPool(engines, capacity=capacity)

    def _model(self) -> PreTrainedModel:
        if self._trained is None:
            self.reset()
        assert self._trained is not None
        return self._trained


def _tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: value.detach().clone() for name, value in named}


def _policy_config(lr: float, max_grad_norm: float) -> PolicyConfig:
    return PolicyConfig(
        model_name="tiny_model",
        train_global_batch_size=ALL_ROWS,
        train_micro_batch_size=2,
        max_total_sequence_length=256,
        max_grad_norm=max_grad_norm,
        optimizer=OptimizerConfig(lr=lr, weight_decay=0.01),
    )


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    """The policy exports it; nothing else is done with it."""
    return make_byte_tokenizer()
