"""Guards of requests that were given up."""

from dataclasses import replace

import pytest

from refrl.generation import pool
from refrl.generation.base import Sampler
from refrl.generation.pool import GenerationReply, GenerationRequest
from seatrial.guards import Guards
from seatrial.targets.reference.guards.continued import check_continued


def failures() -> list[str]:
    """Return what is wrong with how rows are continued."""
    guards = Guards(raises=False)
    check_continued(guards)
    assert guards.asked
    return [verdict.reason for verdict in guards.failures]


def test_rows_that_were_given_up_are_continued() -> None:
    """And no others."""
    assert failures() == []


def test_an_ended_row_that_is_continued_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind its end token."""

    def confused(engine: Sampler, request: GenerationRequest) -> GenerationReply:
        parts = [
            replace(one, finish_reason="abort") if one.finish_reason == "stop" else one
            for one in request.partial
        ]
        return pool.answer(engine, replace(request, partial=tuple(parts)))

    monkeypatch.setattr("seatrial.targets.reference.guards.continued.answer", confused)
    (reason,) = failures()
    assert "row 0, (2, 9) that ended with stop, became (2, 9, 7, 7) with length" in reason
