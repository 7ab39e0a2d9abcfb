"""The law of a family's forms: a plain model obeys, and each planted fault is seen by the laws about it."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.engine import run_relation
from seatrial.relations.records import StepResult
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R5.family"])


class PlainFamily:
    """Logits of a place are the mean of the scores of the ids up to it; a fault is of one form."""

    vocab_size = 20
    padding_id = 0
    family_checkpoints = True

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.table_VV = torch.randn(20, 20, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def family_excludes(self, form: ModelForm) -> str | None:
        return "no static cache" if form.decoded == "from a static cache" else None

    def family_logits(self, rows: Sequence[Sequence[int]], form: ModelForm) -> list[Tensor]:
        found = []
        for row in rows:
            ids = list(row)
            if self.fault == "padding is seen" and form.together == "left":
                ids = [0] * (max(map(len, rows)) - len(row)) + ids
            sums_SV = self.table_VV[ids].cumsum(0)
            places = torch.arange(1, len(ids) + 1)[:, None]
            if self.fault == "the cache begins again" and form.decoded == "from the cache":
                places = places + 1
            if self.fault == "a second pass begins again" and form.decoded == "in two passes":
                places = places + 1
            if self.fault == "a tensor made again" and form.reloaded:
                sums_SV = sums_SV + 1e-3
            found.append((sums_SV / places)[-(form.num_last or len(row)) :])
        return found

    def family_step(self, rows: Sequence[Sequence[int]], *, checkpointed: bool) -> StepResult:
        logits = torch.cat([one[:-1] for one in self.family_logits(rows, ModelForm())])
        labels = torch.tensor([token for row in rows for token in row[1:]])
        loss = torch.nn.functional.cross_entropy(logits, labels)
        (gradient,) = torch.autograd.grad(loss, self.table_VV)
        again = 1.01 if checkpointed and self.fault == "another mask when computed again" else 1.0
        scale = len(labels) / sum(map(len, rows)) if self.fault == "first labels counted" else 1.0
        return StepResult(loss=float(loss.detach()) * scale, gradients={"table": gradient * again})

    def family_classes(self, rows: Sequence[Sequence[int]], side: str) -> tuple[Tensor, Tensor]:
        states = self.family_logits(rows, ModelForm())
        right_BC = torch.stack([one[-1, :3] for one in states])
        if self.fault == "ends at padding":
            return torch.stack(
                [one[list(row).index(0) - 1, :3] for one, row in zip(states, rows, strict=True)]
            ), right_BC
        return right_BC, right_BC

    def family_ties(self, *, reloaded: bool) -> bool:
        return not (reloaded and self.fault == "head loaded apart")


LEFT = [
    "a batch padded on the left",
    "scaled dot-product attention, padded on the left",
    "decoded from the cache, padded on the left",
    "decoded from the cache, scaled dot-product attention",
    "decoded without a cache",
    "in two passes, padded on the left",
]


@pytest.mark.parametrize(
    ("fault", "laws"),
    [
        ("", []),
        ("padding is seen", LEFT),
        ("the cache begins again", ["decoded from the cache", *LEFT[2:4]]),
        ("a second pass begins again", ["in two passes", "in two passes, padded on the left"]),
        ("a tensor made again", ["saved and loaded"]),
        ("another mask when computed again", ["checkpointed gradients"]),
        ("first labels counted", ["loss"]),
        ("head loaded apart", ["tied head"]),
        ("ends at padding", ["classes of rows padded on the left", "classes of rows padded on the right"]),
    ],
)
def test_a_planted_fault_is_seen(fault: str, laws: list[str]) -> None:
    """By the laws about it and by no other."""
    verdict = run_relation(RELATION, PlainFamily(fault))
    assert verdict.outcome is (Outcome.FAIL if laws else Outcome.PASS)
    assert verdict.details.get("laws_broken", []) == laws
