"""A rule: a verifier that gives 0 to 1 cannot have a mean reward outside of that."""

from __future__ import annotations

from seatrial.rules.rule import Limits, Marks, Parameter, StepRule, Values


def _outside(values: Values, limits: Limits) -> Marks:
    """Mark each point; arrays have one element a logged step, and element i may depend on points 0 to i alone."""
    reward = values["reward/mean"]
    inside = (limits["lowest"] <= reward) & (reward <= limits["highest"])
    return Marks(measured=reward, alarm=~inside)


RULES = (
    StepRule(
        id="reward-outside-range",
        family="my-stack",
        statement="the mean reward is one that the verifier cannot give",
        needs=("reward/mean",),
        mark=_outside,
        bound="from {lowest} to {highest}",
        parameters={
            "lowest": Parameter(0.0, "near_number gives 0 for no number"),
            "highest": Parameter(1.0, "near_number gives 1 for the right one"),
        },
        meaning="rewards that are summed instead of averaged, or scaled on the way to the log",
        remedy="check the rows against the verifier: `seatrial ledger LOGS`",
        min_points=1,
    ),
)
