"""verl's step of an actor as its engines compute it: the policy loss, the entropy and the KL to the reference."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import LossInputs
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.losses import MODES, PADDING, SUMMED
from seatrial.targets.verl.ranks import EMPTY_ROWS, metrics_together
from seatrial.targets.verl.registries import modes
from seatrial.targets.verl.steps import ACTOR_SPEC, CLIP, actor_config, batch_of_rows, of_rows

ROW_LENGTH = 8
"""`loss_scale_factor` of the mode that divides by a fixed length."""


class VerlActorLoss(KnowsFailures):
    """`ppo_loss` of the engines with entropy and KL; see `contracts.PolicyLoss` and `RankedLoss`."""

    facts = StackFacts(epsilon=1e-8)
    loss_spec = ACTOR_SPEC
    ranks_reduce: Literal["mean", "sum"] = "mean"
    mode: ClassVar[str] = "token-mean"

    def __init__(self) -> None:
        """Find the loss, its configuration and its batches."""
        self.compute = find_name("verl", ["verl.workers.utils.losses:ppo_loss"])
        self.config_class = find_name("verl", ["verl.workers.config:ActorConfig"])
        find_name("verl", ["verl.utils:tensordict_utils"])
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
        outputs = {"log_probs": of_rows(part.logprobs_BT), "entropy": of_rows(part.entropy_BT)}
        found: tuple[Tensor, dict[str, Any]] = self.compute(
            self._config(), outputs, self._data(part, num_ranks, num_rows)
        )
        return found

    def _config(self) -> Any:
        return actor_config(
            self.config_class, self.loss_spec, loss_agg_mode=self.mode, loss_scale_factor=ROW_LENGTH
        )

    def _data(self, part: LossInputs, num_ranks: int, num_rows: int) -> Any:
        return batch_of_rows(
            part.mask_BT,
            {
                "old_log_probs": part.old_logprobs_BT,
                "ref_log_prob": part.ref_logprobs_BT,
                "advantages": part.advantages_B[:, None].expand_as(part.mask_BT).clone(),
            },
            dp_size=num_ranks,
            batch_num_tokens=part.global_valid_tokens,
            global_batch_size=num_rows,
        )


class _UncappedLoss(VerlActorLoss):
    """The same without a cap on the ratio of tokens with a negative advantage."""

    loss_spec = replace(ACTOR_SPEC, ratio_clip_c=1e3)


class VerlActorMetrics(KnowsFailures):
    """What `ppo_loss` logs as sums over micro-batches, put together over ranks as the workers do."""

    facts = StackFacts(epsilon=1e-8)
    metric_specs: Mapping[str, MetricSpec] = {
        "actor/pg_loss": MetricSpec(quantity="surrogate", clip=CLIP),
        "actor/entropy_loss": MetricSpec(quantity="entropy"),
        "kl_loss": MetricSpec(quantity="ref_k3"),
    }

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "losses of micro-batches are parts of the mean over the batch, and are averaged",
            finding="verl: losses of micro-batches in the workers' log",
            releases=before("verl", "0.7.1"),
        ).of(
            *(
                f"R22.named/means and sums, micro-batches of {numbers}"
                for numbers in (
                    "unequal numbers of tokens",
                    "equal numbers of tokens",
                    "unequal numbers of rows",
                )
            )
        ),
    )

    def __init__(self) -> None:
        """Find the loss, and what puts metrics together; releases before 0.7.1 log no entropy."""
        self.loss = _UncappedLoss()
        self.together = metrics_together()
        if '"actor/entropy_loss"' not in inspect.getsource(self.loss.compute):
            self.metric_specs = {
                name: spec for name, spec in self.metric_specs.items() if name != "actor/entropy_loss"
            }

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        given = self.loss.steps([[part.inputs for part in rank] for rank in ranks])
        return {
            name: self.together([[step[name] for _, step in rank] for rank in given], "mean")
            for name in self.metric_specs
        }


def _known(mode: str) -> tuple[KnownFailure, ...]:
    """Return what is known of a mode: those that begin with a row's sum take rows without a training token in."""
    if not mode.startswith("seq"):
        return ()
    summed = (SUMMED.of("R12.loss", "R2.ranked_loss", "R9.loss", "R11.bandit"),)
    return (
        PADDING,
        EMPTY_ROWS.of("R2.ranked_loss/a rank without a training token"),
        *(summed if mode == "seq-mean-token-sum-norm" else ()),
    )


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
