"""Features that feature extractors of Transformers make of sounds, by class and options, on record."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.answers import given, rows_of

RECORD = "sounds_record"
LENGTHS = (4300, 2600)
SKIPPED = ("feature_extractor_type", "processor_class", "_processor_class", "sampling_rate", "truncation")
OTHERS: Mapping[str, Any] = {
    "padding_side": "left", "padding_value": 0.5, "chunk_length": 1, "chunk_length_s": 0.1, "overlap": 0.25,
    "win_function": "hamming_window", "frequency_min": 50, "frequency_max": 7000,
    "nb_max_samples": 3000, "hop_length": 100, "max_length": 20, "stride": 3, "feature_size": 20, "num_mel_bins": 30,
    "n_fft": 512, "preemphasis": 0.5, "mel_floor": 0.1, "dither": 0.0, "fmin": 50, "fmax": 7000,
    "mean": 0.5, "std": 0.3,
}  # fmt: skip
"""Values of options, by name."""
CALLS: Mapping[str, Mapping[str, Any]] = {
    "padded": {"padding": True},
    "padded to a length": {"padding": "max_length", "max_length": 5000},
    "a few frames": {"padding": "max_length", "max_length": 12, "truncation": True},
    "not padded": {"padding": False},
    "cut": {"padding": True, "max_length": 3000, "truncation": True},
    "a multiple": {"padding": True, "pad_to_multiple_of": 7},
    "with a mask": {"padding": True, "return_attention_mask": True},
    "without a mask": {"padding": True, "return_attention_mask": False},
    "normalized": {"padding": True, "do_normalize": True},
    "tensors": {"padding": True, "return_tensors": "pt"},
    "token timestamps": {"return_token_timestamps": True, "return_attention_mask": True},
    "targets": {"audio_target": "sounds", "padding": True},
}
"""Options of calls."""


def _sound(length: int) -> Any:
    """Return a tone with noise that does not repeat, of which every frequency has some."""
    places = np.arange(length, dtype=np.float64)
    return (0.3 * np.sin(places / 9) + 0.2 * np.sin(0.37 * places * places) + 0.05).astype(np.float32)


def _sounds() -> list[Any]:
    return [_sound(length) for length in LENGTHS]


INPUTS: Mapping[str, Any] = {
    "one": lambda: _sound(3100),
    "lists": lambda: [[float(one) for one in sound] for sound in _sounds()],
    "one of two axes": lambda: np.stack([_sound(2600), _sound(2600)[::-1]]),
    "two channels": lambda: [np.stack([one, one[::-1]]) for one in _sounds()],
    "double": lambda: [one.astype(np.float64) for one in _sounds()],
    "short": lambda: [_sound(700), _sound(500)],
}
"""Inputs besides two sounds."""


def _other(name: str, value: Any) -> Iterator[Any]:
    """Yield other values of an option."""
    if name in OTHERS:
        yield OTHERS[name]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value // 2 if value > 3 else value + 1
    elif isinstance(value, float):
        yield value / 2 if value else 0.5
    elif value is None and name.startswith(("do_", "return_", "use_")):
        yield True


def _cases(made: Any) -> Iterator[str]:
    """Yield cases: options of the class, options of a call, and inputs."""
    extractor = made()
    takes = inspect.signature(type(extractor).__call__).parameters
    yield json.dumps({"options": {}})
    parameters = inspect.signature(type(extractor).__init__).parameters
    for name, value in {**{one: p.default for one, p in parameters.items()}, **extractor.to_dict()}.items():
        if name not in SKIPPED and (name in parameters or hasattr(extractor, name)):
            for other in _other(name, value):
                yield json.dumps({"options": {name: other}})
    for name, options in CALLS.items():
        if not ({*options} - {*takes}):
            yield json.dumps({"call": name})
    for name in INPUTS:
        yield json.dumps({"inputs": name})


def _ask(made: Any, case: str) -> Any:
    """Return the features of sounds."""
    asked = json.loads(case)
    extractor = made(**asked.get("options", {}))
    options = {"return_tensors": "np", **CALLS.get(asked.get("call"), {})}
    if asked.get("call") == "not padded":
        options["return_tensors"] = None
    rate = getattr(extractor, "sampling_rate", None)
    if rate is not None and "sampling_rate" in inspect.signature(type(extractor).__call__).parameters:
        options["sampling_rate"] = rate
    if options.get("audio_target"):
        return extractor(**{**options, "audio_target": _sounds()})
    return extractor(INPUTS[asked["inputs"]]() if "inputs" in asked else _sounds(), **options)


def _names() -> Iterator[str]:
    import transformers

    for name in dir(transformers):
        found = getattr(transformers, name) if name.endswith("FeatureExtractor") else None
        pads = found is not None and any("pad" in vars(one) for one in found.__mro__)
        if pads and name not in (
            "SequenceFeatureExtractor",
            "UnivNetFeatureExtractor",
        ):  # of which one draws noise
            yield name


def places_of(kind: str) -> str:
    """Return where a class is."""
    return f"transformers:{kind}"


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given({name: places_of(name) for name in sorted({*_names()})}, _cases, _ask)


SOUND_ROWS: Sequence[Row] = rows_of(RECORD, places_of, _ask, "features", "texts")
