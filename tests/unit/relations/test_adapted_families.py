"""R29.families: a plain adapted model holds, and a fault in a use of the adapter breaks its law."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.adapted_families import Layers, Use
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R29.families"])


class Plain:
    """An adapter that adds a product of two factors to a table of logits."""

    vocab_size = 31

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        generator = torch.Generator().manual_seed(0)
        self.table_VV = torch.randn(31, 31, generator=generator)
        self.delta_VV = torch.randn(31, 2, generator=generator) @ torch.randn(2, 31, generator=generator)

    def adapted_pairs(
        self, rows: Sequence[Sequence[int]], layers: Layers, use: Use
    ) -> list[tuple[Tensor, Tensor]]:
        due_VV = self.table_VV if use == "disabled" else self.table_VV + self.delta_VV
        found_VV = due_VV + 0.1 * self.delta_VV if self.fault == use else due_VV
        return [(found_VV[list(row)], due_VV[list(row)]) for row in rows]

    def misplaced(self, layers: Layers) -> list[str]:
        return ["a head has one"] if self.fault == "placed" else []

    def untrained(self, rows: Sequence[Sequence[int]], layers: Layers) -> list[str]:
        return ["a factor"] if self.fault == "trains" else []


def test_a_plain_model_holds() -> None:
    """Every law."""
    verdict = run_relation(RELATION, Plain(), seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in RELATION.laws}


@pytest.mark.parametrize(
    "fault", ["merged", "loaded by the model itself", "disabled", "checkpointed", "placed", "trains"]
)
def test_a_fault_breaks_its_law(fault: str) -> None:
    """With each set of layers, and no other one."""
    verdict = run_relation(RELATION, Plain(fault), seeds=[0], shrink_seconds=0)
    due = [f"{layers}: {fault}" for layers in ("embeddings and head", "experts", "linear layers")]
    assert sorted(verdict.details["laws_broken"]) == due
