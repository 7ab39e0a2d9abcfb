"""The answer of a task stands in its image or sound: whoever looks there finds it."""

import numpy as np
import pytest

from refrl.config import ConfigError, DataConfig
from refrl.media import PLACEHOLDER, pack, stack, unpack
from refrl.tasks import make_splits
from refrl.tasks.base import make_task
from refrl.tasks.media import ColourTask, PitchTask

CORNERS = {"a": (0, 0), "b": (0, -1), "c": (-1, 0), "d": (-1, -1)}


@pytest.mark.parametrize("number", [0, 1, 2, 7, 130, 323])
def test_the_colour_is_that_of_the_corner(number: int) -> None:
    """The one of three channels that is bright there."""
    task = ColourTask()
    prompt, answer = task.example(number)
    image = unpack(task.media(number))
    assert image.shape == (3, 16, 16)
    row, column = CORNERS[prompt.replace(PLACEHOLDER, "")[0]]
    assert answer == ("red", "green", "blue")[int(image[:, row, column].argmax())]
    assert prompt.count(PLACEHOLDER) == 4


@pytest.mark.parametrize("number", [0, 1, 2, 7, 130, 16383])
def test_the_band_is_the_loud_one(number: int) -> None:
    """In the middle of the tone's four frames."""
    task = PitchTask()
    prompt, answer = task.example(number)
    sound = unpack(task.media(number))
    assert sound.shape == (8, 16)
    tone = "abcd".index(prompt.replace(PLACEHOLDER, "")[0])
    assert answer == str(int(sound[:, 4 * tone + 2].argmax()))


def test_no_two_numbers_have_one_image_and_question() -> None:
    """Splits that share no number share no prompt with its image."""
    task = ColourTask()
    seen = {(task.example(number), task.media(number)) for number in range(task.num_examples)}
    assert len(seen) == task.num_examples == 324


def test_splits_carry_the_media() -> None:
    """Of the number that the prompt is of."""
    splits = make_splits(DataConfig(task="pitch", num_train=4, num_validation=2))
    assert [one.media for one in splits.train] == [PitchTask().media(one.prompt_id) for one in splits.train]


def test_what_is_packed_is_unpacked() -> None:
    """Bit by bit, and stacked row by row; rows of which some have none are refused."""
    values = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
    texts = [pack(one) for one in values]
    assert (unpack(texts[0]) == values[0]).all()
    stacked = stack(texts)
    assert stacked is not None
    assert (stacked.numpy() == values).all()
    assert stack([None, None]) is None
    with pytest.raises(ValueError, match="1 of 2 rows"):
        stack([texts[0], None])
    with pytest.raises(ValueError, match="shapes"):
        stack([texts[0], pack(values[0][:2])])


@pytest.mark.parametrize(("task", "arguments"), [("colour", {"size": 3}), ("pitch", {"num_bands": 10})])
def test_sizes_that_hold_no_answer_are_refused(task: str, arguments: dict[str, int]) -> None:
    """By name."""
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        make_task(task, arguments)
