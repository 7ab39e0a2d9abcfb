"""The guards of logged seconds and of what checkpoints say, on made steps and checkpoints."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from refrl.checkpointing.checkpointer import RunFacts
from refrl.tasks.examples import Example
from seatrial.guards import Guards
from seatrial.targets.reference.guards.saved_facts import INFO, SavedFactsGuard
from seatrial.targets.reference.guards.stopwatch import Stopwatch

SOUND = {"total_step_time": 3.1, "generation": 0.9, "policy_training": 2.0}
"""Of a step that syncs at second 0, and whose micro-batches pass at seconds 1 and 3."""


def said(monkeypatch: pytest.MonkeyPatch, seconds: Mapping[str, float]) -> list[str]:
    """Return what is wrong with the seconds that one step logs."""
    clock = iter([10.0, 11.0, 13.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    watch = Stopwatch()
    watch.synced()
    watch.passed()
    watch.passed()
    watch.step(1)
    return list(watch.wrong(lambda step, name: seconds.get(name)))


def test_seconds_within_the_step_are_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, SOUND) == []


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"policy_training": 1.9}, "policy_training is 1.9 s, its micro-batches took 2 s"),
        ({"total_step_time": 2.9}, "the step is 2.9 s"),
        ({"generation": 1.1}, "phases before training are 1.1 s, there were 1 s"),
        ({"generation": 0.01}, "all steps together had 1 s"),
        ({"policy_training": float("nan")}, "policy_training is nan s"),
    ],
    ids=["training", "total", "long", "short", "nan"],
)
def test_seconds_of_another_unit_or_phase_are_seen(
    monkeypatch: pytest.MonkeyPatch, other: Mapping[str, float], what: str
) -> None:
    assert any(what in text for text in said(monkeypatch, {**SOUND, **other}))


def test_seconds_of_guards_are_no_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the sync and the first micro-batch; a phase may be short beside them."""
    clock = iter([10.0, 10.0, 10.9, 11.0, 13.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    watch = Stopwatch()
    watch.synced()
    with watch.guarding():
        pass
    watch.passed()
    watch.passed()
    watch.step(1)
    assert list(watch.wrong(lambda step, name: {**SOUND, "generation": 0.05}.get(name))) == []


class _Policy:
    def __init__(self) -> None:
        self.weights = {"model.a": torch.arange(3.0)}

    def reference_weights(self) -> Any:
        return iter(self.weights.items())


def checkpoint_facts(folder: Path, changes: Mapping[str, Any]) -> str:
    """Return what the guard says of a checkpoint whose facts are those of the run, except for the changes."""
    config: Any = SimpleNamespace(
        checkpointing=SimpleNamespace(checkpoint_dir=str(folder)),
        policy=SimpleNamespace(lora_cfg=SimpleNamespace(enabled=False)),
    )
    guards = Guards(raises=False)
    guard = SavedFactsGuard(config, guards)
    examples = [Example(1, "p", "a", "made"), Example(2, "q", "b", "made", solution="s", media="m")]
    session: Any = SimpleNamespace(
        train_examples=examples,
        policy=_Policy(),
        world=SimpleNamespace(size=1),
        checkpointer=SimpleNamespace(wait=lambda: None),
    )
    guard.started(session)
    guard.saved(session, 1)
    wanted = guard._wanted[1]
    said = {
        "data": RunFacts(run_id="", seed=0, examples=examples, config={}).data,
        "policy": {"frozen": wanted["frozen"]},
        "streams": [{**wanted["streams"], "torch": wanted["streams"]["torch"] + "00"}],
        **changes,
    }
    (folder / "step_1").mkdir()
    (folder / "step_1" / INFO).write_text(json.dumps(said))
    guard.ended(session)
    failed = guards.summary()["guard facts of checkpoints"]["failed"]
    return "" if failed is None else str(failed["reason"])


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, ""),
        ({"data": "0" * 64}, "the digest of the data is 000000000000"),
        ({"policy": {"frozen": "0" * 64}}, "the digest of frozen weights is 000000000000"),
        ({"streams": [{}]}, "the random stream of python is not as it was"),
        ({"streams": []}, "the random stream of torch is not as it was"),
    ],
    ids=["sound", "data", "frozen", "empty", "none"],
)
def test_facts_of_a_checkpoint_are_the_runs(tmp_path: Path, changes: Mapping[str, Any], what: str) -> None:
    text = checkpoint_facts(tmp_path, changes)
    assert (what in text) if what else not text
