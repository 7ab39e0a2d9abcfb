"""What is recorded of the planted faults is complete, explains what is not seen, and holds the rate that is claimed."""

from pathlib import Path

import pytest

from seatrial.faults.mutate import Mutant, all_mutants
from seatrial.faults.page import misses
from seatrial.faults.plant import Plant, all_plants
from seatrial.faults.record import Seen, load, recorded, save
from seatrial.faults.sweep import level_0, look

RATE = 0.9
FAULTS: dict[str, Mutant | Plant] = {
    **{mutant.id: mutant for mutant in all_mutants()},
    **{plant.id: plant for plant in all_plants()},
}


def test_what_is_recorded_is_planted_and_every_mutant_is_recorded() -> None:
    """`python -m seatrial.faults.sweep` measures what is missing; the page counts it apart."""
    assert set(recorded()) <= set(FAULTS)
    assert [mutant.id for mutant in all_mutants() if mutant.id not in recorded()] == []


def test_every_mutant_is_seen_by_a_relation() -> None:
    """They are there to show that relations can fail."""
    assert [mutant.id for mutant in all_mutants() if recorded()[mutant.id].by in (None, "level 0")] == []


def test_what_nothing_sees_is_explained_and_nothing_else_is() -> None:
    """A miss without a reason is one that nobody looked into."""
    measured = [fault for fault in FAULTS.values() if fault.id in recorded()]
    missed = {fault.id for fault in measured if recorded()[fault.id].by is None}
    assert set(misses()) == missed


def test_the_blind_plants_are_seen_at_the_rate_that_is_claimed() -> None:
    """At least sixty, by who had not read the detectors. Nine of ten are wanted."""
    measured = [plant for plant in all_plants() if plant.id in recorded()]
    seen = [plant for plant in measured if recorded()[plant.id].by is not None]
    assert len(measured) >= 60
    assert len(seen) >= RATE * len(measured)


def test_at_least_sixty_known_bugs_are_planted() -> None:
    """Distinct ids of the catalogue of silent bugs."""
    assert len({known for fault in FAULTS.values() for known in fault.catalogue}) >= 60


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_the_record_is_what_is_measured(name: str) -> None:
    """Measured again; those of vLLM where vLLM is installed."""
    if FAULTS[name].options.get("policy.generation.backend") == "vllm":
        pytest.importorskip("vllm")
    assert look(FAULTS[name], {}).by == recorded()[name].by


@pytest.mark.e2e
@pytest.mark.usefixtures("forked_processes")
def test_a_level_0_trial_sees_a_fault_in_what_it_looks_at() -> None:
    """And says which verdict it was."""
    said = level_0("advantages-negated")
    assert said is not None
    assert "advantages" in said


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """Whole."""
    found = {"b": Seen(by="R1.loss", said="law"), "a": Seen(by=None, said="")}
    save(tmp_path / "seen.json", found)
    assert load(tmp_path / "seen.json") == found
    assert load(tmp_path / "none.json") == {}
