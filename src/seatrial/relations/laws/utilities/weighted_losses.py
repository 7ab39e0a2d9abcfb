"""R31.weighted_losses: weights that correct for the sampler scale what each token, or each row, adds to a loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

WEIGHTED_LOSSES = relation_of(
    "weighted_losses",
    "weights-of-the-sampler-scale-losses",
    "Weights of 1 change no policy loss; others scale the loss and the gradient of what they are of.",
)
WEIGHTED = "weighted policy loss"
B, T = 5, 7
BOUND = 1e-5
"""float32 sums of some tens of tokens."""
COLUMNS = ("logprobs", "old_logprobs", "advantages", "mask")


def columns_of(case: Numbers) -> dict[str, Tensor]:
    """Return columns [B, T] of a batch; some tokens inside a row and at its end do not train."""
    generator = case.generator()
    old_BT = -0.5 - torch.rand(B, T, generator=generator)
    gaps_BT = 0.5 * torch.randn(B, T, generator=generator)
    mask_BT = torch.ones(B, T)
    mask_BT[1, 4:] = mask_BT[2, 6:] = mask_BT[3, 1] = 0
    advantages_B = torch.tensor([1.0, -0.5, 0.75, -1.5, 0.25])
    return {
        "logprobs": old_BT + gaps_BT,
        "old_logprobs": old_BT,
        "advantages": advantages_B[:, None].expand(B, T).clone(),
        "mask": mask_BT,
    }


def weights_of(case: Numbers, *, by_row: bool) -> Tensor:
    """Return weights [B, T] from 0.25 to 2.25, one for each token or for each row."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    width = 1 if by_row else T
    return (0.25 + 2 * torch.rand(B, width, generator=generator)).expand(B, T).clone()


def _differences(
    stack: Any, case: Numbers, weights: Tensor, kinds: tuple[str, ...]
) -> Iterator[tuple[float, str]]:
    """Yield the largest error of each loss's gradient, which the weights have to scale."""
    names: Mapping[str, str] = stack.utilities["names of weighted losses"]()
    for name, kind in names.items():
        if kind not in kinds:
            continue
        columns = columns_of(case)
        _, plain_BT = stack.utilities[WEIGHTED](name, columns, None)
        _, found_BT = stack.utilities[WEIGHTED](name, columns, weights)
        yield float((found_BT - weights * plain_BT).abs().max()), f"the gradient of {name}"


@WEIGHTED_LOSSES.law(
    "weights of one",
    "weights that are normalized, a clip that only weighted losses have",
    excluded=without(WEIGHTED),
)
def ones_change_nothing(stack: Any, case: Numbers) -> Measure:
    """Compare losses and gradients with weights of 1, and with 2, with those without weights."""
    found = []
    for number in (1.0, 2.0):
        weights = torch.full((B, T), number)
        found += list(_differences(stack, case, weights, ("tokens", "rows")))
        for name in stack.utilities["names of weighted losses"]():
            plain, _ = stack.utilities[WEIGHTED](name, columns_of(case), None)
            given, _ = stack.utilities[WEIGHTED](name, columns_of(case), weights)
            found.append((abs(given - number * plain), f"{name} with weights of {number:g}"))
    return Measure.largest(found, BOUND, "error of losses with equal weights")


@WEIGHTED_LOSSES.law(
    "weights of rows",
    "weights that are left out, of another row, or squared",
    excluded=without(WEIGHTED),
    by_row=True,
)
@WEIGHTED_LOSSES.law(
    "weights of tokens",
    "weights that are left out, of the token before, or a row's mean",
    excluded=without(WEIGHTED),
    by_row=False,
)
def gradients_are_weighted(stack: Any, case: Numbers, by_row: bool) -> Measure:
    """Compare gradients with weights, one a token or one a row, with the weights times those without."""
    kinds = ("tokens", "rows") if by_row else ("tokens",)
    found = list(_differences(stack, case, weights_of(case, by_row=by_row), kinds))
    return Measure.largest(
        found, BOUND, f"error of gradients with weights of {'rows' if by_row else 'tokens'}"
    )
