"""verl's step of a critic as its engines compute it, of releases whose engines have a value loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.values import ValueInputs, ValueSpec
from seatrial.relations.facts import StackFacts
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.algorithms import SLOPE

OWN_MEAN = KnownFailure(
    "the engines add up means of micro-batches, without the counts of the mini-batch",
    finding="verl: value losses of micro-batches in the engines",
    releases=before("verl", "0.9"),
)


class VerlEngineValueLoss(KnowsFailures):
    """`value_loss` of the engines, which add up the losses of micro-batches as they are."""

    facts = StackFacts(epsilon=1e-8)
    value_spec = ValueSpec(clip=0.2)
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        SLOPE.of("R3.value/content of masked positions"),
        OWN_MEAN.of("R1.value"),
    )

    def __init__(self) -> None:
        """Find the loss and its configuration."""
        self.compute = find_name("verl", ["verl.workers.utils.losses:value_loss"])
        self.config_class = find_name("verl", ["verl.workers.config:CriticConfig"])

    def value_loss(self, inputs: ValueInputs) -> Tensor:
        loss: Tensor = self.compute(self._config(), {"values": self._outputs(inputs)}, self._data(inputs))[0]
        return loss

    def _config(self) -> Any:
        return self.config_class(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            cliprange_value=self.value_spec.clip,
            loss_agg_mode="token-mean",
        )

    def _outputs(self, inputs: ValueInputs) -> Tensor:
        """Return the values of all rows in turn; a prompt is one token, and each value is that of the next one."""
        last_B1 = torch.zeros_like(inputs.values_BT[:, :1])
        return torch.cat([inputs.values_BT, last_B1], dim=1).flatten()

    def _data(self, inputs: ValueInputs) -> Any:
        from tensordict import TensorDict
        from verl.utils import tensordict_utils

        B, T = inputs.mask_BT.shape
        data = TensorDict(
            {
                "prompts": torch.ones(B, 1, dtype=torch.long),
                "responses": torch.ones(B, T, dtype=torch.long),
                "attention_mask": torch.ones(B, 1 + T, dtype=torch.long),
                "response_mask": inputs.mask_BT.long(),
                "values": inputs.old_values_BT,
                "returns": inputs.returns_BT,
            },
            batch_size=[B],
        )
        tensordict_utils.assign_non_tensor(
            data, dp_size=1, batch_num_tokens=inputs.global_valid_tokens, global_batch_size=B
        )
        return data


ADAPTERS: dict[str, type[Any]] = {"value-loss-of-engine": VerlEngineValueLoss}
