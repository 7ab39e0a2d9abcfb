"""Models of pictures and films in grids of patches, with other options and other arguments, on record."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.answers import given, rows_of
from seatrial.targets.transformers.worked.records.completed import small_model
from seatrial.targets.transformers.worked.records.grids import (
    NUM_NEW,
    by_row,
    classes,
    generated,
    inputs_of,
    loss_of,
    place_of,
)
from seatrial.targets.transformers.worked.records.layouts import Inputs

RECORD = "grid_options_record"
OPTIONS: Mapping[str, Sequence[Any]] = {
    "vision_config.window_size": (16, 8),
    "vision_config.fullatt_block_indexes": ([0], [0, 1]),
    "vision_config.deepstack_visual_indexes": ([1], [0, 1]),
    "vision_config.tokens_per_second": (2, 25),
    "vision_config.spatial_merge_size": (1,),
    "vision_config.temporal_patch_size": (1,),
    "vision_config.num_position_embeddings": (16,),
    "vision_config.hidden_act": ("relu",),
    "vision_config.image_size": (16, 32),
    "vision_config.rms_norm_eps": (0.1,),
    "vision_config.attention_bias": (True, False),
    "vision_config.qkv_bias": (True, False),
    "vision_config.use_temporal_encoding": (True, False),
    "vision_config.use_absolute_position_embeddings": (True, False),
    "vision_config.temporal_merge_size": (1,),
    "position_id_per_seconds": (5,),
    "seconds_per_chunk": (1,),
    "text_config.sliding_window": (4,),
    "text_config.use_sliding_window": (True,),
    "text_config.num_experts_per_tok": (1,),
    "text_config.norm_topk_prob": (True, False),
    "text_config.decoder_sparse_step": (2,),
    "text_config.mlp_only_layers": ([0],),
    "text_config.first_k_dense_replace": (1,),
    "text_config.attention_bias": (True, False),
    "text_config.partial_rotary_factor": (1.0,),
}
"""Values of options of the whole, of its eyes and of its text."""
LAYOUT_FORMS = (
    ("mixed", "whole"),
    ("mixed", "in frames"),
    ("large pictures", "whole"),
    ("films", "in frames of pictures"),
)


def _given(model: Any, inputs: Inputs, asked: Mapping[str, Any]) -> Inputs:
    """Return inputs with positions, embeddings or fewer arguments."""
    what, base = (
        asked["argument"],
        model if hasattr(model, "get_rope_index") else getattr(model, "model", model),
    )
    takes = inspect.signature(model.forward).parameters
    if what == "embedded":
        ids = inputs.pop("input_ids")
        return {**inputs, "inputs_embeds": model.get_input_embeddings()(ids)}
    if what.startswith("positions"):
        if not hasattr(base, "get_rope_index"):
            raise NotServed("positions of one axis")
        names = inspect.signature(base.get_rope_index).parameters
        places = base.get_rope_index(**{name: value for name, value in inputs.items() if name in names})[0]
        if what == "positions of four axes":
            text = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
            places = torch.cat([text[None].to(places.dtype), places[:3]])
        return {**inputs, "position_ids": places + (2 if what == "positions that are shifted" else 0)}
    if what == "without types":
        if "mm_token_type_ids" not in inputs:
            raise NotServed("no types of places")
        return {name: value for name, value in inputs.items() if name != "mm_token_type_ids"}
    more: Mapping[str, Any] = ARGUMENTS[what]
    has_routers = what == "routers" and hasattr(model.config.get_text_config(), "router_aux_loss_coef")
    if not {*more} <= {*takes} and not has_routers:
        raise NotServed(f"no {sorted(more)}")
    return {**inputs, **more}


ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "embedded": {},
    "positions": {},
    "positions of four axes": {},
    "positions that are shifted": {},
    "without types": {},
    "last logits": {"logits_to_keep": 2},
    "uncached": {"use_cache": False},
    "routers": {"output_router_logits": True},
}


def _after_another(model: Any, inputs: Inputs, asked: Mapping[str, Any]) -> Any:
    """Return what generation of rows gives after that of others."""
    generated(model, inputs_of(model, {**asked, "layout": "neighbours", "form": "whole"}))
    return generated(model, inputs)


def _longer(model: Any, inputs: Inputs, asked: Mapping[str, Any]) -> Any:
    """Return the logits of rows together with their answers."""
    inputs = {name: value for name, value in inputs.items() if name != "labels"}
    found = model.generate(
        **inputs, do_sample=False, max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW, pad_token_id=0
    )
    more = found[:, inputs["input_ids"].shape[1] :]
    mask = torch.cat([inputs["attention_mask"], torch.ones_like(more)], 1)
    longer = {**inputs, "input_ids": found, "attention_mask": mask}
    if "mm_token_type_ids" in inputs:
        longer["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], 1)
    return by_row(model(**longer).logits, longer)


def _several(model: Any, inputs: Inputs, asked: Mapping[str, Any]) -> Any:
    """Return two answers of each row, and their scores."""
    torch.manual_seed(0)
    inputs = {name: value for name, value in inputs.items() if name != "labels"}
    found = model.generate(
        **inputs, num_return_sequences=2, num_beams=2, max_new_tokens=2, min_new_tokens=2, do_sample=False,
        pad_token_id=0, return_dict_in_generate=True, output_scores=True,
    )  # fmt: skip
    return found.sequences[:, -2:], found.sequences_scores


CALLS: Mapping[str, Callable[[Any, Inputs, Mapping[str, Any]], Any]] = {
    "after another": _after_another,
    "longer rows": _longer,
    "several": _several,
}


def _ask(model_class: Any, case: str) -> Any:
    asked = json.loads(case)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(
            model_class, json.dumps(asked.get("options", {})), asked.get("attention", "eager")
        )
        inputs = inputs_of(model, asked)
        if "call" in asked:
            return CALLS[asked["call"]](model, inputs, asked)
        if "argument" in asked:
            inputs = _given(model, inputs, asked)
        if asked.get("loss"):
            with torch.enable_grad():
                return loss_of(model, inputs)
        inputs.pop("labels", None)
        logits = model(**inputs).logits
        shown = inputs if logits.shape[1] > 2 else {"attention_mask": torch.ones(logits.shape[:2])}
        return by_row(logits, shown)


def _cases(model_class: Any) -> Iterator[str]:
    config = small_model(model_class).config
    for layout, form in LAYOUT_FORMS:
        base = {"layout": layout, "form": form}
        yield json.dumps({**base, "attention": "sdpa"})
        for argument in ARGUMENTS:
            yield json.dumps({**base, "argument": argument, "loss": argument == "routers"})
        for call in CALLS:
            yield json.dumps({**base, "call": call})
    for place, values in OPTIONS.items():
        part, _, option = place.rpartition(".")
        owner = getattr(config, part, None) if part else config
        if owner is not None and option in vars(owner):
            for value in values:
                for layout, form in LAYOUT_FORMS:
                    yield json.dumps({"layout": layout, "form": form, "options": {place: value}})


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given(classes(), _cases, _ask)


GRID_OPTION_ROWS: Sequence[Row] = rows_of(RECORD, place_of, _ask, "options of pictures and films", "inputs")
