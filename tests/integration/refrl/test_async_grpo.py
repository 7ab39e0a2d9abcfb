"""Asynchronous GRPO: what is trained on, with which weights it was sampled, and what a lost replica does to the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.changes import wait_until

from refrl.config import ConfigError, GRPORunConfig, load_config
from refrl.errors import GenerationError, TrainingError
from refrl.rewards import VERIFIERS
from refrl.rollout.asynchronous import AsyncCollector
from refrl.rollout.environments import ENVIRONMENTS
from refrl.training.grpo import run_grpo

from .conftest import CONFIGS, start
from .test_grpo_run import rows, series, smoke

pytestmark = pytest.mark.usefixtures("forked_processes")

Overrides = Callable[[str], list[str]]
ASYNC = (
    "grpo.async_grpo.enabled=true",
    "policy.generation.colocated.enabled=false",
    "grpo.val_at_start=false",
)


def run(overrides: list[str], *more: str) -> GRPORunConfig:
    """Run the smoke recipe asynchronously."""
    config = smoke(overrides, *ASYNC, *more)
    run_grpo(config)
    return config


def fates(config: GRPORunConfig, name: str, step: int) -> list[dict[str, Any]]:
    """Return what became of the groups of a step."""
    path = Path(config.logger.log_dir) / f"{name}_step{step}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("age", [1, 2])
def test_rows_are_as_old_as_the_configuration_says(overrides: Overrides, age: int) -> None:
    """As old as allowed, but for the first steps, whose weights are the initial ones."""
    config = run(overrides("a"), "grpo.max_num_steps=5", f"grpo.async_grpo.max_trajectory_age_steps={age}")
    for step in range(1, 6):
        lag = min(step - 1, age)
        assert {row["weight_version"] for row in rows(config, step)} == {step - 1 - lag}
        assert series(config)["train/avg_trajectory_age"][step] == lag
        assert series(config)["train/max_trajectory_age"][step] == lag


def test_every_group_is_trained_on_once_and_none_is_left(overrides: Overrides) -> None:
    """The numbers of the groups run from 0 without a gap."""
    config = run(overrides("a"), "grpo.max_num_steps=4")
    trained = [fate for step in range(1, 5) for fate in fates(config, "group_data", step)]
    assert [fate["number"] for fate in trained] == list(range(16))
    assert {fate["fate"] for fate in trained} == {"trained"}
    assert fates(config, "unused_group_data", 4) == []
    for step in range(1, 5):
        prompts = {row["prompt_id"] for row in rows(config, step)}
        assert prompts == {fate["prompt_id"] for fate in trained if fate["step"] == step}


def test_a_prompt_that_comes_twice_in_a_step_is_two_groups(overrides: Overrides) -> None:
    """Four prompts a step of three that there are: the end of an epoch and the beginning of the next."""
    config = run(overrides("a"), "grpo.max_num_steps=3", "data.num_train=3")
    trained = [fate["number"] for step in (1, 2, 3) for fate in fates(config, "group_data", step)]
    assert trained == list(range(12))


def test_the_first_step_is_that_of_the_synchronous_loop(overrides: Overrides) -> None:
    """Same prompts, same tokens, same advantages: nothing but the age of later rows is different."""
    config = run(overrides("a"), "grpo.async_grpo.num_replicas=2", "grpo.max_num_steps=2")
    plain = smoke(overrides("b"), "grpo.val_at_start=false", "grpo.max_num_steps=2")
    run_grpo(plain)
    for ours, theirs in zip(rows(config, 1), rows(plain, 1), strict=True):
        for name in ("prompt_id", "token_ids", "reward", "advantage"):
            assert ours[name] == theirs[name]


def test_the_same_seed_is_the_same_run(overrides: Overrides) -> None:
    """Whatever the threads do: bit for bit with as many replicas, and up to rounding with more of them."""
    options = ("grpo.max_num_steps=3", "grpo.async_grpo.num_replicas=2")
    first, second = run(overrides("a"), *options), run(overrides("b"), *options)
    assert [rows(first, step) for step in (1, 2, 3)] == [rows(second, step) for step in (1, 2, 3)]
    third = run(overrides("c"), "grpo.max_num_steps=2", "grpo.async_grpo.num_replicas=3")
    for ours, theirs in zip(rows(third, 2), rows(first, 2), strict=True):
        assert ours["token_ids"] == theirs["token_ids"]
        assert ours["generation_logprobs"] == pytest.approx(theirs["generation_logprobs"], abs=1e-5)


def test_in_flight_updates_say_which_token_is_of_which_weights(
    overrides: Overrides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ages stay within the bound; what was continued has ascending segments and as many log-probabilities as tokens."""
    config = run(
        overrides("a"),
        "grpo.max_num_steps=6",
        "grpo.async_grpo.max_trajectory_age_steps=2",
        "grpo.async_grpo.in_flight_weight_updates=true",
        "policy.generation.max_new_tokens=24",
        "policy.generation.stop_token_ids=[0]",
    )
    trained = [(step, row) for step in range(1, 7) for row in rows(config, step)]
    assert len(trained) == 96
    for step, row in trained:
        assert 0 <= step - 1 - row["weight_version"] <= 2
        completion = len(row["token_ids"]) - row["prompt_length"]
        assert len(row["generation_logprobs"]) == completion
        if "weight_version_segments" in row:
            places, versions = zip(*row["weight_version_segments"], strict=True)
            assert places[0] == 0
            assert list(places) == sorted(set(places))
            assert places[-1] < completion
            assert versions[0] == row["weight_version"]
            assert list(versions) == sorted(set(versions))
            assert versions[-1] <= step - 1


@pytest.fixture
def _coarse_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right or wrong by the parity of a byte, so that many groups of four are all right or all wrong."""
    monkeypatch.setitem(
        VERIFIERS, "coarse", lambda completion, answer: float(sum(completion.encode()[:1]) % 4 == 0)
    )


SHAPED = (
    "data.verifier=coarse",
    "grpo.reward_shaping.enabled=true",
    "grpo.reward_shaping.overlong_buffer_length=8",
    f"policy.generation.stop_token_ids={list(range(0, 256, 5))}",
)
"""Penalties by length make rewards differ in groups of which all were wrong."""


@pytest.mark.usefixtures("_coarse_verifier")
def test_groups_without_spread_of_the_verifier_s_reward_are_dropped_and_replaced(
    overrides: Overrides,
) -> None:
    """Shaping changes nothing of it; every group is counted once, and steps stay full."""
    options = ("grpo.async_grpo.drop_zero_variance=true", "grpo.max_num_steps=3", "data.seed=0")
    config = run(overrides("a"), *SHAPED, *options)
    found = [fate for step in (1, 2, 3) for fate in fates(config, "group_data", step)]
    found += fates(config, "unused_group_data", 3)
    assert sorted(fate["number"] for fate in found) == list(range(len(found)))
    dropped = [fate for fate in found if fate["fate"] == "zero variance"]
    assert dropped
    logged = series(config)["train/num_zero_variance_groups"]
    for step in (1, 2, 3):
        verified: dict[int, set[float]] = {}
        for row in rows(config, step):
            verified.setdefault(row["prompt_id"], set()).add(round(row["reward"] - row["length_penalty"]))
        assert [len(rewards) for rewards in verified.values()] == [2] * 4
        assert logged[step] == sum(fate["step"] == step for fate in dropped)


@pytest.mark.usefixtures("_coarse_verifier")
def test_groups_with_a_row_that_is_too_long_are_dropped_whole(overrides: Overrides) -> None:
    """And nothing that is longer is trained on."""
    config = run(overrides("a"), *SHAPED, "grpo.async_grpo.drop_longer_than=18", "grpo.max_num_steps=3")
    found = [fate for step in (1, 2, 3) for fate in fates(config, "group_data", step)]
    assert {fate["fate"] for fate in found} == {"trained", "too long"}
    assert sum(series(config)["train/num_too_long_groups"].values()) > 0
    for step in (1, 2, 3):
        assert len(rows(config, step)) == 16
        assert all(len(row["token_ids"]) <= 18 for row in rows(config, step))


def test_a_filter_that_keeps_nothing_ends_the_run(
    overrides: Overrides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what was dropped for which reason."""
    monkeypatch.setitem(VERIFIERS, "always", lambda completion, answer: 1.0)
    with pytest.raises(
        TrainingError, match=r"step 1: its filters dropped 4\d groups .*\(zero variance 4\d\)"
    ):
        run(overrides("a"), "data.verifier=always", "grpo.async_grpo.drop_zero_variance=true")


@pytest.mark.usefixtures("_verifier_that_fails")
def test_an_error_of_the_collecting_thread_ends_the_run_in_its_own_words(overrides: Overrides) -> None:
    """The trainer does not wait for rollouts that will never come."""
    with pytest.raises(ZeroDivisionError, match="the verifier is broken"):
        run(overrides("a"), "grpo.max_num_steps=3", "data.verifier=broken")


@pytest.fixture
def _verifier_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(completion: str, answer: str) -> float:
        raise ZeroDivisionError("the verifier is broken")

    monkeypatch.setitem(VERIFIERS, "broken", broken)
    monkeypatch.setattr("refrl.rewards.scoring.judge", lambda verifier, *words: verifier(*words))


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A verifier that waits until the run has given up, so that the collecting thread ends."""
    go_on, check = threading.Event(), AsyncCollector._check_arrivals

    def gives_up(self: AsyncCollector, step: int) -> None:
        try:
            check(self, step)
        except TrainingError:
            go_on.set()
            raise

    monkeypatch.setattr(AsyncCollector, "_check_arrivals", gives_up)

    def waits(completion: str, answer: str) -> float:
        go_on.wait()
        return 0.5

    monkeypatch.setitem(VERIFIERS, "waits", waits)
    return go_on


@pytest.mark.usefixtures("stuck")
def test_a_step_does_not_wait_for_ever(overrides: Overrides) -> None:
    """A batch that never comes ends the run, and the message says how long was waited for what."""
    with pytest.raises(
        TrainingError, match=r"step 1: no rollouts arrived in 0.5 s \(0 of 4 groups are there"
    ):
        run(overrides("a"), "data.verifier=waits", "grpo.async_grpo.stall_timeout_seconds=0.5")


def test_a_sync_does_not_wait_for_ever(
    overrides: Overrides, monkeypatch: pytest.MonkeyPatch, stuck: threading.Event
) -> None:
    """Weights change when every admitted batch is there: one that never comes ends the run as well."""
    first_batch = iter(range(16))

    def waits_after_it(completion: str, answer: str) -> float:
        return 0.5 if next(first_batch, None) is not None or stuck.wait() else 0.0

    monkeypatch.setitem(VERIFIERS, "waits", waits_after_it)
    with pytest.raises(TrainingError, match=r"step 2: no rollouts arrived in 3 s \(0 of 4 groups are there"):
        run(overrides("a"), "data.verifier=waits", "grpo.async_grpo.stall_timeout_seconds=3")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("policy.generation.colocated.enabled=true", "set policy.generation.colocated.enabled=false"),
        ("cluster.num_processes=2", "set it to 1 and raise grpo.async_grpo.num_replicas"),
        ("grpo.async_grpo.max_trajectory_age_steps=0", "max_trajectory_age_steps"),
        ("grpo.async_grpo.num_replicas=0", "num_replicas"),
        ("grpo.async_grpo.drop_longer_than=0", "drop_longer_than"),
    ],
)
def test_what_does_not_go_together_is_refused(overrides: Overrides, option: str, message: str) -> None:
    """With the remedy."""
    with pytest.raises(ConfigError, match=message):
        load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml", [*overrides("a"), *ASYNC, option])


def test_an_option_without_effect_is_refused(overrides: Overrides) -> None:
    """It would be believed to act."""
    with pytest.raises(ConfigError, match=r"num_replicas has no effect without grpo.async_grpo.enabled=true"):
        load_config(
            GRPORunConfig, CONFIGS / "grpo-smoke.yaml", [*overrides("a"), "grpo.async_grpo.num_replicas=2"]
        )


class Echo:
    """An environment that always has something to say."""

    max_turns = 3

    def respond(self, turns: Sequence[str]) -> str | None:
        """Say how many turns there were."""
        return f"<{len(turns)}>"


@pytest.mark.parametrize("more", [(), ASYNC, (*ASYNC, "grpo.async_grpo.in_flight_weight_updates=true")])
def test_episodes_of_several_turns_are_trained_on_without_the_environment_s_words(
    overrides: Overrides, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """In both loops: its tokens stand in the row, have no weight in the loss and a log-probability of 0."""
    monkeypatch.setitem(ENVIRONMENTS, "echo", Echo)
    turns = ("data.environment=echo", f"policy.generation.stop_token_ids={list(range(120))}")
    config = smoke(overrides("a"), *more, *turns, "policy.generation.max_new_tokens=24")
    run_grpo(config)
    words = [list(f"<{number}>".encode()) for number in (1, 2)]
    num_masked = 0
    for row in (row for step in (1, 2, 3) for row in rows(config, step)):
        completion = row["token_ids"][row["prompt_length"] :]
        mask = row["loss_mask"][row["prompt_length"] :][: len(completion)]  # as wide as the batch
        written = [token for token, sampled in zip(completion, mask, strict=True) if not sampled]
        assert written in ([], words[0], words[0] + words[1])
        assert all(
            logprob == 0.0
            for logprob, sampled in zip(row["generation_logprobs"], mask, strict=True)
            if not sampled
        )
        num_masked += bool(written)
    assert num_masked > 24
    assert series(config)["train/token_mult_prob_error"][1] < 1.0001


PROCESSES = (
    *ASYNC,
    "policy.generation.placement=process",
    "grpo.val_at_end=false",
    "grpo.max_num_steps=400",
    "policy.max_total_sequence_length=64",
    "policy.generation.max_new_tokens=24",
)


def wait_for_step(process: subprocess.Popen[str], logs: Path, step: int) -> dict[str, int]:
    """Return the run's processes when it has logged a step."""
    place = next(folder for folder in logs.parents if folder.is_dir())
    wait_until((logs / f"train_data_step{step}.jsonl").exists, place, process, 240)
    parts: dict[str, int] = json.loads((logs / "parts.json").read_text())
    return parts


@pytest.mark.slow
def test_a_run_goes_on_without_a_replica_that_was_killed(overrides: Overrides, tmp_path: Path) -> None:
    """Its rows are sampled by the other; every group is there once."""
    words = [*overrides("a"), *PROCESSES, "grpo.async_grpo.num_replicas=2", "grpo.max_num_steps=30"]
    process = start("grpo", "--config", "grpo-smoke", *words)
    try:
        logs = tmp_path / "a" / "logs"
        os.kill(wait_for_step(process, logs, 2)["generation/1"], signal.SIGKILL)
        shown, errors = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "generation/1" in shown
    config = load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml", words)
    trained = [fate["number"] for step in range(1, 31) for fate in fates(config, "group_data", step)]
    assert trained == list(range(120))
    assert series(config)["train/num_lost_replicas"][30] == 1.0


@pytest.mark.slow
def test_no_generator_outlives_a_trainer_that_is_killed(overrides: Overrides, tmp_path: Path) -> None:
    """Killed while both replicas sample, so that neither waits for a message that would fail."""
    words = [*overrides("a"), *PROCESSES, "grpo.async_grpo.num_replicas=2", "grpo.max_num_steps=100"]
    process = start("grpo", "--config", "grpo-smoke", *words)
    try:
        parts = wait_for_step(process, tmp_path / "a" / "logs", 1)
        generators = [psutil.Process(parts[f"generation/{number}"]) for number in range(2)]
        os.kill(parts["trainer"], signal.SIGKILL)
        process.communicate(timeout=240)
        assert psutil.wait_procs(generators, timeout=30)[1] == []
    finally:
        process.kill()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "signal 9"),
        pytest.param(signal.SIGSTOP, "did not answer in time", marks=pytest.mark.nightly),
    ],
)
def test_the_loss_of_the_only_replica_ends_the_run_and_is_named(
    overrides: Overrides, tmp_path: Path, number: signal.Signals, how: str
) -> None:
    """Killed or stopped: the message says which part, and how it was lost."""
    words = [*overrides("a"), *PROCESSES, "policy.generation.timeout_seconds=5"]
    process = start("grpo", "--config", "grpo-smoke", *words)
    try:
        victim = wait_for_step(process, tmp_path / "a" / "logs", 2)["generation/0"]
        os.kill(victim, number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "generation/0" in errors
    assert how in errors
    with pytest.raises(ProcessLookupError):
        os.kill(victim, 0)


def test_the_error_of_lost_replicas_is_one_message() -> None:
    """The command line prints errors of the system in one line."""
    assert issubclass(GenerationError, OSError)
