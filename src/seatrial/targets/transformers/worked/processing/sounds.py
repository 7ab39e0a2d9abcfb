"""Laws of feature extractors: rows of a batch, options, forms, sounds that are cut and padded, saved files."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.processing.compare import (
    kept,
    left_by_options,
    unlike,
    unlike_rows,
)
from seatrial.targets.transformers.worked.records import sounds

LENGTHS = (4300, 2600, 3100)


def _sounds(equal: bool = False) -> list[Any]:
    if equal:
        return [sounds._sound(4300), sounds._sound(4300)[::-1].copy(), 0.5 * sounds._sound(4300)]
    return [sounds._sound(one) for one in LENGTHS]


TENSORS_ALONE = (
    "OmniASRFeatureExtractor",
    "PocketTTSFeatureExtractor",
    "VibeVoiceAcousticTokenizerFeatureExtractor",
)


@cache
def _rate(made: Any) -> Any:
    takes = inspect.signature(made.__call__).parameters
    return getattr(made(), "sampling_rate", None) if "sampling_rate" in takes else None


def _call(extractor: Any, given: Any, **options: Any) -> dict[str, Any]:
    kind: Any = type(extractor)
    rate = _rate(kind)
    form = "pt" if type(extractor).__name__ in TENSORS_ALONE else "np"
    own = {
        "padding": True,
        "return_tensors": form,
        **({} if rate is None else {"sampling_rate": rate}),
        **options,
    }
    takes = inspect.signature(type(extractor).__call__).parameters
    if "padding" not in takes and "kwargs" not in takes:
        own.pop("padding")
    return dict(extractor(given, **own).items())


def _rows(equal: bool, made: Any) -> Iterator[str]:
    """Yield where sounds of a batch are not what they are alone."""
    extractor = made()
    singles = [_call(extractor, [one]) for one in _sounds(equal)]
    yield from unlike_rows(_call(extractor, _sounds(equal)), singles, None, None)


OTHER_OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"padding": "max_length", "max_length": 5000, "truncation": True}, {"return_attention_mask": True},
    {"do_normalize": True}, {"return_tensors": "pt"}, {"pad_to_multiple_of": 7}, {"padding_side": "left"},
)  # fmt: skip


def _again(made: Any) -> Iterator[str]:
    extractor = made()
    before = kept(_state(extractor))
    given = _sounds()
    first = _call(extractor, given)
    yield from (f"sounds{one}" for one in unlike(given, _sounds()))
    yield from left_by_options(
        partial(_call, extractor, given), first, partial(_state, extractor), before, OTHER_OPTIONS
    )


def _state(extractor: Any) -> dict[str, Any]:
    return {name: one for name, one in vars(extractor).items() if not callable(one)}


def _ways(made: Any) -> Iterator[str]:
    """Yield where an option at the call is not what it is of an extractor made with it."""
    takes = inspect.signature(made.__call__).parameters
    for name, value in vars(made()).items():
        if name not in takes or name in ("sampling_rate", "padding_side", "max_length", "truncation"):
            continue
        for other in sounds._other(name, value):
            try:
                due = _call(made(**{name: other}), _sounds())
                found = _call(made(), _sounds(), **{name: copy.deepcopy(other)})
            except Exception:  # noqa: BLE001  a value that the class does not take
                continue
            yield from (f"{name} {other}:{one}" for one in list(unlike(found, due))[:1])


def _saved(made: Any) -> Iterator[str]:
    options: dict[str, Any] = {}
    parameters = inspect.signature(made.__init__).parameters
    for name, parameter in parameters.items():
        if name in sounds.SKIPPED:
            continue
        for other in sounds._other(name, parameter.default):
            try:
                _call(made(**{**options, name: other}), _sounds())
            except Exception:  # noqa: BLE001  a value that the class does not take
                continue
            options[name] = other
    extractor = made(**options)
    folder = new_folder()
    extractor.save_pretrained(folder)
    due = _call(extractor, _sounds())
    for way, read in (
        ("a folder", made.from_pretrained(folder)), ("a dictionary", made.from_dict(extractor.to_dict())),
    ):  # fmt: skip
        yield from (f"{way}:{one}" for one in unlike(_call(read, _sounds()), due))
        yield from (f"{way}, said:{one}" for one in unlike(_said(read), _said(extractor)))
    read, unused = made.from_pretrained(folder, return_unused_kwargs=True, padding_value=0.25, none_such=3)
    if unused != {"none_such": 3} or read.padding_value != 0.25:
        yield f"unused options {unused}, padding_value {read.padding_value}"


def _said(extractor: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(extractor.to_dict(), default=str))
    return found


def _forms(made: Any) -> Iterator[str]:
    extractor = made()
    due = _call(extractor, _sounds())
    for name, form in (
        ("lists", lambda one: [float(x) for x in one]),
        ("double", lambda one: one.astype(np.float64)),
    ):
        try:
            found = _call(extractor, [form(one) for one in _sounds()])
        except Exception:  # noqa: BLE001  a form that the class does not take
            continue
        yield from (f"{name}:{one}" for one in unlike(found, due))
    one = _sounds()[0]
    yield from (f"one:{said}" for said in unlike(_call(extractor, one), _call(extractor, [one])))
    for kind in ("pt",) if made.__name__ in TENSORS_ALONE else ("np", "pt"):
        found = _call(extractor, _sounds(), return_tensors=kind)
        yield from (f"{kind}:{said}" for said in unlike(found, due))
        for key, value in found.items():
            if type(value).__name__ not in ({"np": "ndarray", "pt": "Tensor"}[kind], "list"):
                yield f"{kind} {key}: {type(value).__name__}"
            if getattr(value, "dtype", None) in (np.float64,):
                yield f"{kind} {key}: {value.dtype}"


def _rates(made: Any) -> Iterator[str]:
    """Yield where a rate that is not the extractor's is taken, or the own rate changes something."""
    rate = _rate(made)
    if rate is None:
        raise NotServed("no rate")
    extractor = made()
    form = "pt" if made.__name__ in TENSORS_ALONE else "np"
    without = dict(extractor(_sounds(), padding=True, return_tensors=form).items())
    yield from (f"the own rate:{one}" for one in unlike(_call(extractor, _sounds()), without))
    try:
        _call(extractor, _sounds(), sampling_rate=rate // 2)
    except ValueError:
        return
    yield "another rate is taken"


def _padded(made: Any) -> Iterator[str]:
    """Yield where `pad` does not pad and cut as is said, on each side, to the longest, a length and a multiple."""
    names = ("input_values", "input_features")
    if "pad" not in dir(made) or getattr(made(), "model_input_names", [""])[0] not in names:
        raise NotServed("no padding")
    for side in ("right", "left"):
        extractor = made()
        extractor.padding_side, extractor.padding_value = side, 0.5
        name = extractor.model_input_names[0]
        width = getattr(extractor, "feature_size", 1)
        for options, due in (
            ({"padding": True}, 7), ({"padding": "max_length", "max_length": 9}, 9),
            ({"padding": True, "pad_to_multiple_of": 4}, 8),
            ({"padding": "max_length", "max_length": 5, "truncation": True}, 5),
            ({"padding": "max_length", "max_length": 5, "truncation": True, "pad_to_multiple_of": 4}, 8),
            ({"padding": True, "return_attention_mask": False}, 7),
        ):  # fmt: skip
            lengths = (3, 7)
            given = [np.arange(1, one * width + 1, dtype=np.float32).reshape(one, width) for one in lengths]
            given = [one[:, 0] if width == 1 else one for one in given]
            masked = options.get("return_attention_mask", True)
            found = extractor.pad(
                {name: [one.copy() for one in given]},
                **{"return_attention_mask": True, **options}, return_tensors="np",
            )  # fmt: skip
            if ("attention_mask" in found) != masked:
                yield f"{options}: mask {'attention_mask' in found}"
            for row, one in enumerate(given):
                own = one[:due]
                more = [(due - len(own), 0) if side == "left" else (0, due - len(own))]
                values = np.pad(own, more + [(0, 0)] * (own.ndim - 1), constant_values=0.5)
                yield from (f"{side}, {options}:{said}" for said in unlike(found[name][row], values))
                if masked:
                    shown = np.pad(np.ones(len(own), dtype=int), more)
                    mask = found["attention_mask"][row]
                    yield from (f"{side}, {options}, mask:{said}" for said in unlike(mask, shown))


@cache
def classes() -> dict[str, Any]:
    """Return the feature extractors of the installed release."""
    import transformers

    return {name: getattr(transformers, name) for name in sorted({*sounds._names()})}


def _law(call: Callable[..., Iterator[str]], *given: Any) -> Callable[[Any], list[str]]:
    return lambda made: list(call(*given, made))


LAWS: Mapping[str, Callable[[Any], list[str]]] = {
    "sounds: a batch is its rows": _law(_rows, False),
    "sounds: a batch of one length is its rows": _law(_rows, True),
    "sounds: calls again": _law(_again),
    "sounds: options at the call": _law(_ways),
    "sounds: saved and read": _law(_saved),
    "sounds: forms of sounds": _law(_forms),
    "sounds: rates": _law(_rates),
    "sounds: padding": _law(_padded),
}
_ENDS = r"batch is its rows, (audio_)?(input_features|input_values)(_mask)?\b"
"""The last frames of a sound reach into what it is padded with, or it is normalized with it."""
_MASK = "return_attention_mask"
"""A mask is always given, or one of frames for a mask of samples, or it is left out where it is not requested."""
OTHERWISE: Mapping[str, str] = {
    "ClapFeatureExtractor": "is_longer",  # it draws which sounds are longer
    "ClvpFeatureExtractor": _ENDS, "Gemma3nAudioFeatureExtractor": f"{_ENDS}|saved and read",
    "Gemma4AudioFeatureExtractor": "saved and read", "LasrFeatureExtractor": _ENDS,
    "VoxtralRealtimeFeatureExtractor": _ENDS, "Wav2Vec2FeatureExtractor": _ENDS,
    "WhisperFeatureExtractor": f"{_ENDS}|{_MASK}", "InklingFeatureExtractor": _MASK,
    "Phi4MultimodalFeatureExtractor": f"{_ENDS}|{_MASK}|audio_attention_mask|saved and read",
    "CohereAsrFeatureExtractor": "audio_chunk_index", "TvltFeatureExtractor": f"{_MASK}|saved and read",
    "OmniASRFeatureExtractor": _MASK,
    # A bug: sounds of the caller's list are replaced; finding "sounds that a feature extractor replaces".
    "PocketTTSFeatureExtractor": f"calls again|{_MASK}",
    "VibeVoiceAcousticTokenizerFeatureExtractor": f"calls again|{_MASK}",
}  # fmt: skip
"""What classes do otherwise, by design or in all releases: patterns of a law and what it says.

Gemma's and Phi's write lengths in samples or none at all to a file, and read them in milliseconds.
"""
