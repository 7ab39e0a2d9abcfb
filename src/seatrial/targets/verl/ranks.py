"""verl's step of a policy on the rows of every rank, of releases that divide by counts of the whole batch."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.registries import CORE

CLIP = (0.2, 0.28)
LOWER, CAP = "actor/pg_clipfrac_lower", 1.125
"""Metric of capped tokens, and a cap that some have."""
EMPTY_ROWS = KnownFailure(
    "the engines divide by all rows of the batch, those without a training token included",
    finding="verl: rows without a training token in the divisor",
)
MEANS_OF_MEANS = KnownFailure(
    "each micro-batch's mean counts alike, however many tokens it has", finding="verl: logged means of means"
)


class VerlRankedLoss(KnowsFailures):
    """`compute_policy_loss_vanilla` with the mean over tokens; see `contracts.RankedLoss`.

    It is given the counts that `ppo_loss` of the engines gives it: ranks, training tokens of the whole batch, and rows
    of the whole batch, those without a training token included. FSDP averages gradients over ranks.
    """

    facts = StackFacts(epsilon=1e-8)
    loss_spec = LossSpec(ratio_clip_min=CLIP[0], ratio_clip_max=CLIP[1], ratio_clip_c=3.0)
    ranks_reduce: Literal["mean", "sum"] = "mean"
    mode = "token-mean"

    def __init__(self) -> None:
        """Find the loss and its configuration."""
        self.compute = find_name("verl", [f"{CORE}:compute_policy_loss_vanilla"])
        self.config_class = find_name("verl", ["verl.workers.config:ActorConfig"])
        if "global_batch_info" not in {item.name for item in dataclasses.fields(self.config_class)}:
            raise Gone(
                f"verl {release('verl')} has no ActorConfig.global_batch_info: counts of the whole batch"
            )

    def ranked_losses(self, ranks: Sequence[Sequence[LossInputs]]) -> list[list[Tensor]]:
        return [[loss for loss, _ in rank] for rank in self.steps(ranks)]

    def steps(self, ranks: Sequence[Sequence[LossInputs]]) -> list[list[tuple[Tensor, dict[str, float]]]]:
        """Return loss and metrics of each micro-batch of each rank."""
        num_rows = sum(len(part.mask_BT) for rank in ranks for part in rank)
        return [[self._step(part, len(ranks), num_rows) for part in rank] for rank in ranks]

    def _step(self, part: LossInputs, num_ranks: int, num_rows: int) -> tuple[Tensor, dict[str, float]]:
        config = self.config_class(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=self.loss_spec.ratio_clip_min,
            clip_ratio_high=self.loss_spec.ratio_clip_max,
            clip_ratio_c=self.loss_spec.ratio_clip_c,
            loss_agg_mode=self.mode,
            global_batch_info={
                "dp_size": num_ranks,
                "batch_num_tokens": part.global_valid_tokens,
                "global_batch_size": num_rows,
                "loss_scale_factor": None,
            },
        )
        loss, metrics = self.compute(
            old_log_prob=part.old_logprobs_BT,
            log_prob=part.logprobs_BT,
            advantages=part.advantages_B[:, None].expand(-1, part.mask_BT.shape[1]),
            response_mask=part.mask_BT.bool(),
            loss_agg_mode=self.mode,
            config=config,
        )
        return loss, metrics


class VerlRankedSequenceLoss(VerlRankedLoss):
    """The same with the mean over rows of the mean over a row's tokens."""

    loss_spec = LossSpec(
        ratio_clip_min=CLIP[0], ratio_clip_max=CLIP[1], ratio_clip_c=3.0, reduction="sequence"
    )
    mode = "seq-mean-token-mean"
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        EMPTY_ROWS.of("R2.ranked_loss/a rank without a training token"),
    )


class _CappedLoss(VerlRankedLoss):
    """The same with a cap that some tokens have."""

    loss_spec = LossSpec(ratio_clip_min=CLIP[0], ratio_clip_max=CLIP[1], ratio_clip_c=CAP)


class VerlMetrics(KnowsFailures):
    """What verl logs of an actor's step, put together over micro-batches and ranks as its workers do."""

    facts = StackFacts(epsilon=1e-8)
    metric_specs: Mapping[str, MetricSpec] = {
        "actor/ppo_kl": MetricSpec(quantity="old_minus_current"),
        "actor/pg_clipfrac": MetricSpec(quantity="clipped", clip=CLIP),
        LOWER: MetricSpec(quantity="capped", cap=CAP),
    }
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        MEANS_OF_MEANS.of(
            "R22.named/means and sums, micro-batches of unequal numbers of tokens",
            "R22.named/means and sums, micro-batches of unequal numbers of rows",
            "R22.named/means and sums, ranks of unequal numbers of tokens",
        ),
    )

    def __init__(self) -> None:
        """Find the loss, and what puts metrics together."""
        self.loss = _CappedLoss()
        self.together = metrics_together()

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        """Average the metrics of micro-batches, then those of ranks: `ppo_loss` says MEAN of each."""
        given = self.loss.steps([[part.inputs for part in rank] for rank in ranks])
        return {
            name: self.together([[step[name] for _, step in rank] for rank in given], "mean")
            for name in self.metric_specs
        }


def metrics_together() -> Callable[[Sequence[Sequence[Any]], str], float]:
    """Return what puts a metric of micro-batches by rank together; numbers, as before 0.7.1, are averaged."""
    reduce = find_name("verl", ["verl.utils.metric:reduce_metrics"])
    metric_class = getattr(importlib.import_module("verl.utils.metric"), "Metric", None)

    def together(values: Sequence[Sequence[Any]], how: str) -> float:
        if metric_class is None:
            return float(reduce({"value": [float(one) for own in values for one in own]})["value"])
        metrics = [
            own[0].init_list() if hasattr(own[0], "init_list") else metric_class(how) for own in values
        ]
        for metric, own in zip(metrics, values, strict=True):
            for one in own:
                metric.append(one)
        if not hasattr(metric_class, "aggregate_dp"):
            return float(metric_class.chain(metrics).aggregate())
        return float(metric_class.aggregate_dp(metrics))

    return together


ADAPTERS: dict[str, type[Any]] = {
    "ranked-loss": VerlRankedLoss,
    "ranked-loss-of-rows": VerlRankedSequenceLoss,
    "metrics": VerlMetrics,
}
