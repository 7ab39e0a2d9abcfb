"""KL to the reference: drift, a reference that is another model, an estimate that cannot be."""

from __future__ import annotations

import numpy as np

from seatrial.evidence.configuration import Options
from seatrial.rules.rule import HAND_SET, WILD, Limits, Marks, Parameter, StepRule, Values, figures
from seatrial.rules.windows import (
    beyond_scale,
    early_mean_and_spread,
    early_median,
    lasting,
    repeated,
    trailing_mean,
)


def _drift(values: Values, limits: Limits) -> Marks:
    kl, reward = values["kl/reference"], values["reward/mean"]
    window = int(limits["window"])
    first, spread = early_mean_and_spread(reward, window)
    gains = trailing_mean(reward, window) - first > limits["spreads"] * spread
    far = lasting(kl > limits["nats"], limits)
    lost = lasting(kl > limits["always"], limits)
    leaps = beyond_scale(kl, limits["times"], limits["least"])
    return Marks(kl, lost | leaps | (far & ~gains), lasting(kl > limits["notice"], limits))


def _at_start(values: Values, limits: Limits) -> Marks:
    kl, reward = values["kl/reference"], values["reward/mean"]
    level = early_median(kl, int(limits["first"]))
    # A run that begins at zero and climbs is drift, not another reference.
    apart = (level > limits["nats"]) & bool(len(kl) and kl[0] > limits["nats"])
    window, early = int(limits["window"]), int(limits["early"])
    first, spread = early_mean_and_spread(reward, early)
    rise = trailing_mean(reward, window) - first
    judged = np.arange(1, len(kl) + 1) >= limits["points"]
    flat = judged & (rise < limits["errors"] * spread * np.sqrt(1 / window + 1 / early))
    return Marks(level, lasting(apart & flat, limits), apart)


def _negative(values: Values, limits: Limits) -> Marks:
    kl = values["kl/reference"]
    negative = lasting(kl < -limits["nats"], limits)
    return Marks(kl, negative)


def _zero(values: Values, limits: Limits) -> Marks:
    kl = values["kl/reference"]
    moving = (values["grad_norm"] > 0) & (values["learning_rate"] > 0)
    zero = repeated((kl == 0) & moving, limits)
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
        bound="<= {nats} nats a token, except for spikes; {always} where the reward has gained (notice {notice}); "
        "most of the last tenth <= {times} times what came before, or <= {least}",
        parameters={
            "times": Parameter(30, "healthy runs of the corpus reach 8, from a KL near 0"),
            "least": Parameter(2, HAND_SET),
            "always": Parameter(5, "hand-set: twice as far"),
            "window": Parameter(10, WILD),
            "spreads": Parameter(
                2, "hand-set: of the first points; a small model that learns a new task goes far"
            ),
            **figures(WILD, nats=2.5, notice=1.5),
            "held": Parameter(
                10, "a healthy wild log has KL 18 in one of its steps, and is back in the next"
            ),
            "of_last": Parameter(12, WILD),
        },
        meaning="a learning rate that is too large, or a KL penalty of the wrong sign, direction or size",
        remedy="read completions; go back to a checkpoint before the climb, lower the learning rate",
        min_points=8,
    ),
    StepRule(
        id="kl-at-start",
        family="kl",
        statement="the policy differs from its reference before it was trained, and the reward does not rise",
        needs=("kl/reference",),
        uses=("reward/mean",),
        mark=_at_start,
        bound="<= {nats} nats in the first {first} points; if it is above, a reward that has risen by {errors} "
        "standard errors after {points} points",
        parameters={
            **figures(WILD, nats=0.4, first=3, early=10, window=40, errors=2),
            "points": Parameter(
                100, "3 healthy wild logs begin apart from their reference, and learn: a notice"
            ),
            **figures(WILD, held=20, of_last=25),
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
            **figures(WILD, held=10, of_last=12),
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
