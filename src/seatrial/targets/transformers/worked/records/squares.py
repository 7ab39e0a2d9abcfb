"""Models of pictures in squares, in parts, of unlike sizes or under masks: features, logits, losses and steps."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.answers import given, rows_of
from seatrial.targets.transformers.worked.records.completed import small_model
from seatrial.targets.transformers.worked.records.grids import (
    STEPS,
    by_row,
    classes_with,
    features_of,
    generated,
    loss_of,
    place_of,
)
from seatrial.targets.transformers.worked.records.layouts import (
    SIDES,
    Given,
    Inputs,
    Layout,
    drawn,
    given_by,
    names_of,
    option,
    rows_of_layout,
)

RECORD = "squares_record"
LAYOUTS: Mapping[str, Layout] = {
    "pictures": ((3, "I0", 2, "I1", 1), (2, "I2", 4), (6,)),
    "apart": ((5,), (1, "I2", 3, "I0", 2), (4, "I1")),
    "one a row": ((3, "I1", 2), (1, "I0", 5)),
    "films": ((2, "V0", 3), (1, "V1", 2), (4,)),
    "mixed": ((2, "V0", 2, "I0", 1), (3, "I1", 2), (1, "I2", 1, "V1", 2)),
}
SHAPES: Mapping[str, tuple[int, int]] = {"I0": (2, 1), "I1": (1, 2), "I2": (2, 2)}
"""Sides of pictures, in halves of the largest."""
FRAMES = 2
SUFFIX = 2
"""Places at the end of a row that are answers."""


def _squares(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    channels = option(model.config, ["num_channels", "in_channels", "in_chans"], 3)
    return {"pixel_values": torch.stack([drawn(name, channels, side, side) for name in names])}


def _masked(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    """Return squares whose pictures are narrower or lower, under a mask."""
    inputs = _squares(model, names, layout, side)
    mask = torch.zeros(len(names), side, side, dtype=torch.bool)
    for own, name in zip(mask, names, strict=True):
        high, wide = SHAPES[name]
        own[: high * side // 2, : wide * side // 2] = True
    inputs["pixel_values"] = inputs["pixel_values"] * mask[:, None]
    return {**inputs, "pixel_mask": mask}


def _sized(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    """Return squares that pictures of unlike sizes fill in part."""
    found = _masked(model, names, layout, side)
    sizes = [[one * side // 2 for one in SHAPES[name]] for name in names]
    return {"pixel_values": found["pixel_values"], "image_sizes": torch.tensor(sizes)}


def _parts(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    """Return pictures of unlike sizes in two parts and as a whole."""
    sizes = {"I0": (side, 2 * side), "I1": (2 * side, side), "I2": (side - side // 4, 2 * side)}
    values = torch.stack([drawn(name, 3, 3, side, side) for name in names])
    found: Inputs = {"pixel_values": values, "image_sizes": torch.tensor([sizes[name] for name in names])}
    if "batch_num_images" in inspect.signature(model.forward).parameters:
        found["batch_num_images"] = torch.tensor([len(names_of((row,), "I")) for row in layout])
    return found


def _tiles(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    return {"pixel_values": torch.stack([drawn(name, 2, 3, side, side) for name in names])}


def _by_row(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    """Return pictures of each row, of which some rows have fewer, under a mask of what they fill."""
    masked = _masked(model, names, layout, side)
    rows = [names_of((row,), "I") for row in layout]
    most = max(map(len, rows))
    values = torch.zeros(len(rows), most, 3, side, side)
    mask = torch.zeros(len(rows), most, side, side, dtype=torch.bool)
    for number, own in enumerate(rows):
        for place, name in enumerate(own):
            at = names.index(name)
            values[number, place], mask[number, place] = masked["pixel_values"][at], masked["pixel_mask"][at]
    return {"pixel_values": values, "pixel_attention_mask": mask}


def _shapes(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    """Return flattened patches of pictures of unlike shapes, padded, with their shapes."""
    patch = option(model.config, ["patch_size"], 4)
    if model.config.model_type == "gemma4_unified":
        patch *= option(model.config, ["pooling_kernel_size"], 1)
    shapes = [(4, 4), (2, 6), (4, 2)]
    values = torch.zeros(len(names), 16, 3 * patch * patch)
    mask = torch.zeros(len(names), 16, dtype=torch.long)
    for own, shown, name in zip(values, mask, names, strict=True):
        high, wide = shapes[int(name[1])]
        own[: high * wide] = drawn(name, high * wide, 3 * patch * patch)
        shown[: high * wide] = 1
    found = torch.tensor([shapes[int(name[1])] for name in names])
    return {"pixel_values": values, "spatial_shapes": found, "pixel_attention_mask": mask}


def _aspects(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    """Return pictures of each row in one or two tiles of four, some rows with fewer, with ratios and masks."""
    rows = [names_of((row,), "I") for row in layout]
    most, tiles = max(map(len, rows)), model.config.vision_config.max_num_tiles
    values = torch.zeros(len(rows), most, tiles, 3, side, side)
    ratios, shown = torch.zeros(len(rows), most, dtype=torch.long), torch.zeros(len(rows), most, tiles).long()
    for number, own in enumerate(rows):
        for place, name in enumerate(own):
            num = 1 + int(name[1]) % 2
            values[number, place, :num] = drawn(name, num, 3, side, side)
            ratios[number, place], shown[number, place, :num] = num, 1
    return {"pixel_values": values, "aspect_ratio_ids": ratios, "aspect_ratio_mask": shown}


def _seen(model: Any, inputs: Inputs) -> Tensor:
    """Return which places see which tiles: those from the place of a picture on, [B, T, pictures, tiles]."""
    marks = inputs["input_ids"] == option(model.config, ["image_token_id", "image_token_index"], 0)
    num = torch.arange(1, inputs["aspect_ratio_ids"].shape[1] + 1)
    after = marks.long().cumsum(1)[..., None] >= num
    seen: Tensor = after[..., None] & (inputs["aspect_ratio_mask"] > 0)[:, None]
    return seen.long()


def _placed(model: Any, names: Sequence[str], layout: Layout, side: int) -> Inputs:
    """Return flattened patches with their columns and rows, padded by places of -1."""
    found = _shapes(model, names, layout, side)
    places = torch.full((len(names), 16, 2), -1)
    for own, (high, wide) in zip(places, found["spatial_shapes"].tolist(), strict=True):
        grid = [[column, row] for row in range(high) for column in range(wide)]
        own[: high * wide] = torch.tensor(grid)
    return {"pixel_values": found["pixel_values"], "image_position_ids": places}


FORMS: Mapping[str, tuple[frozenset[str], Callable[[Any, Sequence[str], Layout, int], Inputs]]] = {
    "parts": (frozenset({"image_sizes"}), _parts),
    "sized": (frozenset({"image_sizes"}), _sized),
    "shapes": (frozenset({"spatial_shapes"}), _shapes),
    "placed": (frozenset({"image_position_ids"}), _placed),
    "aspects": (frozenset({"aspect_ratio_ids"}), _aspects),
    "by row": (frozenset({"pixel_attention_mask"}), _by_row),
    "masked": (frozenset({"pixel_mask"}), _masked),
    "squares": (frozenset(), _squares),
    "tiles": (frozenset(), _tiles),
}
"""Forms of pictures, with the parameters that they need."""


def _lengths(found: Any, num: int) -> list[int]:
    """Return how many places each picture takes."""
    pooled = getattr(found, "pooler_output", found)
    found = getattr(found, "last_hidden_state", None) if pooled is None else pooled
    if isinstance(found, tuple) and len(found) and isinstance(found[0], (list, tuple)):
        found = found[0]
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Tensor) and num != 2:
        found = found[0]  # features and how many each picture has
    if isinstance(found, (list, tuple)) and len(found) == num:
        return [one.numel() // one.shape[-1] for one in found]
    if isinstance(found, Tensor) and found.dim() > 2 and found.shape[0] == num:
        return [found[0].numel() // found.shape[-1]] * num
    if isinstance(found, Tensor):
        return [found.numel() // found.shape[-1] // num] * num
    raise NotServed("features of another form")


STRATEGY = "vision_feature_select_strategy"


def _features(model: Any, method: str, inputs: Inputs, num: int) -> list[int]:
    own = dict(inputs)
    configs = (model.config, getattr(model.config, "vision_config", None))
    strategy = next((one for one in (getattr(config, STRATEGY, None) for config in configs) if one), None)
    if strategy is not None:
        own.setdefault(STRATEGY, strategy)
    if "pixel_values_videos" in inputs:
        own["pixel_values"] = inputs["pixel_values_videos"]
    return _lengths(given_by(model, method, own), num)


@lru_cache(maxsize=1)
def form_of(model: Any) -> tuple[str, int]:
    """Return the first form of pictures that a model takes, with the side of a square.

    Raises:
        ValueError: it takes none of them.
    """
    takes = inspect.signature(model.forward).parameters
    vision = getattr(model.config, "vision_config", model.config)
    known = option(vision, ["image_size", "img_size"], 16)
    for name, (needed, _) in FORMS.items():
        if needed <= {*takes}:
            for side in dict.fromkeys((known, 16, 8, 32, 64)):
                try:
                    inputs = _inputs(model, LAYOUTS["pictures"], name, side, "left")
                    inputs.pop("labels", None)
                    with torch.no_grad():
                        model(**inputs)
                except ImportError:
                    raise
                except Exception:  # noqa: BLE001  pictures of another form
                    continue
                return name, side
    raise ValueError("pictures of another form")


def _inputs(
    model: Any, layout: Layout, form: str, side: int, padded: str, more: Mapping[str, Any] | None = None
) -> Inputs:
    """Return the rows of a layout; arguments of features decide how many places each picture takes."""
    inputs: Inputs = {}
    counts: dict[str, int] = {}
    pictures, films = names_of(layout, "I"), names_of(layout, "V")
    if form == "aspects" and pictures and not films:
        inputs = _aspects(model, pictures, layout, side)
        found = rows_of_layout(model, layout, Given(inputs, dict.fromkeys(pictures, 1)), padded)
        return {**found, "cross_attention_mask": _seen(model, found)}
    if pictures:
        inputs |= FORMS[form][1](model, pictures, layout, side)
        own = {**inputs, **(more or {})}
        counts |= dict(zip(pictures, _features(model, "get_image_features", own, len(pictures)), strict=True))
    if films:
        if "pixel_values_videos" not in inspect.signature(model.forward).parameters:
            raise NotServed("no films")
        values = torch.stack([drawn(name, FRAMES, 3, side, side) for name in films])
        given_films = {"pixel_values_videos": values}
        inputs |= given_films
        counts |= dict(
            zip(films, _features(model, "get_video_features", given_films, len(films)), strict=True)
        )
    return rows_of_layout(model, layout, Given(inputs, counts), padded)


MORE: Mapping[str, Mapping[str, Any]] = {
    "last layer": {"vision_feature_layer": -1},
    "two layers": {"vision_feature_layer": [-2, -1]},
    "whole": {"vision_feature_select_strategy": "full"},
    "without the first": {"vision_feature_select_strategy": "default"},
    "a ratio": {"vision_aspect_ratio": "anyres_max_2"},
    "last logits": {"logits_to_keep": 2},
    "uncached": {"use_cache": False},
}
"""Arguments of a call by name."""


def _changed(model: Any, inputs: Inputs, what: str) -> Inputs:
    """Return inputs with an argument, with embeddings of ids, or with types of tokens that are answers."""
    takes = inspect.signature(model.forward).parameters
    if what == "embedded":
        ids = inputs.pop("input_ids")
        return {**inputs, "inputs_embeds": model.get_input_embeddings()(ids)}
    if what == "answers":
        if "token_type_ids" not in takes:
            raise NotServed("no types of tokens")
        places = torch.arange(inputs["input_ids"].shape[1])
        types = (places >= len(places) - SUFFIX).long().expand_as(inputs["input_ids"])
        return {**inputs, "token_type_ids": types.contiguous()}
    more = MORE.get(what, {})
    if not {*more} <= {*takes}:
        raise NotServed(f"no {sorted(more)}")
    return {**inputs, **more}


def _ask(model_class: Any, case: str) -> Any:
    asked = json.loads(case)
    what = asked["what"]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(model_class)
        form, side = form_of(model)
        padded = asked.get("side", "left")
        inputs = _inputs(model, LAYOUTS[asked["layout"]], form, side, padded, MORE.get(what))
        if what.startswith("get_"):
            if (
                what == "get_video_features"
                and "pixel_values_videos" not in inspect.signature(getattr(model, what)).parameters
            ):
                inputs["pixel_values"] = inputs["pixel_values_videos"]
            return features_of(model, what, inputs)
        if what in ("loss", "loss of answers"):
            inputs = _changed(model, inputs, "answers") if what == "loss of answers" else inputs
            with torch.enable_grad():
                return loss_of(model, inputs)
        if what in STEPS:
            return generated(model, inputs, **STEPS[what])
        inputs.pop("labels", None)
        shown = {"attention_mask": inputs["attention_mask"]}
        logits = model(**_changed(model, inputs, what)).logits
        if what == "last logits" or logits.shape[:2] != shown["attention_mask"].shape:
            shown = {"attention_mask": torch.ones(logits.shape[:2])}
        return by_row(logits, shown)


def _cases(model_class: Any) -> Iterator[str]:
    form_of(small_model(model_class))
    for layout in LAYOUTS:
        for side in SIDES:
            yield json.dumps({"what": "logits", "layout": layout, "side": side})
        if layout == "one a row":
            continue
        yield json.dumps({"what": "loss", "layout": layout})
        yield json.dumps({"what": "generated", "layout": layout})
        if layout == "films":
            yield json.dumps({"what": "get_video_features", "layout": layout})
            continue
        yield json.dumps({"what": "get_image_features", "layout": layout})
        if layout == "pictures":
            for what in (
                "uncached steps",
                "static steps",
                "beams",
                "embedded",
                "answers",
                "loss of answers",
                *MORE,
            ):
                yield json.dumps({"what": what, "layout": layout})


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given(classes_with("pixel_values", "input_ids", without=["image_grid_thw"]), _cases, _ask)


SQUARE_ROWS: Sequence[Row] = rows_of(RECORD, place_of, _ask, "pictures in squares and parts", "inputs")
