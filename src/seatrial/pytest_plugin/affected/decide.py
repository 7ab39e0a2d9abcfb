"""Which tests a change affects, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from seatrial.pytest_plugin.affected.fingerprints import (
    CONFIG,
    DIST,
    GLOB,
    MACHINE,
    PART,
    PYTHON,
    Fingerprints,
)
from seatrial.pytest_plugin.affected.store import Record, Version
from seatrial.pytest_plugin.affected.watch import BLIND, DIR, ENV, FILE

NEW = "it is new: there is no record of it"
FAILED = "it failed last time"
_SHOWN = 3


@dataclass(frozen=True)
class Decision:
    """Whether a test is chosen, and the reason."""

    chosen: bool
    reason: str


def decide(
    nodeids: Iterable[str], records: Mapping[str, Record], fingerprints: Fingerprints
) -> dict[str, Decision]:
    """Decide for each test. Each thing that tests depend on is looked at once."""
    reasons: dict[frozenset[Version], str] = {}
    is_changed: dict[Version, bool] = {}
    decisions = {}
    for nodeid in nodeids:
        record = records.get(nodeid)
        if record is None:
            decisions[nodeid] = Decision(True, NEW)
        elif record.outcome == "failed":
            decisions[nodeid] = Decision(True, FAILED)
        else:
            reason = reasons.get(record.versions)
            if reason is None:
                reason = reasons[record.versions] = _changes(record.versions, is_changed, fingerprints)
            left_out = f"none of the {len(record.versions)} things it depends on changed"
            decisions[nodeid] = Decision(bool(reason), reason or left_out)
    return decisions


def _changes(
    versions: frozenset[Version], is_changed: dict[Version, bool], fingerprints: Fingerprints
) -> str:
    """Return what changed, as text; empty when nothing did."""
    changed = []
    for version in versions:
        found = is_changed.get(version)
        if found is None:
            kind, name, then = version
            found = is_changed[version] = fingerprints.of(kind, name) != then
        if found:
            changed.append(version)
    words = sorted({describe(kind, name) for kind, name, _ in changed})
    more = len(words) - _SHOWN
    return (
        ", ".join(words[:_SHOWN]) + (f" and {more} more" if more > 0 else "") + (" changed" if words else "")
    )


def describe(kind: str, name: str) -> str:
    """Return what a thing is called in a reason."""
    path, _, part = name.partition("::")
    texts = {
        FILE: name,
        PART: f"{path} ({part})" if part else path,
        DIR: f"the entries of {name}/",
        ENV: f"the environment variable {name}",
        DIST: f"the installed version of {name}",
        GLOB: f"a file like {name}",
        PYTHON: "the Python version",
        CONFIG: f"pytest's settings in {name}",
        MACHINE: "the machine, on which it was skipped,",
        BLIND: f"something of the project, while it starts a process that cannot be watched ({name}),",
    }
    return texts.get(kind, name)


def summary(decisions: Mapping[str, Decision]) -> list[str]:
    """Return the reasons of the chosen tests, each with how many it chose, most frequent first."""
    counts = Counter(decision.reason for decision in decisions.values() if decision.chosen)
    return [f"{count}: {reason}" for reason, count in counts.most_common()]
