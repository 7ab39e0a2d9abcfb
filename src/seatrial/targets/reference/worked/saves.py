"""Worked examples of saves and resumes: clocks, ranks, what is in the way, what is closed, removed and said."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from safetensors import SafetensorError

from refrl.checkpointing import attempts, layout, tensors
from refrl.checkpointing import checkpointer as saving
from refrl.checkpointing.base import Checkpoint
from refrl.checkpointing.checkpointer import Checkpointer, RunFacts
from refrl.config import CheckpointingConfig
from refrl.distributed import ALONE, World
from refrl.masking import MASK
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.checkpoints import (
    EXAMPLES,
    MadePolicy,
    checkpointer,
    in_folder,
)
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.resumes import of_resumes
from seatrial.targets.reference.worked.steps import quietly


class _Rank(World):
    """One of several ranks, without the others."""

    def gather(self, items: Any) -> Any:
        return list(items) * self.size


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_times()
    yield from _of_ranks()
    yield from _of_folders()
    yield from of_resumes()
    for better in (True, False):
        yield example(f"checkpoints by metric, higher is better: {better}", [], _badly_ranked, better)
    secret = [f"resuming with a changed option: url was 'https://{MASK}@h/a', is 'https://{MASK}@h/b'"]
    yield example("changed options with secrets", secret, in_folder(_changed))


def _of_times() -> Iterator[WorkedExample]:
    right: Any
    for passed, right in ((9.5, False), (10.0, True), (11.0, True)):
        yield example(f"a run of which {passed} of 10 s have passed", right, in_folder(_is_late), passed)
    for period, ends, late, right in (
        (0, False, True, True),
        (0, True, False, False),
        (3, True, False, True),
        (3, False, True, True),
        (3, False, False, False),
    ):
        name = f"step 4 with a save every {period} steps, ends: {ends}, late: {late}"
        yield example(name, right, in_folder(_is_due), period, ends, late)
    right = {"started_at": 1234.5, "resumed_from": None}
    yield example("the first start of a run", right, in_folder(_first))


def _is_late(folder: Path, passed: float) -> bool:
    config: Any = SimpleNamespace(checkpoint_dir=str(folder), async_save=False, seconds_until_save=10.0)
    now = [100.0]
    facts = RunFacts(run_id="one", seed=3, examples=EXAMPLES, config={})
    with patch.object(saving, "time", SimpleNamespace(monotonic=lambda: now[0])):
        saver = Checkpointer(config, MadePolicy(), {}, facts=facts, world=ALONE)
        now[0] += passed
        return saver.is_out_of_time()


def _is_due(folder: Path, period: int, ends: bool, late: bool) -> bool:
    return checkpointer(folder, save_period=period).is_due(4, ends=ends, is_out_of_time=late)


def _first(folder: Path) -> Any:
    config = CheckpointingConfig(checkpoint_dir=str(folder / "checkpoints"))
    with patch.object(attempts, "time", SimpleNamespace(time=lambda: 1234.5, monotonic=lambda: 9.0)):
        return attempts._look({}, config, folder / "log").log_facts["attempts"][0]


def _changed(folder: Path) -> list[str]:
    """Return what a start says of an option that differs from a checkpoint's, both with a password."""
    saver = checkpointer(folder)
    saver._facts = RunFacts(run_id="one", seed=3, examples=EXAMPLES, config={"url": "https://me:secret@h/a"})
    saver.save(2, None)
    saver.close()
    now = {"url": f"https://{MASK}@h/b"}
    config = CheckpointingConfig(checkpoint_dir=str(folder))
    printed = quietly(lambda: attempts._look(now, config, folder / "log"))
    return [line for line in printed.splitlines() if "changed option" in line]


def _of_ranks() -> Iterator[WorkedExample]:
    right: Any
    yield example(
        "what a rank does for a checkpoint that another writes",
        (["weight", "bias"], []),
        in_folder(_other_rank),
    )
    for rank, num, right in ((0, 1, [0]), (1, 1, []), (1, 2, [1]), (2, 2, [])):
        name = f"the streams of rank {rank} from a checkpoint of {num} ranks"
        yield example(name, right, in_folder(_streams), rank, num)
    calls = {"wait": ["wait"], "finish": ["finish"], "close": ["close"]}
    for name, right in calls.items():
        yield example(f"the writer of a checkpointer and {name}", right, in_folder(_passed_on), name)
    for rank, right in ((0, ["removed", "saved"]), (1, ["saved"])):
        yield example(f"the export of rank {rank} over another", right, in_folder(_exported), rank)
    yield example("no export", None, layout.export_final, SimpleNamespace(), None, ALONE)


def _made(folder: Path, world: World) -> Checkpointer:
    config = CheckpointingConfig(checkpoint_dir=str(folder), save_period=1, async_save=False)
    facts = RunFacts(run_id="one", seed=3, examples=EXAMPLES, config={})
    return Checkpointer(config, MadePolicy(), {}, facts=facts, world=world)


def _other_rank(folder: Path) -> Any:
    """Return the tensors that a second rank gathers for the first, and what it writes."""
    policy = MadePolicy(3.0)
    state = {**policy.state_tensors(), "bias": torch.zeros(1)}
    policy.state_tensors = lambda: state  # type: ignore[method-assign]
    saver = _made(folder, _Rank(1, 2))
    saver._policy = policy
    gathered: list[str] = []
    names = {id(tensor): name for name, tensor in policy.state_tensors().items()}
    with patch.object(saving, "whole", lambda tensor: gathered.append(names[id(tensor)])):
        saver.save(2, None)
    return gathered, [path.name for path in folder.iterdir()]


def _streams(folder: Path, rank: int, num: int) -> list[Any]:
    restored: list[Any] = []
    info: Any = SimpleNamespace(streams=list(range(num)))
    with patch.object(saving, "restore_global_streams", restored.append):
        _made(folder, _Rank(rank, 3)).restore_streams(Checkpoint(folder, info))
    return restored


def _passed_on(folder: Path, name: str) -> list[str]:
    noted: list[str] = []
    saver: Any = _made(folder, ALONE)
    calls = {one: lambda one=one: noted.append(one) for one in ("wait", "finish", "close")}
    saver._writer = SimpleNamespace(**calls)
    getattr(saver, name)()
    return noted


def _exported(folder: Path, rank: int) -> list[str]:
    noted: list[str] = []
    (folder / "final").mkdir()
    policy: Any = SimpleNamespace(save=lambda final: noted.append("saved"))
    with patch.object(layout, "remove_checkpoint", lambda directory: noted.append("removed")):
        layout.export_final(policy, folder / "final", _Rank(rank, 2))
    return noted


def _of_folders() -> Iterator[WorkedExample]:
    yield example("descriptors that saves leave open", 0, in_folder(_open_files))
    yield example("a checkpoint where half of one is", (["step_2"], True), in_folder(_over_half))
    yield example("a removed checkpoint next to what was left of one", [], in_folder(_removed))
    full = "OSError: cannot write"
    yield example("tensors on a full disk", full, in_folder(_full))
    yield example("tensors of any type and order that come back", [], in_folder(_typed))
    yield example("files that have no digest, or not their own", [], in_folder(_undigested))
    for in_background in (True, False):
        name = f"what saves leave, in the background: {in_background}"
        yield example(name, (["step_3"], True), in_folder(_left), in_background)
    yield example("the place of an error that names none", "step_2", in_folder(_unnamed))
    yield example("warnings that a resume hides from then on", 0, in_folder(_hidden))
    yield example("the folder of an export three levels down", True, in_folder(_deep))
    yield refused("no permission", "an export where nothing may be written", in_folder(_locked))
    yield refused("final exists", "an export next to half a checkpoint", in_folder(_half_final))


def _descriptors() -> int:
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.is_dir() else 0


def _open_files(folder: Path) -> int:
    saver = _made(folder, ALONE)
    saver.save(1, None)
    before = _descriptors()
    for step in (2, 3):
        saver.save(step, None)
    return _descriptors() - before


def _over_half(folder: Path) -> Any:
    """Return what is there after a save where a directory without all of its files was, and whether those are gone."""
    (folder / "step_2").mkdir()
    (folder / "step_2" / "junk").write_text("x")
    _made(folder, ALONE).save(2, None)
    found = [path.name for path in folder.iterdir()]
    return found, not (folder / "step_2" / "junk").exists() and bool(layout.whole_checkpoints(folder))


def _removed(folder: Path) -> list[str]:
    for name in ("step_1", ".step_1.removed"):
        (folder / name).mkdir()
        (folder / name / "x").write_text("x")
    layout.remove_checkpoint(folder / "step_1")
    return [path.name for path in folder.iterdir()]


def _full(folder: Path) -> str:
    def save(*words: Any) -> None:
        raise SafetensorError("no space")

    with patch.object(tensors, "save_file", save):
        try:
            tensors.write_tensors({"a": torch.ones(1)}, folder / "policy")
        except OSError as error:
            return f"{type(error).__name__}: {error}".partition(f" {folder}")[0]
    return ""


def _typed(folder: Path) -> list[str]:
    """Return the tensors that differ, in type or value, once they are written and read."""
    whole = torch.tensor([[1.0, -0.0], [torch.nan, torch.inf]], dtype=torch.float64)
    kinds = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    given = {str(kind): whole.to(kind).T for kind in kinds}
    given |= {
        "long": torch.tensor([2**62 + 1]),
        "bool": torch.tensor([True, False]),
        "number": torch.tensor(0.5),
    }
    tensors.write_tensors(given, folder / "policy")
    found = {name: torch.zeros_like(tensor) for name, tensor in given.items()}
    tensors.read_tensors(folder / "policy", found)
    return [
        name
        for name, own in found.items()
        if repr(own) != repr(given[name]) or own.dtype != given[name].dtype
    ]


def _undigested(folder: Path) -> list[str]:
    """Return the files of a checkpoint, one of them of 2 MiB, whose digest is not that of what they hold."""

    def write(tensors: Any, policy: Path) -> None:
        policy.mkdir()
        for name, size in (("none", 0), ("some", 9), ("large", 2**21)):
            (policy / name).write_bytes(bytes(size))

    with patch.object(saving, "write_tensors", write):
        _made(folder, ALONE).save(2, None)
    (found,) = layout.whole_checkpoints(folder)
    names = ("none", "some", "large")
    due = {f"policy/{name}": layout.file_digest(found.directory / "policy" / name) for name in names}
    return sorted(name for name, _ in found.info.digests.items() ^ due.items())


def _left(folder: Path, in_background: bool) -> Any:
    """Return which of three checkpoints are left of which one is kept, and whether it has what was saved last."""
    policy = MadePolicy()
    saver = checkpointer(folder, policy, async_save=in_background, keep_top_k=1)
    for step in (1, 2, 3):
        policy.weight.fill_(step)
        saver.save(step, None)
    saver.close()
    restored = MadePolicy()
    (found,) = layout.whole_checkpoints(folder)
    checkpointer(folder, restored).restore(found)
    return [path.name for path in folder.iterdir()], restored.weight.tolist() == [3.0] * 3


def _unnamed(folder: Path) -> str:
    with patch.object(saving, "write_tensors", side_effect=OSError(28, "No space left")):
        try:
            _made(folder, ALONE).save(2, None)
        except OSError as error:
            return Path(error.filename or "").name
    return ""


def _hidden(folder: Path) -> int:
    """Return how many more filters of warnings there are after tensors were read."""
    tensors.write_tensors({"a": torch.ones(1)}, folder / "policy")
    before = len(warnings.filters)
    tensors.read_tensors(folder / "policy", {"a": torch.zeros(1)})
    return len(warnings.filters) - before


def _deep(folder: Path) -> bool:
    config = CheckpointingConfig(checkpoint_dir=str(folder / "a" / "b" / "c"))
    return (
        layout.final_directory(config) == folder / "a" / "b" / "c" / "final" and (folder / "a/b/c").is_dir()
    )


def _locked(folder: Path) -> None:
    """Ask for an export where the system permits reading alone."""
    with patch.object(os, "access", lambda path, mode: mode == os.R_OK):
        layout.final_directory(CheckpointingConfig(checkpoint_dir=str(folder)))


def _half_final(folder: Path) -> None:
    for name in ("final", "step_1"):
        (folder / name).mkdir()
    layout.final_directory(CheckpointingConfig(checkpoint_dir=str(folder)))


def _badly_ranked(better: bool) -> list[Any]:
    """Return orders of four metrics, of which one is missing and one no number, that are not ranked rightly."""
    config: Any = SimpleNamespace(metric_name="val:accuracy", higher_is_better=better)
    wrong = []
    for metrics in permutations((0.5, math.nan, 0.75, None)):
        ranks = [one.info.step for one in layout.ranked(_checkpoints(metrics), config)]
        numbers = sorted((0.5, 0.75), reverse=better)
        due = [metrics.index(number) for number in numbers]
        due += sorted(set(range(4)) - set(due), reverse=True)
        if ranks != due:
            wrong.append(metrics)
    return wrong


def _checkpoints(metrics: Sequence[float | None]) -> list[Checkpoint]:
    infos: list[Any] = [SimpleNamespace(step=step, metric=metric) for step, metric in enumerate(metrics)]
    return [Checkpoint(Path(), info) for info in infos]
