"""The other project's 42 mutants and 43 tests each have a counterpart here."""

from pathlib import Path

import pytest

from seatrial.faults.harness import HarnessTest, harness_mutants, harness_tests
from seatrial.faults.mutate import all_mutants
from seatrial.faults.record import recorded
from seatrial.relations.registry import all_relations

TESTS = Path(__file__).parents[2]
RELATIONS = {relation.id for relation in all_relations()}


def test_there_are_forty_two_mutants_of_which_nineteen_were_killed() -> None:
    """The figures of the notes."""
    assert len(harness_mutants()) == 42
    assert sum(mutant.killed_there for mutant in harness_mutants()) == 19


def test_each_is_transcribed() -> None:
    """And a mutant of ours that comes from there is one of them."""
    transcribed = [mutant.ours for mutant in harness_mutants()]
    assert len(set(transcribed)) == 42
    assert set(transcribed) == {mutant.id for mutant in all_mutants() if mutant.origin == "harness"}


def test_what_is_transcribed_is_killed() -> None:
    """By a relation."""
    transcribed = [mutant.ours for mutant in harness_mutants()]
    assert [name for name in transcribed if recorded()[name].by in (None, "level 0")] == []


def test_there_are_forty_three_tests() -> None:
    """16 of batches, 14 of log-probabilities, 8 of learning, 5 from end to end."""
    files = [test.test.partition("::")[0] for test in harness_tests()]
    assert [files.count(name) for name in dict.fromkeys(files)] == [16, 14, 8, 5]
    assert len({test.test for test in harness_tests()}) == 43


@pytest.mark.parametrize("test", harness_tests(), ids=lambda test: test.test)
def test_each_counterpart_exists(test: HarnessTest) -> None:
    """A relation, or a test of ours by file and name."""
    assert test.ours
    for ours in test.ours:
        if "::" not in ours:
            assert ours in RELATIONS
            continue
        file, _, name = ours.partition("::")
        text = (TESTS / file).read_text(encoding="utf-8")
        assert name == "*" or f"def {name}(" in text
