"""Laws of image processors, of each backend: rows of a batch, options by each way, forms, numbers of pixels."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, since
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.processing.compare import (
    left_by_options,
    plain,
    unlike,
    unlike_rows,
)
from seatrial.targets.transformers.worked.records import pictures, tensor_pictures

Made = Any
MEAN, STD = [0.1, 0.2, 0.3], [0.5, 0.25, 0.75]
FORMS: Mapping[str, Callable[[Any], Any]] = {
    "array": np.array,
    "channels first": lambda one: np.array(one).transpose(2, 0, 1),
    "tensor": lambda one: torch.from_numpy(np.array(one).transpose(2, 0, 1).copy()),
}


def _three() -> list[Any]:
    """Return pictures of which the first and the last are of one size."""
    one, other = pictures._two()
    return [one.copy(), other.copy(), one.transpose(1)]


@cache
def _small(made: Any) -> dict[str, Any]:
    """Return options of a class with small sizes.

    Raises:
        NotServed: it takes no pictures alone.
    """
    found = pictures._fitting(tensor_pictures._with(made), tensor_pictures._with(made)().to_dict())
    try:
        tensor_pictures._with(made)(**found)(images=pictures._two())
    except ImportError:
        raise
    except Exception as error:
        raise NotServed(f"no pictures alone: {error}") from error
    return found


def _new(made: Any, **options: Any) -> Any:
    return tensor_pictures._with(made)(**{**_small(made), **options})


def _call(processor: Any, images: Any, **options: Any) -> dict[str, Any]:
    return dict(processor(images=images, **options).items())


def _rows(made: Any) -> Iterator[str]:
    """Yield where pictures of a batch are not what they are alone."""
    processor = _new(made)
    if made.__name__.removesuffix("Pil").removesuffix("Fast") in tensor_pictures.CALLED:
        raise NotServed("calls with more than pictures")
    singles = [_call(processor, [one]) for one in _three()]
    wrong = list(unlike_rows(_call(processor, _three()), singles, None, None))
    if any("rows," in one for one in wrong):  # of classes that make a row of a list
        wrong = list(unlike_rows(_call(processor, [[one] for one in _three()]), singles, None, None))
    yield from wrong


def _again(made: Any) -> Iterator[str]:
    """Yield what a call changes: later ones, the processor, pictures of the caller."""
    processor = _new(made)
    before = copy.deepcopy(_state(processor))
    images = [np.array(one) for one in pictures._two()]
    kept = copy.deepcopy(images)
    first = _call(processor, images)
    yield from (f"pictures{one}" for one in unlike(images, kept))
    if _of_tensors(made):
        tensors = [FORMS["tensor"](one) for one in pictures._two()]
        kept_tensors = copy.deepcopy(tensors)
        _call(processor, tensors)
        yield from (f"tensors{one}" for one in unlike(tensors, kept_tensors))
    options: tuple[Mapping[str, Any], ...] = (
        {"do_normalize": False, "do_rescale": False},
        {"do_resize": False},
        {"return_tensors": "pt"},
    )
    yield from left_by_options(
        partial(_call, processor, images), first, partial(_state, processor), before, options
    )


def _state(processor: Any) -> dict[str, Any]:
    return {
        name: dict(one) if hasattr(one, "keys") else one
        for name, one in vars(processor).items()
        if not name.startswith("_")
    }


def _of_tensors(made: Any) -> bool:
    return tensor_pictures._of_tensors(made)


def _options(made: Any) -> Iterator[tuple[str, Any]]:
    for name, value in _new(made).to_dict().items():
        if name not in (*pictures.SKIPPED, "image_processor_type", "processor_class", "do_reduce_labels"):
            for other in pictures._other(name, value):
                yield name, other


def _ways(made: Any) -> Iterator[str]:
    """Yield where an option at the call is not what it is of a processor made with it."""
    processor = _new(made)
    takes = inspect.signature(made.preprocess).parameters
    valid = getattr(getattr(made, "valid_kwargs", None), "__annotations__", {})
    for name, value in _options(made):
        if name not in takes and name not in valid:
            continue
        try:
            due = _call(_new(made, **{name: value}), pictures._two())
            found = _call(processor, pictures._two(), **{name: copy.deepcopy(value)})
        except Exception:  # noqa: BLE001  a value that the class does not take
            continue
        yield from (f"{name} {value}:{one}" for one in list(unlike(found, due))[:1])


def _saved(made: Any) -> Iterator[str]:
    """Yield where a processor is not what was saved that is read: of a folder, of a dictionary, with other options."""
    options = dict(_options(made))
    kept: dict[str, Any] = {}
    for name, value in options.items():
        try:
            _call(_new(made, **{**kept, name: value}), pictures._two())
        except Exception:  # noqa: BLE001  a value that the class does not take
            continue
        kept[name] = value
    processor = _new(made, **kept)
    folder = new_folder()
    processor.save_pretrained(folder)
    kind: Any = type(processor)
    calls: Mapping[str, Callable[[], Any]] = {
        "a folder": lambda: kind.from_pretrained(folder),
        "a dictionary": lambda: kind.from_dict(processor.to_dict()),
        "a file": lambda: kind.from_json_file(f"{folder}/preprocessor_config.json"),
    }
    due = _call(processor, pictures._two())
    for way, call in calls.items():
        read = call()
        yield from (f"{way}:{one}" for one in unlike(_call(read, pictures._two()), due))
        yield from (f"{way}, said:{one}" for one in unlike(_said(read), _said(processor)))


def _unused(made: Any) -> Iterator[str]:
    """Yield options that a reader uses and says to be unused, or the other way round."""
    folder = new_folder()
    processor = _new(made)
    processor.save_pretrained(folder)
    read, unused = type(processor).from_pretrained(
        folder, return_unused_kwargs=True, do_rescale=False, none_such=3
    )
    if unused != {"none_such": 3}:
        yield f"{unused}"
    if read.do_rescale:
        yield "do_rescale is not used"


def _said(processor: Any) -> dict[str, Any]:
    found = json.loads(json.dumps(processor.to_dict(), default=str))
    return {name: one for name, one in found.items() if name not in ("processor_class", "_processor_class")}


def _forms(made: Any) -> Iterator[str]:
    """Yield where arrays, tensors and channels first differ from pictures, and one from a list of it."""
    processor = _new(made)
    due = _call(processor, pictures._two())
    for name, form in FORMS.items():
        if name == "tensor" and not _of_tensors(made):
            continue
        images = [form(one) for one in pictures._two()]
        yield from (f"{name}:{one}" for one in unlike(_call(processor, images), due))
        where = {"array": "channels_last"}.get(name, "channels_first")
        try:
            found = _call(processor, images, input_data_format=where)
        except Exception:  # noqa: BLE001  a value that the class does not take
            continue
        yield from (f"{name}, {where}:{one}" for one in unlike(found, due))
    one = pictures._two()[0]
    listed = _call(processor, [one])
    yield from (f"one:{said}" for said in unlike(_call(processor, one), listed))
    for kind in ("np", "pt"):
        try:
            found = _call(processor, [one], return_tensors=kind)
        except Exception:  # noqa: BLE001  a value that the class does not take
            continue
        yield from (f"{kind}:{said}" for said in unlike(found, listed))
        for key, value in found.items():
            if type(value).__name__ not in ({"np": "ndarray", "pt": "Tensor"}[kind], "list"):
                yield f"{kind} {key}: {type(value).__name__}"


def _grey(made: Any) -> Iterator[str]:
    """Yield where grey and transparent pictures are not their colours, where a class converts."""
    processor = _new(made, do_convert_rgb=True)
    if not hasattr(processor, "do_convert_rgb"):
        raise NotServed("it does not convert")
    grey = pictures._picture(53, 37, "L")
    solid = pictures._picture(53, 37, "RGB").copy()
    for what, given in (("grey", grey), ("opaque", _opaque(solid)), ("a palette", grey.convert("P"))):
        rgb = given.convert("RGB")
        yield from (f"{what}:{one}" for one in unlike(_call(processor, [given]), _call(processor, [rgb])))


def _opaque(image: Any) -> Any:
    found = image.convert("RGBA")
    found.putalpha(255)
    return found


def _values(made: Any) -> Iterator[str]:
    """Yield where numbers are not those of a picture times the factor, less the mean, by the deviation."""
    known = _new(made).to_dict()
    if not {"do_rescale", "do_normalize", "image_mean"} <= {*known}:
        raise NotServed("it does not normalize")
    options = {"image_mean": MEAN, "image_std": STD, "rescale_factor": 0.01}
    try:
        wholes, scaled, shifted, both = (
            _call(_new(made, **options, do_rescale=one, do_normalize=other), pictures._two()[:1])
            for one, other in ((False, False), (True, False), (False, True), (True, True))
        )
    except Exception as error:
        raise NotServed(str(error)) from error
    for name, value in plain(wholes).items():
        whole = np.asarray(value[0] if isinstance(value, list) else value, dtype=np.float64)
        if not name.startswith("pixel_values") or 3 not in whole.shape[-3:]:
            continue
        axis = whole.ndim - 3 if whole.shape[-3] == 3 else whole.ndim - 1
        form = [3 if place == axis else 1 for place in range(whole.ndim)]
        mean, std = (np.asarray(one).reshape(form) for one in (MEAN, STD))
        shown = whole != 0
        for what, found, due in (
            ("rescaled", scaled, whole * 0.01),
            ("normalized", shifted, (whole - mean) / std),
            ("both", both, (whole * 0.01 - mean) / std),
        ):
            own = plain(found)[name]
            own = np.asarray(own[0] if isinstance(own, list) else own, dtype=np.float64)
            if own.shape != whole.shape:
                yield f"{what} {name}: shape {own.shape}, {whole.shape} is due"
            elif not np.allclose(own[shown], due[shown], rtol=1e-4, atol=1e-4):
                yield f"{what} {name}: {own[shown][:3]}, {due[shown][:3]} is due"


def _backends(made: Any) -> Iterator[str]:
    """Yield where the backends differ on pictures of one colour, which resizing leaves as they are."""
    import transformers
    from PIL import Image

    name = made.__name__
    other = getattr(transformers, f"{name}Pil", None) or getattr(
        transformers, name.removesuffix("Fast"), None
    )
    if other in (None, made) or not _of_tensors(made):
        raise NotServed("one backend")
    sizes = ((53, 37), (31, 60), (200, 24), (40, 40), (120, 130))
    images = [Image.new("RGB", size, (40 + 9 * place, 90, 200)) for place, size in enumerate(sizes)]
    always = tensor_pictures.ALWAYS.get(name.removesuffix("Fast"), {})
    one, two = _new(made), other(**{**always, **_small(made)})
    for picked in ([place] for place in range(len(images))):
        own = [images[place] for place in picked]
        yield from (
            f"{[sizes[place] for place in picked]}:{said}"
            for said in list(unlike(_call(one, own), _call(two, own)))[:1]
        )
    for options in (
        {"do_resize": False},
        {"do_normalize": False},
        {"do_rescale": False, "do_normalize": False},
    ):
        try:
            pair = _call(one, images[:1], **options), _call(two, images[:1], **options)
        except Exception:  # noqa: BLE001  a value that a class does not take
            continue
        yield from (f"{options}:{said}" for said in list(unlike(*pair))[:1])


def _counts(made: Any) -> Iterator[str]:
    """Yield where the number of patches that is said is not what a call gives."""
    processor = _new(made)
    if not hasattr(processor, "get_number_of_image_patches"):
        raise NotServed("no numbers of patches")
    for width, height in ((53, 37), (31, 60), (200, 24), (120, 130)):
        image = pictures._picture(width, height)
        said = processor.get_number_of_image_patches(height, width, {})
        found = _call(processor, [image])
        values = plain(found["pixel_values"])
        first = values[0] if isinstance(values, list) and len(values) == 1 else values
        if "image_grid_thw" in found:
            num = int(np.prod(plain(found["image_grid_thw"])[0]))
            if len(np.asarray(plain(values))) != num and len(first) != num:
                yield f"{(width, height)}: {len(first)} patches, {num} is due by the grid"
            if said != num:
                yield f"{(width, height)}: {num} patches, {said} is said"
            continue
        num = (
            len(first)
            if np.ndim(first) >= 4 or "num_crops" in found or "num_patches" in found
            else len(values)
        )
        if said != num:
            yield f"{(width, height)}: {num} patches, {said} is said"


@cache
def classes() -> dict[str, Any]:
    """Return the image processors of the installed release, of each backend."""
    import transformers

    names = [
        name for name in dir(transformers)
        if name.endswith(("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil"))
        and not name.startswith(("Auto", "Base"))
    ]  # fmt: skip
    return {name: getattr(transformers, name) for name in names}


LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "pictures: a batch is its rows": _rows,
    "pictures: calls again": _again,
    "pictures: options at the call": _ways,
    "pictures: saved and read": _saved,
    "pictures: options that are not used": _unused,
    "pictures: forms of pictures": _forms,
    "pictures: colours": _grey,
    "pictures: numbers of pixels": _values,
    "pictures: backends": _backends,
    "pictures: numbers of patches": _counts,
}
KNOWN: Mapping[str, KnownFailure] = {
    "pictures: options that are not used": KnownFailure(
        "options that are used are returned as unused",
        finding="Transformers: unused options of image processors",
        releases=since("transformers", "5"),
    )
}
_PATCHES = "numbers of patches"
"""They count tiles and what a picture is split into, or rows and columns."""
_VALUES = "numbers of pixels"
"""It is resized after it is normalized, or of other channels, or its range is another."""
_FROM_MEAN = "options at the call, image_mean"
"""What it is padded with is computed of the mean when it is made."""
OTHERWISE: Mapping[str, str] = {
    "AriaImageProcessor": "num_crops",
    "Apertus1p5ImageProcessor": _PATCHES, "DeepseekOcr2ImageProcessor": _PATCHES, "GotOcr2ImageProcessor": _PATCHES,
    "GraniteDoclingImageProcessor": _PATCHES, "HYV4VLImageProcessor": _PATCHES, "HunYuanVLImageProcessor": _PATCHES,
    "Idefics3ImageProcessor": _PATCHES, "Molmo2ImageProcessor": f"{_PATCHES}|image_token_pooling",
    "SmolVLMImageProcessor": _PATCHES, "UltraVBertImageProcessor": _PATCHES,
    "MiniCPMOcrImageProcessor": "rows, pixel_values", "MiniCPMV4_6ImageProcessor": "rows, pixel_values",
    "OneFormerImageProcessor": "task_inputs",
    "DeepseekVLImageProcessor": _FROM_MEAN, "JanusImageProcessor": _FROM_MEAN,
    # Pictures for the recognition of lines have the width of the widest of a batch, and a height of the class.
    "PPOCRV5ServerRecImageProcessor": "its rows, pixel_values|at the call, size",
    "PPOCRV6SmallRecImageProcessor": "its rows, pixel_values|at the call, size",
    "DepthProImageProcessor": _VALUES, "EfficientNetImageProcessor": _VALUES,
    "Owlv2ImageProcessor": f"{_VALUES}|backends", "PPDocLayoutV4ImageProcessor": _VALUES,
    "PPLCNetImageProcessor": _VALUES, "PPOCRV5ServerDetImageProcessor": _VALUES,
    "TvpImageProcessor": f"{_VALUES}|backends", "ZoeDepthImageProcessor": _VALUES,
    # A picture of one colour is divided by its own spread.
    "Kosmos2_5ImageProcessor": "backends", "Pix2StructImageProcessor": "backends",
    "LlavaNextImageProcessor": "backends", "PoolFormerImageProcessor": "backends",
    "Llama4ImageProcessor": "forms of pictures, (np|pt)", "Step3p7ImageProcessor": "forms of pictures, np",
}  # fmt: skip
"""What classes do otherwise by design: patterns of a law and what it says."""
OLDER: Mapping[str, str] = {
    "Emu3ImageProcessor": "its rows", "Kosmos2_5ImageProcessor": "its rows, attention_mask",
    "AriaImageProcessor": f"at the call, image_|{_VALUES}", "TextNetImageProcessor": "at the call, size_divisor",
    "DeepseekVLHybridImageProcessor": f"{_FROM_MEAN}|saved and read", "Qwen2VLImageProcessor": "at the call, size",
    "LayoutLMv3ImageProcessor": f"at the call, rescale_factor|{_VALUES}", "LayoutLMv2ImageProcessor": _VALUES,
    "VitPoseImageProcessor": "at the call, do_affine_transform", "MobileViTImageProcessor": _VALUES,
    "SuperPointImageProcessor": _VALUES, "Swin2SRImageProcessor": _VALUES,
    **dict.fromkeys(
        (f"{name}ImageProcessor" for name in ("Beit", "Eomt", "ImageGPT", "OwlViT", "Sam", "ZoeDepth")), "backends"
    ),
}  # fmt: skip
"""Of releases before 5, whose two classes of a kind differed more, and do not have or do not use some options."""
