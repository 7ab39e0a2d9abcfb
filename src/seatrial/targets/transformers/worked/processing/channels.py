"""Laws of image processors: pictures whose channels come first or last, said or not, give the same outputs.

All outputs are compared, and not the pixels alone: sizes, masks, boxes, maps and numbers of pieces too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.processing import pictures
from seatrial.targets.transformers.worked.processing.compare import plain, unlike
from seatrial.targets.transformers.worked.records.pictures import _annotations, _picture, _segments, _two

FIRST, LAST = "channels_first", "channels_last"
FORMS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "array, last": (np.array, LAST),
    "array, first": (lambda one: np.array(one).transpose(2, 0, 1).copy(), FIRST),
    "tensor, last": (lambda one: torch.from_numpy(np.array(one)), LAST),
    "tensor, first": (lambda one: torch.from_numpy(np.array(one).transpose(2, 0, 1).copy()), FIRST),
}
"""How a picture is given, and where its channels are."""
GIVEN: Mapping[str, Callable[[], dict[str, Any]]] = {
    "two of a size": lambda: {"images": [_picture(53, 37), _picture(53, 37).transpose(1)]},
    "three": lambda: {"images": pictures._three()},
    "segments": lambda: {"images": _two(), "segmentation_maps": [_segments(53, 37), _segments(31, 60)]},
    "boxes": lambda: {"images": _two(), "annotations": _annotations()},
}
"""Inputs of a call."""


def _takes(made: Any) -> set[str]:
    """Return the options of a call that a class names."""
    valid = getattr(getattr(made, "valid_kwargs", None), "__annotations__", {})
    return {*inspect.signature(made.preprocess).parameters, *valid}


def _answer(processor: Any, given: Mapping[str, Any], **options: Any) -> dict[str, Any] | None:
    """Return the outputs of a call; None where the class refuses it."""
    try:
        return dict(processor(**given, **options).items())
    except Exception:  # noqa: BLE001  inputs that the class does not take
        return None


def _inputs(made: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    takes = _takes(made)
    for name, make in GIVEN.items():
        given = make()
        if {*given} - {"images"} <= takes:
            yield name, given


def _said(made: Any) -> Iterator[str]:
    """Yield where pictures of a form differ from pictures, with the place of their channels said and not said."""
    processor, judged = pictures._new(made), False
    for name, given in _inputs(made):
        due = _answer(processor, given)
        if due is None:
            continue
        for form, (change, place) in FORMS.items():
            changed = {**given, "images": [change(one) for one in given["images"]]}
            bare = _answer(processor, changed)
            if bare is None:
                continue
            judged = True
            yield from (f"{name}, {form}:{one}" for one in list(unlike(bare, due))[:1])
            said = _answer(processor, changed, input_data_format=place)
            if said is None:
                yield f"{name}, {form}, said: refused"
            else:
                yield from (f"{name}, {form}, said:{one}" for one in list(unlike(said, due))[:1])
    if not judged:
        raise NotServed("no pictures of these forms")


def _moved(value: Any) -> Any:
    """Return pixels with their channels first, of a list or an array whose channels are last."""
    if isinstance(value, list):
        return [_moved(one) for one in value]
    return np.moveaxis(value, -1, -3)


def _outputs(made: Any) -> Iterator[str]:
    """Yield where outputs with their channels last are not those with their channels first."""
    if "data_format" not in _takes(made):
        raise NotServed("channels of outputs have one place")
    processor, judged = pictures._new(made), False
    for name, given in _inputs(made):
        due, found = (_answer(processor, given, data_format=one) for one in (FIRST, LAST))
        if due is None or found is None:
            continue
        due, found = plain(due), plain(found)
        if not list(unlike(found, due)):
            continue  # an option that the class does not use
        judged = True
        for key in found:
            if re.search("pixel_values|^images$", key) and np.shape(found[key][0])[-1:] == (3,):
                found[key] = _moved(found[key])
        yield from (f"{name}:{one}" for one in list(unlike(found, due))[:1])
    if not judged:
        raise NotServed("channels of outputs have one place")


classes = pictures.classes


LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "pictures: channels of inputs": _said,
    "pictures: channels of outputs": _outputs,
}
OTHERWISE: Mapping[str, str] = {}
OLDER: Mapping[str, str] = {
    "EomtImageProcessor": "said: refused",
    # A bug: sizes are read as if channels came first.
    "Emu3ImageProcessor": "channels of outputs.*image_sizes",
}
"""Of releases before 5."""
