"""Worked examples of continuous batches of releases before 5: requests, blocks of caches, what is scheduled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.caches import MIXED, config_of

PLACE = "transformers.generation.continuous_batching"


def _of(module: str, name: str) -> Any:
    return find_name("transformers", [f"{PLACE}.{module}:{name}"])


def _request(name: str, number: int, status: str = "PENDING", **state: Any) -> Any:
    made, statuses = _of("requests", "RequestState"), _of("requests", "RequestStatus")
    if "full_prompt_ids" not in made.__dataclass_fields__:
        raise NotServed("requests of this release have other fields")
    ids = list(range(number))
    return made(name, full_prompt_ids=list(ids), prompt_ids=ids, _status=statuses[status], **state)


def _tokens(made: Any) -> list[Any]:
    """Return which ids requests keep, and whether they are complete, by their limits, ends and states."""
    found = []
    for status, end, limit in (
        ("DECODING", -1, 3), ("DECODING", 7, 9), ("DECODING", 5, 9), ("DECODING", 8, 2), ("PREFILLING", 5, 9),
        ("DECODING", -1, 0),
    ):  # fmt: skip
        request = _request("a", 2, status, eos_token_id=end, max_new_tokens=limit)
        done = [request.update_with_token(token) for token in (5, 6, 7, 8)]
        found.append([request.static_outputs, done, request.status.value, request.generated_len()])
    return found


def _output(made: Any) -> list[Any]:
    request = _request("a", 2, "DECODING", eos_token_id=7, position_offset=4, error="words")
    request.update_with_token(7)
    found = request.to_generation_output()
    return [found.request_id, found.prompt_ids, found.generated_tokens, found.status.value, found.error, found.logprobs,
            request.current_len()]  # fmt: skip


def _full(made: Any) -> list[Any]:
    """Return blocks and places of a request in the cache of full attention."""
    _request("a", 1)
    own, free = made(0, 4), deque(range(2, 8))
    found: list[Any] = [own.allocate_blocks(2, "a", free), own.allocate_blocks(1, "b", free)]
    found.append([own.allocate_blocks(1, "a", free), own.allocate_blocks(3, "b", free), list(free)])
    found.append(
        [own.get_read_indices("a", 3, 2), own.get_write_indices("a", 3, 2), own.get_write_indices("a", 7, 2)]
    )
    found.append(list(own.get_seqlens_k("a", 3, 2)))
    own.free_blocks("a", free)
    return [*found, list(free), sorted(own._block_table)]


def _sliding(made: Any) -> list[Any]:
    """Return blocks and places of a request in the cache of a window of six, which begins again at its start."""
    _request("a", 1)
    own, free = made(0, 4, 6), deque(range(2, 8))
    found: list[Any] = [own.allocate_blocks(1, "a", free), own.allocate_blocks(3, "a", free)]
    found.append([own.allocate_blocks(1, "a", free), own.allocate_blocks(2, "b", free), list(free)])
    found.append(own.allocate_blocks(2, "c", deque([1])))
    for past, number in ((0, 3), (3, 2), (5, 2), (2, 8)):
        found.append([own.get_read_indices("a", past, number), own.get_seqlens_k("a", past, number)[1]])
    for past, number in ((0, 3), (5, 2), (6, 1), (8, 3), (13, 1)):
        found.append([own.get_write_indices("a", past, number), own.get_seqlens_k("a", past, number)[1]])
    own.free_blocks("a", free)
    return [*found, list(free), own.get_seqlens_k("b", 0, 1)[0]]


def _groups(function: Any) -> list[Any]:
    """Return layers in groups of as many of one kind, and the kinds."""
    _request("a", 1)
    found = []
    kinds: list[Any] = [
        ["full_attention"] * 3, ["sliding_attention", "full_attention"] * 2,
        ["sliding_attention"] * 4 + ["full_attention"] * 2, MIXED["layer_types"],
    ]  # fmt: skip
    for layers in kinds:
        config = config_of(num_hidden_layers=len(layers))
        config.layer_types = layers
        found.append([list(one) for one in function(config)])
    return found


def _paged(made: Any) -> Any:
    """Return a cache of six blocks of two ids, of a full layer and one that slides."""
    cache, full, sliding = made.__new__(made), *(
        _of("cache_manager", f"{name}AttentionCacheAllocator") for name in ("Full", "Sliding")
    )  # fmt: skip
    cache.block_size, cache.num_blocks = 2, 6
    cache._free_blocks = deque(range(6))
    cache.group_cache_managers = [full(0, 2), sliding(1, 2, 4)]
    cache.layer_index_to_group_indices = {0: (0, 0), 1: (1, 0)}
    cache.sliding_windows = {0: 1, 1: 4}
    cache.key_cache = [torch.zeros(13, 1, 1)]
    cache.value_cache = [torch.zeros(13, 1, 1)]
    return cache


def _pages(made: Any) -> list[Any]:
    """Return the keys of two layers, one of which slides, of a prompt of three ids and of one more."""
    _request("a", 1)
    cache, found = _paged(made), list[Any]()
    found.append([cache.allocate_blocks(2, "a"), cache.get_num_free_blocks(), cache.get_seqlens_k("a", 3, 1)])
    for past, number in ((0, 3), (3, 1)):
        read: list[list[int]] = [[], []]
        write: list[list[int]] = [[], []]
        cache.extend_read_indices("a", past, number, read)
        cache.extend_write_indices("a", past, number, write)
        found.append([read, write])
        for layer in range(2):
            states = (torch.arange(past, past + number) + 1.0 + 10 * layer)[None, None, :, None]
            places = [[*map(torch.tensor, one)] for one in (read, write)]
            keys, values = cache.update(states, -states, layer, *places)
            found.append([keys.flatten().int().tolist(), torch.equal(keys, -values)])
    found.append([cache.allocate_blocks(3, "b"), cache.allocate_blocks(1, "a")])
    cache.free_blocks("a")
    return [*found, cache.get_num_free_blocks()]


def _blocks(number: int, free: int) -> Any:
    """Return a cache of blocks of four ids that says which requests it frees."""
    cache = SimpleNamespace(num_blocks=number, block_size=4, _free_blocks=deque(range(free)), freed=[])

    def allocate(count: int, name: str) -> int | None:
        if len(cache._free_blocks) < count:
            return None
        for _ in range(count):
            cache._free_blocks.popleft()
        return count

    cache.allocate_blocks, cache.get_num_free_blocks = allocate, lambda: len(cache._free_blocks)
    cache.free_blocks = cache.freed.append
    return cache


def _scheduled(made: Any) -> list[Any]:
    """Return which requests are scheduled, with how many ids of which state, by budgets and blocks that are left."""
    _request("a", 1)  # other releases have other fields
    found = []
    for budget, number, free in (
        (20, 10, 10), (9, 10, 10), (6, 10, 10), (20, 10, 1), (20, 10, 3), (3, 10, 10), (20, 40, 9),
    ):  # fmt: skip
        scheduler = made(_blocks(number, free))
        waiting = [_request("long", 7), _request("short", 2), _request("third", 3)]
        active = [
            _request("drawn", 1, "DECODING", position_offset=6, allocated_blocks=2),
            _request("split", 2, "SPLIT_PENDING_REMAINDER", position_offset=2, allocated_blocks=1,
                     remaining_prompt_ids=[5, 6, 7]),
        ]  # fmt: skip
        scheduler.active_requests = {one.request_id: one for one in active}
        for one in waiting:
            scheduler.add_waiting_request(one)
        batch = scheduler.schedule_batch(budget)
        found.append([
            [[one.request_id, *map(len, (one.prompt_ids, one.remaining_prompt_ids)), one.status.value,
              one.allocated_blocks] for one in batch],
            list(scheduler.waiting_requests_order), sorted(scheduler.active_requests),
            scheduler.cache.get_num_free_blocks(),
        ])  # fmt: skip
    return found


def _ended(made: Any) -> list[Any]:
    """Return what is left after requests end, are cancelled, or continue with their cache."""
    _request("a", 1)  # other releases have other fields
    scheduler = made(_blocks(9, 9), retain_cache_on_finish=True)
    first = _request("a", 3, "DECODING", allocated_blocks=2, position_offset=5, static_outputs=[8, 9])
    scheduler.active_requests = {"a": first, "b": _request("b", 1, "DECODING")}
    scheduler.add_waiting_request(_request("c", 2))
    found: list[Any] = [scheduler.get_active_request_static_outputs(name) for name in ("a", "x")]
    scheduler.set_request_cancellation("c")
    found.append([scheduler.request_is_cancelled(name) for name in ("a", "c", "x")])
    scheduler.clear_cancelled_requests()
    left = list(scheduler.waiting_requests_order)
    found.append([left, bool(scheduler.has_pending_requests()), list(scheduler.cache.freed)])
    scheduler.finish_request("b", evict_from_cache=False)
    found.append(sorted(scheduler.active_requests))
    scheduler.finish_request("b")
    again = _request("a", 7)
    scheduler.add_waiting_request(again)
    found.append(
        [sorted(scheduler.active_requests), again.prompt_ids, again.allocated_blocks, again.position_offset]
    )
    return [*found, scheduler.cache.freed]


def _row(module: str, name: str, what: str, call: Callable[[Any], Any], right: Any) -> Row:
    return Row("samplers", f"{PLACE}.{module}:{name}", what, call, right, since="4.57")


# Sources: the documentation of each class and method.
OLDER_BATCH_ROWS: Sequence[Row] = (
    _row("requests", "RequestState", "ids that are kept", _tokens,
         [[[5, 6, 7], [False, False, False, True], "finished", 3], [[5, 6, 7], [False, False, True, False],
          "finished", 3], [[5], [True, False, False, False], "finished", 1], [[5, 6], [False, False, True, False],
          "finished", 2], [[], [False, False, False, False], "prefilling", 0], [[], [True, False, False, False],
          "finished", 0]]),
    _row("requests", "RequestState", "what is given out", _output,
         ["a", [0, 1], [7], "finished", "words", [], 4]),
    _row("cache_manager", "FullAttentionCacheAllocator", "blocks and places", _full,
         [2, 1, [1, None, [6, 7]], [[8, 9, 10, 11, 12], [11, 12], [15, 20]], ["full_attention", 5], [6, 7, 2, 3, 5],
          ["b"]]),
    _row("cache_manager", "SlidingAttentionCacheAllocator", "blocks and places of a window", _sliding,
         [1, 1, [0, 2, [6, 7]], None, [[-1, -1, -1], 3], [[8, 9, 10, -1, -1], 5], [[8, 9, 10, 11, 12, -1, -1], 7],
          [[8, 9, -1, -1, -1, -1, -1, -1, -1, -1], 10], [[8, 9, 10], 3], [[13, 8], 7], [[8], 6], [[10, 11, 12], 8],
          [[9], 6], [6, 7, 2, 3], "sliding_attention"]),
    _row("cache", "group_layers_by_attn_type", "groups of layers", _groups,
         [[[[0, 1, 2]], ["full_attention"]], [[[0, 2], [1, 3]], ["sliding_attention", "full_attention"]], [[[0, 1],
          [2, 3], [4, 5]], ["sliding_attention", "sliding_attention", "full_attention"]], [[[0], [2], [1]],
          ["full_attention", "full_attention", "sliding_attention"]]]),
    _row("cache", "PagedAttentionCache", "keys of pages", _pages,
         [[2, 2, {"full_attention": 4, "sliding_attention": 4}], [[[0, 1, 2], [-1, -1, -1]], [[0, 1, 2], [4, 5, 6]]],
          [[1, 2, 3], True], [[11, 12, 13], True], [[[0, 1, 2, 3], [4, 5, 6, -1]], [[3], [7]]], [[1, 2, 3, 4], True],
          [[11, 12, 13, 14], True], [None, 1], 6]),
    _row("scheduler", "FIFOScheduler", "requests by their order", _scheduled,
         [[[["drawn", 1, 0, "decoding", 2], ["split", 3, 0, "prefilling", 2], ["long", 7, 0, "prefilling", 3],
          ["short", 2, 0, "prefilling", 1], ["third", 3, 0, "prefilling", 2]], [], ["drawn", "long", "short", "split",
          "third"], 3], [[["drawn", 1, 0, "decoding", 2], ["split", 3, 0, "prefilling", 2], ["long", 5, 2,
          "prefilling_split", 2]], ["short", "third"], ["drawn", "long", "split"], 7], [[["drawn", 1, 0, "decoding",
          2], ["split", 3, 0, "prefilling", 2], ["long", 2, 5, "prefilling_split", 1]], ["short", "third"], ["drawn",
          "long", "split"], 8], [[["drawn", 1, 0, "decoding", 2]], ["long", "short", "third"], ["drawn", "split"], 1],
          [[["drawn", 1, 0, "decoding", 2], ["split", 3, 0, "prefilling", 2], ["short", 2, 0, "prefilling", 1]],
          ["third"], ["drawn", "long", "short", "split"], 1], [[["drawn", 1, 0, "decoding", 2], ["split", 2, 1,
          "prefilling_split", 1]], ["long", "short", "third"], ["drawn", "split"], 10], [[["drawn", 1, 0, "decoding",
          2], ["split", 3, 0, "prefilling", 2], ["long", 7, 0, "prefilling", 3]], ["short", "third"], ["drawn",
          "long", "split"], 5]]),
    _row("scheduler", "PrefillFirstScheduler", "requests with prompts first", _scheduled,
         [[[["split", 3, 0, "prefilling", 2], ["drawn", 1, 0, "decoding", 2], ["long", 7, 0, "prefilling", 3],
          ["short", 2, 0, "prefilling", 1], ["third", 3, 0, "prefilling", 2]], [], ["drawn", "long", "short", "split",
          "third"], 3], [[["split", 3, 0, "prefilling", 2], ["drawn", 1, 0, "decoding", 2], ["long", 5, 2,
          "prefilling_split", 2]], ["short", "third"], ["drawn", "long", "split"], 7], [[["split", 3, 0, "prefilling",
          2], ["drawn", 1, 0, "decoding", 2], ["long", 2, 5, "prefilling_split", 1]], ["short", "third"], ["drawn",
          "long", "split"], 8], [[["split", 3, 0, "prefilling", 2], ["drawn", 1, 0, "decoding", 2]], ["short",
          "third"], ["drawn", "long", "split"], 0], [[["split", 3, 0, "prefilling", 2], ["drawn", 1, 0, "decoding",
          2], ["short", 2, 0, "prefilling", 1]], [], ["drawn", "long", "short", "split", "third"], 1], [[["split", 3,
          0, "prefilling_split", 2]], ["long", "short", "third"], ["drawn", "split"], 9], [[["split", 3, 0,
          "prefilling", 2], ["drawn", 1, 0, "decoding", 2], ["long", 7, 0, "prefilling", 3], ["short", 2, 0,
          "prefilling", 1], ["third", 3, 0, "prefilling", 2]], [], ["drawn", "long", "short", "split", "third"], 2]]),
    _row("scheduler", "FIFOScheduler", "requests that end", _ended,
         [[8, 9], [], [False, True, True], [[], True, ["c"]], ["a", "b"], [[], [3, 4, 5, 6], 2, 5], ["c", "b"]]),
)  # fmt: skip
