"""Replaces torchvision's functions that image and video processors of Transformers call, for a process without it.

Resized pictures of whole numbers are computed in float32 and rounded, so that they are the same on every machine.
"""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import sys
import types
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as nnf

VERSION = "0.26.0"


class InterpolationMode(Enum):
    """Modes of resizing, as torchvision names them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


OF_PILLOW = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Modes by the number that Pillow gives them."""


def _in_floats(image: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change an image [..., C, H, W] in float32, [N, C, H, W], and return it in its own type and form."""
    flat = image.reshape(-1, *image.shape[-3:]) if image.dim() != 4 else image
    found = change(flat.float() if not flat.is_floating_point() else flat)
    if not image.is_floating_point():
        found = found.round()
        if image.dtype == torch.uint8:
            found = found.clamp(0, 255)
        found = found.to(image.dtype)
    return found.reshape(*image.shape[:-3], *found.shape[-3:])


def resize(
    image: Tensor,
    size: Any,
    interpolation: Any = InterpolationMode.BILINEAR,
    max_size: int | None = None,
    antialias: bool | None = True,
) -> Tensor:
    """Return an image [..., H, W] of a size: a height and a width, or a shorter edge."""
    height, width = image.shape[-2:]
    sides = [size] if isinstance(size, int) else [int(one) for one in size]
    if len(sides) == 1:
        short = min(height, width)
        sides = [int(sides[0] * one / short) for one in (height, width)]
        if max_size is not None and max(sides) > max_size:
            sides = [int(max_size * one / max(sides)) for one in sides]
    mode = getattr(interpolation, "value", interpolation)
    mode = str(OF_PILLOW.get(mode, mode))
    if mode not in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        raise ValueError(f"no tensor is resized by {mode}")
    options: dict[str, Any] = {} if mode.startswith("nearest") else {
        "align_corners": False, "antialias": bool(antialias)}  # fmt: skip
    if sides == [height, width]:
        return image
    bare = image[None] if image.dim() == 2 else image
    found = _in_floats(bare, lambda one: nnf.interpolate(one, size=sides, mode=mode, **options))
    return found[0] if image.dim() == 2 else found


def pad(image: Tensor, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Tensor:
    """Return an image with more on its left, top, right and bottom."""
    sides = [padding] * 4 if isinstance(padding, int) else [int(one) for one in padding]
    left, top, right, bottom = {1: sides * 4, 2: sides * 2, 4: sides}[len(sides)]
    edges = [left, right, top, bottom]
    if padding_mode == "symmetric":
        rows, columns = (
            torch.from_numpy(np.pad(np.arange(size), one, mode="symmetric"))
            for size, one in zip(image.shape[-2:], ((top, bottom), (left, right)), strict=True)
        )
        return image[..., rows, :][..., columns]
    if padding_mode != "constant":
        mode = {"edge": "replicate"}.get(padding_mode, padding_mode)
        return _in_floats(image, lambda one: nnf.pad(one, edges, mode=mode))
    if isinstance(fill, (list, tuple)) and len(set(fill)) > 1:
        layers = [
            nnf.pad(image[..., place, :, :], edges, value=float(value)) for place, value in enumerate(fill)
        ]
        return torch.stack(layers, -3)
    value = fill[0] if isinstance(fill, (list, tuple)) else fill
    return nnf.pad(image, edges, value=float(value or 0)).to(image.dtype)


def crop(image: Tensor, top: int, left: int, height: int, width: int) -> Tensor:
    """Return a part of an image; what is outside of it is 0."""
    tall, wide = image.shape[-2:]
    found = image[..., max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)]
    edges = [
        max(-left, 0),
        max(-top, 0),
        max(left + width - max(wide, left), 0),
        max(top + height - max(tall, top), 0),
    ]
    return pad(found, edges) if any(edges) else found


def center_crop(image: Tensor, output_size: Any) -> Tensor:
    """Return the middle of an image, with 0 around it where it is smaller."""
    height, width = (output_size, output_size) if isinstance(output_size, int) else output_size
    tall, wide = image.shape[-2:]
    if width > wide or height > tall:
        left, top = max((width - wide) // 2, 0), max((height - tall) // 2, 0)
        right, bottom = max((width - wide + 1) // 2, 0), max((height - tall + 1) // 2, 0)
        image = pad(image, [left, top, right, bottom])
        tall, wide = image.shape[-2:]
    return crop(image, round((tall - height) / 2), round((wide - width) / 2), height, width)


def normalize(image: Tensor, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> Tensor:
    """Return an image [..., C, H, W] less a mean, divided by a standard deviation, of each channel."""
    if not image.is_floating_point():
        raise TypeError(f"Input tensor should be a float tensor. Got {image.dtype}.")
    means, stds = (
        torch.as_tensor(one, dtype=image.dtype, device=image.device).view(-1, 1, 1) for one in (mean, std)
    )
    return image.sub_(means).div_(stds) if inplace else (image - means) / stds


def rgb_to_grayscale(image: Tensor, num_output_channels: int = 1) -> Tensor:
    """Return the brightness of a picture [..., 3, H, W], in 1 or 3 equal channels."""
    if image.shape[-3] == 1 and num_output_channels == 3:
        return grayscale_to_rgb(image)
    weights = torch.tensor([0.2989, 0.587, 0.114]).view(-1, 1, 1)
    found = (image[..., :3, :, :].float() * weights).sum(-3, keepdim=True).to(image.dtype)
    return found.expand(*found.shape[:-3], num_output_channels, *found.shape[-2:])


def grayscale_to_rgb(image: Tensor) -> Tensor:
    """Return a picture [..., 1, H, W] with three equal channels."""
    if image.shape[-3] >= 3:
        return image
    return image.expand(*image.shape[:-3], 3, *image.shape[-2:])


def to_dtype(image: Tensor, dtype: torch.dtype = torch.float32, scale: bool = False) -> Tensor:
    """Return an image of another type; with `scale`, 255 of whole numbers is 1."""
    if scale and image.is_floating_point() != dtype.is_floating_point:
        if dtype.is_floating_point:
            return image.to(dtype) / 255
        return (image * (256 - 1e-3)).to(dtype)
    return image.to(dtype)


def pil_to_tensor(pic: Any) -> Tensor:
    """Return a picture as uint8 [C, H, W]."""
    found = torch.from_numpy(np.array(pic))
    return found[None] if found.dim() == 2 else found.permute(2, 0, 1).contiguous()


def to_image(pic: Any) -> Tensor:
    """Return a picture, an array [H, W, C] or a tensor as [C, H, W]."""
    return pic if isinstance(pic, Tensor) else pil_to_tensor(pic)


def to_tensor(pic: Any) -> Tensor:
    """Return a picture or an array [H, W, C] as [C, H, W], between 0 and 1 if it is of whole numbers."""
    found = to_image(pic)
    return found.float() / 255 if found.dtype == torch.uint8 else found


def to_pil_image(pic: Any, mode: str | None = None) -> Any:
    """Return a tensor [C, H, W] or an array [H, W, C] as a picture."""
    from PIL import Image

    if isinstance(pic, Tensor):
        scaled = pic.mul(255).byte() if pic.is_floating_point() else pic
        pic = (scaled.permute(1, 2, 0) if scaled.dim() == 3 else scaled).numpy()
    if pic.ndim == 3 and pic.shape[-1] == 1:
        pic = pic[..., 0]
    return Image.fromarray(pic, mode) if mode else Image.fromarray(pic)


def gaussian_blur(image: Tensor, kernel_size: Any, sigma: Any = None) -> Tensor:
    """Return an image blurred by a Gaussian of a size and a width, both by x and y."""
    sizes = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size)
    sigmas = [sigma] * 2 if isinstance(sigma, float) else list(sigma or [0.15 * one + 0.35 for one in sizes])

    def line(size: int, width: float) -> Tensor:
        places = torch.arange(size, dtype=torch.float32) - (size - 1) / 2
        found = torch.exp(-0.5 * (places / width) ** 2)
        return found / found.sum()

    kernel = line(sizes[1], sigmas[1])[:, None] * line(sizes[0], sigmas[0])[None]
    x, y = sizes[0] // 2, sizes[1] // 2

    def blurred(one: Tensor) -> Tensor:
        channels = one.shape[1]
        around = nnf.pad(one.float(), [x, x, y, y], mode="reflect")
        return nnf.conv2d(around, kernel.expand(channels, 1, *kernel.shape), groups=channels).to(one.dtype)

    return _in_floats(image, blurred)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Return the places of boxes, the best first, that overlap no better one by more than a share."""
    kept: list[int] = []
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for one in scores.argsort(descending=True, stable=True).tolist():
        low = torch.maximum(boxes[one, :2], boxes[kept, :2])
        high = torch.minimum(boxes[one, 2:], boxes[kept, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        if not kept or bool((shared / (areas[one] + areas[kept] - shared) <= iou_threshold).all()):
            kept.append(one)
    return torch.tensor(kept, dtype=torch.long)


def batched_nms(boxes: Tensor, scores: Tensor, idxs: Tensor, iou_threshold: float) -> Tensor:
    """Return what `nms` does, for each class apart."""
    apart = idxs.to(boxes)[:, None] * (boxes.max() + 1) if len(boxes) else boxes
    return nms(boxes + apart, scores, iou_threshold)


def masks_to_boxes(masks: Tensor) -> Tensor:
    """Return the first and last column and row of masks [N, H, W], as x, y, x, y."""
    found = torch.zeros(len(masks), 4)
    for place, mask in enumerate(masks):
        rows, columns = torch.where(mask != 0)
        if len(rows):
            found[place] = torch.stack([columns.min(), rows.min(), columns.max(), rows.max()]).float()
    return found


FUNCTIONS = (
    resize, pad, crop, center_crop, normalize, rgb_to_grayscale, grayscale_to_rgb, to_dtype, pil_to_tensor, to_image,
    to_tensor, to_pil_image, gaussian_blur,
)  # fmt: skip


def _module(name: str, **found: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    made.__file__ = __file__
    made.__dict__.update(found)
    sys.modules[name] = made
    return made


def _no_files(path: Any, *given: Any, **options: Any) -> Any:
    raise ImportError("no file is decoded without torchvision")


def install() -> None:
    """Put the functions in torchvision's place, in a process that has not imported Transformers yet."""
    assert "transformers" not in sys.modules, "Transformers has looked for torchvision before"
    functions: dict[str, Any] = {one.__name__: one for one in FUNCTIONS}
    functions |= {"to_dtype_image": to_dtype, "InterpolationMode": InterpolationMode}
    of_functions = {name: _module(name, **functions) for name in (
        "torchvision.transforms.functional", "torchvision.transforms.v2.functional")}  # fmt: skip
    later = _module(
        "torchvision.transforms.v2",
        functional=of_functions["torchvision.transforms.v2.functional"],
        InterpolationMode=InterpolationMode,
    )
    transforms = _module(
        "torchvision.transforms",
        functional=of_functions["torchvision.transforms.functional"],
        v2=later,
        InterpolationMode=InterpolationMode,
    )
    of_boxes: dict[str, Any] = {one.__name__: one for one in (nms, batched_nms, masks_to_boxes)}
    ops = _module("torchvision.ops", boxes=_module("torchvision.ops.boxes", **of_boxes), **of_boxes)
    files = _module("torchvision.io", read_image=_no_files, decode_image=_no_files, read_video=_no_files)
    _module("torchvision", transforms=transforms, ops=ops, io=files, __version__=VERSION)
    _module("num2words", num2words=str, __version__=VERSION)
    version = importlib.metadata.version

    def versions(distribution_name: str) -> str:
        known = distribution_name in ("torchvision", "num2words")
        return VERSION if known else version(distribution_name)

    importlib.metadata.version = versions
