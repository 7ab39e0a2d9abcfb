"""What verl logs of the gap between the engine that samples and the policy that trains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import LossInputs
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.corrections import HELPER


def whole_batch(ranks: Sequence[Sequence[MetricPart]]) -> LossInputs:
    """Return the only part of the only rank.

    Raises:
        NotServed: there are several.
    """
    if len(ranks) != 1 or len(ranks[0]) != 1:
        raise NotServed("the batch of a step is in one process, and whole")
    return ranks[0][0].inputs


class VerlOffPolicyMetrics:
    """`compute_offpolicy_metrics`: the sampler's log-probabilities are given as the policy's, the trainer's as the
    reference's."""

    facts = StackFacts(masked_rows=False, epsilon=1e-8)
    metric_specs: Mapping[str, MetricSpec] = {
        "kl": MetricSpec(quantity="ref_k1"),
        "k3_kl": MetricSpec(quantity="ref_k3"),
        "log_ppl_diff": MetricSpec(quantity="ref_k1", over="row_means"),
        "log_ppl_diff_max": MetricSpec(quantity="ref_k1", over="row_means", how="max"),
        "log_ppl_diff_min": MetricSpec(quantity="ref_k1", over="row_means", how="min"),
    }

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name("verl", [f"{HELPER}:compute_offpolicy_metrics"])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        inputs = whole_batch(ranks)
        found = self.compute(
            old_log_prob=inputs.ref_logprobs_BT,
            rollout_log_prob=inputs.logprobs_BT.detach(),
            response_mask=inputs.mask_BT,
        )
        return {name: float(value) for name, value in found.items()}


class VerlProbabilityDifferences:
    """`calculate_debug_metrics`: differences of probabilities of the sampler and of the trainer."""

    facts = StackFacts(masked_rows=False)
    metric_specs: Mapping[str, MetricSpec] = {
        "training/rollout_probs_diff_mean": MetricSpec(quantity="probability_difference"),
        "training/rollout_probs_diff_max": MetricSpec(quantity="probability_difference", how="max"),
    }

    def __init__(self) -> None:
        """Find the function and the batch that it takes."""
        self.compute = find_name("verl", ["verl.utils.debug.metrics:calculate_debug_metrics"])
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        inputs = whole_batch(ranks)
        tensors: dict[str, Tensor] = {
            "rollout_log_probs": inputs.sampling_logprobs_BT,
            "old_log_probs": inputs.old_logprobs_BT,
            "response_mask": inputs.mask_BT.long(),
            "responses": torch.ones_like(inputs.mask_BT, dtype=torch.long),
        }
        found = self.compute(self.batch_class.from_dict(tensors=tensors))
        return {name: float(value) for name, value in found.items()}


ADAPTERS: dict[str, type[Any]] = {
    "off-policy-metrics": VerlOffPolicyMetrics,
    "probability-differences": VerlProbabilityDifferences,
}
