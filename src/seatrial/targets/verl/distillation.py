"""verl's distillation losses: every estimator that its registry names, as reward or loss, and the top-k divergence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import LossInputs, LossSpec, StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.actors import VerlActorLoss
from seatrial.targets.verl.algorithms import KL_KINDS
from seatrial.targets.verl.engines import _Engine, nested
from seatrial.targets.verl.losses import MODES, PADDING
from seatrial.targets.verl.registries import distillations
from seatrial.targets.verl.steps import ACTOR_SPEC, CLIP, actor_config

DISTILLATION = "verl.trainer.distillation.losses"
COEFFICIENT = 0.3
STALE_COUNTS = KnownFailure(
    "the loss is averaged over a micro-batch: counts of the batch are set after it, for the policy loss alone",
    finding="verl: counts of the batch in distillation",
    releases=before("verl", "0.9"),
).of(
    "R1.loss",
    "R2.ranked_loss",
    "R12.loss",
)
NOTHING_LEFT = KnownFailure(
    "a micro-batch without a training token raises a RuntimeError where the extrema of the loss are logged",
    finding="verl: distillation and a micro-batch without a training token",
).of("R1.loss/losses add up, in micro-batches of one row", "R2.ranked_loss/a rank without a training token")


class VerlDistillation(VerlActorLoss):
    """`distillation_ppo_loss` with an estimator of the KL to the teacher, added to the policy loss.

    The teacher's log-probabilities are those of the reference; see `contracts.PolicyLoss` and `RankedLoss`.
    """

    estimator: ClassVar[str] = "k3"
    own_options: ClassVar[dict[str, Any]] = {
        "use_task_rewards": True,
        "distillation_loss_coef": COEFFICIENT,
        "use_policy_gradient": False,
    }

    def __init__(self) -> None:
        """Find the loss and its configurations."""
        super().__init__()
        if self.estimator not in distillations():
            raise Gone(f"DISTILLATION_LOSS_REGISTRY of verl {release('verl')} has no {self.estimator}")
        self.distill = find_name("verl", [f"{DISTILLATION}:distillation_ppo_loss"])
        self.whole_class = find_name("verl", ["verl.workers.config:DistillationConfig"])
        self.own_class = find_name("verl", ["verl.workers.config:DistillationLossConfig"])

    def _config(self) -> Any:
        config = super()._config()
        object.__setattr__(config, "use_kl_loss", False)
        return config

    def _distillation(self) -> Any:
        own = self.own_class(loss_mode=self.estimator, loss_max_clamp=None, **self.own_options)
        return self.whole_class(distillation_loss=own)

    def teacher_of(self, part: LossInputs) -> Tensor:
        """Return the teacher's log-probabilities."""
        return part.ref_logprobs_BT

    def _step(self, part: LossInputs, num_ranks: int, num_rows: int) -> tuple[Tensor, dict[str, Any]]:
        data = self._data(part, num_ranks, num_rows)
        # Each value is at the token before the one that it is of; a prompt is one token.
        teacher_BS = torch.nn.functional.pad(self.teacher_of(part), (0, 1))
        data["teacher_logprobs"] = torch.nested.as_nested_tensor(
            [row[:, None] for row in teacher_BS], layout=torch.jagged
        )
        outputs = {
            "log_probs": torch.nn.functional.pad(part.logprobs_BT, (0, 1)).flatten(),
            "entropy": torch.nn.functional.pad(part.entropy_BT, (0, 1)).flatten(),
        }
        found: tuple[Tensor, dict[str, Any]] = self.distill(
            self._config(), self._distillation(), outputs, data
        )
        return found


class VerlDistillationAsReward(VerlDistillation):
    """`distillation_ppo_loss` with the negative `k1` as the advantage of each token, without rewards of the task.

    The teacher is made so that this advantage is the row's.
    """

    estimator = "k1"
    known_failures = (STALE_COUNTS, NOTHING_LEFT)
    loss_spec = LossSpec(ratio_clip_min=CLIP[0], ratio_clip_max=CLIP[1], ratio_clip_c=3.0)
    own_options: ClassVar[dict[str, Any]] = {
        "use_task_rewards": False,
        "use_policy_gradient": True,
        "clip_ratio_low": CLIP[0],
        "clip_ratio_high": CLIP[1],
    }

    def _config(self) -> Any:
        return actor_config(
            self.config_class,
            replace(ACTOR_SPEC, ratio_clip_c=3.0),
            loss_agg_mode=self.mode,
            loss_scale_factor=8,
        )

    def teacher_of(self, part: LossInputs) -> Tensor:
        return part.logprobs_BT.detach() + part.advantages_B[:, None]


class VerlTopDistillation(KnowsFailures, _Engine):
    """The engine with the forward KL to the teacher's likeliest tokens, which are all of the vocabulary.

    See `contracts.objectives.Objective`.
    """

    facts = StackFacts(micro_batch_sizes="equal", epsilon=1e-8, dtype="float32")
    objective_spec = ObjectiveSpec(kind="gkd", beta=0.0)
    own_options: ClassVar[dict[str, Any]] = {}
    known_failures: ClassVar[Sequence[KnownFailure]] = (STALE_COUNTS.of("R1.objective"),)

    def __init__(self) -> None:
        """Find the engine, the loss and its configurations."""
        super().__init__()
        if "forward_kl_topk" not in distillations():
            raise Gone(f"DISTILLATION_LOSS_REGISTRY of verl {release('verl')} has no forward_kl_topk")
        self.distill = find_name("verl", [f"{DISTILLATION}:distillation_ppo_loss"])
        self.whole_class = find_name("verl", ["verl.workers.config:DistillationConfig"])
        self.own_class = find_name("verl", ["verl.workers.config:DistillationLossConfig"])

    def objective_step(
        self, examples: Sequence[Example], micro_batches: Sequence[Sequence[int]]
    ) -> StepResult:
        given = [examples[index] for part in micro_batches for index in part]
        data = self._data([(one.prompt_ids, one.completion_ids) for one in given])
        data["loss_mask"] = nested(
            [[0] * len(one.prompt_ids) + [1] * len(one.completion_ids) for one in given], torch.long
        )
        masks = nested([[1] * len(one.completion_ids) for one in given], torch.long)
        floats = nested([[0.0] * len(one.completion_ids) for one in given], torch.float32)
        rows = [self._teacher((*one.prompt_ids, *one.completion_ids)) for one in given]
        data |= {
            "response_mask": masks,
            "old_log_probs": floats,
            "ref_log_prob": floats,
            "advantages": floats,
            "teacher_logprobs": torch.nested.as_nested_tensor([row for row, _ in rows], layout=torch.jagged),
            "teacher_ids": torch.nested.as_nested_tensor([ids for _, ids in rows], layout=torch.jagged),
        }
        own = self.own_class(
            loss_mode="forward_kl_topk",
            topk=self.vocab_size,
            use_task_rewards=False,
            use_policy_gradient=False,
            loss_max_clamp=None,
            log_prob_min_clamp=None,
            **self.own_options,
        )
        loss = partial(
            self.distill,
            actor_config(self.config_class, self.loss_spec),
            self.whole_class(distillation_loss=own),
        )
        return self._step(
            data,
            lambda model_output=None, data=None, dp_group=None, **more: loss(
                model_output, data, dp_group, **more
            ),
            micro_batches,
            distillation_use_topk=True,
        )

    def _teacher(self, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the teacher's log-probabilities and the ids that they are of, the likeliest first."""
        with torch.no_grad():
            logits_SV = self.objective_logits(self.objective_reference(), torch.tensor(list(ids)))
        logprobs_SV, ids_SV = torch.log_softmax(logits_SV, dim=-1).sort(dim=-1, descending=True)
        return logprobs_SV, ids_SV


class VerlTopDistillationInChunks(VerlTopDistillation):
    """The same with rows padded, and log-probabilities in chunks of tokens."""

    options: ClassVar[dict[str, Any]] = {"use_remove_padding": False}
    own_options: ClassVar[dict[str, Any]] = {"use_chunked_topk": True, "chunked_topk_chunk_size": 7}

    def __init__(self) -> None:
        """Check that the release has chunks."""
        super().__init__()
        if "use_chunked_topk" not in self.own_class.__dataclass_fields__:
            raise Gone(f"DistillationLossConfig of verl {release('verl')} has no use_chunked_topk")


def _adapter(name: str, mode: str) -> type[VerlDistillation]:
    kind: Any = KL_KINDS[name]
    spec = replace(ACTOR_SPEC, kl_penalty=COEFFICIENT, kl_type=kind, **MODES[mode])
    known = [STALE_COUNTS, NOTHING_LEFT]
    if mode != "token-mean" or kind == "k2":  # the gradient of a square multiplies by what is masked
        known.append(PADDING)
    if mode == "seq-mean-token-sum-norm":  # without the factor, sums are divided by the padded width
        known.append(STALE_COUNTS.of("R3.loss/amount of padding", "R3.loss/rows that must not train"))
    return type(
        f"VerlDistillation_{name}_{mode}",
        (VerlDistillation,),
        {
            "__doc__": f"`{name}` in mode `{mode}`, added to the policy loss.",
            "estimator": name,
            "mode": mode,
            "loss_spec": spec,
            "thorough": (name, mode) not in (("k3", "token-mean"), ("k2", "seq-mean-token-mean")),
            "known_failures": tuple(known),
        },
    )


ESTIMATORS = ("k2", "mse", "k3", "low_var_kl")
"""Those of which the value and its gradient have one definition; verl refuses `k1` as a loss."""
COVERED = frozenset((*ESTIMATORS, "k1", "forward_kl_topk"))
"""Names of the registry that an adapter judges."""
ADAPTERS: dict[str, type[Any]] = {
    **{f"distillation-{name}-{mode}": _adapter(name, mode) for name in ESTIMATORS for mode in MODES},
    "distillation-as-reward": VerlDistillationAsReward,
    "distillation-top": VerlTopDistillation,
    "distillation-top-in-chunks": VerlTopDistillationInChunks,
}
