"""Worked examples of caches of Transformers: what layers keep, give, cut and say of themselves, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row

PLACE = "transformers.cache_utils"
Step = tuple[str, Any]


def class_of(name: str) -> Any:
    return find_name("transformers", [f"{PLACE}:{name}"])


def states_of(first: int, number: int, rows: int = 1) -> Tensor:
    """Return [rows, 1, number, 1] keys that count up; those of the second row are 100 more."""
    return (torch.arange(first, first + number) + 100.0 * torch.arange(rows)[:, None])[:, None, :, None]


def numbers_of(states: Tensor | None) -> list[list[int]]:
    return [] if states is None else [[int(one) for one in row] for row in states[:, 0, :, 0].tolist()]


def _story(steps: Sequence[Step], make: Callable[[Any], Any], made: Any) -> list[Any]:
    """Return what each step gives: keys, lengths, sizes of masks, errors."""
    layer, count, rows, found = make(made), 1, 1, list[Any]()
    for name, value in steps:
        if name == "add":
            keys, values = layer.update(states_of(count, value, rows), -states_of(count, value, rows))
            if not torch.equal(keys, -values):
                raise AssertionError("values are those of other keys")
            count += value
            found.append(numbers_of(keys) if rows > 1 else numbers_of(keys)[0])
        elif name == "rows":
            rows = value
        elif name == "length":
            found.append(int(layer.get_seq_length()))
        elif name == "sizes":
            found.append([int(one) for one in layer.get_mask_sizes(value)])
        elif name == "kept":
            found.append(numbers_of(layer.keys)[0])
        elif name in ("reset", "activate_past_recording"):
            getattr(layer, name)()
        elif name in ("reorder_cache", "batch_select_indices"):
            getattr(layer, name)(torch.tensor(value))
        else:
            try:
                getattr(layer, name)(value)
            except (RuntimeError, ValueError) as error:
                found.append(type(error).__name__)
    return found


SIZES: Sequence[Step] = (("length", None), ("sizes", 1), ("sizes", 3))
DYNAMIC: Sequence[Step] = (
    *SIZES, ("add", 2), *SIZES, ("add", 3), ("kept", None), *SIZES, ("crop", -2), ("kept", None), ("add", 1),
)  # fmt: skip
DYNAMIC_CUT: Sequence[Step] = (
    ("add", 3), ("crop", 0), ("length", None), ("crop", 1), ("reset", None), *SIZES, ("crop", -1), ("add", 1),
)  # fmt: skip
SLIDING: Sequence[Step] = (
    *SIZES, ("add", 2), *SIZES, ("add", 3), ("kept", None), *SIZES, ("add", 1), ("add", 3), ("kept", None),
    ("length", None),
)  # fmt: skip
SLIDING_CUT: Sequence[Step] = (
    ("add", 9), ("crop", -1), ("reset", None), *SIZES, ("add", 3), ("crop", -2), ("length", None), ("kept", None),
    ("add", 1),
)  # fmt: skip
RECORDED: Sequence[Step] = (
    ("activate_past_recording", None), ("add", 3), ("add", 3), ("kept", None), *SIZES, ("crop", 0), ("kept", None),
    ("add", 2), ("crop", -1), ("kept", None), *SIZES, ("add", 2), ("length", None), ("crop", 2),
)  # fmt: skip
STATIC: Sequence[Step] = (
    *SIZES, ("add", 2), *SIZES, ("add", 1), ("kept", None), ("reset", None), ("length", None), ("add", 1), *SIZES,
)  # fmt: skip
STATIC_CUT: Sequence[Step] = (
    ("add", 3), ("crop", -2), ("length", None), ("add", 2), ("kept", None), ("length", None), ("crop", 1),
)  # fmt: skip
STATIC_SLIDING: Sequence[Step] = (
    *SIZES, ("add", 2), *SIZES, ("add", 2), ("kept", None), *SIZES, ("add", 1), ("kept", None), *SIZES, ("add", 3),
    ("kept", None), *SIZES, ("reset", None), *SIZES, ("add", 6), ("kept", None), *SIZES,
)  # fmt: skip
BATCH: Sequence[Step] = (
    ("batch_repeat_interleave", 2), ("reorder_cache", [0]), ("rows", 2), ("add", 1), ("reorder_cache", [1, 0]),
    ("add", 1),
    ("batch_repeat_interleave", 2), ("rows", 4), ("add", 1), ("batch_select_indices", [2, 0]), ("rows", 2), ("add", 1),
)  # fmt: skip


def _options(made: Any) -> list[Any]:
    """Return the largest lengths of layers, and what they are."""
    static, sliding = class_of("StaticLayer"), class_of("StaticSlidingWindowLayer")
    layers = [
        made(), class_of("DynamicSlidingWindowLayer")(sliding_window=4), static(max_cache_len=6),
        sliding(max_cache_len=6, sliding_window=4), sliding(max_cache_len=3, sliding_window=4),
    ]  # fmt: skip
    return [
        [
            layer.get_max_length(),
            bool(layer.is_sliding),
            bool(layer.is_compileable),
            bool(layer.is_croppable),
            layer.is_initialized,
        ]
        for layer in layers
    ]


def config_of(**options: Any) -> Any:
    made: Any = find_name("transformers", ["transformers:Qwen2Config"])
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 3}
    return made(vocab_size=9, intermediate_size=8, **{**sizes, **options})


MIXED = {"layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 4,
         "use_sliding_window": True}  # fmt: skip


def _of_config(made: Any) -> list[Any]:
    """Return the layers of caches that are made of configurations."""
    plain, mixed = made(config=config_of()), made(config=config_of(**MIXED))
    static = class_of("StaticCache")(config=config_of(**MIXED), max_cache_len=7)
    named = [[type(layer).__name__ for layer in cache.layers] for cache in (plain, mixed, static)]
    return [
        named,
        [layer.sliding_window for layer in mixed.layers if hasattr(layer, "sliding_window")],
        [layer.max_cache_len for layer in static.layers],
        [plain.is_sliding, mixed.is_sliding, static.is_sliding],
        [len(made()), len(plain), len(mixed), len(static)],
    ]


def _whole(made: Any) -> list[Any]:
    """Return lengths and sizes of a whole cache: by layer, of one that is not there yet, and the largest."""
    cache = made(config=config_of(**MIXED))
    for layer in range(3):
        cache.update(states_of(0, 6), states_of(0, 6), layer)
    lazy = made()
    lazy.update(states_of(0, 2), states_of(0, 2), 0)
    lazy.update(states_of(0, 2), states_of(0, 2), 2)
    return [
        [cache.get_seq_length(layer) for layer in range(4)],
        [list(cache.get_mask_sizes(2, layer)) for layer in range(4)],
        [cache.get_max_length(layer) for layer in (None, 0, 1, 9)],
        [len(lazy), [lazy.get_seq_length(layer) for layer in range(4)], list(lazy.get_mask_sizes(2, 1))],
        [
            cache.is_initialized,
            made(config=config_of()).is_initialized,
            cache.is_compileable,
            made().is_compileable,
        ],
    ]


def _again(made: Any) -> list[Any]:
    """Return caches of what another one gives when it is iterated, a window among them."""
    cache = made(config=config_of(**MIXED))
    for layer in range(3):
        cache.update(states_of(0, 6), -states_of(0, 6), layer)
    again = made([tuple(one) for one in cache])
    given = made([tuple(one) for one in cache], config=config_of(**MIXED))
    return [
        [[type(layer).__name__ for layer in one.layers] for one in (again, given)],
        [[numbers_of(layer.keys)[0] for layer in one.layers] for one in (again, given)],
        [numbers_of(-layer.values)[0] for layer in again.layers],
        again.layers[1].sliding_window,
    ]


def row_of(name: str, what: str, call: Callable[[Any], Any], right: Any, since: str = "5.16") -> Row:
    return Row("states", f"{PLACE}:{name}", what, call, right, since=since)


FULL, SLIDES = "full_attention", "sliding_attention"
MANY = ("DynamicLayer", "DynamicSlidingWindowLayer", "DynamicLayer")
# Sources: the documentation of each class; a window of 4 keeps the 3 keys that a further id sees besides itself.
CACHE_ROWS: Sequence[Row] = (
    row_of(
        "DynamicLayer", "keys step by step", partial(_story, DYNAMIC, lambda made: made()),
        [0, [1, 0], [3, 0], [1, 2], 2, [3, 0], [5, 0], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 5, [6, 0], [8, 0], [1, 2, 3],
         [1, 2, 3, 6]], since="5.8",
    ),
    row_of(
        "DynamicLayer", "keys that are cut and begin again", partial(_story, DYNAMIC_CUT, lambda made: made()),
        [[1, 2, 3], 3, "ValueError", 0, [1, 0], [3, 0], [4]], since="5.23",
    ),
    row_of(
        "DynamicSlidingWindowLayer", "keys step by step", partial(_story, SLIDING, lambda made: made(sliding_window=4)),
        [0, [1, 0], [3, 0], [1, 2], 2, [3, 0], [5, 0], [1, 2, 3, 4, 5], [3, 4, 5], 5, [4, 2], [6, 2], [3, 4, 5, 6],
         [4, 5, 6, 7, 8, 9], [7, 8, 9], 9], since="5.8",
    ),
    row_of(
        "DynamicSlidingWindowLayer", "keys that are cut and begin again",
        partial(_story, SLIDING_CUT, lambda made: made(sliding_window=4)),
        [[1, 2, 3, 4, 5, 6, 7, 8, 9], "RuntimeError", 0, [1, 0], [3, 0], [10, 11, 12], 1, [10], [10, 13]], since="5.19",
    ),
    row_of(
        "DynamicSlidingWindowLayer", "keys that are recorded", partial(_story, RECORDED,
        lambda made: made(sliding_window=4)),
        [[1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], 6, [4, 3], [6, 3], [4, 5, 6], [4, 5, 6, 7, 8], [5, 6, 7], 7,
         [4, 4], [6, 4], [5, 6, 7, 9, 10], 9, "RuntimeError"],
    ),
    row_of(
        "DynamicSlidingWindowLayer", "keys that are recorded and not cut",
        partial(
            _story, (("activate_past_recording", None), ("add", 5), ("add", 1), ("add", 2), ("kept", None)),
            lambda made: made(sliding_window=4),
        ),
        [[1, 2, 3, 4, 5], [3, 4, 5, 6], [4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8]], since="5.19",
    ),
    row_of(
        "StaticLayer", "keys step by step", partial(_story, STATIC, lambda made: made(max_cache_len=5)),
        [0, [5, 0], [5, 0], [1, 2, 0, 0, 0], 2, [5, 0], [5, 0], [1, 2, 3, 0, 0], [1, 2, 3, 0, 0], 0, [4, 0, 0, 0, 0],
         1, [5, 0], [5, 0]], since="5.8",
    ),
    row_of(
        "StaticLayer", "keys that are cut", partial(_story, STATIC_CUT, lambda made: made(max_cache_len=5)),
        [[1, 2, 3, 0, 0], 1, [1, 4, 5, 0, 0], [1, 4, 5, 0, 0], 3, "RuntimeError"], since="5.23",
    ),
    row_of(
        "StaticSlidingWindowLayer", "keys step by step",
        partial(_story, STATIC_SLIDING, lambda made: made(max_cache_len=9, sliding_window=4)),
        [0, [4, 0], [4, 0], [1, 2, 0, 0], 2, [4, 0], [5, 0], [1, 2, 3, 4], [1, 2, 3, 4], 4, [4, 1], [6, 1], [2, 3, 4,
         5],
         [2, 3, 4, 5], 5, [4, 2], [6, 2], [3, 4, 5, 6, 7, 8], [5, 6, 7, 8], 8, [4, 5], [6, 5], 0, [4, 0], [4, 0],
         [9, 10, 11, 12, 13, 14], [11, 12, 13, 14], 6, [4, 3], [6, 3]], since="5.8",
    ),
    row_of(
        "DynamicLayer", "rows that change", partial(_story, BATCH, lambda made: made()),
        [[[1], [101]], [[101, 2], [1, 102]], [[101, 2, 3], [101, 2, 103], [1, 102, 203], [1, 102, 303]],
         [[1, 102, 203, 4], [101, 2, 3, 104]]], since="4.56",
    ),
    row_of(
        "DynamicSlidingWindowLayer", "rows that change", partial(_story, BATCH, lambda made: made(sliding_window=3)),
        [[[1], [101]], [[101, 2], [1, 102]], [[101, 2, 3], [101, 2, 103], [1, 102, 203], [1, 102, 303]],
         [[102, 203, 4], [2, 3, 104]]], since="4.56",
    ),
    row_of(
        "StaticLayer", "rows that change",
        partial(_story, (("rows", 2), ("add", 1), ("reorder_cache", [1, 0]), ("add", 1)),
         lambda made: made(max_cache_len=3)),
        [[[1, 0, 0], [101, 0, 0]], [[101, 2, 0], [1, 102, 0]]], since="5.8",
    ),
    row_of(
        "DynamicLayer", "what layers say of themselves", _options,
        [[-1, False, False, True, False], [4, True, False, True, False], [6, False, True, True, False],
         [4, True, True, False, False], [3, True, True, True, False]], since="5.24",
    ),
    row_of(
        "DynamicCache", "layers of configurations", _of_config,
        [[["DynamicLayer"] * 3, list(MANY), ["StaticLayer", "StaticSlidingWindowLayer", "StaticLayer"]], [4], [7, 4, 7],
         [[False] * 3, [False, True, False], [False, True, False]], [0, 3, 3, 3]], since="4.57",
    ),
    row_of(
        "DynamicCache", "lengths of a whole cache", _whole,
        [[6, 6, 6, 0], [[8, 0], [5, 3], [8, 0], [2, 0]], [4, -1, 4, -1], [3, [2, 0, 2, 0], [2, 0]],
         [True, False, False, False]],
    ),
    row_of(
        "DynamicCache", "a cache of what one gives", _again,
        [[list(MANY)] * 2, [[[0, 1, 2, 3, 4, 5], [3, 4, 5], [0, 1, 2, 3, 4, 5]]] * 2,
         [[0, 1, 2, 3, 4, 5], [3, 4, 5], [0, 1, 2, 3, 4, 5]], 4],
    ),
)  # fmt: skip
