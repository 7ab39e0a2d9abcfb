"""One-line faults planted in refrl are seen by the relations that the tables name, on every default seed."""

from collections import defaultdict
from functools import cache

import pytest

from refrl.algorithms import ops
from seatrial.faults.matrix import Detection, detect, table
from seatrial.faults.mutate import Mutant, all_mutants, planted

MUTANTS = all_mutants()


@cache
def detections(name: str) -> list[Detection]:
    """Return what the relations say of a mutant, computed once."""
    return detect(next(mutant for mutant in MUTANTS if mutant.id == name))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_named_relations_see_it_on_every_seed_and_pass_without_it(mutant: Mutant) -> None:
    """Caught by each seed alone: not by chance."""
    for found in detections(mutant.id):
        assert found.sound, f"{found.relation} fails on refrl without the fault"
        assert found.always, f"{found.relation} missed {mutant.id}: {found.sentence}"


def test_ids_are_unique() -> None:
    """A mutant's id names one mutant."""
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


def test_at_least_sixty_known_bugs_are_planted() -> None:
    """Distinct ids of the catalogue of silent bugs."""
    assert len({known for mutant in MUTANTS for known in mutant.catalogue}) >= 60


def test_adversarial_inputs_see_what_tidy_inputs_do_not() -> None:
    """Equal lengths, no masked rows and temperature 1 hide faults of positions, masks, groups and temperature."""
    hidden = defaultdict(set)
    for mutant in MUTANTS:
        for found in detections(mutant.id):
            if not found.tidy_caught:
                hidden[found.relation].add(mutant.id)
    assert len(set().union(*hidden.values())) >= 20
    for relation in ("R12.logprobs", "R12.loss", "R15.batch", "R26.sampler"):
        assert len(hidden[relation]) >= 3, f"{relation}: {sorted(hidden[relation])}"


def test_planting_leaves_nothing_behind() -> None:
    """After the block every function is the real one."""
    mutant = next(mutant for mutant in MUTANTS if mutant.module == ops.__name__)
    real = dict(vars(ops))
    with planted(mutant):
        assert vars(ops)["score"] is not real["score"]
    assert dict(vars(ops)) == real


def test_a_table_that_is_out_of_date_is_refused() -> None:
    """Text that does not stand exactly once cannot be replaced in silence."""
    stale = Mutant(
        id="stale", what="nothing", module=ops.__name__, old="no such text", new="", relations=("R12",)
    )
    with pytest.raises(ValueError, match="stands 0 times"), planted(stale):
        pass


def test_the_matrix_is_a_table() -> None:
    """One line a detection."""
    some = detections(MUTANTS[0].id)
    assert len(table(some).splitlines()) == 2 + len(some)
