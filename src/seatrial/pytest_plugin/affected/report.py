"""The report of `--affected`: what it selected and why, and, for an audit, what it would have missed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from seatrial.pytest_plugin.affected.decide import Decision
from seatrial.pytest_plugin.affected.store import Record

_SHOWN = 10


def selection(decisions: Mapping[str, Decision], *, seeding: bool, explain: bool, audit: bool) -> list[str]:
    """Return how many tests were selected, for which reasons; with `explain`, the reason of each test."""
    chosen = sum(decision.chosen for decision in decisions.values())
    total = len(decisions)
    if seeding:
        lines = [f"affected: there is no map yet: all {total} tests run and create it"]
    else:
        would = "would be chosen (all run, for the audit)" if audit else "chosen"
        lines = [f"affected: {chosen} of {total} tests {would}, {total - chosen} left out"]
        reasons = Counter(decision.reason for decision in decisions.values() if decision.chosen)
        lines += [f"  {count}: {reason}" for reason, count in reasons.most_common(_SHOWN)]
        if len(reasons) > _SHOWN:
            lines.append(f"  and {len(reasons) - _SHOWN} more reasons (--affected-explain shows all)")
        if total and not chosen:
            lines.append("  no dependency of any test changed since it last passed")
    if explain:
        for nodeid, decision in decisions.items():
            lines.append(f"  {'run' if decision.chosen else 'out'}  {nodeid}: {decision.reason}")
    return lines


def audit(
    decisions: Mapping[str, Decision], before: Mapping[str, Record], outcomes: Mapping[str, str]
) -> list[str]:
    """Compare a selection with a run of all tests.

    A test is certainly affected if its outcome changed between passed and failed.

    Args:
        decisions: the selection.
        before: records of the tests' last runs.
        outcomes: of this run.
    """
    known = {nodeid: record.outcome == "failed" for nodeid, record in before.items()}
    changed = {n for n, outcome in outcomes.items() if n in known and known[n] != (outcome == "failed")}
    chosen = {nodeid for nodeid, decision in decisions.items() if decision.chosen}
    missed = sorted(changed - chosen)
    lines = [
        f"{len(chosen)} of {len(decisions)} tests would have been chosen; "
        f"the outcome of {len(changed)} changed, {len(missed)} of them would have been missed"
    ]
    if changed:
        lines.append(f"recall {1 - len(missed) / len(changed):.1%}")
    lines += [f"missed: {nodeid}" for nodeid in missed]
    return lines
