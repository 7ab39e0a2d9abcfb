"""Models of texts and sounds of unlike lengths, alone, several a row, next to pictures and in films, on record."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.class_configs import parts_of
from seatrial.targets.transformers.class_inputs import BINS
from seatrial.targets.transformers.worked.records.answers import given, rows_of
from seatrial.targets.transformers.worked.records.completed import small_model
from seatrial.targets.transformers.worked.records.grids import (
    OMNI,
    classes_with,
    features_of,
    outputs_of,
    place_of,
    whole_numbers,
)
from seatrial.targets.transformers.worked.records.layouts import (
    SIDES,
    Given,
    Inputs,
    Layout,
    drawn,
    given_by,
    in_grids,
    names_of,
    rows_of_layout,
)

RECORD = "hearing_record"
LAYOUTS: Mapping[str, Layout] = {
    "sounds": ((3, "A0", 2, "A1", 1), (2, "A2", 4), (6,)),
    "apart": ((5,), (1, "A2", 3, "A0", 2), (4, "A1")),
    "one a row": ((3, "A1", 2), (1, "A0", 5)),
    "all": (("A0", 2, "I0", 1), (1, "V1", 2, "A1"), (4,)),
    "in a film": (("I1", 2), (3, "F", 4)),
}
PARTS: Mapping[str, float] = {"A0": 1.0, "A1": 0.4, "A2": 0.7}
"""Of the longest sound, how long each is."""
FILM = (4, 4, 4)
MASKS = ("feature_attention_mask", "input_features_mask")
SECONDS_PER_FRAME = 1.0


def _sounds(names: Sequence[str], bins: int, length: int, last: bool, mask: str | None) -> Inputs:
    """Return features of sounds, padded, and their mask if the model takes one."""
    values = torch.stack([drawn(name, bins, length) for name in names])
    shown = torch.zeros(len(names), length, dtype=torch.long)
    for own, name in zip(shown, names, strict=True):
        own[: int(PARTS[name] * length)] = 1
    if mask is not None:
        values = values * shown[:, None]
    values = values.transpose(1, 2).contiguous() if last else values
    return {"input_features": values, **({} if mask is None else {mask: shown})}


def _base(model: Any) -> Any:
    return model if hasattr(model, "get_audio_features") else getattr(model, "model", model)


def _counts(model: Any, sounds: Inputs) -> list[int]:
    """Return how many places each sound takes, when it is alone."""
    if not hasattr(_base(model), "get_audio_features"):
        lengths = next(sounds[name] for name in MASKS if name in sounds).sum(-1)
        tower = getattr(model, "audio_tower", None) or model.model.audio_tower
        return [int(one) for one in tower._get_feat_extract_output_lengths(lengths)[1]]
    found = []
    for number in range(len(sounds["input_features"])):
        own = {name: value[number : number + 1] for name, value in sounds.items()}
        one = given_by(model, "get_audio_features", own)
        one = getattr(one, "pooler_output", one)
        one = one[0] if isinstance(one, (tuple, list)) else one
        found.append(one.numel() // one.shape[-1])
    return found


Form = tuple[int, int, bool, str | None]
"""Features of a moment, moments, whether features are last, and the name of the mask."""


@lru_cache(maxsize=1)
def form_of(model: Any) -> Form:
    """Return the first form of sounds that a model takes.

    Raises:
        ValueError: it takes none of them.
    """
    takes = inspect.signature(model.forward).parameters
    mask = next((name for name in MASKS if name in takes), None)
    known = [vars(part) for part in parts_of(model.config).values()]
    bins = [value for one in known for name, value in one.items() if name in BINS and isinstance(value, int)]
    lengths = [2 * value for one in known for name, value in one.items() if name == "max_source_positions"]
    windows = [2 * value for one in known for name, value in one.items() if name == "n_window"]
    for size in dict.fromkeys((*bins, 8, 128)):
        for length in dict.fromkeys((*lengths, 64, 48, *windows)):
            for last in (False, True):
                form = (size, length, last, mask)
                try:
                    inputs = _inputs(model, LAYOUTS["sounds"], form, "left")
                    inputs.pop("labels", None)
                    with torch.no_grad():
                        model(**inputs)
                except ImportError:
                    raise
                except Exception:  # noqa: BLE001  sounds of another form
                    continue
                return form
    raise ValueError("sounds of another form")


def _inputs(model: Any, layout: Layout, form: Form, side: str) -> Inputs:
    if any("F" in row for row in layout):
        return _film_with_sound(model, layout, form, side)
    names = names_of(layout, "A")
    sounds = _sounds(names, *form)
    counts = dict(zip(names, _counts(model, sounds), strict=True))
    found = Given(sounds, counts)
    if names_of(layout, "I") or names_of(layout, "V"):
        others = in_grids(model, layout)
        found = Given({**sounds, **others.inputs}, {**counts, **others.counts}, others.frames)
        if "video_second_per_grid" in inspect.signature(model.forward).parameters:
            found.inputs["video_second_per_grid"] = torch.tensor([SECONDS_PER_FRAME])
    return rows_of_layout(model, layout, found, side)


def _film_with_sound(model: Any, layout: Layout, form: Form, side: str) -> Inputs:
    """Return rows with a film whose sound is between its frames."""
    if "use_audio_in_video" not in inspect.signature(model.forward).parameters:
        raise NotServed("no sounds in films")
    sounds = _sounds(["A0"], *form)
    count, config = _counts(model, sounds)[0], model.config
    pictures = in_grids(model, [[one for one in row if one != "F"] for row in layout])
    film = in_grids(model, (("V0",),))
    patches = film.inputs["pixel_values_videos"]
    merge = model.config.vision_config.spatial_merge_size
    frame = FILM[1] * FILM[2] // merge**2
    places = [config.video_token_id] * frame + [config.audio_token_id] * (count // FILM[0])
    places = places * FILM[0] + [config.audio_token_id] * (count % FILM[0])
    start, end = config.vision_start_token_id, getattr(config, "vision_end_token_id", 55)
    whole = [start, config.audio_start_token_id, *places, getattr(config, "audio_end_token_id", 57), end]
    plain = rows_of_layout(
        model, [[len(whole) if one == "F" else one for one in row] for row in layout], pictures, side
    )
    at = int((plain["attention_mask"][1] > 0).nonzero()[0]) + 3
    plain["input_ids"][1, at : at + len(whole)] = torch.tensor(whole)
    plain["labels"][1, at : at + len(whole)] = -100
    values = drawn("V", FILM[0] * FILM[1] * FILM[2], patches.shape[1])
    return {
        **plain, **sounds, "pixel_values_videos": values, "video_grid_thw": torch.tensor([FILM]),
        "use_audio_in_video": True, "video_second_per_grid": torch.tensor([SECONDS_PER_FRAME]),
    }  # fmt: skip


def _positions(model: Any, inputs: Inputs) -> Any:
    base = next(
        (one for one in (model, getattr(model, "model", None)) if hasattr(one, "get_rope_index")), None
    )
    if base is None:
        raise NotServed("positions of one axis")
    more = {
        "second_per_grids": inputs.get("video_second_per_grid"),
        "audio_seqlens": inputs["feature_attention_mask"].sum(-1),
    }
    names = inspect.signature(base.get_rope_index).parameters
    found = base.get_rope_index(**{name: one for name, one in {**inputs, **more}.items() if name in names})
    return [whole_numbers(one) for one in found if isinstance(one, Tensor)]


def _ask(model_class: Any, case: str) -> Any:
    asked = json.loads(case)
    what = asked["what"]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = small_model(model_class)
        inputs = _inputs(model, LAYOUTS[asked["layout"]], form_of(model), asked.get("side", "left"))
        if what == "positions":
            return _positions(model, inputs)
        if what == "get_audio_features":
            return features_of(_base(model), what, inputs)
        return outputs_of(model, inputs, what)


def _cases(model_class: Any) -> Iterator[str]:
    form_of(small_model(model_class))
    for layout in LAYOUTS:
        for side in SIDES:
            yield json.dumps({"what": "logits", "layout": layout, "side": side})
            yield json.dumps({"what": "positions", "layout": layout, "side": side})
        if layout != "one a row":
            yield json.dumps({"what": "loss", "layout": layout})
            yield json.dumps({"what": "generated", "layout": layout})
        if layout in ("sounds", "apart"):
            yield json.dumps({"what": "get_audio_features", "layout": layout})
        if layout == "sounds":
            yield json.dumps({"what": "uncached steps", "layout": layout})
            yield json.dumps({"what": "beams", "layout": layout})


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    kinds = classes_with("input_features", "input_ids", without=["decoder_input_ids"], more=OMNI)
    return given(kinds, _cases, _ask)


HEARING_ROWS: Sequence[Row] = rows_of(RECORD, place_of, _ask, "sounds", "inputs")
