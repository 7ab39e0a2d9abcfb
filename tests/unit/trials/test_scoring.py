"""What is computed again for level 5: the images and sounds of the media tasks, and which expert a tensor is of."""

import numpy as np
import pytest

from refrl.media import unpack
from refrl.tasks.media import ColourTask, PitchTask
from seatrial.trials.sensors.scoring import _expert_of, image_of, sound_of


@pytest.mark.parametrize("number", [0, 1, 81, 200, 323])
def test_an_image_is_that_of_the_task(number: int) -> None:
    """Drawn by other code."""
    assert np.array_equal(image_of(number, 16), unpack(ColourTask().media(number)))


@pytest.mark.parametrize("number", [0, 5, 1234, 16383])
def test_a_sound_is_that_of_the_task_and_differs_backwards(number: int) -> None:
    """Unless it is a palindrome, such as four equal tones."""
    sound = sound_of(number, 8)
    assert np.array_equal(sound, unpack(PitchTask().media(number)))
    if number in (5, 1234):
        assert not np.array_equal(sound, sound[:, ::-1])


def test_a_tensor_of_an_expert_is_known_by_its_name() -> None:
    """Layer and expert; the router is none."""
    assert _expert_of("model.layers.1.mlp.experts.11.up_proj.weight") == (1, 11)
    assert _expert_of("model.layers.1.mlp.gate.weight") is None
    assert _expert_of("lm_head.weight") is None
