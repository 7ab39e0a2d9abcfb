"""Phases add up until taken; random streams depend on their purpose, not on what was drawn before."""

import itertools

import pytest
import torch

from refrl import timing
from refrl.streams import random_stream
from refrl.timing import Timer


def test_seconds_add_up_by_phase_and_start_anew_when_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that moves one second a look; nested phases count in both."""
    clock = itertools.count()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: float(next(clock)))
    timer = Timer()
    with timer.time("step"):
        with timer.time("inner"):
            pass
        with timer.time("inner"):
            pass
    assert timer.take() == {"step": 5.0, "inner": 2.0}
    assert timer.take() == {}


def test_a_phase_that_raises_is_counted() -> None:
    """The time was spent."""
    timer = Timer()
    with pytest.raises(KeyError), timer.time("generation"):
        raise KeyError
    assert set(timer.take()) == {"generation"}


def test_a_stream_is_the_same_whatever_was_drawn_before() -> None:
    """Seed, purpose and step alone decide; each of them matters."""

    def draw(seed: int, purpose: str, step: int) -> list[int]:
        return torch.randint(2**62, (4,), generator=random_stream(seed, purpose, step)).tolist()

    first = draw(1, "rollout", 2)
    torch.rand(100)
    draw(1, "rollout", 1)
    assert draw(1, "rollout", 2) == first
    others = [draw(2, "rollout", 2), draw(1, "validation", 2), draw(1, "rollout", 3), draw(1, "rollout/2", 0)]
    assert len({tuple(numbers) for numbers in [first, *others]}) == 5
