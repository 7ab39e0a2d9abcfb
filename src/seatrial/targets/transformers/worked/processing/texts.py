"""Laws of processors: a batch is its rows, with one and several media a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seatrial.targets.transformers.worked.processing import inputs
from seatrial.targets.transformers.worked.processing.compare import unlike_rows
from seatrial.targets.transformers.worked.processing.inputs import ROWS, called, new, served

classes = inputs.classes
SEVERAL = (
    "images",
    "an image and none",
    "none and images",
    "sounds",
    "films",
    "image and video",
    "image and audio",
)


def _rows(names: tuple[str, ...], side: str, made: Any) -> Iterator[str]:
    """Yield where a batch is not its rows."""
    processor = new(made)
    pads = getattr(getattr(processor, "tokenizer", None), "pad_token_id", None)
    for name in served(made, names):
        options: dict[str, Any] = {"padding": True, "padding_side": side}
        try:
            batch = called(processor, ROWS[name], **options)
        except TypeError:  # of calls without the option
            options.pop("padding_side")
            processor.tokenizer.padding_side = side
            batch = called(processor, ROWS[name], **options)
        singles = [called(processor, [row], **options) for row in ROWS[name]]
        yield from (f"{name}, {one}" for one in unlike_rows(batch, singles, pads, side))


def _law(call: Callable[..., Iterator[str]], *given: Any) -> Callable[[Any], list[str]]:
    return lambda made: list(call(*given, made))


LAWS: Mapping[str, Callable[[Any], list[str]]] = {
    "processors: a batch is its rows": _law(_rows, inputs.ONE, "right"),
    "processors: a batch is its rows, left": _law(_rows, inputs.ONE, "left"),
    "processors: rows with several media, left": _law(_rows, SEVERAL, "left"),
}
_NONE = "an image and none|none and images"
"""A row without pictures gets an empty place for one, or another form."""
_SOUNDS = r"(input_features|input_features_mask|input_values|audio_input_features|audio_attention_mask)\b"
"""The last frames of a sound reach into what it is padded with, or it is normalized with it."""
_PLACES = "several|rows"
"""A row has as many places of pictures as the row with the most, in masks too."""
OTHERWISE: Mapping[str, str] = {
    "AudioFlamingo3Processor": _SOUNDS, "ClvpProcessor": _SOUNDS, "Gemma3nProcessor": _SOUNDS,
    "GlmAsrProcessor": _SOUNDS,
    "GraniteSpeech5Processor": _SOUNDS, "LasrProcessor": _SOUNDS, "MoonshineStreamingProcessor": _SOUNDS,
    "MusicFlamingoProcessor": _SOUNDS, "MusicgenMelodyProcessor": _SOUNDS, "Phi4MultimodalProcessor": _SOUNDS,
    "Speech2Text2Processor": _SOUNDS, "Wav2Vec2Processor": _SOUNDS, "WhisperProcessor": _SOUNDS,
    # A bug: without tensors the labels of the first row are -100; finding "labels of OmniASR without tensors".
    "OmniASRCTCProcessor": "labels",
    # A bug: a padded sound has a frame more, and so tokens; finding "frames of a padded sound".
    "Qwen3OmniMoeProcessor": "its rows.*, audio|several.*(sounds|audio)",
    # A bug: padding on the left is not read, or not in the mask; finding "padding on the left of Kosmos".
    "Kosmos2Processor": "left|several", "Kosmos2_5Processor": "image_embeds_position_mask",
    "ClapProcessor": "is_longer",  # it draws which sounds are longer
    # Numbers of rows and of pictures count from the first of a batch.
    "CohereAsrProcessor": "audio_chunk_index", "Molmo2Processor": "(image|video)_token_pooling",
    # A list of texts is the classes of one picture.
    "GroundingDinoProcessor": "rows|several", "OmDetTurboProcessor": "tasks_|classes_structure",
    # The patches of all pictures lie end to end in one row.
    "MiniCPMOcrProcessor": "pixel_values", "MiniCPMV4_6Processor": "pixel_values",
    "MiniCPMV4_7Processor": "pixel_values",
    "Nemotron3_5AsrProcessor": "num_lookahead_tokens",  # one number of a call
    "NemotronAsrStreamingProcessor": "num_lookahead_tokens",
    "ColModernVBertProcessor": _NONE, "GraniteDoclingProcessor": _NONE, "Idefics2Processor": _NONE,
    "Idefics3Processor": _NONE, "SmolVLMProcessor": _NONE, "DonutProcessor": _NONE, "NougatProcessor": _NONE,
    "TrOCRProcessor": _NONE, "TvpProcessor": _NONE, "Pix2StructProcessor": _NONE,
    "IdeficsProcessor": _PLACES, "MllamaProcessor": "several",
}  # fmt: skip
"""What classes do otherwise by design, or as a bug that is named: patterns of a law and what it says."""
OLDER: Mapping[str, str] = {
    # Bugs of releases before 5: all films get the number of tokens of the first, and texts are padded by the
    # side of the tokenizer, as the side that is requested is removed.
    "LlavaOnevisionProcessor": "video|films", "MllamaProcessor": "left",
    "XCLIPProcessor": _NONE,
}  # fmt: skip
"""Of releases before 5."""
