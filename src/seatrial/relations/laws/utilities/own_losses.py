"""R31.own_losses: a policy loss that a user registers is given the columns that its arguments are named for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

OWN_LOSSES = relation_of(
    "own_losses",
    "own-losses-get-the-columns-of-the-batch",
    "A registered policy loss is called once a micro-batch, with its rows' own log-probabilities, advantages and mask.",
)
LENGTHS = (3, 5, 2, 5, 1, 4)
"""Of the answers."""
SIZES = (1, 2, 3)
"""Rows of a micro-batch."""
TOLERANCE = 1e-6
"""float32 of numbers up to two."""


def columns_of(case: Numbers) -> dict[str, Tensor]:
    """Return columns [B, T] of other numbers each, 0 in the padding; some tokens inside do not train."""
    shape, generator = (len(LENGTHS), max(LENGTHS)), case.generator()
    shown_BT = torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    names = ("logprobs", "old_logprobs", "ref_logprobs", "advantages", "weights", "entropy")
    columns = {
        name: (torch.rand(shape, generator=generator) - place) * shown_BT for place, name in enumerate(names)
    }
    columns["weights"] = (columns["weights"] + 5) * shown_BT
    inside_BT = shown_BT.clone()
    inside_BT[1, 2] = inside_BT[3, 1] = False
    return {**columns, "shown": shown_BT.float(), "mask": inside_BT.float()}


@OWN_LOSSES.law(
    "arguments of an own loss",
    "advantages in the place of the mask, old log-probabilities for new ones, weights that are not passed",
    excluded=without("own policy loss"),
)
def arguments_are_columns(stack: Any, case: Numbers) -> Measure:
    """Check what the loss is given where tokens train, and the mask everywhere, in micro-batches of 1 to 3 rows."""
    columns, wrong = columns_of(case), []
    for size in SIZES:
        given: Sequence[Mapping[str, Tensor | None]] = stack.utilities["own policy loss"](dict(columns), size)
        if len(given) != len(LENGTHS) // size:
            wrong.append(f"{len(given)} calls for micro-batches of {size}")
            continue
        for name in given[0]:
            parts = [one[name] for one in given]
            due = columns[name] if name == "mask" else columns[name] * columns["mask"]
            wrong += (
                [f"{name}, micro-batches of {size}"] if _differs(parts, due, columns["mask"], name) else []
            )
    return Measure.count(wrong, "arguments that are other columns")


def _differs(parts: Sequence[Tensor | None], due: Tensor, mask_BT: Tensor, name: str) -> bool:
    tensors = [one for one in parts if one is not None]
    if len(tensors) != len(parts):
        return True
    width = mask_BT.shape[1]
    found = [torch.nn.functional.pad(one.float(), (0, width - one.shape[1])) for one in tensors]
    if any(one.dim() != 2 or one.shape[1] != width for one in found):
        return True
    given = torch.cat(found)
    if given.shape != due.shape:
        return True
    given = given if name == "mask" else torch.where(mask_BT > 0, given, torch.zeros(()))
    return not torch.allclose(given, due, rtol=0, atol=TOLERANCE)
