"""Relations judged in several processes."""

import os
from collections.abc import Sequence

import pytest

from seatrial.relations.jobs import judge_all
from seatrial.relations.law import Relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome, Verdict

PAIRS = [(relation, name) for name in ("one", "other") for relation in select([])]


def judge(relation: Relation, name: str) -> Verdict:
    """Return which process judges."""
    reason = f"{relation.component} of {name}"
    return Verdict(name=relation.id, outcome=Outcome.PASS, reason=reason, value=os.getpid(), num_samples=1)


def fail(relation: Relation, name: str) -> Verdict:
    """Raise at one relation."""
    if relation.id == "R12.loss" and name == "other":
        raise ArithmeticError("not a law's error")
    return judge(relation, name)


def named(verdicts: Sequence[Verdict]) -> list[tuple[str, str]]:
    """Return what identifies verdicts, without the process."""
    return [(verdict.name, verdict.reason) for verdict in verdicts]


def test_verdicts_keep_their_order_and_a_component_its_process() -> None:
    """The relations of a component share runs, which are kept in the process."""
    found, alone = list(judge_all(judge, PAIRS, 3)), list(judge_all(judge, PAIRS, 1))
    assert named(found) == named(alone)
    assert {verdict.value for verdict in alone} == {os.getpid()}
    processes: dict[str, set[object]] = {}
    for verdict in found:
        processes.setdefault(verdict.reason, set()).add(verdict.value)
    assert all(len(those) == 1 and os.getpid() not in those for those in processes.values())
    assert len(set.union(*processes.values())) <= 3


def test_an_error_of_a_worker_is_raised_here() -> None:
    """As it is in one process."""
    for num_jobs in (1, 2):
        with pytest.raises(ArithmeticError, match="not a law's error"):
            list(judge_all(fail, PAIRS, num_jobs))
