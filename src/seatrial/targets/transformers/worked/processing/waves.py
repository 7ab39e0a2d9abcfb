"""Laws of feature extractors of samples by plain computations: cuts, pads on each side, masks, unit variance."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.processing import sounds
from seatrial.targets.transformers.worked.processing.compare import plain

LENGTHS = (430, 260, 311)
PADS: Mapping[str, Mapping[str, Any]] = {
    "longest": {"padding": True},
    "a length": {"padding": "max_length", "max_length": 500},
    "a cut": {"padding": "max_length", "max_length": 300, "truncation": True},
    "a cut of the longest": {"padding": True, "max_length": 350, "truncation": True},
    "a cut alone": {"padding": False, "max_length": 256, "truncation": True},
    "a multiple": {"padding": True, "pad_to_multiple_of": 64},
}
DUE: Mapping[str, int] = {
    "longest": 430, "a length": 500, "a cut": 300, "a cut of the longest": 350, "a cut alone": 256, "a multiple": 448,
}  # fmt: skip
"""Lengths of rows by way to pad."""


def _waves(scale: float = 0.6) -> list[Any]:
    return [
        (scale * np.sin(np.arange(one) * 0.07 * (place + 1)) + 0.1 * place).astype(np.float32)
        for place, one in enumerate(LENGTHS)
    ]


def _options(made: Any, way: str) -> dict[str, Any]:
    """Return options of a call that the class takes.

    Raises:
        NotServed: it does not take them.
    """
    takes = inspect.signature(made.__call__).parameters
    if any(name not in takes and "kwargs" not in takes for name in PADS[way]):
        raise NotServed(f"{way} is not among its options")
    masked = {"return_attention_mask": True} if "return_attention_mask" in takes else {}
    return {**PADS[way], **masked}


def _unit(wave: Any) -> np.ndarray:
    wave = np.asarray(wave, dtype=np.float64)
    due: np.ndarray = (wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)
    return due


def _asked(made: Any, way: str, side: str, normal: bool | None) -> Iterator[str]:
    """Yield where samples and masks of a call are not those of each sound, cut and padded."""
    given: dict[str, Any] = {} if normal is None else {"do_normalize": normal}
    extractor = made(padding_side=side, **given)
    name = extractor.model_input_names[0]
    if extractor.padding_side != side:
        raise NotServed("one side")
    found = plain(sounds._call(extractor, _waves(), **_options(made, way)))
    masks = next((value for key, value in found.items() if key.endswith("mask")), None)
    what, length = f"{way}, {side}, {normal=}", DUE[way]
    hop = (getattr(extractor, "hop_length", None) or 1) if normal is None else 1
    whole = -(-length // hop) * hop
    if len(found[name]) != len(LENGTHS):
        yield f"{what}: {len(found[name])} rows"
        return
    for place, wave in enumerate(_waves()):
        cut = wave[:length].astype(np.float64)
        if normal:
            cut = _unit(cut)
        more = [(whole - len(cut), 0) if side == "left" else (0, whole - len(cut))]
        due = np.pad(cut, more, constant_values=extractor.padding_value)
        own = np.asarray(found[name][place], dtype=np.float64).squeeze()
        if own.shape != due.shape:
            yield f"{what}: {own.shape}, {due.shape} is due"
        elif not np.allclose(own, due, rtol=1e-3, atol=1e-4):
            at = int(np.argmin(np.isclose(own, due, rtol=1e-3, atol=1e-4)))
            yield f"{what}: {own[at]:.5f} at {at} of {place}, {due[at]:.5f} is due"
        if masks is not None:
            mask = np.asarray(masks[place]).astype(int).squeeze()
            if mask.tolist() != np.pad(np.ones(len(cut), dtype=int), more).tolist():
                yield f"{what}: mask of {place} has {mask.sum()} of {mask.shape}"


def _samples(normal: bool | None, way: str, made: Any) -> Iterator[str]:
    first = made()
    if not str(first.model_input_names[0]).startswith("input_values"):
        raise NotServed("no samples")
    if (normal is None) == ("do_normalize" in inspect.signature(made.__init__).parameters):
        raise NotServed("normalized by another option")
    for side in ("right", "left"):
        yield from _asked(made, way, side, normal)


classes = sounds.classes


LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    **{
        f"samples: {way}, {said}": partial(_samples, normal, way)
        for way, (said, normal) in product(
            PADS, (("as they are", None), ("not normalized", False), ("normalized", True))
        )
    },
}
_OWN = "samples"
"""It makes spectra, adds silence, sets the level, or pads to lengths of its own."""
_LEFT = "left, normal=True"
"""A bug: the mean and the variance are of the first samples, which are pads where these are at the left."""
OTHERWISE: Mapping[str, str] = {
    **{f"{name}FeatureExtractor": _OWN for name in (
        "AST", "KyutaiSpeechToText", "MuseSpark", "PeAudio", "PocketTTS", "VibeVoiceAcousticTokenizer", "WavTokenizer",
    )},
    "OmniASRFeatureExtractor": "samples: a multiple",
    "SpeechT5FeatureExtractor": _LEFT, "Wav2Vec2FeatureExtractor": _LEFT,
}  # fmt: skip
"""What classes do otherwise: patterns of a law and what it says."""
