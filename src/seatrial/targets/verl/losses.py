"""verl's registered policy losses in every aggregation mode, whichever release is installed."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from seatrial.relations.facts import StackFacts
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, since
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.algorithms import DIVIDED, LEFT_OUT
from seatrial.targets.verl.ranks import EMPTY_ROWS
from seatrial.targets.verl.registries import CORE, given_texts, modes

LOW, HIGH, RATIO_CAP = 0.2, 0.28, 3.0
ROW_LENGTH = 8
"""`loss_scale_factor` of the mode that divides by a fixed length."""
MODES: Mapping[str, Mapping[str, Any]] = {
    "token-mean": {"reduction": "token"},
    "token-sum": {"reduction": "sum"},
    "seq-mean-token-sum": {"reduction": "fixed_length", "fixed_length": 1},
    "seq-mean-token-mean": {"reduction": "sequence"},
    "seq-mean-token-sum-norm": {"reduction": "fixed_length", "fixed_length": ROW_LENGTH},
}
"""What each aggregation mode declares."""


@dataclass(frozen=True, kw_only=True)
class RegisteredLoss:
    """A loss of `POLICY_LOSS_REGISTRY`."""

    name: str
    spec: LossSpec
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of `ActorConfig`."""
    own_options: Mapping[str, Any] = field(default_factory=dict)
    """Of `PolicyLossConfig`."""
    correction: Mapping[str, Any] | None = None
    """Of `RolloutCorrectionConfig`."""
    mode: str = "token-mean"
    """The one that it is documented with; others run in thorough runs."""
    only_mode: bool = False
    """Whether it aggregates as `mode` says, regardless of the configured mode."""


def _clip(kind: str, **more: Any) -> LossSpec:
    return LossSpec(kind=kind, ratio_clip_min=LOW, ratio_clip_max=HIGH, **more)  # type: ignore[arg-type]


LOSSES: Mapping[str, RegisteredLoss] = {
    "vanilla": RegisteredLoss(name="vanilla", spec=_clip("ppo_clip", ratio_clip_c=RATIO_CAP)),
    "gspo": RegisteredLoss(name="gspo", spec=_clip("gspo"), mode="seq-mean-token-mean"),
    "sapo": RegisteredLoss(
        name="sapo",
        spec=LossSpec(kind="sapo", parameters={"tau_positive": 1.0, "tau_negative": 1.4}),
        options={"tau_pos": 1.0, "tau_neg": 1.4},
        mode="seq-mean-token-mean",
        only_mode=True,
    ),
    "gpg": RegisteredLoss(name="gpg", spec=LossSpec(kind="policy_gradient")),
    "dppo_tv": RegisteredLoss(
        name="dppo_tv",
        spec=LossSpec(
            kind="dppo_tv", ratio_clip_min=0.02, ratio_clip_max=0.03, parameters={"ratio_cap": RATIO_CAP}
        ),
    ),
    "dppo_kl": RegisteredLoss(
        name="dppo_kl",
        spec=LossSpec(
            kind="dppo_kl", ratio_clip_min=0.005, ratio_clip_max=0.008, parameters={"ratio_cap": RATIO_CAP}
        ),
    ),
    "clip_cov": RegisteredLoss(
        name="clip_cov",
        spec=_clip("clip_cov", parameters={"covariance_min": 0.3, "covariance_max": 5.0}),
        # As many as there are tokens: which of them are dropped is then not drawn.
        own_options={"clip_cov_ratio": 1.0, "clip_cov_lb": 0.3, "clip_cov_ub": 5.0},
    ),
    "kl_cov": RegisteredLoss(
        name="kl_cov",
        spec=LossSpec(kind="kl_cov", parameters={"covariance_share": 0.2, "kl_factor": 0.7}),
        own_options={"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.7},
    ),
    "geo_mean": RegisteredLoss(
        name="geo_mean", spec=_clip("geometric_mean"), mode="seq-mean-token-mean", only_mode=True
    ),
    "dro": RegisteredLoss(
        name="dro", spec=LossSpec(kind="dro", parameters={"beta": 0.4}), own_options={"dro_beta": 0.4}
    ),
    "cispo": RegisteredLoss(name="cispo", spec=_clip("cispo")),
    "bypass_mode": RegisteredLoss(
        name="bypass_mode",
        spec=_clip("ppo_clip", ratio_clip_c=RATIO_CAP),
        correction={"loss_type": "ppo_clip", "rollout_is": None, "rollout_rs": None},
    ),
    "bypass_mode-reinforce": RegisteredLoss(
        name="bypass_mode",
        # The truncated ratio as a weight: what CISPO does within 0 and the threshold.
        spec=LossSpec(kind="cispo", ratio_clip_min=1.0, ratio_clip_max=0.5),
        correction={
            "loss_type": "reinforce",
            "rollout_is": "token",
            "rollout_is_threshold": 1.5,
            "rollout_rs": None,
        },
        mode="seq-mean-token-sum",
    ),
}


class VerlRegisteredLoss(KnowsFailures):
    """A registered loss in a mode, as `ppo_loss` of the engines calls it; see `contracts.PolicyLoss` and `RankedLoss`.

    Releases before 0.7 give the mean over a micro-batch; the adapter weights that by the micro-batch's part.
    """

    facts = StackFacts(epsilon=1e-8)
    ranks_reduce: Literal["mean", "sum"] = "mean"
    loss: ClassVar[RegisteredLoss]
    mode: ClassVar[str]
    loss_spec: ClassVar[LossSpec]

    def __init__(self) -> None:
        """Find the loss, its configuration, and whether that has counts of the batch."""
        registry = find_name("verl", [f"{CORE}:POLICY_LOSS_REGISTRY"])
        if self.loss.name not in registry:
            raise Gone(f"POLICY_LOSS_REGISTRY of verl {release('verl')} has no {self.loss.name}")
        self.compute = registry[self.loss.name]
        self.config_class = find_name("verl", ["verl.workers.config:ActorConfig"])
        self.own_class = find_name("verl", ["verl.workers.config:PolicyLossConfig"])
        if "config" not in inspect.signature(self.compute).parameters:
            raise Gone(f"{self.loss.name} of verl {release('verl')} takes no configuration")
        if self.loss.correction is not None and "rollout_correction" not in _fields(self.own_class):
            raise Gone(f"PolicyLossConfig of verl {release('verl')} has no rollout_correction")
        self.takes_counts = "global_batch_info" in _fields(self.config_class)
        self._check_mode()
        if not self.takes_counts and self.loss_spec.reduction == "sequence":
            self.facts = StackFacts(masked_rows=False, epsilon=1e-8)

    def _check_mode(self) -> None:
        """Raise Gone if the release cannot aggregate this loss in this mode."""
        fixed = given_texts(self.compute, "agg_loss", "loss_agg_mode")
        if self.mode not in modes():
            raise Gone(f"agg_loss of verl {release('verl')} has no mode {self.mode}")
        if fixed and self.mode not in fixed:
            raise Gone(f"{self.loss.name} of verl {release('verl')} aggregates as {fixed[0]} in every mode")
        if not self.takes_counts and self.loss_spec.reduction not in ("token", "sequence"):
            raise Gone(
                f"ActorConfig of verl {release('verl')} has no counts of the batch, by which {self.mode} divides"
            )

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        if self.takes_counts:
            return self._loss(inputs, 1, inputs.global_valid_seqs)
        return self._loss(inputs, 1, 0) * self._share(inputs)

    def ranked_losses(self, ranks: Sequence[Sequence[LossInputs]]) -> list[list[Tensor]]:
        """Give each micro-batch the counts that `ppo_loss` gives it: rows without a training token are counted too."""
        if not self.takes_counts:
            raise NotServed(f"ActorConfig of verl {release('verl')} has no counts of the whole batch")
        num_rows = sum(len(part.mask_BT) for rank in ranks for part in rank)
        return [[self._loss(part, len(ranks), num_rows) for part in rank] for rank in ranks]

    def _share(self, inputs: LossInputs) -> float:
        """Return the part of the batch's mean that a micro-batch's own mean is."""
        if self.loss_spec.reduction == "token":
            return float(inputs.mask_BT.sum()) / inputs.global_valid_tokens
        return inputs.mask_BT.shape[0] / inputs.global_valid_seqs

    def _loss(self, part: LossInputs, num_ranks: int, num_rows: float) -> Tensor:
        loss: Tensor = self.compute(
            old_log_prob=part.old_logprobs_BT,
            log_prob=part.logprobs_BT,
            advantages=part.advantages_B[:, None].expand(-1, part.mask_BT.shape[1]),
            response_mask=part.mask_BT.bool(),
            loss_agg_mode=self.mode,
            config=self.configuration(part.global_valid_tokens, num_ranks, num_rows),
        )[0]
        return loss

    def configuration(self, num_tokens: float, num_ranks: int, num_rows: float) -> Any:
        """Return the settings with the counts of a batch."""
        spec = self.loss_spec
        own = dict(self.loss.own_options)
        if self.loss.correction is not None:
            own["rollout_correction"] = dict(self.loss.correction)
        counts = {
            "dp_size": num_ranks,
            "batch_num_tokens": num_tokens,
            "global_batch_size": num_rows,
            "loss_scale_factor": ROW_LENGTH,
        }
        return self.config_class(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=spec.ratio_clip_min,
            clip_ratio_high=spec.ratio_clip_max,
            clip_ratio_c=RATIO_CAP,
            loss_agg_mode=self.mode,
            policy_loss=self.own_class(loss_mode=self.loss.name, **own),
            **self.loss.options,
            **({"global_batch_info": counts} if self.takes_counts else {}),
        )


R1 = "R1.loss/losses add up, in micro-batches of"
R2 = "R2.ranked_loss"
EMPTY_RANK = f"{R2}/a rank without a training token"
PADDING = KnownFailure(
    "the mask multiplies, or takes padding out after the exponential: NaN in padding reaches the gradient",
    finding="verl: NaN in padding and the registered losses",
).of("R3.loss/content of masked positions")
OWN_COVARIANCE = KnownFailure(
    "tokens are chosen among those of a micro-batch: which, and how many, depends on its size",
    finding="verl: tokens chosen by covariance",
)
OWN_MEAN = KnownFailure(
    "the mean is over the rows of a micro-batch, regardless of the counts of the batch",
    finding="verl: GMPO's mean over a micro-batch",
    releases=since("verl", "0.7"),
)
NOTHING_LEFT = KnownFailure(
    "a micro-batch without a training token raises a ValueError in metrics of rollout correction",
    finding="verl: bypass mode and a micro-batch without a training token",
).of(f"{R1} one row", EMPTY_RANK)
SUMMED = KnownFailure(
    "the mode adds up rows in place of averaging them",
    finding="verl: rows added up in seq-mean-token-sum-norm",
    releases=before("verl", "0.7.1"),
)
KNOWN: Mapping[str, Sequence[KnownFailure]] = {
    "clip_cov": [
        OWN_COVARIANCE.of(
            f"{R1} one row",
            f"{R1} two rows",
            f"{R2}/ranks of unequal numbers of tokens",
            f"{R2}/two micro-batches on each rank",
            f"{R2}/ranks of unequal numbers of rows",
        )
    ],
    "kl_cov": [
        OWN_COVARIANCE.of(
            f"{R1} one row",
            f"{R1} two rows",
            f"{R1} unequal numbers of rows",
            f"{R2}/two micro-batches on each rank",
            f"{R2}/ranks of unequal numbers of rows",
        )
    ],
    "geo_mean": [
        OWN_MEAN.of(
            f"{R1} one row",
            f"{R1} two rows",
            f"{R1} unequal numbers of rows",
            f"{R2}/two micro-batches on each rank",
            f"{R2}/ranks of unequal numbers of rows",
            "R3.loss/rows that must not train",
            "R9.loss/policy gradient on policy",
            "R12.loss",
        )
    ],
    "bypass_mode": [NOTHING_LEFT],
    "bypass_mode-reinforce": [NOTHING_LEFT],
}
"""What is known of a loss in every mode."""
MASKED_FIRST = ("vanilla", "gpg", "bypass_mode")
"""Losses that NaN in padding does not reach in the modes that sum over tokens."""


def _known(name: str, mode: str) -> tuple[KnownFailure, ...]:
    """Return what is known of a loss in a mode."""
    own = list(KNOWN.get(name, ()))
    if name not in MASKED_FIRST or mode.startswith("seq"):
        own.append(PADDING)
    if mode.startswith("seq") and not name.startswith("bypass_mode"):
        own.append(EMPTY_ROWS.of(EMPTY_RANK))
    if mode == "seq-mean-token-sum-norm":
        own.append(SUMMED.of("R12.loss", *(() if name == "clip_cov" else (R2, "R9.loss", "R11.bandit"))))
    if mode == "seq-mean-token-mean":
        # Of the rows of later releases, of which some have no token, as many are chosen either way.
        here = (f"{R1} unequal numbers of rows",) if name == "clip_cov" else ()
        own += [replace(OWN_COVARIANCE, releases=before("verl", "0.7")).of(*here)] if here else []
        own.append(replace(LEFT_OUT, releases=before("verl", "0.7")).of("R18.facts/masked rows are refused"))
        if name != "geo_mean":  # which adds a small number to its own divisor
            own.append(DIVIDED)
    return tuple(own)


def _fields(configuration: type[Any]) -> set[str]:
    return {item.name for item in dataclasses.fields(configuration)}


def _adapter(name: str, mode: str) -> type[VerlRegisteredLoss]:
    loss = LOSSES[name]
    return type(
        f"Verl_{name}_{mode}",
        (VerlRegisteredLoss,),
        {
            "__doc__": f"`{name}` in mode `{mode}`.",
            "loss": loss,
            "mode": mode,
            "loss_spec": replace(loss.spec, **MODES[mode]),
            "thorough": mode != loss.mode,
            "known_failures": _known(name, mode),
        },
    )


def _modes_of(loss: RegisteredLoss) -> Sequence[str]:
    return [loss.mode] if loss.only_mode else [loss.mode, *(mode for mode in MODES if mode != loss.mode)]


ADAPTERS: dict[str, type[Any]] = {
    f"loss-{name}" if mode == loss.mode else f"loss-{name}-{mode}": _adapter(name, mode)
    for name, loss in LOSSES.items()
    for mode in _modes_of(loss)
}
"""Each loss in the mode that it is documented with, and in the others (thorough)."""
