"""The page on many releases says what was recorded, and every broken law in it is declared or a known bug."""

import datetime
import json
from pathlib import Path

import pytest
from tests.peers.wild.releases import (
    KNOWN,
    RECORD,
    RELEASES,
    known_bug,
    name_of,
    record,
    unknown,
    without_record,
)
from tests.peers.wild.releases_table import drawn
from tests.peers.wild.worker import OWN_RELEASES, SHARED

from seatrial.relations.registry import all_relations
from seatrial.targets.common.fixed_bugs import FixedBug

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
CURRENT = {entry["target"]: entry for entry in RELEASES}
"""The last release of each target."""


def test_the_tables_are_those_that_the_record_gives(repository: Path) -> None:
    """Drawn anew, the page is as it stands."""
    page = (repository / "docs/evidence/releases.md").read_text(encoding="utf-8")
    assert drawn(page) == page


def test_a_release_is_not_imported_before_it_is_on_the_path() -> None:
    """What jobs share comes from their layer, and so the release of a package would run as the layer's."""
    shared = {name.partition(".")[0] for name in SHARED}
    alone = {entry["target"] for entry in RELEASES if len(entry["installed"]) > 1}
    assert "transformers" in alone & shared
    assert alone & shared <= set(OWN_RELEASES)


def test_the_record_is_of_the_releases_that_are_listed() -> None:
    assert list(RECORDED) == [name_of(entry) for entry in RELEASES]


def test_they_are_many_and_lie_far_apart() -> None:
    """Six releases of TRL and more over two years, three of verl and more."""
    dates = {target: [e["date"] for e in RELEASES if e["target"] == target] for target in CURRENT}
    assert len(dates["trl"]) >= 6
    assert max(dates["trl"]) - min(dates["trl"]) >= datetime.timedelta(days=730)
    assert len(dates["verl"]) >= 3
    assert all(of == sorted(of) for of in dates.values())


@pytest.mark.parametrize("entry", RELEASES, ids=[name_of(entry) for entry in RELEASES])
def test_nothing_is_broken_without_an_explanation(entry: dict) -> None:  # type: ignore[type-arg]
    found = RECORDED[name_of(entry)]
    assert unknown(entry, found) == []
    assert sum(row.get("held", 0) for row in found.values()) > 0
    assert not any(row.get("blocked") for row in found.values())


@pytest.mark.parametrize("entry", RELEASES, ids=[name_of(entry) for entry in RELEASES])
def test_every_adapter_of_ordinary_runs_has_a_record(entry: dict) -> None:  # type: ignore[type-arg]
    """But for those that are listed as not judged yet; the page counts them, and those of thorough runs."""
    found = RECORDED[name_of(entry)]
    assert without_record(entry, found, thorough=False) == entry.get("unjudged", [])
    first = next(name for name in found if "held" in found[name])
    left = {name: row for name, row in found.items() if name != first}
    assert first in [
        name for thorough in (False, True) for name in without_record(entry, left, thorough=thorough)
    ]


@pytest.mark.parametrize("entry", CURRENT.values(), ids=list(CURRENT))
def test_current_releases_break_what_their_adapters_declare_and_nothing_else(entry: dict) -> None:  # type: ignore[type-arg]
    """But for those that only some of the drawn sequences of calls meet."""
    found = RECORDED[name_of(entry)]
    assert not any(row.get("broken") for row in found.values())
    assert unknown(entry, found) == []


@pytest.fixture(scope="module")
def met() -> set[FixedBug | None]:
    """Return the bugs by which the record is explained."""
    return {
        known_bug(entry, adapter, law)
        for entry in RELEASES
        for adapter, row in RECORDED[name_of(entry)].items()
        for law in (*row.get("broken", []), *row.get("declared", []))
    }


ORDINARY = [relation.key(law) for relation in all_relations() for law in relation.chosen_laws(thorough=False)]
"""Laws that are judged without `--thorough`."""


@pytest.mark.parametrize("bug", KNOWN, ids=[bug.what for bug in KNOWN])
def test_every_known_bug_is_met_somewhere(bug: FixedBug, met: set[FixedBug | None]) -> None:
    """One that no release shows explains nothing; those of laws that only thorough runs judge have no record."""
    assert bug in met or not any(bug.breaks(law) for law in ORDINARY)


def test_a_law_that_no_one_explains_is_named() -> None:
    """Broken, or holding against a declaration (but for drawn calls); what a release mends excuses nothing in it."""
    bug = KNOWN[0]
    entry = next(one for one in reversed(RELEASES) if one["target"] == bug.target)
    adapter, law = bug.adapters[0], bug.laws[0]
    found = {
        adapter: {"held": 3, "declared": [], "broken": [law], "mended": [], "blocked": []},
        "other": {
            "held": 3,
            "declared": [],
            "broken": [],
            "mended": ["R9.x/y", "R29.histories/outputs"],
            "blocked": [],
        },
    }
    assert unknown(entry, found) == [f"{adapter}: {law}", "other: R9.x/y"]


def test_a_part_that_no_one_explains_is_named() -> None:
    """Also next to a part of the same law that a known bug explains; a bug of a whole law explains all its parts."""
    law = "R22.whole/scalars, two micro-batches a step"
    bug = next(bug for bug in KNOWN if f"{law}::num_tokens" in bug.laws)
    entry = next(one for one in RELEASES if name_of(one) == "trl==0.16.1")
    adapter = bug.adapters[0]
    whole = {adapter: {"broken": [f"{law}::num_tokens", f"{law}::kl"]}}
    assert unknown(entry, whole) == [f"{adapter}: {law}::kl"]
    assert (
        unknown(entry, {"whole-grpo-iterations": {"broken": ["R23.whole/training is the same::reward"]}})
        == []
    )


def test_wrong_scalars_are_recorded_one_by_one() -> None:
    """As declared and as broken."""
    details = {
        "laws": [],
        "expected_failures": {"a": "why"},
        "laws_broken": ["a", "b"],
        "parts": {"a": {"expected": ["x", "y"], "broken": ["z"]}},
    }
    found = record([{"name": "one: R22.x y", "outcome": "Fail", "details": details}])
    assert found["one"]["declared"] == ["R22.x/a::x", "R22.x/a::y"]
    assert found["one"]["broken"] == ["R22.x/a::z", "R22.x/b"]


def test_verdicts_are_counted_by_adapter() -> None:
    """A component that the release lacks is named, and Blocked is none of broken."""
    details = {"laws": ["a", "b"], "expected_failures": {"c": "why"}}
    found = record(
        [
            {"name": "one: R1.loss split", "outcome": "Fail", "details": {**details, "laws_broken": ["d"]}},
            {"name": "one: R3.loss padding", "outcome": "Blocked", "reason": "needs x", "details": details},
            {"name": "two", "outcome": "NotRequested", "reason": "gone"},
        ]
    )
    assert found["one"] == {
        "held": 4,
        "declared": ["R1.loss/c", "R3.loss/c"],
        "broken": ["R1.loss/d"],
        "mended": [],
        "blocked": ["needs x"],
    }
    assert found["two"] == {"gone": "gone"}
