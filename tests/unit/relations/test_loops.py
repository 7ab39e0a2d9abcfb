"""The laws of loops in several processes: plain loops satisfy them, and the law about a planted fault sees it."""

import pytest
import torch
from tests.unit.relations.plain_loops import PlainLoops

from seatrial.relations.contracts.loops import AccumulationPlan, AccumulationSpec
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.loops import descent, features, start
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = select(["R30"])


def broken(fault: str) -> set[str]:
    """Return the laws that plain loops with a fault break."""
    return {
        f"{relation.id}/{law}"
        for relation in RELATIONS
        for law in run_relation(relation, PlainLoops(fault), shrink_seconds=0).details.get("laws_broken", [])
    }


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.id)
@pytest.mark.parametrize("tidy", [False, True])
def test_plain_loops_satisfy_the_laws(relation, tidy: bool) -> None:  # type: ignore[no-untyped-def]
    """In every law, on the cases with traps and on the tidy ones."""
    verdict = run_relation(relation, PlainLoops(), tidy=tidy)
    assert verdict.outcome is Outcome.PASS, verdict.reason


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("the end is dropped", {"R30.rows/every row once", "R30.rows/every row once, split batches"}),
        ("a row twice", {"R30.rows/every row once", "R30.rows/order of one process"}),
        ("the end is short", {"R30.rows/batches of one size"}),
        ("processes swapped", {"R30.rows/order of one process", "R30.gathered/tensors"}),
        ("one order for all epochs", {"R30.rows/another order in each epoch"}),
        (
            "the sampler is not given the epoch",
            {"R30.rows/another order in each epoch, a sampler of the caller"},
        ),
        ("a seed of its own", {"R30.rows/another order for another seed of the process"}),
        ("skips twice", {"R30.rows/resumed epoch", "R30.rows/resumed second epoch, shuffled"}),
        ("filling stays", {"R30.gathered/tensors", "R30.gathered/tensors, a sampler of part of the data"}),
        ("objects of one process", {"R30.gathered/objects"}),
        ("gather", {"R30.collectives/gather"}),
        ("reduction", {"R30.collectives/sum", "R30.collectives/mean"}),
        ("fill", {"R30.collectives/padding at the end", "R30.collectives/padding at the beginning"}),
        ("last step", {"R30.accumulated/when steps are taken"}),
        ("gradients are summed", {"R30.accumulated/weights", "R30.accumulated/weights, one process"}),
        ("clipping", {"R30.accumulated/weights, clipped"}),
        ("norm", {"R30.accumulated/norm"}),
        ("schedule", {"R30.accumulated/learning rate"}),
        ("resume", {"R30.accumulated/learning rate, resumed", "R30.accumulated/weights, resumed"}),
        ("moves between steps", {"R30.accumulated/weights between steps"}),
        ("dtype", {"R30.accumulated/outputs are float32"}),
    ],
)
def test_a_fault_is_seen_by_the_law_about_it(fault: str, laws: set[str]) -> None:
    """Others may see it as well."""
    assert laws <= broken(fault)


def test_a_step_of_descent_by_hand() -> None:
    """One row in one micro-batch: the slope of (w x - y)^2 is 2 (w x - y) x."""
    plan = AccumulationPlan(num_ranks=1, accumulation=1)
    (step,) = descent(AccumulationSpec(rate=0.5, rate_decay=0.25), plan, [[[[3]]]])
    x, y = features(3)
    error = sum(w * one for w, one in zip(start(), x, strict=True)) - y
    right = torch.tensor(
        [w - 0.5 * 2 * error * one for w, one in zip(start(), x, strict=True)], dtype=torch.float64
    )
    assert torch.allclose(step.weights, right)
    assert step.rate == 0.125
