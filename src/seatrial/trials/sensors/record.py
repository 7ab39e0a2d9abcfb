"""Whether a run's own record (`run_info.json`) holds its whole configuration, defaults included."""

from __future__ import annotations

from typing import Any

from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import flat, options_of
from seatrial.trials.sensors.paths import run_facts

_ABSENT = object()


def record_is_whole(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """The record has every option that the run was configured with, at its value, and no other.

    Raises:
        NotGivenError: the target does not say how it configured the run.
    """
    configured = options_of(evidence)
    recorded: dict[str, Any] = dict(flat(run_facts(evidence).get("config", {})))
    wrong = [
        f"{name} is {_recorded(recorded, name)}, the run has {value!r}"
        for name, value in configured.items()
        if recorded.get(name, _ABSENT) != value
    ]
    wrong += [f"{name} is recorded, and is no option" for name in recorded if name not in configured]
    seen = f"{len(configured)} options, {len(wrong)} of them wrong"
    return wrong[:3], seen, len(configured)


def _recorded(recorded: dict[str, Any], name: str) -> str:
    return f"recorded as {recorded[name]!r}" if name in recorded else "not recorded"
