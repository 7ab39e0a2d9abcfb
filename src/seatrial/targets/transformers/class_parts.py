"""Inputs of parts of models of texts, pictures and sounds, and of texts with boxes; see `class_inputs`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.transformers.any_inputs import LENGTH, ROWS
from seatrial.targets.transformers.any_pictures import FILM, GRIDS, _in_grids

Inputs = dict[str, Any]
FRAMES = (32, 20)
"""Lengths of two sounds of unequal lengths."""


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _whole(top: int, *shape: int) -> Tensor:
    return torch.randint(0, top, shape, generator=torch.Generator().manual_seed(sum(shape)))


def inputs_of_parts(model: Any) -> Iterator[Inputs]:
    """Yield inputs of a part that takes neither ids nor pictures alone."""
    names = inspect.signature(model.forward).parameters
    for grid in ("grid_thw", "image_grid_thw", "grid_hw"):
        for pictures in ("hidden_states", "pixel_values", "inputs_embeds"):
            if {grid, pictures} <= {*names}:
                yield from _in_patches(model, pictures, grid)
    if "aspect_ratio_ids" in names and "pixel_values" in names:
        yield from _in_tiles(model)
    if "flattened_patches" in names:
        yield from _flattened(model, names)
    if {"visual_feats", "visual_pos"} <= {*names}:
        shown = {
            "visual_feats": _drawn(ROWS, 4, model.config.visual_feat_dim),
            "visual_pos": _drawn(ROWS, 4, 4).sigmoid(),
        }
        yield {"input_ids": 3 + _whole(45, ROWS, LENGTH), **shown}
    if {"pixel_values", "spatial_shapes", "pixel_attention_mask"} <= {*names}:
        yield from _in_rows_of_patches(model, names)
    if {"pixel_values", "pixel_position_ids"} <= {*names}:
        yield from _with_places(model)
    yield from _of_sounds(model, names)
    yield from _of_boxes(model, names)


def _in_patches(model: Any, pictures: str, grid: str) -> Iterator[Inputs]:
    """Yield patches of two pictures of unequal sizes, which lie end to end, and of a picture and a film."""
    for grids in ((*GRIDS, FILM), GRIDS, ((1, 4, 4), (1, 4, 4))):
        given = _in_grids(model.config, grids, (pictures, grid)).given
        if grid == "grid_hw":
            given[grid] = given[grid][:, 1:]
        yield given
        patch = getattr(model.config, "patch_size", 4)
        if isinstance(patch, int) and given[pictures].shape[1] % patch**2 == 0:
            yield {**given, pictures: given[pictures].reshape(len(given[pictures]), -1, patch, patch)}


def _in_tiles(model: Any) -> Iterator[Inputs]:
    """Yield two pictures in two tiles each, one of which has an empty one."""
    config = getattr(model.config, "vision_config", model.config)
    size = int(config.image_size)
    given = {
        "pixel_values": _drawn(2, 1, 2, 3, size, size),
        "aspect_ratio_ids": torch.tensor([[1], [2]]),
        "aspect_ratio_mask": torch.tensor([[[1, 0]], [[1, 1]]]),
    }
    yield given


def _flattened(model: Any, names: Any) -> Iterator[Inputs]:
    """Yield patches that begin with their row and column, with their mask."""
    vision = getattr(model.config, "vision_config", model.config)
    width = int(vision.patch_embed_hidden_size)
    places = (
        torch.stack(torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij"), -1).reshape(1, 12, 2) + 1
    )
    mask = (torch.arange(12) < torch.tensor([[12], [9], [10]])).float()
    decoded = {"decoder_input_ids": 3 + _whole(45, ROWS, 6)} if "decoder_input_ids" in names else {}
    patches = torch.cat([places.expand(ROWS, -1, -1).float(), _drawn(ROWS, 12, width)], 2)
    yield {"flattened_patches": patches * mask[..., None], "attention_mask": mask, **decoded}


def _in_rows_of_patches(model: Any, names: Any) -> Iterator[Inputs]:
    """Yield patches of pictures of unequal sizes, a padded row each."""
    config = getattr(model.config, "vision_config", model.config)
    width = int(getattr(config, "num_channels", 3)) * int(config.patch_size) ** 2
    shapes = torch.tensor([[2, 3], [3, 2], [2, 2]])
    mask = (torch.arange(6) < shapes.prod(1)[:, None]).long()
    ids = {"input_ids": 3 + _whole(45, ROWS, LENGTH)} if "input_ids" in names else {}
    yield {
        **ids,
        "pixel_values": _drawn(ROWS, 6, width),
        "spatial_shapes": shapes,
        "pixel_attention_mask": mask,
    }


def _with_places(model: Any) -> Iterator[Inputs]:
    """Yield patches with the column and the row of each, -1 where a picture has none."""
    width = 3 * int(model.config.patch_size) ** 2
    places = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), -1).reshape(
        1, 16, 2
    )
    second = places.clone()
    second[:, 8:] = -1
    yield {
        "pixel_values": _drawn(2, 16, width).sigmoid(),
        "pixel_position_ids": torch.cat([places, second]),
    }


def _of_sounds(model: Any, names: Any) -> Iterator[Inputs]:
    """Yield sounds with their masks or lengths, of the number of features that the configuration names."""
    known = vars(model.config)
    sizes = [
        known[name] for name in ("num_mel_bins", "input_feat_size", "mel_bins", "input_dim") if name in known
    ]
    for size in (*sizes, 8, 16, 128):
        ends = torch.tensor(FRAMES)
        shown = torch.arange(FRAMES[0]) < ends[:, None]
        for sounds, masks in (("audio_mel", "audio_mel_mask"), ("input_features", "attention_mask")):
            if {sounds, masks} <= {*names}:
                yield {sounds: _drawn(2, FRAMES[0], size), masks: ~shown if sounds == "audio_mel" else shown}
        if {"input_features", "input_features_mask"} <= {*names}:
            yield {"input_features": _drawn(2, size, FRAMES[0]), "input_features_mask": shown.long()}
            yield {"input_features": _drawn(2, FRAMES[0], size), "input_features_mask": shown}
        if {"input_features", "feature_lens"} <= {*names}:
            after = {"aftercnn_lens": (ends - 1) // 2 + 1} if "aftercnn_lens" in names else {}
            yield {"input_features": _drawn(size, sum(FRAMES)), "feature_lens": ends, **after}


def _of_boxes(model: Any, names: Any) -> Iterator[Inputs]:
    """Yield texts whose words have boxes: of four numbers, and of the eight of their corners."""
    if not {"input_ids", "bbox"} <= {*names}:
        return
    ids = {"input_ids": 3 + _whole(45, ROWS, LENGTH)}
    if "decoder_input_ids" in names:
        ids["decoder_input_ids"] = 3 + _whole(45, ROWS, 6)
    yield {**ids, "bbox": _drawn(ROWS, LENGTH, 8).sigmoid()}
    yield {**ids, "bbox": _drawn(ROWS, LENGTH, 4).sigmoid().cumsum(-1) / 4}
    yield {**ids, "bbox": _whole(20, ROWS, LENGTH, 4).cumsum(-1)}
