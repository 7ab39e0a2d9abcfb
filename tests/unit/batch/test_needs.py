"""What trials need, and which of them fit in a budget."""

from __future__ import annotations

from seatrial.targets import get_target
from seatrial.targets.base import Need
from seatrial.trials.needs import fitting, need_of, visible_devices
from seatrial.trials.plan import all_trials


def test_trials_of_two_processes_need_two_devices() -> None:
    target = get_target("reference")
    needs = {trial.name: need_of(trial, target).num_gpus for trial in all_trials()}
    assert needs["grpo-smoke"] == 1
    assert needs["refit-noncolocated"] == needs["async-filter-flow"] == 2
    assert {number for name, number in needs.items() if name.startswith("parallel-")} == {2}


def test_a_stage_of_a_checkout_declares_its_gpus() -> None:
    target = get_target("nemo-rl")
    trial = next(trial for trial in all_trials() if trial.name == "refit-delta")
    assert need_of(trial, target) == Need(num_gpus=32, states_gpus=True)


def test_what_fits_is_chosen_in_order_and_never_exceeds_the_budget() -> None:
    needs = {
        "a": Need(num_gpus=2, minutes=30),
        "b": Need(num_gpus=8, minutes=60),
        "c": Need(num_gpus=1, minutes=60),
        "d": Need(num_gpus=1, minutes=6),
    }
    assert list(fitting(needs, 2.0)) == ["a", "c"]
    assert list(fitting(needs, 2.1)) == ["a", "c", "d"]
    assert list(fitting(needs, 0.05)) == []


def test_devices_are_those_that_the_environment_shows() -> None:
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "3, 5"}) == ("3", "5")
    assert visible_devices({"CUDA_VISIBLE_DEVICES": ""}) == ()
