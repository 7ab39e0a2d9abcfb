"""Holds targets, all their adapters unchanged, to the relations on many releases, and records what they said.

python -m tests.peers.wild.releases --python ENVIRONMENT/bin/python --layers FOLDER [--release trl==1.9.0]
python -m tests.peers.wild.releases --without-record
python -m tests.peers.wild.releases_table docs/evidence/releases.md
"""

from __future__ import annotations

import argparse
import itertools
import json
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import Version
from tests.peers.wild.runner import HERE, Task, failed_laws, verdicts_of

from seatrial.relations.expected import OF_PARTS
from seatrial.targets import PEERS
from seatrial.targets.common.fixed_bugs import FixedBug, all_fixed_bugs

_TABLE = tomllib.loads((HERE / "releases.toml").read_text(encoding="utf-8"))
RELEASES: tuple[Mapping[str, Any], ...] = tuple(_TABLE["release"])
KNOWN = all_fixed_bugs()
RECORD = HERE / "releases.json"

# Sound: a declaration is bounded by its range of releases, whose edges a script without Seatrial shows, and the laws of
# single calls (such as R29.elsewhere and R29.merged) say when a bug is over. Accelerate 1.14 has one that R30.histories
# does not meet at seed 0.
DRAWN = ("R29.histories", "R30.histories")
"""Relations that draw sequences of calls: a bug that few of them meet is not over where those of a run miss it."""

Found = dict[str, dict[str, Any]]
"""What was said of each adapter."""


def task_of(entry: Mapping[str, Any]) -> Task:
    """Return a release as the runner takes it: of its known bugs nothing is said."""
    return Task(release=(entry["target"], *entry["installed"]))


def name_of(entry: Mapping[str, Any]) -> str:
    """Return what a release is recorded under: the package with its version, or its layer."""
    return str(entry["installed"][0])


def version_of(entry: Mapping[str, Any]) -> Version:
    """Return the version of a release."""
    return Version(name_of(entry).replace("==", "-").rpartition("-")[2])


def record(verdicts: Iterable[Mapping[str, Any]]) -> Found:
    """Return for each adapter how many laws held, and which did not, or that the release has no such component.

    A law that is broken in parts is named once for each, `RELATION/law::part`.
    """
    found: Found = {}
    for verdict in verdicts:
        adapter, _, rest = verdict["name"].partition(": ")
        if not rest:
            uncovered = verdict.get("details", {}).get("uncovered", False)
            found[adapter] = {"uncovered" if uncovered else "gone": verdict["reason"]}
            continue
        row = found.setdefault(
            adapter, {"held": 0, "declared": [], "broken": [], "mended": [], "blocked": []}
        )
        relation, details = rest.split()[0], verdict["details"]
        row["held"] += len(details["laws"])
        parts = details.get("parts", {})
        for kind, laws, broken in (
            ("declared", details["expected_failures"], "expected"),
            ("broken", failed_laws(details), "broken"),
        ):
            for law in laws:
                names = [OF_PARTS + part for part in parts.get(law, {}).get(broken, [])]
                row[kind] += [f"{relation}/{law}{name}" for name in names or [""]]
        row["mended"] += details.get("laws_fixed", [])
        row["blocked"] += [verdict["reason"]] if verdict["outcome"] == "Blocked" else []
    return found


@cache
def listed(target: str) -> Mapping[str, bool]:
    """Return the adapters of a target by name, and whether only a thorough run judges them."""
    (point,) = (one for one in PEERS if one.name == target)
    return {name: getattr(one, "thorough", False) for name, one in point.load()().adapters().items()}


def without_record(entry: Mapping[str, Any], found: Found, *, thorough: bool) -> list[str]:
    """Return the adapters of ordinary runs, or else of thorough ones alone, of which a release has no record."""
    return [
        name
        for name, is_thorough in listed(entry["target"]).items()
        if is_thorough == thorough and name not in found
    ]


def law_of(broken: str) -> str:
    """Return the law of what is broken, whether in a part or as a whole."""
    return broken.partition(OF_PARTS)[0]


def known_bug(entry: Mapping[str, Any], adapter: str, law: str) -> FixedBug | None:
    """Return the known bug of a release that a broken law is about; None where no one knows of it."""
    for bug in _bugs_of(version_of(entry)):
        if bug.is_of(entry["target"], adapter) and bug.breaks(law):
            return bug
    return None


@cache
def _bugs_of(version: Version) -> Sequence[FixedBug]:
    """Return the known bugs that this release has, if it is one of their package."""
    return [bug for bug in KNOWN if Version(bug.since) <= version < Version(bug.before)]


def unknown(entry: Mapping[str, Any], found: Found) -> list[str]:
    """Return `ADAPTER: RELATION/law` of all that is broken, or holds against a declaration, unexplained."""
    return [
        f"{adapter}: {law}"
        for adapter, row in found.items()
        for law in [
            *row.get("broken", []),
            *(law for law in row.get("mended", []) if law.partition("/")[0] not in DRAWN),
        ]
        if known_bug(entry, adapter, law) is None
    ]


def judged(
    python: Path, layers: Path, entries: Sequence[Mapping[str, Any]], adapters: Sequence[str] = ()
) -> dict[str, Found]:
    """Judge releases; all adapters of their target where none is named.

    Raises:
        RuntimeError: as `runner.judge`.
    """
    said = verdicts_of(python, layers, {task_of(entry): adapters for entry in entries})
    return {name_of(entry): record(said[task_of(entry)]) for entry in entries}


def judged_again(python: Path, layers: Path, entry: Mapping[str, Any], recorded: Collection[str]) -> Found:
    """Judge the adapters of ordinary runs on a release, and those of thorough runs that have a record.

    Raises:
        RuntimeError: as `runner.judge`.
    """
    found = judged(python, layers, [entry])[name_of(entry)]
    thorough = [name for name, is_thorough in listed(entry["target"]).items() if is_thorough]
    if again := [name for name in thorough if name in recorded]:
        found |= judged(python, layers, [entry], again)[name_of(entry)]
    return found


def main() -> None:
    """Judge releases one after another, and put what is found into the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, help="interpreter of the environment `wild`")
    parser.add_argument("--layers", type=Path, help="folder that releases are kept in")
    parser.add_argument("--release", action="append", default=[], help="only this one, such as trl==1.9.0")
    parser.add_argument("--adapter", action="append", default=[], help="only this one of the target's")
    parser.add_argument("--without-record", action="store_true", help="print what has no record, and stop")
    asked = parser.parse_args()
    held = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if asked.without_record:
        for entry, thorough in itertools.product(RELEASES, (False, True)):
            names = without_record(entry, held.get(name_of(entry), {}), thorough=thorough)
            print(name_of(entry), "thorough:" if thorough else "ordinary:", len(names), *names)
        return
    if asked.python is None or asked.layers is None:
        parser.error("--python and --layers say where the releases run")
    for entry in RELEASES:
        if asked.release and name_of(entry) not in asked.release:
            continue
        recorded = held.get(name_of(entry), {})
        if asked.adapter:
            found = judged(asked.python, asked.layers, [entry], asked.adapter)[name_of(entry)]
            held[name_of(entry)] = {**recorded, **found}
        else:
            found = judged_again(asked.python, asked.layers, entry, recorded)
            held[name_of(entry)] = found
        RECORD.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
        print(f"{name_of(entry)}: unexplained {unknown(entry, found)}", flush=True)


if __name__ == "__main__":
    main()
