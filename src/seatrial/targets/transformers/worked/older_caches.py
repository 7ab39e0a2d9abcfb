"""Worked examples of the caches of releases before 5, which take places of ids: layers, legacy tuples, two caches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.worked import Refused
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.caches import (
    MIXED,
    PLACE,
    SIZES,
    Step,
    class_of,
    config_of,
    numbers_of,
    states_of,
)


def _of_places(made: Any) -> None:
    """Check that a layer takes places of ids.

    Raises:
        NotServed: it takes their number, as of release 5.
    """
    method = getattr(made, "get_mask_sizes", None)
    if method is None or "cache_position" not in inspect.signature(method).parameters:
        raise NotServed("masks of this release are of numbers of ids")


def _story(steps: Sequence[Step], make: Callable[[Any], Any], made: Any) -> list[Any]:
    """Return what each step gives: keys, lengths, sizes of masks, errors."""
    _of_places(made)
    layer, count, place, rows, found = make(made), 1, 0, 1, list[Any]()
    for name, value in steps:
        if name == "add":
            more = {"cache_position": torch.arange(place, place + value)}
            keys, values = layer.update(states_of(count, value, rows), -states_of(count, value, rows), more)
            if not torch.equal(keys, -values):
                raise AssertionError("values are those of other keys")
            count, place = count + value, place + value
            found.append(numbers_of(keys) if rows > 1 else numbers_of(keys)[0])
        elif name == "rows":
            rows = value
        elif name == "place":
            place = value
        elif name == "length":
            found.append(int(layer.get_seq_length()))
        elif name == "sizes":
            found.append([int(one) for one in layer.get_mask_sizes(torch.arange(value))])
        elif name == "kept":
            found.append(numbers_of(layer.keys)[0])
        elif name == "largest":
            found.append(layer.get_max_cache_shape())
        elif name == "reset":
            layer.reset()
        elif name == "reorder_cache":
            layer.reorder_cache(torch.tensor(value))
        else:
            try:
                getattr(layer, name)(value)
            except (RuntimeError, ValueError) as error:
                found.append(type(error).__name__)
    return found


DYNAMIC: Sequence[Step] = (
    *SIZES, ("crop", 1), ("add", 2), *SIZES, ("add", 3), ("kept", None), *SIZES, ("crop", -2), ("kept", None),
    ("crop", 9), ("add", 1), ("crop", 2), ("kept", None), ("largest", None),
)  # fmt: skip
SLIDING: Sequence[Step] = (
    *SIZES, ("add", 2), *SIZES, ("crop", -1), ("kept", None), ("length", None), ("add", 1), ("crop", 9), ("add", 3),
    ("kept", None), *SIZES, ("crop", -1), ("add", 1), ("add", 4), ("kept", None), *SIZES, ("largest", None),
)  # fmt: skip
STATIC: Sequence[Step] = (
    *SIZES, ("add", 2), *SIZES, ("add", 1), ("kept", None), ("length", None), ("reset", None), ("length", None),
    ("place", 0), ("add", 1), ("place", 4), ("add", 1), ("length", None), ("largest", None),
)  # fmt: skip
WINDOW: Sequence[Step] = (
    *SIZES, ("add", 2), *SIZES, ("add", 2), ("kept", None), *SIZES, ("add", 1), ("kept", None), *SIZES, ("add", 3),
    ("kept", None), *SIZES, ("reset", None), *SIZES, ("place", 0), ("add", 3), ("add", 2), ("kept", None), *SIZES,
    ("reset", None), ("place", 0), ("add", 6), ("kept", None), *SIZES, ("largest", None),
)  # fmt: skip
ROWS: Sequence[Step] = (
    ("rows", 2), ("add", 1), ("reorder_cache", [1, 0]), ("add", 1), ("reorder_cache", [0, 0]), ("add", 1),
)  # fmt: skip


def _quantized(made: Any) -> list[Any]:
    """Return what a quantised layer keeps whole, has quantised and on which axes, after each addition."""
    _of_places(class_of("DynamicCache"))
    seen: list[Any] = []

    class Halved(made):  # type: ignore[misc]
        def _quantize(self, tensor: Tensor, axis: int) -> Tensor:
            seen.append([axis, tensor.shape[-2], tensor.is_contiguous()])
            return tensor * 10

        def _dequantize(self, tensor: Tensor) -> Tensor:
            return tensor / 10

    layer, found = Halved(axis_key=0, axis_value=1, residual_length=3), []
    for first, number in ((1, 2), (3, 1), (4, 1), (5, 1), (6, 1)):
        keys, values = layer.update(states_of(first, number), -states_of(first, number))
        kept = [] if layer.keys is None or layer.keys.dim() < 4 else numbers_of(layer.keys)[0]
        whole = numbers_of((layer._quantized_keys / 10).round())[0]
        found.append(
            [
                numbers_of(keys.round())[0],
                kept,
                whole,
                int(layer.get_seq_length()),
                torch.equal(keys, -values),
            ]
        )
    return [found, seen]


def _whole(made: Any) -> list[Any]:
    """Return layers, lengths and sizes of whole caches: of a configuration, a lazy one, one that is filled."""
    _of_places(made)
    cache, lazy = made(config=config_of(**MIXED)), made()
    for layer in range(3):
        cache.update(states_of(0, 6), states_of(0, 6), layer)
    lazy.update(states_of(0, 2), states_of(0, 2), 2)
    given = [
        (states_of(1, 5), -states_of(1, 5)),
        (states_of(7, 5), -states_of(7, 5)),
        (states_of(1, 5), states_of(1, 5)),
    ]
    filled, slides = made(given), made(given, config=config_of(**MIXED))
    shared = config_of(**MIXED)
    shared.num_kv_shared_layers = 1
    windows, chunks = config_of(), config_of()
    windows.layer_types = chunks.layer_types = None
    windows.sliding_window, chunks.attention_chunk_size = 4, 5
    places = torch.arange(2)
    return [
        [[cache.get_seq_length(layer), *cache.get_mask_sizes(places, layer), cache.get_max_cache_shape(layer)]
         for layer in range(4)],
        [len(lazy), [int(lazy.get_seq_length(layer)) for layer in range(4)], len(made())],
        [[type(layer).__name__ for layer in one.layers] for one in (filled, slides, made(config=shared))],
        [[numbers_of(layer.keys)[0] for layer in one.layers] for one in (filled, slides)],
        [[getattr(layer, "sliding_window", None) for layer in made(config=one).layers] for one in (windows, chunks)],
        [cache.is_sliding, cache.is_compileable, cache.is_initialized, lazy.is_sliding, made().is_compileable],
    ]  # fmt: skip


def _legacy(made: Any) -> list[Any]:
    """Return a cache as tuples, and caches of tuples, of an index and of an iteration."""
    _of_places(class_of("DynamicCache"))
    cache = made()
    for layer in range(2):
        cache.update(states_of(10 * layer + 1, 2), -states_of(10 * layer + 1, 2), layer)
    again = made.from_legacy_cache(cache.to_legacy_cache())
    return [
        [[numbers_of(one)[0] for one in pair] for pair in cache.to_legacy_cache()],
        [[numbers_of(layer.keys)[0], numbers_of(layer.values)[0]] for layer in again.layers],
        [numbers_of(one)[0] for one in cache[1]], [[numbers_of(one)[0] for one in pair] for pair in cache],
        len(made.from_legacy_cache(None)), type(again).__name__,
    ]  # fmt: skip


def _beyond(made: Any) -> bool:
    _of_places(made)
    try:
        made()[0]
    except KeyError:
        return True
    return False


def _changed(made: Any) -> list[Any]:
    """Return the keys of all layers after each change of the whole."""
    _of_places(class_of("DynamicCache"))
    cache = made()
    found: list[Any] = []
    for layer in range(2):
        cache.update(states_of(10 * layer + 1, 3, 2), states_of(10 * layer + 1, 3, 2), layer)
    for name, value in (
        ("reorder_cache", torch.tensor([1, 0])), ("crop", 2), ("crop", -1), ("batch_repeat_interleave", 2),
        ("batch_select_indices", torch.tensor([3, 0])),
    ):  # fmt: skip
        getattr(cache, name)(value)
        found.append([numbers_of(layer.keys) for layer in cache.layers])
        found.append([numbers_of(layer.values)[0] == numbers_of(layer.keys)[0] for layer in cache.layers])
    cache.reset()
    return [*found, [numbers_of(layer.keys) for layer in cache.layers]]


def _static(made: Any) -> list[Any]:
    """Return the layers of caches of one size, those that are made early, and what they say of themselves."""
    _of_places(made)
    cache = made(config=config_of(**MIXED), max_cache_len=7)
    found: list[Any] = []
    shared = config_of(**MIXED)
    shared.num_kv_shared_layers = 1
    found.append([[type(layer).__name__, layer.get_max_cache_shape()] for layer in cache.layers])
    found.append(len(made(config=shared, max_cache_len=7)))
    cache.early_initialization(2, 3, 4, torch.float64, torch.device("cpu"))
    found.append([list(layer.values.shape) for layer in cache.layers])
    found.append(
        [
            cache.is_compileable,
            cache.is_sliding,
            cache.is_initialized,
            cache.max_batch_size,
            cache.max_cache_len,
        ]
    )
    found.append([str(layer.keys.dtype) for layer in cache.layers])
    return found


def _two(made: Any) -> list[Any]:
    """Return lengths, keys and marks of caches of an encoder and a decoder after each change, and as tuples."""
    _of_places(class_of("DynamicCache"))
    dynamic = class_of("DynamicCache")
    own, cross, found = dynamic(), dynamic(), []
    for layer in range(2):
        own.update(states_of(1, 3, 2), -states_of(1, 3, 2), layer)
        cross.update(states_of(11, 4, 2), -states_of(11, 4, 2), layer)
    cache = made(own, cross)

    def seen() -> list[Any]:
        both = (cache.self_attention_cache, cache.cross_attention_cache)
        return [
            int(cache.get_seq_length()),
            *(numbers_of(one.layers[1].keys) for one in both),
            dict(cache.is_updated),
        ]

    for name, value in (
        ("reorder_cache", torch.tensor([1, 0])), ("crop", 2), ("batch_repeat_interleave", 2),
        ("batch_select_indices", torch.tensor([3])),
    ):  # fmt: skip
        getattr(cache, name)(value)
        found.append(seen())
    given = cache.to_legacy_cache()
    found.append([[numbers_of(one)[0] for one in layer] for layer in given])
    again = made.from_legacy_cache(given)
    half = made.from_legacy_cache([layer[:2] for layer in given])
    found += [[dict(one.is_updated), len(one), len(one.to_legacy_cache()[0])] for one in (again, half)]
    found.append([[numbers_of(one)[0] for one in again[1]], [len(one) for one in again]])
    split = made(*(dynamic.from_legacy_cache([(states_of(1, 2, 2), states_of(1, 2, 2))]) for _ in range(2)))
    found.append([split.get_max_cache_shape(), split.is_sliding, split.is_compileable])
    cache.reset()
    return [*found, dict(cache.is_updated), dict(made(dynamic(), dynamic()).is_updated)]


def _two_static(made: Any) -> None:
    _of_places(class_of("DynamicCache"))
    static = class_of("StaticCache")(config=config_of(), max_cache_len=4)
    made(static, class_of("DynamicCache")()).batch_repeat_interleave(2)


def _two_others(made: Any) -> list[str]:
    _of_places(class_of("DynamicCache"))
    found = []
    for given in ((1, 2), (class_of("DynamicCache")(),) * 3):
        try:
            made(*given)
            found.append("")
        except (TypeError, ValueError) as error:
            found.append(type(error).__name__)
    return found


def _row(name: str, what: str, call: Callable[[Any], Any], right: Any, since: str = "4.57") -> Row:
    return Row("inputs", f"{PLACE}:{name}", what, call, right, since=since)


# Sources: the documentation of each class; a window of 4 keeps the 3 keys that a further id sees besides itself.
OLDER_CACHE_ROWS: Sequence[Row] = (
    _row("DynamicLayer", "keys by places", partial(_story, DYNAMIC, lambda made: made()),
         [0, [1, 0], [3, 0], [1, 2], 2, [3, 0], [5, 0], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5], 5, [6, 0], [8, 0], [1, 2,
          3], [1, 2, 3, 6], [1, 2], -1]),
    _row("DynamicSlidingWindowLayer", "keys by places", partial(_story, SLIDING, lambda made: made(4)),
         [0, [1, 0], [3, 0], [1, 2], 2, [3, 0], [5, 0], [1], 1, [1, 3], [1, 3, 4, 5, 6], [4, 5, 6], 5, [4, 2], [6, 2],
          "ValueError", [4, 5, 6, 7], [5, 6, 7, 8, 9, 10, 11], [9, 10, 11], 10, [4, 7], [6, 7], 4]),
    _row("StaticLayer", "keys by places", partial(_story, STATIC, lambda made: made(5)),
         [0, [5, 0], [5, 0], [1, 2, 0, 0, 0], 2, [5, 0], [5, 0], [1, 2, 3, 0, 0], [1, 2, 3, 0, 0], 3, 0, [4, 0, 0, 0,
          0], [4, 0, 0, 0, 5], 2, 5]),
    _row("StaticSlidingWindowLayer", "keys by places", partial(_story, WINDOW, lambda made: made(9, 4)),
         [0, [4, 0], [4, 0], [1, 2, 0, 0], 2, [4, 0], [5, 0], [1, 2, 3, 4], [1, 2, 3, 4], 4, [4, 1], [6, 1], [2, 3, 4,
          5], [2, 3, 4, 5], 5, [4, 2], [6, 2], [3, 4, 5, 6, 7, 8], [5, 6, 7, 8], 8, [4, 5], [6, 5], 0, [4, 0], [4, 0],
          [9, 10, 11, 0], [9, 10, 11, 12, 13], [10, 11, 12, 13], 5, [4, 2], [6, 2], [14, 15, 16, 17, 18, 19], [16, 17,
          18, 19], 6, [4, 3], [6, 3], 4]),
    _row("StaticSlidingWindowLayer", "keys of a short window", partial(_story, WINDOW[:6], lambda made: made(3, 9)),
         [0, [3, 0], [3, 0], [1, 2, 0], 2, [3, 0]]),
    _row("StaticLayer", "rows by places", partial(_story, ROWS, lambda made: made(3)),
         [[[1, 0, 0], [101, 0, 0]], [[101, 2, 0], [1, 102, 0]], [[101, 2, 3], [101, 2, 103]]]),
    _row("QuantizedLayer", "keys that are quantised", _quantized,
         [[[[1, 2], [], [1, 2], 2, True], [[1, 2, 3], [3], [1, 2], 3, True], [[1, 2, 3, 4], [3, 4], [1, 2], 4, True],
          [[1, 2, 3, 4, 5], [], [1, 2, 3, 4, 5], 5, True], [[1, 2, 3, 4, 5, 6], [6], [1, 2, 3, 4, 5], 6, True]], [[0,
          2, True], [1, 2, True], [0, 5, True], [1, 5, True]]]),
    _row("DynamicCache", "a whole cache by places", _whole,
         [[[6, 8, 0, -1], [6, 5, 3, 4], [6, 8, 0, -1], [0, 2, 0, -1]], [3, [0, 0, 2, 0], 0], [["DynamicLayer",
          "DynamicLayer", "DynamicLayer"], ["DynamicLayer", "DynamicSlidingWindowLayer", "DynamicLayer"],
          ["DynamicLayer", "DynamicSlidingWindowLayer"]], [[[1, 2, 3, 4, 5], [7, 8, 9, 10, 11], [1, 2, 3, 4, 5]], [[1,
          2, 3, 4, 5], [9, 10, 11], [1, 2, 3, 4, 5]]], [[4, 4, 4], [5, 5, 5]], [[False, True, False], False, True,
          [False, False, False], False]]),
    _row("DynamicCache", "legacy tuples", _legacy,
         [[[[1, 2], [-1, -2]], [[11, 12], [-11, -12]]], [[[1, 2], [-1, -2]], [[11, 12], [-11, -12]]], [[11, 12], [-11,
          -12]], [[[1, 2], [-1, -2]], [[11, 12], [-11, -12]]], 0, "DynamicCache"]),
    _row("DynamicCache", "a layer that is not there", _beyond, True),
    _row("DynamicCache", "changes of all layers", _changed,
         [[[[101, 102, 103], [1, 2, 3]], [[111, 112, 113], [11, 12, 13]]], [True, True], [[[101, 102], [1, 2]], [[111,
          112], [11, 12]]], [True, True], [[[101], [1]], [[111], [11]]], [True, True], [[[101], [101], [1], [1]],
          [[111], [111], [11], [11]]], [True, True], [[[1], [101]], [[11], [111]]], [True, True], [[[0], [0]], [[0],
          [0]]]]),
    _row("StaticCache", "layers by places", _static,
         [[["StaticLayer", 7], ["StaticSlidingWindowLayer", 4], ["StaticLayer", 7]], 2, [[2, 3, 7, 4], [2, 3, 4, 4],
          [2, 3, 7, 4]], [True, [False, True, False], True, 2, 7], ["torch.float64", "torch.float64",
          "torch.float64"]]),
    _row("EncoderDecoderCache", "changes and legacy tuples", _two,
         [[3, [[101, 102, 103], [1, 2, 3]], [[111, 112, 113, 114], [11, 12, 13, 14]], {0: True, 1: True}], [2, [[101,
          102], [1, 2]], [[111, 112, 113, 114], [11, 12, 13, 14]], {0: True, 1: True}], [2, [[101, 102], [101, 102],
          [1, 2], [1, 2]], [[111, 112, 113, 114], [111, 112, 113, 114], [11, 12, 13, 14], [11, 12, 13, 14]], {0: True,
          1: True}], [2, [[1, 2]], [[11, 12, 13, 14]], {0: True, 1: True}], [[[1, 2], [-1, -2], [11, 12, 13, 14],
          [-11, -12, -13, -14]], [[1, 2], [-1, -2], [11, 12, 13, 14], [-11, -12, -13, -14]]], [{0: True, 1: True}, 2,
          4], [{}, 2, 2], [[[1, 2], [-1, -2], [11, 12, 13, 14], [-11, -12, -13, -14]], [4, 4]], [-1, [False],
          False], {0: False, 1: False}, {}]),
    _row("EncoderDecoderCache", "a static one that is repeated", _two_static,
         Refused("only defined for dynamic cache")),
    _row("EncoderDecoderCache", "other caches", _two_others, ["TypeError", "ValueError"]),
)  # fmt: skip
