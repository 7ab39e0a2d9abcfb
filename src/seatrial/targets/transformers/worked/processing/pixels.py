"""Laws of image processors by plain computations: crops, whole multiples, pads, channels, maps of segments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.processing import pictures
from seatrial.targets.transformers.worked.processing.compare import plain
from seatrial.targets.transformers.worked.records.pictures import _picture

PLAIN: Mapping[str, Any] = {
    "do_resize": False, "do_rescale": False, "do_normalize": False, "do_center_crop": False, "do_pad": False,
    "do_flip_channel_order": False, "do_reduce_labels": False, "do_thumbnail": False, "do_crop_margin": False,
    "do_align_long_axis": False,
}  # fmt: skip
"""Options that leave pixels as they are; each law turns on its own."""
CROPS = ((20, 30), (37, 53), (35, 51), (24, 24), (60, 70), (45, 31), (21, 60))

MAPS = ("as it is", "twice", "twice, nearest", "cropped")
"""What is done with a picture and its map: labels have no values between them, by any way to resize pictures."""


def _maker(made: Any, needed: str) -> Callable[..., Any]:
    """Return how to make a processor whose pixels stay, except for what is given.

    Raises:
        NotServed: the class does not have the option that is needed.
    """
    known = pictures._new(made).to_dict()
    if needed not in known:
        raise NotServed(f"no {needed}")
    quiet = {name: value for name, value in PLAIN.items() if name in known}
    return lambda **options: pictures._new(made, **{**quiet, **options})


def _pixels(processor: Any, images: Any, **more: Any) -> list[np.ndarray]:
    """Return pictures of a call with their channels first."""
    values = plain(pictures._call(processor, images, **more))["pixel_values"]
    found = [np.asarray(one, dtype=np.float64) for one in values]
    return [one[0] if one.ndim == 4 and len(one) == 1 else one for one in found]


def _due(image: Any) -> np.ndarray:
    return np.asarray(image, dtype=np.float64).transpose(2, 0, 1)


def _unlike(found: np.ndarray, due: np.ndarray, what: str) -> Iterator[str]:
    if found.shape != due.shape:
        yield f"{what}: {found.shape}, {due.shape} is due"
    elif not np.allclose(found, due, rtol=1e-5, atol=1e-4):
        place = tuple(np.argwhere(~np.isclose(found, due, rtol=1e-5, atol=1e-4))[0].tolist())
        yield f"{what}: {found[place]} at {place}, {due[place]} is due"


def _line(length: int, size: int, up: int) -> np.ndarray:
    """Return which places of a line its middle part has, -1 next to it; halves go up or down."""
    start = (length - size + up) // 2
    places = np.arange(start, start + size)
    places[(places < 0) | (places >= length)] = -1
    return places


def _middles(image: Any, height: int, width: int) -> Iterator[np.ndarray]:
    """Yield middle parts of a picture with zeros next to it, by how halves are rounded."""
    whole = np.pad(_due(image), ((0, 0), (0, 1), (0, 1)))
    for up, right in product((0, 1), (0, 1)):
        yield whole[:, _line(image.height, height, up)][:, :, _line(image.width, width, right)]


def _cropped(made: Any) -> Iterator[str]:
    """Yield where what is cropped is not the middle of a picture, with zeros next to it."""
    new = _maker(made, "do_center_crop")
    for height, width in CROPS:
        processor = new(do_center_crop=True, crop_size={"height": height, "width": width})
        for image in pictures._three():
            found = _pixels(processor, [image])[0]
            wrong = [
                list(_unlike(found, one, f"{height}, {width}")) for one in _middles(image, height, width)
            ]
            yield from min(wrong, key=len)


def _multiplied(made: Any) -> Iterator[str]:
    """Yield where a picture of twice or three times the size by the nearest pixel does not repeat pixels."""
    new = _maker(made, "do_resize")
    for (width, height), times in product(((24, 16), (16, 32), (32, 32)), (2, 3)):
        image = _picture(width, height)
        due = _due(image).repeat(times, 1).repeat(times, 2)
        sides = {"height": height * times, "width": width * times}
        processor = new(do_resize=True, size=sides, resample=0)
        if dict(processor.size) != sides:
            raise NotServed("other sizes")
        yield from _unlike(_pixels(processor, [image])[0], due, f"{(width, height)} times {times}")


def _shortest(made: Any) -> Iterator[str]:
    """Yield where the shortest side is not as it is given, or the other one in its proportion."""
    new = _maker(made, "do_resize")
    if "shortest_edge" not in (pictures._new(made).to_dict().get("size") or {}):
        raise NotServed("no shortest side")
    for (width, height), times in product(((24, 16), (16, 32), (32, 32)), (2, 3)):
        image = _picture(width, height)
        due = _due(image).repeat(times, 1).repeat(times, 2)
        processor = new(do_resize=True, size={"shortest_edge": min(width, height) * times}, resample=0)
        yield from _unlike(_pixels(processor, [image])[0], due, f"{(width, height)} times {times}")


def _padded(made: Any) -> Iterator[str]:
    """Yield where pictures of a batch are not padded with zeros at the right and below, or masks do not say so."""
    new = _maker(made, "do_pad")
    images = pictures._three()
    sizes: list[Any] = [None]
    if "pad_size" in pictures._new(made).to_dict():
        sizes.append({"height": 61, "width": 64})
    for size in sizes:
        processor = new(do_pad=True, **({} if size is None else {"pad_size": size}))
        high, wide = (max(one.height for one in images), max(one.width for one in images))
        if size is not None:
            high, wide = size["height"], size["width"]
        called = pictures._call(processor, images)
        masks = plain(called).get("pixel_mask")
        for place, (image, found) in enumerate(zip(images, _pixels(processor, images), strict=True)):
            below, right = high - image.height, wide - image.width
            due = np.pad(_due(image), ((0, 0), (0, below), (0, right)))
            yield from _unlike(found, due, f"{size}")
            if masks is not None:
                mask = np.pad(np.ones((image.height, image.width)), ((0, below), (0, right)))
                yield from _unlike(np.asarray(masks[place], dtype=np.float64), mask, f"mask, {size}")


def _flipped(made: Any) -> Iterator[str]:
    """Yield where the order of channels is not turned round, or is without being asked for."""
    new = _maker(made, "do_flip_channel_order")
    for flipped, image in product((True, False), pictures._three()[:2]):
        found = _pixels(new(do_flip_channel_order=flipped), [image])[0]
        yield from _unlike(found, _due(image)[:: -1 if flipped else 1], f"{flipped=}")


def _labels(made: Any) -> Iterator[str]:
    """Yield where maps of segments are not those of the caller: reduced, of another size, cropped."""
    new = _maker(made, "do_resize")
    if "segmentation_maps" not in inspect.signature(made.preprocess).parameters:
        raise NotServed("no maps")
    reduces = "do_reduce_labels" in pictures._new(made).to_dict()
    crops = "do_center_crop" in pictures._new(made).to_dict()
    image = _picture(32, 48)
    given = (np.arange(48 * 32).reshape(48, 32) * 7 % 23).astype(np.uint8)
    given[:4, :5] = 255
    for reduced, way in product((False, True) if reduces else (False,), MAPS):
        options: dict[str, Any] = {"do_reduce_labels": True} if reduced else {}
        due = given.astype(np.int64)
        if reduced:
            due = np.where((due == 0) | (due == 255), 255, due - 1)
        if way.startswith("twice"):
            options |= {"do_resize": True, "size": {"height": 96, "width": 64}}
            options |= {"resample": 0} if way == "twice, nearest" else {}
            due = due.repeat(2, 0).repeat(2, 1)
        if way == "cropped":
            if not crops:
                continue
            options |= {"do_center_crop": True, "crop_size": {"height": 20, "width": 24}}
            due = due[14:34, 4:28]
        processor = new(**options)
        called = plain(
            pictures._call(processor, [image], segmentation_maps=[given.copy()], return_tensors="pt")
        )
        if "labels" not in called:
            raise NotServed("no labels")
        found = np.asarray(called["labels"][0], dtype=np.float64)
        yield from _unlike(found, due.astype(np.float64), f"{way}, {reduced=}")


classes = pictures.classes


LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "pixels: a crop": _cropped,
    "pixels: whole multiples of a size": _multiplied,
    "pixels: the shortest side": _shortest,
    "pixels: pads and masks": _padded,
    "pixels: order of channels": _flipped,
    "pixels: maps of segments": _labels,
}


def _classes_of(table: Mapping[str, str]) -> dict[str, str]:
    """Return a pattern of laws by class."""
    found: dict[str, list[str]] = {}
    for pattern, names in table.items():
        for name in names.split():
            found.setdefault(f"{name}ImageProcessor", []).append(pattern)
    return {name: "|".join(patterns) for name, patterns in found.items()}


_CROP, _SIZE, _SHORTEST, _PAD = "a crop", "multiples of a size", "the shortest side", "pads and masks"
OTHERWISE: Mapping[str, str] = _classes_of({
    # Rescaled by a second factor, flipped, cut into patches, or cropped by a share.
    _CROP: "EfficientNet LlavaNext PPLCNet Perceiver",
    # Sizes of a class's own: multiples, tiles, longest sides, thumbnails; pictures that are blurred or flipped.
    _SIZE: "CHMv2 DeepseekOcr2 EfficientNet Gemma4 Gemma4Unified Glm5Next GraniteDocling Idefics3 LayoutLMv2 Lfm2Vl "
    "LlavaNext LlavaOnevision Mask2Former MaskFormer MiniCPMOcr MiniCPMV4_6 MuseGlimmer Owlv2 PPLCNet "
    "PPOCRV5ServerDet PPOCRV6SmallRec PerceptionLM Pixtral PoolFormer SLANeXt Siglip2 SmolVLM UVDoc UnlimitedOcr",
    _SHORTEST: "ConvNext Levit PoolFormer TextNet",
    # Pads of a class's own: to a square, a multiple, the size of the class, around the picture, or none.
    _PAD: "CHMv2 DPT DeepseekVL DeepseekVLHybrid Donut Eomt Janus Lfm2Vl Llava Nougat Owlv2 PPFormulaNet "
    "PPOCRV5ServerRec PPOCRV6SmallRec PromptDepthAnything Sapiens2 Swin2SR ZoeDepth",
    # A bug: maps are resized as pictures are, and get labels between those of the map.
    "maps of segments, twice, reduced": "Beit CHMv2 DPT Sapiens2",
    # Maps have a size of their own.
    "maps of segments": "Sam2 Sam3",
})  # fmt: skip
"""What classes do otherwise: patterns of a law and what it says."""
OLDER: Mapping[str, str] = _classes_of({
    # Classes with the options of their base that they do not use.
    _CROP: "Cohere2Vision ConditionalDetr DeepseekVL DeformableDetr DepthPro Detr Gemma3 GroundingDino Idefics2 "
    "Idefics3 Janus LayoutLMv2 Lfm2Vl Llama4 Mask2Former MaskFormer Nougat OneFormer PerceptionLM "
    "PromptDepthAnything RTDetr Segformer SmolVLM SuperPoint Swin2SR Yolos ZoeDepth",
    _SIZE: "Nougat Swin2SR TextNet",
    "maps of segments, cropped": "Segformer",
    _PAD: "Beit BridgeTower ConvNext DINOv3ViT DepthPro Flava Gemma3 GotOcr2 LayoutLMv2 LayoutLMv3 Llama4 "
    "MobileNetV2 MobileViT OneFormer Ovis2 Perceiver PerceptionLM Pixtral PoolFormer Segformer SuperPoint TextNet",
})  # fmt: skip
"""Of releases before 5."""
