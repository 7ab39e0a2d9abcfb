"""R33.compared, R33.adapter_kinds, R33.processes: a plain trainer is one with itself; each fault breaks its law."""

import pytest
from tests.unit.relations.plain_compared import PlainCompared

from seatrial.relations.engine import run_relation
from seatrial.relations.law import Relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

COMPARED, ADAPTER_KINDS, PROCESSES = select(["R33.compared", "R33.adapter_kinds", "R33.processes"])


@pytest.mark.parametrize("relation", [COMPARED, ADAPTER_KINDS, PROCESSES], ids=lambda relation: relation.id)
def test_a_plain_trainer_passes(relation: Relation) -> None:
    """Every law is exercised and holds."""
    verdict = run_relation(relation, PlainCompared(), seeds=[0], thorough=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws}


FAULTS = [
    ("micro-batches summed", "micro-batches, equal lengths"),
    ("micro-batches summed", "adapters, micro-batches"),
    ("token means", "micro-batches, unequal lengths"),
    ("padding counts", "neutral variations"),
    ("unread", "effective options"),
    ("a weight left out", "every weight is trained"),
    ("shared reference", "other models stay"),
    ("the last loss", "the logged loss"),
    ("a sum is logged", "the logged loss of two steps"),
    ("a scalar is summed", "logged scalars, equal lengths"),
    ("the last step's scalar", "logged scalars of two steps"),
    ("the last batch", "batches of an evaluation, equal lengths"),
    ("another loss in evaluation", "evaluation of the trained rows"),
    ("passed rows", "forms of an evaluation"),
    ("another objective", "defined steps"),
    ("another objective", "defined steps of adapters"),
    ("turns", "defined steps of other rows"),
    ("ends", "defined steps of other completions"),
    ("trait", "defined steps of other models"),
    ("trained rows are evaluated", "the evaluated rows"),
    ("rows of the first step", "rows of an epoch, other orders"),
    ("unread with another", "defined steps, several options"),
    ("rows of the first step", "rows of an epoch"),
    ("unread with adapters", "adapters, neutral variations"),
    ("evaluations are summed", "an evaluation after another"),
    ("adapters with the base", "adapters"),
    ("evaluation trains", "evaluation"),
    ("moments are lost", "resumed"),
    ("first weights", "the process's random numbers"),
    ("first weights", "the process's random numbers, an adapter that is made"),
    ("second trainer", "a second trainer of the same arguments"),
    ("rows", "the caller's arguments"),
    ("unsaved", "the saved model"),
    ("other settings", "the saved settings"),
]
OF_ADAPTERS = [
    ("another loss with adapters", "adapters that begin as nothing"),
    ("a weight left out", "adapters of every kind are trained"),
    ("micro-batches summed", "adapters of every kind, micro-batches"),
]
OF_PROCESSES = [
    ("processes are summed", "gradient, equal lengths"),
    ("tokens of processes", "gradient, unequal lengths"),
    ("two models", "one model"),
    ("the first process's loss", "the logged loss"),
    ("the first process's scalar", "logged scalars, equal lengths"),
    ("the first process's evaluation", "evaluation, equal lengths"),
]


def test_each_law_has_a_fault() -> None:
    """So that none can hold by itself."""
    assert {law for _, law in FAULTS} == {law.name for law in COMPARED.laws}
    assert {law for _, law in OF_ADAPTERS} == {law.name for law in ADAPTER_KINDS.laws}
    assert {law for _, law in OF_PROCESSES} == {law.name for law in PROCESSES.laws}


@pytest.mark.parametrize(
    ("relation", "fault", "law"),
    [
        *((COMPARED, *one) for one in FAULTS),
        *((ADAPTER_KINDS, *one) for one in OF_ADAPTERS),
        *((PROCESSES, *one) for one in OF_PROCESSES),
    ],
    ids=lambda one: one.id if isinstance(one, Relation) else one,
)
def test_a_fault_breaks_its_law(relation: Relation, fault: str, law: str) -> None:
    """Its own, whatever else it breaks."""
    verdict = run_relation(relation, PlainCompared(fault), seeds=[0], thorough=True, shrink_seconds=0)
    assert law in verdict.details["laws_broken"], verdict.reason


def test_means_over_tokens_may_be_declared() -> None:
    """Then unequal rows are not compared, and equal ones are."""
    verdict = run_relation(
        COMPARED, PlainCompared("token means", means="tokens"), seeds=[0], shrink_seconds=0
    )
    assert "micro-batches, unequal lengths" not in verdict.details["laws"]
    assert "micro-batches, equal lengths" in verdict.details["laws"]
