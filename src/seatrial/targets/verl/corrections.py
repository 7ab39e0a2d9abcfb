"""verl's rollout correction: weights and rejection by every criterion that the release names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.contracts.corrections import RejectionRule, WeightRule
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, since
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.verl.registries import rejections

HELPER, MISMATCH = "verl.trainer.ppo.rollout_corr_helper", "verl.trainer.ppo.mismatch_helper"
RATIOS = (0.7, 1.1)
OVER: Mapping[str, Any] = {"token": "token", "seq_sum": "sum", "seq_mean": "mean", "seq_max": "max"}
WEIGHTS: Mapping[str, WeightRule] = {
    "token": WeightRule(level="token", upper=1.2),
    "sequence": WeightRule(level="row", upper=1.5),
    "token, 0.8_1.2": WeightRule(level="token", lower=0.8, upper=1.2),
    "sequence, 0.8_1.5": WeightRule(level="row", lower=0.8, upper=1.5),
    "token, normalized": WeightRule(level="token", upper=1.2, mean_one=True),
    "sequence, normalized": WeightRule(level="row", upper=1.5, mean_one=True),
}
PREFIXES: Mapping[str, str] = {over: name for name, over in OVER.items()}
DIVERGENCES = {"token": 0.02, "seq_sum": 0.08, "seq_mean": 0.02, "seq_max": 0.05}
INVERSE = KnownFailure(
    "lower and upper bound the inverse of the ratio: unequal bounds keep what they should reject",
    finding="verl: bounds of rejection by the ratio",
    releases=since("verl", "0.7.1"),
)
LEVELS: Mapping[str, Any] = {"token": "token", "sequence": "sum", "geometric": "mean"}
OLDER = {
    name: RejectionRule(over=over, statistic="ratio", lower=RATIOS[0], upper=RATIOS[1])
    for name, over in LEVELS.items()
}
"""Criteria before 0.7.1."""


def rejection_rules() -> dict[str, RejectionRule]:
    """Return a rule for each criterion of the release whose name is of the known form."""
    found = {}
    for name in rejections():
        over, _, estimator = name.rpartition("_")
        if over in OVER and estimator == "k1":
            found[name] = RejectionRule(over=OVER[over], statistic="ratio", lower=RATIOS[0], upper=RATIOS[1])
        elif over in OVER and estimator in ("k2", "k3"):
            statistic: Any = estimator
            found[name] = RejectionRule(over=OVER[over], statistic=statistic, upper=DIVERGENCES[over])
    return found


def rejection_names() -> list[str]:
    """Return the criteria that rules are made of; none where the release has no such criteria."""
    try:
        return list(rejection_rules())
    except Gone:
        return []


class VerlCorrection(KnowsFailures):
    """`compute_rollout_correction_weights` and `compute_rollout_rejection_mask`.

    Before 0.6.1 `compute_rollout_importance_weights` cuts weights, or rejects by them.
    """

    weight_rules: Mapping[str, WeightRule]
    known_failures: ClassVar[Sequence[KnownFailure]] = (INVERSE.of("R12.rejection/rejected by the ratio"),)

    def __init__(self) -> None:
        """Find the functions, the criteria, and whether weights have a lower bound; they have none before 0.8."""
        try:
            self.weights = find_name("verl", [f"{HELPER}:compute_rollout_correction_weights"])
        except Gone:
            self.both = find_name("verl", [f"{MISMATCH}:compute_rollout_importance_weights"])
            self.weights = self.rejection = None
            bounded = normalizes = False
        else:
            self.rejection = find_name("verl", [f"{HELPER}:compute_rollout_rejection_mask"])
            bounded = hasattr(importlib.import_module(HELPER), "_parse_rollout_is_threshold")
            normalizes = True
        self.rejection_rules = rejection_rules() if rejection_names() else OLDER
        self.weight_rules = {
            name: rule
            for name, rule in WEIGHTS.items()
            if (bounded or rule.lower is None) and (normalizes or not rule.mean_one)
        }

    def correction_weights(self, log_ratio_BT: Tensor, mask_BT: Tensor, name: str) -> Tensor:
        rule = self.weight_rules[name]
        level = name.partition(",")[0]
        if self.weights is None:
            return self._both(log_ratio_BT, mask_BT, level, "truncate", rollout_is_threshold=rule.upper)[0]
        weights: Tensor = self.weights(
            log_ratio_BT,
            mask_BT,
            rollout_is=level,
            rollout_is_threshold=rule.upper if rule.lower is None else f"{rule.lower}_{rule.upper}",
            rollout_is_batch_normalize=rule.mean_one,
        )[0]
        return weights

    def kept_tokens(self, log_ratio_BT: Tensor, mask_BT: Tensor, name: str) -> Tensor:
        rule = self.rejection_rules[name]
        if self.rejection is None:
            bounds = {"rollout_is_threshold": rule.upper, "rollout_is_threshold_lower": rule.lower}
            weights, *left = self._both(log_ratio_BT, mask_BT, name, "mask", **bounds)
            return (left[0] if left else weights > 0).long()
        given: dict[str, Any] = {"rollout_rs_threshold": str(rule.upper)}
        if name in OLDER:
            given = {"rollout_rs_threshold": rule.upper, "rollout_rs_threshold_lower": rule.lower}
        elif rule.statistic == "ratio":
            given = {"rollout_rs_threshold": f"{rule.lower}_{rule.upper}"}
        kept: Tensor = self.rejection(log_ratio_BT, mask_BT, rollout_rs=name, **given)[0]
        return kept

    def _both(
        self, log_ratio_BT: Tensor, mask_BT: Tensor, level: str, mode: str, **bounds: Any
    ) -> list[Tensor]:
        """Return weights, and the mask that is left where the release gives it apart from them."""
        sampler_BT = torch.zeros_like(log_ratio_BT)
        options = {"rollout_is_level": level, "rollout_is_mode": mode, "rollout_is_veto_threshold": None}
        found, *left, _ = self.both(log_ratio_BT, sampler_BT, mask_BT, **options, **bounds)
        return [found.batch["rollout_is_weights"], *left]


CUT_SHARES = KnownFailure(
    "shares of rows with extreme weights are taken of weights that were cut: none is beyond the threshold",
    finding="verl: shares of rows with extreme weights",
    releases=before("verl", "0.9"),
).of(
    *(
        f"R31.corrections/{law}{where}"
        for law in ("weights and their metrics", "weights and rejection together")
        for where in ("", ", as a step makes them")
    )
)


class VerlCorrectionMetrics(KnowsFailures):
    """The whole of a rollout's correction: weights, mask and metrics of log-probabilities, and of a step's batch."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (CUT_SHARES,)

    def __init__(self) -> None:
        """Find the functions."""
        self.compute = find_name("verl", [f"{HELPER}:compute_rollout_correction_and_rejection_mask"])
        self.add = find_name("verl", [f"{HELPER}:compute_rollout_correction_and_add_to_batch"])
        self.batch_class = find_name("verl", ["verl:DataProto", "verl.protocol:DataProto"])
        self.bounded = hasattr(importlib.import_module(HELPER), "_parse_rollout_is_threshold")
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "sampler correction": self.corrected,
            "sampler correction of a step": self.of_a_step,
        }

    def corrected(
        self,
        trainer: Tensor,
        sampler: Tensor,
        mask: Tensor,
        options: Mapping[str, Any],
        rules: Sequence[tuple[str, str, float]],
    ) -> tuple[Any, list[list[float]], dict[str, float]]:
        """Return weights of training tokens, the mask, and metrics."""
        given = self._options(options, rules)
        proto, left, metrics = self.compute(trainer, sampler, mask, **given)
        weights = None if proto is None else proto.batch["rollout_is_weights"]
        return self._read(weights, left, metrics, mask, rules)

    def of_a_step(
        self,
        trainer: Tensor,
        sampler: Tensor,
        mask: Tensor,
        options: Mapping[str, Any],
        rules: Sequence[tuple[str, str, float]],
    ) -> tuple[Any, list[list[float]], dict[str, float]]:
        """Return the same of a batch."""
        batch = self.batch_class.from_dict(
            tensors={"old_log_probs": trainer, "rollout_log_probs": sampler, "response_mask": mask}
        )
        found, metrics = self.add(batch, self._options(options, rules))
        weights = found.batch["rollout_is_weights"] if options else None
        if not options and "rollout_is_weights" in found.batch:
            raise ValueError("weights where none are configured")
        return self._read(weights, found.batch["response_mask"], metrics, mask, rules)

    def _options(self, options: Mapping[str, Any], rules: Sequence[tuple[str, str, float]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if options:
            lower, upper = options["lower"], options["upper"]
            if lower is not None and not self.bounded:
                raise NotServed("weights have no lower bound")
            found = {
                "rollout_is": {"token": "token", "row": "sequence"}[options["weights"]],
                "rollout_is_threshold": upper if lower is None else f"{lower}_{upper}",
                "rollout_is_batch_normalize": options["mean_one"],
            }
        if rules:
            if not rejection_names():
                raise NotServed("criteria of this release have other names")
            names = [f"{PREFIXES[over]}_{statistic}" for over, statistic, _ in rules]
            if not set(names) <= set(rejections()):
                raise NotServed(f"not every one of {names} is a criterion")
            found["rollout_rs"] = ",".join(names)
            found["rollout_rs_threshold"] = ",".join(str(largest) for *_, largest in rules)
        return found

    def _read(
        self,
        weights: Tensor | None,
        left: Tensor,
        metrics: Mapping[str, float],
        mask: Tensor,
        rules: Sequence[tuple[str, str, float]],
    ) -> tuple[Any, list[list[float]], dict[str, float]]:
        renamed = {
            f"rollout_rs_{PREFIXES[over]}_{statistic}_": f"{over} {statistic} "
            for over, statistic, _ in rules
        }
        found = {}
        for name, value in metrics.items():
            own = name.removeprefix("rollout_corr/")
            prefix = next((one for one in renamed if own.startswith(one)), "rollout_rs_")
            found[renamed.get(prefix, "") + own.removeprefix(prefix)] = float(value)
        rows = None
        if weights is not None:
            rows = [row[shown.bool()].tolist() for row, shown in zip(weights, mask, strict=True)]
            if bool((weights * (1 - mask)).any()):
                raise ValueError("weights of tokens that do not train are not 0")
        return rows, left.tolist(), found


ADAPTERS: dict[str, type[Any]] = {
    "rollout-correction": VerlCorrection,
    "rollout-correction-metrics": VerlCorrectionMetrics,
}
