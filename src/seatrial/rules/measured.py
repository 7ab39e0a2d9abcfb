"""How often each rule could judge a healthy run and alarmed falsely: `healthy.json`, written by the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import NamedTuple

DATA = "healthy.json"


class FalseAlarms(NamedTuple):
    """False alarms of a rule."""

    alarms: int
    judged: int
    """Healthy runs in which it had its inputs."""

    def __str__(self) -> str:
        """Return it in words."""
        return (
            f"{self.alarms} of {self.judged} healthy runs" if self.judged else "no healthy run had its inputs"
        )


def false_alarms(rule_id: str) -> FalseAlarms:
    """Return the recorded false alarms of a rule over all kinds of runs; zeros for a rule that was never measured."""
    rows = [rules[rule_id] for rules in _recorded().values() if rule_id in rules]
    return FalseAlarms(sum(alarms for _, alarms in rows), sum(judged for judged, _ in rows))


@cache
def _recorded() -> Mapping[str, Mapping[str, Sequence[int]]]:
    text = resources.files("seatrial.rules").joinpath(DATA).read_text(encoding="utf-8")
    found: dict[str, dict[str, list[int]]] = json.loads(text)
    return found
