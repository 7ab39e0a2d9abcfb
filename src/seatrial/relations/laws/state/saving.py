"""R21 of saving itself: the best are kept, each checkpoint is of its own step, ranks get their own streams back."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from seatrial.relations.law import Law, Measure, Relation

FULL = 64 * 1024
"""Bytes of a file after which a disk is full, for a law; tensors are larger, and what describes them is smaller."""


@dataclass(frozen=True, kw_only=True)
class SavingCase:
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
        return {"metrics": [str(metric) for metric in self.metrics], "keep": self.keep, "seed": self.seed}

    def kept(self, *, higher_is_better: bool) -> tuple[int, ...]:
        """Return the steps that are there at the end, each step's removals on those that were left before."""
        there: list[int] = []
        for step in range(1, len(self.metrics) + 1):
            there.append(step)
            ranked = [(self._goodness(one, higher_is_better), one) for one in there]
            best = {one for _, one in sorted(ranked)[-self.keep :]}
            there = [one for one in there if one in best or one == step]
        return tuple(there)

    def _goodness(self, step: int, higher_is_better: bool) -> tuple[bool, float]:
        """Return what is larger for a better one; one without a number is worse than all that have one."""
        metric = self.metrics[step - 1]
        if metric is None or math.isnan(metric):
            return False, 0.0
        return True, metric if higher_is_better else -metric


def _make(stack: Any, seed: int, tidy: bool) -> SavingCase:
    stream = random.Random(seed)
    metrics: list[float | None] = [stream.random() for _ in range(7)]
    if not tidy:
        # Between numbers, where a comparison with it leaves them unsorted; and one that is not there.
        metrics[1] = metrics[4] = math.nan
        metrics[2 + seed % 2] = None
    return SavingCase(metrics=tuple(metrics), keep=2 + seed % 2, seed=seed)


def _best_are_kept(stack: Any, case: SavingCase) -> Measure:
    wrong = []
    for higher in (True, False):
        kept, wanted = (
            stack.kept_of(case.metrics, keep=case.keep, higher_is_better=higher),
            case.kept(higher_is_better=higher),
        )
        if kept != wanted:
            wrong.append(f"{list(kept)} are kept of {list(case.metrics)}, due {list(wanted)}")
    return Measure.count(wrong, "rankings by which other checkpoints are kept")


def _of_its_step(stack: Any, case: SavingCase) -> Measure:
    stream = torch.Generator().manual_seed(case.seed)
    tensors = {f"weights.{number}": torch.randn(20_000, generator=stream) for number in range(12)}
    right = {name: tensor.clone() for name, tensor in tensors.items()}

    def update() -> None:
        for tensor in tensors.values():
            tensor += 1.0

    saved = stack.saved_behind(tensors, update)
    wrong = [f"{name} is on one side alone" for name in sorted(saved.keys() ^ right.keys())]
    wrong += [name for name in right if name in saved and not torch.equal(saved[name], right[name])]
    return Measure.count(wrong, "tensors of a checkpoint that are of the step after it")


def _nothing_is_lost(stack: Any, case: SavingCase) -> Measure:
    """A checkpoint that cannot be written costs none that is there, and is not passed over in silence."""
    wanted = replace(case, metrics=case.metrics[:-1]).kept(higher_is_better=True)
    kept, is_told = stack.kept_when_a_write_fails(case.metrics, keep=case.keep, bytes_a_file=FULL)
    wrong = [] if kept == wanted else [f"{list(kept)} are there, and {list(wanted)} were whole before"]
    wrong += [] if is_told else ["nothing was raised"]
    return Measure.count(wrong, "what a failed write changed")


def _own_streams(stack: Any, case: SavingCase) -> Measure | None:
    draws = stack.drawn_after_resume([case.seed + 10 * rank for rank in range(3)])
    if len({one.unbroken for one in draws}) < 3:
        return None
    wrong = [
        f"rank {rank} draws {one.resumed[:2]}, unbroken {one.unbroken[:2]}"
        for rank, one in enumerate(draws)
        if one.resumed != one.unbroken
    ]
    return Measure.count(wrong, "ranks that draw other numbers after a resume")


RELATIONS = (
    Relation(
        id="R21.saving",
        name="checkpoints-are-kept-written-and-drawn-from",
        component="saving",
        statement="The best checkpoints are kept, also among metrics that are no numbers; each holds its own step's "
        "tensors; every rank resumes with its own random streams.",
        catalogue=("SB374", "SB299", "SB260", "SB311", "SB040"),
        cost="CPU, milliseconds",
        laws=(
            Law(
                name="the best are kept",
                make=_make,
                measure=_best_are_kept,
                suspects="a NaN that takes part in a comparison, the latest removed, an order that is turned round",
            ),
            Law(
                name="tensors of their own step",
                make=_make,
                measure=_of_its_step,
                suspects="live tensors handed to a writer beside the training",
            ),
            Law(
                name="a failed write",
                make=_make,
                measure=_nothing_is_lost,
                suspects="older checkpoints removed before the new one is whole, an error that stays in a thread",
            ),
            Law(
                name="every rank its own streams",
                make=_make,
                measure=_own_streams,
                suspects="the first rank's streams for all, streams that are not saved",
            ),
        ),
    ),
)
