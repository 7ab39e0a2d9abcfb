"""verl's step of an actor as its engines compute it: the policy loss, the entropy and the KL to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.losses import MODES, PADDING
from seatrial.targets.verl.ranks import EMPTY_ROWS
from seatrial.targets.verl.registries import modes

CLIP = (0.2, 0.28)
ROW_LENGTH = 8
"""`loss_scale_factor` of the mode that divides by a fixed length."""


class VerlActorLoss(KnowsFailures):
    """`ppo_loss` of the engines with entropy and KL; see `contracts.PolicyLoss` and `RankedLoss`."""

    facts = StackFacts(epsilon=1e-8)
    loss_spec = LossSpec(
        ratio_clip_min=CLIP[0],
        ratio_clip_max=CLIP[1],
        ratio_clip_c=3.0,
        kl_penalty=0.1,
        entropy_coefficient=0.05,
    )
    ranks_reduce: Literal["mean", "sum"] = "mean"
    mode: ClassVar[str] = "token-mean"

    def __init__(self) -> None:
        """Find the loss, its configuration and its batches."""
        self.compute = find_name("verl", ["verl.workers.utils.losses:ppo_loss"])
        self.config_class = find_name("verl", ["verl.workers.config:ActorConfig"])
        self.utils = find_name("verl", ["verl.utils:tensordict_utils"])
        if self.mode not in modes():
            raise Gone(f"agg_loss of verl {release('verl')} has no mode {self.mode}")

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        return self._step(inputs, 1, int(inputs.global_valid_seqs))[0]

    def ranked_losses(self, ranks: Sequence[Sequence[LossInputs]]) -> list[list[Tensor]]:
        return [[loss for loss, _ in rank] for rank in self.steps(ranks)]

    def steps(self, ranks: Sequence[Sequence[LossInputs]]) -> list[list[tuple[Tensor, dict[str, Any]]]]:
        """Return loss and metrics of each micro-batch of each rank, with the counts that the engines give."""
        num_rows = sum(len(part.mask_BT) for rank in ranks for part in rank)
        return [[self._step(part, len(ranks), num_rows) for part in rank] for rank in ranks]

    def _step(self, part: LossInputs, num_ranks: int, num_rows: int) -> tuple[Tensor, dict[str, Any]]:
        outputs = {"log_probs": _of_rows(part.logprobs_BT), "entropy": _of_rows(part.entropy_BT)}
        found: tuple[Tensor, dict[str, Any]] = self.compute(
            self._config(), outputs, self._data(part, num_ranks, num_rows)
        )
        return found

    def _config(self) -> Any:
        spec = self.loss_spec
        return self.config_class(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=spec.ratio_clip_min,
            clip_ratio_high=spec.ratio_clip_max,
            clip_ratio_c=spec.ratio_clip_c,
            loss_agg_mode=self.mode,
            loss_scale_factor=ROW_LENGTH,
            use_kl_loss=True,
            kl_loss_coef=spec.kl_penalty,
            kl_loss_type="low_var_kl",
            entropy_coeff=spec.entropy_coefficient,
            global_batch_info={},
        )

    def _data(self, part: LossInputs, num_ranks: int, num_rows: int) -> Any:
        from tensordict import TensorDict

        B, T = part.mask_BT.shape
        data = TensorDict(
            {
                "prompts": torch.ones(B, 1, dtype=torch.long),
                "responses": torch.ones(B, T, dtype=torch.long),
                "attention_mask": torch.ones(B, 1 + T, dtype=torch.long),
                "response_mask": part.mask_BT.long(),
                "old_log_probs": part.old_logprobs_BT,
                "ref_log_prob": part.ref_logprobs_BT,
                "advantages": part.advantages_B[:, None].expand(-1, T).clone(),
            },
            batch_size=[B],
        )
        self.utils.assign_non_tensor(
            data, dp_size=num_ranks, batch_num_tokens=part.global_valid_tokens, global_batch_size=num_rows
        )
        return data


def _of_rows(values_BT: Tensor) -> Tensor:
    """Return the values of all rows in turn; a prompt is one token, and each value is that of the next one."""
    return torch.cat([values_BT, torch.zeros_like(values_BT[:, :1])], dim=1).flatten()


class VerlActorMetrics(KnowsFailures):
    """What `ppo_loss` logs as sums over micro-batches, put together over ranks as the workers do."""

    facts = StackFacts(epsilon=1e-8)
    metric_specs: Mapping[str, MetricSpec] = {
        "actor/entropy_loss": MetricSpec(quantity="entropy"),
        "kl_loss": MetricSpec(quantity="ref_k3"),
    }

    def __init__(self) -> None:
        """Find the loss, and what puts metrics together."""
        self.loss = VerlActorLoss()
        self.metric_class = find_name("verl", ["verl.utils.metric:Metric"])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        given = self.loss.steps([[part.inputs for part in rank] for rank in ranks])
        return {
            name: self._together([[step[name] for _, step in rank] for rank in given])
            for name in self.metric_specs
        }

    def _together(self, values: Sequence[Sequence[Any]]) -> float:
        metrics = [own[0].init_list() for own in values]
        for metric, own in zip(metrics, values, strict=True):
            for one in own:
                metric.append(one)
        return float(self.metric_class.aggregate_dp(metrics))


def _known(mode: str) -> tuple[KnownFailure, ...]:
    """Return what is known of a mode: those that begin with a row's sum take rows without a training token in."""
    if not mode.startswith("seq"):
        return ()
    return (PADDING, EMPTY_ROWS.of("R2.ranked_loss/a rank without a training token"))


def _adapter(mode: str) -> type[VerlActorLoss]:
    return type(
        f"VerlActorLoss_{mode}",
        (VerlActorLoss,),
        {
            "__doc__": f"`ppo_loss` of the engines in mode `{mode}`.",
            "mode": mode,
            "loss_spec": replace(VerlActorLoss.loss_spec, **MODES[mode]),
            "thorough": True,
            "known_failures": _known(mode),
        },
    )


ADAPTERS: dict[str, type[Any]] = {
    "loss-of-engine": VerlActorLoss,
    **{f"loss-of-engine-{mode}": _adapter(mode) for mode in MODES if mode != VerlActorLoss.mode},
    "metrics-of-engine": VerlActorMetrics,
}
