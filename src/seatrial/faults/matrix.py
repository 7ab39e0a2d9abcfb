"""The detection matrix: which relation sees which one-line fault, on which seeds, and whether tidy inputs see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from refrl.config import AdvantageConfig, LossConfig
from seatrial.faults.mutate import Mutant, planted
from seatrial.relations.engine import DEFAULT_SEEDS, Relation, Violation, first_violation, run_relation
from seatrial.relations.registry import all_relations, select
from seatrial.targets.reference_components import Cell, ReferenceComponents
from seatrial.verdict import Outcome


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What one relation said of one mutant."""

    mutant: str
    relation: str
    seeds: tuple[int, ...]
    """Those of the asked seeds on which the relation can be exercised, and passes without the fault."""
    caught: tuple[int, ...]
    """Those of them, each run alone, on which it fails with the fault."""
    tidy: bool | None
    """Whether it fails on tidy inputs of the same seeds too; None where that was not asked."""
    sentence: str
    """What it said first; empty where it saw nothing."""

    @property
    def always(self) -> bool:
        """Whether every seed alone was enough."""
        return bool(self.seeds) and self.caught == self.seeds


def cell_of(options: Mapping[str, Any] | None) -> Cell:
    """Return the cell of a mutant's options: `loss`, `advantage`, `layout`, `scoring`, `padding_side`."""
    chosen = dict(options or {})
    loss, advantage = chosen.pop("loss", {}), chosen.pop("advantage", {})
    return Cell(loss=LossConfig(**loss), advantage=AdvantageConfig(**advantage), **chosen)


def reachable(mutant: Mutant) -> tuple[Relation, ...]:
    """Return the relations that a mutant could break: verifiers are slow, and no other module is in their path."""
    rewards = mutant.module.startswith("refrl.rewards.")
    return tuple(relation for relation in all_relations() if rewards or relation.component != "reward")


def detect(
    mutant: Mutant,
    *,
    relations: Sequence[Relation] | None = None,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    tidy: bool = True,
) -> list[Detection]:
    """Return what each relation says with the fault planted.

    Args:
        mutant: the fault.
        relations: None takes those that the mutant names.
        seeds: each is run alone.
        tidy: run on tidy inputs too, where the others see the fault.
    """
    stack = ReferenceComponents(cell_of(mutant.cell))
    chosen = select(mutant.relations) if relations is None else relations
    sound = {
        relation.id: tuple(seed for seed in seeds if _passes(relation.id, _key(mutant), seed))
        for relation in chosen
    }
    detections = []
    for relation in chosen:
        able = sound[relation.id]
        found = {seed: _broken(mutant, relation, stack, [seed], tidy=False) for seed in able}
        broken = {seed: violation for seed, violation in found.items() if violation is not None}
        asked = tidy and bool(broken)
        tidy_found = _broken(mutant, relation, stack, seeds, tidy=True) if asked else None
        detections.append(
            Detection(
                mutant=mutant.id,
                relation=relation.id,
                seeds=able,
                caught=tuple(broken),
                tidy=tidy_found is not None if asked else None,
                sentence=next(iter(broken.values())).sentence() if broken else "",
            )
        )
    return detections


def _broken(
    mutant: Mutant, relation: Relation, stack: ReferenceComponents, seeds: Sequence[int], *, tidy: bool
) -> Violation | None:
    """Return the first violation under the fault, which is planted anew: some faults remember earlier calls."""
    with planted(mutant):
        return first_violation(relation, stack, seeds=seeds, tidy=tidy)


_CELLS: dict[str, ReferenceComponents] = {}


def _key(mutant: Mutant) -> str:
    """Return a name for the mutant's cell, under which its sound stack is kept."""
    key = repr(mutant.cell)
    if key not in _CELLS:
        _CELLS[key] = ReferenceComponents(cell_of(mutant.cell))
    return key


@cache
def _passes(relation: str, cell: str, seed: int) -> bool:
    """Tell whether refrl as it is passes a relation on one seed."""
    (chosen,) = select([relation])
    return run_relation(chosen, _CELLS[cell], seeds=[seed]).outcome is Outcome.PASS
