"""Worked examples of caches that a caller keeps over other calls of `generate`, for pairs of options."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.answered_pairs import Table, cases_of_pairs
from seatrial.targets.transformers.worked.plain_decoding import PAD, model_of, refused
from seatrial.targets.transformers.worked.weights import LATER

FIRST = torch.tensor([[5, 9, 1, 11, 4, 7], [7, 1, 8, 7, 20, 3]])
OTHER = torch.tensor([[20, 1, 3, 12, 8, 4], [2, 6, 6, 21, 9, 10]])
LONG = 20
TABLE: Table = {
    "kind": {"Llama": "Llama", "a window": "Mistral with a window", "Bart": "Bart"},
    "cache": {"a cache": {}, "static": {"cache_implementation": "static"}},
    "rows": {"a row": 1, "two rows": 2},
    "earlier": {"nothing before": 0, "a long call before": LONG, "a short call before": 2},
    "between": {"other prompts": lambda rows: OTHER[:rows], "the same prompts": lambda rows: FIRST[:rows],
                "shorter prompts": lambda rows: OTHER[:rows, :3],
                "more rows": lambda rows: torch.cat([OTHER, FIRST])[: 2 * rows]},
    "later": {"as long": 6, "longer": 15, "shorter": 2},
    "decode": {"greedy": {}, "the surest": {"do_sample": True, "top_k": 1}, "two beams": {"num_beams": 2}},
    "logs": {"ids": {}, "logits": {"output_logits": True, "output_scores": True}},
}  # fmt: skip


def _states(cache: Any) -> list[Tensor]:
    """Return the keys and values of every layer, of both halves behind an encoder."""
    halves = [getattr(cache, name, None) for name in ("self_attention_cache", "cross_attention_cache")]
    parts = [one for one in halves if one is not None] or [cache]
    layers = [layer for one in parts for layer in one.layers]
    return [value for layer in layers for value in (layer.keys, layer.values)]


def _next(model: Any, rows: Tensor, prompts: Tensor, cache: Any) -> Tensor:
    """Return the logits after rows: of a cache that holds all but the last id, or without one; (R, V)."""
    with torch.no_grad():
        if cache is None:
            given = (
                {"decoder_input_ids": rows, "input_ids": prompts}
                if prompts is not rows
                else {"input_ids": rows}
            )
            found: Tensor = model(**given, use_cache=False).logits[:, -1]
            return found
        place = rows.shape[1] - 1
        if prompts is not rows:
            encoded = model.get_encoder()(input_ids=prompts)
            given = {"decoder_input_ids": rows[:, -1:], "encoder_outputs": encoded}
        else:
            given = {"input_ids": rows[:, -1:], "position_ids": torch.full((len(rows), 1), place)}
        if before("transformers", "5")(None):
            given["cache_position"] = torch.tensor([place])
        last: Tensor = model(**given, past_key_values=cache, use_cache=True).logits[:, -1]
    return last


def _faults(case: Mapping[str, Any], mixin: Any) -> list[str]:
    """Return what other calls change of a result that is kept, and where its cache does not continue as the ids do."""
    model = copy.copy(model_of(case["kind"]))
    model.__dict__.pop("_cache", None)
    bart = case["kind"] == "Bart"
    options = {"do_sample": False, "eos_token_id": -1, "pad_token_id": PAD, "return_dict_in_generate": True,
               "disable_compile": True, **case["cache"], **case["decode"], **case["logs"]}  # fmt: skip
    prompts = FIRST[: case["rows"]]

    def asked(ids: Tensor, num_new: int) -> Any:
        return model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_new, **options)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if case["earlier"]:
                asked(OTHER[: case["rows"]], case["earlier"])
            kept = asked(prompts, 6)
            cache = kept.past_key_values
            held = [kept.sequences, *_states(cache), *(kept.get("logits") or ()), *(kept.get("scores") or ())]
            values = [one.clone() for one in held]
            asked(case["between"](case["rows"]), case["later"])
    except (ValueError, NotImplementedError) as error:
        raise refused(error) from error
    now = [kept.sequences, *_states(cache), *(kept.get("logits") or ()), *(kept.get("scores") or ())]
    changed = sum(not torch.equal(one, value) for one, value in zip(now, values, strict=True))
    wrong = (
        [f"{changed} of {len(values)} tensors of the first result are changed by the second call"]
        if changed
        else []
    )
    # The cache of beams has the rows of all of them, and a static one of a first call holds no other id.
    if "num_beams" in case["decode"] or (case["cache"] and case["earlier"] < LONG):
        return wrong
    rows = kept.sequences
    found, due = (_next(model, rows, prompts if bart else rows, one) for one in (cache, None))
    gap = float((found - due).abs().max())
    return (
        wrong
        if gap < 1e-3
        else [*wrong, f"the cache continues with logits that are {gap} away from those of its ids"]
    )


SHARED = KnownFailure(
    "a model gives one static cache to every call of it",
    finding=LATER,
    releases=before("transformers", "5.15"),
)


def _cases() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield pairs of options, and calls of every kind and cache that find one that is long enough."""
    yield from cases_of_pairs(TABLE)
    plain = {name: next(iter(values.values())) for name, values in TABLE.items()} | {"earlier": LONG}
    names = ("kind", "cache", "between")
    for chosen in itertools.product(*(TABLE[name].items() for name in names)):
        found = dict(zip(names, (value for _, value in chosen), strict=True))
        yield f"{', '.join(name for name, _ in chosen)}, after a long call", {**plain, **found}


def _rows() -> Iterator[Row]:
    for name, case in _cases():
        yield Row(
            "combinations", "transformers.generation.utils:GenerationMixin", f"caches that are kept: {name}",
            partial(_faults, case), [], since="4.57", known=SHARED if case["cache"] else None,
        )  # fmt: skip


# Source: the documentation of caches: the cache of a result continues its ids.
KEPT_CACHE_ROWS: Sequence[Row] = tuple(_rows())
