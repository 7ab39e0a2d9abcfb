"""refrl's components under one configuration, offered to the relations: the parts that a run is built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from refrl.algorithms.advantages import specification as advantage_specification
from refrl.algorithms.batching import Batch, make_batch
from refrl.algorithms.losses.base import specification as loss_specification
from refrl.algorithms.metrics import merge_metrics
from refrl.algorithms.packing import assign_packs
from refrl.models.byte_tokenizer import VOCAB_SIZE
from refrl.policy.base import Policy
from refrl.training import build
from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.contracts.packs import Segment
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import (
    AdvantageSpec,
    BuiltBatch,
    LossInputs,
    LossSpec,
    Row,
    StepResult,
)
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.conversions import (
    batch_of,
    built_of,
    padded,
    sample_of,
)
from seatrial.targets.reference.data_plane.flow import ReferenceFlow
from seatrial.targets.reference.data_plane.local import ReferenceDataPlane
from seatrial.targets.reference.engines.engine import ReferenceEngines
from seatrial.targets.reference.engines.episodes import ReferenceEpisodes
from seatrial.targets.reference.engines.links import ReferenceLinks
from seatrial.targets.reference.engines.syncs import ReferenceSyncs
from seatrial.targets.reference.layouts.training import ReferenceLayouts
from seatrial.targets.reference.parts.definitions import ReferenceDefinitions
from seatrial.targets.reference.parts.formulas import ReferenceFormulas
from seatrial.targets.reference.parts.named import ReferenceParts
from seatrial.targets.reference.parts.objectives import ReferenceObjectives
from seatrial.targets.reference.parts.refusals import ReferenceRefusals
from seatrial.targets.reference.parts.texts import ReferenceTexts
from seatrial.targets.reference.runs.artifacts import ReferenceLeftovers
from seatrial.targets.reference.runs.checkpoints import ReferenceSaving
from seatrial.targets.reference.runs.commands import ReferenceCommands
from seatrial.targets.reference.runs.placements import ReferencePlacements
from seatrial.targets.reference.runs.resume import ReferenceResumedTraining, ReferenceResumes
from seatrial.targets.reference.runs.short import ReferenceRuns
from seatrial.targets.reference.runs.tuning import ReferenceTuning
from seatrial.targets.reference.worked.examples import ReferenceExamples

PAD_ID = 0
PACKED = {"policy.sequence_packing.enabled": True, "policy.sequence_length_buckets": []}
OF_EVERY_LOSS = {
    "token_mult_prob_error": MetricSpec(quantity="sampler_mult"),
    "gen_kl_error": MetricSpec(quantity="sampler_k3"),
    "policy_kl_error": MetricSpec(quantity="trainer_k3"),
    "approx_entropy": MetricSpec(quantity="weighted_surprise"),
    "num_valid_samples": MetricSpec(quantity="one", how="sum", over="rows"),
    "global_valid_toks": MetricSpec(quantity="one", how="sum"),
}


class ReferenceComponents(
    ReferenceCommands,
    ReferenceDataPlane,
    ReferenceDefinitions,
    ReferenceEngines,
    ReferenceEpisodes,
    ReferenceExamples,
    ReferenceFlow,
    ReferenceFormulas,
    ReferenceLayouts,
    ReferenceLeftovers,
    ReferenceLinks,
    ReferenceObjectives,
    ReferenceParts,
    ReferencePlacements,
    ReferenceRefusals,
    ReferenceResumedTraining,
    ReferenceResumes,
    ReferenceRuns,
    ReferenceSaving,
    ReferenceSyncs,
    ReferenceTuning,
    ReferenceTexts,
):
    """An adapter in the sense of `seatrial.relations.contracts`."""

    facts = StackFacts(decays="matrices", padding_side="right")
    packs_left_padded = True
    rows_beyond_the_width = "refused"
    ranks_reduce = "sum"

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        """Choose a cell of the configuration.

        Raises:
            seatrial.relations.NotServed: the schema refuses it.
        """
        self.options = dict(options or {})
        self.config = configuration(self.options)
        claimed = loss_specification(self.config.loss_fn)
        if claimed is not None:
            self.loss_spec = LossSpec(**claimed)  # type: ignore[arg-type]
            self.metric_specs = metric_specs(self.loss_spec)
        claimed = advantage_specification(self.config.grpo.advantage)
        if claimed is not None:
            self.advantage_spec = AdvantageSpec(**claimed)  # type: ignore[arg-type]
        if self.config.cluster.num_threads is not None:
            torch.set_num_threads(self.config.cluster.num_threads)
        self.vocab_size = VOCAB_SIZE
        self.reset()

    def advantages(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        return build.build_advantages(self.config.grpo.advantage)(rewards_B, prompt_ids_B)

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        return self._loss_and_metrics(inputs)[0]

    def ranked_losses(self, ranks: Sequence[Sequence[LossInputs]]) -> Sequence[Sequence[Tensor]]:
        return [[self.policy_loss(part) for part in rank] for rank in ranks]

    def metrics(self, inputs: Sequence[LossInputs]) -> Mapping[str, float]:
        return merge_metrics([self._loss_and_metrics(part)[1] for part in inputs])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> Mapping[str, float]:
        return self.metrics([part.inputs for rank in ranks for part in rank])

    def make_batch(self, rows: Sequence[Row]) -> BuiltBatch:
        return built_of(self._batch(rows))

    def make_clamped_batch(
        self, rows: Sequence[Row], max_sequence_length: int | None, sequence_buckets: Sequence[int]
    ) -> BuiltBatch:
        limits: Any = {"max_sequence_length": max_sequence_length, "sequence_buckets": sequence_buckets}
        return built_of(make_batch([sample_of(row) for row in rows], pad_token_id=PAD_ID, **limits))

    def plan_packs(self, lengths: Sequence[int], width: int) -> Sequence[Sequence[Segment]]:
        return [[Segment(row, 0, lengths[row]) for row in rows] for rows in assign_packs(lengths, width)]

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        return self._gradients(self.fixed, rows, micro_batches)

    def gradients_packed(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        return self._gradients(self.fixed_with(PACKED), rows, micro_batches)

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        return self._score(self.fixed_with({"policy.generation.temperature": temperature}), rows)

    def score_packed(
        self, rows: Sequence[Row], temperature: float, *, padding_side: Literal["right", "left"] = "right"
    ) -> list[tuple[float, ...]]:
        # Several packs of rows padded on the left: other columns of each are padding alone.
        lengths = {"policy.max_total_sequence_length": 24, "policy.sequence_packing.logprob_mb_tokens": 24}
        few = lengths if padding_side == "left" else {}
        packed = self.fixed_with({"policy.generation.temperature": temperature, **PACKED, **few})
        return self._score(packed, rows, padding_side)

    def reset(self) -> None:
        self._trained: dict[tuple[float | None, float | None], Policy] = {}

    def parameters(self) -> Mapping[str, Tensor]:
        policies = list(self._trained.values()) or [self.fixed]
        return {name: value.detach().clone() for name, value in policies[-1].named_weights()}

    def update(
        self, rows: Sequence[Row], *, lr: float | None = None, max_grad_norm: float | None = None
    ) -> float:
        chosen = {"policy.optimizer.lr": lr, "policy.max_grad_norm": max_grad_norm}
        given = {name: value for name, value in chosen.items() if value is not None}
        if (lr, max_grad_norm) not in self._trained:
            self._trained[lr, max_grad_norm] = self.build_policy(given)
        policy = self._trained[lr, max_grad_norm]
        return policy.train(self._batch(rows), build.build_loss(self.config.loss_fn))["grad_norm"]

    def learning_rates(
        self, *, lr: float, warmup_steps: int, num_steps: int, schedule: str
    ) -> Sequence[float]:
        config = configuration(
            {
                **self.options,
                "policy.optimizer.lr": lr,
                "policy.scheduler.name": schedule,
                "policy.scheduler.warmup_steps": warmup_steps,
            }
        )
        optimizer = build.build_optimizer(torch.nn.Linear(2, 2), config.policy, num_updates=num_steps)
        return [optimizer.step()[1] for _ in range(num_steps)]

    def _gradients(
        self, policy: Policy, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        policy.free_gradients()
        metrics = policy.gradients(self._batch(rows), build.build_loss(self.config.loss_fn), micro_batches)
        return StepResult(loss=metrics["loss"], gradients=policy.named_gradients(), metrics=metrics)

    def _score(
        self, policy: Policy, rows: Sequence[Row], padding_side: Literal["right", "left"] = "right"
    ) -> list[tuple[float, ...]]:
        visible = [replace(row, completion_mask=(1,) * len(row.completion_ids)) for row in rows]
        batch = (
            self._batch(visible)
            if padding_side == "right"
            else make_batch(
                [sample_of(row) for row in visible], pad_token_id=PAD_ID, padding_side=padding_side
            )
        )
        scored = policy.logprobs(batch).tolist()
        return [tuple(values[: len(row.completion_ids)]) for values, row in zip(scored, rows, strict=True)]

    def _batch(self, rows: Sequence[Row]) -> Batch:
        batch = build.build_batch([sample_of(row) for row in rows], self.config.policy, pad_token_id=PAD_ID)
        batch.old_logprobs_BT = padded([row.old_logprobs for row in rows])
        batch.ref_logprobs_BT = padded([row.ref_logprobs for row in rows])
        return batch

    def _loss_and_metrics(self, inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
        return build.build_loss(self.config.loss_fn)(
            inputs.logprobs_BT,
            inputs.entropy_BT,
            batch_of(inputs),
            global_valid_tokens=inputs.global_valid_tokens,  # type: ignore[arg-type]
            global_valid_seqs=inputs.global_valid_seqs,  # type: ignore[arg-type]
        )


def metric_specs(loss: LossSpec) -> Mapping[str, MetricSpec]:
    """Return the scalars of a loss; those of a ratio are left out where it is that of a sequence."""
    if loss.kind == "gspo":
        return OF_EVERY_LOSS
    clip = (loss.ratio_clip_min, loss.ratio_clip_max)
    return {
        **OF_EVERY_LOSS,
        "probs_ratio": MetricSpec(quantity="ratio"),
        "probs_ratio_min": MetricSpec(quantity="ratio", how="min"),
        "probs_ratio_max": MetricSpec(quantity="ratio", how="max"),
        "probs_ratio_clamped": MetricSpec(quantity="clamped_ratio", clip=clip),
        "probs_ratio_clamped_min": MetricSpec(quantity="clamped_ratio", how="min", clip=clip),
        "probs_ratio_clamped_max": MetricSpec(quantity="clamped_ratio", how="max", clip=clip),
    }
