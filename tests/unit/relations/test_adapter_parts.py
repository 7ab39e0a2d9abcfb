"""R31.adapter_parts: uses with right results hold, and a wrong one breaks the law of its subject."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.utilities.adapter_parts import BOUND, NAME, PARTS, SUBJECTS, Use, error_of
from seatrial.relations.not_served import NotServed
from seatrial.verdict import Outcome


def refused() -> tuple[Any, Any]:
    """Raise NotServed."""
    raise NotServed("older")


def crashed() -> tuple[Any, Any]:
    """Raise an error of the library."""
    raise RuntimeError("of two shapes")


def right() -> tuple[Any, Any]:
    """Return a result that is right."""
    return torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0])


def wrong() -> tuple[Any, Any]:
    """Return a result that is wrong."""
    return torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1])


class Library:
    """Two uses of each subject, and those that are given for one."""

    def __init__(self, subject: str = "", uses: Sequence[Use] = ()) -> None:
        """Keep them."""
        self.own = {subject: uses}
        self.utilities: Mapping[str, Any] = {NAME: self.uses}

    def uses(self, subject: str, seed: int) -> Sequence[Use]:
        """Return uses."""
        return self.own.get(subject, [("one", right), ("another", right)])


def test_right_results_hold() -> None:
    """Of every subject."""
    verdict = run_relation(PARTS, Library(), seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == set(SUBJECTS)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_wrong_result_breaks_its_law(subject: str) -> None:
    """Among right ones, and next to one that raises."""
    verdict = run_relation(
        PARTS, Library(subject, [("one", right), ("two", wrong), ("three", crashed)]), seeds=[0]
    )
    assert verdict.outcome is Outcome.FAIL
    assert f"law {subject!r} broken" in verdict.reason
    assert "1 of them wrong, at two" in verdict.reason


def test_what_raises_or_is_not_served_is_left_out() -> None:
    """As long as something was compared."""
    verdict = run_relation(
        PARTS, Library("tasks", [("one", right), ("two", refused), ("three", crashed)]), seeds=[0]
    )
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize(
    ("use", "said"), [(refused, "older"), (crashed, "raises RuntimeError: of two shapes")]
)
def test_nothing_compared_is_no_pass(use: Callable[[], tuple[Any, Any]], said: str) -> None:
    """The reason is named."""
    laws = [law for law in PARTS.laws if law.name == "tasks"]
    verdict = run_relation(PARTS, Library("tasks", [("one", use)]), seeds=[0])
    assert laws
    assert verdict.outcome is not Outcome.FAIL or use is crashed
    assert said in str(verdict)


@pytest.mark.parametrize(
    ("found", "due", "error"),
    [
        (torch.zeros(2), torch.zeros(3), math.inf),
        (torch.tensor([math.nan]), torch.tensor([1.0]), math.inf),
        ({"a": 1}, {"a": 1}, 0.0),
        ({"a": 1}, {"b": 1}, math.inf),
        ([1, 2], [1], math.inf),
        ("a", "b", math.inf),
        (1, True, math.inf),
        (0.5, 0.5, 0.0),
    ],
)
def test_errors_of_values(found: Any, due: Any, error: float) -> None:
    """Another form, NaN and another type are infinite."""
    assert error_of(found, due) == error


def test_the_bound_is_that_of_float32() -> None:
    """Some thousand roundings."""
    assert 1000 * torch.finfo(torch.float32).eps < BOUND < 1e-3
