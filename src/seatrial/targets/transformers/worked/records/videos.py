"""Films that video processors of Transformers make, by class and options, on record; see `torchvision`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from seatrial.targets.transformers.worked.records.answers import REFUSED, given
from seatrial.targets.transformers.worked.records.pictures import SKIPPED, _other, _picture, _smaller

RECORD = "videos_record"
SIDES = {
    "height": 56,
    "width": 42,
    "shortest_edge": 56,
    "longest_edge": 112,
    "max_height": 70,
    "max_width": 56,
}
"""Of a size, by its key."""
FPS = 4.0


def film(frames: int, width: int = 60, height: int = 46) -> Any:
    """Return a film, [T, H, W, 3]: a smooth picture that moves and becomes darker."""
    still = np.array(_picture(width, height)).astype(np.int64)
    return np.stack(
        [np.roll(still, 3 * one, axis=one % 2) * (12 - one % 12) // 12 for one in range(frames)]
    ).astype(np.uint8)


def _metadata(*frames: int) -> list[dict[str, Any]]:
    return [
        {"total_num_frames": one, "fps": FPS, "duration": one / FPS, "width": 60, "height": 46,
         "frames_indices": list(range(one))} for one in frames
    ]  # fmt: skip


def _torch(value: Any) -> Any:
    import torch

    return torch.from_numpy(value)


INPUTS: Mapping[str, Any] = {
    "one": lambda: {"videos": film(6), "video_metadata": _metadata(6)},
    "two": lambda: {"videos": [film(6), film(4, 44, 60)], "video_metadata": _metadata(6, 4)},
    "lists": lambda: {"videos": [film(6), film(4, 44, 60)], "video_metadata": _metadata(6, 4), "return_tensors": None},
    "five frames": lambda: {"videos": [film(5)], "video_metadata": _metadata(5)},
    "one frame": lambda: {"videos": [film(1)], "video_metadata": _metadata(1)},
    "channels first": lambda: {"videos": film(4).transpose(0, 3, 1, 2), "video_metadata": _metadata(4)},
    "tensors": lambda: {"videos": [_torch(film(4).transpose(0, 3, 1, 2))], "video_metadata": _metadata(4)},
    "frames": lambda: {"videos": [[_picture(60, 46)] * 4, [_picture(44, 60)] * 6], "do_sample_frames": False},
    "lists of one": lambda: {"videos": [[film(6)], [film(4)]], "video_metadata": _metadata(6, 4)},
    "floats": lambda: {"videos": film(4) / np.float32(255), "do_rescale": False, "video_metadata": _metadata(4)},
    "metadata": lambda: {"videos": [film(8)], "video_metadata": _metadata(8), "return_metadata": True},
    "sampled": lambda: {"videos": [film(12), film(9)], "video_metadata": _metadata(12, 9), "do_sample_frames": True,
                        "return_metadata": True},
    "sampled to a number": lambda: {
        "videos": [film(12), film(9)], "video_metadata": _metadata(12, 9), "do_sample_frames": True, "num_frames": 6,
        "fps": None, "return_metadata": True},
    "sampled by time": lambda: {
        "videos": [film(12), film(21)], "video_metadata": _metadata(12, 21), "do_sample_frames": True, "fps": 1,
        "num_frames": None, "return_metadata": True},
    "sampled at another rate": lambda: {
        "videos": [film(15)], "do_sample_frames": True, "return_metadata": True,
        "video_metadata": [{**_metadata(15)[0], "fps": 1.5, "duration": 10.0}]},
    "without metadata": lambda: {"videos": [film(6)], "return_metadata": True, "do_sample_frames": False},
    "not resized": lambda: {"videos": [film(4, 56, 56)], "do_resize": False, "video_metadata": _metadata(4)},
    "not resized, of sixteen": lambda: {
        "videos": [film(4, 96, 96)], "do_resize": False, "video_metadata": _metadata(4)},
    "large": lambda: {"videos": [film(4, 240, 130)], "video_metadata": _metadata(4)},
    "wide": lambda: {"videos": [film(4, 300, 40)], "video_metadata": _metadata(4)},
}  # fmt: skip
"""Inputs; options are tried with two films."""
ALWAYS: Mapping[str, Mapping[str, Any]] = {
    "Ernie4_5_VLMoeVideoProcessor": {"draw_on_frames": False},
    "Gemma4VideoProcessor": {"num_frames": 3},
    "Gemma4UnifiedVideoProcessor": {"num_frames": 3},
}  # fmt: skip
"""Options of classes that need files or longer films by default."""


def _fitting(made: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return smaller sizes that a processor takes, if there are any."""
    for sides in (SIDES, {}):
        smaller: dict[str, Any] = _smaller(known, sides)
        for more in ({}, {"num_frames": 3}):
            try:
                made(**ALWAYS.get(made.__name__, {}), **smaller, **more)(**_called("one"))
            except REFUSED:
                continue
            return {**smaller, **more}
    return {}


def _called(name: str) -> dict[str, Any]:
    return {"return_tensors": "pt", **INPUTS[name]()}


def _cases(made: Any) -> Iterator[str]:
    """Yield cases: inputs, and options of the class."""
    known = made(**ALWAYS.get(made.__name__, {})).to_dict()
    smaller = _fitting(made, known)
    for name in INPUTS:
        yield json.dumps({"options": smaller, "inputs": name})
    for name, value in known.items():
        if name not in (*SKIPPED, "video_processor_type", "return_metadata"):
            for other in _other(name, value):
                yield json.dumps({"options": {**smaller, name: other}, "inputs": "two"})
    for name in ("num_frames", "fps"):
        if known.get(name) is None:
            yield json.dumps({"options": {**smaller, name: 2}, "inputs": "sampled"})
    yield json.dumps({"ask": "fields"})
    yield json.dumps({"ask": "patches"})


def _ask(made: Any, case: str) -> Any:
    """Return what a processor gives of films."""
    asked = json.loads(case)
    processor = made(**{**ALWAYS.get(made.__name__, {}), **asked.get("options", {})})
    if asked.get("ask") == "fields":
        return list(processor.model_input_names)
    if asked.get("ask") == "patches":
        return [processor.get_num_of_video_patches(*sizes, {}) for sizes in ((4, 46, 60), (7, 300, 90))]
    found = dict(processor(**_called(asked["inputs"])).items())
    if "video_metadata" in found:
        found["video_metadata"] = [
            {name: value for name, value in vars(one).items() if name != "video_backend"} | {
                "timestamps": _or_none(one, "timestamps")} for one in found["video_metadata"]
        ]  # fmt: skip
    return found


def _or_none(metadata: Any, name: str) -> Any:
    try:
        return getattr(metadata, name)
    except (ValueError, TypeError):  # of a film without times
        return None


def _names() -> Iterator[str]:
    import transformers

    for name in dir(transformers):
        if name.endswith("VideoProcessor") and name != "BaseVideoProcessor":
            bases = {one.__name__ for one in getattr(transformers, name).__mro__}
            if "BaseVideoProcessor" in bases:
                yield name


def places_of(kind: str) -> str:
    """Return where a class is."""
    return f"transformers:{kind}"


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given({name: places_of(name) for name in sorted({*_names()})}, _cases, _ask)
