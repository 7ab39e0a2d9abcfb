"""One-line faults planted in refrl are seen by the relations that the tables name, on every default seed."""

import importlib
from collections import Counter
from pathlib import Path

import pytest

from refrl.algorithms import ops
from seatrial.faults.matrix import detect
from seatrial.faults.mutate import Mutant, all_mutants, planted
from seatrial.relations.engine import DEFAULT_SEEDS

MUTANTS = all_mutants()
COSTLY = ("refrl.rewards.", "refrl.validation")
"""Verifiers run programs, and a validation a training run: one seed here, all of them at night."""


def by_id(mutant: Mutant) -> str:
    """Name a test by its mutant."""
    return mutant.id


@pytest.mark.parametrize("mutant", MUTANTS, ids=by_id)
def test_the_named_relations_see_it_on_every_seed_and_pass_without_it(mutant: Mutant) -> None:
    """Caught by each seed alone: not by chance."""
    seeds = DEFAULT_SEEDS[:1] if mutant.module.startswith(COSTLY) else DEFAULT_SEEDS
    for found in detect(mutant, seeds=seeds, tidy=False):
        assert found.seeds, f"{found.relation} does not hold on refrl without the fault"
        assert found.always, f"{found.relation} saw {mutant.id} on {found.caught} of {found.seeds}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=by_id)
def test_its_text_stands_once(mutant: Mutant) -> None:
    """A table that is out of date says so by name."""
    module = importlib.import_module(mutant.module)
    assert Path(module.__file__).read_text(encoding="utf-8").count(mutant.old) == 1


def test_ids_are_unique() -> None:
    """A mutant's id names one mutant."""
    assert [name for name, count in Counter(mutant.id for mutant in MUTANTS).items() if count > 1] == []


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


def test_a_fault_that_does_nothing_is_not_seen() -> None:
    """The matrix can say no."""
    idle = Mutant(
        id="idle",
        what="nothing",
        module=ops.__name__,
        old="check_temperature(temperature)\n    B, S, V",
        new="check_temperature(temperature * 1)\n    B, S, V",
        relations=("R12.logprobs",),
    )
    (found,) = detect(idle, seeds=[0])
    assert found.seeds == (0,)
    assert found.caught == ()
    assert found.tidy is None
