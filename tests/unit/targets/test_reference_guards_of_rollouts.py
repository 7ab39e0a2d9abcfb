"""Guards of asynchronous rollouts: a sound run and its resume are silent, and each planted fault is seen."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from refrl.algorithms.filters import DynamicSampling
from refrl.rollout.collect import GroupFate
from refrl.rollout.multi_turn import take_turns
from refrl.rollout.progress import RolloutProgress
from refrl.training.grpo import run_grpo
from refrl.training.session import Observers, TrainedStep
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.guards.bounds import check_bounds
from seatrial.targets.reference.guards.observer import RecordingGuards
from seatrial.targets.reference.guards.rollouts import RolloutGuard
from seatrial.targets.reference.runs.short import quiet

ASYNC: dict[str, Any] = {
    "policy.generation.colocated.enabled": False,
    "grpo.async_grpo.enabled": True,
    "grpo.async_grpo.max_trajectory_age_steps": 2,
    "grpo.max_num_steps": 4,
    "policy.train_global_batch_size": 4,
}
AHEAD, STALE, ORDER, SERVED = (
    "rollouts as far ahead as configured",
    "no group is stale",
    "groups in order",
    "groups are of the prompts served",
)
SEEDED = "prompts in the seeded order"


def failed(guards: RecordingGuards) -> set[str]:
    """Return the guards that failed."""
    return {verdict.name.removeprefix("guard ") for verdict in guards.guards.failures}


def saving(folder: Path, **options: Any) -> Any:
    """Return a configuration that saves after every step."""
    return configuration(
        {
            **ASYNC,
            "logger.log_dir": str(folder / "log"),
            "logger.log_train_data": True,
            "checkpointing.enabled": True,
            "checkpointing.save_period": 1,
            "checkpointing.checkpoint_dir": str(folder / "checkpoints"),
            **options,
        }
    )


def test_a_run_of_another_age_is_seen_and_a_sound_one_is_silent(tmp_path: Path) -> None:
    """Two updates a step; the age counts steps."""
    log = {"logger.log_dir": str(tmp_path)}
    sound = RecordingGuards(configuration({**ASYNC, **log}))
    other = RecordingGuards(configuration({**ASYNC, **log, "grpo.async_grpo.max_trajectory_age_steps": 3}))
    with quiet():
        run_grpo(configuration({**ASYNC, **log}), Observers([sound, other]))
    assert failed(sound) == set()
    assert failed(other) == {AHEAD}
    assert {f"guard {name}" for name in (AHEAD, STALE, ORDER, SERVED, SEEDED)} <= sound.guards.asked.keys()


@pytest.mark.parametrize("is_sound", [True, False])
def test_prompts_of_the_start_after_a_resume_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sound: bool
) -> None:
    """The position of the prompts is known from the first group's number."""
    with quiet():
        run_grpo(saving(tmp_path, **{"checkpointing.checkpoint_must_save_by": "00:00:00:00"}))
    load = RolloutProgress.load_state_dict
    if not is_sound:
        monkeypatch.setattr(
            RolloutProgress,
            "load_state_dict",
            lambda self, state: load(self, {**state, "prompts": {"num_drawn": 0}}),
        )
    guards = RecordingGuards(saving(tmp_path))
    with quiet():
        run_grpo(saving(tmp_path), guards)
    assert failed(guards) == (set() if is_sound else {SEEDED})


def fate(number: int, /, **fields: Any) -> GroupFate:
    """Return the fate of a group of two prompts a step, one step ahead."""
    made = GroupFate(number, 10 + number, "trained", max(0, number // 2 - 1), number // 2 + 1)
    return replace(made, **fields)


def changed(which: int, **fields: Any) -> Callable[[int], list[GroupFate]]:
    """Return the groups of a step, of which one is changed."""
    return lambda step: [
        fate(one, **(fields if one == which else {})) for one in (2 * step - 2, 2 * step - 1)
    ]


class _Prompt:
    def __init__(self, prompt_id: int) -> None:
        self.prompt_id = prompt_id


@pytest.mark.parametrize(
    ("groups", "seen"),
    [
        (changed(-1), set()),
        (changed(5, weight_step=2), {AHEAD}),
        (changed(5, weight_step=0), {AHEAD}),
        (changed(4, fate="stale"), {STALE}),
        (changed(4, prompt_id=3), {SERVED}),
        (changed(3, number=2), {ORDER, SERVED}),
    ],
)
def test_each_guard_sees_its_fault(groups: Callable[[int], Sequence[GroupFate]], seen: set[str]) -> None:
    """And no other guard alarms."""
    config = configuration({**ASYNC, "grpo.async_grpo.max_trajectory_age_steps": 1})
    guards = Guards(raises=False)
    guard = RolloutGuard(config, guards)
    for step in range(1, 5):
        made: Any = TrainedStep.__new__(TrainedStep)
        served = [_Prompt(10 + number) for number in (2 * step - 2, 2 * step - 1)]
        for name, value in (("step", step), ("fates", groups(step)), ("served", served)):
            object.__setattr__(made, name, value)
        guard.check_step(made)
    assert {verdict.name.removeprefix("guard ") for verdict in guards.failures} == seen


@pytest.mark.parametrize("more", [0, 1])
def test_bounds_hold_where_they_are_reached(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """A batch or a turn beyond the configured ones is seen."""
    place = "seatrial.targets.reference.guards.bounds"
    made, turns = DynamicSampling, take_turns
    monkeypatch.setattr(
        f"{place}.DynamicSampling",
        lambda num_groups, max_generation_batches: made(num_groups, max_generation_batches + more),
    )

    def longer(sampler: Any, environment: Any, *rest: Any) -> Any:
        environment.max_turns += more
        return turns(sampler, environment, *rest)

    monkeypatch.setattr(f"{place}.take_turns", longer)
    config = configuration({"grpo.use_dynamic_sampling": True, "grpo.dynamic_sampling_max_gen_batches": 3})
    tokenizer = AutoTokenizer.from_pretrained(config.policy.model_name)
    worker = SimpleNamespace(environment=SimpleNamespace(max_turns=2))
    session: Any = SimpleNamespace(worker=worker, tokenizer=tokenizer)
    guards = Guards(raises=False)
    check_bounds(session, config, guards)
    assert len(guards.asked) == 2
    assert len(guards.failures) == 2 * more
