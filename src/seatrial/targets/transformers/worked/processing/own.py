"""Laws of processors: what they take besides texts and media is used, by each way, and in its call alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.processing import inputs
from seatrial.targets.transformers.worked.processing.compare import plain, unlike
from seatrial.targets.transformers.worked.processing.inputs import ROWS, SIZES, arguments, shared

classes = inputs.classes


class Own(NamedTuple):
    """Options of a class, and the rows that they are tried on."""

    rows: str
    options: Mapping[str, Any]
    group: str = ""
    """The dictionary of a call that may have them too."""


OPTIONS: Mapping[str, Sequence[Own]] = {
    "Aria": (Own("image", {"split_image": True}, "images_kwargs"),),
    "Canary": (Own("audio", {"output_labels": True}),), "AudioFlamingo3": (Own("audio", {"output_labels": True}),),
    "Chameleon": (Own("text", {"return_for_text_completion": True}, "text_kwargs"),
                  Own("image", {"return_for_text_completion": True}, "text_kwargs")),
    "CohereAsr": (Own("audio", {"punctuation": False}), Own("audio", {"language": "de"})),
    "ColPali": (Own("image", {"suffix": "e"}),), "ColQwen2": (Own("image", {"suffix": "e"}),),
    "Csm": (Own("audio", {"output_labels": True}),), "Dia": (Own("text", {"output_labels": True}),),
    "Emu3": (Own("text", {"return_for_image_generation": True}, "text_kwargs"),),
    "FunAsrNano": (Own("audio", {"output_labels": True}),), "Fuyu": (Own("image", {"return_attention_mask": False}),),
    "Gemma3": (Own("image", {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 8,
                             "pan_and_scan_min_ratio_to_activate": 1.0}, "images_kwargs"),),
    "GlmAsr": (Own("audio", {"output_labels": True}),),
    "GotOcr2": (Own("image", {"crop_to_patches": True, "max_patches": 3, "min_patches": 2}, "images_kwargs"),),
    "HiggsAudioV2": (Own("audio", {"output_labels": True}),),
    "Idefics": (Own("image", {"add_eos_token": True}, "text_kwargs"),),
    "Idefics3": (Own("image", {"image_seq_len": 3}), Own("image", {"do_image_splitting": False}, "images_kwargs")),
    "InternVL": (Own("image", {"crop_to_patches": True, "max_patches": 3, "min_patches": 2}, "images_kwargs"),),
    "Janus": (Own("text", {"generation_mode": "image"}, "text_kwargs"),),
    "Kosmos2": (Own("image", {"num_image_tokens": 7}, "images_kwargs"),),
    "Lfm2Vl": (Own("image", {"use_image_special_tokens": False}, "text_kwargs"),),
    "MiniCPMOcr": (Own("image", {"use_image_id": False}),), "MiniCPMV4_6": (Own("image", {"use_image_id": False}),),
    "MiniCPMV4_7": (Own("image", {"use_image_id": False}),),
    "MusicFlamingo": (Own("audio", {"output_labels": True}),),
    "Nemotron3_5Transcribe": (Own("audio", {"output_labels": True}),),
    "OmDetTurbo": (Own("image", {"task": "Find e"}, "text_kwargs"),),
    "OmniASR": (Own("audio", {"output_labels": True}),), "PaliGemma": (Own("image", {"suffix": ["e", "ab"]}),),
    "Pix2Struct": (Own("image", {"max_patches": 32}, "images_kwargs"),),
    "Kosmos2_5": (Own("image", {"max_patches": 32}, "images_kwargs"),),
    "Qwen3ASR": (Own("audio", {"output_labels": True}),),
    "Siglip2": (Own("image", {"max_num_patches": 16}, "images_kwargs"),),
    "SmolVLM": (Own("image", {"do_image_splitting": False}, "images_kwargs"),),
    "VibeVoice": (Own("audio", {"output_labels": True}),), "VibeVoiceAsr": (Own("audio", {"output_labels": True}),),
}  # fmt: skip


def _answer(processor: Any, rows: str, **options: Any) -> dict[str, Any] | None:
    try:
        found = processor(**arguments(processor, ROWS[rows], padding=True), **options)
        return {name: plain(value) for name, value in found.items()}
    except Exception:  # noqa: BLE001  rows or options that the class does not take
        return None


def _used(made: Any) -> Iterator[str]:
    """Yield options of a class that change nothing, other ways to give them, and what they leave for later calls."""
    cases, judged = OPTIONS.get(made.__name__.removesuffix("Processor"), ()), False
    processor = shared(made)
    for case in cases:
        name, given = case.rows, dict(case.options)
        base, found = _answer(processor, name), _answer(processor, name, **copy.deepcopy(given))
        if base is None or found is None:
            continue
        judged = True
        if not list(unlike(found, base)):
            yield f"{name}, {given}: nothing is changed"
        after = _answer(processor, name)
        yield from (f"{name}, after {given}:{one}" for one in unlike(after, base))
        if case.group:
            nested = _answer(processor, name, **{case.group: copy.deepcopy(given)})
            if nested is not None:
                yield from (f"{name}, {case.group} {given}:{one}" for one in list(unlike(nested, found))[:1])
    if not judged:
        raise NotServed("no options of its own")


def _text(processor: Any, found: Mapping[str, Any], row: int = 0) -> str:
    pad = processor.tokenizer.pad_token
    return str(processor.tokenizer.decode(list(plain(found["input_ids"])[row]))).replace(pad, "")


BOXES: Sequence[Sequence[float]] = ((5, 4, 40, 30), (0, 0, 31, 30), (7, 20, 8, 37))


def _regions(made: Any) -> Iterator[str]:
    """Yield where a box of a picture is not written in thousandths of its width and height, or what is next to it."""
    processor = shared(made)
    for number, (width, height) in enumerate(SIZES):
        image = inputs._media("images", number)
        for box in BOXES:
            right = [int(one / side * 1000) for one, side in zip(box, (width, height) * 2, strict=True)]
            for given in ({"box": list(box)}, {"images_kwargs": {"box": list(box)}}):
                text = _text(processor, dict(processor(images=[image.copy()], **given).items()))
                if str(right) not in text:
                    yield f"{(width, height)}, {given}: {text[-60:]!r}, {right} is due"
    image = inputs._media("images", 0)
    for more, due in (({"color": "red"}, "[red]"), ({"format": True}, "OCR with format")):
        text = _text(processor, dict(processor(images=[image.copy()], **more).items()))
        plain_text = _text(processor, dict(processor(images=[image.copy()]).items()))
        if due not in text or due in plain_text:
            yield f"{more}: {text[-60:]!r}, {due} is due"


def _completed(made: Any) -> Iterator[str]:
    """Yield where a prompt that is continued has the mark of the end of a turn, or one that is not has none."""
    processor = shared(made)
    end = processor.tokenizer.sep_token
    for name in ("text", "image"):
        for completes in (False, True):
            given = {"return_for_text_completion": completes}
            found = dict(processor(**arguments(processor, ROWS[name], padding=True), **given).items())
            for row in range(2):
                if _text(processor, found, row).endswith(end) == completes:
                    yield f"{name}, {given}: {_text(processor, found, row)[-60:]!r}"


def _patches(made: Any) -> Iterator[str]:
    """Yield where a box from 0 to 1 is not written by the patches of its corners, of 32 a side."""
    processor = shared(made)
    for box in ((0.1, 0.3, 0.6, 0.9), (0.0, 0.5, 0.25, 0.75), (0.9, 0.05, 0.99, 0.5)):
        given = arguments(processor, ROWS["image"][:1])
        given["text"] = ["<grounding><phrase>a</phrase>"]
        found = dict(processor(**given, bboxes=[[[tuple(box)]]]).items())
        left, top, right, low = (min(int(np.floor(one * 32)), 31) for one in box)
        right, low = (max(int(np.ceil(one * 32)) - 1, 0) for one in box[2:])
        due = f"<patch_index_{top * 32 + left:04d}><patch_index_{low * 32 + right:04d}>"
        if due not in _text(processor, found):
            yield f"{box}: {_text(processor, found)[-120:]!r}, {due} is due"


ONLY: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "GotOcr2": _regions, "Chameleon": _completed, "Kosmos2": _patches,
}  # fmt: skip


def _written(made: Any) -> Iterator[str]:
    law = ONLY.get(made.__name__.removesuffix("Processor"))
    if law is None:
        raise NotServed("no options whose tokens are known")
    return law(made)


LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "own options: used": _used,
    "own options: tokens": _written,
}
OTHERWISE: Mapping[str, str] = {
    # A bug: the number of tokens of a picture that the call takes is not used.
    "Idefics3Processor": "image_seq_len.*nothing",
}
"""What classes do otherwise: patterns of a law and what it says."""
OLDER: Mapping[str, str] = {
    # Options that only the dictionary of pictures has.
    "AriaProcessor": "split_image", "Idefics3Processor": "do_image_splitting", "SmolVLMProcessor": "do_image_splitting",
    # Options of the dictionary of texts take the place of those without one.
    "Emu3Processor": "text_kwargs", "OmDetTurboProcessor": "text_kwargs",
}  # fmt: skip
"""Of releases before 5."""
