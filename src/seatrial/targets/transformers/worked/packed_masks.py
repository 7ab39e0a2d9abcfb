"""Worked examples of Transformers' masks of packed rows: blocks that see both ways, masks of the caller, and both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.masks import (
    CAUSAL,
    FORMS,
    WINDOW,
    config_of,
    differences,
    made,
    sees_of,
    shown,
)

PLACES = ((0, 1, 2, 3, 0, 1, 2, 3, 4), (0, 1, 2, 3, 4, 5, 0, 1, 0))
"""Of the tokens of each row in their sequences."""
BLOCKS = ((-1, -1, 0, 0, 0, 0, -1, 1, 1), (0, 0, -1, 2, 2, 2, 2, 2, 2))
"""Blocks of each row; some continue over the border of a sequence."""
PICTURES = "Transformers: pictures of packed rows in layers with a window"
HOW = tuple(product((False, True), repeat=3))
"""Whether there are blocks, and masks of the caller that join and cut."""
KINDS = ("causal", "sliding", "chunked")


def _sequences(row: Sequence[int]) -> list[int]:
    return [sum(row[i] != row[i - 1] + 1 for i in range(1, at + 1)) for at in range(len(row))]


def _joins(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + 2 * k) % 5 == 0


def _cuts(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q + k) % 3 != 1


def _sees(kind: str, blocks: bool, joins: bool, cuts: bool, b: int, q: int, k: int) -> bool:
    """Return whether a query sees a key: never one of another sequence, even if a mask joins them."""
    numbers, own = _sequences(PLACES[b]), PLACES[b]
    seen = sees_of(kind)(b, own[q], own[k]) or (joins and bool(_joins(b, 0, own[q], own[k])))
    seen = seen and (not cuts or bool(_cuts(b, 0, own[q], own[k])))
    seen = seen or (blocks and BLOCKS[b][q] >= 0 and BLOCKS[b][q] == BLOCKS[b][k])
    return seen and numbers[q] == numbers[k]


def _options(blocks: bool, joins: bool, cuts: bool) -> dict[str, Any]:
    return {
        **({"block_sequence_ids": torch.tensor(BLOCKS)} if blocks else {}),
        **({"or_mask_function": _joins} if joins else {}),
        **({"and_mask_function": _cuts} if cuts else {}),
    }


def _packed(maker: Any) -> list[str]:
    """Return where a token sees one of another sequence, or not what it sees of its own, by each kind of mask."""
    wrong = []
    for (form, kind), (blocks, joins, cuts) in product(product(FORMS, KINDS), HOW):
        options = {"position_ids": torch.tensor(PLACES), **_options(blocks, joins, cuts)}
        found = made(kind, config_of([kind], form), 9, **options)
        what = f"{form}, {kind}, {blocks=}, {joins=}, {cuts=}"
        sees = partial(_sees, kind, blocks, joins, cuts)
        wrong += differences(what, shown(found, 2, 9, 9, causal=True), sees)
    return wrong[:4]


def _of_layers(maker: Any) -> list[str]:
    """Return where the masks of a model with layers of two kinds are not those of packed rows and their blocks."""
    wrong = []
    for form, (blocks, joins, cuts) in product(FORMS, HOW):
        config = config_of(["causal", "sliding"], form)
        found = maker(
            config=config, inputs_embeds=torch.zeros(2, 9, 2), attention_mask=None, cache=None,
            position_ids=torch.tensor(PLACES), **_options(blocks, joins, cuts),
        )  # fmt: skip
        for kind, name in (("causal", "full_attention"), ("sliding", "sliding_attention")):
            what = f"{form}, {name}, {blocks=}, {joins=}, {cuts=}"
            sees = partial(_sees, kind, blocks, joins, cuts)
            wrong += differences(what, shown(found[name], 2, 9, 9, causal=True), sees)
    return wrong[:4]


def _of_pictures(blocks: bool, maker: Any) -> list[str]:
    """Return where layers of a model with pictures let a token see one of another sequence, or not its picture.

    Args:
        blocks: whether layers without a window let pictures see both ways.
        maker: makes the masks of both kinds of layer.
    """
    wrong = []
    for form in FORMS:
        config = config_of(["causal", "sliding"], form)
        found = maker(config, torch.zeros(2, 9, 2), None, None, torch.tensor(PLACES), torch.tensor(BLOCKS))
        for name in ("full_attention", "sliding_attention"):

            def sees(b: int, q: int, k: int, name: str = name) -> bool:
                whole = name == "full_attention"
                near = whole or q - k < WINDOW
                return near and _sees("causal", blocks or not whole, False, False, b, q, k)

            wrong += differences(f"{form}, {name}", shown(found[name], 2, 9, 9, causal=True), sees)
    return wrong[:4]


# Sources: the documentation of the makers: sequences of a packed row are independent, blocks see both ways.
PACKED_ROWS: Sequence[Row] = (
    Row("batches", CAUSAL, "packed rows with blocks and masks of the caller", _packed, [], since="5.24"),
    Row(
        "batches",
        "transformers.masking_utils:create_masks_for_generate",
        "packed rows of a model with layers of two kinds",
        _of_layers,
        [],
        since="5.24",
    ),
    *(
        Row(
            "batches",
            f"transformers.models.{kind}.modeling_{kind}:create_masks_for_vision_model",
            "packed rows with pictures",
            partial(_of_pictures, kind == "gemma3"),
            [],
            since="5.24",
            known=KnownFailure(
                "layers with a window read the pictures at the places of the first sequence", finding=PICTURES
            ),
        )
        for kind in ("gemma3", "gemma4", "gemma4_unified")
    ),
)
