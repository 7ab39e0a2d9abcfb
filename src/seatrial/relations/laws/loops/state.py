"""R30.state: a loop that begins again from its saved state, in new objects, continues as if it had not ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.saved_loops import SavedLoop, SavedLoopPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.tensors import largest_difference
from seatrial.relations.worst import relative_error

EXACT = 1e-6
"""The same operations on the same numbers; sums over processes may be in another order."""


def plan(**options: Any) -> Callable[[Any, int, bool], SavedLoopPlan]:
    """Return a function that makes the plan with these options; when tidy, the state is saved at an epoch's end."""

    def made(stack: Any, seed: int, tidy: bool) -> SavedLoopPlan:
        given = SavedLoopPlan(seed=seed, **{"saves_after": 2, **options})
        return replace(given, saves_after=given.num_batches // given.accumulation) if tidy else given

    return made


STATE = Relation(
    id="R30.state",
    name="saved-state-is-whole",
    component="saved_loops",
    statement="A loop that begins again from its saved state, in new objects, has the rows, losses, rates, random "
    "numbers, weights, buffers and moments of one that was not interrupted.",
    cost="CPU, processes of one gloo group that are started once",
    cases=plan(),
)


def _pairs(stack: Any, case: SavedLoopPlan) -> list[tuple[SavedLoop, SavedLoop]]:
    """Return each process's resumed run, and what is due: the end of one that was not interrupted."""
    whole, resumed = stack.saved_loop(replace(case, saves_after=0)), stack.saved_loop(case)
    return [
        (one, SavedLoop(other.steps[case.saves_after :], other.tensors))
        for one, other in zip(resumed, whole, strict=True)
    ]


SECOND = {"saves_after": 6}
"""In the second epoch."""


@STATE.law("rows", "a shuffle that begins again, a step that is trained twice")
@STATE.law("rows, in the second epoch", "a shuffle of the first epoch", cases=plan(**SECOND))
@STATE.law("rows, two processes", "the order of one process for all", cases=plan(num_ranks=2, **SECOND))
@STATE.law("rows, accumulated", "micro-batches counted as steps", cases=plan(accumulation=2, saves_after=3))
def rows_go_on(stack: Any, case: SavedLoopPlan) -> Measure:
    """Compare the rows of each step after the resume with those of the run that was not interrupted."""
    wrong = [
        f"process {number}: {[one.rows for one in found.steps][:3]}, due {[one.rows for one in due.steps][:3]}"
        for number, (found, due) in enumerate(_pairs(stack, case))
        if [one.rows for one in found.steps] != [one.rows for one in due.steps]
    ]
    return Measure.count(wrong, "processes that train on other rows after a resume")


@STATE.law("losses", "dropout of other random numbers, running means that begin again")
@STATE.law("losses, two processes", "random numbers of the first process on all", cases=plan(num_ranks=2))
@STATE.law("losses, tied weights", "a shared weight that is loaded once", cases=plan(tied=True))
@STATE.law("losses, without safetensors", "a file of another form that is not read", cases=plan(safe=False))
@STATE.law("losses, two models", "the second model's file for the first", cases=plan(num_models=2))
def losses_go_on(stack: Any, case: SavedLoopPlan) -> Measure:
    """Compare the losses of each step after the resume with those of the run that was not interrupted."""
    return _largest(stack, case, "losses", "losses")


@STATE.law("learning rates", "a schedule that begins again, or is advanced once more by loading")
@STATE.law("learning rates, two models", "the second schedule's file for the first", cases=plan(num_models=2))
@STATE.law("learning rates, accumulated", "a schedule of micro-batches", cases=plan(accumulation=2))
def rates_go_on(stack: Any, case: SavedLoopPlan) -> Measure:
    """Compare the learning rates after each step."""
    return _largest(stack, case, "rates", "learning rates")


@STATE.law("random numbers", "a generator of Python, NumPy or torch that is not loaded")
@STATE.law("random numbers, two processes", "the state of the first process on all", cases=plan(num_ranks=2))
def random_numbers_go_on(stack: Any, case: SavedLoopPlan) -> Measure:
    """Compare random numbers that are drawn after each step."""
    return _largest(stack, case, "draws", "random numbers of Python, NumPy and torch")


@STATE.law("weights, buffers and moments", "an optimizer that begins again, a buffer that is not saved")
@STATE.law(
    "weights, buffers and moments, two processes",
    "an optimizer that begins again on other processes",
    cases=plan(num_ranks=2),
)
@STATE.law("weights, buffers and moments, tied weights", "a moment of another weight", cases=plan(tied=True))
@STATE.law("weights, buffers and moments, without safetensors", "another form", cases=plan(safe=False))
@STATE.law(
    "weights, buffers and moments, two models",
    "the second optimizer's file for the first",
    cases=plan(num_models=2),
)
@STATE.law("weights, buffers and moments, accumulated", "gradients that are lost", cases=plan(accumulation=2))
def tensors_go_on(stack: Any, case: SavedLoopPlan) -> Measure:
    """Compare every parameter, buffer and moment at the end."""
    wrong = []
    for number, (found, due) in enumerate(_pairs(stack, case)):
        wrong += [
            (float("inf"), f"{name}, which is in one of the two alone")
            for name in sorted(found.tensors.keys() ^ due.tensors.keys())
        ]
        wrong += [
            (
                largest_difference(found.tensors[name].double(), due.tensors[name].double()),
                f"{name} of process {number}",
            )
            for name in sorted(found.tensors.keys() & due.tensors.keys())
        ]
    return Measure.largest(wrong, EXACT, "tensors at the end against the run that was not interrupted")


@STATE.law("objects of the caller", "an object that is registered and not saved, or loaded into another")
def registered_objects_go_on(stack: Any, case: SavedLoopPlan) -> Measure:
    """Compare the count that an object of the caller keeps."""
    wrong = [
        f"process {number}: {one.steps_counted}, due {other.steps_counted}"
        for number, (found, due) in enumerate(_pairs(stack, case))
        for one, other in zip(found.steps, due.steps, strict=True)
        if one.steps_counted != other.steps_counted
    ]
    return Measure.count(wrong, "steps after which an object of the caller has another count")


def _largest(stack: Any, case: SavedLoopPlan, name: str, what: str) -> Measure:
    found = []
    for number, (one, due) in enumerate(_pairs(stack, case)):
        if len(one.steps) != len(due.steps):
            found.append((float("inf"), f"process {number}: {len(one.steps)} steps, due {len(due.steps)}"))
        for step, (left, right) in enumerate(
            zip(one.steps, due.steps, strict=False), start=case.saves_after + 1
        ):
            found.append(
                (_error(getattr(left, name), getattr(right, name)), f"step {step} of process {number}")
            )
    return Measure.largest(found, EXACT, f"{what} after a resume against the run that was not interrupted")


def _error(left: Sequence[float], right: Sequence[float]) -> float:
    if len(left) != len(right):
        return float("inf")
    return max(relative_error(one, other, 1e-3) for one, other in zip(left, right, strict=True))
