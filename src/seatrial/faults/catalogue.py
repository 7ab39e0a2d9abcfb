"""The catalogue of faults of whole runs: what each does, and which verdict must report it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.verdict import Outcome


class Stage(enum.StrEnum):
    """The part of the loop that a fault is in."""

    ROLLOUT = "rollout"
    REWARD = "reward"
    ADVANTAGE = "advantage"
    LOSS = "loss"
    OPTIMIZER = "optimizer"
    LOOP = "loop"
    LOG = "log"
    IMPORT = "import"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """The verdict that a trial must reach with a fault."""

    trial: str
    outcome: Outcome
    """Outcome of the whole trial."""
    checks: tuple[str, ...]
    """Names of the verdicts that must have this outcome because of the fault; others may have it too."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault."""

    id: str
    stage: Stage
    what: str
    """What is wrong with a stack that has the fault."""
    expected: tuple[Expectation, ...]


def _smoke(outcome: Outcome, *checks: str) -> Expectation:
    return Expectation(trial="grpo-smoke", outcome=outcome, checks=checks)


_AGREEMENT = 'max(data["train/token_mult_prob_error"]) <= 1.0001'

FAULTS: dict[str, Fault] = {
    fault.id: fault
    for fault in (
        Fault(
            id="lr-zero",
            stage=Stage.OPTIMIZER,
            what="the schedule gives the learning rate 0: gradients flow and no weight changes",
            expected=(_smoke(Outcome.FAIL, "every trainable tensor moved"),),
        ),
        Fault(
            id="advantages-negated",
            stage=Stage.ADVANTAGE,
            what="advantages have the wrong sign: bad completions are made likelier",
            expected=(
                _smoke(Outcome.FAIL, "ledger: advantages recomputed equal the logged"),
                Expectation(
                    trial="learning-signal",
                    outcome=Outcome.FAIL,
                    checks=("validation reward rises by more than chance",),
                ),
            ),
        ),
        Fault(
            id="rewards-shifted-between-rows",
            stage=Stage.REWARD,
            what="each completion gets the reward of the row after it",
            expected=(_smoke(Outcome.FAIL, "ledger: rewards recomputed equal the logged"),),
        ),
        Fault(
            id="sample-at-0.7-score-at-1.0",
            stage=Stage.ROLLOUT,
            what="completions are sampled at temperature 0.7 and scored at 1.0",
            expected=(_smoke(Outcome.FAIL, _AGREEMENT, "ledger: sampler and trainer agree per token"),),
        ),
        Fault(
            id="loss-nan-at-step-2",
            stage=Stage.LOSS,
            what="the loss of step 2 is NaN",
            expected=(_smoke(Outcome.FAIL, "every series finite"),),
        ),
        Fault(
            id="stop-after-step-1-exit-0",
            stage=Stage.LOOP,
            what="the run ends after step 1, exports its model and exits 0",
            expected=(_smoke(Outcome.FAIL, "steps reached"),),
        ),
        Fault(
            id="log-truncated",
            stage=Stage.LOG,
            what="the event file ends in the middle of a record",
            expected=(_smoke(Outcome.BLOCKED, "log undamaged"),),
        ),
        Fault(
            id="refrl-from-another-path",
            stage=Stage.IMPORT,
            what="the run imports another copy of the stack, which comes first on PYTHONPATH",
            expected=(_smoke(Outcome.BLOCKED, "origin of refrl in the run"),),
        ),
    )
}
"""Every fault by its id."""


def get_fault(fault_id: str) -> Fault:
    """Return a fault by id.

    Raises:
        UsageError: it is unknown; the nearest id is given.
    """
    if fault_id not in FAULTS:
        raise UsageError(f"fault {fault_id!r} is unknown; {hint(fault_id, FAULTS)}")
    return FAULTS[fault_id]
