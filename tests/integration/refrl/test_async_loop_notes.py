"""Asynchronous loops of other stacks lost prompts, sampled for nothing and ended without a word; this one does not."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from refrl.config import GRPORunConfig
from refrl.errors import TrainingError
from refrl.rewards import VERIFIERS
from refrl.training.grpo import run_grpo
from refrl.training.session import Observer, Session, TrainedStep

from .test_async_grpo import ASYNC, fates
from .test_grpo_run import rows, series, smoke

Overrides = Callable[[str], list[str]]
EPOCHS = ("data.num_train=6", "grpo.max_num_steps=6")
"""Four prompts a step: six steps are four epochs, which end within steps."""


def run(overrides: list[str], *more: str) -> GRPORunConfig:
    """Run the smoke recipe asynchronously."""
    config = smoke(overrides, *ASYNC, *more)
    run_grpo(config)
    return config


def test_every_prompt_is_trained_on_as_often_as_there_are_epochs(overrides: Overrides) -> None:
    """What is being sampled when an epoch ends belongs to it, and is neither dropped nor sampled once more."""
    config = run(overrides("a"), *EPOCHS)
    trained = Counter(fate["prompt_id"] for step in range(1, 7) for fate in fates(config, "group_data", step))
    assert len(trained) == 6
    assert set(trained.values()) == {4}


def test_a_prompt_that_comes_again_is_sampled_again(overrides: Overrides) -> None:
    """No two of its visits have the same completions: none is sampled with a random stream of another."""
    config = run(overrides("a"), *EPOCHS, "policy.optimizer.lr=0.0")
    visits: dict[int, list[tuple[str, ...]]] = {}
    for step in range(1, 7):
        found: dict[int, list[str]] = {}
        for row in rows(config, step):
            found.setdefault(row["prompt_id"], []).append(str(row["token_ids"]))
        for prompt, completions in found.items():
            visits.setdefault(prompt, []).append(tuple(completions))
    assert all(len(set(of)) == len(of) for of in visits.values())
    assert any(len(of) > 1 for of in visits.values())


@pytest.mark.parametrize("age", [1, 3])
def test_nothing_is_sampled_that_is_not_trained_on(overrides: Overrides, age: int) -> None:
    """However far ahead: no group becomes stale, and the last steps of the run sample for nobody after it."""
    config = run(overrides("a"), "grpo.max_num_steps=5", f"grpo.async_grpo.max_trajectory_age_steps={age}")
    assert set(series(config)["train/num_stale_groups"].values()) == {0.0}
    assert fates(config, "unused_group_data", 5) == []


@pytest.fixture
def _verifier_that_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "constant", lambda completion, answer: 0.5)


@pytest.mark.usefixtures("_verifier_that_says_the_same")
def test_groups_without_a_signal_do_not_keep_the_run_sampling_for_ever(overrides: Overrides) -> None:
    """Dynamic sampling gives up in words, in the collecting thread as in the loop."""
    with pytest.raises(TrainingError, match="2 generation batches gave 0 of 4 groups whose rewards differ"):
        run(
            overrides("a"),
            "data.verifier=constant",
            "grpo.use_dynamic_sampling=true",
            "grpo.dynamic_sampling_max_gen_batches=2",
        )


@pytest.mark.usefixtures("_verifier_that_fails_at_first")
def test_a_prompt_whose_verifier_failed_comes_again(overrides: Overrides) -> None:
    """One error is one reward of a visit, is counted, and takes no prompt out of later epochs."""
    config = run(overrides("a"), *EPOCHS, "data.verifier=fails_at_first")
    errors = series(config)["train/num_verifier_errors"]
    assert sum(errors.values()) == 4
    trained = Counter(fate["prompt_id"] for step in range(1, 7) for fate in fates(config, "group_data", step))
    assert set(trained.values()) == {4}


@pytest.fixture
def _verifier_that_fails_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(10**6))

    def fails_at_first(completion: str, answer: str) -> float:
        if next(calls) < 4:
            raise ConnectionError("the judge cannot be reached")
        return 0.5

    monkeypatch.setitem(VERIFIERS, "fails_at_first", fails_at_first)


def collecting_threads() -> list[str]:
    """Return the threads of rollouts that there are."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("refrl-")]


class Breaks(Observer):
    """Ends the run in its second step, while the collecting thread waits for room."""

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Break."""
        if step.step == 2:
            raise ZeroDivisionError("the observer is broken")


def test_a_trainer_that_fails_takes_the_collecting_thread_with_it(overrides: Overrides) -> None:
    """Though that waits for room in a full buffer: the error is the trainer's, and no thread is left."""
    config = smoke(overrides("a"), *ASYNC)
    with pytest.raises(ZeroDivisionError, match="the observer is broken"):
        run_grpo(config, Breaks())
    assert collecting_threads() == []


def test_a_run_that_ended_leaves_no_thread(overrides: Overrides) -> None:
    """Neither the collector's nor the router's."""
    run(overrides("a"), "grpo.async_grpo.num_replicas=2")
    assert collecting_threads() == []
