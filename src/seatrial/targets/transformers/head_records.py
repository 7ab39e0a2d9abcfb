"""Models with heads, with outputs on record; see `contracts.recorded`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from seatrial.relations.contracts.model_heads import HeadForm, HeadKind
from seatrial.relations.not_served import Absent, NotServed
from seatrial.targets.transformers.any_records import Recorded
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.family_records import is_recorded, projected, rows, unserved
from seatrial.targets.transformers.head_table import FAMILIES
from seatrial.targets.transformers.model_heads import FamilyHeads

HEADS = Path(__file__).with_name("recorded_heads.json")


class _Heads(FamilyHeads):
    """Models with heads whose weights depend on their names alone."""

    def __init__(self, family: str) -> None:
        self.family = family  # type: ignore[misc]
        super().__init__()

    def _draw(self, model: Any) -> None:
        draw_by_names_alone(model)


class HeadRecord(Recorded):
    """Models of a family with heads."""

    path = HEADS

    def __init__(self) -> None:
        super().__init__()
        self._heads = _Heads(self.kind)

    def option_names(self) -> list[str]:
        """Return what can be recorded."""
        return [name for kind in self._heads.head_kinds for name in (kind, f"{kind} @loss")]

    def _labels(self, kind: HeadKind, given: Sequence[Sequence[int]]) -> list[Any]:
        by_kind: Mapping[str, list[Any]] = {
            "row classes": [1, 0, 2],
            "row numbers": [0.5, -1.0, 2.0],
            "row labels": [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]],
            "token classes": [
                [-100, *((one + place) % 3 for place, one in enumerate(row[1:]))] for row in given
            ],
            "spans": [(2, 4), (1, 1), (0, 3)],
            "masked ids": [[one if place % 3 else -100 for place, one in enumerate(row)] for row in given],
            "choices": [1, 0, 1],
            "targets": [row[::-1] for row in given],
        }
        return by_kind[kind]

    def projections(self, name: str) -> Sequence[float]:
        named, _, output = name.partition(" @")
        kind = next((one for one in get_args(HeadKind) if one == named), None)
        if kind is None or kind not in self._heads.head_kinds:
            raise Absent(f"no head {named}")
        given = rows()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                if output:
                    loss = self._heads.head_loss(kind, given, self._labels(kind, given))
                    return [loss, max(1.0, abs(loss))]
                return projected(self._heads.head_outputs(kind, given, HeadForm(together=True)))
        except NotServed:
            raise
        except Exception as error:  # not served, which is no wrong number
            raise unserved(error) from error


EVERY: dict[str, type[Any]] = {
    f"recorded-heads-{family}": type(
        f"Recorded_heads_{family}",
        (HeadRecord,),
        {"__doc__": f"Heads of the family {family} on record.", "kind": family},
    )
    for family in FAMILIES
}
"""Those that can be recorded."""
ADAPTERS: dict[str, type[Any]] = {name: one for name, one in EVERY.items() if is_recorded(HEADS, one.kind)}
