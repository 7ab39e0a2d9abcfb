"""What the tests of the matrix share."""

from collections.abc import Callable, Iterable

import pytest

from seatrial.faults.cells import LOSS_RELATIONS, loss_configs
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference_components import Cell, ReferenceComponents
from seatrial.verdict import Outcome


def disobeyed(cell: Cell, names: Iterable[str], seeds: list[int]) -> list[str]:
    """Return what the relations that a cell breaks, or does not exercise, say."""
    stack = ReferenceComponents(cell)
    verdicts = [run_relation(relation, stack, seeds=seeds) for relation in select(list(names))]
    return [f"{cell}: {v.name}: {v.reason}" for v in verdicts if v.outcome is not Outcome.PASS]


def losses_disobeyed(kind: str, reduction: str, part: int) -> list[str]:
    """Hold every third loss of a kind and reduction to every relation, each with a default seed of its own."""
    cells = [config for config in loss_configs() if (config.kind, config.reduction) == (kind, reduction)]
    assert len(cells) > 100
    return [
        said
        for number, config in enumerate(cells)
        if number % 3 == part
        for said in disobeyed(Cell(loss=config), LOSS_RELATIONS, [number // 3 % 3])
    ]


@pytest.fixture(name="disobeyed")
def disobeyed_fixture() -> Callable[[Cell, Iterable[str], list[int]], list[str]]:
    """Return `disobeyed`."""
    return disobeyed


@pytest.fixture(name="losses_disobeyed")
def losses_disobeyed_fixture() -> Callable[[str, str, int], list[str]]:
    """Return `losses_disobeyed`."""
    return losses_disobeyed
