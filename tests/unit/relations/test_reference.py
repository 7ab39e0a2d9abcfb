"""refrl obeys every relation, in cells of its configuration in which every two options meet."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from seatrial.relations import parametrize_with_relations
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference.cells import cells, dimensions
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.targets.reference.configuration import allowed
from seatrial.verdict import Outcome

Disobeyed = Callable[[Mapping[str, Any], Iterable[str], list[int]], list[str]]
CELLS = list(cells())
FORMULAS = (
    "R1.loss", "R3.loss", "R5.loss", "R9.loss", "R9.metrics", "R11.bandit", "R12.loss", "R22.metrics", "R27.loss",
    "R5.advantages", "R12.advantages", "R17.advantages", "R27.advantages",
)  # fmt: skip
PATHS = ("R1.step", "R3.step", "R5.policy", "R10.step", "R27.step")
RUNS = ("R9.run", "R12.run")


@parametrize_with_relations(ReferenceComponents())
def test_the_default_cell_obeys(relation) -> None:
    """The whole battery, default seeds."""
    relation()


@pytest.mark.parametrize(("name", "options"), CELLS, ids=[name for name, _ in CELLS])
def test_every_cell_obeys(disobeyed: Disobeyed, name: str, options: Mapping[str, Any]) -> None:
    """Formulas, rows to gradients, and gradients of a run against the oracle."""
    assert not disobeyed(options, [*FORMULAS, *PATHS, *RUNS], [0])


def test_every_two_values_meet_in_a_cell_or_exclude_one_another() -> None:
    """The matrix grows with the schema: what is not met must be refused by it."""
    found = dimensions()
    for one, other in itertools.combinations(found, 2):
        for a, b in itertools.product(found[one].values(), found[other].values()):
            met = any(
                all(options.get(key) == value for key, value in {**a, **b}.items()) for _, options in CELLS
            )
            conflict = any(key in b and b[key] != value for key, value in a.items())
            assert met or conflict or not allowed({**a, **b}) or not (a and b), (one, a, other, b)


def losses() -> Iterator[dict[str, Any]]:
    """Yield every loss that the dimensions of the loss and the schema allow."""
    parts = ("loss", "reduction", "kl", "clip", "correction", "entropy")
    for chosen in itertools.product(*(dimensions()[part].values() for part in parts)):
        options: dict[str, Any] = {}
        for one in chosen:
            if any(options.get(key, value) != value for key, value in one.items()):
                break
            options |= one
        else:
            if allowed(options):
                yield options


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_every_loss_obeys(disobeyed: Disobeyed, seed: int) -> None:
    """The whole product of what a loss reads."""
    assert not [said for options in losses() for said in disobeyed(options, FORMULAS, [seed])]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_twenty_seeds_obey(seed: int) -> None:
    """The default cell under seeds beyond the default ones."""
    verdicts = [run_relation(relation, ReferenceComponents(), seeds=[seed]) for relation in select([])]
    assert not [verdict.reason for verdict in verdicts if verdict.outcome is Outcome.FAIL]
