"""Laws of processors: options by each way, and what their parts make."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from seatrial.targets.transformers.worked.processing import inputs
from seatrial.targets.transformers.worked.processing.compare import unlike
from seatrial.targets.transformers.worked.processing.inputs import ROWS, arguments, called, served, shared

classes = inputs.classes
KWARGS = {"text": "text_kwargs", "image": "images_kwargs", "video": "videos_kwargs", "audio": "audio_kwargs"}
PART = {
    "image": ("image_processor",),
    "video": ("video_processor",),
    "audio": ("feature_extractor", "audio_processor"),
}
OPTIONS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "text": ({"add_special_tokens": False}, {"return_token_type_ids": True}, {"padding_side": "left"},
             {"return_special_tokens_mask": True}, {"pad_to_multiple_of": 8}),
    "image": ({"do_normalize": False}, {"do_rescale": False}, {"image_mean": [0.1, 0.2, 0.3]}, {"resample": 0},
              {"do_resize": False}, {"rescale_factor": 0.5, "do_normalize": False}),
    "video": ({"do_normalize": False}, {"do_rescale": False}, {"image_std": [0.5, 0.25, 0.75]},
              {"do_sample_frames": True, "num_frames": 2}, {"do_sample_frames": True, "fps": 2}),
    "audio": ({"padding": "max_length", "max_length": 6000}, {"return_attention_mask": True}, {"do_normalize": True}),
}  # fmt: skip


def _ways(made: Any) -> Iterator[str]:
    """Yield where an option given in the dictionary of its kind differs from it given flat, or set in the part."""
    processor = shared(made)
    for name in served(made):
        rows = ROWS[name] if name == "text" else ROWS[name][:1]
        base = called(processor, rows, padding=True)
        for options in OPTIONS[name]:
            nested = {KWARGS[name]: dict(options)}
            kept = copy.deepcopy(nested)
            try:
                given = arguments(processor, rows)
                padding = (
                    {"padding": True} if "padding" not in options else {"text_kwargs": {"padding": True}}
                )
                due = dict(processor(**copy.deepcopy(given), **padding, **nested).items())
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
            yield from (f"{name} {dict(options)}, the caller's:{one}" for one in unlike(nested, kept))
            try:
                flat = dict(processor(**copy.deepcopy(given), **{**padding, **options}).items())
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
            if name != "audio" or list(unlike(flat, base)):  # feature extractors do not declare every option
                yield from (f"{name} {dict(options)}, flat:{one}" for one in list(unlike(flat, due))[:1])
            part = next(
                (getattr(processor, one) for one in PART.get(name, ()) if hasattr(processor, one)), None
            )
            if part is None or not all(hasattr(part, one) for one in options):
                continue
            with mock.patch.multiple(part, **options):
                own = called(processor, rows, padding=True)
            if not list(unlike(own, base)) and name == "audio":
                continue  # options of calls alone
            yield from (f"{name} {dict(options)}, of the part:{one}" for one in list(unlike(own, due))[:1])


def _parts(made: Any) -> Iterator[str]:
    """Yield where media are not what their part makes of them."""
    processor = shared(made)
    keys = {"image": "images", "video": "videos", "audio": inputs.sound_name(made)}
    for name in served(made):
        part = next((getattr(processor, one) for one in PART.get(name, ()) if hasattr(processor, one)), None)
        if part is None:
            continue
        for options in ({}, *OPTIONS[name][:2]):
            more = dict(options)
            try:
                whole = processor(
                    **arguments(processor, ROWS[name]),
                    text_kwargs={"padding": True},
                    **{KWARGS[name]: dict(more)},
                )
                if name == "video":
                    more["video_metadata"] = arguments(processor, ROWS[name])["video_metadata"]
                if name == "audio":
                    more = {"padding": True, **more, "sampling_rate": getattr(part, "sampling_rate", None)}
                own = part(arguments(processor, ROWS[name])[keys[name]], **more)
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
            for key, value in own.items():
                if key in whole:
                    yield from (f"{name} {dict(options)} {key}:{one}" for one in unlike(whole[key], value))


RELEASES = (("5.24", "6"),)
LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "processors: options by each way": _ways,
    "processors: media are their part's": _parts,
}
_LENGTHS = "part's, audio .* (input_features|input_values|attention_mask|input_features_mask|padding_mask)"
"""A processor pads sounds to a length of its own."""
_TILES = "part's, image .* (pixel_values|num_patches)"
"""A processor cuts pictures in tiles, and its part does not."""
_TOKENIZED = "each way, text "
"""Options of texts are the tokenizer's alone, flat."""
OTHERWISE: Mapping[str, str] = {
    "AudioFlamingo3Processor": _LENGTHS, "GlmAsrProcessor": _LENGTHS, "ClvpProcessor": _LENGTHS,
    "MoonshineStreamingProcessor": _LENGTHS, "MusicFlamingoProcessor": _LENGTHS, "Qwen2AudioProcessor": _LENGTHS,
    "Nemotron3_5TranscribeProcessor": _LENGTHS, "Qwen2_5OmniProcessor": _LENGTHS, "Qwen3ASRProcessor": _LENGTHS,
    "Wav2Vec2Processor": _LENGTHS, "WhisperProcessor": f"{_LENGTHS}|{_TOKENIZED}|each way, audio",
    "Qwen3OmniMoeProcessor": f"{_LENGTHS}|part's, video|of the part: video_second_per_grid",
    "SpeechT5Processor": _TOKENIZED, "Speech2TextProcessor": _TOKENIZED,
    "AyaVisionProcessor": _TILES, "InternVLProcessor": _TILES, "PI0Processor": _TILES,
    # Without a number of patches in a call they have that of the processor.
    "Kosmos2_5Processor": "part's, image", "Pix2StructProcessor": "part's, image",
    # A processor's own defaults come before those of its part.
    "BridgeTowerProcessor": "do_normalize.*of the part",
    # It draws which sounds are longer.
    "ClapProcessor": "is_longer",
}  # fmt: skip
"""What classes do otherwise by design: patterns of a law and what it says."""
