"""What the adapter reads off images and sounds is what refrl's tasks put there."""

import pytest
from tests.unit.relations.toy_run import ToyRun

from refrl.tasks.media import ColourTask, PitchTask
from seatrial.relations.contracts import COMPONENTS
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference.runs.architectures import ReferenceArchitectures, media_of
from seatrial.verdict import Outcome


@pytest.mark.parametrize("task", [ColourTask(), ColourTask(size=6), PitchTask(), PitchTask(num_bands=3)])
def test_the_answer_is_read_off_the_media(task) -> None:
    """Of all images, and of the first thousand sounds."""
    adapter = ReferenceArchitectures()
    for number in range(min(task.num_examples, 1000)):
        prompt, answer = task.example(number)
        assert adapter.answer_in(prompt, media_of(task.media(number))) == answer


@pytest.mark.parametrize("relation", ["R6.architectures", "R17.media", "R23.architectures"])
def test_a_stack_without_architectures_is_not_asked_for_them(relation: str) -> None:
    """It offers whole runs all the same: their contract asks for nothing that only such models have."""
    (chosen,) = select([relation])
    assert run_relation(chosen, ToyRun()).outcome is Outcome.NOT_REQUESTED
    assert isinstance(ToyRun(), COMPONENTS["run"])


def test_what_a_class_freezes_is_not_said_to_train() -> None:
    """Sines for places in a sound are frozen; every other tensor of the tower trains."""
    adapter = ReferenceArchitectures()
    assert "model.audio_tower.embed_positions.weight" not in adapter.trained_by_class("audio")
    assert "model.audio_tower.layers.0.fc1.weight" in adapter.trained_by_class("audio")
