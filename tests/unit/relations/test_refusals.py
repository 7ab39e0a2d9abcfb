"""The laws of refusals, on calls that take or refuse the wrong inputs."""

from collections.abc import Callable, Sequence

import pytest

from seatrial.relations.contracts.refusals import Trial
from seatrial.relations.engine import run_relation
from seatrial.relations.laws.options.refusals import REFUSED
from seatrial.verdict import Outcome


def takes() -> None:
    """Accept anything."""


def refuses() -> None:
    """Refuse anything, by the name `size`."""
    raise ValueError("size=3 is too large")


class Stack:
    """A call beyond the limit of a size, and one within it."""

    def __init__(self, beyond: Callable[[], None], within: Callable[[], None], says: str = "size") -> None:
        self._calls = beyond, within
        self._says = says

    def trials(self) -> Sequence[Trial]:
        """See `contracts.refusals.Refusals`."""
        beyond, within = self._calls
        return [
            Trial(what="three", call=beyond, says=self._says),
            Trial(what="two", call=within, says=None),
        ]


def test_calls_that_are_refused_and_accepted_pass() -> None:
    """With the same stand-ins as below."""
    assert run_relation(REFUSED, Stack(refuses, takes)).outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("stack", "law", "said"),
    [
        (Stack(takes, takes), "refused", "three is accepted"),
        (Stack(refuses, takes, says="width"), "refused", "does not name width"),
        (Stack(refuses, refuses), "accepted", "two: ValueError"),
    ],
    ids=["taken", "another message", "refused within the limit"],
)
def test_each_slip_is_seen(stack: Stack, law: str, said: str) -> None:
    """By its own law, which names the call."""
    verdict = run_relation(REFUSED, stack)
    assert verdict.outcome is Outcome.FAIL
    assert f"law '{law}' broken" in verdict.reason
    assert said in verdict.reason
