"""Cadences come out even, and staleness fits them."""

from __future__ import annotations

import pytest

from refrl.algorithms.schedule import make_schedule


def test_defaults_sync_every_step_and_keep_the_reference_frozen() -> None:
    schedule = make_schedule(prompts_per_step=8, prompts_per_forward_backward=2)
    assert (schedule.accumulation_steps, schedule.sync_every, schedule.required_staleness) == (4, 1, 0)
    assert schedule.reference_sync_every is None
    assert not any(schedule.syncs_reference(step) for step in range(1, 50))
    assert all(schedule.syncs_sampler(step) for step in range(1, 50))


def test_cadences_in_steps() -> None:
    schedule = make_schedule(
        prompts_per_step=4,
        prompts_per_forward_backward=4,
        prompts_per_sync=12,
        prompts_per_reference_sync=20,
        max_staleness=2,
    )
    assert [step for step in range(1, 10) if schedule.syncs_sampler(step)] == [3, 6, 9]
    assert [step for step in range(1, 11) if schedule.syncs_reference(step)] == [5, 10]


@pytest.mark.parametrize("sync_every", [1, 2, 3, 7])
def test_the_required_staleness_is_the_least_that_never_starves_a_step(sync_every: int) -> None:
    """Simulated: the freshest sample in step k carries the weights of the last sync at or before k."""
    worst = max(step - step // sync_every * sync_every for step in range(100))
    schedule = make_schedule(
        prompts_per_step=1, prompts_per_forward_backward=1, prompts_per_sync=sync_every, max_staleness=worst
    )
    assert schedule.required_staleness == worst
    assert all(schedule.is_fresh(step // sync_every * sync_every, step) for step in range(100))
    if worst:
        with pytest.raises(ValueError, match=rf"max_staleness to {worst} or more"):
            make_schedule(
                prompts_per_step=1,
                prompts_per_forward_backward=1,
                prompts_per_sync=sync_every,
                max_staleness=worst - 1,
            )


def test_staleness_is_inclusive_and_the_future_is_an_error() -> None:
    schedule = make_schedule(prompts_per_step=1, prompts_per_forward_backward=1, max_staleness=2)
    assert [schedule.is_fresh(version, 5) for version in (5, 4, 3, 2)] == [True, True, True, False]
    with pytest.raises(ValueError, match="weight version 6"):
        schedule.is_fresh(6, 5)


@pytest.mark.parametrize(
    ("cadences", "message"),
    [
        (
            {"prompts_per_step": 5},
            "prompts_per_step=5 is not a multiple of prompts_per_forward_backward=2: take 4",
        ),
        (
            {"prompts_per_step": 1},
            "prompts_per_step=1 is not a multiple of prompts_per_forward_backward=2: take 2",
        ),
        ({"prompts_per_sync": 13}, "prompts_per_sync=13 is not a multiple of prompts_per_step=4: take 12"),
        (
            {"prompts_per_reference_sync": 6},
            "prompts_per_reference_sync=6 is not a multiple of prompts_per_step=4",
        ),
        ({"prompts_per_step": 0}, "must be positive"),
        ({"prompts_per_sync": 0}, "must be positive"),
        (
            {"prompts_per_sync": 12, "max_staleness": 1},
            "max_staleness to 2 or more, or prompts_per_sync to 8 or less",
        ),
    ],
)
def test_cadences_that_do_not_work_are_errors_with_a_remedy(cadences: dict[str, int], message: str) -> None:
    options = {"prompts_per_step": 4, "prompts_per_forward_backward": 2, "max_staleness": 9, **cadences}
    with pytest.raises(ValueError, match=message):
        make_schedule(**options)
