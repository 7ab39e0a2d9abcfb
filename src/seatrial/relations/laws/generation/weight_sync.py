"""R7: a sync makes the sampler's copy equal to the trained model; before a sync the copy does not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation


@dataclass(frozen=True, kw_only=True)
class SyncCase(Case):
    """Versions of the trainer, with a sync after each."""

    versions: tuple[int, ...]
    with_buffers: bool
    """Whether training changes buffers too."""

    def smaller(self) -> Iterator[SyncCase]:
        """Yield fewer versions, then parameters only."""
        for drop in range(len(self.versions)):
            if len(self.versions) > 1:
                yield replace(self, versions=self.versions[:drop] + self.versions[drop + 1 :])
        if self.with_buffers:
            yield replace(self, with_buffers=False)

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {"versions": list(self.versions), "with_buffers": self.with_buffers}


def _make(stack: Any, seed: int, tidy: bool) -> SyncCase:
    if tidy:
        return SyncCase(versions=(1,), with_buffers=False)
    # The trainer skips a version, and goes back once, as after a restart.
    return SyncCase(versions=(1, 3 + seed, 2), with_buffers=True)


SYNC = Relation(
    id="R7.sync",
    name="synced-weights-are-the-trainers",
    component="weight_sync",
    statement="A sync makes the sampler's copy equal to the trained model, including buffers, and sets its version.",
    catalogue="SB237 SB241 SB260 SB261 SB269 SB271 SB289",
    cost="CPU, milliseconds",
    cases=_make,
)


@SYNC.law("read back", "buffers left out, a tensor skipped by name, a sync skipped because of its version")
def read_back(stack: Any, case: SyncCase) -> Measure:
    wrong = []
    stack.start_sync()
    for version in case.versions:
        stack.advance(version, with_buffers=case.with_buffers)
        stack.sync()
        wrong += [f"{name}, version {version}" for name in _differing(stack)]
    return Measure.count(wrong, "tensors of the copy that differ from the trainer's after a sync")


@SYNC.law("unchanged until synced", "a shallow copy: weights change during running generations")
def unchanged_until_synced(stack: Any, case: SyncCase) -> Measure | None:
    """Training does not change the sampler's copy before a sync."""
    if not case.with_buffers:
        return None
    stack.start_sync()
    before = dict(stack.sampler_tensors())
    stack.advance(case.versions[0], with_buffers=True)
    after = stack.sampler_tensors()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    return Measure.count(moved, "tensors of the copy that training changed before a sync")


@SYNC.law("the trainer is unchanged", "weights merged or scaled in place for the sync", seeded=False)
def trainer_is_unchanged(stack: Any, case: SyncCase) -> Measure:
    stack.start_sync()
    stack.advance(case.versions[0], with_buffers=case.with_buffers)
    before = dict(stack.trainer_tensors())
    stack.sync()
    stack.sync()
    after = stack.trainer_tensors()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    return Measure.count(moved, "tensors of the trainer that a sync changed")


@SYNC.law("versions are exact", "a version never set, or set before the weights arrive", seeded=False)
def versions_are_exact(stack: Any, case: SyncCase) -> Measure:
    wrong = []
    stack.start_sync()
    for version in case.versions:
        stack.advance(version, with_buffers=case.with_buffers)
        stack.sync()
        if stack.sampler_version() != version:
            wrong.append(f"the copy reports version {stack.sampler_version()}, the trainer has {version}")
    return Measure.count(wrong, "syncs after which the copy reports another version")


def _differing(stack: Any) -> list[str]:
    trained, copied = stack.trainer_tensors(), stack.sampler_tensors()
    missing = sorted(trained.keys() ^ copied.keys())
    return missing + [
        name for name in trained if name in copied and not torch.equal(trained[name], copied[name])
    ]
