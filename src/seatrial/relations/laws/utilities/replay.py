"""R31.asynchronous, replay buffers: prompts are given once, the oldest first; old ones are dropped or waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.asynchronous import ASYNCHRONOUS
from seatrial.relations.laws.utilities.numbers import Numbers, without


class Group(NamedTuple):
    """A prompt in a replay buffer, with its rows."""

    uid: str
    step: int
    """In which it was asked for."""
    states: Sequence[str]
    """At each look at the buffer: absent, pending, running, finished or failure; the last one stays."""
    rewards: Sequence[float]
    """Of its rows."""


class Drawn(NamedTuple):
    """What a replay buffer gives."""

    keys: Sequence[str]
    """Of rows."""
    steps: Sequence[int]
    """What the buffer says of each of them."""
    cleared: Sequence[str]
    """Keys that it took out of the store."""
    refilled: Sequence[int]
    """Numbers of prompts that it asked for."""
    looks: int
    """How often it looked until it had enough."""
    metrics: Mapping[str, float]


FINISHED = ("finished",)
LATER = ("pending", "running", "finished")
OLD = (
    Group("a", 5, FINISHED, (1.0, 0.0)),
    Group("b", 2, FINISHED, (0.0, 1.0)),
    Group("c", 4, ("running",), (1.0, 0.0)),
    Group("d", 3, LATER, (0.5, 0.25)),
    Group("e", 4, FINISHED, (0.25, 0.75, 0.5)),
)
"""Of a buffer at step 5: of unequal ages, two of them not finished."""
FLAT = (
    *OLD[:2],
    Group("f", 1, FINISHED, (1.0, 1.0)),
    Group("g", 5, LATER, (0.0, 0.0)),
    OLD[4],
    Group("h", 5, LATER, (0.0, 1.0)),
)
"""Two of them have rewards without a difference."""


def _draw(stack: Any, groups: Sequence[Group], size: int, **options: Any) -> Drawn:
    plan = {
        "asynchronous": True,
        "threshold": None,
        "strategy": "drop",
        "filters": False,
        "partition": "train",
    }
    found: Drawn = stack.utilities["replay buffer"](list(groups), size, {**plan, **options})
    return found


def _rows_of(groups: Sequence[Group], uids: Sequence[str]) -> dict[str, int]:
    """Return the keys of rows, and the step of each."""
    named = {group.uid: group for group in groups}
    return {f"{uid}_{row}_0": named[uid].step for uid in uids for row in range(len(named[uid].rewards))}


def _wrong(found: Drawn, groups: Sequence[Group], uids: Sequence[str]) -> list[str]:
    due = _rows_of(groups, uids)
    given = dict(zip(found.keys, found.steps, strict=True))
    wrong = [] if given == due and len(given) == len(found.keys) else [f"rows {sorted(found.keys)}"]
    left = [uid for uid in uids if uid not in found.cleared]
    return wrong + ([f"prompts {left} stay in the buffer"] if left else [])


@ASYNCHRONOUS.law(
    "rows of a buffer",
    "rows of prompts that are not finished, the newest prompts first, rows of a prompt left out, prompts given twice",
    excluded=without("replay buffer"),
)
def a_buffer_gives_the_oldest_finished_prompts(stack: Any, case: Numbers) -> Measure:
    """Check what a buffer gives at once, after waiting, and in a validation, where failed prompts count."""
    wrong: list[str] = []
    for asynchronous in (False, True):
        for size, uids in ((1, "b"), (4, "bdae")):
            found = _draw(stack, OLD, size, asynchronous=asynchronous)
            wrong += [
                f"{size} prompts, asynchronous {asynchronous}: {one}" for one in _wrong(found, OLD, uids)
            ]
        failed = (*OLD[:2], Group("x", 1, ("failure",), (0.0,)))
        found = _draw(stack, failed, 3, asynchronous=asynchronous, partition="val")
        wrong += [f"validation, asynchronous {asynchronous}: {one}" for one in _wrong(found, failed, "xba")]
    return Measure.count(wrong, "draws from a buffer that are wrong")


@ASYNCHRONOUS.law(
    "old rows of a buffer",
    "rows that are older than allowed, by one step, rows that are dropped and not made up for, a wrong count of them",
    excluded=without("replay buffer"),
)
def prompts_that_are_too_old_are_dropped(stack: Any, case: Numbers) -> Measure:
    """Check what a buffer at step 5 gives and drops where prompts may span two, three and four steps."""
    wrong: list[str] = []
    for threshold, size, uids, dropped in ((2, 2, "ae", "bd"), (3, 2, "ae", "b"), (4, 2, "be", "")):
        groups = (
            [one for one in OLD if one.uid != "c"]
            if threshold == 2
            else [one for one in OLD if one.uid not in "cd"]
        )
        if threshold == 2:
            groups = [Group("d", 3, FINISHED, (0.5, 0.25)) if one.uid == "d" else one for one in groups]
        found = _draw(stack, groups, size, threshold=threshold)
        wrong += [f"{threshold} steps: {one}" for one in _wrong(found, groups, uids)]
        gone = {uid for uid in found.cleared if "_" not in uid} - set(uids)
        wrong += [f"{threshold} steps: {sorted(gone)} dropped"] if gone != set(dropped) else []
        wrong += (
            [f"{threshold} steps: {found.refilled} asked for"] if sum(found.refilled) != len(dropped) else []
        )
        spans = [5 - group.step + 1 for group in groups if group.uid in dropped]
        prefix = "training/off_policy/evicted_samples"
        due = {prefix: float(len(spans))} if spans else {}
        if spans:
            due |= {
                f"{prefix}_staleness/mean": sum(spans) / len(spans),
                f"{prefix}_staleness/max": float(max(spans)),
            }
            due |= {f"{prefix}_staleness/min": float(min(spans))}
        given = {name: value for name, value in found.metrics.items() if name.startswith(prefix)}
        wrong += [f"{threshold} steps: {given}, not {due}"] if given != due else []
    return Measure.count(wrong, "draws from a buffer that are wrong")


@ASYNCHRONOUS.law(
    "waiting for old rows",
    "a batch without the prompts that are about to be too old, waiting for others",
    excluded=without("replay buffer"),
)
def a_buffer_waits_for_prompts_that_would_be_too_old(stack: Any, case: Numbers) -> Measure:
    """Check that nothing is given while a prompt that spans all steps allowed is not finished, and that it then is."""
    groups, wrong = [one for one in OLD if one.uid != "c"], []
    for threshold, looks in ((3, 3), (4, 1)):
        found = _draw(stack, groups, 2, threshold=threshold, strategy="wait")
        due = "bd" if looks == 3 else "be"
        wrong += [f"{threshold} steps: {one}" for one in _wrong(found, groups, due)]
        wrong += [f"{threshold} steps: looked {found.looks} times"] if found.looks != looks else []
    return Measure.count(wrong, "draws from a buffer that are wrong")


@ASYNCHRONOUS.law(
    "prompts without a difference",
    "prompts whose rewards are all equal, prompts that differ left out, none made up for",
    excluded=without("replay buffer"),
)
def prompts_whose_rewards_are_equal_are_left_out(stack: Any, case: Numbers) -> Measure:
    """Check which prompts a buffer gives and leaves out where those with equal rewards are filtered."""
    wrong: list[str] = []
    for asynchronous in (False, True):
        found = _draw(stack, FLAT, 4, filters=True, asynchronous=asynchronous)
        wrong += [f"asynchronous {asynchronous}: {one}" for one in _wrong(found, FLAT, "baeh")]
        if "f" not in found.cleared or "g" not in found.cleared:
            wrong.append(f"asynchronous {asynchronous}: cleared {sorted(found.cleared)}")
        count = found.metrics.get("training/filter_groups/evicted_samples")
        wrong += [f"asynchronous {asynchronous}: {count} counted"] if count != 2 else []
        if asynchronous and sum(found.refilled) != 2:
            wrong.append(f"asked for {list(found.refilled)}")
    return Measure.count(wrong, "draws from a buffer that are wrong")
