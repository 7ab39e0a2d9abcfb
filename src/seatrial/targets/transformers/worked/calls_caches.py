"""Operations on every kind of cache layer and cache of Transformers, whose results are on record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.transformers.worked.caches import config_of
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

PLACE = "transformers.cache_utils"
SIZES: Mapping[str, Any] = {"max_cache_len": 7, "sliding_window": 4, "number_of_states": 2}
KEPT = (
    "keys", "values", "indexer_keys", "conv_states", "recurrent_states", "has_previous_state", "is_initialized",
)  # fmt: skip
"""What is compared of a layer after each operation, where it has it."""
Operation = tuple[str, Any]
ROWS: Sequence[Operation] = (
    ("reorder", [1, 0]), ("add", 3), ("reorder", [1, 0]), ("add", 1), ("repeat", 2), ("add", 1), ("select", [0, 3]),
    ("add", 1), ("reorder", [1, 1]), ("add", 1),
)  # fmt: skip
CUTS: Sequence[Operation] = (
    ("add", 3), ("crop", -1), ("add", 2), ("crop", 0), ("crop", 2), ("add", 1), ("crop", -9), ("reset", None),
    ("add", 2),
)  # fmt: skip
LONG: Sequence[Operation] = (
    ("sizes", 2), ("add", 2), ("sizes", 1), ("add", 4), ("sizes", 3), ("add", 1), ("offload", None), ("sizes", 1),
    ("prefetch", None), ("reset", None), ("sizes", 1), ("add", 6), ("add", 1), ("sizes", 2), ("reorder", [1, 0]),
    ("reorder", [0, 0]), ("add", 1),
)  # fmt: skip
RECORDED: Sequence[Operation] = (
    ("record", None), ("add", 3), ("add", 3), ("crop", -2), ("add", 1), ("reorder", [1, 0]), ("crop", 0), ("add", 3),
    ("crop", -1), ("reset", None), ("add", 2), ("crop", -1),
)  # fmt: skip
STORIES = {"rows": ROWS, "cuts": CUTS, "long": LONG, "recorded": RECORDED}


def _short(value: Any) -> Any:
    """Return a value with the shape and a weighted sum of each tensor in its place, as text."""
    if isinstance(value, Tensor):
        places = torch.arange(1, value.numel() + 1, dtype=torch.float64)
        total = float((value.double().flatten() * torch.sin(0.7 * places)).sum())
        return [" ".join(map(str, value.shape)), round(total, 4) + 0.0]
    if isinstance(value, Mapping):
        return {str(name): _short(one) for name, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list | tuple) else value


def _shown(layer: Any) -> Any:
    found: dict[str, Any] = {}
    for name in KEPT:
        value = getattr(layer, name, None)
        if isinstance(value, Mapping):
            value = [*value.values()]
        if value is not None:
            found[name] = _short(value)
    return found


def _added(layer: Any, rows: int, number: int, place: int) -> Any:
    """Add states of so many tokens to each part of a layer, and return what it gives."""
    found: list[Any] = []
    if hasattr(layer, "update"):
        keys, values = (numbers(rows, 2, number, 3, seed=place + 50 * part) for part in (0, 1))
        takes = inspect.signature(layer.update).parameters
        position = torch.arange(place, place + number)
        more = {"cache_kwargs": {"cache_position": position}} if "cache_kwargs" in takes else {}
        found += _short(layer.update(keys, values, **more))
    if hasattr(layer, "update_indexer"):
        found.append(_short(layer.update_indexer(numbers(rows, number, 3, seed=place + 7))))
    if hasattr(layer, "update_conv_state"):
        for state in range(layer.number_of_states):
            given = numbers(rows, 3, max(number, 4) if place == 0 else number, seed=place + state)
            found.append(_short(layer.update_conv_state(given, state_idx=state)))
            recurrent = numbers(rows, 2, 2, seed=place + 9 + state)
            found.append(_short(layer.update_recurrent_state(recurrent, state_idx=state)))
    return found


METHODS: Mapping[str, str] = {
    "reorder": "reorder_cache", "repeat": "batch_repeat_interleave", "select": "batch_select_indices",
    "record": "activate_past_recording", "sizes": "get_mask_sizes",
}  # fmt: skip
"""Of operations with other names."""


def _done(layer: Any, name: str, value: Any, rows: int, place: int) -> Any:
    """Return what an operation on a layer gives that holds so many rows and tokens."""
    if name == "add":
        return _added(layer, rows, value, place)
    method = getattr(layer, METHODS.get(name, name))
    if name == "sizes":
        positions = "cache_position" in inspect.signature(method).parameters
        return [int(one) for one in method(torch.arange(place, place + value) if positions else value)]
    if isinstance(value, list):
        value = torch.tensor(value)[:rows] if name == "reorder" else torch.tensor(value)
    return method() if value is None else method(value)


def _story(layer: Any, operations: Sequence[Operation]) -> list[Any]:
    """Return what each operation on a layer gives and leaves."""
    rows, place, found = 2, 0, list[Any]()
    for name, value in operations:
        if name != "add" and not hasattr(layer, METHODS.get(name, name)):
            continue
        gives = refusal(partial(_done, layer, name, value, rows, place))
        rows = {"repeat": rows * (value or 1) if name == "repeat" else 0, "select": 2}.get(name, rows)
        place = place + value if name == "add" else (0 if name == "reset" else place)
        length = refusal(lambda: int(layer.get_seq_length())) if hasattr(layer, "get_seq_length") else None
        found.append([name, gives, _shown(layer), length])
    return found


def _layer(made: Any) -> Any:
    takes = inspect.signature(made).parameters
    return made(**{name: value for name, value in SIZES.items() if name in takes})


def _worked_layer(name: str, made: Any) -> Any:
    if not inspect.isclass(made):
        raise NotServed("no class")
    return _story(_layer(made), STORIES[name])


def _quantized(name: str, made: Any) -> Any:
    """Return the story of a layer that rounds states to quarters once two of them are not rounded yet."""

    class Rounded(made):  # type: ignore[misc]
        def _quantize(self, tensor: Tensor, axis: Any = None) -> Any:
            return (tensor * 4).round().clone()

        def _dequantize(self, tensor: Any) -> Any:
            return tensor / 4

    layer = Rounded(nbits=4, q_group_size=2, residual_length=2)
    return _story(layer, STORIES[name])


def _eighths(name: str, made: Any) -> Any:
    return _story(made(), STORIES[name])


MIXED: Mapping[str, Any] = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention"], "sliding_window": 4,
    "use_sliding_window": True,
}  # fmt: skip


def _filled(cache: Any, size: int, start: int = 0, rows: int = 2, layers: int = 3) -> list[Any]:
    """Add states to each layer of a cache, and return what the last gives."""
    found: list[Any] = []
    for layer in range(layers):
        keys, values = (numbers(rows, 1, size, 2, seed=start + 9 * layer + part) for part in (0, 1))
        takes = inspect.signature(cache.update).parameters
        position = torch.arange(start, start + size)
        more = {"cache_kwargs": {"cache_position": position}} if "cache_kwargs" in takes else {}
        found = _short(cache.update(keys, values, layer, **more))
    return found


def _of_cache(cache: Any) -> Any:
    layers = range(len(cache.layers))
    most = "get_max_length" if hasattr(cache, "get_max_length") else "get_max_cache_shape"
    return [
        [int(cache.get_seq_length(layer)) for layer in layers],
        [refusal(lambda layer=layer: getattr(cache, most)(layer)) for layer in layers], [*cache.is_sliding],
        bool(cache.is_compileable), bool(cache.is_initialized), len(cache),
        [_shown(layer) for layer in cache.layers],
    ]  # fmt: skip


def _whole(made: Any) -> Any:
    """Return what caches of a configuration give of whole operations on all layers."""
    takes = inspect.signature(made).parameters
    lengths = {"max_cache_len": 8} if "max_cache_len" in takes else {}
    found: list[Any] = []
    for config in (config_of(), config_of(**MIXED)):
        cache = made(config=config, **lengths)
        found.append([type(layer).__name__ for layer in cache.layers])
        for size, start in ((3, 0), (1, 3), (2, 4)):
            found.append(_filled(cache, size, start))
        found.append(_of_cache(cache))
        for name, value in (("reorder_cache", torch.tensor([1, 0])), ("batch_repeat_interleave", 2),
                            ("batch_select_indices", torch.tensor([1, 2])), ("crop", -1)):  # fmt: skip
            found.append([refusal(partial(getattr(cache, name), value)), _of_cache(cache)])
        cache.reset()
        found.append(_of_cache(cache)[0])
    return found


def _early(made: Any) -> Any:
    """Return static layers that are initialized before any states."""
    cache = made(config=config_of(**MIXED), max_cache_len=6)
    takes = [*inspect.signature(cache.early_initialization).parameters]
    given = {
        "batch_size": 2,
        "num_heads": 1,
        "head_dim": 2,
        "dtype": torch.float32,
        "device": torch.device("cpu"),
    }
    given |= {"k_head_dim": 2, "v_head_dim": 2, "key_head_dim": 2, "value_head_dim": 2}
    refused = refusal(
        lambda: cache.early_initialization(**{name: given[name] for name in takes if name in given})
    )
    return [
        refused,
        [list(layer.keys.shape) for layer in cache.layers if layer.is_initialized],
        _filled(cache, 2),
    ]


def _encoding(made: Any) -> Any:
    """Return what pairs of caches give: of layers already read, cut, repeated, reordered, reset and taken apart."""
    dynamic = find_name("transformers", [f"{PLACE}:DynamicCache"])
    own, cross = dynamic(), dynamic()
    found: list[Any] = [dict(made(own, cross).is_updated)]
    _filled(own, 3)
    _filled(cross, 2, 5)
    pair = made(own, cross)
    found += [
        dict(pair.is_updated),
        int(pair.get_seq_length()),
        len(pair),
        [[*map(_short, one)] for one in pair],
    ]
    for name, value in (("reorder_cache", torch.tensor([1, 0])), ("batch_repeat_interleave", 2), (
            "batch_select_indices", torch.tensor([3, 0])), ("crop", 2), ("crop", -1)):  # fmt: skip
        found.append([refusal(lambda name=name, value=value: getattr(pair, name)(value)), _of_cache(own)[6],
                      _of_cache(cross)[6]])  # fmt: skip
    found.append(refusal(lambda: [[*map(_short, one)] for one in made(tuple(pair))]))
    found.append(refusal(lambda: made(own, "other")))
    pair.reset()
    found.append([dict(pair.is_updated), _of_cache(own)[0], _of_cache(cross)[0]])
    return found


def _legacy(made: Any) -> Any:
    """Return caches as tuples, and caches of tuples."""
    cache = made()
    _filled(cache, 3)
    rows = cache.to_legacy_cache()
    again = made.from_legacy_cache(rows)
    found = [[[*map(_short, one)] for one in rows], _of_cache(again), [_short(one) for one in again[1]]]
    again.crop(2)
    again.crop(-1)
    found += [
        _of_cache(again)[0],
        _of_cache(cache)[0],
        len(made.from_legacy_cache(None)),
        refusal(lambda: cache[7]),
    ]
    return [*found, [[*map(_short, one)] for one in cache]]


def _legacy_pairs(made: Any) -> Any:
    dynamic = find_name("transformers", [f"{PLACE}:DynamicCache"])
    own, cross = dynamic(), dynamic()
    _filled(own, 3, rows=4)
    _filled(cross, 2, 5, rows=4)
    pair = made(own, cross)
    rows = pair.to_legacy_cache()
    again = made.from_legacy_cache(rows)
    return [
        [[*map(_short, one)] for one in rows], _of_cache(again.self_attention_cache), dict(again.is_updated),
        [_short(one) for one in pair[1]],
        dict(made.from_legacy_cache(tuple(one[:2] for one in rows)).is_updated),
    ]  # fmt: skip


def _distributed(made: Any) -> Any:
    """Return caches of the tuples that copies of a model on several devices pass."""
    cache = made(config=config_of(**MIXED))
    for size, start in ((3, 0), (3, 3)):
        _filled(cache, size, start)
    rows = [[*map(_short, one)] for one in cache]
    again = made(tuple(tuple(one) for one in cache), config=config_of(**MIXED))
    plain = made(tuple(tuple(one[:2]) for one in cache))
    return [rows, _of_cache(again), _of_cache(plain)]


def _hybrid(made: Any) -> Any:
    """Return what a cache of layers of two kinds says, gives and refuses."""
    try:
        layers = [
            find_name("transformers", [f"{PLACE}:{name}"])
            for name in ("LinearAttentionLayer", "DynamicLayer")
        ]
    except Exception as error:
        raise NotServed("no layers of linear attention") from error
    cache = made(layers=[layers[0](), layers[1](), layers[0](number_of_states=2)])
    found: list[Any] = [cache.has_previous_state(), [*cache.is_linear], cache.get_conv_state(0)]
    keys = numbers(2, 1, 3, 2)
    cache.update(keys, -keys, 1)
    found.append(
        [cache.update_conv_state(numbers(2, 3, 4), 0).clone(), cache.update_recurrent_state(numbers(2, 2), 0)]
    )
    for state in range(2):
        cache.update_conv_state(numbers(2, 3, 4, seed=state), 2, state)
        cache.update_recurrent_state(numbers(2, 2, seed=state), 2, state_idx=state)
        found.append(
            [cache.has_previous_state(), cache.has_previous_state(2, 0), cache.has_previous_state(2, 1)]
        )
    calls: Sequence[Callable[[], Any]] = (
        lambda: cache.get_seq_length(), lambda: cache.get_seq_length(2), lambda: cache.get_mask_sizes(2, 0),
        lambda: cache.get_mask_sizes(2, 2), lambda: cache.has_previous_state(1), lambda: cache.has_previous_state(9),
        lambda: cache.get_conv_state(1), lambda: cache.get_recurrent_state(2, 1), lambda: cache.get_conv_state(0),
        lambda: cache.update_conv_state(keys, 1), lambda: cache.update_recurrent_state(keys, 1),
        lambda: cache.update_indexer(keys, 1), lambda: cache.get_max_length(), lambda: cache.batch_size,
        lambda: cache.is_croppable, lambda: cache.crop(-1), lambda: cache.batch_repeat_interleave(2),
        lambda: cache.is_recording_past(0), lambda: cache.activate_past_recording(),
        lambda: cache.is_recording_past(0), lambda: cache.update_conv_state(numbers(2, 3, 2, seed=7), 0),
        lambda: cache.get_query_offset(), lambda: made(layers=[layers[0]()]).get_seq_length(),
        lambda: made(layers=[layers[1]()]).has_previous_state(), lambda: made(),
        lambda: made(layers=[], layer_class_to_replicate=layers[1]),
    )  # fmt: skip
    found += [refusal(one) for one in calls]
    cache.reorder_cache(torch.tensor([1, 0]))
    found.append([_shown(layer) for layer in cache.layers])
    cache.reset()
    return [*found, cache.get_conv_state(0), cache.has_previous_state(), cache.get_seq_length()]


def _quantized_caches(made: Any) -> Any:
    """Return which quantised caches are refused, and what those of eighths give."""
    found = [
        refusal(lambda given=given: [type(layer).__name__ for layer in made(**given).layers])
        for given in ({"backend": "none", "config": config_of()}, {"backend": "fp8", "config": config_of()},
                      {"backend": "fp8", "config": config_of(), "nbits": 4},
                      {"backend": "fp8", "config": config_of(**MIXED)})
    ]  # fmt: skip
    if isinstance(found[1], list):
        cache = made(backend="fp8", config=config_of())
        found += [_filled(cache, 3), _filled(cache, 2, 3), int(cache.get_seq_length())]
        cache.reorder_cache(torch.tensor([1, 0]))
        found.append(_filled(cache, 1, 5))
        cache.reset()
        found += [int(cache.get_seq_length()), _filled(cache, 2)]
    return found


def _shared(made: Any) -> Any:
    one = made({"a": (numbers(2, 2), numbers(2, 3))})
    moved = one.to(torch.device("cpu"))
    return [sorted(moved), [list(each.shape) for each in moved["a"]], moved is one]


def _later_tokens(made: Any) -> Any:
    """Return offsets of queries and sizes of masks of caches of models that predict several tokens."""
    cache = made(config=config_of())
    found: list[Any] = []
    if hasattr(cache, "set_previous_accepted_tokens"):
        found.append(refusal(lambda: cache.set_previous_accepted_tokens(2)))
    for size, start in ((3, 0), (2, 3)):
        _filled(cache, size, start)
        found.append([refusal(lambda layer=layer: [cache.get_query_offset(layer), [*cache.get_mask_sizes(2, layer)]])
                      for layer in range(3)])  # fmt: skip
    return found


LAYERS = (
    "DynamicLayer", "DynamicSlidingWindowLayer", "DynamicIndexedLayer", "StaticLayer", "StaticSlidingWindowLayer",
    "StaticIndexedLayer", "LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer", "DummyLayer",
    "LinearAttentionAndSlidingWindowAttentionLayer", "LinearAttentionAndStaticFullAttentionLayer",
    "LinearAttentionAndStaticSlidingWindowAttentionLayer",
)  # fmt: skip
CALLS: Sequence[Call] = (
    *(Call("states", f"{PLACE}:{name}", f"operations, {story}", partial(_worked_layer, story))
      for name in LAYERS for story in STORIES),
    *(Call("states", f"{PLACE}:QuantizedLayer", f"operations, {story}", partial(_quantized, story))
      for story in STORIES if story != "recorded"),
    *(Call("states", f"{PLACE}:Fp8QuantizedLayer", f"operations, {story}", partial(_eighths, story))
      for story in STORIES if story != "recorded"),
    Call("states", f"{PLACE}:DynamicCache", "whole caches", _whole),
    Call("states", f"{PLACE}:StaticCache", "whole caches", _whole),
    Call("states", f"{PLACE}:StaticCache", "early initialization", _early),
    Call("states", f"{PLACE}:EncoderDecoderCache", "pairs of caches", _encoding),
    Call("states", f"{PLACE}:DynamicCache", "tuples of caches", _legacy),
    Call("states", f"{PLACE}:EncoderDecoderCache", "tuples of pairs", _legacy_pairs),
    Call("states", f"{PLACE}:DynamicCache", "tuples of several devices", _distributed),
    Call("states", f"{PLACE}:Cache", "layers of two kinds", _hybrid),
    Call("states", f"{PLACE}:QuantizedCache", "caches of eighths", _quantized_caches),
    Call("states", f"{PLACE}:KVSharingDict", "shared states", _shared),
    Call("states", f"{PLACE}:MtpCache", "later tokens", _later_tokens),
    Call("states", f"{PLACE}:DFlashCache", "later tokens", _later_tokens),
)  # fmt: skip
CACHE_CALL_ROWS = rows_of(CALLS)
