"""verl's step of a critic as its engines compute it, of releases whose engines have a value loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor

from seatrial.relations.contracts.values import ValueInputs, ValueSpec
from seatrial.relations.facts import StackFacts
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.algorithms import SLOPE
from seatrial.targets.verl.steps import batch_of_rows, of_rows

OWN_MEAN = KnownFailure(
    "the engines add up means of micro-batches, without the counts of the mini-batch",
    finding="verl: value losses of micro-batches in the engines",
    releases=before("verl", "0.9"),
)


class VerlEngineValueLoss(KnowsFailures):
    """`value_loss` of the engines, which add up the losses of micro-batches as they are."""

    facts = StackFacts(epsilon=1e-8)
    value_spec = ValueSpec(clip=0.2)
    mode: ClassVar[str] = "token-mean"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        SLOPE.of("R3.value/content of masked positions"),
        OWN_MEAN.of("R1.value"),
    )

    def __init__(self) -> None:
        """Find the loss and its configuration."""
        self.compute = find_name("verl", ["verl.workers.utils.losses:value_loss"])
        self.config_class = find_name("verl", ["verl.workers.config:CriticConfig"])

    def value_loss(self, inputs: ValueInputs) -> Tensor:
        loss: Tensor = self.compute(
            self._config(), {"values": of_rows(inputs.values_BT)}, self._data(inputs)
        )[0]
        return loss

    def _config(self) -> Any:
        # Releases that have it read the files of a default model in its place.
        has_model = any(item.name == "model_config" for item in dataclasses.fields(self.config_class))
        return self.config_class(
            **({"model_config": SimpleNamespace()} if has_model else {}),
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            cliprange_value=self.value_spec.clip,
            loss_agg_mode=self.mode,
        )

    def _data(self, inputs: ValueInputs) -> Any:
        return batch_of_rows(
            inputs.mask_BT,
            {"values": inputs.old_values_BT, "returns": inputs.returns_BT},
            dp_size=1,
            batch_num_tokens=inputs.global_valid_tokens,
            global_batch_size=int(inputs.global_valid_seqs),
        )


class VerlEngineValueLossOfRows(VerlEngineValueLoss):
    """The same with the mean over rows of the mean over a row's tokens."""

    value_spec = ValueSpec(clip=0.2, reduction="sequence")
    mode = "seq-mean-token-mean"


ADAPTERS: dict[str, type[Any]] = {
    "value-loss-of-engine": VerlEngineValueLoss,
    "value-loss-of-engine-of-rows": VerlEngineValueLossOfRows,
}
