"""Worked examples of Transformers' masks in each form: types, kernels, layers with a state, generation, rules."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.attending import MAKERS
from seatrial.targets.transformers.worked.masks import (
    CAUSAL,
    DIM,
    FORMS,
    LATER,
    LEFT,
    MODULE,
    RIGHT,
    SEES,
    WINDOW,
    cache_of,
    config_of,
    differences,
    made,
    sees_of,
    shown,
)


def _kinds_of_numbers(maker: Any) -> list[Any]:
    """Return the type and the values of masks that are added, by the type of the embeddings."""
    found = []
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        for name in MAKERS:
            config = config_of([name])
            mask = made(
                name, config, 3, embeds=torch.zeros(2, 3, DIM, dtype=kind), attention_mask=RIGHT[:, -3:]
            )
            values = sorted({float(one) for one in mask.flatten()})
            found.append(mask.dtype is kind and values == [torch.finfo(kind).min, 0.0])
    return found


def _as_given(maker: Any) -> list[Any]:
    """Return whether a mask of four dimensions is passed on as it is, and an unknown attention is given none."""
    found = []
    for name in MAKERS:
        mask = torch.rand(2, 1, 3, 3)
        found.append(made(name, config_of([name]), 3, attention_mask=mask) is mask)
        found.append(made(name, config_of([name], "paged|sdpa"), 3, attention_mask=LEFT[:, -3:]) is None)
    return found


def _of_encoders(maker: Any) -> list[str]:
    """Return where a decoder does not see the keys of another row: their number, padding and type."""
    wrong = []
    for form in FORMS:
        for name, mask in (("none", None), ("left", LEFT), ("right", RIGHT)):
            states = torch.zeros(2, 9, DIM, dtype=torch.float16)
            found = made(
                "bidirectional",
                config_of(attention=form),
                3,
                encoder_hidden_states=states,
                attention_mask=mask,
            )
            what = f"{form}, padding {name}"
            if form == "eager" and found is not None and found.dtype is not torch.float16:
                wrong.append(f"{what}: {found.dtype}")
            seen = shown(found, 2, 3, 9, causal=False)
            if seen.shape != (2, 3, 9):
                wrong.append(f"{what}: {tuple(seen.shape)}")
            elif not torch.equal(
                seen, (torch.ones(2, 9) if mask is None else mask)[:, None].expand(-1, 3, -1) > 0
            ):
                wrong.append(f"{what}: {seen.tolist()}")
    return wrong[:4]


def _both_ways(maker: Any) -> list[str]:
    """Return where decoders that are configured to see both ways do not, or windows are left out."""
    wrong = []
    for form in FORMS:
        for kind in ("causal", "sliding"):
            for name, mask in (("none", None), ("left", LEFT)):
                config = config_of([kind], form, is_causal=False)
                if form == "sdpa" and name == "none" and kind == "causal":
                    continue  # the module gives that to the kernel
                due = "bidirectional" if kind == "causal" else "bidirectional sliding"
                for how in ("", "or_mask_function", "and_mask_function"):
                    own: dict[str, Any] = {how: lambda b, h, q, k: (q + k) % 3 == 0} if how else {}
                    rule = sees_of(due)

                    def sees(b: int, q: int, k: int, how: str = how, rule: SEES = rule) -> bool:
                        more = (q + k) % 3 == 0
                        return (rule(b, q, k) or more) if "or" in how else rule(b, q, k) and (more or not how)

                    found = made(kind, config, 9, attention_mask=mask, **own)
                    wrong += differences(
                        f"{form}, {kind}, padding {name}, {how}",
                        shown(found, 2, 9, 9, False),
                        sees,
                        0,
                        0,
                        mask,
                    )
    return wrong[:4]


def _left_out(maker: Any) -> list[list[bool]]:
    """Return whether there is a mask: where the kernel needs none, where it must be made, and with padding."""
    found = []
    for kind in MAKERS:
        skip = "allow_is_bidirectional_skip" if "bidirectional" in kind else "allow_is_causal_skip"
        config, short = config_of([kind], "sdpa"), 3
        found.append(
            [
                made(kind, config, short) is not None,
                made(kind, config, short, **{skip: False}) is not None,
                made(kind, config, short, attention_mask=RIGHT[:, -3:]) is not None,
                made(kind, config, short, attention_mask=torch.ones(2, 3)) is not None,
                made(kind, config, 9) is not None,
            ]
        )
    return found


def _recurrent(maker: Any) -> list[Any]:
    """Return masks of layers with a state: of a whole row, of its end, of one token, of none, without padding."""
    make = partial(maker, config_of())

    def listed(queries: int, mask: Any) -> Any:
        found = make(torch.zeros(2, queries, DIM), mask)
        return None if found is None else found.int().tolist()

    return [
        listed(9, LEFT),
        listed(3, RIGHT),
        listed(1, LEFT),
        listed(9, None),
        listed(9, torch.ones(2, 9)),
        listed(9, LEFT[:, None, None]),
    ]


def _generated(maker: Any) -> list[Any]:
    """Return which masks generation makes of layers of two kinds, of one, and of configurations without kinds."""
    found: list[Any] = []
    takes = inspect.signature(maker).parameters
    cache = "cache" if "cache" in takes else "past_key_values"
    embeds = "inputs_embeds" if "inputs_embeds" in takes else "input_embeds"
    more = {"cache_position": torch.arange(9)} if "cache_position" in takes else {}
    without: Any = find_name("transformers", ["transformers:LlamaConfig"])
    for kinds, options in (
        (("sliding", "causal"), {}), (("causal", "causal"), {}), ((), {"sliding_window": WINDOW}),
        ((), {"attention_chunk_size": WINDOW}), ((), {}),
    ):  # fmt: skip
        config = config_of(kinds) if kinds else without()
        config._attn_implementation = "eager"
        for name, value in options.items():
            setattr(config, name, value)
        masks = maker(
            config=config, attention_mask=LEFT, **{cache: None, embeds: torch.zeros(2, 9, DIM)}, **more
        )
        named = masks if isinstance(masks, dict) else {"": masks}
        found.append({name: int((mask == 0)[0].sum()) for name, mask in sorted(named.items())})
    return found


def _numbered(found: Any) -> Any:
    return None if found is None else found.tolist()


def _flash(function: Any) -> list[Any]:
    """Return masks of kernels that cut out padding: all real, padded, of a window, and shorter than a static cache."""
    takes = inspect.signature(function).parameters
    more: dict[str, Any] = {"q_length": 9} if "q_length" in takes else {"cache_position": torch.arange(9)}
    call = partial(function, batch_size=2, **more)
    return [
        _numbered(call(kv_length=9, attention_mask=torch.ones(2, 9, dtype=torch.bool))),
        _numbered(call(kv_length=9, attention_mask=LEFT.bool())),
        _numbered(call(kv_length=4, kv_offset=5, attention_mask=RIGHT.bool())),
        _numbered(call(kv_length=4, kv_offset=5, attention_mask=LEFT.bool())),
        _numbered(call(kv_length=12, attention_mask=torch.ones(2, 3, dtype=torch.bool))),
        call(kv_length=9, attention_mask=None),
    ]


def _flex(maker: Any) -> list[str]:
    """Return where the rule that flex attention is given is not that of the mask, with offsets of caches."""
    wrong, given = [], []
    module = "transformers.masking_utils.create_block_mask"

    def noted(mask_mod: Any, B: int, H: Any, Q_LEN: int, KV_LEN: int, **more: Any) -> Any:
        given.append((mask_mod, B, Q_LEN, KV_LEN))
        return "made"

    with patch(module, noted):
        for kind in ("causal", "sliding", "chunked", "bidirectional", "bidirectional sliding"):
            for past, queries in ((0, 9), (6, 3)):
                for name, mask in (("none", None), ("left", LEFT), ("ones", torch.ones(2, 9))):
                    config = config_of([kind], "flex_attention")
                    if past and kind != "causal" and kind != "sliding":
                        continue
                    cache = cache_of(config, past) if past else None
                    made(kind, config, queries, past, cache=cache, attention_mask=mask)
                    rule, rows, number, keys = given.pop()
                    places = torch.cartesian_prod(*[torch.arange(size) for size in (rows, number, keys)])
                    seen = torch.stack([torch.as_tensor(rule(b, 0, q, k)) for b, q, k in places])
                    seen = seen.reshape(rows, number, keys)
                    right = sees_of(kind, (0, 3) if name == "left" else (0, 0))
                    what = f"{kind}, {past} + {queries}, padding {name}"
                    wrong += differences(what, seen, right, past, past + queries - keys, mask)
    return wrong[:4]


def _combined(functions: Any) -> list[Any]:
    """Return what unions and intersections of three rules give, and the refusal of what is no rule."""
    masking: Any = importlib.import_module(MODULE)
    rules: list[Any] = [lambda b, h, q, k, by=by: (q + k + b) % by == 0 for by in (2, 3, 5)]
    b, q, k = torch.arange(2)[:, None, None], torch.arange(6)[:, None], torch.arange(6)
    parts = torch.stack([rule(b, 0, q, k) for rule in rules])
    found: list[Any] = [
        torch.equal(masking.and_masks(*rules)(b, 0, q, k), parts.all(0)),
        torch.equal(masking.or_masks(*rules)(b, 0, q, k), parts.any(0)),
    ]
    for combine in (masking.and_masks, masking.or_masks):
        try:
            combine(rules[0], 3)
        except RuntimeError as error:
            found.append("callable" in str(error))
    return found


def _sequences(function: Any) -> list[Any]:
    """Return the numbers of rows laid end to end, by their places; none where each is one row."""
    places = ([[0, 1, 2, 0, 1, 0]], [[4, 5, 6, 7, 2, 3], [0, 1, 2, 3, 4, 5]], [[0, 1, 1, 2, 5, 6]])
    found = [_numbered(function(torch.tensor(one))) for one in places]
    alone = [function(torch.tensor(one)) for one in ([[0, 1, 2]], [[3, 4, 5], [0, 1, 2]])]
    return [*found, *(None if one is None or not one.any() else one.tolist() for one in alone)]


def _missing(maker: Any) -> list[str]:
    """Return what is missing in configurations without a window or a chunk."""
    found = []
    for kind in ("sliding", "chunked", "bidirectional sliding"):
        config = config_of(["causal"])
        config.sliding_window = None
        try:
            made(kind, config, 9)
        except ValueError as error:
            found.append(
                next((word for word in ("sliding_window", "attention_chunk_size") if word in str(error)), "")
            )
    return found


ROWS_OF_LEFT = LEFT.tolist()


FORM_ROWS: Sequence[Row] = (
    Row("batches", CAUSAL, "types of masks", _kinds_of_numbers, [True] * 15, since="4.56"),
    Row("batches", CAUSAL, "masks that are given", _as_given, [True] * 10, since="4.56"),
    Row("batches", CAUSAL, "keys of an encoder", _of_encoders, [], since="4.56"),
    Row("batches", CAUSAL, "decoders that see both ways", _both_ways, [], since="5.8"),
    Row(
        "batches",
        CAUSAL,
        "masks that are left out",
        _left_out,
        [
            [False, True, True, False, False],
            [False, True, True, False, True],
            [False, True, True, False, True],
            [False, True, True, False, False],
            [False, True, True, False, True],
        ],
        since="4.56",
    ),
    Row(
        "batches",
        f"{MODULE}:create_recurrent_attention_mask",
        "padding of layers with a state",
        _recurrent,
        [ROWS_OF_LEFT, [[1] * 3, [0] * 3], None, None, None, None],
    ),
    Row(
        "batches",
        f"{MODULE}:create_masks_for_generate",
        "masks of generation",
        _generated,
        [
            {"full_attention": 45, "sliding_attention": 30},
            {"full_attention": 45},
            {"": 30},
            {"": 21},
            {"": 45},
        ],
        since="4.57",
        known=KnownFailure(
            "chunked masks raise", finding=LATER, releases=between("transformers", "5.9", "5.17")
        ),
    ),
    Row(
        "batches",
        f"{MODULE}:flash_attention_mask",
        "padding of each width",
        _flash,
        [
            None,
            LEFT.bool().tolist(),
            RIGHT.bool()[:, 5:].tolist(),
            None,
            [[True] * 3] * 2,
            None,
        ],
        since="5.16",
    ),
    Row("batches", CAUSAL, "rules of flex attention", _flex, [], since="4.56"),
    Row("calls", f"{MODULE}:and_masks", "rules that are combined", _combined, [True] * 4, since="4.57"),
    Row(
        "batches",
        f"{MODULE}:find_packed_sequence_indices",
        "rows by their places",
        _sequences,
        [[[0, 0, 0, 1, 1, 2]], [[0, 0, 0, 0, 1, 1], [0] * 6], [[0, 0, 1, 1, 2, 2]], None, None],
        since="4.57",
    ),
    Row(
        "batches",
        CAUSAL,
        "configurations without a window",
        _missing,
        ["sliding_window", "attention_chunk_size", "sliding_window"],
        since="4.56",
    ),
)
