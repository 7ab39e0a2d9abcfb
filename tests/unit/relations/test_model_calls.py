"""R5.calls, R5.cached, R5.files, R5.heads and R5.recorded: a plain model holds, and each fault breaks its law."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.model_calls import CallForm
from seatrial.relations.contracts.model_files import FileForm
from seatrial.relations.contracts.model_heads import CLASSES, HeadForm, HeadKind
from seatrial.relations.engine import run_relation
from seatrial.relations.laws.models.heads import loss_of
from seatrial.relations.not_served import Absent, NotServed
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

SIZES: dict[str, int] = {"row numbers": 1, "spans": 2, "choices": 1}
KINDS: Sequence[HeadKind] = (
    "row classes",
    "row numbers",
    "row labels",
    "token classes",
    "spans",
    "masked ids",
    "choices",
    "targets",
)


class Plain:
    """A model whose logits are means of a table's rows up to each place."""

    vocab_size, end_id, head_kinds = 31, 1, KINDS

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(31, 31, generator=generator)

    def row_logits(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        return [self.table[list(row)].cumsum(0) / torch.arange(1, len(row) + 1)[:, None] for row in rows]

    def call_pairs(self, rows: Any, form: CallForm) -> list[tuple[Tensor, Tensor]]:
        off = 0.5 if self.fault == form else 0.0
        return [(one + off * one.flip(0), one) for one in self.row_logits(rows)]

    def loss_of_labels(self, rows: Any, labels: Any) -> tuple[float, list[str]]:
        given = [list(row) for row in rows] if self.fault == "labels of the row" else labels
        logits = torch.cat([one[:-1] for one in self.row_logits(rows)])
        due = torch.tensor([label for own in given for label in own[1:]])
        loss = torch.nn.functional.cross_entropy(logits.double(), due, ignore_index=-100)
        return float(loss), ["labels"] if self.fault == "labels changed" else []

    def file_errors(self, form: FileForm) -> list[str]:
        return ["a tensor"] if self.fault == form else []

    @property
    def recorded(self) -> dict[str, list[float]]:
        return {"": [1.0, 2.0, 4.0], "an option": [1.0, 2.0, 4.0]}

    is_of_the_line = True

    def projections(self, name: str) -> list[float]:
        if name and self.fault in ("an option raises", "an option is gone"):
            raise (Absent if self.fault == "an option is gone" else NotServed)("no numbers")
        return [1.0, 2.2 if self.fault == "another scale" and name else 2.0, 4.0]

    def head_failures(self, law: str) -> dict[str, str]:
        return {}

    def head_excludes(self, kind: HeadKind, form: HeadForm) -> str | None:
        return None

    def head_outputs(self, kind: HeadKind, rows: Any, form: HeadForm) -> list[Tensor]:
        seen = form.together and self.fault == "padding is seen"
        off = seen or (form.reloaded and self.fault == "made again") or (form.again and self.fault == "kept")
        whole = [one + 0.01 * off * one.flip(1) for one in self.row_logits(rows)]
        if kind in ("row classes", "row labels", "row numbers", "choices"):
            width = 2 if kind == "choices" else SIZES.get(kind, CLASSES)
            return [one[-1:, :width] for one in whole]
        width = {"spans": 2, "token classes": CLASSES}.get(kind, 31)
        return [one[:, :width] for one in whole]

    def head_loss(self, kind: HeadKind, rows: Any, labels: Any) -> float:
        logits = self.head_outputs(kind, rows, HeadForm())
        if self.fault == "ignored labels count" and kind == "token classes":
            labels = [[max(label, 0) for label in own] for own in labels]
        if self.fault == "one side of a span" and kind == "spans":
            labels = [[start, start] for start, _ in labels]
        return loss_of(kind, logits, labels)

    def head_changes(self, kind: HeadKind, rows: Any, labels: Any) -> list[str]:
        return ["labels"] if self.fault == "labels changed" else []


@pytest.mark.parametrize("name", ["R5.calls", "R5.cached", "R5.files", "R5.heads", "R5.recorded"])
def test_a_plain_model_holds(name: str) -> None:
    """Every law."""
    (relation,) = select([name])
    verdict = run_relation(relation, Plain(), seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws}


@pytest.mark.parametrize(
    ("relation", "fault", "laws"),
    [
        ("R5.calls", "further outputs", ["further outputs"]),
        ("R5.calls", "as a tuple", ["outputs as a tuple"]),
        ("R5.calls", "after other calls", ["after other calls"]),
        ("R5.calls", "in float64", ["float64"]),
        ("R5.calls", "no rows of their own", ["rows in the reverse order"]),
        ("R5.calls", "places by a factor", ["linear scaling by larger places"]),
        ("R5.calls", "yarn by larger queries", ["scale of attention by larger queries"]),
        ("R5.calls", "the last state", ["the last hidden state"]),
        ("R5.calls", "masks of other types", ["masks of other types"]),
        ("R5.calls", "more ids", ["ids that are added"]),
        ("R5.calls", "fewer ids", ["ids that are taken away"]),
        ("R5.calls", "routers by argument", ["loss of routers"]),
        ("R5.calls", "routers by configuration", ["loss of routers by configuration"]),
        ("R5.calls", "experts by definition", ["experts by definition"]),
        ("R5.calls", "logits of routers", ["logits of routers"]),
        ("R5.calls", "places in a window", ["places in a window"]),
        ("R5.calls", "head by definition", ["head by definition"]),
        ("R5.calls", "the first state", ["the first hidden state"]),
        ("R5.calls", "scale of attention", ["scale of attention"]),
        ("R5.calls", "turned queries", ["queries turned by their places"]),
        ("R5.calls", "a row padded by itself", ["a row padded on the left by itself"]),
        ("R5.calls", "padded beyond a length", ["padded on the left, beyond a length"]),
        ("R5.calls", "packed beyond a length", ["packed, beyond a length"]),
        ("R5.calls", "generated beyond a length", ["generated, beyond a length"]),
        ("R5.calls", "grown beyond a length", ["long and short factors while a row grows"]),
        ("R5.calls", "places of an index", ["places that an index chooses"]),
        ("R5.calls", "in bfloat16", ["bfloat16, padded on the left"]),
        ("R5.calls", "in float16", ["float16, padded on the left"]),
        ("R5.cached", "one by one", ["one by one"]),
        ("R5.cached", "a cache reordered", ["reordered"]),
        ("R5.cached", "rows of a cache chosen", ["rows chosen"]),
        ("R5.cached", "a cache repeated", ["repeated"]),
        ("R5.cached", "a cache copied", ["copied"]),
        ("R5.cached", "a cache cut", ["cut"]),
        ("R5.cached", "beams", ["beams"]),
        ("R5.cached", "beams that end", ["beams that end, in a batch"]),
        ("R5.cached", "candidates of the prompt", ["candidates of the prompt"]),
        ("R5.cached", "embeddings that generate", ["embeddings that generate"]),
        ("R5.cached", "generation that continues", ["generation that continues"]),
        ("R5.calls", "labels of the row", ["loss, labels ignored"]),
        ("R5.calls", "labels changed", ["inputs stay"]),
        ("R5.recorded", "another scale", ["logits"]),
        ("R5.recorded", "an option raises", ["logits"]),
        ("R5.files", "as it is", ["as it is"]),
        ("R5.files", "in shards", ["in shards"]),
        ("R5.files", "in bfloat16", ["in bfloat16"]),
        ("R5.files", "base of the whole", ["the base of the whole"]),
        ("R5.files", "whole of the base", ["the whole of the base"]),
        ("R5.files", "another tied name", ["tied weights by another name"]),
        (
            "R5.heads",
            "padding is seen",
            ["a batch padded on the right", "a batch with scaled dot-product attention"],
        ),
        ("R5.heads", "made again", ["saved and loaded"]),
        ("R5.heads", "kept", ["after other calls"]),
        ("R5.heads", "ignored labels count", ["loss"]),
        ("R5.heads", "one side of a span", ["loss"]),
        ("R5.heads", "labels changed", ["inputs stay"]),
    ],
)
def test_a_fault_breaks_its_law(relation: str, fault: str, laws: list[str]) -> None:
    """And no other one."""
    (found,) = select([relation])
    verdict = run_relation(found, Plain(fault), seeds=[0], shrink_seconds=0)
    assert sorted(verdict.details["laws_broken"]) == sorted(laws)


@pytest.mark.parametrize(
    ("fault", "is_of_the_line"), [("an option is gone", True), ("an option raises", False)]
)
def test_what_a_release_does_not_have_breaks_no_record(fault: str, is_of_the_line: bool) -> None:
    """An option that is gone, and one that a release of another line refuses."""
    (found,) = select(["R5.recorded"])
    stack = Plain(fault)
    stack.is_of_the_line = is_of_the_line
    assert run_relation(found, stack, seeds=[0]).outcome is Outcome.PASS
