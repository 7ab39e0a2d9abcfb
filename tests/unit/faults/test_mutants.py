"""One-line faults planted in refrl are seen by the relations that the tables name."""

from collections import Counter

import pytest

from seatrial.faults.matrix import broken_seeds, cell_of, detect
from seatrial.faults.mutate import Mutant, all_mutants
from seatrial.faults.planting import PlantingError, ask, changed_source, plant
from seatrial.relations.engine import DEFAULT_SEEDS

MUTANTS = all_mutants()
BY_NIGHT = {
    "async-in-name-only",
    "async-resume-half-of-each-adapter",
    "async-resume-reads-dtensor-into-copies",
    "async-resume-megatron-counts-from-zero",
    "async-resume-prompts-of-the-start",
    "async-served-without-the-dropped",
    "blocks-keep-others-tokens",
    "errors-of-the-first-rank",
    "filters-batches-share-a-stream",
    "filters-held-prompt-again",
    "math-reward-flipped",
    "metrics-validation-length-with-prompts",
    "packing-starts-in-bfloat16",
    "parts-of-a-verifier-of-the-first-rank",
    "ranks-gradients-averaged",
    "ranks-last-gradient-not-exchanged",
    "ranks-metrics-of-the-first",
    "rates-of-trained-tokens",
    "resume-updates-counted-again",
    "scale-of-a-root",
}
"""Seen by a relation that makes whole runs, kills them or starts ranks, after other laws of it have held: seconds each,
or many."""


def _by_day() -> dict[str, tuple[str, ...]]:
    """Return the first mutant that each relation must see, with those relations, without those that take long."""
    left = {relation for one in MUTANTS for relation in one.relations}
    found = {}
    for one in MUTANTS:
        if (first := left & set(one.relations)) and not one.layouts and one.id not in BY_NIGHT:
            found[one.id] = tuple(sorted(first))
            left -= first
    return found


DAY = _by_day()


def by_id(mutant: Mutant) -> str:
    """Name a test by its mutant."""
    return mutant.id


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(one, id=one.id, marks=[pytest.mark.nightly] * (one.id not in DAY)) for one in MUTANTS],
)
def test_the_named_relations_see_it(mutant: Mutant) -> None:
    """On the first default seed, one mutant a relation; at night all, every seed alone, and layouts of processes.

    That they pass without it is asked here for cells of a mutant's own: `test_reference` asks it of the default cell.
    """
    if any("megatron" in name for name in mutant.layouts):
        pytest.importorskip("megatron.core", reason="pip install 'seatrial[megatron]'")
    if mutant.options:
        _assert_seen(mutant, DEFAULT_SEEDS[:1])
        return
    asked = dict.fromkeys(DAY.get(mutant.id, mutant.relations), DEFAULT_SEEDS[:1])
    broken = ask(broken_seeds, mutant, cell_of(mutant), asked)
    assert asked.keys() == {name for name, seen in broken.items() if seen}


@pytest.mark.nightly
@pytest.mark.parametrize("mutant", MUTANTS, ids=by_id)
def test_the_named_relations_see_it_on_every_seed(mutant: Mutant) -> None:
    """Not by chance."""
    _assert_seen(mutant, DEFAULT_SEEDS)


def _assert_seen(mutant: Mutant, seeds: tuple[int, ...]) -> None:
    for found in detect(mutant, seeds=seeds, tidy=False):
        assert found.seeds, f"{found.relation} does not hold on refrl without the fault"
        assert found.always, f"{found.relation} saw {mutant.id} on {found.caught} of {found.seeds}"


def test_ids_are_unique() -> None:
    """A mutant's id names one mutant."""
    assert [name for name, count in Counter(mutant.id for mutant in MUTANTS).items() if count > 1] == []


def test_a_module_that_is_imported_already_is_not_planted_in() -> None:
    """What was built of it would have no fault."""
    import refrl.algorithms.ops

    idle = edit("check_temperature(temperature)\n", "check_temperature(temperature)\n")
    assert refrl.algorithms.ops.__name__ == idle.module
    with pytest.raises(PlantingError, match="is already imported"):
        plant(idle)


def test_a_table_that_is_out_of_date_is_refused() -> None:
    """Text that does not stand exactly once cannot be replaced in silence."""
    with pytest.raises(PlantingError, match="occurs 0 times"):
        changed_source("x = 1\n", edit("no such text", ""))
    with pytest.raises(PlantingError, match="occurs 2 times"):
        changed_source("x = 1\nx = 1\n", edit("x = 1", ""))


def test_a_fault_that_does_nothing_is_not_seen() -> None:
    """The matrix can say no."""
    idle = edit(
        "check_temperature(temperature)\n    B, S, V", "check_temperature(temperature * 1)\n    B, S, V"
    )
    (found,) = detect(idle, seeds=[0])
    assert found.seeds == (0,)
    assert found.caught == ()
    assert found.tidy is None


def test_a_process_that_dies_says_so() -> None:
    """Nothing is taken for an answer."""
    with pytest.raises(PlantingError, match="the process exited with status 7"):
        ask(_die, None)


def _die() -> None:
    import os

    os._exit(7)


def edit(old: str, new: str) -> Mutant:
    """Return an edit of `refrl.algorithms.ops`."""
    return Mutant(
        id="made", what="made", module="refrl.algorithms.ops", old=old, new=new, relations=("R12.logprobs",)
    )
