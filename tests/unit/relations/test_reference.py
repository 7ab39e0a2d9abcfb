"""refrl obeys every relation, in every cell of the options that its schema allows."""

from collections.abc import Callable, Iterable

import pytest

from refrl.config import AdvantageConfig
from seatrial.faults.cells import (
    ADVANTAGE_RELATIONS,
    LOSS_RELATIONS,
    PATH_RELATIONS,
    advantage_configs,
    loss_configs,
    num_combinations,
    num_verdicts,
    path_cells,
)
from seatrial.relations import parametrize_with_relations
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference_components import Cell, ReferenceComponents
from seatrial.verdict import Outcome

Disobeyed = Callable[[Cell, Iterable[str], list[int]], list[str]]
KINDS = sorted({(config.kind, config.reduction) for config in loss_configs()})


@parametrize_with_relations(ReferenceComponents())
def test_the_default_cell_obeys(relation) -> None:
    """The whole battery, default seeds."""
    relation()


def test_the_matrix_is_as_large_as_the_schema() -> None:
    """A new option belongs into it; these are the figures of docs/faults.md."""
    assert (len(advantage_configs()), len(loss_configs()), len(list(path_cells()))) == (8, 1080, 56)
    assert num_combinations() == 8 * 1080 * 8
    assert num_verdicts() == 8 * 4 + 1080 * 9 + 56 * 10


@pytest.mark.parametrize(
    "config", advantage_configs(), ids=lambda config: f"{config.estimator}-{config.scale}"
)
def test_every_advantage_obeys(disobeyed: Disobeyed, config: AdvantageConfig) -> None:
    """Oracle, algebra, permutation and aliasing."""
    assert not disobeyed(Cell(advantage=config), ADVANTAGE_RELATIONS, [0, 1, 2])


@pytest.mark.parametrize(("kind", "reduction"), KINDS)
def test_every_path_through_the_model_obeys(disobeyed: Disobeyed, kind: str, reduction: str) -> None:
    """Rows to gradients: padded or packed, plain or chunked, either side."""
    cells = [cell for cell in path_cells() if (cell.loss.kind, cell.loss.reduction) == (kind, reduction)]
    assert len(cells) == 8
    assert not [said for cell in cells for said in disobeyed(cell, PATH_RELATIONS, [0])]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_twenty_seeds_obey(seed: int) -> None:
    """The default cell under seeds beyond the default ones."""
    verdicts = [run_relation(relation, ReferenceComponents(), seeds=[seed]) for relation in select([])]
    # R18 turns every knob once, at seed 0, and is skipped elsewhere.
    assert not [verdict.reason for verdict in verdicts if verdict.outcome is Outcome.FAIL]
    assert sum(verdict.outcome is Outcome.PASS for verdict in verdicts) >= len(verdicts) - 1


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(20))
def test_twenty_seeds_obey_in_every_cell(disobeyed: Disobeyed, seed: int) -> None:
    """The whole matrix under one seed."""
    said = [
        said for config in loss_configs() for said in disobeyed(Cell(loss=config), LOSS_RELATIONS, [seed])
    ]
    said += [said for cell in path_cells() for said in disobeyed(cell, PATH_RELATIONS, [seed])]
    for config in advantage_configs():
        said += disobeyed(Cell(advantage=config), ADVANTAGE_RELATIONS, [seed])
    assert not said
