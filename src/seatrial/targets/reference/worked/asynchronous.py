"""Worked examples of asynchronous rollouts: batches and their ages, groups that are dropped, a run that is resumed."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from refrl.config import DataPlaneConfig
from refrl.data_plane import StalenessFilter, ZeroVarianceFilter, build_data_plane_client
from refrl.data_plane.errors import StoreUnavailableError
from refrl.data_plane.factory import local_client
from refrl.errors import TrainingError
from refrl.generation.base import Completion
from refrl.rewards import Scores
from refrl.rollout import asynchronous
from refrl.rollout.asynchronous import AsyncCollector
from refrl.rollout.collect import Collected
from refrl.rollout.replay import ReplayBuffer
from refrl.rollout.sync import Rollouts
from refrl.tasks import Example
from refrl.timing import Timer
from refrl.training.asynchronous import build_schedule
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked.made import example, refused

PROMPTS, ROWS, UPDATES = 2, 2, 3
"""Prompts of a step, rows of a prompt, and optimizer steps of a step."""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield example(  # batches 1 and 2 are sampled with the first weights, and each later one after a step
        "ages of four steps",
        {
            "ages": [(0.0, 0.0), (1.0, 1.0), (1.0, 1.0), (1.0, 1.0)],
            "groups": [[0, 1], [2, 3], [4, 5], [6, 7]],
            "served": [[11, 12], [21, 22], [31, 32], [41, 42]],
            "weights": [[0, 0], [0, 0], [1, 1], [2, 2]],
            "counts": [1.0, 2.0, 3.0, 4.0],
            "seconds": [0.5, 1.0, 1.5, 2.0],
            "dropped": [0.0] * 4,
            "lost": [0.0] * 4,
            "fates": [],
            "unused": [],
        },
        lambda: _run(_Run(), 4),
    )
    yield example(  # three batches with the first weights
        "ages of five steps, up to two steps old",
        {
            "ages": [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (2.0, 2.0), (2.0, 2.0)],
            "weights": [[0, 0], [0, 0], [0, 0], [1, 1], [2, 2]],
        },
        lambda: _chosen(_run(_Run(age=2, steps=5), 5), "ages", "weights"),
    )
    # Batch 4 replaces the dropped group with the weights of step 1: its second group is too old at step 4.
    yield example(
        "a group without spread",
        {
            "groups": [[0, 1], [2, 4], [5, 6], [8, 9]],
            "served": [[11, 12], [21, 22, 31, 32], [41, 42], [51, 52]],
            "weights": [[0, 0], [0, 1], [1, 1], [2, 2]],
            "ages": [(0.0, 0.0), (0.5, 1.0), (1.0, 1.0), (1.0, 1.0)],
            "counts": [1.0, 5.0, 4.0, 5.0],
            "seconds": [0.5, 2.5, 2.0, 2.5],
            "dropped": [0.0, 1.0, 0.0, 0.0],
            "lost": [0.0] * 4,
            "fates": [(3, 22, "zero variance", 0, 2), (7, 42, "stale", 1, 4)],
            "unused": [],
        },
        lambda: _run(_Run(equal=(22,)), 4),
    )
    # A batch replaces the group dropped at the last step, with the weights of step 3, and its second group is left.
    left = {"groups": [[0, 1], [2, 3], [4, 5], [6, 8]], "unused": [(9, 52, "unused", 3, 5)]}
    yield example(
        "a group that no step took", left, lambda: _chosen(_run(_Run(equal=(42,)), 4), "groups", "unused")
    )
    for step in (0, 1, 4):
        right = [(number, 11 + number, "unused", step, step + 1) for number in (0, 1)]
        yield example(f"groups that are left after step {step}", right, _left, step)
    yield example(
        "batches that wait for space in the buffer",
        {"groups": [[0, 1], [2, 3], [4, 5], [6, 7]], "served": [[11, 12], [21, 22], [31, 32], [41, 42]]},
        lambda: _chosen(_run(_Run(capacity=PROMPTS), 4), "groups", "served"),
    )
    yield example("a run that is resumed", True, _resumed, ())
    yield example("a run that dropped a group and is resumed", True, _resumed, (22,))
    yield refused(
        "prompt 3 cannot be sampled", "an error of the collecting thread", lambda: _run(_Run(fails=3), 4)
    )
    yield refused("groups that were put and not trained on: 0, 1", "a store that is lost", _lost)
    yield from _of_waits()
    yield refused("has completions of prompts [11, 12]", "a group of two prompts", _mixed_group)


def _mixed_group() -> None:
    run = _Run()
    run.buffer.add(run.rollouts(1).rows([0, 2, 1, 3]))


def _left(step: int) -> Any:
    """Return what becomes of two groups if a run that is resumed after a step takes none."""
    before, run = _Run(), _Run()
    before.buffer.add(before.rollouts(1))
    state = {
        "trained_steps": step, "num_batches": 1, "num_dropped": 0, "step_of_version": [[0, step]], "origins": [],
        "buffer": before.buffer.state(),
    }  # fmt: skip
    return [_plain(fate) for fate in _source(run, progress=_Progress(state)).unused()]


def _lost() -> None:
    """Put two groups, and lose the store."""

    def lost(*words: Any, **options: Any) -> Any:
        raise StoreUnavailableError("the store is gone")

    client, run = local_client(lease_s=600.0), _Run()
    buffer = ReplayBuffer(client, groups_per_step=PROMPTS, group_size=ROWS, capacity=4, timeout_s=0.0)
    buffer.add(run.rollouts(1))
    client.claim_meta = lost  # type: ignore[method-assign]
    buffer.consume(lambda groups, rows: None, current_weight_version=0)


class _Run:
    """A made run: its collector, sampler, weights and buffer."""

    losses: Mapping[str, str] = {}

    def __init__(
        self,
        *,
        age: int = 1,
        steps: int = 4,
        equal: tuple[int, ...] = (),
        fails: int | None = None,
        version: int = 0,
        capacity: int | None = None,
    ) -> None:
        self.config = configuration(
            {
                "grpo.async_grpo.enabled": True,
                "policy.generation.colocated.enabled": False,
                "grpo.async_grpo.max_trajectory_age_steps": age,
                "grpo.async_grpo.stall_timeout_seconds": 20.0,
                "grpo.num_prompts_per_step": PROMPTS,
                "grpo.num_generations_per_prompt": ROWS,
                "policy.train_global_batch_size": PROMPTS * ROWS,
                "grpo.max_num_steps": steps,
            }
        ).grpo
        self.age, self.equal, self.fails = age, equal, fails
        self.timer = Timer()
        self.version = self.served_version = version
        self.buffer = ReplayBuffer(
            build_data_plane_client(DataPlaneConfig()),
            groups_per_step=PROMPTS,
            group_size=ROWS,
            capacity=capacity or (age + 2) * PROMPTS,
            filters=[StalenessFilter(age * UPDATES), ZeroVarianceFilter()],
        )

    def rollouts(self, number: int) -> Rollouts:
        """Return the rows of a batch: of the prompts 11 and 12 of batch 1, and so on."""
        prompts = [10 * number + place for place in (1, 2) for _ in range(ROWS)]
        rewards = [float(row % 2 and prompt not in self.equal) for row, prompt in enumerate(prompts)]
        return Rollouts(
            examples=[Example(prompt, str(prompt), "", "made") for prompt in prompts],
            completions=[
                Completion(
                    prompt_ids=(1,),
                    ids=(2,),
                    logprobs=(-0.5,),
                    finish_reason="stop",
                    weight_version=self.served_version,
                )
                for _ in prompts
            ],
            texts=[""] * len(prompts),
            scores=Scores(rewards, 0, None, failed=[False] * len(prompts)),
        )

    def collect(self, number: int) -> Collected:
        """Return a batch, as `refrl.rollout.collect.Collector` does."""
        if number == self.fails:
            raise TrainingError(f"prompt {number} cannot be sampled")
        self.timer.add("generation", number / 2)
        rollouts = self.rollouts(number)
        return Collected(rollouts, rollouts.examples[::ROWS], {"batch": float(number)})

    def update_weights(self) -> None:
        """Sample with the trained weights from now on."""
        self.served_version = self.version

    def close(self) -> None:
        """Nothing is sampled that could be aborted."""


class _Progress:
    """What a checkpoint has of the collector."""

    def __init__(self, collector: Any = None) -> None:
        self.collector = collector
        self.noted: list[Any] = []

    def note(self, state: Any) -> None:
        self.noted.append(json.loads(json.dumps(state)))


def _run(run: _Run, steps: int, *, first: int = 1, progress: _Progress | None = None) -> dict[str, Any]:
    """Return what the steps of a run train on, from the first one to the last."""
    names = ("ages", "groups", "served", "weights", "counts", "dropped", "fates", "seconds", "lost")
    found: dict[str, Any] = {name: [] for name in names}
    timer = Timer()
    source = _source(run, timer, progress)

    def train(rollouts: Rollouts) -> list[int]:
        run.version += UPDATES
        taken = timer.take()
        assert "exposed_generation" in taken, "the time of training counts as waiting for rollouts"
        for phase, seconds in taken.items():
            timer.add(phase, seconds)
        return [row.prompt_id for row in rollouts.examples]

    with source:
        for step in range(first, steps + 1):
            collected, prompts = source.consume(step, train)
            taken = [fate for fate in collected.fates if fate.fate == "trained"]
            assert prompts == [fate.prompt_id for fate in taken for _ in range(ROWS)]
            assert {fate.step for fate in collected.fates} == {step}
            counts = collected.counts
            found["ages"].append((counts["avg_trajectory_age"], counts["max_trajectory_age"]))
            found["groups"].append([fate.number for fate in taken])
            found["served"].append([one.prompt_id for one in collected.served])
            found["weights"].append([fate.weight_step for fate in taken])
            found["counts"].append(counts.get("batch", 0.0))
            found["dropped"].append(counts["num_zero_variance_groups"])
            found["lost"].append(counts["num_lost_replicas"])
            found["fates"] += [_plain(fate) for fate in collected.fates if fate.fate != "trained"]
            found["seconds"].append(timer.take().get("generation"))
            source.trained(step)
    found["unused"] = [_plain(fate) for fate in source.unused()]
    return found


def _plain(fate: Any) -> tuple[Any, ...]:
    return fate.number, fate.prompt_id, fate.fate, fate.weight_step, fate.step


def _chosen(found: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: found[name] for name in names}


def _resumed(equal: tuple[int, ...]) -> bool:
    """Return whether a run that stops after two steps and is resumed takes the same as an unbroken one."""
    whole = _run(_Run(equal=equal, steps=5), 5)
    progress = _Progress()
    _run(_Run(equal=equal, steps=5), 2, progress=progress)
    again = _run(
        _Run(equal=equal, steps=5, version=2 * UPDATES), 5, first=3, progress=_Progress(progress.noted[1])
    )
    names = ("ages", "groups", "served", "weights", "counts", "dropped")
    return all(again[name] == whole[name][2:] for name in names) and again["unused"] == whole["unused"]


def _of_waits() -> Iterator[WorkedExample]:
    """Yield examples of a trainer that waits; what it does at which second, and what that ends with."""
    late = "step 3: no rollouts arrived in 20 s (0 of 2 groups are there, 0 came so far)"
    later = "step 3: no rollouts arrived in 20 s (2 of 2 groups are there, 2 came so far)"
    for name, acts, right in (
        ("the limit counts from the start", [(20, "look"), (20.5, "look")], ["", late]),
        (
            "the limit counts from the last batch",
            [(15, "offer"), (35, "look"), (36, "look")],
            ["", "", later],
        ),
        ("training does not count", [(90, "consume"), (110, "look"), (111, "look")], ["", "", late]),
        ("nor does it where the trainer waits for a batch", [(90, "wait"), (110, "look")], ["", ""]),
        (
            "the collector ends",
            [(1, "end"), (1, "look")],
            ["", "step 3: the collector ended before the run did"],
        ),
    ):
        yield example(name, right, _waited, acts)
    yield example(
        "each batch that arrives wakes the trainer, which waits for all", (2 * PROMPTS, True), _woken
    )
    yield example("so does an error", ("prompt 1 cannot be sampled", True), _woken, fails=1)
    line = "step 1  continues without a replica: replica 1 is gone"
    yield example("a lost replica is reported once", ([1.0] * 4, [line]), _reported)


def _source(run: _Run, timer: Timer | None = None, progress: Any = None) -> AsyncCollector:
    parts: Any = (run, run, run.buffer, build_schedule(run.config))
    return AsyncCollector(*parts, timer=timer or Timer(), version=lambda: run.version, progress=progress)


def _waited(acts: list[tuple[float, str]]) -> list[str]:
    """Return the error of each act at its second of a made clock, or nothing."""
    clock, run = [0.0], _Run()
    with patch.object(asynchronous, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=None)):
        source = _source(run)
        producer: Future[None] = Future()
        source._producer, source._num_batches = producer, 99
        found = []
        for clock[0], act in acts:
            try:
                if act == "look":
                    source._check_arrivals(3)
                elif act == "offer":
                    source._offer(run.collect(1))
                elif act == "consume":
                    with patch.object(run.buffer, "consume", lambda run, on_wait, **options: on_wait()):
                        source.consume(3, cast(Any, None))
                elif act == "wait":
                    source._wait_until_collected()
                else:
                    producer.set_result(None)
                found.append("")
            except TrainingError as error:
                found.append(str(error).partition(": the generation")[0])
    return found


def _woken(fails: int | None = None) -> tuple[int | str, bool]:
    """Return the groups that are there, or the error, once the trainer has waited; and whether it was always woken.

    A batch arrives, or fails, when the trainer waits for it.
    """
    run, woken, waits = _Run(fails=fails), [], threading.Semaphore(0)

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if timeout is None:
                return super().wait()
            waits.release()
            woken.append(super().wait(10.0))
            return woken[-1]

    def collect(number: int) -> Collected:
        waits.acquire(timeout=10.0)
        return _Run.collect(run, number)

    source = _source(run)
    source._changed = Watched()
    with patch.object(run, "collect", collect), source:
        try:
            source._wait_until_collected()
            found: int | str = len(run.buffer)
        except TrainingError as error:
            found = str(error)
    return found, all(woken)


def _reported() -> tuple[list[float], list[str]]:
    """Return the lost replicas that each step counts, and what is printed."""
    run, printed = _Run(), io.StringIO()
    run.losses = {"replica 1": "replica 1 is gone"}
    with redirect_stdout(printed):
        return _run(run, 4)["lost"], printed.getvalue().splitlines()
