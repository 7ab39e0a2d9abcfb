"""R24.kl_controller: the coefficient of a KL penalty follows its controller's formula."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from seatrial.relations.contracts.controllers import ControllerPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.worst import relative_error

LARGEST_ERROR = 0.2
"""To which the relative error of the divergence is clipped (Ziegler et al. 2019, section 2.2)."""


def _plan(kind: Literal["fixed", "adaptive"], *relative: float) -> Callable[[Any, int, bool], ControllerPlan]:
    """Return a law's `cases`: updates at these multiples of the target, samples unequal in number."""

    def make(stack: Any, seed: int, tidy: bool) -> ControllerPlan:
        rng = np.random.default_rng([seed, 24])
        target = float(rng.uniform(0.5, 7.0))
        sizes = [64] * len(relative) if tidy else [int(size) for size in rng.integers(8, 400, len(relative))]
        return ControllerPlan(
            kind=kind,
            coefficient=float(rng.uniform(0.01, 0.3)),
            target=target,
            horizon=int(rng.integers(900, 3000)),
            updates=tuple((one * target, size) for one, size in zip(relative, sizes, strict=True)),
        )

    return make


CONTROLLER = Relation(
    id="R24.kl_controller",
    name="kl-coefficient-follows-its-controller",
    component="kl_controller",
    statement="After each update the coefficient is that of the controller's formula, its error clipped.",
    cost="CPU, milliseconds",
    cases=_plan("adaptive", 1.1),
)


@CONTROLLER.law("fixed", "a controller that is always adaptive", cases=_plan("fixed", 0.2, 3.0))
@CONTROLLER.law(
    "adaptive, near the target",
    "the error of the target in place of the divergence's, its sign turned, the horizon left out",
    cases=_plan("adaptive", 1.1, 0.95, 1.0, 1.15),
)
@CONTROLLER.law(
    "adaptive, far from the target",
    "an error that is not clipped, or on one side alone",
    cases=_plan("adaptive", 9.0, 0.0),
)
def coefficients_follow_the_formula(stack: Any, case: ControllerPlan) -> Measure:
    """Compare the coefficient after each update with b (1 + clip(KL / target - 1) n / horizon)."""
    found, right = [], case.coefficient
    given = list(stack.kl_coefficients(case))
    if len(given) != len(case.updates):
        return Measure.count([f"{len(given)} coefficients of {len(case.updates)}"], "coefficients")
    for number, ((divergence, size), value) in enumerate(zip(case.updates, given, strict=True), start=1):
        if case.kind == "adaptive":
            error = max(-LARGEST_ERROR, min(LARGEST_ERROR, (divergence - case.target) / case.target))
            right *= 1 + error * size / case.horizon
        found.append((relative_error(value, right), f"update {number}: {value:.6g}, {right:.6g} is due"))
    return Measure.largest(found, 1e-9, "coefficients, relative difference")
