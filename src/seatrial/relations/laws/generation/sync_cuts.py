"""R8, R19: the receiver gets the sender's exact bits for any message size, and serves nothing after a partial sync."""

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
"""More than ten tensors, so that messages end within a tensor; one tensor is empty."""


@dataclass(frozen=True, kw_only=True)
class CutCase(Case):
    """Weights that change several times, and how a sync splits them into messages."""

    bucket_bytes: int
    changes_alone: bool
    is_reversed: bool
    num_changes: int
    seed: int
    whole_every: int = 1000

    def smaller(self) -> Iterator[CutCase]:
        """Yield fewer changes, then the original order, then large messages."""
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
        """Return the open sync that the case describes."""
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
    # A tensor split over three messages; one element per message; all in one.
    size = 10_000 if tidy else (180, 4, 64)[seed % 3]
    return CutCase(
        bucket_bytes=size, changes_alone=False, is_reversed=not tidy, num_changes=1 if tidy else 3, seed=seed
    )


def _make_changes(stack: Any, seed: int, tidy: bool) -> CutCase:
    return replace(_make(stack, seed, tidy), changes_alone=True)


def _make_intervals(stack: Any, seed: int, tidy: bool) -> CutCase:
    return replace(_make_changes(stack, seed, tidy), num_changes=7, whole_every=2 + seed % 3)


def _changed(opened: OpenCutSync, number: int, seed: int) -> dict[str, Tensor]:
    """Return changed weights: first of a few elements, then of a few by a small step, then of nearly all.

    Every third tensor also gets a NaN, a negative zero or a zero.
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
    return [f"{name}, on one side only" for name in names] + [
        f"{name}, {what}"
        for name in mine.keys() & theirs.keys()
        if not torch.equal(_bits(mine[name]), _bits(theirs[name]))
    ]


SYNCS_ARE_INDEPENDENT_OF_MESSAGES = Relation(
    id="R8.sync",
    name="syncs-are-independent-of-messages",
    component="cut_sync",
    statement="Message size, message order and a repeated sync change nothing, and the sender is never modified.",
    catalogue="SB234 SB251 SB264 SB271 SB342 SB384 SB100 SB188",
    cost="CPU, milliseconds",
    cases=_make_changes,
)
PARTIAL_SYNC_SERVES_NOTHING = Relation(
    id="R19.sync",
    name="a-partial-sync-serves-nothing",
    component="cut_sync",
    statement="A receiver whose sync was interrupted serves nothing until a complete sync.",
    catalogue="SB234 SB254",
    cost="CPU, milliseconds",
    cases=_make,
)


@SYNCS_ARE_INDEPENDENT_OF_MESSAGES.law(
    "the sender's bits arrive",
    "elements lost at message borders, the sender's weights rounded when read",
    cases=_make,
)
@SYNCS_ARE_INDEPENDENT_OF_MESSAGES.law(
    "the sender's bits arrive by changes",
    "small changes ignored, NaN or negative zero compared by value",
)
def senders_bits_arrive(stack: Any, case: CutCase) -> Measure:
    """After each sync, and after repeating it, receiver and sender both have the sender's exact bits."""
    opened = case.open(stack)
    wrong = []
    for number in range(case.num_changes):
        sent = _changed(opened, number, case.seed)
        opened.change(sent)
        opened.sync()
        wrong += _differing(sent, opened.received(), f"after sync {number}")
        opened.sync()
        wrong += _differing(sent, opened.received(), f"after repeating sync {number}")
        wrong += _differing(sent, opened.tensors(), f"of the sender after sync {number}")
    return Measure.count(wrong, "tensors that differ from what was sent")


@SYNCS_ARE_INDEPENDENT_OF_MESSAGES.law(
    "counted bytes are sent bytes",
    "indices of changed elements not counted",
)
def counted_bytes_are_sent_bytes(stack: Any, case: CutCase) -> Measure:
    """The logged bytes are the sum of the messages, and no message exceeds the limit."""
    opened = case.open(stack)
    wrong = []
    for number in range(case.num_changes):
        opened.change(_changed(opened, number, case.seed))
        logged, messages = opened.sync()
        if logged["bytes"] != sum(messages):
            wrong.append(f"sync {number} logs {logged['bytes']:.0f} bytes, its messages have {sum(messages)}")
        # A message has at least one element, and the element's index in four or eight bytes.
        wrong += [
            f"sync {number}: a message of {size} bytes"
            for size in messages
            if size > max(case.bucket_bytes, 12)
        ]
    return Measure.count(wrong, "syncs that log other bytes than they send, or exceed the message size")


@SYNCS_ARE_INDEPENDENT_OF_MESSAGES.law(
    "full syncs at their interval",
    "an interval off by one sync, an interval option never read",
    cases=_make_intervals,
)
def full_syncs_at_their_interval(stack: Any, case: CutCase) -> Measure:
    """Exactly every `whole_every`-th sync sends every element; one element changes before each sync."""
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
            wrong.append(
                f"sync {number}: {sum(messages)} of {every} bytes with whole_every={case.whole_every}"
            )
    return Measure.count(wrong, "syncs that are full outside the interval, or not full at it")


@PARTIAL_SYNC_SERVES_NOTHING.law(
    "a partial sync serves nothing",
    "an engine that continues to serve while its weights are written",
)
@PARTIAL_SYNC_SERVES_NOTHING.law(
    "a partial sync of changes serves nothing",
    "changes applied to weights of another version",
    cases=_make_changes,
)
def partial_sync_serves_nothing(stack: Any, case: CutCase) -> Measure:
    """After an interrupted sync the receiver serves nothing; the next complete sync gives it the sender's bits."""
    wrong = []
    for num_messages in range(4):
        opened = case.open(stack)
        opened.change(_changed(opened, 0, case.seed))
        opened.sync()
        opened.change(_changed(opened, 1, case.seed))
        if opened.stop_after(num_messages) is True:
            wrong.append(f"the receiver serves after {num_messages} messages")
        sent = _changed(opened, 2, case.seed)
        opened.change(sent)
        opened.sync()
        wrong += _differing(
            sent, opened.received(), f"after a sync that follows one interrupted at message {num_messages}"
        )
    return Measure.count(wrong, "partial syncs that are served, or that the next sync does not repair")
