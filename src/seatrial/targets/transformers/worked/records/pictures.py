"""Pictures that image processors of Transformers make, by class and options, on record."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.answers import REFUSED, given, rows_of

RECORD = "pictures_record"
ENDINGS = ("ImageProcessorPil", "ImageProcessor", "ImageProcessorPillow")
SIDES = {
    "height": 36,
    "width": 28,
    "shortest_edge": 30,
    "longest_edge": 48,
    "max_height": 40,
    "max_width": 30,
}
"""Of a size, by its key."""
TAKEN = "transformers.models.auto.image_processing_auto:IMAGE_PROCESSOR_MAPPING_NAMES"
SKIPPED = (
    "_processor_class",
    "image_processor_type",
    "feature_extractor_type",
    "id2label",
    "label2id",
    "device",
    "return_image_mask",
)
OTHERS: Mapping[str, Any] = {"resample": 2, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.25, 0.75],
    "rescale_factor": 0.01, "interpolation": "bicubic", "pad_size": {"height": 70, "width": 80},
    "pad_size_divisor": 20, "size_divisor": 20, "size_divisibility": 20,
    "ignore_index": 0, "crop_pct": 0.5,
}  # fmt: skip
"""Values of options, by name."""


@cache
def _picture(width: int, height: int, mode: str = "RGB") -> Any:
    """Return a smooth picture without symmetry; PIL's arithmetic is of whole numbers."""
    from PIL import Image

    rows, columns = np.mgrid[0:height, 0:width]
    layers = [
        127 + 60 * np.sin(rows / (5 + one)) + 60 * np.cos(columns / (7 - one) + one) for one in range(4)
    ]
    layers[3] = np.where(rows + columns < 20, 0, 255)
    return Image.fromarray(np.stack(layers, -1).round().astype(np.uint8), "RGBA").convert(mode)


def _segments(width: int, height: int) -> Any:
    rows, columns = np.mgrid[0:height, 0:width]
    return ((rows // 9 + columns // 7) % 4).astype(np.uint8)


def _two() -> list[Any]:
    return [_picture(53, 37), _picture(31, 60)]


def _annotations() -> list[Any]:
    boxes = [[[4.0, 5.0, 20.0, 10.0], [10.0, 2.0, 30.0, 30.0]], [[3.0, 7.0, 9.0, 40.0]]]
    return [
        {"image_id": 7 + place, "annotations": [
            {"bbox": box, "category_id": 3 + number, "area": box[2] * box[3], "iscrowd": 0,
             "segmentation": [[box[0], box[1], box[0] + box[2], box[1], box[0] + box[2], box[1] + box[3]]]}
            for number, box in enumerate(own)
        ]}
        for place, own in enumerate(boxes)
    ]  # fmt: skip


INPUTS: Mapping[str, Any] = {
    "one": lambda: {"images": _picture(53, 37)},
    "array": lambda: {"images": np.array(_picture(53, 37))},
    "channels first": lambda: {"images": np.array(_picture(53, 37)).transpose(2, 0, 1)},
    "floats": lambda: {"images": np.array(_picture(53, 37)) / np.float32(255), "do_rescale": False},
    "transparent": lambda: {"images": _picture(53, 37, "RGBA")},
    "grey": lambda: {"images": _picture(53, 37, "L")},
    "wide": lambda: {"images": _picture(200, 24)},
    "tall": lambda: {"images": _picture(20, 150)},
    "large": lambda: {"images": _picture(300, 130)},
    "nested": lambda: {"images": [_two(), [_picture(40, 40)]]},
    "channels last": lambda: {"images": _picture(53, 37), "data_format": "channels_last"},
    "segments": lambda: {"images": _two(), "segmentation_maps": [_segments(53, 37), _segments(31, 60)]},
    "boxes": lambda: {"images": _two(), "annotations": _annotations()},
}
"""Inputs besides two pictures."""
LARGE, AREA = 64, 5000
"""A side that is made smaller, and a number that is no side."""
NEEDED = {"segments": "segmentation_maps", "boxes": "annotations"}
"""Parameters that inputs need."""


def _other(name: str, value: Any) -> Iterator[Any]:
    """Yield other values of an option."""
    if name in OTHERS:
        yield OTHERS[name]
    elif isinstance(value, bool):
        yield not value
    elif name.endswith("size") and isinstance(value, Mapping):
        yield {key: SIDES.get(key, one) for key, one in value.items() if one is not None}
        if name == "size" and "shortest_edge" in value and "longest_edge" not in value:
            yield {"height": 36, "width": 28}
    elif isinstance(value, int) and name.endswith("size"):
        yield value // 2
    elif isinstance(value, int):
        yield value // 2 if value > 3 else value + 1
    elif isinstance(value, float):
        yield value / 2
    elif value is None and name.startswith(("do_", "return_", "use_")):
        yield True


def _smaller(known: Mapping[str, Any], sides: Mapping[str, int]) -> dict[str, Any]:
    """Return sizes of a processor that are smaller than its own, where those are large; some are areas."""
    found: dict[str, Any] = {}
    for name, value in known.items():
        if name.endswith("size") and isinstance(value, Mapping):
            kept = {key: one for key, one in value.items() if one is not None}
            if kept and all(isinstance(one, int) and one < AREA for one in kept.values()):
                found[name] = {key: one if one < LARGE else sides.get(key, 48) for key, one in kept.items()}
    return {name: value for name, value in found.items() if value != known[name]}


def _fitting(made: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return smaller sizes that a processor takes, if there are any."""
    for sides in (SIDES, {}, {"shortest_edge": 64, "longest_edge": 128, "height": 64, "width": 64}):
        smaller = _smaller(known, sides)
        try:
            made(**smaller)(images=_two())
        except REFUSED:
            continue
        return smaller
    return {}


def _cases(made: Any) -> Iterator[str]:
    """Yield cases: options of the class, and inputs."""
    processor = made()
    known = processor.to_dict()
    takes = {
        *inspect.signature(processor.preprocess).parameters,
        *inspect.signature(type(processor).__call__).parameters,
    }
    yield json.dumps({"options": {}})
    smaller = _fitting(made, known)
    for name, value in known.items():
        if name not in SKIPPED:
            for other in _other(name, value):
                yield json.dumps({"options": {**smaller, name: other}})
    for name in INPUTS:
        if name not in NEEDED or NEEDED[name] in takes:
            yield json.dumps({"options": smaller, "inputs": name})


def _ask(made: Any, case: str) -> Any:
    """Return what a processor gives of pictures."""
    asked = json.loads(case)
    inputs = INPUTS[asked["inputs"]]() if "inputs" in asked else {"images": _two()}
    return made(**asked["options"])(**inputs)


def _names() -> Iterator[str]:
    import transformers
    from transformers.models.auto import image_processing_auto

    known = getattr(image_processing_auto, "IMAGE_PROCESSOR_MAPPING_NAMES", {})
    for pair in known.values():
        one = pair.get("pil") if isinstance(pair, Mapping) else pair[0]
        if one is not None:
            yield one.removesuffix("Pil")
    for name in dir(transformers):
        if name.endswith("ImageProcessorPil"):
            yield name.removesuffix("Pil")


def places_of(kind: str) -> str:
    """Return where a class is: later releases have two of a kind, of which this is the one of PIL."""
    return f"transformers:{kind}Pil transformers:{kind}"


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given({name: places_of(name) for name in sorted({*_names()})}, _cases, _ask)


PICTURE_ROWS: Sequence[Row] = rows_of(RECORD, places_of, _ask, "pictures", "texts", of_pictures=True)
