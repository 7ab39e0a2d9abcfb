"""Worked examples of Transformers' `generate` that continues from a filled cache, and of requests that end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.calls import PAD, causal
from seatrial.targets.transformers.worked.drafts import WAYS
from seatrial.targets.transformers.worked.scores import ids_of

PROMPT = (5, 9, 11, 4, 9, 11, 7, 8, 6)
OTHER = (PAD, PAD, 15, 20, 4, 9, 20, 4, 9)
"""Padded on the left."""
NUM_NEW = 6
FILLED = (4, 8)
"""Numbers of ids of the prompt that a cache holds."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "a limit of the whole": {"max_length": len(PROMPT) + 4, "max_new_tokens": None},
    "a penalty": {"repetition_penalty": 1.6},
    "no pairs twice": {"no_repeat_ngram_size": 2},
    "a bias": {"sequence_bias": [[[4], 6.0], [[4, 8], 9.0]]},
    "bans": {"suppress_tokens": list(range(20, 27))},
    "bans at the start": {"begin_suppress_tokens": list(range(4, 20))},
    "a least length": {"min_new_tokens": 5, "eos_token_id": [4, 7, 8, 11]},
    "a growing score of the end": {"exponential_decay_length_penalty": (1, 1.5), "eos_token_id": [4]},
    "a last id": {"forced_eos_token_id": 7},
    "draws": {"do_sample": True, "temperature": 0.8},
    "draws of the best": {"do_sample": True, "top_k": 4, "top_p": 0.9},
}  # fmt: skip


def _filled(model: Any, rows: Tensor, mask: Tensor, number: int, kind: str) -> Mapping[str, Any]:
    """Return the cache of the first ids of rows, as an argument."""
    cache_class: Any = find_name("transformers", [f"transformers:{kind}"])
    more = {"max_cache_len": rows.shape[1] + NUM_NEW} if kind == "StaticCache" else {}
    cache = cache_class(config=model.config, **more)
    name = "cache" if "cache" in model.forward.__code__.co_varnames else "past_key_values"
    places = (mask.cumsum(-1) - 1).clamp(min=0)[:, :number]
    with torch.no_grad():
        model(
            input_ids=rows[:, :number],
            attention_mask=mask[:, :number],
            position_ids=places,
            use_cache=True,
            **{name: cache},
        )
    return {name: cache}


def _generated(model: Any, given: Mapping[str, Any], start: int) -> list[list[int]]:
    """Return the new ids."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = model.generate(
            **{
                "max_new_tokens": NUM_NEW,
                "do_sample": False,
                "eos_token_id": [99],
                "pad_token_id": PAD,
                **given,
            }
        )
    rows: list[list[int]] = found[:, start:].tolist()
    return rows


def _forms(model: Any, rows: Tensor, mask: Tensor, number: int) -> Mapping[str, Mapping[str, Any]]:
    """Return the ways to give a prompt whose first ids a cache holds."""
    whole = {"input_ids": rows, "attention_mask": mask}
    return {
        "all ids": whole,
        "all ids, places": {**whole, "position_ids": (mask.cumsum(-1) - 1).clamp(min=0)},
        "new ids": {"input_ids": rows[:, number:], "attention_mask": mask},
        "embeddings and ids": {**whole, "inputs_embeds": model.get_input_embeddings()(rows).detach()},
    }


def _going_on(
    table: Mapping[str, Callable[[], Mapping[str, Any]]],
    forms: Sequence[str],
    kinds: Sequence[str],
    chunks: Sequence[int | None],
    batches: Sequence[Sequence[Sequence[int]]],
    mixin: Any,
) -> list[str]:
    """Return the options with which a filled cache gives other new ids than none, of each kind and size."""
    model, wrong = causal(), []
    for batch, (name, make) in itertools.product(batches, table.items()):
        rows = ids_of(*batch)
        mask, options = (rows != PAD).long(), make()
        due = _generated(model, {"input_ids": rows, "attention_mask": mask, **options}, rows.shape[1])
        for kind, number, chunk in itertools.product(kinds, FILLED, chunks):
            table_of_forms = _forms(model, rows, mask, number)
            for form in forms:
                given = table_of_forms[form]
                more = {"prefill_chunk_size": chunk} if chunk else {}
                cache = _filled(model, rows, mask, number, kind)
                found = _generated(model, {**given, **options, **cache, **more}, given["input_ids"].shape[1])
                if found != due:
                    what = f"{len(rows)} rows, {name}, {form}, chunks of {chunk}, {kind} of {number} ids"
                    wrong.append(f"{what}: {found}, {due} are due")
    return wrong[:5]


def _requested(made: Any) -> list[list[int]]:
    """Return what requests keep of ids 5, 6, 7, 8, 9 by their ends and lengths."""
    status: Any = find_name(
        "transformers", ["transformers.generation.continuous_batching.requests:RequestStatus"]
    )
    found = []
    for end, limit in (
        (None, 9), (-1, 9), (7, 9), ([7], 9), ([20, 7], 9), ([8, 6], 9), ([-1, 8], 9), ([], 9), ([20, 8], 2), (6, 2),
        ([5], 1), (None, 3),
    ):  # fmt: skip
        request = made(request_id="a", initial_tokens=[3, 4], max_new_tokens=limit, eos_token_id=end)
        request._status = status.DECODING
        for token in (5, 6, 7, 8, 9):
            if request.update_and_check_completion(token, None):
                break
        found.append([*request.generated_tokens, int(request.status == status.FINISHED)])
    return found


PLACE = "transformers.generation.utils:GenerationMixin"
REQUEST = "transformers.generation.continuous_batching.requests:RequestState"
FORMS = ("all ids", "all ids, places", "new ids", "embeddings and ids")
ALL = {name: partial(dict[str, Any], options) for name, options in OPTIONS.items()}
FEW = {name: ALL[name] for name in ("plain", "draws")}
ALONE: Sequence[Sequence[Sequence[int]]] = ((PROMPT,),)
BATCHES: Sequence[Sequence[Sequence[int]]] = ((PROMPT,), (PROMPT, OTHER))


def _rows(cache: str) -> Sequence[Row]:
    """Return the rows of a cache of a kind, whose releases raise where others are wrong."""

    def row(what: str, table: Any, forms: Sequence[str], chunks: Sequence[int | None], since: str) -> Row:
        call = partial(_going_on, table, forms, [cache], chunks, BATCHES)
        return Row("inputs", PLACE, f"{what}, {cache}", call, [], since=since)

    return (
        row("prompts of which a cache holds a part", FEW, FORMS, [None], "5.21"),
        row("options after a cache that is filled", ALL, FORMS[:1], [None], "5.21"),
        row("options after a cache that is filled, in chunks", ALL, FORMS[:1], [2], "5.21"),
        row("chunks after a cache that is filled", FEW, FORMS[:2], [1, 2, 3, 5, 9, 50], "5.21"),
    )


# Sources: the documentation of GenerationMixin.generate and of GenerationConfig, and the page on caches.
CONTINUED_ROWS: Sequence[Row] = (
    *_rows("DynamicCache"),
    *_rows("StaticCache"),
    Row("inputs", PLACE, "candidates after a cache that is filled",
        partial(_going_on, WAYS, FORMS[:1], ["DynamicCache"], [None], ALONE), [], since="5.24",
        known=KnownFailure("all ids are put in once more", finding="Transformers: candidates after a filled cache")),
    Row("edges", REQUEST, "ends of requests", _requested,
        [[5, 6, 7, 8, 9, 0], [5, 6, 7, 8, 9, 0], [5, 6, 7, 1], [5, 6, 7, 1], [5, 6, 7, 1], [5, 6, 1], [5, 6, 7, 8, 1],
         [5, 6, 7, 8, 9, 0], [5, 6, 1], [5, 6, 1], [5, 1], [5, 6, 7, 1]], since="5.24"),
)  # fmt: skip
