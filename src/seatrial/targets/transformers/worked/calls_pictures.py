"""Calls of Transformers' functions of pictures and films whose results are on record; see `recorded_calls`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

CHANGES, PICTURES = "transformers.image_transforms", "transformers.image_utils"
Calls = Sequence[tuple[Sequence[Any], Mapping[str, Any]]]


def picture(*shape: int, seed: int = 0) -> Any:
    """Return a picture of bytes, no two rows or columns of which are the same."""
    places = np.arange(int(np.prod(shape)))
    return ((places * 37 + seed * 11 + (places // 7) * 5) % 251).astype(np.uint8).reshape(shape)


CHW, HWC, GREY = picture(3, 4, 6), picture(4, 6, 3, seed=1), picture(4, 6, seed=2)
REAL = CHW.astype(np.float32) / 255


def _of_pil(array: Any) -> Any:
    """Return a picture of PIL, or the array where PIL is missing."""
    if find_spec("PIL") is None:
        return array
    import PIL.Image

    return PIL.Image.fromarray(array)


PIL_RGB, PIL_GREY = _of_pil(HWC), _of_pil(GREY)
PIL_RGBA = _of_pil(picture(4, 6, 4, seed=3))
FIRST, LAST = "channels_first", "channels_last"


def shown(value: Any) -> Any:
    """Return a result with its type, and pictures as numbers."""
    if type(value).__module__.startswith("PIL"):
        return ["PIL", value.mode, *shown(np.asarray(value).astype(np.float64))]
    if isinstance(value, np.ndarray):
        return [
            str(value.dtype),
            list(value.shape),
            float((value.ravel() * np.sin(np.arange(value.size) * 0.7 + 1)).sum()),
        ]
    if isinstance(value, torch.Tensor):
        return ["tensor", *shown(value.float().numpy() if value.dtype == torch.bfloat16 else value.numpy())]
    if isinstance(value, list | tuple):
        return [shown(one) for one in value]
    if isinstance(value, Mapping):
        return {str(name): shown(one) for name, one in value.items()}
    return getattr(value, "value", value)


def by_table(calls: Calls, function: Any) -> list[Any]:
    """Return what each call gives, or the type of its error."""
    if find_spec("PIL") is None:
        raise NotServed("pictures need the package Pillow")
    return [
        refusal(lambda given=given, options=options: shown(function(*given, **options)))
        for given, options in calls
    ]


def each(values: Sequence[Any], *options: Mapping[str, Any]) -> Calls:
    return [((value,), more) for value in values for more in (options or ({},))]


FORMATS: Sequence[Mapping[str, Any]] = (
    {},
    {"data_format": LAST},
    {"data_format": FIRST},
    {"input_data_format": FIRST},
    {"input_data_format": LAST, "data_format": FIRST},
)
SIZES: Sequence[Any] = (3, (2, 3), [5], (8, 2), 6)
TABLES: Mapping[str, Calls] = {
    "to_channel_dimension_format": [
        ((one, form), {"input_channel_dim": given})
        for one in (CHW, HWC, torch.tensor(CHW))
        for form in (FIRST, LAST, "other")
        for given in (None, FIRST)
    ],
    "rescale": [
        ((one, 1 / 255), {**more, **kind})
        for one in (CHW, HWC)
        for more in FORMATS
        for kind in ({}, {"dtype": np.float64})
    ]
    + [(([1],), {"scale": 2.0})],
    "to_pil_image": each(
        [
            CHW,
            HWC,
            GREY[None],
            REAL,
            torch.tensor(CHW),
            PIL_RGB,
            np.ones((3, 2, 2), np.float32),
            REAL * 300,
            CHW.astype(np.float32),
            "x",
        ],
        {},
        {"do_rescale": False},
        {"do_rescale": True},
        {"image_mode": "L"},
        {"input_data_format": FIRST},
    ),
    "get_size_with_aspect_ratio": [
        ((size, short), {"max_size": most})
        for size in ((40, 60), (60, 40), (33, 100), (50, 50))
        for short in (20, 40, 33)
        for most in (None, 45, 50)
    ],
    "get_resize_output_image_size": [
        ((one, size), {"default_to_square": square, "max_size": most})
        for one in (picture(3, 40, 60), picture(61, 40, 3))
        for size in SIZES
        for square in (True, False)
        for most in (None, 8, 2)
    ],
    "resize": [
        ((one, (3, 5)), {**more, **how})
        for one in (CHW, HWC, REAL)
        for more in FORMATS
        for how in ({}, {"resample": 0}, {"resample": 3, "return_numpy": False}, {"reducing_gap": 2})
    ],
    "normalize": [
        ((one, mean, std), more)
        for one in (CHW, HWC, REAL, PIL_RGB)
        for mean, std in (
            (0.5, 0.25),
            ([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
            ([0.1], [0.5]),
            (0.5, [1.0, 2.0, 4.0]),
        )
        for more in FORMATS
    ],
    "center_crop": [
        ((one, size), more)
        for one in (CHW, HWC, picture(3, 5, 7))
        for size in ((2, 2), (3, 5), (6, 8), (4, 9), 3)
        for more in FORMATS
    ],
    "center_to_corners_format": each(
        [torch.tensor([[0.5, 0.4, 0.2, 0.3]]), np.array([[0.5, 0.4, 0.2, 0.3]]), [1]]
    ),
    "corners_to_center_format": each(
        [torch.tensor([[0.1, 0.2, 0.5, 0.9]]), np.array([[0.1, 0.2, 0.5, 0.9]]), [1]]
    ),
    "safe_squeeze": [
        ((one,), {"axis": axis})
        for one in (np.ones((1, 2, 1)), torch.ones(1, 2, 1))
        for axis in (None, 0, 1, 2)
    ],
    "rgb_to_id": each([HWC, [1, 2, 3], HWC.astype(np.uint8)[:1]]),
    "id_to_rgb": each([np.array([[1, 256], [70000, 3]]), 66051]),
    "pad": [
        ((one, padding), {"mode": mode, **more})
        for one in (CHW, HWC)
        for padding in (2, (1, 2), ((1, 2), (0, 3)), ((2,),), (1, 2, 3))
        for mode in ("constant", "reflect", "replicate", "symmetric")
        for more in FORMATS[:3]
    ]
    + [((CHW, 1), {"constant_values": value}) for value in (7, (1, 2), ((1, 2), (3, 4)), "x")],
    "convert_to_rgb": each([PIL_RGB, PIL_GREY, PIL_RGBA, CHW, _of_pil(GREY)]),
    "flip_channel_order": [((one,), more) for one in (CHW, HWC, GREY) for more in FORMATS],
    "split_to_tiles": [
        ((torch.tensor(picture(2, 3, 4, 6)), *tiles), {}) for tiles in ((2, 3), (1, 2), (4, 1))
    ],
    "divide_to_patches": [
        ((torch.tensor(one), size), {}) for one in (CHW, picture(3, 5, 7)) for size in (2, 3)
    ],
}
GIVEN: Sequence[Any] = (
    CHW,
    HWC,
    GREY,
    PIL_RGB,
    torch.tensor(CHW),
    [CHW, CHW],
    [PIL_RGB, PIL_GREY],
    [[PIL_RGB], [PIL_RGB, PIL_RGB]],
    picture(2, 3, 4, 6),
    torch.tensor(picture(2, 3, 4, 6)),
    picture(2, 2, 3, 4, 6),
    [picture(2, 3, 4, 6)],
    "a.png",
    ["a.png"],
    [["a.png"], ["b.png"]],
    [],
    None,
    5,
    [[CHW, CHW], [CHW]],
    (CHW, CHW),
    [[]],
    [None],
)
DETECTION: Sequence[Any] = (
    {"image_id": 1, "annotations": [{"bbox": [1, 2, 3, 4]}]},
    {"image_id": 1, "annotations": []},
    {"image_id": 1},
    {"image_id": 1, "annotations": [1]},
    {"image_id": 1, "segments_info": [{"id": 1}], "file_name": "a"},
    {"image_id": 1, "segments_info": [], "file_name": "a"},
    [],
)
TOOLS: Mapping[str, Calls] = {
    **{
        name: each(GIVEN)
        for name in (
            "is_valid_image",
            "valid_images",
            "is_batched",
            "make_list_of_images",
            "make_flat_list_of_images",
            "make_nested_list_of_images",
            "get_image_type",
            "to_numpy_array",
            "is_valid_list_of_images",
        )
    },
    "is_scaled_image": each(
        [CHW, REAL, REAL * 2, -REAL, np.ones((2, 2, 3)), np.zeros((2, 2, 3), dtype=np.uint8)]
    ),
    "infer_channel_dimension_format": [
        ((one,), {"num_channels": number})
        for one in (CHW, HWC, picture(3, 4, 3), picture(2, 3, 4, 6), GREY, picture(7, 4, 6), picture(1, 4, 6))
        for number in (None, 3, 4, (7, 1), 6)
    ],
    "get_channel_dimension_axis": [
        ((one,), {"input_data_format": form})
        for one in (CHW, HWC, picture(2, 3, 4, 6), picture(2, 4, 6, 3))
        for form in (None, FIRST, LAST, "other")
    ],
    "get_image_size": [
        ((one,), {"channel_dim": form})
        for one in (CHW, HWC, PIL_RGB, torch.tensor(CHW))
        for form in (None, FIRST, LAST)
    ],
    "get_image_size_for_max_height_width": [
        ((size, high, wide), {})
        for size in ((40, 60), (60, 40), (10, 10), (333, 77))
        for high, wide in ((20, 30), (20, 100), (100, 30), (7, 7))
    ],
    "max_across_indices": each([[(1, 5), (4, 2)], [(1,)], []]),
    "get_max_height_width": [
        (([CHW, picture(3, 7, 2)],), {"input_data_format": form}) for form in (FIRST, LAST, "other")
    ]
    + [(([CHW, picture(3, 7, 2)],), {})],
    "concatenate_list": each([[[1], [2, 3]], [np.ones(2), np.zeros(1)], [torch.ones(2), torch.zeros(1)], []]),
    **{
        name: each(DETECTION)
        for name in ("is_valid_annotation_coco_detection", "is_valid_annotation_coco_panoptic")
    },
    **{
        name: each([[one] for one in DETECTION])
        for name in ("valid_coco_detection_annotations", "valid_coco_panoptic_annotations")
    },
    "load_image": each([PIL_RGBA, PIL_GREY, "/nowhere.png", "iVBORw0KGgo=", 5]),
    "load_images": each([[PIL_RGBA, PIL_GREY], [[PIL_RGBA], [PIL_GREY]], PIL_RGB, (PIL_RGB,)]),
    "validate_preprocess_arguments": [
        ((), options)
        for options in (
            {},
            {"do_rescale": True},
            {"do_rescale": True, "rescale_factor": 0.5},
            {"do_normalize": True, "image_mean": 0.5},
            {"do_normalize": True, "image_mean": 0.5, "image_std": 0.5},
            {"do_pad": True},
            {"do_center_crop": True},
            {"do_resize": True, "size": {"height": 1}},
            {"do_resize": True, "size": {"height": 1}, "resample": 2},
            {"do_resize": True, "resample": 2},
        )
    ],
}
CALLS: Sequence[Call] = (
    *(
        Call("formulas", f"{CHANGES}:{name}", "pictures by options", partial(by_table, calls))
        for name, calls in TABLES.items()
    ),
    *(
        Call("formulas", f"{PICTURES}:{name}", "pictures of every form", partial(by_table, calls))
        for name, calls in TOOLS.items()
    ),
)
PICTURE_CALL_ROWS = rows_of(CALLS)
