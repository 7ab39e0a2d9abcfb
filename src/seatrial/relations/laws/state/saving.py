"""R21.saving: the best checkpoints are kept, each has its own step's tensors, ranks get their own streams back."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation

FULL = 64 * 1024
"""Bytes of a file after which the simulated disk is full; tensors are larger, and metadata is smaller."""


@dataclass(frozen=True, kw_only=True)
class SavingCase(Case):
    """Metrics of the steps after which a run saves; the number of tensors and of ranks is the seed's."""

    metrics: tuple[float | None, ...]
    keep: int
    seed: int

    def smaller(self) -> Iterator[SavingCase]:
        """Yield a step fewer."""
        if len(self.metrics) > 2:
            yield replace(self, metrics=self.metrics[1:])

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values; a NaN as text."""
        return {**super().describe(), "metrics": [str(metric) for metric in self.metrics]}

    def kept(self, *, higher_is_better: bool) -> tuple[int, ...]:
        """Return the steps whose checkpoints are kept at the end; each step removes some of those kept before."""
        there: list[int] = []
        for step in range(1, len(self.metrics) + 1):
            there.append(step)
            ranked = [(self._goodness(one, higher_is_better), one) for one in there]
            best = {one for _, one in sorted(ranked)[-self.keep :]}
            there = [one for one in there if one in best or one == step]
        return tuple(there)

    def _goodness(self, step: int, higher_is_better: bool) -> tuple[bool, float]:
        """Return a sort key that is larger for a better checkpoint; one without a number is the worst."""
        metric = self.metrics[step - 1]
        if metric is None or math.isnan(metric):
            return False, 0.0
        return True, metric if higher_is_better else -metric


def _make(stack: Any, seed: int, tidy: bool) -> SavingCase:
    stream = random.Random(seed)
    metrics: list[float | None] = [stream.random() for _ in range(7)]
    if not tidy:
        # NaN between numbers, which leaves a naive sort unsorted; and one missing metric.
        metrics[1] = metrics[4] = math.nan
        metrics[2 + seed % 2] = None
    return SavingCase(metrics=tuple(metrics), keep=2 + seed % 2, seed=seed)


SAVING = Relation(
    id="R21.saving",
    name="checkpoints-are-kept-written-and-drawn-from",
    component="saving",
    statement="The best checkpoints are kept, also among metrics that are no numbers; each holds its own step's "
    "tensors; every rank resumes with its own random streams.",
    catalogue="SB374 SB299 SB260 SB311 SB040",
    cost="CPU, milliseconds",
    cases=_make,
)


@SAVING.law(
    "the best are kept",
    "a NaN that takes part in a comparison, the latest removed, an inverted order",
)
def best_are_kept(stack: Any, case: SavingCase) -> Measure:
    """Compare the kept checkpoints with the best by metric, in both orders."""
    wrong = []
    for higher in (True, False):
        kept = stack.kept_of(case.metrics, keep=case.keep, higher_is_better=higher)
        due = case.kept(higher_is_better=higher)
        if kept != due:
            wrong.append(f"{list(kept)} are kept of {list(case.metrics)}, due {list(due)}")
    return Measure.count(wrong, "rankings by which other checkpoints are kept")


@SAVING.law("tensors of their own step", "live tensors passed to a writer while training continues")
def checkpoint_has_its_own_step(stack: Any, case: SavingCase) -> Measure:
    """Check that a checkpoint has the tensors of its step, if an update follows while it is written."""
    stream = torch.Generator().manual_seed(case.seed)
    tensors = {f"weights.{number}": torch.randn(20_000, generator=stream) for number in range(12)}
    right = {name: tensor.clone() for name, tensor in tensors.items()}

    def update() -> None:
        for tensor in tensors.values():
            tensor += 1.0

    saved = stack.saved_behind(tensors, update)
    wrong = [f"{name} is only in one of the two" for name in sorted(saved.keys() ^ right.keys())]
    wrong += [name for name in right if name in saved and not torch.equal(saved[name], right[name])]
    return Measure.count(wrong, "tensors of a checkpoint that are of the step after it")


@SAVING.law(
    "a failed write",
    "older checkpoints removed before the new one is whole, an error that stays in a thread",
)
def failed_write_loses_nothing(stack: Any, case: SavingCase) -> Measure:
    """Check that a checkpoint that cannot be written removes no other one, and raises an error."""
    wanted = replace(case, metrics=case.metrics[:-1]).kept(higher_is_better=True)
    kept, raised = stack.kept_when_a_write_fails(case.metrics, keep=case.keep, bytes_a_file=FULL)
    wrong = [] if kept == wanted else [f"{list(kept)} exist, and {list(wanted)} were whole before"]
    wrong += [] if raised else ["nothing was raised"]
    return Measure.count(wrong, "what a failed write changed")


@SAVING.law("damage in any file", "a digest of all files but one, sizes compared in place of contents")
def damage_is_noticed(stack: Any, case: SavingCase) -> Measure:
    """Check that no run resumes from a checkpoint one byte of which changed, whichever file has it."""
    stream = torch.Generator().manual_seed(case.seed)
    tensors = {f"weights.{number}": torch.randn(3, 4, generator=stream) for number in range(3)}
    resumed = dict(stack.resumed_with_damage(tensors))
    undamaged = resumed.pop("", None)
    wrong = [] if undamaged == 2 else [f"without damage a run resumes from {undamaged}, due 2"]
    wrong += [f"{name} is damaged" for name, step in resumed.items() if step == 2]
    return Measure.count(
        wrong if resumed else ["no file is saved"], "damaged checkpoints that a run resumes from"
    )


@SAVING.law("every rank its own streams", "the first rank's streams for all, streams that are not saved")
def ranks_resume_their_own_streams(stack: Any, case: SavingCase) -> Measure | None:
    """Check that every rank draws the same numbers after a resume as without one."""
    draws = stack.drawn_after_resume([case.seed + 10 * rank for rank in range(3)])
    if len({one.unbroken for one in draws}) < 3:
        return None
    wrong = [
        f"rank {rank} draws {one.resumed[:2]}, unbroken {one.unbroken[:2]}"
        for rank, one in enumerate(draws)
        if one.resumed != one.unbroken
    ]
    return Measure.count(wrong, "ranks that draw other numbers after a resume")
