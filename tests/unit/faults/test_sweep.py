"""The sweep asks the relations that are about a plant first, and finds those that the issue of the wiring named."""

from pathlib import Path

import pytest

from seatrial.faults import sweep
from seatrial.faults.plant import all_plants
from seatrial.faults.record import Seen, load
from seatrial.faults.sweep import LONG, look_with, relations_for
from seatrial.relations.registry import all_relations

PLANTS = {plant.id: plant for plant in all_plants()}


@pytest.mark.parametrize(
    ("plant", "relation"),
    [
        ("top-p-not-passed-on", "R6.run"),
        pytest.param("reference-logprobs-are-the-old-ones", "R9.run", marks=pytest.mark.nightly),
        pytest.param("one-stream-for-every-step", "R26.run", marks=pytest.mark.nightly),
    ],
)
def test_a_fault_in_the_wiring_is_seen(plant: str, relation: str) -> None:
    """Planted in what runs, each was once invisible to an adapter that made a loop of its own."""
    seen = look_with(PLANTS[plant], [relation])
    assert seen is not None
    assert seen.by == relation


@pytest.mark.parametrize(
    ("plant", "first"),
    [
        ("status-not-raised", "R18.command"),
        ("top-p-by-default", "R18.defaults"),
        ("blank-line-ends-the-file", "R14.files"),
        ("ranks-share-their-streams", "R1.run"),
        ("spread-gradients-averaged", "R2"),
        ("megatron-scales-the-loss-itself", "R9.run"),
        ("steps-of-the-moments-restart", "R13.run"),
    ],
)
def test_relations_about_a_module_are_asked_first(plant: str, first: str) -> None:
    """What costs most otherwise is a plant that only the last relation sees; worked examples take a second."""
    assert next(name for name in relations_for(PLANTS[plant]) if name != "R34.worked") == first


def test_every_relation_is_asked_of_a_plant_in_a_verifier() -> None:
    """Each once; the long ones after a trial."""
    asked = [*relations_for(PLANTS["partial-reward-rounded"]), *LONG]
    assert sorted(asked) == sorted(relation.id for relation in all_relations())


def test_a_cell_that_only_the_fault_allows_is_left_out() -> None:
    """What is asked in it could not hold without the fault; the default cell is asked as ever."""
    assert look_with(PLANTS["unknown-keys-ignored"], ["R1.loss"]) is None


@pytest.mark.parametrize(
    ("plant", "said", "recorded"),
    [
        ("lease-of-ray-not-configured", "unmeasured, needs ray", False),
        ("k2-without-its-half", "MISSED", True),
    ],
)
def test_what_a_missing_package_hides_is_unmeasured_and_not_missed(
    plant: str,
    said: str,
    recorded: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is asked here: a fault that no relation sees is a miss only where its module can run."""
    monkeypatch.setattr(sweep, "find_spec", lambda name: None)
    monkeypatch.setattr(sweep, "look_with", lambda plant, relations: None)
    monkeypatch.setattr(sweep, "first_seen", lambda plant, cell, relations: None)
    monkeypatch.setattr(sweep, "level_0", lambda fault_id, overrides=(): None)
    output = tmp_path / "seen.json"
    assert sweep.main([plant, "--output", str(output)]) == 0
    assert f"{plant}: {said}" in capsys.readouterr().out
    assert load(output) == ({plant: Seen(by=None, said="")} if recorded else {})
