"""KL to the reference: drift, a reference that is another model, an estimate that cannot be."""

from __future__ import annotations

import numpy as np

from seatrial.evidence.configuration import Options
from seatrial.rules.rule import Limits, Marks, Parameter, StepRule, Values
from seatrial.rules.windows import early_mean_and_spread, early_median, held, in_a_row, trailing_mean

_HAND = "hand-set on wild logs"


def _drift(values: Values, limits: Limits) -> Marks:
    kl, reward = values["kl/reference"], values["reward/mean"]
    least, of_last = int(limits["held"]), int(limits["of_last"])
    window = int(limits["window"])
    first, spread = early_mean_and_spread(reward, window)
    gains = trailing_mean(reward, window) - first > limits["spreads"] * spread
    far = held(kl > limits["nats"], least, of_last)
    lost = held(kl > limits["always"], least, of_last)
    return Marks(kl, lost | (far & ~gains), held(kl > limits["notice"], least, of_last))


def _at_start(values: Values, limits: Limits) -> Marks:
    kl, reward = values["kl/reference"], values["reward/mean"]
    level = early_median(kl, int(limits["first"]))
    # A run that begins at zero and climbs is drift, not another reference.
    apart = (level > limits["nats"]) & bool(len(kl) and kl[0] > limits["nats"])
    window = int(limits["window"])
    first, spread = early_mean_and_spread(reward, window)
    rise = trailing_mean(reward, window) - first
    judged = np.arange(1, len(kl) + 1) >= limits["points"]
    flat = judged & (rise < limits["errors"] * spread * np.sqrt(2 / window))
    return Marks(level, held(apart & flat, int(limits["held"]), int(limits["of_last"])), apart)


def _negative(values: Values, limits: Limits) -> Marks:
    kl = values["kl/reference"]
    negative = held(kl < -limits["nats"], int(limits["held"]), int(limits["of_last"]))
    return Marks(kl, negative)


def _zero(values: Values, limits: Limits) -> Marks:
    kl = values["kl/reference"]
    moving = (values["grad_norm"] > 0) & (values["learning_rate"] > 0)
    zero = in_a_row((kl == 0) & moving, int(limits["in_a_row"]))
    return Marks(kl, np.zeros(len(kl), dtype=np.bool_), zero)


def _no_reference(configuration: Options) -> str | None:
    """Return why there is no KL to judge: refrl logs 0 where its penalty is 0, and then loads no reference."""
    if configuration.get("loss_fn.reference_policy_kl_penalty") == 0:
        return "the run has no reference (loss_fn.reference_policy_kl_penalty is 0)"
    return None


RULES = (
    StepRule(
        id="kl-drift",
        family="kl",
        statement="the policy is far from its reference and stays there",
        needs=("kl/reference",),
        uses=("reward/mean",),
        mark=_drift,
        bound="<= {nats} nats a token, but for spikes or up to {always} where the reward has gained (notice {notice})",
        parameters={
            "always": Parameter(5, "hand-set: twice as far"),
            "window": Parameter(10, _HAND),
            "spreads": Parameter(
                2, "hand-set: of the first points; a small model that learns a new task goes far"
            ),
            "nats": Parameter(2.5, _HAND),
            "notice": Parameter(1.5, _HAND),
            "held": Parameter(
                10, "a healthy wild log has KL 18 in one of its steps, and is back in the next"
            ),
            "of_last": Parameter(12, _HAND),
        },
        meaning="a learning rate that is too large, or a KL penalty of the wrong sign, direction or size",
        remedy="read completions; go back to a checkpoint before the climb, lower the learning rate",
        min_points=10,
    ),
    StepRule(
        id="kl-at-start",
        family="kl",
        statement="the policy differs from its reference before it was trained, and the reward does not rise",
        needs=("kl/reference",),
        uses=("reward/mean",),
        mark=_at_start,
        bound="<= {nats} nats at the start, or from point {points} on a reward that rose by {errors} standard errors",
        parameters={
            "nats": Parameter(0.4, _HAND),
            "first": Parameter(3, _HAND),
            "window": Parameter(40, _HAND),
            "errors": Parameter(2, _HAND),
            "points": Parameter(
                100, "3 healthy wild logs begin apart from their reference, and learn: a notice"
            ),
            "held": Parameter(20, _HAND),
            "of_last": Parameter(25, _HAND),
        },
        meaning="a reference of other weights (on purpose where it is a teacher or the base of a tuned model), dropout "
        "in one of the two, another temperature or precision, or adapters that are on in the reference",
        remedy="score one batch with both models before the first update: the log-probabilities must be equal",
        min_points=3,
    ),
    StepRule(
        id="kl-negative",
        family="kl",
        statement="the KL to the reference is negative in the mean",
        needs=("kl/reference",),
        mark=_negative,
        bound=">= -{nats} nats in the mean of a step",
        parameters={
            "nats": Parameter(
                0.05, "a KL is not negative; the estimate k1 may be in one batch, k2 and k3 never"
            ),
            "held": Parameter(10, _HAND),
            "of_last": Parameter(12, _HAND),
        },
        meaning="the difference taken the wrong way round, or completions sampled from another model than is scored",
        remedy="`seatrial relations` on the KL, and compare k1 with k3",
        min_points=10,
    ),
    StepRule(
        id="kl-zero",
        not_for=_no_reference,
        family="kl",
        statement="the KL to the reference stays exactly zero while the policy is updated",
        needs=("kl/reference", "grad_norm", "learning_rate"),
        mark=_zero,
        bound="> 0 in one of {in_a_row} steps with an update",
        parameters={
            "in_a_row": Parameter(20, "hand-set; some stacks log 0 where no reference is used: a notice only")
        },
        meaning="no reference, a reference that shares the policy's weights, or an update that does not arrive",
        remedy="if a KL penalty is on: compare a weight of policy and reference after a step",
        min_points=20,
    ),
)
