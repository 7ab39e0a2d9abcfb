"""NeMo RL's advantages and KL estimators, from whichever checkout is on the path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.facts import StackFacts
from seatrial.relations.records import AdvantageSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.nemo_rl.parts import part

CANCELLED = KnownFailure(
    "the deviation is a difference of squares in float32: rewards that differ little relative to their size lose it",
    finding="NeMo RL: a deviation as a difference of squares",
)
OTHER_ROWS = KnownFailure(
    "the deviation is that of the other rows, so that each row has another scale: one that differs from nearly "
    "equal rows is divided by almost nothing, and by nothing at all where they are equal or there is one",
    finding="NeMo RL: the deviation of the other rows",
)


class GRPOAdvantages(KnowsFailures):
    """`GRPOAdvantageEstimator` with the mean of the whole group as its baseline; it computes in float32."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        CANCELLED.of("R17.advantages/a constant added to a group changes nothing"),
        CANCELLED.of("R17.advantages/scaling rewards scales advantages as configured"),
    )
    facts = StackFacts(dtype="float32")
    advantage_spec = AdvantageSpec(epsilon=1e-6)
    leaves_one_out = False
    normalizes = True

    def __init__(self) -> None:
        """Find the estimator."""
        estimators = part("algorithms.advantage_estimator")
        configured: Any = estimators.AdvEstimatorConfig(
            normalize_rewards=self.normalizes, use_leave_one_out_baseline=self.leaves_one_out
        )
        self.compute = estimators.GRPOAdvantageEstimator(configured, None)

    def advantages(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        """Give one token a row."""
        given: Tensor = self.compute.compute_advantage(
            prompt_ids_B[:, None], rewards_B.float(), torch.ones(len(rewards_B), 1)
        )
        return given[:, 0]


class LeaveOneOutAdvantages(GRPOAdvantages):
    """`GRPOAdvantageEstimator` at its defaults: baseline and deviation of a row are those of the other rows."""

    leaves_one_out = True
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        OTHER_ROWS.of("R12.advantages"),
        OTHER_ROWS.of("R17.advantages"),
    )


class RLOOAdvantages(GRPOAdvantages):
    """The mean of the other rows as the baseline, without a scale."""

    known_failures: ClassVar[Sequence[KnownFailure]] = ()
    advantage_spec = AdvantageSpec(estimator="rloo", scale="none")
    leaves_one_out = True
    normalizes = False


class KL:
    """`calculate_kl` without its clamps."""

    def __init__(self) -> None:
        """Find the estimators."""
        self.compute = part("algorithms.utils").calculate_kl

    def kl_estimate(self, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: str) -> Tensor:
        estimate: Tensor = self.compute(
            logprobs_BT, ref_logprobs_BT, kind, input_clamp_value=None, output_clamp_value=None
        )
        return estimate
