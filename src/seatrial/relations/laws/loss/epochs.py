"""R12.epochs: runs over epochs take every row once an epoch, and each update is that of its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.supervised import EpochsPlan, SupervisedUpdate
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.loss.supervised import MEANS, distance, oracle
from seatrial.relations.runs import supervised_run


def plan(**options: Any) -> Callable[[Any, int, bool], EpochsPlan]:
    """Return a law's `cases`: a plan with these options; in a tidy one an epoch ends with a whole update."""
    made = EpochsPlan(**options)

    def make(stack: Any, seed: int, tidy: bool) -> EpochsPlan:
        num = min(made.num_examples, stack.supervised_spec.num_examples)
        return EpochsPlan(num_examples=num, num_micro_batches=2) if tidy else replace(made, num_examples=num)

    return make


PARTIAL = plan()
FOUR = plan(num_examples=7, num_micro_batches=4, num_epochs=1)
UNEVEN = plan(num_examples=7, batch_size=2, num_micro_batches=4, num_epochs=1)
BY_STEPS = plan(num_examples=7, batch_size=2, num_steps=3)
AND_A_HALF = plan(batch_size=2, num_micro_batches=2, num_epochs=1.5)

EPOCHS = Relation(
    id="R12.epochs",
    name="runs-over-epochs-are-their-rows",
    component="supervised_run",
    statement="An epoch takes every row once, its last update the rows that are left; loss and gradient of each update "
    "are those of its rows.",
    catalogue="SB155 SB156 SB157 SB159 SB199",
    cost="CPU, seconds",
    cases=PARTIAL,
    seeded=False,
)
LEFT_OUT = "a last update that is left out, or that takes rows of the next epoch; another number of updates"
DIVIDED = "a divisor of the configured number of micro-batches in an update of fewer, a count of other rows"


@EPOCHS.law("rows, three micro-batches an update", LEFT_OUT)
@EPOCHS.law("rows, four micro-batches an update", LEFT_OUT, cases=FOUR)
@EPOCHS.law("rows, a smaller last micro-batch", LEFT_OUT, cases=UNEVEN)
@EPOCHS.law("rows, a number of updates", LEFT_OUT, cases=BY_STEPS)
@EPOCHS.law("rows, an epoch and a half", LEFT_OUT, cases=AND_A_HALF)
def updates_take_their_rows(stack: Any, case: EpochsPlan) -> Measure:
    """Check the number of updates, the sizes of their micro-batches, and that an epoch repeats no row."""
    updates = supervised_run(stack, case)
    sizes = [[len(part) for part in one.micro_batches] for one in updates]
    wrong = [] if sizes == case.updates else [f"micro-batches of {sizes} rows, due {case.updates}"]
    wrong += _repeated(updates, case)
    return Measure.count(wrong, "what differs from the plan")


def _repeated(updates: Sequence[SupervisedUpdate], case: EpochsPlan) -> list[str]:
    """Return the epochs that serve a row more than once, or one that there is not."""
    rows = [row for one in updates for part in one.micro_batches for row in part]
    epochs = [rows[start : start + case.num_examples] for start in range(0, len(rows), case.num_examples)]
    return [
        f"epoch {number} has the rows {sorted(epoch)}"
        for number, epoch in enumerate(epochs, start=1)
        if len(set(epoch)) != len(epoch) or not set(epoch) <= set(range(case.num_examples))
    ]


@EPOCHS.law("loss and gradient, three micro-batches an update", DIVIDED)
@EPOCHS.law("loss and gradient, four micro-batches an update", DIVIDED, cases=FOUR)
@EPOCHS.law("loss and gradient, a smaller last micro-batch", MEANS, cases=UNEVEN)
@EPOCHS.law("loss and gradient, a number of updates", DIVIDED, cases=BY_STEPS)
def updates_equal_their_oracles(stack: Any, case: EpochsPlan) -> Measure:
    """Compare the logged loss and the gradient of each update with the oracle of its rows; return the largest one."""
    measures = []
    for number, one in enumerate(supervised_run(stack, case), start=1):
        right = oracle(stack, one.micro_batches)
        measures.append(distance(stack, one.step, right, f"the oracle of update {number}"))
    if not measures:
        return Measure.largest((), 0.0, "no update")
    return max(measures, key=lambda one: (math.isnan(one.error), one.error))
