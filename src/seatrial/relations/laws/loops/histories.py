"""R30.histories: random sequences of public calls of a training loop, against a plain record of what is due."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from seatrial.relations.contracts.loop_histories import LoopCall, LoopHistory, SeenCall
from seatrial.relations.law import Measure, Relation
from seatrial.relations.oracles.loop_histories import due_of
from seatrial.relations.worst import relative_error

BOUND = 1e-4
"""Relative, of float32 over at most some forty steps, whose sums may be in another order."""
NUM_CALLS = 9
KINDS = ("train", "train", "train", "evaluate", "save", "load", "renew", "split", "trigger")


def history(num_ranks: int, *, leaves: bool = False) -> Callable[[Any, int, bool], LoopHistory]:
    """Return a function that draws a history for so many processes; when tidy, no loop is left, or in another one.

    Args:
        num_ranks: processes.
        leaves: whether evaluations may be left before their end; the first one, within a loop, is.
    """

    def made(stack: Any, seed: int, tidy: bool) -> LoopHistory:
        generator = torch.Generator().manual_seed(6007 * seed + num_ranks)

        def pick(choices: Sequence[Any]) -> Any:
            return choices[int(torch.randint(len(choices), (), generator=generator))]

        plan = LoopHistory(
            calls=(),
            num_ranks=num_ranks,
            accumulation=pick((2, 3) if leaves else (1, 2, 3)),
            split=pick((False, True)),
            turned=pick(range(5)),
            num_evaluated=pick((5, 7, 8)),
            seed=seed,
        )
        saved: set[int] = set()
        calls = [LoopCall("train", evaluates_after=1, reads=1)] if leaves and not tidy else []
        while len(calls) < NUM_CALLS:
            name = "train" if not calls else "save" if len(calls) == 1 else pick(KINDS)
            if name == "load" and not saved:
                continue
            calls.append(_call(name, plan, pick, saved, tidy, leaves))
        return LoopHistory(**{**vars(plan), "calls": tuple(calls)})

    return made


def _call(
    name: str,
    plan: LoopHistory,
    pick: Callable[[Sequence[Any]], Any],
    saved: set[int],
    tidy: bool,
    leaves: bool,
) -> LoopCall:
    reads = _reads(plan, pick) if leaves and not tidy else 0
    if name == "train":
        # A loop begins and is left where a step ends, so that no part of one is carried on.
        ends = range(0, plan.num_batches, plan.accumulation)
        skip = 0 if tidy else pick(ends)
        stop = 0 if tidy else pick([0, *[end for end in ends if end > skip]])
        places = [0, *range(skip + 1, (stop or plan.num_batches) + 1)]
        return LoopCall(
            "train",
            epoch=pick(range(3)),
            skip=skip,
            stop=stop,
            evaluates_after=0 if tidy else pick(places),
            reads=reads,
            max_norm=pick((0.0, 0.0, 0.5)),
        )
    if name == "evaluate":
        return LoopCall("evaluate", reads=reads)
    if name == "save":
        saved.add(number := pick(range(2)))
        return LoopCall("save", number=number)
    if name == "load":
        return LoopCall("load", number=pick(sorted(saved)))
    if name == "split":
        return LoopCall("split", number=pick(range(plan.num_ranks, 8)), padded=pick((False, True)))
    return LoopCall("trigger", number=pick(range(plan.num_ranks))) if name == "trigger" else LoopCall("renew")


def _reads(plan: LoopHistory, pick: Callable[[Sequence[Any]], Any]) -> int:
    size = plan.batch_size * plan.num_ranks
    found: int = pick((0, 0, *range(1, -(-plan.num_evaluated // size) + 1)))
    return found


HISTORIES = Relation(
    id="R30.histories",
    name="any-history-of-a-loop-is-the-plain-record",
    component="loop_histories",
    statement="After any sequence of training on parts of epochs, evaluating within a loop or not, saving, "
    "loading, freeing, preparing again and splitting, each batch, step, rate, gathered row and random number is right.",
    cost="CPU, processes of one gloo group that are started once",
    cases=history(2),
    thorough=True,
)


class _Pair(NamedTuple):
    """What a process saw of a call, and what it should."""

    found: SeenCall
    due: SeenCall
    where: str


def _pairs(stack: Any, case: LoopHistory) -> Iterator[_Pair]:
    seen = stack.performed(case)
    for rank, (found, due) in enumerate(zip(seen, due_of(case, seen), strict=True)):
        for number, (one, other) in enumerate(zip(found, due, strict=True)):
            names = ", ".join(call.name for call in case.calls[: number + 1])
            yield _Pair(one, other, f"process {rank} after {names}")


ONE = history(1)


@HISTORIES.law(
    "steps", "a loop that was left, or one within another, taken for the end of an epoch", thorough=False
)
@HISTORIES.law("steps, one process", "a loop that was left taken for the end of an epoch", cases=ONE)
@HISTORIES.law(
    "steps, evaluations that are left",
    "a loop that was left taken for the one around it",
    cases=history(2, leaves=True),
)
@HISTORIES.law(
    "steps, evaluations that are left, one process",
    "a loop that was left taken for the one around it",
    cases=history(1, leaves=True),
)
def steps_are_due(stack: Any, case: LoopHistory) -> Measure:
    """Compare where steps are taken with every so many micro-batches, and the end of an epoch."""
    wrong = []
    for one, due, where in _pairs(stack, case):
        found, right = ([batch.stepped for batch in own.batches] for own in (one, due))
        wrong += [] if found == right else [f"{found}, due {right}, of {where}"]
    return Measure.count(wrong[:1], "calls with steps elsewhere")


@HISTORIES.law("rows", "a shuffle that changes, batches left out by a loop that was left", thorough=False)
@HISTORIES.law("rows, one process", "a shuffle that changes", cases=ONE)
def rows_are_due(stack: Any, case: LoopHistory) -> Measure:
    """Check that each epoch has every row once, in one order for the whole history, and another one than the others."""
    seen = stack.performed(case)
    orders: dict[int, dict[int, tuple[tuple[int, ...], ...]]] = {}
    wrong = []
    for place, call in enumerate(case.calls):
        if call.name != "train":
            continue
        steps = [tuple(one.rows for one in own[place].batches) for own in seen]
        due = (call.stop or case.num_batches) - call.skip
        wrong += [f"{len(own)} batches of call {place}, due {due}" for own in steps if len(own) != due]
        order = orders.setdefault(call.epoch, {})
        for number, step in enumerate(zip(*steps, strict=False), start=call.skip):
            if order.setdefault(number, step) != step:
                wrong.append(f"batch {number} of epoch {call.epoch} is {step}, and was {order[number]}")
    for epoch, order in orders.items():
        rows = [row for step in order.values() for own in step for row in own]
        total = case.num_batches * case.batch_size * case.num_ranks
        if len(set(rows)) != len(rows) or not set(rows) <= set(range(total)):
            wrong.append(f"epoch {epoch} has rows twice, or others: {rows}")
    whole = [order for order in orders.values() if len(order) == case.num_batches]
    wrong += (
        ["two epochs in one order"]
        if any(one == other for one in whole for other in whole if one is not other)
        else []
    )
    return Measure.count(wrong[:1], "batches with other rows")


@HISTORIES.law("weights", "gradients that stay, a moment or a rate that is not loaded", thorough=False)
@HISTORIES.law(
    "weights, one process", "gradients that stay, a moment or a rate that is not loaded", cases=ONE
)
def weights_are_due(stack: Any, case: LoopHistory) -> Measure:
    """Compare weights after each micro-batch and call with those of float64 descent on the same rows."""
    found = []
    for one, due, where in _pairs(stack, case):
        pairs = [(one.weights, due.weights), *zip_of(one, due, "weights")]
        found += [
            (relative_error(a, b, 1e-1), where)
            for left, right in pairs
            for a, b in zip(left, right, strict=True)
        ]
    return Measure.largest(found, BOUND, "weights against float64 descent, relative difference")


@HISTORIES.law("rates and norms", "a schedule that advances by micro-batches, a norm of scaled gradients")
@HISTORIES.law("rates and norms, one process", "a schedule that advances by micro-batches", cases=ONE)
def rates_are_due(stack: Any, case: LoopHistory) -> Measure:
    """Compare the rate after each micro-batch and call, and the norm before clipping."""
    found = []
    for one, due, where in _pairs(stack, case):
        pairs = [(one.rate, due.rate), *zip_of(one, due, "rate"), *zip_of(one, due, "norm")]
        found += [
            (relative_error(float("nan") if a is None else a, b, 1e-3), where)
            for a, b in pairs
            if b is not None
        ]
    return Measure.largest(found, BOUND, "learning rates and norms, relative difference")


def zip_of(one: SeenCall, due: SeenCall, name: str) -> list[tuple[Any, Any]]:
    """Return pairs of what is seen after each micro-batch that both have."""
    return [(getattr(a, name), getattr(b, name)) for a, b in zip(one.batches, due.batches, strict=False)]


@HISTORIES.law("metrics", "rows that fill up the last batch of another loader", thorough=False)
@HISTORIES.law("metrics, one process", "rows of the last batch that are left out", cases=ONE)
def metrics_are_due(stack: Any, case: LoopHistory) -> Measure:
    """Compare gathered rows with those of the evaluation in their order, and outputs with those of the weights."""
    wrong = []
    for one, due, where in _pairs(stack, case):
        if list(one.rows) != list(due.rows):
            wrong.append(f"{list(one.rows)}, due {list(due.rows)}, of {where}")
        elif not all(
            relative_error(a, b, 1e-1) <= BOUND for a, b in zip(one.outputs, due.outputs, strict=True)
        ):
            wrong.append(f"outputs of {where}")
    return Measure.count(wrong[:1], "evaluations and splits with other rows or outputs")


@HISTORIES.law("random numbers and triggers", "random numbers of another process, a trigger that stays set")
@HISTORIES.law("random numbers, one process", "random numbers that continue after a load", cases=ONE)
def draws_are_due(stack: Any, case: LoopHistory) -> Measure:
    """Compare numbers drawn after a load with those after its save, and checks of the trigger."""
    wrong = [
        f"{one.draw}, due {due.draw}; trigger {list(one.triggers)} of {where}"
        for one, due, where in _pairs(stack, case)
        if one.draw != due.draw or list(one.triggers) != list(due.triggers)
    ]
    return Measure.count(wrong[:1], "calls with other random numbers or triggers")
