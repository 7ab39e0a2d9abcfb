"""Worked examples of the labels that processors of Transformers give: which tokens are trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.processors import _inputs, _made, _tokenizer

IGNORED, FIRST_CODE_ONLY = -100, -101
SHOWN = {IGNORED: "_", FIRST_CODE_ONLY: "~"}


def _kind(name: str) -> Any:
    return find_name("transformers", [f"transformers:{name}Pil", f"transformers:{name}"])


def _pairs(made: Any) -> Any:
    """Return a tokenizer of prompts and answers, which adds nothing to them, and takes the option `add_bos_token`."""
    import tokenizers

    kept = _tokenizer(made)

    class Pairs(type(kept)):  # type: ignore[misc]
        """A tokenizer whose option `add_bos_token` can be set, as Gemma's."""

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "add_bos_token":
                object.__setattr__(self, name, value)
            else:
                super().__setattr__(name, value)

    core = tokenizers.Tokenizer.from_str(kept.backend_tokenizer.to_str())
    core.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A:0", pair="$A:0 $B:1", special_tokens=[]
    )
    names = ("pad_token", "unk_token", "bos_token", "eos_token")
    return Pairs(tokenizer_object=core, **{name: getattr(kept, name) for name in names})


def _siglip() -> Any:
    found = _kind("SiglipImageProcessor")(size={"height": 28, "width": 28})
    found.image_seq_length = 4
    return found


PARTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    **dict.fromkeys(
        ("PaliGemmaProcessor", "ColPaliProcessor"),
        lambda made: {"tokenizer": _pairs(made), "image_processor": _siglip()},
    ),
    "ColQwen2Processor": lambda made: {
        "tokenizer": _pairs(made), "image_processor": _kind("Qwen2VLImageProcessor")()},
    "MusicFlamingoProcessor": lambda made: {"feature_extractor": _kind("WhisperFeatureExtractor")(feature_size=128)},
    "Nemotron3_5TranscribeProcessor": lambda made: {
        "feature_extractor": _kind("ParakeetFeatureExtractor")(), "alignment_tokenizer": _tokenizer(made)},
    **dict.fromkeys(
        ("LasrProcessor", "GraniteSpeech5Processor"),
        lambda made: {"feature_extractor": _kind("LasrFeatureExtractor")()},
    ),
    "ParakeetProcessor": lambda made: {"feature_extractor": _kind("ParakeetFeatureExtractor")()},
    "MoonshineStreamingProcessor": lambda made: {"feature_extractor": _kind("Wav2Vec2FeatureExtractor")()},
    "Wav2Vec2BertProcessor": lambda made: {"feature_extractor": _kind("SeamlessM4TFeatureExtractor")()},
    **dict.fromkeys(
        ("DonutProcessor", "TrOCRProcessor"),
        lambda made: {"image_processor": _kind("ViTImageProcessor")(size={"height": 4, "width": 4})},
    ),
    "NougatProcessor": lambda made: {"image_processor": _kind("NougatImageProcessor")(
        size={"height": 4, "width": 4}, do_crop_margin=False)},
}  # fmt: skip
"""Parts that a processor's own mappings do not name, or that need settings."""


def processor_of(name: str, made: Any) -> Any:
    """Return a processor whose tokens are letters, and whose other parts are small."""
    return _made(made, PARTS[name](made) if name in PARTS else {})


def _rows(ids: Any) -> list[list[int]]:
    found = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return found if found and isinstance(found[0], list) else [found]


def shown(tokenizer: Any, ids: Iterable[int], labels: Iterable[int]) -> str:
    """Return a row's labels as text: `_` where nothing is trained, `!` where a label is not the token of its place.

    A special token that is repeated, as the places of a sound are, is shown once.
    """
    marks = []
    for (token, label), same in groupby(zip(ids, labels, strict=True)):
        name = tokenizer.convert_ids_to_tokens(int(token))
        mark = SHOWN.get(label, name if label == token else "!")
        marks.append(mark * (len(list(same)) if len(name) == 1 else 1))
    return "".join(marks)


def labels_of(name: str, call: Mapping[str, Any], made: Any) -> Any:
    """Return the labels that a processor gives, as text."""
    processor = processor_of(name, made)
    asked = dict(call)
    if isinstance(asked.get("text"), list):
        marks = {"(": "audio_bos_token", ")": "audio_eos_token"}
        for mark, token in marks.items():
            asked["text"] = [text.replace(mark, getattr(processor, token, "")) for text in asked["text"]]
    found = processor(**_inputs(processor, asked))
    labels = _rows(found["labels"])
    ids = labels
    if "decoder_input_ids" in found and "output_labels" in call:
        ids = [
            [*row[1:], due[-1]] for row, due in zip(_rows(found["decoder_input_ids"]), labels, strict=True)
        ]
        ids = [[token if token >= 0 else processor.tokenizer.pad_token_id for token in row] for row in ids]
    elif "input_ids" in found:
        ids = _rows(found["input_ids"])
    else:
        ids = [[processor.tokenizer.pad_token_id if one < 0 else one for one in row] for row in labels]
    return [shown(processor.tokenizer, *pair) for pair in zip(ids, labels, strict=True)]


class Codes:
    """Replaces a model that makes codes of sounds: 1, 2, ... of the first codebook, 11, 12, ... of the second."""

    device = "cpu"
    config = SimpleNamespace(downsampling_ratios=[2, 2], num_quantizers=2)

    def encode(self, input_values: Any, **options: Any) -> Any:
        """Return a code of each four samples."""
        codes = torch.arange(1, input_values.shape[-1] // 4 + 1)
        return SimpleNamespace(audio_codes=torch.stack([codes, codes + 10])[None])


SOUNDS = [[0.1] * 12, [0.1] * 8]
CODED: Mapping[str, Any] = {
    "audio": [np.array(one, dtype=np.float32) for one in SOUNDS],
    "return_tensors": "pt",
}


def _coded(made: Any, extractor: str, rate: int) -> Any:
    own = _kind(extractor)(feature_size=1, hop_length=4, sampling_rate=rate)
    found = _made(made, {"feature_extractor": own, "audio_tokenizer": None})
    found.audio_tokenizer = Codes()
    return found


def _of_dia(made: Any) -> Any:
    options = {"delay_pattern": [0, 1], "bos_token_id": 91, "eos_token_id": 92, "pad_token_id": 93}
    found = _coded(made, "DiaFeatureExtractor", 44100)(
        text=["ab", "c"], padding=True, output_labels=True, generation=False, **options, **CODED
    )
    return found["labels"].tolist()


def _of_higgs(made: Any) -> Any:
    processor = _coded(made, "DacFeatureExtractor", 24000)
    begin, end, sound = processor.audio_bos_token, processor.audio_eos_token, processor.audio_token
    texts = [f"ab {begin}{sound}{end}c", f"{begin}{sound}{end}"]
    found = processor(
        text=texts, padding=True, output_labels=True, **{**CODED, "audio": list(CODED["audio"])}
    )
    pairs = zip(_rows(found["input_ids"]), _rows(found["labels"]), strict=True)
    return [
        [shown(processor.tokenizer, *pair) for pair in pairs],
        [[sorted({*column.tolist()} - {IGNORED}) for column in row.T] for row in found["audio_labels"]],
    ]


def _frames(made: Any) -> Any:
    """Return how many frames are trained with all codes, for shares of the frames, and whether ends are trained."""
    processor = processor_of("CsmProcessor", made)
    sound = {"audio": [np.zeros(24000, dtype=np.float32)], "return_tensors": "pt", "output_labels": True}
    text = processor.audio_token + processor.audio_eos_token
    found = []
    for share in (1.0, 0.5, 0.0):
        labels = processor(text=text, depth_decoder_labels_ratio=share, **sound)["labels"][0]
        count = len(labels) - 1
        found.append(
            [int((labels == FIRST_CODE_ONLY).sum()) - int(count * (1 - share)), int(labels[-1] >= 0)]
        )
    return found


def _of_targets(made: Any) -> Any:
    """Return the labels of a processor of speech whose targets are given apart: tokens and frames of sounds."""
    processor = processor_of("SpeechT5Processor", made)
    sounds = [np.zeros(4000, dtype=np.float32), np.zeros(2000, dtype=np.float32)]
    sound = {"sampling_rate": 16000, "padding": True, "return_tensors": "pt"}
    tokens = processor(audio=sounds, text_target=["ab", "c"], **sound)
    frames = processor(text=["ab", "c"], audio_target=sounds, **sound)
    rows = [shown(processor.tokenizer, row, row) for row in _rows(tokens["labels"])]
    return [
        rows, tokens["decoder_attention_mask"].tolist(),
        list(frames["labels"].shape), frames["decoder_attention_mask"].sum(-1).tolist(),
    ]  # fmt: skip


SOUND: Mapping[str, Any] = {
    "text": ["ab ({audio})cd.", "({audio})e"], "audio": 2, "padding": True, "output_labels": True,
    "return_tensors": "pt",
}  # fmt: skip
ALONE = {**SOUND, "text": "ab {audio}cd.", "audio": 1}
"""Of a text that is no list; its sound has no marks around it."""
CLOSED = {**SOUND, "text": ["ab {audio}<s>cd.</s>", "{audio}<s>e</s>"]}
"""Prompts that a token closes."""
TEXTS: Mapping[str, Any] = {"text": ["ab", "c"], "padding": True, "return_tensors": "pt"}
SPOKEN = {**TEXTS, "audio": 2}
PICTURED = {**TEXTS, "images": 2}
ANSWERED: Mapping[str, Any] = {
    "text": ["{image}a", "{image}b cde"], "images": [1, 1], "suffix": ["xy", "z"], "padding": True,
    "return_tensors": "pt",
}  # fmt: skip
TRAINED_BY: Mapping[str, tuple[tuple[str, Mapping[str, Any], Any], ...]] = {
    **dict.fromkeys(
        ("AudioFlamingo3Processor", "GlmAsrProcessor", "FunAsrNanoProcessor"), (
            ("text but not sounds", SOUND, ["<s>ab _cd.", "_<s>_e"]),
            ("one text", ALONE, ["<s>ab _cd."]))),
    "Qwen3ASRProcessor": (
        ("text but not sounds and their ends", SOUND, ["<s>ab ___cd.", "_<s>___e"]),
        ("one text", ALONE, ["<s>ab _cd."])),
    "MusicFlamingoProcessor": (  # which puts the ends itself where there are none
        ("text but not sounds and their ends", SOUND, ["<s>ab ___cd.", "_<s>___e"]),
        ("one text", ALONE, ["<s>ab ___cd."])),
    "Nemotron3_5TranscribeProcessor": (
        ("text but not sounds", SOUND, ["<s>ab _cd.", "<s>_e_"]), ("one text", ALONE, ["<s>ab _cd."])),
    "MossTranscribeDiarizeProcessor": (
        ("text but not sounds and their ends", SOUND, ["<s>ab ___cd.", "<s>___e_"]),
        ("one text", ALONE, ["<s>ab _cd."])),
    "VibeVoiceProcessor": (
        ("text and the ends of sounds", SOUND, [
            "<s>ab <|vision_start|>_<|vision_end|>cd.", "<s><|vision_start|>_<|vision_end|>e_"]),
        ("one text", ALONE, ["<s>ab _cd."])),
    "VibeVoiceAsrProcessor": (
        ("text but not sounds and their ends", SOUND, ["ab ___cd.", "____e"]), ("one text", ALONE, ["ab _cd."])),
    "OmniASRProcessor": (("what follows the prompt", CLOSED, ["______cd.</s>", "___e</s>_"]),),
    "CanaryProcessor": (
        ("what follows each token", {**SOUND, "text": ["ab cd.", "e"]}, ["ab cd.", "e_"]),
        ("one text", {**SOUND, "text": "ab cd.", "audio": 1}, ["ab cd."])),
    "CsmProcessor": (
        ("sounds and their ends", SOUND, [
            "___<audio_token><audio_eos_token>___", "_<audio_token><audio_eos_token>_"]),
        ("one text", {**ALONE, "text": "ab {audio}<audio_eos_token>"}, ["___<audio_token><audio_eos_token>"]),
        ("two sounds of a text", {**SOUND, "text": ["{audio})a{audio})"]}, [
            "<audio_token><audio_eos_token>_<audio_token><audio_eos_token>"])),
    **dict.fromkeys(
        ("GraniteSpeech5Processor", "MoonshineStreamingProcessor", "Speech2TextProcessor", "Wav2Vec2Processor",
         "Wav2Vec2BertProcessor", "WhisperProcessor", "MCTCTProcessor"),
        (("text of sounds", SPOKEN, ["<s>ab", "<s>c<pad>"]),)),
    **dict.fromkeys(
        ("LasrProcessor", "ParakeetProcessor", "Nemotron3_5AsrProcessor", "NemotronAsrStreamingProcessor"),
        (("text of sounds, without a first token", SPOKEN, ["ab", "c<pad>"]),)),
    "OmniASRCTCProcessor": (("text of sounds, without padding", SPOKEN, ["<s>ab", "<s>c_"]),),
    "CohereAsrProcessor": (
        ("text of sounds, without a first token", {**SPOKEN, "language": "en"}, ["ab", "c<pad>"]),),
    "DonutProcessor": (("text of pictures, without a first token", PICTURED, ["ab", "c<pad>"]),),
    **dict.fromkeys(
        ("TrOCRProcessor", "NougatProcessor"), (("text of pictures", PICTURED, ["<s>ab", "<s>c<pad>"]),)),
    "PaliGemmaProcessor": (
        ("answers of prompts with pictures", ANSWERED, ["____xy</s>_", "________z</s>"]),
        ("answers of prompts without a picture's place", {**ANSWERED, "text": ["a", "b cde"], "images": 2}, [
            "____xy</s>_", "________z</s>"]),
        ("answers, padding on the left", {**ANSWERED, "padding_side": "left"}, ["_____xy</s>", "________z</s>"]),
        ("an answer", {"text": "{image}a", "images": 1, "suffix": "xy"}, ["____xy</s>"]),
        ("an answer of a prompt without a picture's place", {"text": "a", "images": 1, "suffix": "xy"}, [
            "____xy</s>"]),
        ("an answer of two pictures", {"text": ["{image}{image}a"], "images": [2], "suffix": ["xy"]}, [
            "____xy</s>"])),
}  # fmt: skip
"""Labels by processor and call. Untrained places of a repeated token, such as a picture's, are shown as one."""
FIRST: Mapping[str, str] = {
    **dict.fromkeys(("AudioFlamingo3Processor", "GlmAsrProcessor", "MusicFlamingoProcessor"), "5.14"),
    **dict.fromkeys(("Qwen3ASRProcessor", "NougatProcessor"), "5.15"),
}  # fmt: skip
"""The first releases that give tokens as labels; those before gave kinds of tokens, and Nougat's took no pictures."""
LABEL_ROWS: Sequence[Row] = (
    *(
        Row("texts", f"transformers:{kind}", f"labels, {name}", partial(labels_of, kind, call), right,
            since=FIRST.get(kind, "4.57"))
        for kind, table in TRAINED_BY.items()
        for name, call, right in table
    ),
    Row("texts", "transformers:DiaProcessor", "labels of delayed codes", _of_dia, [
        [1, 2, 3, 92, -100], [-100, 11, 12, 13, 92], [-100, 1, 2, 92, -100], [-100, -100, 11, 12, 92]], since="4.57"),
    Row("texts", "transformers:HiggsAudioV2Processor", "labels of texts and codes", _of_higgs, [
        ["<s>ab __<audio_delay_token><audio_eos_token>c", "_<s>__<audio_delay_token><audio_eos_token>"],
        [[[1, 2, 3], [11, 12, 13]], [[1, 2], [11, 12]]]], since="5.24"),
    Row("texts", "transformers:CsmProcessor", "labels, shares of frames with all codes", _frames, [[0, 1]] * 3,
        since="4.57"),
    Row("texts", "transformers:SpeechT5Processor", "labels of texts and of sounds", _of_targets, [
        ["<s>ab", "<s>c<pad>"], [[1, 1, 1], [1, 1, 0]], [2, 16, 80], [16, 8]], since="4.57"),
)  # fmt: skip
