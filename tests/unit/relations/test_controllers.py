"""R24.kl_controller and R4.balance: a right stack holds, and each law breaks once."""

from collections.abc import Sequence

import pytest

from seatrial.relations.contracts.controllers import ControllerPlan
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome


class Controllers:
    """Controllers of a coefficient, with a fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def kl_coefficients(self, plan: ControllerPlan) -> list[float]:
        """Return the coefficient after each update, in logarithms rather than as the oracle does."""
        values, value = [], plan.coefficient
        for divergence, size in plan.updates:
            share = divergence / plan.target
            if self.fault != "not clipped":
                share = sorted((0.8, share, 1.2))[1]
            share = 2 - share if self.fault == "sign" else share
            if plan.kind == "adaptive" or self.fault == "always adaptive":
                value += value * (share - 1) * size / plan.horizon
            values.append(value)
        return values


class Shares:
    """Rows shared out to the part that has the fewest tokens, the longest first, with a fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def balanced_parts(self, lengths: Sequence[int], num_parts: int, equal_sizes: bool) -> list[list[int]]:
        """Return the rows of each part."""
        parts: list[list[int]] = [[] for _ in range(num_parts)]
        if self.fault == "runs":
            size = len(lengths) // num_parts
            return [list(range(start, start + size)) for start in range(0, len(lengths), size)]
        most = len(lengths) // num_parts if equal_sizes and self.fault != "other sizes" else len(lengths)
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            free = [part for part in parts if len(part) < most]
            min(free, key=lambda part: sum(lengths[one] for one in part)).append(row)
        if self.fault == "row lost":
            parts[0].pop()
        return parts


@pytest.mark.parametrize(
    ("relation", "stack"), [("R24.kl_controller", Controllers()), ("R4.balance", Shares())]
)
def test_a_right_stack_holds(relation: str, stack: object) -> None:
    """On three seeds."""
    (chosen,) = select([relation])
    verdict = run_relation(chosen, stack, seeds=[0, 1, 2])
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize(
    ("relation", "stack", "law"),
    [
        ("R24.kl_controller", Controllers("always adaptive"), "fixed"),
        ("R24.kl_controller", Controllers("sign"), "adaptive, near the target"),
        ("R24.kl_controller", Controllers("not clipped"), "adaptive, far from the target"),
        ("R4.balance", Shares("row lost"), "every row once"),
        ("R4.balance", Shares("row lost"), "every row once, parts of equal numbers"),
        ("R4.balance", Shares("row lost"), "every row once, as many parts as rows"),
        ("R4.balance", Shares("other sizes"), "parts of equal numbers"),
        ("R4.balance", Shares("runs"), "parts differ by one row at most"),
        ("R4.balance", Shares("runs"), "parts of equal numbers differ by one row at most"),
        ("R4.balance", Shares("runs"), "parts as even as by the longest row first"),
        ("R4.balance", Shares("runs"), "parts of equal numbers as even as by the longest row first"),
    ],
)
def test_each_law_breaks(relation: str, stack: object, law: str) -> None:
    """One fault for each law."""
    (chosen,) = select([relation])
    assert law in run_relation(chosen, stack, seeds=[0]).details["laws_broken"]
