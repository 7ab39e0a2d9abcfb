"""Worked examples of resumes: what a rank decides as the first one has, logs next to checkpoints, chains of runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from refrl.checkpointing import attempts
from refrl.checkpointing import checkpointer as saving
from refrl.checkpointing.checkpointer import Checkpointer, RunFacts
from refrl.config import CheckpointingConfig
from refrl.distributed import ALONE, World
from refrl.training.steps import Steps
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.checkpoints import (
    EXAMPLES,
    Counted,
    MadePolicy,
    checkpointer,
    in_folder,
)
from seatrial.targets.reference.worked.made import example, refused

LEFT = ["a_b_step2.jsonl", "notes.jsonl", "step_9.jsonl", "x_step3.jsonl.gz"]
"""What is left of the files of a log that is cut after step 2."""


def of_resumes() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_first_ranks()
    yield from _of_looks()


class _Second(World):
    """The second of two ranks, and what the first one gives."""

    first: Any = None

    def gather(self, items: Any) -> Any:
        return [*self.first, *items]


def _second(*first: Any) -> _Second:
    made = _Second(1, 2)
    object.__setattr__(made, "first", first)
    return made


def _of_first_ranks() -> Iterator[WorkedExample]:
    """Yield what a rank decides as the first one has: their clocks and folders may differ."""
    for first in (True, False):
        yield example(f"a run out of time for the first rank: {first}", first, in_folder(_late), first)
        for own in (True, False):
            name = f"an export that the first rank has: {first}, this one: {own}"
            yield example(name, int(not first), in_folder(_exports), first, own)
    yield example("a start that the first rank decides", "attempt", _begun)


def _of_looks() -> Iterator[WorkedExample]:
    """Yield starts next to a log whose facts are missing, not JSON, or another run's."""
    for text, saved, right in (
        (None, False, (False, [None], False)),
        (None, True, (False, [2], True)),
        ("{", False, (False, [None], False)),
        ("[1]", False, (False, [None], False)),
        ('{"run_id": "one"}', True, (True, [2], True)),
        ('{"run_id": "one", "attempts": [{"resumed_from": null}]}', True, (True, [None, 2], True)),
        ('{"run_id": "two", "config": {"a": 1}}', False, (True, [None], False)),
        ('{"run_id": "two", "config": {"a": 2}}', False, (False, [None], False)),
    ):
        yield example(f"a start next to {text}, saved: {saved}", right, in_folder(_looked), text, saved)
    for text in ("{", "[1]", "{}", '{"run_id": "two"}'):
        words = "holds the log of another run than the checkpoint in"
        yield refused(words, f"a resume next to {text}", in_folder(_looked), text, True)
    for enabled in (True, False):
        name = f"a half-written checkpoint at a start, enabled: {enabled}"
        yield example(name, [], in_folder(_half_written), enabled)
    for enabled, period in ((False, 1), (True, 0)):
        name = f"a start again of a run that saves nothing, {enabled}, {period}"
        known = '{"run_id": "two", "config": {"a": 1}}'
        yield example(name, (False, [None], False), in_folder(_looked), known, False, enabled, period)
    yield example("files of a log that is cut", LEFT, in_folder(_cut))
    metric: Any
    for metric, prefix, words in (
        ("train:los", "train", "'train:los' is not a metric of this run"), ("train:", "train", "metric_name='train:'"),
        ("val:los", "val", "val:loss"),
    ):  # fmt: skip
        yield refused(words, f"{metric} among those of {prefix}", _named, metric, prefix)
    for metric, prefix in (
        ("train:loss", "train"),
        ("val:loss", "train"),
        ("train:los", "val"),
        (None, "train"),
    ):
        yield example(f"{metric} is right for {prefix}", None, _named, metric, prefix)
    yield example(
        "runs that resume one another", [[None, 1, 2], [3, 3, 3], 1, ["step_2", "step_3"]], in_folder(_chain)
    )


def _looked(folder: Path, text: str | None, saved: bool, enabled: bool = True, period: int = 1) -> Any:
    """Return whether a start continues the log, where its starts resumed from, and whether it is the saved run."""
    if saved:
        checkpointer(folder / "kept").save(2, None)
    (folder / "log").mkdir()
    if text is not None:
        (folder / "log" / "run_info.json").write_text(text)
    config = CheckpointingConfig(enabled=enabled, checkpoint_dir=str(folder / "kept"), save_period=period)
    found = attempts._look({"a": 1}, config, folder / "log")
    assert found.log_facts["run_id"] == found.run_id
    return (
        found.continues_log,
        [one["resumed_from"] for one in found.log_facts["attempts"]],
        found.run_id == "one",
    )


def _half_written(folder: Path, enabled: bool) -> list[str]:
    (folder / ".step_3.abc").mkdir()
    config = CheckpointingConfig(enabled=enabled, checkpoint_dir=str(folder))
    attempts._look({}, config, folder / "log")
    return [path.name for path in folder.iterdir()]


def _cut(folder: Path) -> list[str]:
    """Return what is left of the files of a log after step 2."""
    for name in (*LEFT, "a_b_step3.jsonl", "x_step10.jsonl"):
        (folder / name).touch()
    attempts.cut_log(folder, 2)
    return sorted(path.name for path in folder.iterdir())


def _named(metric: str | None, prefix: str) -> None:
    config = CheckpointingConfig(checkpoint_dir="x", save_period=1, metric_name=metric)
    saving.check_metric_name(config, prefix, ["loss", "reward"])


def _chain(folder: Path) -> Any:
    """Return where three starts resumed from, what the last one has, how many runs they are, and what is kept.

    Each start trains one step: its weights, counter and the state of a part are the number of the step.
    """
    config = CheckpointingConfig(
        checkpoint_dir=str(folder / "kept"), save_period=1, async_save=False, keep_top_k=2
    )
    (folder / "log").mkdir()
    runs, resumed = set(), []
    for step in (1, 2, 3):
        attempt = attempts._look({}, config, folder / "log")
        (folder / "log" / "run_info.json").write_text(json.dumps(attempt.log_facts))
        resumed = [one["resumed_from"] for one in attempt.log_facts["attempts"]]
        runs.add(attempt.run_id)
        policy, part = MadePolicy(), Counted()
        facts = RunFacts(run_id=attempt.run_id, seed=3, examples=EXAMPLES, config={})
        saver = Checkpointer(config, policy, {"prompts": part}, facts=facts, world=ALONE)
        if attempt.checkpoint is not None:
            saver.restore(attempt.checkpoint)
        policy.weight += 1.0
        policy.facts = {"version": policy.facts["version"] + 1}
        part.number += 1
        saver.save(step, None)
    state = [int(policy.weight.sum()) // 3, policy.facts["version"], part.number]
    return [resumed, state, len(runs), sorted(path.name for path in (folder / "kept").iterdir())]


def _late(folder: Path, first: bool) -> bool:
    saver = checkpointer(folder, checkpoint_must_save_by=None if first else "0:00:00:00")
    saver._world = _second(first)
    return saver.is_out_of_time()


def _exports(folder: Path, first: bool, own: bool) -> int:
    """Return how often a rank exports the model of a run that was over when it started."""
    noted: list[Any] = []
    if own:
        (folder / "final").mkdir()
    session: Any = SimpleNamespace(
        attempt=SimpleNamespace(step=2, is_finished=False),
        final=folder / "final",
        world=_second(first),
        policy=SimpleNamespace(save=noted.append),
    )
    Steps(session, 2).export()
    return len(noted)


def _begun() -> Any:
    config: Any = SimpleNamespace(log_dir="log")
    with patch.object(attempts, "_look", lambda *words: "another"):
        return attempts.begin_attempt(config, config, config, _second("attempt"))
