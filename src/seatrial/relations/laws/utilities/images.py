"""R31.images: images of several samples in one tensor are cut where each sample's begin, and joined again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

IMAGES = relation_of(
    "images",
    "samples-keep-their-images",
    "Each sample has the pixels and sizes of its own images, in every layout; joined, they are the batch again.",
)
IMAGES_OF = ((2, 0, 1), (1, 3), (1, 1, 1))
"""Images of each sample."""
Columns = dict[str, Any]


def _layouts(case: Numbers) -> Iterable[Arguments]:
    """Yield batches in each layout: patches of a grid, images with positions, tiles with or without shapes, images."""
    stream = case.generator()
    for numbers in IMAGES_OF:
        total = sum(numbers)
        grids = torch.stack([torch.tensor([1 + place % 2, 2, 1 + place]) for place in range(total)])
        patches = int(grids.prod(-1).sum())
        ids = torch.randint(9, (len(numbers), 4), generator=stream)
        own: Columns = {"num_images": list(numbers), "input_ids": ids}
        pixels = torch.randn(patches, 3, generator=stream)
        yield ({**own, "pixel_values": pixels, "image_grid_thw": grids},)
        rows = torch.randn(total, 2, 3, generator=stream)
        places = torch.randint(9, (total, 5), generator=stream)
        yield ({**own, "pixel_values": rows, "image_position_ids": places},)
        tiles = [2 * one + (one > 0) for one in numbers]
        made = torch.randn(sum(tiles), 3, 2, generator=stream)
        yield ({**own, "num_tiles": tiles, "pixel_values": made},)
        shaped = {"pixel_attention_mask": made[:, :, 0] > 0, "spatial_shapes": (made[:, :2, 1] * 9).long()}
        yield ({**own, "num_tiles": tiles, "pixel_values": made, **shaped},)
        yield ({**own, "pixel_values": rows, "image_sizes": places[:, :2]},)
    yield ({"input_ids": ids},)


def _cut(values: Tensor, numbers: Sequence[int]) -> list[Tensor]:
    return [values[start:end] for start, end in pairwise([0, *accumulate(numbers)])]


def split(batch: Mapping[str, Any]) -> Columns:
    """Return the batch with its images by sample."""
    if "pixel_values" not in batch:
        return dict(batch)
    numbers = batch["num_images"]
    if "image_grid_thw" in batch:
        areas = [int(a * b * c) for a, b, c in batch["image_grid_thw"].tolist()]
        starts = [0, *accumulate(numbers)]
        rows = [sum(areas[start:end]) for start, end in pairwise(starts)]
        return {
            **batch,
            "pixel_values": _cut(batch["pixel_values"], rows),
            "image_grid_thw": _cut(batch["image_grid_thw"], numbers),
        }
    rows = batch.get("num_tiles", numbers)
    names = ("pixel_values", "pixel_attention_mask", "spatial_shapes", "image_position_ids", "image_sizes")
    return {**batch, **{name: _cut(batch[name], rows) for name in names if name in batch}}


def _joined(batch: Mapping[str, Any]) -> Columns:
    return dict(batch)


add_laws(
    IMAGES,
    (
        Plain(
            name="images of samples",
            law="images of samples",
            suspects="patches of another image, sizes that stay where the images were",
            cases=_layouts,
            right=split,
        ),
        Plain(
            name="images joined again",
            law="images joined again",
            suspects="a column that stays in parts",
            cases=_layouts,
            right=_joined,
        ),
    ),
)
