"""Worked examples of caches of Transformers with an encoder, states of recurrent layers, or keys of an index."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.caches import (
    FULL,
    MIXED,
    SLIDES,
    class_of,
    config_of,
    numbers_of,
    row_of,
    states_of,
)


def _pairs(made: Any) -> Any:
    """Return a cache of an encoder and a decoder of two layers, three ids and four states."""
    dynamic = class_of("DynamicCache")
    own, cross = dynamic(), dynamic()
    for layer in range(2):
        own.update(states_of(1, 3, 2), states_of(1, 3, 2), layer)
        cross.update(states_of(11, 4, 2), states_of(11, 4, 2), layer)
    return made(own, cross)


def _encoded(made: Any) -> list[Any]:
    """Return lengths, rows and marks of a cache of an encoder and a decoder after each change."""
    found = []
    cache = _pairs(made)

    def seen() -> list[Any]:
        both = (cache.self_attention_cache, cache.cross_attention_cache)
        return [
            int(cache.get_seq_length()), *(numbers_of(one.layers[1].keys) for one in both), dict(cache.is_updated),
        ]  # fmt: skip

    found.append(seen())
    for name, value in (
        ("reorder_cache", torch.tensor([1, 0])), ("crop", -1), ("batch_repeat_interleave", 2),
        ("batch_select_indices", torch.tensor([3])),
    ):  # fmt: skip
        getattr(cache, name)(value)
        found.append(seen())
    cache.reset()
    lengths = [one.get_seq_length() for one in (cache, cache.cross_attention_cache)]
    found.append([[int(one) for one in lengths], cache.is_updated])
    empty = made(class_of("DynamicCache")(), class_of("DynamicCache")())
    return [*found, len(cache), len(empty)]


def _encoded_is(made: Any) -> list[Any]:
    """Return what a cache of an encoder and a decoder says of that of the decoder."""
    static, dynamic = class_of("StaticCache"), class_of("DynamicCache")
    cache = made(static(config=config_of(**MIXED), max_cache_len=4), dynamic())
    plain = made(dynamic(config=config_of(**MIXED)), dynamic(config=config_of()))
    plain.activate_past_recording()
    return [
        list(cache.is_sliding), list(cache.is_linear), cache.is_compileable, plain.is_compileable, plain.is_croppable,
        cache.get_max_length(), list(cache.get_mask_sizes(2, 1)), plain.self_attention_cache.is_recording_past(1),
    ]  # fmt: skip


def _encoded_again(made: Any) -> list[Any]:
    cache = _pairs(made)
    again = made([tuple(one) for one in cache])
    both = (again.self_attention_cache, again.cross_attention_cache)
    return [[numbers_of(one.layers[1].keys)[0] for one in both], dict(again.is_updated)]


def _encoded_static(made: Any) -> None:
    static = class_of("StaticCache")(config=config_of(), max_cache_len=4)
    made(static, class_of("DynamicCache")()).crop(-1)


def _early(made: Any) -> list[Any]:
    """Return the shapes and precisions of layers that are made early, and what is kept after."""
    cache = made(config=config_of(**MIXED), max_cache_len=5)
    before = cache.is_initialized
    given = {"dtype": torch.float64, "device": torch.device("cpu")}
    cache.early_initialization(batch_size=2, num_heads=[1, 1, 3], head_dim=4, **given)
    shapes = [list(layer.keys.shape) for layer in cache.layers]
    cache.layers[0].update(
        torch.ones(2, 1, 2, 4, dtype=torch.float64), torch.ones(2, 1, 2, 4, dtype=torch.float64)
    )
    cache.early_initialization(batch_size=3, num_heads=1, head_dim=4, **given)
    return [before, cache.is_initialized, shapes, str(cache.layers[2].values.dtype), list(cache.layers[0].keys.shape),
            int(cache.get_seq_length()), int(cache.get_seq_length(1))]  # fmt: skip


def _early_lengths(made: Any) -> None:
    cache = made(config=config_of(), max_cache_len=5)
    cache.early_initialization(batch_size=2, num_heads=[1, 1], head_dim=4, dtype=torch.float32, device="cpu")


def _indexed(static: bool, made: Any) -> list[Any]:
    """Return the keys of an index after each change, on the side of those of attention."""
    layer, found = made(max_cache_len=5) if static else made(), list[Any]()

    def add(first: int, number: int, rows: int = 2) -> None:
        layer.update(states_of(first, number, rows), states_of(first, number, rows))
        found.append(layer.update_indexer(states_of(first + 20, number, rows)[:, 0])[:, :, 0].int().tolist())

    add(1, 2)
    layer.indexer_position_ids = torch.arange(2).expand(1, 2, 2) + torch.tensor([[0], [7]])
    layer.crop(-1)
    add(3, 1)
    layer.reorder_cache(torch.tensor([1, 0]))
    found.append([layer.indexer_keys[:, :2, 0].int().tolist(), layer.indexer_position_ids.tolist()])
    if not static:
        layer.batch_repeat_interleave(2)
        layer.batch_select_indices(torch.tensor([0, 3]))
        found.append([layer.indexer_keys[:, :, 0].int().tolist(), layer.indexer_position_ids.tolist()])
    layer.reset()
    add(4, 1, 2)
    return [*found, int(layer.get_seq_length())]


def _conv(made: Any) -> list[Any]:
    """Return states of convolutions of three places, those of a short prompt filled from the left."""
    found = []
    for first, then in ((2, 1), (5, 1), (3, 2)):
        layer = made()
        states = states_of(1, first)[:, 0].transpose(1, 2)
        given = layer.update_conv_state(states, conv_kernel_size=3)
        kept = layer.conv_states[0].clone()
        more = layer.update_conv_state(states_of(50, then)[:, 0].transpose(1, 2), conv_kernel_size=3)
        found.append([one[0, 0].int().tolist() for one in (given, kept, more, layer.conv_states[0])])
    return found


def _recorded_conv(made: Any) -> list[Any]:
    layer, found = made(), []
    layer.activate_past_recording()
    states = [states_of(first, number)[:, 0].transpose(1, 2) for first, number in ((1, 5), (6, 3))]
    for one in states:
        given = layer.update_conv_state(one, conv_kernel_size=3)
        found.append(given[0, 0].int().tolist())
    layer.crop(-2)
    found.append(layer.conv_states[0][0, 0].int().tolist())
    layer.crop(0)
    return [*found, layer.conv_states[0][0, 0].int().tolist(), layer.is_croppable]


def _linear(made: Any) -> list[Any]:
    """Return states of a layer of two: what is there, in another order, and after a reset."""
    layer, empty = made(number_of_states=2), made()
    before = [dict(layer.has_previous_state), layer.is_croppable]
    layer.update_conv_state(torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]), 1)
    layer.update_recurrent_state(torch.tensor([[5.0], [6.0]]), 1)
    middle = [dict(layer.has_previous_state), layer.is_croppable]
    layer.update_recurrent_state(torch.tensor([[7.0], [8.0]]), 1)
    layer.reorder_cache(torch.tensor([1, 0]))
    after = [layer.conv_states[1].tolist(), layer.recurrent_states[1].tolist(), layer.conv_states[0]]
    layer.reset()
    return [before, middle, after, dict(layer.has_previous_state), layer.recurrent_states[1].tolist(),
            empty.get_max_length(), empty.is_compileable]  # fmt: skip


def _hybrid(made: Any) -> list[Any]:
    """Return lengths and states of a cache whose first layer has no ids, after each change."""
    linear, full = class_of("LinearAttentionLayer"), class_of("DynamicLayer")
    cache = made(layers=[linear(), full(), linear(), full()])
    before = [
        int(cache.get_seq_length()),
        cache.has_previous_state(),
        cache.has_previous_state(0),
        cache.get_conv_state(2),
    ]
    cache.update(states_of(1, 3), states_of(1, 3), 1)
    cache.update_conv_state(torch.ones(1, 1, 2), 2)
    cache.update_recurrent_state(torch.ones(1, 2), 2)
    after = [
        int(cache.get_seq_length()), int(cache.get_seq_length(3)), list(cache.get_mask_sizes(2, 0)),
        cache.has_previous_state(), cache.has_previous_state(0), cache.get_recurrent_state(2).tolist(), cache.is_linear,
        cache.has_previous_state(9),
    ]  # fmt: skip
    refused = []
    for name, given in (
        ("get_seq_length", [2]), ("has_previous_state", [1]), ("get_conv_state", [1]),
        ("update_conv_state", [torch.ones(1, 1, 2), 1]), ("get_mask_sizes", [1, 2]),
    ):  # fmt: skip
        try:
            getattr(cache, name)(*given)
            refused.append("")
        except ValueError as error:
            refused.append(type(error).__name__)
    cache.reset()
    return [
        before,
        after,
        refused,
        [int(cache.get_seq_length()), cache.has_previous_state(), cache.get_conv_state(2)],
    ]


def _eight_bits(made: Any) -> list[Any]:
    """Return keys of eight bits, whose scale is that of the first ones, in another order, and after a reset."""
    layer = made()
    first = torch.tensor([[[[448.0], [1.0]]], [[[2.0], [-3.0]]]])
    given, _ = layer.update(first, first)
    more, _ = layer.update(first[:, :, :1] * 2, first[:, :, :1])
    layer.reorder_cache(torch.tensor([1, 0]))
    turned, values = layer.update(first[:, :, :1], first[:, :, :1])
    length = layer.get_seq_length()
    layer.reset()
    return [given[:, 0, :, 0].tolist(), more[1, 0, :, 0].tolist(), turned[0, 0, :, 0].tolist(),
            values[0, 0, :, 0].tolist(), length, layer.get_seq_length()]  # fmt: skip


def _ahead(made: Any) -> list[Any]:
    """Return places of queries and sizes of masks of heads that are ahead by one id each."""
    cache = made()
    for layer in range(2):
        cache.update(states_of(0, 4), states_of(0, 4), layer)
    return [[cache.get_query_offset(layer), *cache.get_mask_sizes(2, layer)] for layer in range(2)]


def _drafted(made: Any) -> list[Any]:
    cache = made()
    cache.update(states_of(0, 4), states_of(0, 4), 0)
    before = [cache.get_query_offset(), *cache.get_mask_sizes(2, 0)]
    cache.set_previous_accepted_tokens(3)
    return [before, [cache.get_query_offset(), *cache.get_mask_sizes(2, 0)]]


def _types(function: Any) -> list[Any]:
    """Return the types of layers, and windows, of configurations: shared, chunked, of experts alone."""
    found = []
    for options in (
        {}, MIXED, {"sliding_window": 4, "layer_types": None}, {"attention_chunk_size": 5, "layer_types": None},
        {"kv_sharing_modes": ["store", "reuse", "none"]}, {"layer_types": ["full_attention", "moe", "mlp"]},
        {"layer_types": ["conv", "linear_attention", "full_attention"], "number_of_conv_states": 2},
    ):  # fmt: skip
        config = config_of()
        for name, value in options.items():
            setattr(config, name, value)
        if "sliding_window" not in options:
            config.sliding_window = None
        types, given = function(config)
        found.append([list(types), [dict(one) for one in given]])
    return found


def _nothing(made: Any) -> list[Any]:
    """Return what a layer that keeps nothing does."""
    layer = made()
    found = [layer.update(None, None), layer.get_max_length(), layer.is_croppable, layer.is_compileable]
    for name, value in (("crop", -1), ("batch_repeat_interleave", 2), ("reorder_cache", torch.tensor([0]))):
        getattr(layer, name)(value)
    layer.reset()
    return found


def _shared(made: Any) -> list[Any]:
    given = made({"a": (torch.ones(2, dtype=torch.float32),), "b": (torch.zeros(1), torch.ones(1))})
    moved = given.to(torch.device("cpu"))
    return [sorted(moved), [len(moved[name]) for name in sorted(moved)], moved["a"][0].tolist()]


# Sources: the documentation of each class.
STATE_ROWS: Sequence[Row] = (
    row_of(
        "EncoderDecoderCache", "changes step by step", _encoded,
        [
            [3, [[1, 2, 3], [101, 102, 103]], [[11, 12, 13, 14], [111, 112, 113, 114]], {0: True, 1: True}],
            [3, [[101, 102, 103], [1, 2, 3]], [[111, 112, 113, 114], [11, 12, 13, 14]], {0: True, 1: True}],
            [2, [[101, 102], [1, 2]], [[111, 112, 113, 114], [11, 12, 13, 14]], {0: True, 1: True}],
            [2, [[101, 102], [101, 102], [1, 2], [1, 2]],
             [[111, 112, 113, 114], [111, 112, 113, 114], [11, 12, 13, 14], [11, 12, 13, 14]], {0: True, 1: True}],
            [2, [[1, 2]], [[11, 12, 13, 14]], {0: True, 1: True}],
            [[0, 0], {0: False, 1: False}], 2, 0,
        ], since="5.19",
    ),
    row_of("EncoderDecoderCache", "what it says of itself", _encoded_is,
         [[False, True, False], [False] * 3, True, False, True, 4, [4, 0], True], since="5.23"),
    row_of("EncoderDecoderCache", "a cache of what one gives", _encoded_again,
         [[[1, 2, 3], [11, 12, 13, 14]], {0: True, 1: True}], since="5"),
    row_of("EncoderDecoderCache", "a static one that is cut", _encoded_static,
     Refused("only defined for dynamic cache")),
    row_of(
        "StaticCache", "layers that are made early", _early,
        [False, True, [[2, 1, 5, 4], [2, 1, 4, 4], [2, 3, 5, 4]], "torch.float64", [2, 1, 5, 4], 2, 0],
    ),
    row_of("StaticCache", "too few heads of layers that are made early", _early_lengths, Refused("has 3 layers")),
    row_of(
        "DynamicIndexedLayer", "keys of an index", partial(_indexed, False),
        [[[21, 22], [121, 122]], [[21, 23], [121, 123]], [[[121, 123], [21, 23]], [[[7], [0]]]],
         [[[121, 123], [21, 23]], [[[7], [0]]]], [[24], [124]], 1], since="5.21",
    ),
    row_of(
        "StaticIndexedLayer", "keys of an index", partial(_indexed, True),
        [[[21, 22, 0, 0, 0], [121, 122, 0, 0, 0]], [[21, 23, 0, 0, 0], [121, 123, 0, 0, 0]],
         [[[121, 123], [21, 23]], [[[7, 8], [0, 1]]]], [[24, 0, 0, 0, 0], [124, 0, 0, 0, 0]], 1], since="5.23",
    ),
    row_of(
        "LinearAttentionLayer", "states of convolutions", _conv,
        [[[0, 1, 2], [0, 1, 2], [0, 1, 2, 50], [1, 2, 50]], [[1, 2, 3, 4, 5], [3, 4, 5], [3, 4, 5, 50], [4, 5, 50]],
         [[1, 2, 3], [1, 2, 3], [1, 2, 3, 50, 51], [3, 50, 51]]],
    ),
    row_of("LinearAttentionLayer", "states that are recorded", _recorded_conv,
         [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8], [4, 5, 6], [4, 5, 6], True]),
    row_of(
        "LinearAttentionLayer", "several states", _linear,
        [[{0: False, 1: False}, False], [{0: False, 1: True}, False],
         [[[[3.0, 4.0]], [[1.0, 2.0]]], [[8.0], [7.0]], None], {0: False, 1: False}, [[0.0], [0.0]], -1, True],
    ),
    row_of(
        "Cache", "layers with and without ids", _hybrid,
        [[0, False, False, None], [3, 0, [5, 0], True, False, [[1.0, 1.0]], [True, False, True, False], False],
         ["ValueError"] * 5, [0, False, None]],
    ),
    row_of(
        "Fp8QuantizedLayer", "keys of eight bits", _eight_bits,
        [[[448.0, 1.0], [2.0, -3.0]], [2.0, -3.0, 4.0], [2.0, -3.0, 4.0, 448.0], [2.0, -3.0, 2.0, 448.0], 4, 0],
    ),
    row_of("MtpCache", "places of heads that are ahead", _ahead, [[5, 6, 1], [6, 6, 2]]),
    row_of("DFlashCache", "places of ids that are accepted", _drafted, [[4, 6, 0], [7, 9, 0]]),
    row_of(
        "get_layer_types_and_kwargs", "types of layers", _types,
        [
            [[FULL] * 3, [{}] * 3], [[FULL, SLIDES, FULL], [{}, {"sliding_window": 4}, {}]],
            [[SLIDES] * 3, [{"sliding_window": 4}] * 3], [["chunked_attention"] * 3, [{"sliding_window": 5}] * 3],
            [[FULL, "dummy", FULL], [{}] * 3], [[FULL, "dummy", "dummy"], [{}] * 3],
            [["conv", "linear_attention", FULL], [{"number_of_states": 2}, {"number_of_states": 2}, {}]],
        ], since="5.23",
    ),
    row_of("DummyLayer", "a layer that keeps nothing", _nothing, [(None, None), -1, True, True]),
    row_of("KVSharingDict", "states that are moved", _shared, [["a", "b"], [1, 2], [1.0, 1.0]]),
)  # fmt: skip
