"""R31.activated: a low-rank adapter that ids activate changes the tokens from there on, and no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

BOUND = 2e-4
"""Error of logits that several small layers of float32 give, relative to the largest; as of other adapters."""
NEW_IDS, PADDING = 4, 0
INVOKED: Mapping[str, Sequence[int] | None] = {"first": (7, 9), "second": (11,), "always": None}
"""The ids that activate each adapter; None: it is always active. The first one is in use."""
ROWS = (
    (3, 7, 9, 4, 5, 11, 6, 8),
    (7, 9, 3, 11, 7, 9, 5, 7),  # the last time counts, and its beginning at the end does not
    (3, 4, 7, 5, 9, 6, 3, 11),  # never, for the first adapter
    (7, 7, 9, 9, 11, 4, 11, 9),
)
Factors = tuple[Tensor, Tensor, float]
"""A, B and the scale."""


class Activated(NamedTuple):
    """A model of three adapters, as `INVOKED` says; (A, B) of layers are in the model's order."""

    outputs: Callable[[Tensor, Tensor, Sequence[str | None] | None], Tensor]
    """(ids [B, S], mask [B, S], the adapter of each row or None of the base; None: the one in use) -> logits."""
    plain: Callable[[Tensor, Tensor, Mapping[str, Callable[[Tensor], Tensor]]], Tensor]
    """(ids, mask, what is added to a layer's output, of its input, by its name) -> the base's logits [B, S, V]."""
    factors: Mapping[str, Mapping[str, Factors]]
    """By adapter and layer."""
    generated: Callable[[Tensor, Tensor, int, bool], tuple[Tensor, Tensor]]
    """(ids, mask, number of new ones, whether with a cache) -> logits of the new ids, all ids."""
    gradients: Callable[[Tensor, Tensor, bool], Mapping[str, tuple[Tensor | None, Tensor | None]]]
    """(ids, weights [B, S, V], whether activations are computed again) -> gradients of (A, B) by layer, of the adapter
    in use, of the sum of weighted logits."""
    disabled: Callable[[Tensor, Tensor], Tensor]
    """(ids, mask) -> logits while adapters are disabled."""
    loaded: Callable[[], Callable[[Tensor, Tensor], Tensor]]
    """() -> `outputs` of the adapter in use in another model, saved and loaded."""


ACTIVATED = relation_of(
    "activated",
    "activated-adapters-change-the-tokens-from-their-ids-on",
    "Each layer adds the adapter's product to the tokens from the last time that its ids appear in the row.",
)


def active_from(ids: Sequence[int], invoked: Sequence[int] | None) -> int:
    """Return the place of the first token that the adapter changes; that after the last one where it changes none."""
    if invoked is None:
        return 0
    starts = [
        place
        for place in range(len(ids) - len(invoked) + 1)
        if tuple(ids[place : place + len(invoked)]) == tuple(invoked)
    ]
    return starts[-1] if starts else len(ids)


def _mask(ids_BS: Tensor, names: Sequence[str | None], name: str, known: int | None = None) -> Tensor:
    """Return which tokens an adapter changes [B, S, 1]; ids that activate it are among the first `known`."""
    mask_BS1 = torch.zeros(*ids_BS.shape, 1)
    for row, (ids, own) in enumerate(zip(ids_BS.tolist(), names, strict=True)):
        place = active_from(ids[:known], INVOKED[name])
        if own == name and (known is None or place < known):
            mask_BS1[row, place:] = 1
    return mask_BS1


def _added(factors: Factors, mask_BS1: Tensor) -> Callable[[Tensor], Tensor]:
    a, b, scale = factors
    return lambda x_BSD: mask_BS1 * (x_BSD @ a.T @ b.T) * scale


def _sum(parts: Sequence[Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
    return lambda x_BSD: sum((one(x_BSD) for one in parts), torch.zeros(()))


def _right(
    made: Activated,
    ids_BS: Tensor,
    mask_BS: Tensor,
    names: Sequence[str | None] | None = None,
    known: int | None = None,
) -> Tensor:
    names = names or ["first"] * len(ids_BS)
    adds: dict[str, list[Callable[[Tensor], Tensor]]] = {}
    for name, layers in made.factors.items():
        for layer, factors in layers.items():
            adds.setdefault(layer, []).append(_added(factors, _mask(ids_BS, names, name, known)))
    return made.plain(ids_BS, mask_BS, {layer: _sum(own) for layer, own in adds.items()})


def _error(found: Tensor, right: Tensor, mask_BS: Tensor) -> float:
    if found.shape != right.shape:
        return float("inf")
    kept = mask_BS.bool()
    return float((found - right)[kept].abs().max() / right[kept].abs().max())


def _ids() -> tuple[Tensor, Tensor]:
    ids_BS = torch.tensor(ROWS)
    return ids_BS, torch.ones_like(ids_BS)


NAME = "activated adapters"
HAS = without(NAME)
WRONG = "an adapter that is active from another place, in rows without its ids, or where they end"


@ACTIVATED.law("outputs", WRONG, excluded=HAS)
def outputs_change_from_the_ids_on(stack: Any, case: Numbers) -> Measure:
    """Compare the logits of a batch, and of each row alone, with the definition's."""
    made = stack.utilities[NAME]()
    ids_BS, mask_BS = _ids()
    right = _right(made, ids_BS, mask_BS)
    found = [(_error(made.outputs(ids_BS, mask_BS, None), right, mask_BS), "the batch")]
    for row in range(len(ids_BS)):
        own = slice(row, row + 1)
        alone = made.outputs(ids_BS[own], mask_BS[own], None)
        found.append((_error(alone, right[own], mask_BS[own]), f"row {row} alone"))
    return Measure.largest(found, BOUND, "logits of an activated adapter")


@ACTIVATED.law("padded rows", "places that are counted without the padding", excluded=HAS)
def padded_rows_are_rows(stack: Any, case: Numbers) -> Measure:
    """Compare the logits of rows of unequal lengths, padded on either side, with those of each row alone."""
    made, found = stack.utilities[NAME](), []
    ids_BS = _ids()[0]
    lengths = [len(row) - number for number, row in enumerate(ROWS)]
    for side in ("right", "left"):
        padded_BS, mask_BS = torch.full_like(ids_BS, PADDING), torch.zeros_like(ids_BS)
        for row, length in enumerate(lengths):
            place = slice(0, length) if side == "right" else slice(len(ROWS[0]) - length, None)
            padded_BS[row, place], mask_BS[row, place] = ids_BS[row, :length], 1
        given_BSV = made.outputs(padded_BS, mask_BS, None)
        for row, length in enumerate(lengths):
            own, ones = ids_BS[row : row + 1, :length], torch.ones(1, length, dtype=torch.long)
            kept = given_BSV[row : row + 1][mask_BS[row : row + 1].bool()][None]
            found.append((_error(kept, _right(made, own, ones), ones), f"row {row}, padded on the {side}"))
    return Measure.largest(found, BOUND, "logits of an activated adapter")


@ACTIVATED.law("a batch of several adapters", "ids or places of the adapter of another row", excluded=HAS)
def rows_have_adapters_of_their_own(stack: Any, case: Numbers) -> Measure:
    """Compare the logits of batches whose rows name their adapters with the definition's."""
    made, found = stack.utilities[NAME](), []
    ids_BS, mask_BS = _ids()
    orders: Sequence[Sequence[str | None]] = (
        ("first", "second", None, "always"),
        ("second", "first", "always", "second"),
        (None, "always", "second", "first"),
        ("always", None, "first", "first"),
    )
    for names in orders:
        right = _right(made, ids_BS, mask_BS, names)
        found.append((_error(made.outputs(ids_BS, mask_BS, names), right, mask_BS), f"adapters {names}"))
    return Measure.largest(found, BOUND, "logits of activated adapters")


@ACTIVATED.law("generated", "an adapter that is not active for new ids", excluded=HAS, cache=True)
@ACTIVATED.law(
    "generated without a cache",
    "places that are counted from the end of longer rows",
    excluded=HAS,
    cache=False,
)
def generated_as_in_one_pass(stack: Any, case: Numbers, cache: bool) -> Measure:
    """Compare the logits of generated ids with those of a pass over all; ids of the prompt activate the adapter."""
    made = stack.utilities[NAME]()
    ids_BS, mask_BS = _ids()
    logits_BNV, all_BS = made.generated(ids_BS, mask_BS, NEW_IDS, cache)
    right = _right(made, all_BS, torch.ones_like(all_BS), known=ids_BS.shape[1])[:, -NEW_IDS - 1 : -1]
    error = _error(logits_BNV, right, torch.ones(logits_BNV.shape[:2]))
    return Measure(error=error, bound=BOUND, what="logits of generated ids")


@ACTIVATED.law("gradients", "tokens before the ids that have a gradient", excluded=HAS, again=False)
@ACTIVATED.law(
    "gradients, activations computed again", "a second pass without the places", excluded=HAS, again=True
)
def gradients_are_of_active_tokens(stack: Any, case: Numbers, again: bool) -> Measure:
    """Compare the gradients of a sum of weighted logits with those of the definition."""
    made = stack.utilities[NAME]()
    ids_BS, mask_BS = _ids()
    weights_BSV = torch.randn(made.plain(ids_BS, mask_BS, {}).shape, generator=case.generator())
    given = made.gradients(ids_BS, weights_BSV, again)
    leaves = {
        layer: (a.detach().clone().requires_grad_(), b.detach().clone().requires_grad_(), scale)
        for layer, (a, b, scale) in made.factors["first"].items()
    }
    right_BSV = _right(made._replace(factors={"first": leaves}), ids_BS, mask_BS)
    torch.autograd.backward((right_BSV * weights_BSV).sum())
    found = []
    for layer, (a, b, _) in leaves.items():
        for own, value, what in zip(given[layer], (a, b), "AB", strict=True):
            assert value.grad is not None
            error = (
                float("inf")
                if own is None
                else float((own - value.grad).abs().max() / value.grad.abs().max())
            )
            found.append((error, f"{what} of {layer}"))
    return Measure.largest(found, 10 * BOUND, "gradients of factors")


@ACTIVATED.law("disabled, and then not", "an adapter that stays, places of an earlier batch", excluded=HAS)
def disabled_is_the_base(stack: Any, case: Numbers) -> Measure:
    """Compare the logits while disabled with the base's, and those after it with the definition's."""
    made = stack.utilities[NAME]()
    ids_BS, mask_BS = _ids()
    found = [
        (_error(made.disabled(ids_BS, mask_BS), made.plain(ids_BS, mask_BS, {}), mask_BS), "while disabled")
    ]
    after = made.outputs(ids_BS.flip(0), mask_BS, None)
    found.append((_error(after, _right(made, ids_BS.flip(0), mask_BS), mask_BS), "after it"))
    return Measure.largest(found, BOUND, "logits of an activated adapter")


@ACTIVATED.law("saved and loaded", "ids that are not saved", excluded=HAS)
def loaded_is_the_same(stack: Any, case: Numbers) -> Measure:
    """Compare the logits of a model that was saved and loaded with the definition's."""
    made = stack.utilities[NAME]()
    ids_BS, mask_BS = _ids()
    error = _error(made.loaded()(ids_BS, mask_BS), _right(made, ids_BS, mask_BS), mask_BS)
    return Measure(error=error, bound=BOUND, what="logits of a loaded model")
