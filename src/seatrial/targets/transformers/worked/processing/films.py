"""Laws of video processors: rows of a batch, options by each way, frames that are sampled, forms, numbers of pixels."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.processing.compare import (
    kept,
    left_by_options,
    plain,
    unlike,
    unlike_rows,
)
from seatrial.targets.transformers.worked.processing.pictures import MEAN, STD
from seatrial.targets.transformers.worked.records import pictures, videos

FRAMES = (6, 4, 6)
SIZES = ((60, 46), (44, 60), (60, 46))
MORE = {"do_sample_frames": False}


@cache
def _small(made: Any) -> dict[str, Any]:
    return videos._fitting(made, made(**videos.ALWAYS.get(made.__name__, {})).to_dict())


def _new(made: Any, **options: Any) -> Any:
    return made(**{**videos.ALWAYS.get(made.__name__, {}), **_small(made), **options})


def _films() -> list[Any]:
    """Return films of which the first and the last are of one size."""
    found = [videos.film(frames, *size) for frames, size in zip(FRAMES, SIZES, strict=True)]
    return [*found[:2], found[2][:, ::-1].copy()]


def _call(processor: Any, films: Any, **options: Any) -> dict[str, Any]:
    frames = [len(one) for one in films]
    times = {"video_metadata": videos._metadata(*frames)}
    return dict(processor(films, **{**times, **MORE, **options}).items())


def _rows(made: Any) -> Iterator[str]:
    processor = _new(made)
    singles = [_call(processor, [one]) for one in _films()]
    yield from unlike_rows(_call(processor, _films()), singles, None, None)


def _again(made: Any) -> Iterator[str]:
    """Yield what a call changes: later ones, the processor, films of the caller."""
    processor = _new(made)
    before = kept(_state(processor))
    films = _films()[:2]
    first = _call(processor, films)
    yield from (f"films{one}" for one in unlike(films, _films()[:2]))
    options: tuple[Mapping[str, Any], ...] = (
        {"do_normalize": False, "do_rescale": False}, {"do_resize": False}, {"return_tensors": "pt"},
        {"do_sample_frames": True, "num_frames": 2}, {"do_sample_frames": True, "fps": 1},
        {"size": {"height": 28, "width": 28}},
    )  # fmt: skip
    yield from left_by_options(
        partial(_call, processor, films), first, partial(_state, processor), before, options
    )


def _state(processor: Any) -> dict[str, Any]:
    return {
        name: dict(one) if hasattr(one, "keys") else one
        for name, one in vars(processor).items()
        if not name.startswith("_") and not callable(one)
    }


SKIPPED = ("video_processor_type", "return_metadata", "processor_class", "device", "default_to_square")


def _options(made: Any) -> Iterator[tuple[str, Any]]:
    for name, value in _new(made).to_dict().items():
        if name not in (*pictures.SKIPPED, *SKIPPED):
            for other in pictures._other(name, value):
                yield name, other


def _ways(made: Any) -> Iterator[str]:
    """Yield where an option at the call is not what it is of a processor made with it."""
    processor = _new(made)
    for name, value in _options(made):
        try:
            due = dict(
                _new(made, **{name: value})(_films()[:2], video_metadata=videos._metadata(6, 4)).items()
            )
            found = dict(
                processor(
                    _films()[:2], video_metadata=videos._metadata(6, 4), **{name: copy.deepcopy(value)}
                ).items()
            )
        except Exception:  # noqa: BLE001  a value that the class does not take
            continue
        yield from (f"{name} {value}:{one}" for one in list(unlike(found, due))[:1])


def _saved(made: Any) -> Iterator[str]:
    options: dict[str, Any] = {}
    for name, value in _options(made):
        try:
            _call(_new(made, **{**options, name: value}), _films()[:2])
        except Exception:  # noqa: BLE001  a value that the class does not take
            continue
        options[name] = value
    processor = _new(made, **options)
    folder = new_folder()
    processor.save_pretrained(folder)
    due = _call(processor, _films()[:2])
    ways: Mapping[str, Callable[[], Any]] = {
        "a folder": lambda: made.from_pretrained(folder),
        "a dictionary": lambda: made.from_dict(processor.to_dict()),
    }
    for way, call in ways.items():
        read = call()
        yield from (f"{way}:{one}" for one in unlike(_call(read, _films()[:2]), due))
        yield from (f"{way}, said:{one}" for one in unlike(_said(read), _said(processor)))
    read, unused = made.from_pretrained(folder, return_unused_kwargs=True, do_rescale=False, none_such=3)
    if unused.get("none_such") != 3 or read.do_rescale:
        yield f"unused options {unused}, do_rescale {read.do_rescale}"


def _said(processor: Any) -> dict[str, Any]:
    found = json.loads(json.dumps(processor.to_dict(), default=str))
    return {name: one for name, one in found.items() if "processor_class" not in name}


def _forms(made: Any) -> Iterator[str]:
    processor = _new(made)
    films = _films()[:2]
    due = _call(processor, films)
    forms: Mapping[str, Callable[[Any], Any]] = {
        "channels first": lambda one: one.transpose(0, 3, 1, 2),
        "tensor": lambda one: torch.from_numpy(one.transpose(0, 3, 1, 2).copy()),
        "frames": list,
    }
    for name, form in forms.items():
        found = _call(processor, [form(one) for one in films])
        yield from (f"{name}:{one}" for one in unlike(found, due))
    listed = _call(processor, films[:1])
    one = dict(processor(films[0], video_metadata=videos._metadata(6), **MORE).items())
    yield from (f"one:{said}" for said in unlike(one, listed))
    for kind in ("np", "pt"):
        try:
            found = _call(processor, films[:1], return_tensors=kind)
        except Exception:  # noqa: BLE001  a form that the class does not take
            continue
        yield from (f"{kind}:{said}" for said in unlike(found, listed))


def _sampled(made: Any) -> Iterator[str]:
    """Yield where sampled frames are not those that are said, or the wrong number of them."""
    processor = _new(made)
    judged = False
    films = [videos.film(12, 60, 46), videos.film(9, 44, 60)]
    for options in ({"num_frames": 4}, {"num_frames": 6}, {"fps": 2}, {"fps": 1}, {}):
        given: dict[str, Any] = {"do_sample_frames": True, "return_metadata": True, **options}
        if "num_frames" in options:
            given["fps"] = None
        elif "fps" in options:
            given["num_frames"] = None
        try:
            found = _call(processor, films, **given)
        except Exception:  # noqa: BLE001  options that the class does not take
            continue
        judged = True
        picked = [[int(at) for at in one.frames_indices] for one in found.pop("video_metadata")]
        if "num_frames" in options and any(len(one) != options["num_frames"] for one in picked):
            yield f"{options}: {[len(one) for one in picked]} frames"
        if any(sorted(one) != one or one[-1] >= len(film) for one, film in zip(picked, films, strict=True)):
            yield f"{options}: {picked}"
        times = videos._metadata(12, 9)
        for own, at in zip(times, picked, strict=True):
            own["frames_indices"] = at
        own_films = [film[at] for film, at in zip(films, picked, strict=True)]
        due = dict(processor(own_films, video_metadata=times, **MORE).items())
        due.pop("video_metadata", None)
        yield from (f"{options}:{one}" for one in unlike(found, due))
        single = [_call(processor, [one], **{**given, "return_metadata": False}) for one in films]
        for one in single:
            one.pop("video_metadata", None)
        yield from (f"{options}, {one}" for one in unlike_rows(found, single, None, None))
    if not judged:
        raise NotServed("no frames are sampled")


def _values(made: Any) -> Iterator[str]:
    """Yield where numbers are not those of a film times the factor, less the mean, by the deviation."""
    options = {"image_mean": MEAN, "image_std": STD, "rescale_factor": 0.01}
    wholes, scaled, shifted, both = (
        _call(_new(made, **options, do_rescale=one, do_normalize=other), _films()[:1])
        for one, other in ((False, False), (True, False), (False, True), (True, True))
    )
    for name, value in plain(wholes).items():
        whole = np.asarray(value[0] if isinstance(value, list) else value, dtype=np.float64)
        if not name.startswith("pixel_values") or whole.ndim < 4 or whole.shape[-3] != 3:
            continue
        mean, std = (np.asarray(one).reshape(3, 1, 1) for one in (MEAN, STD))
        shown = whole != 0
        for what, found, due in (
            ("rescaled", scaled, whole * 0.01), ("normalized", shifted, (whole - mean) / std),
            ("both", both, (whole * 0.01 - mean) / std),
        ):  # fmt: skip
            own = plain(found)[name]
            own = np.asarray(own[0] if isinstance(own, list) else own, dtype=np.float64)
            if own.shape != whole.shape or not np.allclose(own[shown], due[shown], rtol=1e-4, atol=1e-4):
                yield f"{what} {name}"


@cache
def classes() -> dict[str, Any]:
    """Return the video processors of the installed release."""
    import transformers

    return {name: getattr(transformers, name) for name in sorted({*videos._names()})}


LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "films: a batch is its rows": _rows,
    "films: calls again": _again,
    "films: options at the call": _ways,
    "films: saved and read": _saved,
    "films: forms of films": _forms,
    "films: sampled frames": _sampled,
    "films: numbers of pixels": _values,
}
_NUMBER = "num_frames.* frames"
"""A number of frames is the most there are, or frames are chosen by time alone."""
OTHERWISE: Mapping[str, str] = {
    "MiniCPMOcrVideoProcessor": f"pixel_values_videos|{_NUMBER}",
    "MiniCPMV4_6VideoProcessor": f"pixel_values_videos|{_NUMBER}",
    "Molmo2VideoProcessor": f"video_token_pooling|{_NUMBER}",
    "Glm46VVideoProcessor": f"{_NUMBER}|at the call, temporal_patch_size", "Glm4vVideoProcessor": _NUMBER,
    "Glm5NextVideoProcessor": _NUMBER, "GlmgaVideoProcessor": _NUMBER, "MuseGlimmerVideoProcessor": _NUMBER,
    # Options of the class alone, though the call takes them.
    "CohereCompassVideoProcessor": "at the call, min_frames", "Qwen3VLVideoProcessor": "at the call, min_frames",
    "SmolVLMVideoProcessor": "at the call, max_image_size", "VJEPA2VideoProcessor": "at the call, (crop_)?size",
    "VivitVideoProcessor": "numbers of pixels",
}  # fmt: skip
"""What classes do otherwise, by design or in all releases: patterns of a law and what it says."""
