"""R31.async_rollouts, with environments: what a reset returns is what the policy and the rewards are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.async_rollouts import ASYNC, COPIES
from seatrial.relations.laws.utilities.numbers import Numbers, without


class Acted(NamedTuple):
    """A rollout in an environment whose reset returns a task; prompts as the template writes them."""

    due: str
    """The row's prompt with the task."""
    asked: str
    """The prompt that the server was asked first."""
    rewarded: str
    """The prompt that a reward function got with the completion."""
    row: str
    """Text of the row that trains."""


@ASYNC.law(
    "rollouts with environments",
    "a task that is thrown away, of another rollout, or still there in the next one",
    excluded=without("asynchronous environments"),
)
def environments_give_tasks(stack: Any, case: Numbers) -> Measure:
    """Check what the server and reward functions are asked, and what trains, of environments that return tasks."""
    found: Sequence[Acted] = stack.utilities["asynchronous environments"](2)
    wrong = [] if len(found) == 2 * COPIES else [f"{len(found)} rollouts of 2 prompts"]
    for one in found:
        due = one.due
        for name, asked in (("the server", one.asked), ("a reward function", one.rewarded)):
            if not due or asked != due:
                wrong.append(f"{name} was asked {asked!r}, and not {due!r}")
        if not one.row.startswith(due):
            wrong.append(f"{one.row!r} trains, and does not begin with {due!r}")
    return Measure.count(wrong, "prompts without their tasks")
