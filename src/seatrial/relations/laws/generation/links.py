"""R19.links: an error that a peer answers is reported at once; a silent peer is waited for as long as configured."""

from __future__ import annotations

import time
from typing import Any

from seatrial.relations.law import Measure, NoCase, Relation

NUM_MESSAGES = 3
SECONDS = 0.1
LATEST = 5.0
"""Seconds after which a wait of `SECONDS` is too long on any machine; one in minutes takes 6."""

LINKS = Relation(
    id="R19.links",
    name="a-failing-peer-is-noticed",
    component="links",
    statement="An error that a receiver answers is reported by the next message at the latest, and a peer that never "
    "answers is waited for as long as the options say.",
    catalogue="SB188 SB234 SB254",
    cost="CPU, a second",
    cases=lambda stack, seed, tidy: NoCase(),
    seeded=False,
)


@LINKS.law("errors are reported", "an answer that is read and dropped")
def errors_are_reported(stack: Any, case: Any) -> Measure:
    """Check that an error is reported by its own message or by the next, and by none before."""
    wrong = []
    for link in stack.links:
        for failing in range(NUM_MESSAGES + 1):
            reported = list(stack.failures_reported(link, NUM_MESSAGES, failing))
            first = reported.index(True) if True in reported else None
            if first not in (failing, min(failing + 1, NUM_MESSAGES)):
                wrong.append(f"{link}: the error of message {failing} is reported by message {first}")
    return Measure.count(
        wrong if stack.links else ["there is no link"], "errors reported late, early or never"
    )


@LINKS.law("a silent peer is given up", "seconds taken for minutes, a limit that nothing reads")
def silent_peer_is_given_up(stack: Any, case: Any) -> Measure:
    """Check that every wait ends, after the configured seconds and not much later."""
    wrong, waits = [], stack.waits()
    for name, wait in waits.items():
        started = time.monotonic()
        wait(SECONDS)
        seconds = time.monotonic() - started
        if not SECONDS / 2 <= seconds <= LATEST:
            wrong.append(f"{name} waits {seconds:.2g} s in place of {SECONDS} s")
    return Measure.count(wrong if waits else ["nothing waits"], "waits that are too short or too long")
