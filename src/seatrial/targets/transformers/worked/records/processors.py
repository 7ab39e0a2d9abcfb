"""Inputs that processors of Transformers make of texts with pictures, films and sounds, on record."""

from __future__ import annotations

import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.answers import given, rows_of
from seatrial.targets.transformers.worked.records.pictures import _two
from seatrial.targets.transformers.worked.records.sounds import _sounds

RECORD = "processors_record"
LETTERS = " \nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;?!'/_-<>[]|()"
SPECIAL = re.compile(r"""["'](<\|?[\w /.@-]+\|?>|\[[A-Z_]+\]|</?[\w|-]+>)["']""")
"""A special token in the source of a processor."""
NAMED = re.compile(r"tokenizer\.(\w+_token)\b")
COMMON = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
USUAL = (
    "<image>",
    "<video>",
    "<audio>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<|AUDIO|>",
    "<fake_token_around_image>",
)
VALUES: Mapping[str, Any] = {
    "patch_size": 14, "vision_feature_select_strategy": "default", "num_image_tokens": 5, "image_seq_len": 5,
    "image_seq_length": 5, "num_query_tokens": 3, "num_additional_image_tokens": 1, "max_length": 9,
}  # fmt: skip
"""Values of options that have none by default."""


class Films:
    """Replaces a processor of films, which needs torchvision: grids and numbers of two films."""

    model_input_names: Sequence[str] = ("pixel_values_videos", "video_grid_thw")
    merge_size, temporal_patch_size, patch_size = 2, 2, 14
    fps, video_token = 2.0, "<video>"
    size: Mapping[str, int] = {"height": 28, "width": 28}

    def __call__(self, videos: Any = None, **options: Any) -> Any:
        """Return what two films give."""
        grids = torch.tensor([[2, 4, 6], [1, 2, 4]])
        return {"pixel_values_videos": torch.zeros(int(grids.prod(-1).sum()), 3), "video_grid_thw": grids}


def _folder(made: Any) -> str:
    return str(made.__module__.split(".")[-2])


@cache
def _tokenizer(made: Any) -> Any:
    """Return a tokenizer whose letters are tokens, with the special tokens that the source of a processor names."""
    import tokenizers
    import transformers

    source = inspect.getsource(inspect.getmodule(made))  # type: ignore[arg-type]
    named = {name: f"<{name}>" for name in NAMED.findall(source) if name not in COMMON}
    found = [*SPECIAL.findall(source), *USUAL, *named.values()]
    vocabulary = {one: at for at, one in enumerate(dict.fromkeys([*COMMON.values(), *LETTERS]))}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("[\\s\\S]"), "isolated")
    core.decoder = tokenizers.decoders.Fuse()
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A",
        pair="<s> $A </s> $B",
        special_tokens=[(one, vocabulary[one]) for one in ("<s>", "</s>")],
    )
    kind: Any = transformers.PreTrainedTokenizerFast
    made = kind(tokenizer_object=core, **COMMON, extra_special_tokens=named)
    made.add_tokens([one for one in dict.fromkeys(found) if one not in vocabulary], special_tokens=True)
    return made


def _class_of(mapping: str, folder: str) -> Any:
    name = f"transformers.models.auto.{mapping}"
    known = find_name("transformers", [name]).get(folder)
    if isinstance(known, Mapping):
        known = known.get("pil")
    if isinstance(known, tuple):
        known = known[0]
    if known is None:
        raise NotServed(f"{folder} has no part of {mapping}")
    return find_name("transformers", [f"transformers:{known}"])


def _part(made: Any, name: str) -> Any:
    """Return a part of a processor, by the name of its parameter."""
    folder = _folder(made)
    if name in ("tokenizer", "char_tokenizer", "protein_tokenizer", "qformer_tokenizer"):
        return copy.deepcopy(_tokenizer(made))
    if name == "video_processor":
        return Films()
    if name in ("image_processor", "feature_extractor", "audio_processor"):
        named = getattr(made, f"{name}_class", None)
        named = named[0] if isinstance(named, tuple) else named
        if isinstance(named, str) and not named.startswith("Auto"):
            kinds = [f"transformers:{named}Pil", f"transformers:{named}"]
            return _small_part(find_name("transformers", kinds))
        auto = "image_processing_auto:IMAGE_PROCESSOR" if name == "image_processor" else (
            "feature_extraction_auto:FEATURE_EXTRACTOR")  # fmt: skip
        return _small_part(_class_of(f"{auto}_MAPPING_NAMES", folder))
    raise NotServed(f"no part of the name {name}")


def _small_part(made: Any) -> Any:
    """Return a part of a class; of pictures that it cuts into many pieces it makes fewer."""
    return made(size={"longest_edge": 728}) if made.__name__.startswith(("Idefics3", "SmolVLM")) else made()


PARTS = ("tokenizer", "image_processor", "feature_extractor", "audio_processor", "video_processor",
         "qformer_tokenizer", "char_tokenizer", "protein_tokenizer")  # fmt: skip


def _made(made: Any, options: Mapping[str, Any]) -> Any:
    """Return a processor of a class; of its parts only names of classes are checked otherwise."""
    given_parts: dict[str, Any] = {}
    for name, parameter in inspect.signature(made.__init__).parameters.items():
        if name in PARTS and name not in options:
            given_parts[name] = _part(made, name)
        elif parameter.default is None and name in VALUES:
            given_parts[name] = VALUES[name]
    with mock.patch.object(made, "check_argument_for_proper_class", lambda self, name, one: type(one)):
        return made(**{**given_parts, **options})


def _mark(processor: Any, kind: str) -> str:
    """Return the text that a processor replaces by the places of a picture, film or sound."""
    names = {
        "image": ("image_token", "image_placeholder"),
        "video": ("video_token",),
        "audio": ("audio_token",),
    }
    for name in names[kind]:
        found = getattr(processor, name, None)
        found = getattr(found, "content", found)
        if isinstance(found, str):
            return found
    return f"<{kind}>"


def _films() -> list[Any]:
    return [np.zeros((4, 28, 28, 3), dtype=np.uint8), np.zeros((2, 28, 28, 3), dtype=np.uint8)]


CALLS: Mapping[str, Mapping[str, Any]] = {
    "a text": {"text": "ab cd."},
    "texts": {"text": ["ab cd.", "e"], "padding": True},
    "a pair": {"text": "ab", "text_pair": "cde"},
    "cut": {"text": ["ab cd.", "e"], "padding": "max_length", "max_length": 4, "truncation": True},
    "a picture": {"text": ["ab {image} c"], "images": 1},
    "pictures": {"text": ["{image}a", "b {image} cd?"], "images": 2, "padding": True},
    "pictures of lists": {"text": ["{image}a", "b {image} cd?"], "images": [1, 1], "padding": True},
    "two pictures of a text": {"text": ["x {image} y {image}z"], "images": [2]},
    "pictures alone": {"images": 2},
    "pictures, no mark": {"text": ["abc", "d"], "images": 2, "padding": True},
    "pictures, left": {"text": ["{image}a", "b {image} cd?"], "images": [1, 1], "padding": True,
                       "padding_side": "left"},
    "pictures, tensors": {"text": ["{image}a"], "images": 1, "return_tensors": "pt"},
    "pictures, types": {"text": ["{image}a", "b {image} cd?"], "images": [1, 1], "padding": True,
                        "return_mm_token_type_ids": True},
    "pictures, with an end": {"text": ["{image}a"], "images": 1, "suffix": ["xy"]},
    "films": {"text": ["{video}a", "b {video} cd?"], "videos": 2, "padding": True},
    "films and a picture": {"text": ["{video}a", "b {video} {image} cd?"], "videos": 2, "images": 1, "padding": True},
    "sounds": {"text": ["{audio}a", "b {audio} cd?"], "audio": 2, "padding": True},
    "sounds alone": {"audio": 2, "padding": True},
    "sounds, types": {"text": ["{audio}a", "b {audio} cd?"], "audio": 2, "padding": True,
                      "return_mm_token_type_ids": True},
    "labels": {"audio": 1, "text": "abc"},
}  # fmt: skip
"""Options of calls; numbers of pictures, films and sounds."""
OPTIONS: Mapping[str, Any] = {
    "vision_feature_select_strategy": "full", "num_additional_image_tokens": 0, "patch_size": 7,
    "image_seq_len": 3, "image_seq_length": 3, "num_query_tokens": 2, "num_image_tokens": 3,
    "image_break_token": "<unk>", "add_bos_token": True,
}  # fmt: skip
"""Other values of options of processors."""
NEEDED = {
    "images": ("image_processor", "feature_extractor"), "videos": ("video_processor", "image_processor"),
    "audio": ("feature_extractor", "audio_processor"),
}  # fmt: skip
"""Parts that arguments need."""
ASKED = ("fields", "sizes", "templates")


def _cases(made: Any) -> Iterator[str]:
    """Yield cases: calls, calls of processors with options, and what processors say of sizes."""
    parameters = inspect.signature(made.__init__).parameters
    for name, options in CALLS.items():
        if all({*NEEDED.get(one, parameters)} & {*parameters} for one in options):
            yield json.dumps({"call": name})
    for name, value in OPTIONS.items():
        if name in parameters:
            yield json.dumps({"options": {name: value}, "call": "pictures"})
            yield json.dumps({"options": {name: value}, "ask": "sizes"})
    for name in ASKED:
        yield json.dumps({"ask": name})


def _pictures(count: Any) -> Any:
    if isinstance(count, int):
        return _two()[:count]
    rest = _two()
    return [[rest.pop(0) for _ in range(one)] for one in count]


def _inputs(processor: Any, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call."""
    marks = {kind: _mark(processor, kind) for kind in ("image", "video", "audio")}
    found = dict(asked)
    if "text" in found:
        texts = [found["text"]] if isinstance(found["text"], str) else found["text"]
        texts = [text.format(**marks) for text in texts]
        found["text"] = texts[0] if isinstance(found["text"], str) else texts
    if "images" in found:
        found["images"] = _pictures(found["images"])
    if "videos" in found:
        found["videos"] = _films()
    if "audio" in found:
        takes = inspect.signature(type(processor).__call__).parameters
        name = next((one for one in ("audio", "audios", "raw_speech", "speech") if one in takes), "audio")
        found[name] = _sounds()[: found.pop("audio")]
        parts = [getattr(processor, one, None) for one in ("feature_extractor", "audio_processor")]
        rate = next((getattr(one, "sampling_rate", None) for one in parts if one is not None), None)
        if (
            rate is not None
            and "sampling_rate" in str(inspect.signature(type(processor).__call__)) + "kwargs"
        ):
            found["sampling_rate"] = rate
    return found


def _ask(made: Any, case: str) -> Any:
    """Return the inputs that a processor makes."""
    asked = json.loads(case)
    processor = _made(made, asked.get("options", {}))
    if asked.get("ask") == "sizes":
        return vars(processor._get_num_multimodal_tokens(image_sizes=[(37, 53), (60, 31), (300, 90)]))
    if asked.get("ask") == "fields":
        return list(processor.model_input_names)
    if asked.get("ask") == "templates":
        chat = [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]
        return processor.apply_chat_template(chat, tokenize=True, return_dict=True, chat_template=CHAT)
    inputs = _inputs(processor, CALLS[asked["call"]])
    kept = json.dumps([inputs.get("text")])
    found = processor(**inputs)
    if json.dumps([inputs.get("text")]) != kept:
        raise ValueError("the caller's texts are changed")
    return dict(found.items())


CHAT = "{% for m in messages %}{{ m.role }}:{% for c in m.content %}{{ c.text }}{% endfor %};{% endfor %}"


def _names() -> Iterator[str]:
    import transformers

    for name in dir(transformers):
        if name.endswith("Processor") and not name.endswith(
            ("ImageProcessor", "VideoProcessor", "LogitsProcessor")
        ):
            try:
                found = getattr(transformers, name)
            except ImportError:  # of a package that is missing
                continue
            if isinstance(found, type) and any(one.__name__ == "ProcessorMixin" for one in found.__mro__[1:]):
                yield name


def places_of(kind: str) -> str:
    """Return where a class is."""
    return f"transformers:{kind}"


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    return given({name: places_of(name) for name in sorted({*_names()})}, _cases, _ask)


PROCESSOR_ROWS: Sequence[Row] = rows_of(RECORD, places_of, _ask, "inputs", "texts", of_pictures=True)
