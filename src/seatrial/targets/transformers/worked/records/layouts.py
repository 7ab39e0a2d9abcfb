"""Rows of texts, pictures, films and sounds in any order, for models of any form of media."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.any_inputs import options_of
from seatrial.targets.transformers.any_pictures import FILM_IDS, IDS, LEFT_OUT
from seatrial.targets.transformers.small_models import MARKS, PAD

Inputs = dict[str, Any]
Layout = Sequence[Sequence[int | str]]
"""Rows, each of numbers of text ids, and names of pictures (I), films (V) and sounds (A)."""
GRIDS: Mapping[str, tuple[int, int, int]] = {
    "I0": (1, 4, 4), "I1": (1, 2, 6), "I2": (1, 6, 4), "I3": (1, 8, 10), "V0": (2, 4, 4), "V1": (3, 2, 6),
    "V2": (1, 4, 2),
}  # fmt: skip
"""Frames, rows and columns of patches, before neighbours are merged."""
LAYOUTS: Mapping[str, Layout] = {
    "pictures": ((3, "I0", 2, "I1", 1), (2, "I2", 4), (6,)),
    "large pictures": ((2, "I3", 2), (1, "I0", 1, "I3", 3)),
    "neighbours": (("I1", "I0", 2), (4, "I2")),
    "films": ((2, "V0", 3), (1, "V1", 2, "V2", 1), (7,)),
    "mixed": ((2, "V0", 2, "I0", 1), (3, "I1", 1, "V1", 2, "I2", 2), (5,)),
    "turned": ((5,), (3, "I2", 1, "V1", 2, "I1", 2), (2, "I0", 2, "V0", 1)),
}
FILM_FORMS = ("whole", "in frames", "in frames of pictures")
"""How the places of a film are written: in one piece, a piece a frame, and with the id of pictures."""
SIDES = ("left", "right")


def drawn(name: str, *shape: int) -> Tensor:
    """Return normal numbers of a name and a shape."""
    seed = sum(map(ord, name)) + 1000 * sum(shape)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def option(config: Any, names: Sequence[str], default: int) -> int:
    """Return a whole number that a configuration or a part has by one of these names."""
    for value in options_of(config, names):
        value = value[-1] if isinstance(value, (list, tuple)) and value else value
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return default


@dataclass
class Given:
    """What is given besides ids, and the number of places of each name, by frame."""

    inputs: Inputs
    counts: Mapping[str, int]
    frames: Mapping[str, int] = field(default_factory=dict)


def names_of(layout: Layout, letter: str) -> list[str]:
    """Return names of a kind of media, in the order of the rows."""
    return [one for row in layout for one in row if isinstance(one, str) and one[0] == letter]


def in_grids(model: Any, layout: Layout) -> Given:
    """Return flattened patches that lie end to end, with grids."""
    config = getattr(model.config, "vision_config", model.config)
    patch = option(config, ["patch_size"], 4)
    size = option(config, ["in_channels", "in_chans", "num_channels"], 3) * patch * patch
    size *= option(config, ["temporal_patch_size"], 1)
    merge = option(config, ["spatial_merge_size", "merge_size"], 1)
    if isinstance(getattr(config, "merge_kernel_size", None), (list, tuple)):
        merge = config.merge_kernel_size[0]
    takes = inspect.signature(model.forward).parameters
    merge = 2 if "image_merge_sizes" in takes else merge
    inputs: Inputs = {}
    counts, frames = {}, {}
    for letter, values, grids in (
        ("I", "pixel_values", "image_grid_thw"),
        ("V", "pixel_values_videos", "video_grid_thw"),
    ):
        names = names_of(layout, letter)
        if names and grids not in takes:
            raise NotServed(f"no {grids}")
        for name in names:
            t, h, w = GRIDS[name]
            counts[name], frames[name] = t * (h // merge) * (w // merge), t
        if names:
            shapes = [GRIDS[name] for name in names]
            parts = [drawn(name, t * h * w, size) for name, (t, h, w) in zip(names, shapes, strict=True)]
            inputs[values], inputs[grids] = torch.cat(parts), torch.tensor(shapes)
            kind = type(model.config).model_type
            if kind.startswith(("kimi", "paddleocr")):  # patches are pictures
                inputs[values] = inputs[values].unflatten(1, (-1, patch, patch))
            sizes = {"I": "image_merge_sizes", "V": "video_merge_sizes"}[letter]
            if sizes in takes:
                inputs[sizes] = torch.full((len(names),), merge)
            counts |= _counted(model, letter, names, inputs)
    return Given(inputs, counts, frames)


def _counted(model: Any, letter: str, names: Sequence[str], inputs: Inputs) -> dict[str, int]:
    """Return how many features each picture or film has, if its model says so."""
    function = getattr(model, {"I": "get_image_features", "V": "get_video_features"}[letter], None)
    if function is None:
        return {}
    known = inspect.signature(function).parameters
    try:
        with torch.no_grad():
            found = function(**{name: value for name, value in inputs.items() if name in known})
    except Exception:  # noqa: BLE001  features of another form, which are counted by their grids
        return {}
    found = getattr(found, "pooler_output", found)
    found = found[0] if isinstance(found, tuple) and isinstance(found[0], (list, tuple)) else found
    if not isinstance(found, (list, tuple)) or len(found) != len(names):
        return {}
    if not all(isinstance(one, Tensor) and one.dim() == 2 for one in found):
        return {}
    return {name: len(one) for name, one in zip(names, found, strict=True)}


def _mark(config: Any, names: Sequence[str]) -> int:
    found = next(iter(options_of(config, names)), None)
    if found is None:
        raise NotServed(f"none of {names}")
    return int(found)


def _piece(config: Any, name: str, given: Given, form: str) -> Iterator[tuple[int, int]]:
    """Yield ids and types of the places of a picture, a film or a sound, with what is around them."""
    kinds = {"I": (IDS, 1, "image"), "V": (FILM_IDS, 2, "video"), "A": (AUDIO_IDS, 3, "audio")}
    names, number, word = kinds[name[0]]
    if form == "in frames of pictures" and name[0] == "V":
        names = IDS
    mark = _mark(config, names)
    own = ["vision_{}_token_id", f"{word}_{{}}_token_id"] if word != "audio" else ["audio_{}_token_id"]
    start, end = (
        next(iter(options_of(config, [one.format(place) for one in own])), None) for place in ("start", "end")
    )
    frames = given.frames.get(name, 1) if form != "whole" else 1
    if form == "in frames of pictures" and name[0] == "V":
        yield _mark(config, ["video_start_token_id"]), 0
    for frame in range(frames):
        if frames > 1:
            yield 15 + frame, 0
        yield (start if isinstance(start, int) else MARKS["vision"]), 0
        for _ in range(given.counts[name] // frames):
            yield mark, number
        if isinstance(end, int):
            yield end, 0
    if form == "in frames of pictures" and name[0] == "V":
        yield _mark(config, ["video_end_token_id"]), 0


AUDIO_IDS = ("audio_token_id", "audio_token_index")


def rows_of_layout(
    model: Any, layout: Layout, given: Given, side: str = "left", form: str = "whole"
) -> Inputs:
    """Return ids, a mask, labels and types of the rows of a layout, padded on a side, with what is given besides.

    Raises:
        NotServed: the configuration has no id of a kind of media.
    """
    rows, kinds, text = [], [], 0
    for row in layout:
        own: list[tuple[int, int]] = []
        for item in row:
            if isinstance(item, int):
                own += [(3 + (7 * (text + place)) % 43, 0) for place in range(item)]
                text += item
            else:
                own += _piece(model.config, item, given, form)
        rows.append([one for one, _ in own])
        kinds.append([one for _, one in own])
    size = max(map(len, rows))

    def padded(values: Sequence[Sequence[int]], pad: int) -> Tensor:
        gaps = [[pad] * (size - len(one)) for one in values]
        pairs = zip(gaps, values, strict=True)
        return torch.tensor([[*gap, *one] if side == "left" else [*one, *gap] for gap, one in pairs])

    ids, types = padded(rows, PAD), padded(kinds, 0)
    mask = padded([[1] * len(one) for one in rows], 0)
    every = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill((mask == 0) | (types > 0), LEFT_OUT),
        "token_type_ids": (types > 0).long(),
        "mm_token_type_ids": types,
    }
    takes = inspect.signature(model.forward).parameters
    return {**{name: value for name, value in every.items() if name in takes}, **given.inputs}


def given_by(model: Any, method: str, inputs: Inputs) -> Any:
    """Return what a method of a model, or of its base, gives of those inputs that it takes.

    Raises:
        NotServed: neither has it.
        Exception: neither takes the inputs.
    """
    functions = [getattr(one, method, None) for one in (getattr(model, "model", None), model)]
    taking = [(one, inspect.signature(one).parameters) for one in functions if one is not None]
    taking.sort(key=lambda pair: -len({*pair[1]} & {*inputs}))
    problem: Exception = NotServed(f"no {method}")
    for function, names in taking:
        try:
            with torch.no_grad():
                return function(**{name: value for name, value in inputs.items() if name in names})
        except Exception as error:  # noqa: BLE001  the other one may take them
            problem = error
    raise problem
