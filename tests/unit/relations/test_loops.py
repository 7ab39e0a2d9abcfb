"""The laws of loops in several processes: plain loops satisfy them, and the law about a planted fault sees it."""

import pytest
import torch
from tests.unit.relations.plain_loops import PlainLoops

from seatrial.relations.contracts.loops import AccumulationPlan, AccumulationSpec
from seatrial.relations.engine import run_relation
from seatrial.relations.oracles.loops import descent, features, start
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = [relation for relation in select(["R30"]) if relation.component != "loop_histories"]


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
    "fault", ["", "the end is dropped", "a row twice", "the end is short", "processes swapped", "skips twice"]
)
def test_pairs_of_options_are_judged(fault: str) -> None:
    """Plain loaders satisfy the law of pairs, and each fault of rows breaks it."""
    (rows,) = select(["R30.rows"])
    (law,) = [one for one in rows.laws if one.name == "pairs of options"]
    stack = PlainLoops(fault)
    measure = law.measure(stack, law.make(stack, 0, False))
    assert measure is not None
    assert measure.holds == (not fault), measure.what


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
        ("validations are shuffled", {"R30.rows/rows of a validation"}),
        ("says what it skips", {"R30.rows/batches that are said, in a resumed epoch"}),
        ("says the fullest", {"R30.rows/batches that are said, uneven ends"}),
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
        ("elements", {"R30.accumulated/weights, elements clipped"}),
        (
            "schedule",
            {
                "R30.accumulated/learning rate, split batches",
                "R30.accumulated/learning rate, a schedule of epochs",
            },
        ),
        ("another mean", {"R30.accumulated/weights, steps of each process alone"}),
        ("a mean of one", {"R30.accumulated/weights, a last batch of one process"}),
        ("skips are gathered", {"R30.gathered/tensors, in a resumed epoch"}),
        (
            "every second row",
            {"R30.split/lists", "R30.split/data sets", "R30.split/tensors, three processes"},
        ),
        ("the last row twice", {"R30.split/lists", "R30.split/tuples", "R30.split/lists, three processes"}),
        ("filled with the first", {"R30.split/lists, filled", "R30.split/tensors, filled"}),
        ("split in place", {"R30.split/lists stay", "R30.split/dictionaries of lists stay"}),
        ("transposed", {"R30.nested/gather", "R30.nested/gather, three processes"}),
        ("halved", {"R30.nested/mean"}),
        ("lists", {"R30.nested/padding", "R30.nested/concatenation", "R30.nested/sum"}),
        ("floats", {"R30.nested/cast to float32"}),
        (
            "the first sends",
            {"R30.nested/broadcast of the second process", "R30.nested/objects of the second process"},
        ),
        ("objects of one", {"R30.nested/gathered objects"}),
        ("a buffer leaves", {"R30.placed/listed: buffers"}),
        ("a part is not read", {"R30.placed/saved in parts: tied"}),
        ("half on disk", {"R30.placed/loaded half to disk: buffers"}),
        ("one for all", {"R30.seeds/a seed for each process"}),
        ("fixed seed", {"R30.seeds/another seed"}),
        ("not seeded", {"R30.seeds/one seed"}),
        ("passes over", {"R30.batch_size/the first that fits"}),
        ("swallows", {"R30.batch_size/other errors"}),
        ("the first order", {"R30.state/rows, in the second epoch"}),
        ("losses", {"R30.state/losses", "R30.state/losses, two processes"}),
        ("rate", {"R30.state/learning rates"}),
        ("draws", {"R30.state/random numbers", "R30.state/random numbers, two processes"}),
        ("moments", {"R30.state/weights, buffers and moments"}),
        ("objects", {"R30.state/objects of the caller"}),
        ("0 is no step", {"R30.tracked/numbers at their steps"}),
        (
            "calls are steps",
            {"R30.tracked/numbers of one step, logged twice", "R30.tracked/numbers without a step"},
        ),
        ("cut names", {"R30.tracked/numbers at their steps"}),
        ("no groups", {"R30.tracked/texts and groups"}),
        ("true settings", {"R30.tracked/settings"}),
        ("long settings removed", {"R30.tracked/what the caller gives stays"}),
        ("a hundred settings", {"R30.tracked/many settings"}),
        ("one image", {"R30.tracked/images"}),
        ("columns are a row", {"R30.tracked/tables"}),
        ("no options", {"R30.tracked/options of the client"}),
        ("open", {"R30.tracked/closed at the end"}),
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
