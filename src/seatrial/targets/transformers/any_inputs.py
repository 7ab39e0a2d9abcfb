"""Inputs of a model of any kind, found by trying: ids, pictures, films, sounds and series of numbers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.transformers.small_models import VOCABULARY

Inputs = dict[str, Tensor]
ROWS, LENGTH = 3, 9
LARGEST_ID = 48
"""Ids above it stand for pictures and sounds; the first three are special."""
MASKS = ("attention_mask", "padding_mask", "input_features_mask", "pixel_mask")
PARTS = ("vision_config", "text_config", "audio_config", "backbone_config", "encoder", "qformer_config")


def options_of(config: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield the values of options by these names, those of parts too."""
    for one in (config, *(getattr(config, part, None) for part in PARTS)):
        for name in names:
            value = vars(one).get(name) if hasattr(one, "__dict__") else None
            if value is not None:
                yield value


def _first(config: Any, names: Sequence[str], default: int) -> int:
    for value in options_of(config, names):
        value = value[-1] if isinstance(value, (list, tuple)) else value
        if isinstance(value, int):
            return value
    return default


def _drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _ids(seed: int, num: int = LENGTH) -> Tensor:
    top = min(LARGEST_ID, VOCABULARY)
    return torch.randint(3, top, (ROWS, num), generator=torch.Generator().manual_seed(seed))


def _media(name: str, config: Any) -> Iterator[Tensor]:
    """Yield tensors that an input by this name may be."""
    if name.startswith("pixel_values"):
        channels = _first(config, ["num_channels", "in_channels", "in_chans"], 3)
        given = _first(config, ["image_size", "img_size", "input_size"], 32)
        frames = _first(config, ["num_frames", "frames_per_clip"], 4)
        for size in dict.fromkeys((given, 32, 64)):
            yield _drawn(ROWS, channels, size, size)
            yield _drawn(ROWS, frames, channels, size, size)
    elif name == "input_values":
        yield _drawn(ROWS, 1600)
        yield _drawn(ROWS, 1, 3200)
        yield _drawn(ROWS, _first(config, ["max_length"], 64), _first(config, ["num_mel_bins"], 8))
    elif name in ("input_features", "audio_mel"):
        mels = _first(config, ["num_mel_bins", "feature_size", "input_feat_size", "input_dim"], 8)
        for length in (2 * _first(config, ["max_source_positions"], 32), 48):
            yield _drawn(ROWS, mels, length)
            yield _drawn(ROWS, length, mels)
    elif name == "past_values":
        length = _first(config, ["context_length"], 32)
        yield _drawn(ROWS, length, _first(config, ["num_input_channels"], 1))
        yield _drawn(ROWS, length)


def candidates(model: Any) -> Iterator[Inputs]:
    """Yield inputs of `ROWS` rows that a model may take, the likely ones first."""
    takes = inspect.signature(model.forward).parameters
    main = model.main_input_name
    texts: Inputs = {"input_ids": _ids(1)} if "input_ids" in takes else {}
    decoded: Inputs = {"decoder_input_ids": _ids(2, 6)} if "decoder_input_ids" in takes else {}
    if main == "input_ids":
        yield {**texts, **decoded}
        for name in ("pixel_values", "input_features", "input_values"):
            if name in takes:
                yield from ({**texts, name: value} for value in _media(name, model.config))
        return
    for value in _media(main, model.config):
        yield {main: value, **decoded}
        if texts:
            yield {main: value, **texts, **decoded}


def mask_of(model: Any, inputs: Mapping[str, Tensor]) -> Inputs:
    """Return a mask of ones under the name by which a model takes one of its main input; empty if it takes none."""
    takes = inspect.signature(model.forward).parameters
    main = inputs["input_ids"] if "input_ids" in inputs else next(iter(inputs.values()))
    for name in MASKS:
        if name in takes and main.dim() <= 3 and name != "pixel_mask":
            sounds = "input_ids" not in inputs and main.dim() == 3
            length = max(main.shape[1:]) if sounds else main.shape[1]
            return {name: torch.ones(len(main), length, dtype=torch.long)}
        if name in takes and name == "pixel_mask" and main.dim() == 4:
            return {name: torch.ones(len(main), *main.shape[2:], dtype=torch.long)}
    return {}
