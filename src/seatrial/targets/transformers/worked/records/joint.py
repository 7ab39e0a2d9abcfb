"""Inputs that processors of Transformers make of texts and media with their own parts, on record; see `torchvision`.

Here are processors and calls that `processors` has not: films, chats with media, options of each part, saved files.
"""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.records import processors, videos
from seatrial.targets.transformers.worked.records.answers import due_answers, given, record
from seatrial.targets.transformers.worked.records.pictures import _picture, _two
from seatrial.targets.transformers.worked.records.sounds import _sounds

RECORD = "joint_record"
LONGEST = 1.2
"""Seconds for the cases of a class."""
TOKEN_IDS = re.compile(r"""tokenizer(?:\.|, ["'])(\w+_token)(?:_id)?\b""")
WRITTEN = re.compile(r"""_token\b[^\n"']*=\s*["']([^"'\n]{3,})["']""", re.IGNORECASE)
"""A special token of any form in the source of a processor."""
OTHER_TOKENS = ("|ENDOFTEXT|", "|SPEAKER|", "|NEWLINE|", "<image_soft_token>", "<audio_soft_token>")
SMALL: Mapping[str, Mapping[str, Any]] = {
    "Idefics3ImageProcessor": {"size": {"longest_edge": 728}}, "SmolVLMImageProcessor": {"size": {"longest_edge": 728}},
    "PerceptionLMImageProcessor": {"size": {"height": 56, "width": 56}, "max_num_tiles": 2, "tile_size": 56},
    "DonutImageProcessor": {"resample": 2, "size": {"height": 36, "width": 28}},
    "LayoutLMv2ImageProcessor": {"apply_ocr": False}, "LayoutLMv3ImageProcessor": {"apply_ocr": False},
    **videos.ALWAYS,
}  # fmt: skip
"""Options of parts that need them, or that make many pieces of a picture."""
INSTEAD: Mapping[str, Mapping[str, str]] = {
    "image_processor": {
        "ColPaliProcessor": "SiglipImageProcessor", "PaliGemmaProcessor": "SiglipImageProcessor",
        "ShieldGemma2Processor": "Gemma3ImageProcessor", "ColModernVBertProcessor": "Idefics3ImageProcessor",
        "ColQwen2Processor": "Qwen2VLImageProcessor", "TrOCRProcessor": "ViTImageProcessor",
        "VisionTextDualEncoderProcessor": "ViTImageProcessor", "Blip2Processor": "BlipImageProcessor",
        "Kosmos2Processor": "CLIPImageProcessor", "XCLIPProcessor": "VideoMAEImageProcessor",
        "InternVLProcessor": "GotOcr2ImageProcessor", "AyaVisionProcessor": "GotOcr2ImageProcessor",
        "Florence2Processor": "CLIPImageProcessor", "Qwen2_5OmniProcessor": "Qwen2VLImageProcessor",
        "Qwen3OmniMoeProcessor": "Qwen2VLImageProcessor", "InklingProcessor": "InklingImageProcessor",
        "Kosmos2_5Processor": "Kosmos2_5ImageProcessor",
    },
    "feature_extractor": {
        "MusicFlamingoProcessor": "WhisperFeatureExtractor", "ParakeetProcessor": "ParakeetFeatureExtractor",
        "LasrProcessor": "LasrFeatureExtractor", "GraniteSpeech5Processor": "LasrFeatureExtractor",
        "MoonshineStreamingProcessor": "Wav2Vec2FeatureExtractor", "Wav2Vec2BertProcessor":
        "SeamlessM4TFeatureExtractor", "Nemotron3_5TranscribeProcessor": "ParakeetFeatureExtractor",
        "Speech2Text2Processor": "Wav2Vec2FeatureExtractor", "MarkupLMProcessor": "MarkupLMFeatureExtractor",
        "KyutaiSpeechToTextProcessor": "KyutaiSpeechToTextFeatureExtractor", "PeAudioProcessor":
        "PeAudioFeatureExtractor", "InklingProcessor": "InklingFeatureExtractor", "Qwen2_5OmniProcessor":
        "WhisperFeatureExtractor", "Qwen3OmniMoeProcessor": "WhisperFeatureExtractor",
    },
}  # fmt: skip
"""Parts that a processor's own mappings do not name."""
PARTS_OF = {**processors.NEEDED, "videos": ("video_processor",)}
AUTO = {
    "image_processor": "image_processing_auto:IMAGE_PROCESSOR_MAPPING_NAMES",
    "video_processor": "video_processing_auto:VIDEO_PROCESSOR_MAPPING_NAMES",
    "feature_extractor": "feature_extraction_auto:FEATURE_EXTRACTOR_MAPPING_NAMES",
    "audio_processor": "feature_extraction_auto:FEATURE_EXTRACTOR_MAPPING_NAMES",
}


@cache
def _tokenizer_text(made: Any) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Return a tokenizer of letters as text, the special tokens that it names, and all in a processor's source."""
    source = "\n".join(
        inspect.getsource(inspect.getmodule(one))  # type: ignore[arg-type]
        for one in made.__mro__
        if ".models." in one.__module__
    )
    names = dict.fromkeys([*processors.NAMED.findall(source), *TOKEN_IDS.findall(source)])
    named = {name: f"<{name}>" for name in names if name not in processors.COMMON}
    written = [*processors.SPECIAL.findall(source), *WRITTEN.findall(source)]
    found = [*written, *processors.USUAL, *OTHER_TOKENS, *named.values()]
    letters = [*processors.COMMON.values(), *processors.LETTERS]
    vocabulary = {one: at for at, one in enumerate(dict.fromkeys(letters))}
    import tokenizers

    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]"), "isolated")
    core.decoder = tokenizers.decoders.Fuse()
    ends = [(one, vocabulary[one]) for one in ("<s>", "</s>")]
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A:0", pair="<s> $A:0 </s> $B:1", special_tokens=ends
    )
    return core.to_str(), named, tuple(one for one in dict.fromkeys(found) if one not in vocabulary)


@cache
def _tokenizer_class() -> Any:
    import transformers

    kind: Any = transformers.PreTrainedTokenizerFast

    class Lettered(kind):  # type: ignore[misc]
        """A tokenizer whose options `add_bos_token` and `add_eos_token` can be set, as Gemma's."""

        def __setattr__(self, name: str, value: Any) -> None:
            if name in ("add_bos_token", "add_eos_token"):
                object.__setattr__(self, name, value)
            else:
                super().__setattr__(name, value)

    return Lettered


def _tokenizer(made: Any) -> Any:
    import tokenizers

    text, named, tokens = _tokenizer_text(made)
    core = tokenizers.Tokenizer.from_str(text)
    found = _tokenizer_class()(tokenizer_object=core, **processors.COMMON, extra_special_tokens=named)
    found.add_tokens(list(tokens), special_tokens=True)
    return found


def _name_of(made: Any, part: str) -> str:
    """Return the name of the class of a part."""
    known: Any = INSTEAD.get(part, {}).get(made.__name__)
    if known is None:
        known = getattr(made, f"{part}_class", None)
        known = next((one for one in known if one), None) if isinstance(known, tuple) else known
        if not isinstance(known, str) or known.startswith("Auto"):
            folder = processors._folder(made)
            table = find_name("transformers", [f"transformers.models.auto.{AUTO[part]}"])
            names = (folder, folder.replace("_", "-"), f"{folder}-swin", folder.replace("2_5", "-2.5"))
            known = next((table[one] for one in names if one in table), None)
    if isinstance(known, Mapping):
        known = known.get("torchvision") or known.get("pil")
    if isinstance(known, tuple):
        known = known[-1] or known[0]
    if not isinstance(known, str):
        raise NotServed(f"{made.__name__} has no {part}")
    return known.removesuffix("Fast")


def _part(made: Any, part: str) -> Any:
    """Return a part of a processor, by the name of its parameter."""
    if part.endswith("tokenizer"):
        return _tokenizer(made)
    name = _name_of(made, part)
    found = find_name("transformers", [f"transformers:{name}Fast", f"transformers:{name}"])
    new = found(**SMALL.get(name, {}))
    if name.startswith("Siglip") and getattr(new, "image_seq_length", None) is None:
        new.image_seq_length = 4
    return new


def _made(made: Any, options: Mapping[str, Any]) -> Any:
    """Return a processor of a class."""
    parts = {}
    for name, parameter in inspect.signature(made.__init__).parameters.items():
        if name in processors.PARTS or name == "alignment_tokenizer":
            parts[name] = _part(made, name)
        elif parameter.default is None and name in processors.VALUES:
            parts[name] = processors.VALUES[name]
    if not parts:  # older ones name their parts in a list
        parts = {name: _part(made, name) for name in getattr(made, "attributes", ())}
    with mock.patch.object(made, "check_argument_for_proper_class", lambda self, name, one: type(one)):
        return made(**{**parts, **options})


def _films() -> list[Any]:
    return [videos.film(4, 56, 56), videos.film(6, 56, 56)]


FILMED: Mapping[str, Any] = {
    "text": ["{video}a", "b {video} cd?"], "videos": "films", "padding": True,
}  # fmt: skip
PICTURED: Mapping[str, Any] = {"text": ["{image}a", "b {image} cd?"], "images": [1, 1], "padding": True}
SOUNDED: Mapping[str, Any] = {"text": ["{audio}a", "b {audio} cd?"], "audio": 2, "padding": True}
KNOWN_TIMES = {"video_metadata": "films"}
POINTS: Mapping[str, Any] = {
    "images": 2, "return_tensors": "pt", "input_points": [[[[10, 20], [30, 4]]], [[[5, 6]]]],
    "input_labels": [[[1, 0]], [[1]]],
}  # fmt: skip
BOXES: Mapping[str, Any] = {
    "images": 2, "return_tensors": "pt", "input_boxes": [[[2, 3, 30, 20], [10, 10, 20, 20]], [[1, 4, 20, 50]]],
}  # fmt: skip
NEEDS: Mapping[str, Mapping[str, Any]] = {
    "MossTranscribeDiarizeProcessor": {"return_tensors": "pt"}, "PocketTTSProcessor": {"return_tensors": "pt"},
    "CohereAsrProcessor": {"language": "en"}, "OneFormerProcessor": {"task_inputs": ["semantic", "panoptic"]},
    "KyutaiSpeechToTextProcessor": {"return_tensors": "pt"},
}  # fmt: skip
"""Options without which a class cannot be called."""
OTHERS = (
    "options of parts", "pictures of unlike numbers", "pictures of no row", "sounds, options of parts",
    "pictures, without first tokens", "sounds, texts of no sound", "points", "boxes",
)  # fmt: skip
"""Calls of processors that have a record of `processors` too."""
CALLS: Mapping[str, Mapping[str, Any]] = {
    "points": POINTS,
    "one point": {**POINTS, "images": 1, "input_points": [[[[10, 20]]]], "input_labels": [[[1]]]},
    "boxes": BOXES,
    "films, times": {**FILMED, **KNOWN_TIMES},
    "films, left": {**FILMED, **KNOWN_TIMES, "padding_side": "left", "return_tensors": "pt"},
    "films, sampled": {**FILMED, **KNOWN_TIMES, "do_sample_frames": True, "num_frames": 2},
    "films, sampled by time": {**FILMED, **KNOWN_TIMES, "do_sample_frames": True, "fps": 2},
    "films, types": {**FILMED, **KNOWN_TIMES, "return_mm_token_type_ids": True},
    "a film of five frames": {
        **FILMED, "text": ["{video}a"], "videos": "five", "video_metadata": "five", "do_sample_frames": False},
    "two films of a text": {**FILMED, **KNOWN_TIMES, "text": ["x{video}y{video}"]},
    "films and pictures": {**FILMED, **KNOWN_TIMES, "text": ["{image}a{video}b{image}", "{video}"], "images": [2, 0]},
    "films and pictures of one list": {
        **FILMED, **KNOWN_TIMES, "text": ["{video}b{image}", "{image}{video}"], "images": 2},
    "options of parts": {"text": PICTURED["text"], "images": [1, 1],
                         "text_kwargs": {"padding": True, "padding_side": "left"},
                         "images_kwargs": {"do_normalize": False}, "common_kwargs": {"return_tensors": "np"}},
    "options of all": {**PICTURED, "do_normalize": False, "do_rescale": False},
    "pictures, right": {**PICTURED, "padding_side": "right"},
    "pictures, without first tokens": {**PICTURED, "add_special_tokens": False},
    "pictures, offsets": {**PICTURED, "return_offsets_mapping": True},
    "pictures, types of tokens": {**PICTURED, "return_token_type_ids": True},
    "pictures, no mask": {**PICTURED, "return_attention_mask": False},
    "pictures of unlike numbers": {"text": ["{image}a{image}", "b {image} cd?"], "images": [2, 1], "padding": True},
    "pictures of no row": {"text": ["{image}a{image}", "b"], "images": [2, 0], "padding": True},
    "a flat list of unlike numbers": {"text": ["{image}a{image}", "b {image} cd?"], "images": 3, "padding": True},
    "a multiple": {**PICTURED, "pad_to_multiple_of": 8},
    "pictures, one text": {"text": "{image}a{image}", "images": 2},
    "arrays": {**PICTURED, "return_tensors": "np"},
    "a tuple": {"text": ["abc", "d"], "padding": "longest", "return_tensors": "pt"},
    "sounds, left": {**SOUNDED, "padding_side": "left", "return_tensors": "pt"},
    "sounds, options of parts": {"text": SOUNDED["text"], "audio": 2, "text_kwargs": {"padding": True},
                                 "audio_kwargs": {"padding": "max_length", "max_length": 6000}},
    "sounds, texts of no sound": {"text": ["{audio}a{audio}", "b"], "audio": 2, "padding": True},
    "labels, padding": {"text": ["{audio}a", "b {audio} cd?"], "audio": 2, "padding": True, "return_tensors": "pt",
                        "output_labels": True},
}  # fmt: skip
"""Options of calls; numbers of pictures and sounds."""
CHATS: Mapping[str, list[list[tuple[str, list[str]]]]] = {
    "text": [[("user", ["ab"]), ("assistant", ["cd"])], [("user", ["e"])]],
    "images": [[("user", ["image", "ab"]), ("assistant", ["cd"])], [("user", ["e", "image", "f"])]],
    "two images": [[("user", ["image", "ab", "image"]), ("assistant", ["cd"]), ("user", ["image"])]],
    "videos": [[("user", ["video", "ab"]), ("assistant", ["cd"])], [("user", ["e", "video"])]],
    "sounds": [[("user", ["audio", "ab"]), ("assistant", ["cd"])], [("user", ["e", "audio"])]],
    "all": [[("user", ["image", "ab", "video"]), ("assistant", ["c"]), ("user", ["audio", "d"])]],
}  # fmt: skip
FORMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "prompted": {"add_generation_prompt": True},
    "of the assistant": {"return_assistant_tokens_mask": True},
    "continued": {"continue_final_message": True},
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
}
NEEDED = {"images": "image", "two images": "image", "videos": "video", "sounds": "audio", "all": "image"}
TEMPLATE = (
    "{% if tools %}[{% for t in tools %}{{ t.function.name }}{% endfor %}]{% endif %}"
    "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}PARTS;{% endgeneration %}"
    "{% else %}PARTS;{% endif %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)


def _template(processor: Any) -> str:
    """Return a template that writes the processor's own marks of media."""
    marks = {kind: processors._mark(processor, kind) for kind in ("image", "video", "audio")}
    cases = "".join(f"{{% elif c.type == '{kind}' %}}{mark}" for kind, mark in marks.items())
    parts = f"{{% for c in m.content %}}{{% if c.type == 'text' %}}{{{{ c.text }}}}{cases}{{% endif %}}{{% endfor %}}"
    return TEMPLATE.replace("PARTS", parts)


def _chat(name: str) -> list[list[dict[str, Any]]]:
    media: dict[str, Iterator[Any]] = {
        "image": iter([*_two(), _picture(40, 40)]), "video": iter(_films()), "audio": iter(_sounds()),
    }  # fmt: skip
    return [
        [{"role": role, "content": [
            {"type": part, part: next(media[part])} if part in media else {"type": "text", "text": part}
            for part in parts]} for role, parts in chat]
        for chat in CHATS[name]
    ]  # fmt: skip


def _asked_chat(processor: Any, name: str, form: Mapping[str, Any]) -> Any:
    options, chats = dict(form), _chat(name)
    more = {"padding": True}
    nested = "processor_kwargs" in inspect.signature(processor.apply_chat_template).parameters
    found = processor.apply_chat_template(
        chats, tokenize=True, return_dict=True, chat_template=_template(processor),
        **({"processor_kwargs": more} if nested else more), **options,
    )  # fmt: skip
    text = processor.apply_chat_template(
        chats, chat_template=_template(processor),
        **{name: one for name, one in options.items() if name != "return_assistant_tokens_mask"},
    )  # fmt: skip
    return {"text": text, **dict(found.items())}


def _inputs(processor: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call."""
    found = {name: value for name, value in asked.items() if name not in ("videos", "video_metadata")}
    images = found.pop("images", None)
    found = processors._inputs(processor, found)
    if images is not None:
        three = [*_two(), _picture(40, 40)]
        found["images"] = (
            three[:images]
            if isinstance(images, int)
            else [[three.pop(0) for _ in range(one)] for one in images]
        )
    if "videos" in asked:
        marks = {kind: processors._mark(processor, kind) for kind in ("image", "video", "audio")}
        found["text"] = [text.format(**marks) for text in asked["text"]]
        found["videos"] = [videos.film(5, 56, 56)] if asked["videos"] == "five" else _films()
    if "video_metadata" in asked:
        frames = (5,) if asked["video_metadata"] == "five" else (4, 6)
        found["video_metadata"] = [{**one, "width": 56, "height": 56} for one in videos._metadata(*frames)]
    return found


def _saved(processor: Any) -> Any:
    """Return the files of a saved processor, what one that is read says, and whether its calls are the same."""
    folder = Path(new_folder())
    processor.chat_template = "{{ messages }}"
    processor.save_pretrained(folder)
    files = {
        path.name: sorted(json.loads(path.read_text(encoding="utf-8"))) if path.suffix == ".json" else "text"
        for path in sorted(folder.iterdir())
        if "token" not in path.name
    }
    return [files, json.loads(json.dumps(processor.to_dict(), default=str, sort_keys=True))]


def _takes(made: Any, call: Mapping[str, Any]) -> bool:
    parameters = inspect.signature(made.__init__).parameters
    parts = {*parameters} if {*parameters} & {*processors.PARTS} else {*getattr(made, "attributes", ())}
    pointed = [one for one in call if one.startswith("input_")]
    takes = inspect.signature(made.__call__).parameters
    if "none" in call or not {*pointed} <= {*takes}:
        return False
    return all({*PARTS_OF.get(one, parts)} & parts for one in call)


def _cases(made: Any) -> Iterator[str]:
    """Yield cases: chats, calls, what processors say of sizes, and their files."""
    _made(made, {})
    few = _few(made.__name__)
    if few:
        for name in processors.ASKED:
            yield json.dumps({"ask": name})
    films = _takes(made, {"videos": 1})
    if films:
        yield json.dumps({"ask": "film sizes"})
    kinds = {"image": "images", "video": "videos", "audio": "audio"}
    for name in CHATS:
        if (few and name == "text") or _takes(made, {kinds.get(NEEDED.get(name, ""), "none"): 1}):
            forms = FORMS if few else {name: FORMS[name] for name in ("plain", "of the assistant")}
            for form in forms if name in ("text", "images") else ("plain",):
                yield json.dumps({"chat": name, "form": form})
    for name, call in CALLS.items():
        if (few or "videos" in call or name in OTHERS) and _takes(made, call):
            yield json.dumps({"call": name})
    for name, call in processors.CALLS.items():
        if few and _takes(made, call):
            yield json.dumps({"older": name})
    yield json.dumps({"ask": "files"})


def _ask(made: Any, case: str) -> Any:
    """Return the inputs that a processor makes."""
    asked = json.loads(case)
    processor = _made(made, {})
    if "chat" in asked:
        return _asked_chat(processor, asked["chat"], FORMS[asked["form"]])
    if asked.get("ask") == "files":
        return _saved(processor)
    if asked.get("ask") == "film sizes":
        return vars(processor._get_num_multimodal_tokens(video_sizes=[(4, 56, 56), (6, 300, 90)]))
    if "ask" in asked:
        with mock.patch.object(processors, "_made", lambda made, options: _made(made, options)):
            return processors._ask(made, case)
    call = CALLS[asked["call"]] if "call" in asked else processors.CALLS[asked["older"]]
    more = NEEDS.get(made.__name__, {})
    return dict(processor(**_inputs(processor, copy.deepcopy({**call, **more}))).items())


def places_of(kind: str) -> str:
    """Return where a class is."""
    return f"transformers:{kind}"


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given({name: places_of(name) for name in sorted({*processors._names()})}, _cases, _ask, LONGEST)


def _few(name: str) -> bool:
    known = due_answers(processors.RECORD, name) if name in record(processors.RECORD) else {}
    return len(known) < 4
