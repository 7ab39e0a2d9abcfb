"""Decides which tests a change affects, and reports why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from seatrial.pytest_plugin.affected.fingerprints import (
    CONFIG,
    DIST,
    GLOB,
    MACHINE,
    OPTION,
    PART,
    PYTHON,
    SHADOW,
    Fingerprints,
)
from seatrial.pytest_plugin.affected.sources import DOCS
from seatrial.pytest_plugin.affected.stats import STAT
from seatrial.pytest_plugin.affected.store import Record, Version
from seatrial.pytest_plugin.affected.watch import DIR, ENV, FILE, UNWATCHED

NEW = "it is new: there is no record of it"
FAILED = "it failed last time"
_SHOWN = 3


@dataclass(frozen=True)
class Decision:
    """Whether a test is selected, and why."""

    chosen: bool
    reason: str


def decide(
    made_of: Mapping[str, frozenset[str]], records: Mapping[str, Record], fingerprints: Fingerprints
) -> dict[str, Decision]:
    """Decide for each test; each dependency is examined once.

    Args:
        made_of: the functions and fixtures (`path::name`) that each test consists of now.
        records: the records of earlier runs.
        fingerprints: of the current project.
    """
    found: dict[frozenset[Version], list[Version]] = {}
    known_parts: dict[frozenset[Version], frozenset[str]] = {}
    is_changed: dict[Version, bool] = {}
    decisions = {}
    for nodeid, parts in made_of.items():
        record = records.get(nodeid)
        if record is None:
            decisions[nodeid] = Decision(True, NEW)
        elif record.outcome == "failed":
            decisions[nodeid] = Decision(True, FAILED)
        else:
            for versions in (record.shared, record.own):
                if versions not in found:
                    found[versions] = _changed(versions, is_changed, fingerprints)
                    known_parts[versions] = frozenset(name for kind, name, _ in versions if kind == PART)
            unknown = parts - known_parts[record.shared] - known_parts[record.own]
            reason = _reason(found[record.shared] + found[record.own])
            if unknown and not reason:
                # A fixture that overrides another one, or a method that overrides an inherited test.
                reason = f"{describe(PART, min(unknown))} is new to it"
            left_out = f"none of the {len(record.shared) + len(record.own)} things it depends on changed"
            decisions[nodeid] = Decision(bool(reason), reason or left_out)
    return decisions


def _changed(
    versions: frozenset[Version], is_changed: dict[Version, bool], fingerprints: Fingerprints
) -> list[Version]:
    for version in versions:
        if version not in is_changed:
            kind, name, then = version
            is_changed[version] = kind == UNWATCHED or fingerprints.of(kind, name) != then
    return [version for version in versions if is_changed[version]]


def _reason(changed: list[Version]) -> str:
    """Return what changed, as text; empty if nothing did."""
    always = sorted(name for kind, name, _ in changed if kind == UNWATCHED)
    if always:
        return f"it always runs: what {always[0]} uses for it cannot be watched"
    words = sorted({describe(kind, name) for kind, name, _ in changed})
    more = len(words) - _SHOWN
    text = ", ".join(words[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return text + (" changed" if words else "")


def describe(kind: str, name: str) -> str:
    """Return the name of a dependency in a reason."""
    path, _, part = name.partition("::")
    texts = {
        FILE: name,
        PART: f"{path} ({'docstrings' if part == DOCS else part})" if part else path,
        DIR: f"the entries of {name}/",
        ENV: f"the environment variable {name}",
        DIST: f"the installed version of {name}",
        GLOB: f"a file like {name}",
        PYTHON: "the Python version",
        OPTION: f"the command line's option {name!r}",
        SHADOW: f"where a module {path.partition('@')[0]!r} is found",
        STAT: f"whether {name} exists",
        CONFIG: f"pytest's settings in {name}",
        MACHINE: "the machine, on which it was skipped,",
    }
    return texts.get(kind, name)


_MAX_REASONS = 10


def selection_report(
    decisions: Mapping[str, Decision], *, seeding: bool, explain: bool, audit: bool
) -> list[str]:
    """Return how many tests were selected, for which reasons; with `explain`, the reason of each test."""
    chosen = sum(decision.chosen for decision in decisions.values())
    total = len(decisions)
    if seeding:
        lines = [f"affected: there is no map yet: all {total} tests run and create it"]
    else:
        would = "would be chosen (all run, for the audit)" if audit else "chosen"
        lines = [f"affected: {chosen} of {total} tests {would}, {total - chosen} left out"]
        reasons = Counter(decision.reason for decision in decisions.values() if decision.chosen)
        lines += [f"  {count}: {reason}" for reason, count in reasons.most_common(_MAX_REASONS)]
        if len(reasons) > _MAX_REASONS:
            lines.append(f"  and {len(reasons) - _MAX_REASONS} more reasons (--affected-explain shows all)")
        if total and not chosen:
            lines.append("  no dependency of any test changed since it last passed")
    if explain:
        for nodeid, decision in decisions.items():
            lines.append(f"  {'run' if decision.chosen else 'out'}  {nodeid}: {decision.reason}")
    return lines


def audit_report(
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
