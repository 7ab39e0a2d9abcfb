"""R5.heads: every head of a model gives a row the same logits in every form, and its loss is that of its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the usual name

from seatrial.relations.contracts.model_heads import CLASSES, HeadForm, HeadKind
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.models.families import BOUND, RowsCase, largest_logit_difference
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line, place_of
from seatrial.relations.worst import relative_error

IGNORED = -100
RELOADED = 5e-5
"""Float32, relative to the largest logit, of which a head with one number has one alone."""


def _make(stack: Any, seed: int, tidy: bool) -> RowsCase:
    rng = np.random.default_rng([seed, 55])
    lengths = [8, 8] if tidy else [13, 6, 10]
    return RowsCase(
        rows=tuple(
            (*(int(token) for token in rng.integers(3, stack.vocab_size, size=size - 1)), stack.end_id)
            for size in lengths
        )
    )


HEADS = Relation(
    id="R5.heads",
    name="a-head-is-one-in-every-form",
    component="model_heads",
    statement="The logits of heads for rows, tokens, spans, masked ids, choices and targets do not depend on padding, "
    "neighbours, the kind of attention, further outputs, earlier calls or a reload; losses are those of the logits.",
    cost="CPU, a second a family",
    cases=_make,
    seeded=False,
)


def _over_heads(stack: Any, law: str, judge: Callable[[HeadKind], Measure], form: HeadForm) -> Measure:
    """Return a measure that counts the heads for which a judgement fails.

    Raises:
        NotServed: no head has the form.
    """
    known = stack.head_failures(law)
    wrong, judged = [], 0
    for kind in stack.head_kinds:
        judged += 1
        try:
            if why := stack.head_excludes(kind, form):
                raise NotServed(why)
            measure = judge(kind)
            error = (
                "" if measure.holds else f"{measure.what}: {measure.error:.3g}, at most {measure.bound:.3g}"
            )
        except NotServed:
            judged -= 1
            continue
        except Exception as raised:  # noqa: BLE001  a crash of a head is what is wrong with it
            error = f"{error_line(raised)[:200]} at {place_of(raised)}"
        if error and kind not in known:
            wrong.append(f"{kind}: {error}")
    if not judged:
        raise NotServed("no head has this form")
    return Measure.count(wrong, f"of {judged} heads, those that differ")


@HEADS.law("a batch padded on the right", "padding that is attended to", form=HeadForm(together=True))
@HEADS.law("scaled dot-product attention", "another mask or scale", form=HeadForm(attention="sdpa"))
@HEADS.law(
    "a batch with scaled dot-product attention",
    "another mask or scale",
    form=HeadForm(attention="sdpa", together=True),
)
@HEADS.law("embeddings in place of ids", "a scale that ids alone get", form=HeadForm(embedded=True))
@HEADS.law("further outputs", "states that are changed in place", form=HeadForm(asked=True))
@HEADS.law("outputs as a tuple", "another order of outputs", form=HeadForm(as_tuple=True))
@HEADS.law(
    "after other calls", "a state or a mask that is kept from an earlier call", form=HeadForm(again=True)
)
@HEADS.law("saved and loaded", "tensors that are left out, or made again", form=HeadForm(reloaded=True))
def logits_are_those_of_the_row(stack: Any, case: RowsCase, *, form: HeadForm) -> Measure:
    """Compare the logits of every head in a form with those of each row by itself."""
    bound = RELOADED if form.reloaded or form.as_tuple else BOUND

    def judge(kind: HeadKind) -> Measure:
        with torch.no_grad():
            found = stack.head_outputs(kind, case.rows, form)
            right = stack.head_outputs(kind, case.rows, HeadForm())
        short = [
            (one.shape, due.shape) for one, due in zip(found, right, strict=True) if one.shape != due.shape
        ]
        if short:
            return Measure.count(short, "logits of another shape")
        return largest_logit_difference(found, right, bound)

    return _over_heads(stack, _name(form), judge, form)


def _name(form: HeadForm) -> str:
    """Return the name under which failures of a form are declared."""
    words = {
        "padded": form.together, form.attention: form.attention != "eager", "embedded": form.embedded,
        "reloaded": form.reloaded, "asked": form.asked, "tuple": form.as_tuple, "again": form.again,
    }  # fmt: skip
    return " ".join(word for word, said in words.items() if said)


def labels_of(kind: HeadKind, rows: Sequence[Sequence[int]]) -> list[Any]:
    """Return labels of rows, some of which train nothing where the kind has such."""
    last = len(rows) - 1
    if kind in ("row classes", "choices"):
        return [(number + 1) % (CLASSES if kind == "row classes" else 2) for number in range(len(rows))]
    if kind == "row numbers":
        return [1.5 * number - 0.7 for number in range(len(rows))]
    if kind == "row labels":
        return [[float((number >> bit) & 1) for bit in range(CLASSES)] for number in range(3, 3 + len(rows))]
    if kind == "spans":  # the last row's answer is beyond what is read of it
        return [[2, len(row) - 2] if number < last else [99, 99] for number, row in enumerate(rows)]
    trained = CLASSES if kind == "token classes" else None
    return [
        [
            IGNORED if (place + number) % 3 == 0 else token % trained if trained else token
            for place, token in enumerate(row)
        ]
        for number, row in enumerate(rows)
    ]


def loss_of(kind: HeadKind, logits: Sequence[Tensor], labels: Sequence[Any]) -> float:
    """Return the loss of the rows' logits, in float64."""
    found = [one.double() for one in logits]
    if kind in ("row numbers", "row labels"):
        right = torch.tensor(labels, dtype=torch.float64)
        given = torch.cat(found).squeeze(-1) if kind == "row numbers" else torch.cat(found)
        return float(
            F.mse_loss(given, right)
            if kind == "row numbers"
            else F.binary_cross_entropy_with_logits(given, right)
        )
    if kind in ("row classes", "choices"):
        return float(F.cross_entropy(torch.cat(found), torch.tensor(labels)))
    if kind == "spans":
        kept = [(one, span) for one, span in zip(found, labels, strict=True) if span[0] < len(one)]
        parts = [
            torch.stack([-one[:, side].log_softmax(0)[span[side]] for one, span in kept]).mean()
            for side in (0, 1)
        ]
        return float(sum(parts) / 2)
    flat = torch.tensor([label for row in labels for label in row])
    return float(F.cross_entropy(torch.cat(found), flat, ignore_index=IGNORED))


@HEADS.law("loss", "a mean over padding or ignored labels, one of two losses left out")
def losses_are_of_the_logits(stack: Any, case: RowsCase) -> Measure:
    """Compare the loss of every head, some labels ignored, with that of the logits of each row by itself."""

    def judge(kind: HeadKind) -> Measure:
        shortest = min(map(len, case.rows))
        # A span is one of all places of the batch, those of padding too.
        rows = [row[-shortest:] for row in case.rows] if kind == "spans" else case.rows
        labels = labels_of(kind, rows)
        found = stack.head_loss(kind, rows, labels)
        with torch.no_grad():
            right = loss_of(kind, stack.head_outputs(kind, rows, HeadForm()), labels)
        what = f"loss {found:.6g} against {right:.6g} of the logits, relative difference"
        return Measure(error=relative_error(found, right, 1e-3), bound=BOUND, what=what)

    return _over_heads(stack, "loss", judge, HeadForm(together=True))


@HEADS.law("inputs stay", "labels, ids or a mask that are changed in place")
def inputs_are_not_changed(stack: Any, case: RowsCase) -> Measure:
    """Check that a step of training leaves the tensors of its batch as they are."""

    def judge(kind: HeadKind) -> Measure:
        return Measure.count(
            stack.head_changes(kind, case.rows, labels_of(kind, case.rows)), "tensors changed"
        )

    return _over_heads(stack, "inputs", judge, HeadForm(together=True))
