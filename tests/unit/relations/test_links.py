"""The laws of links, on stand-ins whose waits and answers are wrong in one way each."""

from collections.abc import Callable, Mapping, Sequence

import pytest

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.generation import links
from seatrial.relations.laws.generation.links import LINKS
from seatrial.verdict import Outcome


class Clock:
    """Time that passes in waits alone."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """See `time.monotonic`."""
        return self.seconds


class Stack:
    """A link that reports an error so many messages late, and a wait so many times too long."""

    links = ("made",)

    def __init__(self, clock: Clock, *, late: int = 0, factor: float = 1.0) -> None:
        self._clock, self._late, self._factor = clock, late, factor

    def failures_reported(self, link: str, num_messages: int, failing: int) -> Sequence[bool]:
        """See `contracts.links.Links`."""
        return [number == failing + self._late for number in range(num_messages + 1)]

    def waits(self) -> Mapping[str, Callable[[float], object]]:
        """See `contracts.links.Links`."""

        def wait(seconds: float) -> None:
            self._clock.seconds += self._factor * seconds

        return {"made": wait}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Return the clock of the laws."""
    made = Clock()
    monkeypatch.setattr(links, "time", made)
    return made


def test_links_that_report_and_give_up_in_time_pass(clock: Clock) -> None:
    """With the same stand-in as below."""
    assert run_relation(LINKS, Stack(clock)).outcome is Outcome.PASS


@pytest.mark.parametrize("factor", [60.0, 0.0], ids=["minutes", "no wait"])
def test_another_unit_is_seen(clock: Clock, factor: float) -> None:
    """Seconds taken for minutes, and a limit that ends at once."""
    assert "law 'a silent peer is given up' broken" in run_relation(LINKS, Stack(clock, factor=factor)).reason


@pytest.mark.parametrize("late", [-1, 2, 9], ids=["before it", "two messages late", "never"])
def test_an_error_at_another_message_is_seen(clock: Clock, late: int) -> None:
    """The link may report it with the next message, and no later."""
    assert "law 'errors are reported' broken" in run_relation(LINKS, Stack(clock, late=late)).reason
