"""Laws of processors: calls again, texts alone, forms of inputs and outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.processing import inputs
from seatrial.targets.transformers.worked.processing.compare import plain, unlike
from seatrial.targets.transformers.worked.processing.inputs import ROWS, called, new, served, shared

classes = inputs.classes


def _again(made: Any) -> Iterator[str]:
    """Yield where a second call differs, or one after a call with other options; and what a call leaves changed."""
    processor = new(made)
    for name in served(made):
        before = copy.deepcopy(_state(processor))
        first = called(processor, ROWS[name], padding=True)
        given = inputs.arguments(processor, ROWS[name], padding=True)
        kept = copy.deepcopy(given)
        second = processor(**given)
        yield from (f"{name}, again:{one}" for one in unlike(second, first))
        yield from (f"{name}, arguments:{one}" for one in unlike(given, kept))
        for options in OTHER_OPTIONS:
            try:
                called(processor, ROWS[name], **options)
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
        third = called(processor, ROWS[name], padding=True)
        yield from (f"{name}, after other options:{one}" for one in unlike(third, first))
        yield from (f"{name}, state:{one}" for one in unlike(_state(processor), before))


OTHER_OPTIONS: Sequence[Mapping[str, Any]] = (
    {"padding": "max_length", "max_length": 90, "truncation": True, "padding_side": "left"},
    {"padding": True, "do_normalize": False, "return_tensors": "np", "return_attention_mask": False},
    {"padding": True, "images_kwargs": {"do_rescale": False}, "text_kwargs": {"add_special_tokens": False}},
)


def _state(processor: Any) -> dict[str, Any]:
    parts = {name: vars(one) for name, one in vars(processor).items() if hasattr(one, "to_dict")}
    own = {
        name: one for name, one in vars(processor).items() if isinstance(one, (str, int, float, list, dict))
    }
    return {
        "own": own,
        **{
            name: {
                key: one for key, one in part.items() if isinstance(one, (str, int, float, list, dict, tuple))
            }
            for name, part in parts.items()
        },
    }


TEXT_OPTIONS: Sequence[Mapping[str, Any]] = (
    {}, {"padding": True}, {"padding": True, "padding_side": "left"}, {"padding": True, "padding_side": "right"},
    {"padding": "max_length", "max_length": 12}, {"truncation": True, "max_length": 4},
    {"truncation": True, "max_length": 4, "padding": "max_length", "padding_side": "left"},
    {"padding": True, "pad_to_multiple_of": 8}, {"add_special_tokens": False},
    {"return_token_type_ids": True, "padding": True}, {"return_attention_mask": False},
    {"return_special_tokens_mask": True}, {"return_offsets_mapping": True}, {"return_length": True},
    {"return_overflowing_tokens": True, "max_length": 4, "stride": 1, "truncation": True},
)  # fmt: skip


def _of_tokenizer(made: Any) -> Iterator[str]:
    """Yield where a text alone is not what the tokenizer makes of it, with options flat and of texts."""
    processor = shared(made)
    if not hasattr(processor, "tokenizer"):
        raise NotServed("no tokenizer")
    served(made, ("text",))
    text = [row.text for row in ROWS["text"]]
    for options in ({**BASE, **own} for own in TEXT_OPTIONS):
        due = dict(processor.tokenizer(text, **options).items())
        for way, given in (("flat", options), ("of texts", {"text_kwargs": options})):
            try:
                found = processor(text=list(text), **copy.deepcopy(given))
            except Exception:  # noqa: BLE001  an option that the class does not take
                continue
            named = {name: one for name, one in found.items() if name in due or name not in PLUS}
            yield from (f"{dict(options)}, {way}:{one}" for one in unlike(named, due))


BASE = {"padding": True, "padding_side": "right", "return_token_type_ids": False}
PLUS = ("mm_token_type_ids",)


def _forms(made: Any) -> Iterator[str]:
    """Yield where one row differs from a list of it, tensors from arrays and lists."""
    processor = shared(made)
    for name in served(made):
        options = {"padding": True}
        due = called(processor, ROWS[name], **options)
        for form in ("np", "pt"):
            try:
                found = called(processor, ROWS[name], **options, return_tensors=form)
            except Exception:  # noqa: BLE001  a form that the class does not take
                continue
            for key, value in found.items():
                kinds = {"np": "ndarray", "pt": "Tensor"}
                if key in due and type(value).__name__ != kinds[form] and _square(due[key]):
                    yield f"{name}, {form} {key}: {type(value).__name__}"
            yield from (f"{name}, {form}:{one}" for one in unlike(found, due))
        one = inputs.arguments(processor, ROWS[name][:1], **options)
        listed = processor(**copy.deepcopy(one))
        for key in ("text", "images", inputs.sound_name(made), "videos"):
            if key in one and len(one[key]) == 1:
                bare = one[key][0][0] if key == "images" else one[key][0]
                try:
                    found = processor(**copy.deepcopy({**one, key: bare}))
                except Exception:  # noqa: BLE001  an option that the class does not take
                    continue
                yield from (f"{name}, one of {key}:{said}" for said in unlike(_lists(found), _lists(listed)))


def _lists(found: Any) -> dict[str, Any]:
    """Return an output with rows of texts: one text gives a row where a list of it gives one."""
    return {
        name: [one] if isinstance(one, list) and one and isinstance(one[0], (int, float)) else one
        for name, one in plain(dict(found.items())).items()
    }


def _square(value: Any) -> bool:
    try:
        return np.asarray(plain(value)).dtype.kind in "biuf"
    except ValueError:
        return False


def _law(call: Callable[..., Iterator[str]], *given: Any) -> Callable[[Any], list[str]]:
    return lambda made: list(call(*given, made))


LAWS: Mapping[str, Callable[[Any], list[str]]] = {
    "processors: calls again": _law(_again),
    "processors: texts alone are the tokenizer's": _law(_of_tokenizer),
    "processors: forms of inputs and outputs": _law(_forms),
}
ADDING = (
    "BlipProcessor", "Blip2Processor", "ChameleonProcessor", "CsmProcessor", "Emu3Processor",
    "Ernie4_5_VLMoeProcessor", "Florence2Processor", "Gemma3Processor", "Gemma3nProcessor", "HunYuanVLProcessor",
    "InstructBlipProcessor", "Kosmos2Processor", "Lfm2VlProcessor", "MllamaProcessor", "Molmo2Processor",
    "OwlViTProcessor", "Owlv2Processor", "Sam3Processor", "Speech2TextProcessor", "SpeechT5Processor",
    "VibeVoiceAsrProcessor", "WhisperProcessor",
)  # fmt: skip
"""They add tokens or fields, leave out some or have lengths of their own."""
OTHERWISE: Mapping[str, str] = {
    **dict.fromkeys(ADDING, "texts alone"),
    # A bug: a text that is not in a list is read letter by letter.
    "ColPaliProcessor": "texts alone|one of text", "ColQwen2Processor": "texts alone|one of text",
    "ClapProcessor": "is_longer", "CohereAsrProcessor": "np decoder_input_ids",
    "GroundingDinoProcessor": "forms of", "OmDetTurboProcessor": "classes_structure",
    "Nemotron3_5AsrProcessor": "num_lookahead_tokens|prompt_ids",
    "NemotronAsrStreamingProcessor": "num_lookahead_tokens",
    "Kosmos2_5Processor": "np image_embeds_position_mask",
    # A picture that is not in a list of its own comes before the text, one that is comes after it.
    "IdeficsProcessor": "one of (text|images)|texts alone",
    "Llama4Processor": "pt: pixel_values",
    "UnlimitedOcrProcessor": "forms of.*, image, (np|pt)",  # numbers of patches stay lists
    # A bug: without tensors the labels of the first row are -100; finding "labels of OmniASR without tensors".
    "OmniASRCTCProcessor": "labels",
}  # fmt: skip
"""What classes do otherwise by design, or as a bug that is named: patterns of a law and what it says."""
