"""Rows of ids with pictures and films for models of any kind that take them, found by trying."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.any_inputs import options_of
from seatrial.targets.transformers.small_models import MARKS, PAD

Inputs = dict[str, Tensor]
IDS = ("image_token_id", "image_token_index", "media_token_id")
FILM_IDS = ("video_token_id", "video_token_index")
GRIDS = ((1, 4, 4), (1, 2, 6))
"""Frames, rows and columns of patches of two pictures of unequal sizes, before neighbours are merged."""
FILM = (2, 4, 4)
FILMS = (FILM, (1, 4, 4))
TURNED = ((1, 2, 6), (1, 6, 2))
"""Two pictures of as many places, one wide and one high."""
TURNED_FILMS = ((2, 2, 6), (2, 6, 2))
LEFT_OUT = -100


@dataclass(frozen=True)
class Media:
    """What is given besides ids, and how many places each picture takes."""

    given: Inputs
    counts: Sequence[int]
    is_film: bool = False
    frames: Sequence[int] = (1, 1)
    """Of each film, whose places are given in one piece each."""


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _option(config: Any, names: Sequence[str], default: int) -> int:
    for value in options_of(config, names):
        value = value[-1] if isinstance(value, (list, tuple)) else value
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return default


def _in_grids(config: Any, grids: Sequence[Sequence[int]], names: tuple[str, str]) -> Media:
    """Return flattened patches with the grid of each picture."""
    vision = getattr(config, "vision_config", config)
    patch = _option(vision, ["patch_size"], 4)
    size = _option(vision, ["in_channels", "in_chans", "num_channels"], 3) * patch * patch
    size *= _option(vision, ["temporal_patch_size"], 1)
    merge = _option(vision, ["spatial_merge_size", "merge_size"], 1)
    counts = [t * (h // merge) * (w // merge) for t, h, w in grids]
    num = sum(t * h * w for t, h, w in grids)
    return Media(
        {names[0]: _drawn(num, size), names[1]: torch.tensor(grids)}, counts, is_film="videos" in names[0]
    )


def _features(found: Any) -> Iterator[Tensor]:
    """Yield the features of each picture, [places, D]."""
    if hasattr(found, "pooler_output"):
        found = found.pooler_output
    if isinstance(found, Tensor) and found.dim() == 2:
        half = len(found) // 2
        yield from (found[:half], found[half:])
    elif isinstance(found, Tensor):
        yield from found.flatten(1, -2)
    elif isinstance(found, (list, tuple)):
        for one in found:
            yield from ([one] if isinstance(one, Tensor) and one.dim() == 2 else _features(one))


def _in_squares(model: Any) -> Iterator[Media]:
    """Yield pictures of the size that the configuration names, alone and in parts."""
    vision = getattr(model.config, "vision_config", model.config)
    channels = _option(vision, ["num_channels", "in_channels", "in_chans"], 3)
    given = _option(vision, ["image_size", "img_size"], 8)
    takes = inspect.signature(model.forward).parameters
    for size in dict.fromkeys((given, 8, 16, 32)):
        wide = torch.tensor([[size, 2 * size], [2 * size, size]])
        square = torch.tensor([[size, size]] * 2)
        forms: list[tuple[tuple[int, ...], Tensor | None]] = [((), None), ((1,), None), ((2,), None)]
        if "image_sizes" in takes:
            forms = [((), square), ((1,), square), ((3,), wide), *forms]
        for parts, sizes in forms:
            named: dict[str, Tensor] = {} if sizes is None else {"image_sizes": sizes}
            pictures = _drawn(2, *parts, channels, size, size)
            media: Inputs = {"pixel_values": pictures, **named}
            if not hasattr(model, "get_image_features"):
                yield from (Media(media, (count, count)) for count in (0, 4, 1))
                continue
            try:
                found = list(_features(model.get_image_features(**media)))
            except Exception:  # noqa: BLE001  pictures of another form
                continue
            counts = [len(one) for one in found]
            if len(counts) > 2 and len(counts) % 2 == 0:
                half = len(counts) // 2
                counts = [sum(counts[:half]), sum(counts[half:])]
            if len(counts) == 2:
                yield Media(media, counts)


def media_of(model: Any, grids: Sequence[Sequence[int]] = GRIDS) -> Iterator[Media]:
    """Yield pictures that a model may take, of these grids where it takes any."""
    takes = inspect.signature(model.forward).parameters
    if "image_grid_thw" in takes:
        yield _in_grids(model.config, grids, ("pixel_values", "image_grid_thw"))
        return
    if "pixel_values" in takes:
        yield from _in_squares(model)


def films_of(model: Any, grids: Sequence[Sequence[int]] = FILMS) -> Iterator[Media]:
    """Yield films that a model may take."""
    if "video_grid_thw" in inspect.signature(model.forward).parameters:
        film = _in_grids(model.config, grids, ("pixel_values_videos", "video_grid_thw"))
        yield film
        yield replace(film, frames=tuple(frames for frames, *_ in grids))


def rows_with(model: Any, media: Media) -> Inputs:
    """Return three rows, two with a picture each, padded on the left, with labels and types of tokens.

    Raises:
        NotServed: the configuration names no id of pictures.
    """
    config = model.config
    names = FILM_IDS if media.is_film else IDS
    mark: Any = next(iter(options_of(config, names)), None)
    if mark is None and any(media.counts):
        raise NotServed("no id that means a picture")
    start = next(iter(options_of(config, ["vision_start_token_id", "image_start_token_id"])), None)
    begin: list[Any] = [start if start is not None else MARKS["vision"]] if any(media.counts) else []
    first, second = (
        [one for frame in range(num) for one in (15 + frame, *begin, *[mark] * (count // num))]
        for count, num in zip(media.counts, media.frames, strict=True)
    )
    rows: list[list[int]] = [
        [7, 9, 11, *first, 8, 21, 13, 30],
        [12, *second, 33, 14, 27],
        [5, 40, 22, 17, 31, 6],
    ]
    S = max(map(len, rows))
    ids = torch.tensor([[PAD] * (S - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (S - len(row)) + [1] * len(row) for row in rows])
    marked = ids == mark if mark is not None else torch.zeros_like(ids, dtype=torch.bool)
    given: Mapping[str, Tensor] = {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": ids.masked_fill((mask == 0) | marked, LEFT_OUT),
        "token_type_ids": marked.long(),
        "mm_token_type_ids": marked.long() * (2 if media.is_film else 1),
    }
    takes = inspect.signature(model.forward).parameters
    inputs = {name: value for name, value in given.items() if name in takes}
    return {**inputs, **media.given}
