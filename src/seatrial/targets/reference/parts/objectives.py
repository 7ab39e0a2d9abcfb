"""refrl's supervised loss and its sums over ranks, offered to the relations: the parts that `refrl sft` trains by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from refrl.algorithms.batching import TrainSample
from refrl.distributed import ALONE, World
from refrl.models.loading import load_model
from refrl.training import build
from refrl.training.sft import answer_loss
from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.ranks import Layout
from seatrial.relations.records import StepResult
from seatrial.targets.common.ranks import StepsOnRanks
from seatrial.targets.reference.configuration import model_directory, tuning_configuration
from seatrial.targets.reference.runs.forking import PRELOAD

PAD_ID = 0


class ReferenceObjectives(StepsOnRanks):
    """See `seatrial.relations.contracts.objectives` and `seatrial.relations.contracts.ranks`."""

    objective_spec = ObjectiveSpec(kind="sft")
    rank_preload = PRELOAD
    ordinary_ids = tuple(range(1, 256))
    """Bytes, which stand for themselves."""

    def objective_model(self) -> Any:
        return load_model(model_directory())

    def objective_reference(self) -> Any | None:
        return None

    def objective_logits(self, model: Any, ids_S: Tensor) -> Tensor:
        logits_BSV: Tensor = model(ids_S[None]).logits
        return logits_BSV[0]

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        return _step(examples, micro_batches, ALONE)

    def objective_rank_step(self, examples: Sequence[Example], layout: Layout, rank: int) -> StepResult:
        """Give this rank the whole batch, as the loop does: it takes its own rows, which are numbered from 0."""
        first = sum(len(part) for ranks in layout[:rank] for part in ranks)
        own = [[row - first for row in part] for part in layout[rank]]
        return _step(examples, own, World(rank=rank, size=dist.get_world_size()))


def _step(examples: Sequence[Example], micro_batches: Sequence[Sequence[int]], world: World) -> StepResult:
    config = tuning_configuration({"policy.generation.temperature": 1.0}).policy
    policy = build.build_policy(
        config,
        build.build_tokenizer(config),
        device=torch.device("cpu"),
        num_updates=1,
        with_reference=False,
        world=world,
    )
    samples = [
        TrainSample(
            prompt_ids=one.prompt_ids,
            completion_ids=one.completion_ids,
            sampling_logprobs=(0.0,) * len(one.completion_ids),
            reward=0.0,
            group_id=row,
        )
        for row, one in enumerate(examples)
    ]
    batch = build.build_batch(samples, config, pad_token_id=PAD_ID)
    metrics = policy.gradients(batch, answer_loss, micro_batches)
    return StepResult(loss=metrics["loss"], gradients=policy.named_gradients(), metrics=metrics)
