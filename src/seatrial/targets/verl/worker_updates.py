"""verl's updates of actor and critic by the workers before its engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.model_updates import (
    CLIP,
    ENTROPY,
    KL,
    NO_CAP,
    VALUE_CLIP,
    Answer,
    Updates,
)
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, between, since
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.model_updates import LOGGED, TableModel, batch_of, measures
from seatrial.targets.verl.places import in_float32, one_process
from seatrial.targets.verl.scalars import found_metrics
from seatrial.targets.verl.workers import actor_settings, settings, source_of, worker_class

NAMES: Mapping[str, Mapping[str, str]] = {
    "actor": {**LOGGED["actor"], "entropy": "actor/entropy"},
    "critic": LOGGED["critic"],
}

IN_LOG = "verl: losses of micro-batches in the workers' log"
LOSSES = "R31.model_updates/losses that updates log"


class VerlUpdatesOfWorkers(KnowsFailures):
    """`DataParallelPPOActor.update_policy` and `DataParallelPPOCritic.update_critic`, of padded rows."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "losses are averaged over micro-batches again",
            finding=IN_LOG,
            releases=between("verl", "0.6", "0.7"),
        ).of(LOSSES),
        KnownFailure(
            "losses are added up over mini-batches and epochs",
            finding=IN_LOG,
            releases=since("verl", "0.7"),
        ).of(LOSSES),
    )

    def __init__(self) -> None:
        """Find the workers.

        Raises:
            Gone: they have no mean over rows, or are not in this release.
        """
        self.classes = {
            "actor": worker_class("verl.workers.actor.dp_actor", "DataParallelPPOActor"),
            "critic": worker_class("verl.workers.critic.dp_critic", "DataParallelPPOCritic"),
        }
        if not all("loss_agg_mode" in source_of(one) for one in self.classes.values()):
            raise Gone(f"the workers of verl {release('verl')} have no mean over rows")
        if "response_mask = model_inputs" not in source_of(self.classes["critic"]):
            raise Gone(f"the critic of verl {release('verl')} learns at tokens that do not train")
        self.proto = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.reduce = found_metrics("reduce_metrics", "verl.utils.metric")
        self.utilities: Mapping[str, Callable[..., Any]] = {"updates of a model": self._updated}

    def _updated(self, role: str, table: Tensor, rows: Sequence[Answer], plan: Updates, part: str) -> Any:
        """Return the weights after updates, or a measure of each."""
        one_process()
        if plan.warmup:
            raise NotServed("a worker of these moves the rate")
        cls = self.classes[role]
        once = role == "actor" and plan.mini == len(rows) and plan.epochs == 1
        if once and "use_rollout_log_probs" not in source_of(cls):
            raise NotServed(
                "a worker of these takes its own log-probabilities for old ones where it trains once"
            )
        model = TableModel(table)
        optimizer = torch.optim.SGD(model.parameters(), lr=plan.rate)
        worker = cls(self._options(role, plan), model, optimizer)
        logged = []
        for _ in range(plan.updates):
            batch = batch_of(self.proto, role, rows)
            batch.meta_info.update(multi_turn=True, pad_token_id=0)
            with in_float32():
                found = worker.update_policy(batch) if role == "actor" else worker.update_critic(batch)
            logged.append(dict(self.reduce(dict(found))))
        if part == "weights":
            return model.table.detach().double()
        return measures(logged, NAMES[role][part])

    def _options(self, role: str, plan: Updates) -> Any:
        own = {
            "ppo_micro_batch_size_per_gpu": plan.micro,
            "ppo_epochs": plan.epochs,
            "use_dynamic_bsz": plan.tokens is not None,
            "ppo_max_token_len_per_gpu": plan.tokens or 1,
            "grad_clip": plan.clip,
        }
        if role == "critic":
            return settings(plan.mini, cliprange_value=VALUE_CLIP, model={"use_remove_padding": False}, **own)
        return actor_settings(
            plan.mini,
            clip_ratio=CLIP[0],
            clip_ratio_c=NO_CAP,
            entropy_coeff=ENTROPY,
            kl_loss_coef=KL,
            **own,
        )


ADAPTERS: dict[str, type[Any]] = {"updates-of-workers": VerlUpdatesOfWorkers}
