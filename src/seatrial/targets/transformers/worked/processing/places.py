"""Laws of processors: places of media, saved files, texts of ids, names of inputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.processing import inputs
from seatrial.targets.transformers.worked.processing.compare import plain, unlike
from seatrial.targets.transformers.worked.processing.inputs import ROWS, arguments, called, served, shared
from seatrial.targets.transformers.worked.records import joint

classes = inputs.classes


def _ids(processor: Any, kind: str) -> list[int]:
    found = getattr(processor, f"{kind}_token_ids", None) or [getattr(processor, f"{kind}_token_id", None)]
    return [one for one in found if isinstance(one, int)]


def _places(made: Any) -> Iterator[str]:
    """Yield where places of media are not as many as is said, or types of tokens not those of the ids."""
    processor = shared(made)
    judged = False
    pad = getattr(getattr(processor, "tokenizer", None), "pad_token_id", None)
    for name in served(made, ("image", "video", "audio", "images", "image and video")):
        found = called(processor, ROWS[name], padding=True)
        ids = [list(row) for row in plain(found["input_ids"])] if "input_ids" in found else []
        try:
            types = called(processor, ROWS[name], padding=True, return_mm_token_type_ids=True).get(
                "mm_token_type_ids"
            )
        except Exception:  # noqa: BLE001  an option that the class does not take
            types = None
        for own, row in zip(plain(types) if types is not None else (), ids, strict=False):
            judged = True
            for number, kind in enumerate(("image", "video", "audio"), 1):
                marked = np.isin(np.asarray(row), _ids(processor, kind))
                if kind in inputs.kinds_of(name) and not ((np.asarray(own) == number) == marked).all():
                    yield f"{name}, types {number}: {np.asarray(own).tolist()[:20]}, ids {row[:20]}"
        if "image" not in name or "video" in name or not _ids(processor, "image"):
            continue
        numbers = [one for row in ROWS[name] for one in row.images]
        sizes = [inputs.SIZES[one][::-1] for one in numbers]
        mark = getattr(processor, "image_token_id", None)
        count = sum(row.count(mark) for row in ids)
        try:
            said = vars(processor._get_num_multimodal_tokens(image_sizes=sizes))
        except Exception:  # noqa: BLE001
            said = {}
        if said.get("num_image_tokens"):
            judged = True
            alone = [row.text.replace("{image}", "") for row in ROWS[name]]
            words = sum(len(processor.tokenizer(text)["input_ids"]) for text in alone)
            known = {count, sum(len([one for one in row if one != pad]) for row in ids) - words}
            known.add(sum(row.count(one) for row in ids for one in _ids(processor, "image")))
            if sum(said["num_image_tokens"]) not in known:
                yield f"{name}: {count} places, {said['num_image_tokens']} are said"
        if "image_grid_thw" in found:
            judged = True
            grids = [int(one.prod()) for one in np.asarray(plain(found["image_grid_thw"]))]
            if said.get("num_image_patches") and list(said["num_image_patches"]) not in (
                grids,
                [1] * len(grids),
            ):
                yield f"{name}: patches {grids}, {said['num_image_patches']} are said"
            merge = getattr(processor.image_processor, "merge_size", 1)
            if count != sum(one // merge**2 for one in grids):
                yield f"{name}: {count} places, grids of {grids} patches by grids"
    if not judged:
        raise NotServed("no places of media")


def _offsets(made: Any) -> Iterator[str]:
    """Yield where places of replaced texts are not those of the texts that are tokenized."""
    processor = shared(made)
    judged, options = False, {"padding": True, "padding_side": "right"}
    for name in served(made, ("image", "video", "audio", "images", "image and video", "image and audio")):
        given = arguments(processor, ROWS[name])
        texts = list(given["text"])
        found = processor(**given, text_kwargs=dict(options), return_text_replacement_offsets=True)
        offsets = found.get("text_replacement_offsets")
        if offsets is None or not len(offsets):
            continue
        judged = True
        whole = []
        for text, own in zip(texts, offsets, strict=True):
            made_text, last = "", 0
            for one in own:
                start, end = one["span"]
                if text[start:end] != one["text"]:
                    yield f"{name}: {text[start:end]!r} at {(start, end)}, {one['text']!r} is said"
                made_text += text[last:start]
                if tuple(one["new_span"]) != (len(made_text), len(made_text) + len(one["replacement"])):
                    yield f"{name}: {one['new_span']} in the new text, {len(made_text)} is due"
                made_text, last = made_text + one["replacement"], end
            whole.append(made_text + text[last:])
        due = processor.tokenizer(whole, **options)["input_ids"]
        yield from (f"{name}, ids{said}" for said in unlike(found["input_ids"], due))
    if not judged:
        raise NotServed("no places of replaced texts")


def _saved(made: Any) -> Iterator[str]:
    """Yield where a processor that is read is not what was saved."""
    import transformers

    kind: Any = transformers.PreTrainedTokenizerFast
    with mock.patch.object(joint, "_tokenizer_class", lambda: kind):
        processor = inputs.new(made)
    for part in ("image_processor", "video_processor", "feature_extractor"):
        if hasattr(getattr(processor, part, None), "do_normalize"):
            getattr(processor, part).do_normalize = not getattr(processor, part).do_normalize
    processor.chat_template = "{{ messages }}"
    folder = new_folder()
    processor.save_pretrained(folder)
    with mock.patch.object(made, "check_argument_for_proper_class", lambda self, name, one: type(one)):
        read = made.from_pretrained(folder)
    yield from (f"said{one}" for one in unlike(_said(read), _said(processor)))
    if (
        "chat_template" in inspect.signature(made.__init__).parameters
        and read.chat_template != "{{ messages }}"
    ):
        yield f"template {read.chat_template}"
    for name in served(made):
        due = called(processor, ROWS[name], padding=True)
        yield from (f"{name}:{one}" for one in unlike(called(read, ROWS[name], padding=True), due))


def _said(processor: Any) -> dict[str, Any]:
    found = {
        name: one for name, one in processor.to_dict().items() if name not in ("tokenizer", "chat_template")
    }
    return {name: one for name, one in found.items() if "token" not in name or isinstance(one, (int, str))}


def _decoded(made: Any) -> Iterator[str]:
    """Yield where ids are not the texts of the tokenizer."""
    processor = shared(made)
    if not hasattr(processor, "tokenizer"):
        raise NotServed("no tokenizer")
    ids = [processor.tokenizer(text)["input_ids"] for text in ("ab cd. <pad>", "e , f!", "<s>x</s>")]
    for options in ({}, {"skip_special_tokens": True}, {"clean_up_tokenization_spaces": True},
                    {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}):  # fmt: skip
        due = processor.tokenizer.batch_decode(ids, **options)
        if processor.batch_decode(ids, **options) != due:
            yield f"several, {options}: {processor.batch_decode(ids, **options)}, {due} is due"
        if processor.decode(ids[0], **options) != due[0]:
            yield f"one, {options}: {processor.decode(ids[0], **options)!r}, {due[0]!r} is due"
    if not hasattr(processor, "post_process_image_text_to_text"):
        return
    for skip in (True, False):
        try:
            found = processor.post_process_image_text_to_text(ids, skip_special_tokens=skip)
        except Exception:  # noqa: BLE001  outputs of another form
            continue
        due = processor.tokenizer.batch_decode(ids, skip_special_tokens=skip)
        if found != due:
            yield f"of pictures, {skip}: {found}, {due} is due"


def _named(made: Any) -> Iterator[str]:
    """Yield fields that are not among the names of inputs."""
    processor = shared(made)
    names = {*processor.model_input_names}
    for name in served(made, (*inputs.ONE, "image and video", "image and audio")):
        for key in called(processor, ROWS[name], padding=True):
            if key not in names and not re.search(ALWAYS_NEW, key):
                yield f"{name}: {key}"


ALWAYS_NEW = "mm_token_type_ids|token_type_ids|labels"


RELEASES = (("5.24", "6"),)
LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "processors: places of media": _places,
    "processors: places of replaced texts": _offsets,
    "processors: saved and read": _saved,
    "processors: texts of ids": _decoded,
    "processors: names of inputs": _named,
}
OTHERWISE: Mapping[str, str] = {
    # The numbers of tokens that are said are of pictures alone in their row, or include what is around tiles and rows.
    "LlavaOnevisionProcessor": "are said", "HYV4VLProcessor": "by grids",
    # Tokens of rows and columns of tiles have a type too.
    "ColModernVBertProcessor": "types 1|pixel_values|are said|template",
    "Idefics3Processor": "types 1|pixel_values|are said",
    # Its own text comes around what is replaced, or the ids have a token of their own at the start or the end.
    "ChameleonProcessor": "ids|pixel_values", "Emu3Processor": "is said|is due", "Lfm2VlProcessor": "ids",
    "Molmo2Processor": "is said|ids", "PaliGemmaProcessor": "is said|is due", "VibeVoiceAsrProcessor": "ids",
    # They are read with the other backend.
    "SmolVLMProcessor": "pixel_values", "FlavaProcessor": "pixel_values",
    "ClapProcessor": "is_longer",  # it draws which sounds are longer
    # Spaces around texts are removed; of a list, Omni's read the first alone, as ids with a waveform.
    "MiniCPMOcrProcessor": "of pictures, True", "MiniCPMV4_6Processor": "of pictures, True",
    "MiniCPMV4_7Processor": "of pictures, True", "Qwen2_5OmniProcessor": "of pictures",
    "Qwen3OmniMoeProcessor": "of pictures",
    # Names of inputs leave out what some calls return: of texts for labels alone, and of a processor's own fields.
    "CohereAsrProcessor": "names of inputs", "Kosmos2_5Processor": "names of inputs",
    "MoonshineStreamingProcessor": "names of inputs", "Nemotron3_5AsrProcessor": "names of inputs",
    "NemotronAsrStreamingProcessor": "names of inputs", "PeAudioProcessor": "names of inputs",
    "Pix2StructProcessor": "names of inputs", "TrOCRProcessor": "names of inputs",
    "VideoLlavaProcessor": "names of inputs", "Wav2Vec2BertProcessor": "names of inputs",
    "Wav2Vec2Processor": "names of inputs",
}  # fmt: skip
"""What classes do otherwise, by design or in all releases: patterns of a law and what it says."""
