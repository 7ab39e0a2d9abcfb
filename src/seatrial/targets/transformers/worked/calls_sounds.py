"""Calls of Transformers' functions of sounds and of their features whose results are on record."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

AUDIO = "transformers.audio_utils"


def _wave(length: int, seed: int = 0) -> Any:
    """Return a sound of two tones and noise."""
    times = np.arange(length) / 400
    noise = numbers(length, seed=seed).numpy().astype(np.float64)
    return np.sin(2 * np.pi * 50 * times) + 0.5 * np.sin(2 * np.pi * 120 * times + 1) + 0.1 * noise


def _by_table(calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]], function: Any) -> list[Any]:
    """Return what each call gives, or the type of its error."""
    return [refusal(partial(function, *given, **options)) for given, options in calls]


SPECTRA: Sequence[Mapping[str, Any]] = (
    {},
    {"power": 2.0},
    {"power": None},
    {"center": False},
    {"pad_mode": "constant"},
    {"onesided": False},
    {"fft_length": 32},
    {"preemphasis": 0.97},
    {"remove_dc_offset": True},
    {"mel": True},
    {"mel": True, "log_mel": "log"},
    {"mel": True, "log_mel": "log10"},
    {"mel": True, "log_mel": "dB", "reference": 2.0, "min_value": 1e-3},
    {"power": 2.0, "mel": True, "log_mel": "dB", "db_range": 20.0},
    {"mel": True, "mel_floor": 0.5},
    {"log_mel": "dB"},
    {"mel": True, "log_mel": "other"},
    {"mel": True, "power": 3.0, "log_mel": "dB"},
    {"dtype": np.float64},
    {"hop_length": 0},
    {"frame_length": 10},
    {"fft_length": 8},
    {"power": None, "mel": True},
    {"dither": 0.0},
)


def _spectra(several: bool, function: Any) -> list[Any]:
    """Return spectra of a sound, or of sounds of several lengths, by options."""
    module = importlib.import_module(AUDIO)
    found: list[Any] = []
    for options in SPECTRA:
        more = {"frame_length": 24, "hop_length": 9, **options}
        bins = (more.get("fft_length") or more["frame_length"]) // 2 + 1
        if more.pop("mel", False):
            more["mel_filters"] = module.mel_filter_bank(bins, 5, 10.0, 180.0, 400)
        waves = [_wave(100), _wave(61, 1), _wave(130, 2)] if several else _wave(100)
        window = module.window_function(24)

        def call(waves: Any = waves, window: Any = window, more: Any = more) -> Any:
            out = function(waves, window, **more)
            rows = out if several else [out]
            return [[row.real, row.imag] if np.iscomplexobj(row) else row for row in rows]

        found.append(refusal(call))
    return found


BANKS: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (
    *(
        ((13, 6, low, 190.0, 400), {"norm": norm, "mel_scale": scale, "triangularize_in_mel_space": mel})
        for low in (0.0, 20.0)
        for norm in (None, "slaney", "other")
        for scale in ("htk", "kaldi", "slaney")
        for mel in (False, True)
    ),
    ((13, 6, 100.0, 50.0, 400), {}),
    ((13, 6, 0.0, 500.0, 400), {}),
    ((1, 6, 0.0, 190.0, 400), {}),
    ((13, 6, 0.0, 190.0, 400), {"dtype": "float32"}),
)
WINDOWS: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (
    *(
        ((size,), {"name": name, "periodic": periodic, "frame_length": frame, "center": center})
        for size in (1, 6, 7)
        for name in ("hann", "hann_window", "hamming", "boxcar", "povey", "other")
        for periodic in (True, False)
        for frame, center in ((None, True), (11, True), (11, False))
    ),
    ((8,), {"frame_length": 4}),
)
CHROMA: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = tuple(
    ((20, 12, 400), options)
    for options in (
        {},
        {"tuning": 0.3},
        {"power": None},
        {"power": 1.0},
        {"weighting_parameters": None},
        {"weighting_parameters": (3.0, 1.0)},
        {"start_at_c_chroma": False},
        {"power": np.inf},
    )
)
PITCHES = (0.0, 60.0, 440.0, 1000.0, 1500.0, 6000.0, np.array([0.0, 500.0, 999.0, 1001.0, 8000.0]))
SCALES: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = tuple(
    ((pitch,), {"mel_scale": scale}) for pitch in PITCHES for scale in ("htk", "kaldi", "slaney", "other")
)
OCTAVES: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = tuple(
    ((pitch,), options)
    for pitch in PITCHES[1:-1]
    for options in ({}, {"tuning": 0.2}, {"bins_per_octave": 24})
)
POWERS = np.array([[1e-12, 1e-6, 0.5, 1.0, 3.0], [0.1, 200.0, 7.0, 0.0, 1e-3]])
DECIBELS: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = tuple(
    ((POWERS,), {"reference": reference, "min_value": least, "db_range": width})
    for reference, least in ((1.0, 1e-10), (2.0, 1e-4), (1e-6, 1e-3), (0.0, 1e-5), (1.0, 0.0))
    for width in (None, 30.0, 0.0, -1.0)
)
BATCH_DECIBELS: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = tuple(
    ((np.stack([given[0], 10 * given[0]]),), options) for given, options in DECIBELS
)
SOUNDS: Sequence[Any] = (
    _wave(4),
    torch.ones(3),
    [1.0, 2.0],
    [_wave(4), _wave(3)],
    [torch.ones(2)],
    (_wave(2), _wave(3)),
    "name",
    ["a", "b"],
    {"array": _wave(3)},
    [],
    None,
    [[1.0], [2.0]],
    np.ones((2, 3)),
    5,
    [_wave(4), "a"],
)
LANGUAGES = {"de": "German", "fr": "French", "pt-br": "Portuguese"}


def _said(function: Any) -> list[Any]:
    """Return languages by code and name, for one row and several."""
    found: list[Any] = []
    for language in (
        None,
        "de",
        "German",
        "german",
        "FR",
        "pt-BR",
        "xx",
        ["de", "French"],
        ["de"],
        [None, "fr"],
        [],
        ["xx", "de"],
    ):
        for broadcast, code in ((False, True), (True, True), (True, False)):
            found.append(
                refusal(
                    partial(
                        function, language, 2, dict(LANGUAGES), allow_broadcast=broadcast, return_code=code
                    )
                )
            )
    return found


def _lengths(function: Any) -> list[Any]:
    """Return lengths after convolutions, and whether they are those of the convolutions."""
    found = []
    for options in (
        {},
        {"stride": 2},
        {"padding": 1},
        {"dilation": 2},
        {"stride": 3, "padding": 2, "dilation": 2},
    ):
        convolution: Any = nn.Conv1d
        layer = convolution(1, 1, 3, **options)
        for length in (7, 8, 20):
            own = int(function(layer, length))
            found.append([own, own == layer(torch.zeros(1, 1, length)).shape[-1]])
    return found


SIGNS = (
    b"RIFF\x00\x00\x00\x00WAVEfmt ",
    b"fLaC\x00\x00\x00\x22",
    b"OggS\x00\x02",
    b"ID3\x03\x00",
    b"\xff\xfb\x90\x00",
    b"",
    b"\x00\x00\x00\x18ftypM4A ",
    b"FORM\x00\x00\x00\x00AIFF",
    b"nothing at all",
)


def _rows(field: Any) -> list[Any]:
    """Return lengths of rows, and a sum of all numbers that depends on their places."""
    rows = [np.asarray(row, dtype=np.float64) for row in field]
    flat = np.concatenate([row.ravel() for row in rows]) if rows else np.zeros(0)
    return [[len(row) for row in rows], float((flat * np.sin(np.arange(1, len(flat) + 1))).sum())]


def _extractor(base: Any, **options: Any) -> Any:
    class Extractor(base):  # type: ignore[misc]
        model_input_names: Sequence[str] = ["input_values", "attention_mask"]

    return Extractor(**{"feature_size": 1, "sampling_rate": 400, "padding_value": -0.5, **options})


PADDINGS: Sequence[Mapping[str, Any]] = (
    {},
    {"padding": True},
    {"padding": "max_length", "max_length": 6},
    {"padding": "longest", "pad_to_multiple_of": 4},
    {"padding": "max_length", "max_length": 5, "pad_to_multiple_of": 4},
    {"padding": False},
    {"padding": "max_length", "max_length": 3, "truncation": True},
    {"padding": True, "truncation": True, "max_length": 4},
    {"padding": "max_length", "max_length": 3, "truncation": True, "pad_to_multiple_of": 2},
    {"padding": "max_length"},
    {"truncation": True, "padding": False},
    {"padding": True, "return_attention_mask": True},
    {"padding": "other"},
    {"padding": True, "return_attention_mask": False},
    {"padding": True, "return_tensors": "np"},
    {"padding": True, "return_tensors": "pt"},
    {"padding": False, "truncation": True, "max_length": 2},
)


def _features(base: Any) -> list[Any]:
    """Return features that are padded and cut, of one number a step and of two, by side, form and options."""
    found: list[Any] = []
    for size, side, mask in ((1, "right", True), (1, "left", False), (2, "right", False), (2, "left", True)):
        made = _extractor(base, feature_size=size, padding_side=side, return_attention_mask=mask)
        shape = () if size == 1 else (2,)
        rows = [numbers(length, *shape, seed=length).numpy() for length in (3, 5, 2)]
        given: Sequence[Any] = (
            {"input_values": rows},
            [{"input_values": row} for row in rows],
            {"input_values": [row.tolist() for row in rows]},
            {"input_values": [torch.tensor(row) for row in rows]},
            {"input_values": []},
            {"other": rows},
            {"input_values": rows, "attention_mask": [np.ones(len(row), dtype=np.int32) for row in rows]},
        )
        for options in PADDINGS:
            for one in given if options in PADDINGS[:4] else given[:1]:

                def call(made: Any = made, one: Any = one, options: Any = options) -> Any:
                    copied = {**one} if isinstance(one, Mapping) else [{**row} for row in one]
                    out = made.pad(copied, **options)
                    return {name: _rows(out[name]) for name in out}

                found.append(refusal(call))
        words = made.to_dict()
        found.append(
            [words["padding_side"], words["padding_value"], words["feature_size"], words["sampling_rate"]]
        )
    return found


def _typed(value: Any) -> list[Any]:
    plain_value = value.tolist() if hasattr(value, "tolist") else value
    return [type(value).__name__, str(getattr(value, "dtype", "")), plain_value]


def _batches(made: Any) -> list[Any]:
    """Return features as tensors of kinds, and those that a device and a type are given."""
    found: list[Any] = []
    rows = [numbers(3, seed=1).numpy(), numbers(3, seed=2).numpy()]
    for data in (
        {"a": rows, "b": [1, 2]},
        {"a": [[1.0], [1.0, 2.0]]},
        {"a": torch.ones(2)},
        {"a": None},
        {"a": "x"},
        {},
    ):
        for kind in ("pt", "np", None, "other"):

            def call(data: Any = data, kind: Any = kind) -> Any:
                out = made(dict(data), tensor_type=kind)
                return {name: _typed(out[name]) for name in out}

            found.append(refusal(call))
    one = made({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.long), "c": "x", "d": [torch.ones(1)]})
    targets: Sequence[tuple[Sequence[Any], Mapping[str, Any]]] = (
        (("cpu",), {}),
        ((torch.float16,), {}),
        (("cpu", torch.bfloat16), {}),
        ((), {"dtype": torch.float64}),
        ((7.5,), {}),
    )
    for options in targets:
        moved = refusal(lambda options=options: made(dict(one.data)).to(*options[0], **options[1]))
        found.append(
            moved
            if isinstance(moved, str)
            else [str(getattr(moved[name], "dtype", moved[name])) for name in moved]
        )
    return [
        *found,
        refusal(lambda: one["a"]),
        refusal(lambda: one[0]),
        refusal(lambda: one.nothing),
        sorted(one.keys()),
    ]


EXTRACTOR = "transformers.feature_extraction_sequence_utils:SequenceFeatureExtractor"
CALLS: Sequence[Call] = (
    Call("formulas", f"{AUDIO}:spectrogram", "every option", partial(_spectra, False)),
    Call("formulas", f"{AUDIO}:spectrogram_batch", "every option", partial(_spectra, True)),
    *(
        Call("formulas", f"{AUDIO}:{name}", "values by options", partial(_by_table, calls))
        for name, calls in (
            ("mel_filter_bank", BANKS),
            ("window_function", WINDOWS),
            ("chroma_filter_bank", CHROMA),
            ("hertz_to_mel", SCALES),
            ("mel_to_hertz", SCALES),
            ("hertz_to_octave", OCTAVES),
            ("power_to_db", DECIBELS),
            ("amplitude_to_db", DECIBELS),
            ("power_to_db_batch", BATCH_DECIBELS),
            ("amplitude_to_db_batch", BATCH_DECIBELS),
            ("optimal_fft_length", [((size,), {}) for size in (1, 2, 3, 400, 512, 513)]),
            ("is_valid_audio", [((one,), {}) for one in SOUNDS]),
            ("is_valid_list_of_audio", [((one,), {}) for one in SOUNDS]),
            ("make_list_of_audio", [((one,), {}) for one in SOUNDS]),
            ("get_audio_filetype", [((one,), {}) for one in SIGNS]),
            ("make_list_of_audio_chat_template", [((one,), {}) for one in SOUNDS[:8]]),
            (
                "make_audio_chat_template_content",
                [((one,), {}) for one in (*SOUNDS[6:7], "https://a/b.wav", {"path": "a"})],
            ),
            ("load_audio", [((_wave(6),), {}), ((5,), {})]),
        )
    ),
    Call("formulas", f"{AUDIO}:prepare_language_inputs", "languages of rows", _said),
    Call("formulas", f"{AUDIO}:conv1d_output_length", "lengths", _lengths),
    Call("batches", EXTRACTOR, "features that are padded and cut", _features),
    Call("batches", "transformers:BatchFeature", "tensors, devices and types", _batches),
)
SOUND_CALL_ROWS = rows_of(CALLS)
