"""R8, R19: however weights are cut on their way the sender's bits arrive, and half of them serve nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.syncs import Cut, OpenCutSync
from seatrial.relations.law import Measure, Relation

SHAPES = ((3, 5), (), (40,), (7, 2, 3), (0,), (1,), (11, 11), (5,), (2, 2), (1, 9), (13,), (4, 4))
"""More than ten; the last bytes of a message lie within a tensor, and one has none."""


@dataclass(frozen=True, kw_only=True)
class CutCase(Case):
    """Weights that change a few times, and how they are cut."""

    bucket_bytes: int
    changes_alone: bool
    is_reversed: bool
    num_changes: int
    seed: int
    whole_every: int = 1000

    def smaller(self) -> Iterator[CutCase]:
        """Yield fewer changes, then the usual order, then large messages."""
        if self.num_changes > 1:
            yield replace(self, num_changes=self.num_changes - 1)
        if self.is_reversed:
            yield replace(self, is_reversed=False)
        if self.bucket_bytes < 10_000:
            yield replace(self, bucket_bytes=10_000)

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def open(self, stack: Any) -> OpenCutSync:
        """Open the sync that the case describes."""
        order = tuple(range(len(SHAPES)))[:: -1 if self.is_reversed else 1]
        cut = Cut(
            bucket_bytes=self.bucket_bytes,
            order=order,
            changes_alone=self.changes_alone,
            whole_every=self.whole_every,
        )
        opened: OpenCutSync = stack.open_cut_sync(SHAPES, cut)
        return opened


def _make(stack: Any, seed: int, tidy: bool) -> CutCase:
    # A tensor in three messages; one element a message; all in one.
    size = 10_000 if tidy else (180, 4, 64)[seed % 3]
    return CutCase(
        bucket_bytes=size, changes_alone=False, is_reversed=not tidy, num_changes=1 if tidy else 3, seed=seed
    )


def _make_changes(stack: Any, seed: int, tidy: bool) -> CutCase:
    return replace(_make(stack, seed, tidy), changes_alone=True)


def _make_intervals(stack: Any, seed: int, tidy: bool) -> CutCase:
    return replace(_make_changes(stack, seed, tidy), num_changes=7, whole_every=2 + seed % 3)


def _changed(opened: OpenCutSync, number: int, seed: int) -> dict[str, Tensor]:
    """Return other values: of a few elements, the second time by a little, then of nearly all.

    Every third tensor gets a NaN, or a minus zero in the place of zero.
    """
    stream = torch.Generator().manual_seed(100 * seed + number)
    changed = {}
    for place, (name, tensor) in enumerate(opened.tensors().items()):
        moves = torch.rand(tensor.shape, generator=stream) < (0.1 if number < 2 else 0.9)
        step = 1e-4 if number == 1 else 1.0
        value = torch.where(moves, tensor + step * torch.randn(tensor.shape, generator=stream), tensor)
        if place % 3 == 0 and value.numel() > 1:
            value.view(-1)[number % value.numel()] = (float("nan"), -0.0, 0.0)[number % 3]
        changed[name] = value
    return changed


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.int32)


def _differing(mine: Mapping[str, Tensor], theirs: Mapping[str, Tensor], what: str) -> list[str]:
    names = sorted(mine.keys() ^ theirs.keys())
    return [f"{name}, on one side alone" for name in names] + [
        f"{name}, {what}"
        for name in mine.keys() & theirs.keys()
        if not torch.equal(_bits(mine[name]), _bits(theirs[name]))
    ]


HOWEVER_IT_IS_CUT_THE_SAME_ARRIVES = Relation(
    id="R8.sync",
    name="however-it-is-cut-the-same-arrives",
    component="cut_sync",
    statement="Size and order of messages change nothing, nor does a second sync, and the sender is never touched.",
    catalogue="SB234 SB251 SB264 SB271 SB342 SB384 SB100 SB188",
    cost="CPU, milliseconds",
    cases=_make_changes,
)
HALF_A_SYNC_SERVES_NOTHING = Relation(
    id="R19.sync",
    name="half-a-sync-serves-nothing",
    component="cut_sync",
    statement="A receiver whose sync ended half-way serves nothing until a sync has brought it whole weights.",
    catalogue="SB234 SB254",
    cost="CPU, milliseconds",
    cases=_make,
)


@HOWEVER_IT_IS_CUT_THE_SAME_ARRIVES.law(
    "the sender's bits arrive",
    "elements at the border of two messages, a sender that is rounded where it is read",
    cases=_make,
)
@HOWEVER_IT_IS_CUT_THE_SAME_ARRIVES.law(
    "changes bring the sender's bits",
    "small changes that count as none, a NaN or minus zero that is compared by value",
)
def arrives(stack: Any, case: CutCase) -> Measure:
    """The receiver has the sender's bits after each sync and after a second one; the sender's own stay."""
    opened = case.open(stack)
    wrong = []
    for number in range(case.num_changes):
        sent = _changed(opened, number, case.seed)
        opened.change(sent)
        opened.sync()
        wrong += _differing(sent, opened.received(), f"after sync {number}")
        opened.sync()
        wrong += _differing(sent, opened.received(), f"after sync {number} a second time")
        wrong += _differing(sent, opened.tensors(), f"the sender's own after sync {number}")
    return Measure.count(wrong, "tensors that are not what was sent")


@HOWEVER_IT_IS_CUT_THE_SAME_ARRIVES.law(
    "counted bytes are sent bytes",
    "places of changes that are not counted",
)
def counts(stack: Any, case: CutCase) -> Measure:
    """The bytes that a sync counts are those of its messages, none of which is larger than it may be."""
    opened = case.open(stack)
    wrong = []
    for number in range(case.num_changes):
        opened.change(_changed(opened, number, case.seed))
        logged, messages = opened.sync()
        if logged["bytes"] != sum(messages):
            wrong.append(
                f"sync {number} counts {logged['bytes']:.0f} bytes, its messages hold {sum(messages)}"
            )
        # A message holds one element at least: with its place, of four or eight bytes.
        wrong += [
            f"sync {number}: a message of {size}" for size in messages if size > max(case.bucket_bytes, 12)
        ]
    return Measure.count(wrong, "syncs that count other bytes than they send, or send more at a time")


@HOWEVER_IT_IS_CUT_THE_SAME_ARRIVES.law(
    "whole in their interval",
    "a count that begins a sync late, an interval that nobody reads",
    cases=_make_intervals,
)
def whole_in_time(stack: Any, case: CutCase) -> Measure:
    """Every so manieth sync carries every element, and none between: one element changes before each."""
    opened = case.open(stack)
    every = sum(4 * tensor.numel() for tensor in opened.tensors().values())
    wrong = []
    for number in range(1, case.num_changes + 1):
        name, tensor = max(opened.tensors().items(), key=lambda item: item[1].numel())
        tensor.view(-1)[number] += 1.0
        opened.change({name: tensor})
        _, messages = opened.sync()
        is_whole = sum(messages) >= every
        if is_whole != (number % case.whole_every == 0):
            wrong.append(f"sync {number} of {sum(messages)} bytes, {every} in all, with {case.whole_every}")
    return Measure.count(wrong, "syncs that are whole out of their turn, or are not in it")


@HALF_A_SYNC_SERVES_NOTHING.law(
    "half a sync serves nothing",
    "an engine that goes on serving while its weights are written",
)
@HALF_A_SYNC_SERVES_NOTHING.law(
    "half of the changes serve nothing",
    "changes that are applied to weights of another version",
    cases=_make_changes,
)
def half_serves_nothing(stack: Any, case: CutCase) -> Measure:
    """Ended after any message of a sync the receiver serves nothing; a whole sync later it has the sender's bits."""
    wrong = []
    for num_messages in range(4):
        opened = case.open(stack)
        opened.change(_changed(opened, 0, case.seed))
        opened.sync()
        opened.change(_changed(opened, 1, case.seed))
        if opened.stop_after(num_messages) is True:
            wrong.append(f"it serves after {num_messages} messages")
        sent = _changed(opened, 2, case.seed)
        opened.change(sent)
        opened.sync()
        wrong += _differing(sent, opened.received(), f"a sync after one that ended at message {num_messages}")
    return Measure.count(wrong, "half syncs that are served, or that the next one does not mend")
