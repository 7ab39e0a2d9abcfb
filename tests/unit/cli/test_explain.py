"""`seatrial explain`: every id that a message can print has an explanation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from seatrial.catalogue import SEEN, bugs, kinds
from seatrial.cli import main
from seatrial.cli.docs import catalogue_page
from seatrial.faults.mutate import all_mutants
from seatrial.relations.law import Relation
from seatrial.relations.registry import all_relations
from seatrial.rules.engine import all_rules

SOURCE = Path(__file__).resolve().parents[3] / "src"


def test_every_bug_that_the_sources_name_is_in_the_catalogue() -> None:
    """Relations, rules, faults and templates print them."""
    named: set[str] = set()
    for path in SOURCE.rglob("*"):
        if path.suffix in {".py", ".yaml", ".json", ".txt"}:
            named |= set(re.findall(r"\bSB\d{3}\b", path.read_text(encoding="utf-8")))
    assert len(named) > 280
    assert named <= set(bugs())


def test_every_bug_has_a_source_a_kind_and_a_place_where_it_shows() -> None:
    for bug_id, bug in bugs().items():
        assert re.fullmatch(r"SB\d{3}", bug_id)
        assert bug.kind in kinds(), bug_id
        assert bug.seen in SEEN, bug_id
        assert bug.stack, bug_id
        assert re.search(r"#\d+|\b[0-9a-f]{7,}\b|chronicles|comment|\d", bug.source), bug_id
        assert bug.what.endswith("."), bug_id
    assert {bug.kind for bug in bugs().values()} == set(kinds())


def test_the_page_has_every_bug_once() -> None:
    rows = re.findall(r"^\| (SB\d{3}) \|", catalogue_page(), re.MULTILINE)
    assert sorted(rows) == sorted(bugs())


def test_a_bug_is_found_without_its_zeros(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "sb69"]) == 0
    assert "SB069: known bug" in capsys.readouterr().out


def test_a_bug_names_its_source_and_the_relations_that_detect_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "sb069"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "SB069: known bug" in printed
    assert "verl: PR #5635" in printed
    for relation in all_relations():
        assert (relation.id in printed) == ("SB069" in relation.catalogue), relation.id


@pytest.mark.parametrize("relation", all_relations(), ids=lambda relation: relation.id)
def test_a_relation_names_its_statement_and_every_law(
    relation: Relation, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", relation.id]) == 0
    printed = "".join(capsys.readouterr().out.split())
    assert "".join(relation.statement.split()) in printed
    for law in relation.laws:
        assert "".join(f"{law.name}. Broken, usually: {law.suspects}".split()) in printed


def test_one_law_a_number_a_rule_and_a_planted_fault(capsys: pytest.CaptureFixture[str]) -> None:
    rule, fault = all_rules()[0], all_mutants()[0]
    assert main(["explain", "R12.loss/loss value", "R4", rule.id, fault.id]) == 0
    printed = capsys.readouterr().out
    titles = re.findall(r"^(\S.*): (?:law|relation|rule|planted fault)", printed, re.MULTILINE)
    assert titles == ["R12.loss/loss value", "R4", rule.id, fault.id]
    joined = " ".join(printed.split())
    numbered = [relation for relation in all_relations() if relation.id.partition(".")[0] == "R4"]
    assert len(numbered) > 1
    assert all(f"{relation.id} {relation.statement}" in joined for relation in numbered)
    assert f"seatrial explain {numbered[0].id}" in joined


def test_a_law_is_found_by_its_name_alone_in_every_relation_that_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A Fail line begins with the law."""
    assert main(["explain", "loss value"]) == 0
    titles = re.findall(r"^(\S+/loss value): law", capsys.readouterr().out, re.MULTILINE)
    assert "R12.loss/loss value" in titles
    assert titles == [
        item.key(law) for item in all_relations() for law in item.laws if law.name == "loss value"
    ]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("SB999", "SB299"), ("R12.los", "R12.loss"), ("R12.loss/los value", "R12.loss/loss value")],
)
def test_an_unknown_id_is_wrong_usage_with_the_nearest(
    name: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", name]) == 2
    assert nearest in capsys.readouterr().err
