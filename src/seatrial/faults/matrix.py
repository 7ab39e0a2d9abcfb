"""The detection matrix: which relation sees which one-line fault, and whether tidy inputs would have seen it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refrl.config import AdvantageConfig, LossConfig
from seatrial.faults.mutate import Mutant, planted
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference_components import Cell, ReferenceComponents
from seatrial.verdict import Outcome


@dataclass(frozen=True, kw_only=True)
class Detection:
    """What one relation said of one mutant."""

    mutant: Mutant
    relation: str
    seeds: tuple[int, ...]
    caught: int
    """Number of seeds, each run alone, on which the relation failed."""
    tidy_caught: bool
    """Whether the relation fails on tidy, equal-length inputs of the same seeds too."""
    sound: bool
    """Whether the relation passes without the fault, on every seed."""
    sentence: str
    """What the relation said."""

    @property
    def always(self) -> bool:
        """Whether every seed alone was enough."""
        return self.caught == len(self.seeds)


def cell_of(options: Mapping[str, Any] | None) -> Cell:
    """Return the cell of a mutant's options: `loss`, `advantage`, `layout`, `scoring`, `padding_side`."""
    chosen = dict(options or {})
    loss, advantage = chosen.pop("loss", {}), chosen.pop("advantage", {})
    return Cell(loss=LossConfig(**loss), advantage=AdvantageConfig(**advantage), **chosen)


def detect(mutant: Mutant, seeds: Sequence[int] = (0, 1, 2)) -> list[Detection]:
    """Run the relations that a mutant names, with the fault and without."""
    stack = ReferenceComponents(cell_of(mutant.cell))
    found = []
    for relation in select(mutant.relations):
        sound = run_relation(relation, stack, seeds=seeds).outcome is Outcome.PASS
        with planted(mutant):
            verdicts = [run_relation(relation, stack, seeds=[seed]) for seed in seeds]
            tidy = run_relation(relation, stack, seeds=seeds, tidy=True)
        failed = [verdict for verdict in verdicts if verdict.outcome is Outcome.FAIL]
        found.append(
            Detection(
                mutant=mutant,
                relation=relation.id,
                seeds=tuple(seeds),
                caught=len(failed),
                tidy_caught=tidy.outcome is Outcome.FAIL,
                sound=sound,
                sentence=failed[0].reason if failed else verdicts[0].reason,
            )
        )
    return found


def table(detections: Iterable[Detection]) -> str:
    """Return the matrix as a Markdown table."""
    lines = [
        "| mutant | known bugs | what is wrong | relation | seeds that see it | tidy inputs see it |",
        "|---|---|---|---|---|---|",
    ]
    for found in detections:
        ids = " ".join(found.mutant.catalogue) or "-"
        seen = f"{found.caught} of {len(found.seeds)}"
        tidy = "yes" if found.tidy_caught else "no"
        lines.append(
            f"| {found.mutant.id} | {ids} | {found.mutant.what} | {found.relation} | {seen} | {tidy} |"
        )
    return "\n".join(lines) + "\n"
