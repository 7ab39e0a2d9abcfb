"""R18.refused: what a part cannot compute is refused by name, and what is next to it is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from seatrial.relations.contracts.refusals import Trial
from seatrial.relations.law import Measure, NoCase, Relation
from seatrial.relations.raised import error_line

REFUSED = Relation(
    id="R18.refused",
    name="parts-refuse-what-they-cannot-compute",
    component="refusals",
    statement="A part refuses an input that it cannot compute with a message that names it, and accepts what is within "
    "its limits.",
    catalogue="SB020 SB188 SB234 SB254 SB295",
    cost="CPU, a second",
    cases=lambda stack, seed, tidy: NoCase(),
    seeded=False,
)


@REFUSED.law(
    "refused", "a check that compares the wrong way round, passes NaN, or is left out for one option"
)
def refused(stack: Any, case: NoCase) -> Measure:
    """Check that each call beyond a limit raises an error that names what is wrong."""
    trials = [trial for trial in stack.trials() if trial.says is not None]
    wrong = [found for trial in trials for found in _wrongly_taken(trial)]
    return Measure.count(wrong if trials else ["nothing is refused"], "inputs that are not refused by name")


@REFUSED.law("accepted", "a limit that is off by one, a default that counts as set")
def accepted(stack: Any, case: NoCase) -> Measure:
    """Check that each call within the limits raises nothing."""
    trials, wrong = [trial for trial in stack.trials() if trial.says is None], []
    for trial in trials:
        try:
            trial.call()
        except Exception as error:  # noqa: BLE001  of any kind: the stack must raise none
            wrong.append(f"{trial.what}: {error_line(error)}")
    return Measure.count(
        wrong if trials else ["nothing is accepted"], "inputs within the limits that are refused"
    )


def _wrongly_taken(trial: Trial) -> Iterator[str]:
    try:
        trial.call()
    except Exception as error:  # noqa: BLE001  its message says whether it is the one
        if str(trial.says) not in str(error):
            yield f"{trial.what}: {error_line(error)} does not name {trial.says}"
    else:
        yield f"{trial.what} is accepted"
