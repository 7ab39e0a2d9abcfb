"""What verl's workers of actor and critic before its engines log, with log-probabilities and values given to them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between, since
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.trainers import CapturingOptimizer, equal_size
from seatrial.targets.verl.algorithms import MULTIPLIED
from seatrial.targets.verl.places import in_float32, one_process
from seatrial.targets.verl.ranks import CAP, LOWER
from seatrial.targets.verl.scalars import found_metrics
from seatrial.targets.verl.steps import CLIP
from seatrial.targets.verl.workers import (
    NO_CAP,
    actor_settings,
    num_epochs,
    settings,
    source_of,
    worker_class,
)

FIELDS = ("logprobs", "old_logprobs", "ref_logprobs", "entropy", "mask")
PADDING = "R22.named/means and sums, anything in the padding"
UNEQUAL = "R22.named/means and sums, micro-batches of unequal numbers of tokens"
EQUAL = UNEQUAL.replace("unequal", "equal")
SKEWED = KnownFailure(
    "a scalar that is divided by the number of micro-batches is averaged over them again",
    finding="verl: losses of micro-batches in the workers' log",
    releases=between("verl", "0.6", "0.7"),
).of(UNEQUAL, EQUAL)
LAST = replace(SKEWED, reason="a scalar is that of the last micro-batch", releases=before("verl", "0.5"))
EARLIER_MASK = KnownFailure(
    "the critic's loss counts the value of each answer's token if the token before it counts",
    finding="verl: small functions of older releases",
    releases=before("verl", "0.3"),
).of(
    "R22.named/means and sums, lengths unequal",
    "R22.named/means and sums, tool output inside",
    UNEQUAL,
    EQUAL,
)
WITH_ENTROPY = KnownFailure(
    "the logged policy loss has the entropy taken off it, in place",
    finding="verl: losses of micro-batches in the workers' log",
    releases=since("verl", "0.7"),
).of(
    *(
        f"{law}::actor/pg_loss"
        for law in (
            "R22.named/means and sums, lengths unequal",
            "R22.named/means and sums, tool output inside",
            UNEQUAL,
            EQUAL,
        )
    )
)
OWN_MEANS = KnownFailure(
    "metrics of micro-batches are averaged, however many tokens each has",
    finding="verl: logged means of means",
).of(UNEQUAL)


class VerlWorkerMetrics(KnowsFailures):
    """What `DataParallelPPOActor` logs of its micro-batches, with log-probabilities that are given to it."""

    facts = StackFacts(micro_batch_sizes="equal", masked_rows=False, epsilon=1e-8, dtype="float32")
    metric_specs: Mapping[str, MetricSpec] = {
        "actor/ppo_kl": MetricSpec(quantity="old_minus_current"),
        "actor/pg_clipfrac": MetricSpec(quantity="clipped", clip=CLIP),
        LOWER: MetricSpec(quantity="capped", cap=CAP),
    }
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        OWN_MEANS,
        replace(MULTIPLIED, releases=before("verl", "0.5")).of(PADDING),
    )

    cap: ClassVar[float] = CAP
    worker: ClassVar[tuple[str, str, str]] = (
        "verl.workers.actor.dp_actor",
        "DataParallelPPOActor",
        "update_policy",
    )

    def __init__(self) -> None:
        """Find the worker, its batches, and what averages its metrics."""
        module, name, self.update = self.worker
        self.worker_class = worker_class(module, name)
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        if "ppo_micro_batch_size_per_gpu" not in source_of(self.worker_class):
            raise Gone(
                f"workers of verl {release('verl')} count the rows of a micro-batch over all processes"
            )
        definitions = inspect.getsource(find_name("verl", ["verl.trainer.ppo:core_algos"]))
        if (
            "range_high" not in definitions and "ratio_high" not in definitions
        ):  # to 0.3 one bound on both sides
            self.metric_specs = {
                name: replace(spec, clip=(CLIP[0],) * 2) for name, spec in self.metric_specs.items()
            }
        if "loss_agg_mode" not in source_of(self.worker_class):  # before 0.3 a mean over tokens alone
            self.metric_specs = {
                name: replace(spec, over="tokens") for name, spec in self.metric_specs.items()
            }
        if "pg_clipfrac_lower" not in definitions:
            self.metric_specs = {name: spec for name, spec in self.metric_specs.items() if name != LOWER}
        self.reduce = found_metrics("reduce_metrics", "verl.utils.metric")

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        if len(ranks) != 1:
            raise NotServed("the worker of one process logs")
        parts = [part.inputs for part in ranks[0]]
        size = equal_size([range(len(part.mask_BT)) for part in parts])
        joined = {
            name: joined_rows([getattr(part, f"{name}_BT") for part in parts]).detach() for name in FIELDS
        }
        advantages_B = torch.cat([part.advantages_B for part in parts])
        joined["advantages"] = advantages_B[:, None].expand_as(joined["mask"]).clone()
        found = self.reduce(self.updated(joined, size))
        return {name: float(value) for name, value in found.items()}

    def updated(self, columns: Mapping[str, Tensor], size: int, **more: Any) -> dict[str, Any]:
        """Return what the worker logs of rows in micro-batches of so many; `more` are further settings."""
        one_process()
        mask_BT = columns["mask"].long()
        model = torch.nn.Linear(1, 1)
        options = self.options(len(mask_BT), size)
        options.update(more)
        worker = self.worker_class(options, model, CapturingOptimizer(model.parameters()))
        worker._forward_micro_batch = self.forward(columns)
        places_BT = torch.arange(len(mask_BT))[:, None].expand_as(mask_BT)
        # A prompt of one token.
        shown_BS = torch.nn.functional.pad(mask_BT, (1, 0), value=1)
        places_BS = torch.arange(len(mask_BT))[:, None].expand_as(shown_BS)
        batch = self.batch_class.from_dict(
            tensors={
                "responses": places_BT.clone(),
                "input_ids": places_BS.clone(),
                "attention_mask": shown_BS,
                "position_ids": places_BS.clone(),
                "loss_mask": shown_BS,
                "response_mask": mask_BT,
                "old_log_probs": columns["old_logprobs"],
                "ref_log_prob": columns["ref_logprobs"],
                "values": columns["old_logprobs"],
                "returns": columns["ref_logprobs"],
                "advantages": columns["advantages"],
                **({"rollout_is_weights": columns["weights"]} if "weights" in columns else {}),
            },
            meta_info={"temperature": 1.0, "multi_turn": True, "pad_token_id": 0},
        )
        with in_float32():
            found: dict[str, Any] = getattr(worker, self.update)(batch)
        return found

    def options(self, num_rows: int, size: int) -> Any:
        """Return settings of the worker."""
        return actor_settings(
            num_rows,
            ppo_micro_batch_size_per_gpu=size,
            ppo_epochs=num_epochs(self.worker_class),
            clip_ratio_c=self.cap,
        )

    def forward(self, given: Mapping[str, Tensor]) -> Any:
        """Return a forward pass that looks up the rows of a micro-batch; their numbers are its ids."""
        in_dictionary = 'outputs["log_probs"]' in source_of(self.worker_class)

        def forward(micro_batch: Mapping[str, Tensor], *_: Any, **__: Any) -> Any:
            places = micro_batch["input_ids"][:, 0]
            logprobs, entropy = given["logprobs"][places].requires_grad_(), given["entropy"][places]
            return {"log_probs": logprobs, "entropys": entropy} if in_dictionary else (entropy, logprobs)

        return forward


class VerlWorkerLosses(VerlWorkerMetrics):
    """The losses that `DataParallelPPOActor` logs: means over rows, whose micro-batches may be averaged."""

    cap = NO_CAP
    metric_specs: Mapping[str, MetricSpec] = {
        "actor/pg_loss": MetricSpec(quantity="surrogate", over="row_means", clip=CLIP),
        "actor/kl_loss": MetricSpec(quantity="ref_k3", over="row_means"),
    }
    known_failures = (SKEWED, LAST, WITH_ENTROPY, MULTIPLIED.of(PADDING))


class VerlWorkerCriticMetrics(VerlWorkerMetrics):
    """What `DataParallelPPOCritic` logs: values are given as log-probabilities, returns as those of the reference.

    The loss is a mean over rows, whose micro-batches may be averaged; nothing is clipped.
    """

    metric_specs: Mapping[str, MetricSpec] = {
        "critic/vf_loss": MetricSpec(quantity="ref_k2", over="row_means")
    }
    worker = ("verl.workers.critic.dp_critic", "DataParallelPPOCritic", "update_critic")
    known_failures = (SKEWED, EARLIER_MASK, MULTIPLIED.of(PADDING))

    def options(self, num_rows: int, size: int) -> Any:
        return settings(
            num_rows,
            ppo_micro_batch_size_per_gpu=size,
            cliprange_value=1e9,
            model={"use_remove_padding": False},
        )

    def forward(self, given: Mapping[str, Tensor]) -> Any:
        return lambda micro_batch: given["logprobs"][micro_batch["input_ids"][:, 0]].requires_grad_()


def joined_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return the rows of all parts, padded with 0 to the widest."""
    T = max(part.shape[1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, T - part.shape[1])) for part in parts])


ADAPTERS: dict[str, type[Any]] = {
    "metrics-of-workers": VerlWorkerMetrics,
    "losses-of-workers": VerlWorkerLosses,
    "critic-metrics-of-workers": VerlWorkerCriticMetrics,
}
