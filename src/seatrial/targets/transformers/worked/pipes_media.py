"""Calls of Transformers' pipelines of sounds and pictures, whose results are on record."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.pipes import (
    ASKED,
    SIZES,
    drawn,
    letters,
    of_config,
    tokens,
    words,
    written_text,
)
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

RATE = 100
"""Samples of a second."""


def _sound(size: int, seed: int = 0) -> Any:
    return numbers(1, size, seed=seed)[0].float().numpy()


def letters_of_sounds() -> Any:
    path = Path(new_folder()) / "vocab.json"
    signs = ["<pad>", "<s>", "</s>", "<unk>", "|", *"abcdefgh"]
    path.write_text(json.dumps({one: place for place, one in enumerate(signs)}), encoding="utf-8")
    return of_name("Wav2Vec2CTCTokenizer")(str(path))


def speech(kind: str) -> tuple[Any, Any]:
    """Return a tiny Wav2Vec2 with a head, of 4 samples a frame, and its extractor."""
    model = drawn(
        f"Wav2Vec2For{kind}", vocab_size=13, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, conv_dim=(8, 8), conv_stride=(2, 2), conv_kernel=(3, 2), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, pad_token_id=0, num_labels=3,
        classifier_proj_size=8,
    )  # fmt: skip
    extractor = of_name("Wav2Vec2FeatureExtractor")(
        sampling_rate=RATE, do_normalize=True, return_attention_mask=True
    )
    return model, extractor


def _recognized(made: Any) -> Any:
    """Return texts of sounds, whole and in parts that overlap, with times of letters and words, in batches."""
    model, extractor = speech("CTC")
    pipe = made(model=model, tokenizer=letters_of_sounds(), feature_extractor=extractor, **ASKED)
    sound, other = _sound(600), _sound(250, 1)
    stereo = np.stack([sound, sound[::-1]])
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "whole": (sound, {}), "letters": (sound, {"return_timestamps": "char"}),
        "words": (sound, {"return_timestamps": "word"}), "unknown times": (sound, {"return_timestamps": True}),
        "parts": (sound, {"chunk_length_s": 2}), "parts, words": (sound, {"chunk_length_s": 2,
                                                                         "return_timestamps": "word"}),
        "parts, stride": (sound, {"chunk_length_s": 2, "stride_length_s": 0.2}),
        "parts, two strides": (sound, {"chunk_length_s": 1.5, "stride_length_s": (0.5, 0.1)}),
        "parts, batch": (sound, {"chunk_length_s": 1, "batch_size": 3}),
        "too narrow": (sound, {"chunk_length_s": 0.4, "stride_length_s": 0.4}),
        "list": ([sound, other], {}), "batch": ([sound, other], {"batch_size": 2}),
        "parts of a batch": ([sound, other], {"batch_size": 2, "chunk_length_s": 1}),
        "dictionary": ({"raw": sound, "sampling_rate": RATE, "name": "one"}, {}),
        "array": ({"array": torch.tensor(other), "sampling_rate": RATE, "path": "none"}, {}),
        "strided": ({"raw": sound, "sampling_rate": RATE, "stride": (80, 40)}, {"return_timestamps": "char"}),
        "strided too far": ({"raw": sound, "sampling_rate": RATE, "stride": (400, 400)}, {}),
        "no rate": ({"raw": sound}, {}), "channels": (stereo, {}), "too many channels": (stereo[[0, 1, 0]], {}),
        "channels, dictionary": ({"raw": stereo, "sampling_rate": RATE}, {}),
    }  # fmt: skip
    return {
        name: refusal(lambda given=given, more=more: written_text(pipe(given, **more)))
        for name, (given, more) in calls.items()
    }


def _strides(made: Any) -> Any:
    return made([(600, 80, 40), (333, 17, 0), (100, 0, 55)], 1 / 4) + made([(7, 2, 2)], 0.5)


def _parts(made: Any) -> Any:
    """Return parts of a sound with their strides."""
    extractor = of_name("Wav2Vec2FeatureExtractor")(sampling_rate=RATE, do_normalize=False)
    found = []
    for size, length, left, right in (
        (20, 8, 2, 2),
        (20, 10, 0, 4),
        (7, 8, 2, 2),
        (16, 8, 2, 0),
        (18, 8, 2, 4),
    ):
        parts = list(made(np.arange(size, dtype=np.float32), extractor, length, left, right))
        found.append([[one["input_values"].tolist(), one["stride"], one["is_last"]] for one in parts])
    return found


def _longest_common(made: Any) -> Any:
    tokenizer = SimpleNamespace(all_special_ids=[0, 1], bos_token_id=0, eos_token_id=1)
    pages = [np.array([[3, 4, 5, 6, 1]]), np.array([[0, 5, 6, 7, 8]]), np.array([[8, 9, 3]])]
    return [np.asarray(made([one.copy() for one in pages[:size]], tokenizer)).tolist() for size in (1, 2, 3)]


def _for_whisper(made: Any) -> Any:
    """Return what Whisper's tokenizer is given of parts: seconds, precision and options."""
    seen: list[Any] = []

    def decode(outputs: Any, **options: Any) -> Any:
        seen.append([[written_text({name: one for name, one in part.items() if name != "tokens"}) for part in outputs],
                     [part["tokens"].tolist() for part in outputs], options])  # fmt: skip
        return "text", {"chunks": [1]}

    stand_in = SimpleNamespace(
        type="seq2seq_whisper", framework="pt", feature_extractor=SimpleNamespace(chunk_length=30, sampling_rate=RATE),
        model=SimpleNamespace(config=SimpleNamespace(max_source_positions=1500)),
        tokenizer=SimpleNamespace(_decode_asr=decode),
    )  # fmt: skip
    found = []
    for options in ({}, {"return_timestamps": "word", "return_language": True}):
        outputs = [
            {"tokens": torch.tensor([[5, 6]]), "stride": (600, 0, 100), "is_last": False, "name": "a"},
            {"tokens": torch.tensor([[7]]), "stride": (600, 100, 0), "is_last": True, "name": "b",
             "lang_id": torch.tensor([4])},
        ]  # fmt: skip
        found.append(made.postprocess(stand_in, outputs, **options))
    return [found, seen]


def _sound_classes(made: Any) -> Any:
    model, extractor = speech("SequenceClassification")
    model.config.id2label = {0: "low", 1: "mid", 2: "high"}
    pipe = made(model=model, feature_extractor=extractor, **ASKED)
    sound, other = _sound(300), _sound(200, 1)
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "all": (sound, {}), "two": (sound, {"top_k": 2}), "many": (sound, {"top_k": 9}), "list": ([sound, other], {}),
        "none": (sound, {"function_to_apply": "none"}), "sigmoid": (sound, {"function_to_apply": "sigmoid"}),
        "dictionary": ({"raw": other, "sampling_rate": RATE}, {"top_k": None}), "no rate": ({"raw": other}, {}),
        "wide": (np.stack([sound, sound]), {}), "batch": ([sound, other], {"batch_size": 2, "top_k": 1}),
    }  # fmt: skip
    return {
        name: refusal(lambda given=given, more=more: written_text(pipe(given, **more)))
        for name, (given, more) in calls.items()
    }


def picture(seed: int = 0, size: tuple[int, int] = (16, 16)) -> Any:
    from PIL import Image

    values = np.random.RandomState(seed).randint(0, 256, (*size, 3)).astype(np.uint8)
    return Image.fromarray(values)


VISION: Mapping[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
PIXELS: Mapping[str, Any] = {"size": {"height": 16, "width": 16}}


def _seen(pipe: Any, calls: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> Any:
    return {
        name: refusal(lambda given=given, more=more: written_text(pipe(given, **more)))
        for name, (given, more) in calls.items()
    }


def _picture_classes(made: Any) -> Any:
    found = []
    for kind in (None, "multi_label_classification", "regression"):
        model = drawn("ViTForImageClassification", **VISION, num_labels=3, problem_type=kind)
        pipe = made(model=model, image_processor=of_name("ViTImageProcessor")(**PIXELS), **ASKED)
        one, two = picture(), picture(1)
        found.append(_seen(pipe, {
            "one": (one, {}), "two": (one, {"top_k": 2}), "list": ([one, two], {"top_k": 1}),
            "batch": ([one, two], {"batch_size": 2}), "sigmoid": (one, {"function_to_apply": "sigmoid"}),
            "none": (one, {"function_to_apply": "none", "top_k": 9}), "softmax": (one, {
                "function_to_apply": "softmax"}), "number": (3, {}),
        }))  # fmt: skip
    return found


def _picture_features(made: Any) -> Any:
    model = drawn("ViTModel", **VISION)
    pipe = made(model=model, image_processor=of_name("ViTImageProcessor")(**PIXELS), **ASKED)
    one = pipe(picture())
    more = pipe([picture(), picture(1)], batch_size=2, return_tensors=True)
    pooled = refusal(lambda: pipe(picture(), pool=True, return_tensors=True))
    plain = {"image_processor_kwargs": {"do_normalize": False}, "return_tensors": True}
    bare = refusal(lambda: pipe(picture(), **plain))
    return [torch.tensor(one), [torch.as_tensor(each) for each in more], pooled, bare]


def _picture_labels(made: Any) -> Any:
    """Return what labels of the caller's own pictures have, by templates, in batches."""
    text = {**SIZES, "vocab_size": len(tokens()), "bos_token_id": 2, "eos_token_id": 3}
    config = of_name("CLIPConfig")(text_config=text, vision_config={**VISION}, projection_dim=8)
    model = of_config("CLIPModel", config)
    tokenizer = words()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    pixels = of_name("CLIPImageProcessor")(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    pipe = made(model=model, tokenizer=tokenizer, image_processor=pixels, **ASKED)
    one, two, labels = picture(), picture(1), ["cat", "new york", "my name"]
    return _seen(pipe, {
        "one": (one, {"candidate_labels": labels}), "list": ([one, two], {"candidate_labels": labels}),
        "template": (one, {"candidate_labels": labels, "hypothesis_template": "the {}"}), "none": (one, {}),
        "batch": ([one, two], {"candidate_labels": labels, "batch_size": 2}),
        "padded": (one, {"candidate_labels": labels, "tokenizer_kwargs": {"padding": "max_length"}}),
    })  # fmt: skip


def _boxes(made: Any) -> Any:
    """Return objects of a picture, above thresholds, and boxes of whole numbers."""
    model = drawn(
        "YolosForObjectDetection",
        **{**VISION, "image_size": (16, 16), "num_hidden_layers": 2},
        num_detection_tokens=4,
        num_labels=3,
    )
    model.config.id2label = {0: "a", 1: "b", 2: "c"}
    pipe = made(
        model=model, image_processor=of_name("YolosImageProcessor")(size={"height": 16, "width": 16}), **ASKED
    )
    wide = picture(2, (8, 20))
    found = _seen(pipe, {
        "all": (picture(), {"threshold": 0.0}), "some": (picture(), {"threshold": 0.4}), "wide": (wide, {
            "threshold": 0.0}), "usual": (wide, {}), "list": ([wide, picture()], {"threshold": 0.2}),
        "batch": ([picture(3), picture()], {"threshold": 0.2, "batch_size": 2}),
    })  # fmt: skip
    return [found, pipe._get_bounding_box(torch.tensor([1.6, 2.2, 3.9, 4.0]))]


def _segments(made: Any) -> Any:
    """Return masks of classes of a picture, and which tasks it has none for."""
    model = drawn(
        "SegformerForSemanticSegmentation", num_encoder_blocks=1, depths=(1,), sr_ratios=(1,), hidden_sizes=(8,),
        patch_sizes=(3,), strides=(2,), num_attention_heads=(1,), mlp_ratios=(2,), decoder_hidden_size=8, num_labels=3,
    )  # fmt: skip
    pipe = made(model=model, image_processor=of_name("SegformerImageProcessor")(**PIXELS), **ASKED)
    found = []
    for shown in (picture(), picture(2, (8, 20))):
        for given in ({}, {"subtask": "semantic"}, {"subtask": "panoptic"}, {"threshold": 0.5}):
            rows = refusal(lambda given=given, shown=shown: pipe(shown, **given))
            found.append(rows if isinstance(rows, str) else [
                [one["score"], one["label"], [*one["mask"].size], int(np.asarray(one["mask"]).sum())] for one in rows
            ])  # fmt: skip
    return found


def _depths(made: Any) -> Any:
    """Return depths of pictures, by the size of the picture."""
    model = drawn(
        "DPTForDepthEstimation", **{**VISION, "num_hidden_layers": 4},
        backbone_out_indices=[0, 1, 2, 3], reassemble_factors=[4, 2, 1, 0.5],
        neck_hidden_sizes=[4, 4, 4, 4], fusion_hidden_size=4, is_hybrid=False, neck_ignore_stages=[],
    )  # fmt: skip
    pipe = made(model=model, image_processor=of_name("DPTImageProcessor")(**PIXELS), **ASKED)
    found = []
    for shown in (picture(), picture(2, (8, 20))):
        one = pipe(shown)
        found.append(
            [one["predicted_depth"], [*one["depth"].size], int(np.asarray(one["depth"]).astype(int).sum())]
        )
    return found


def seeing() -> tuple[Any, Any]:
    """Return a tiny Llava that writes bytes, and its processor."""
    tokenizer = letters(additional_special_tokens=["<image>"], padding_side="left")
    image = tokenizer.convert_tokens_to_ids("<image>")
    text = {**SIZES, "vocab_size": 264, "num_key_value_heads": 1, "model_type": "qwen2", "pad_token_id": 0,
            "eos_token_id": 1}  # fmt: skip
    config = of_name("LlavaConfig")(
        text_config=text, vision_config={**VISION, "model_type": "clip_vision_model", "projection_dim": 8},
        image_token_index=image, vision_feature_layer=-1,
    )  # fmt: skip
    model = of_config("LlavaForConditionalGeneration", config)
    template = (
        "{% for message in messages %}[{{ message['role'] }}]{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    pixels = of_name("CLIPImageProcessor")(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor = of_name("LlavaProcessor")(
        image_processor=pixels, tokenizer=tokenizer, patch_size=8, vision_feature_select_strategy="default",
        chat_template=template, num_additional_image_tokens=1,
    )  # fmt: skip
    return model, processor


def _described(made: Any) -> Any:
    """Return texts of pictures and words: pairs, lists, continued chats, ids, new texts, several pictures."""
    model, processor = seeing()
    pipe = made(model=model, processor=processor, **ASKED)
    one, two = picture(), picture(1)

    def talk(picture: Any) -> Any:
        part = {"type": "image", "image": picture}
        return [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}]

    begun = [*talk(one), {"role": "assistant", "content": [{"type": "text", "text": "a c"}]}]
    greedy: Mapping[str, Any] = {"generate_kwargs": {"do_sample": False}, "max_new_tokens": 3}
    calls: Mapping[str, tuple[Any, Mapping[str, Any]]] = {
        "pair": ({"images": one, "text": "<image>what"}, {}), "ids": ({"images": one, "text": "<image>what"}, {
            "return_tensors": True}), "new": ({"images": one, "text": "<image>what"}, {"return_full_text": False}),
        "two pictures": ({"images": [one, two], "text": "<image>a<image>b"}, {}),
        "list": ([{"images": one, "text": "<image>a"}, {"images": two, "text": "<image>b"}], {}),
        "chat": (talk(one), {}), "chats": ([talk(one), talk(two)], {}), "begun": (begun, {}),
        "begun, new": (begun, {"return_full_text": False}), "chat, new": (talk(one), {"return_full_text": False}),
        "begun, another": (begun, {"continue_final_message": False}),
        "several": ({"images": one, "text": "<image>what"}, {"generate_kwargs": {
            "do_sample": False, "num_beams": 2, "num_return_sequences": 2}}),
        "length given twice": (talk(one), {"generate_kwargs": {"max_new_tokens": 2}}),
        "wrong": ({"images": one, "text": "<image>what"}, {"return_full_text": True, "return_tensors": True}),
    }  # fmt: skip
    found = {
        name: refusal(
            lambda given=given, more=more: written_text(pipe(given, **copy.deepcopy({**greedy, **more})))
        )
        for name, (given, more) in calls.items()
    }
    found["apart"] = refusal(
        lambda: written_text(pipe(images=[one, two], text=["<image>a", "<image>bc"], **copy.deepcopy(greedy)))
    )
    found["words alone"] = refusal(lambda: written_text(pipe(text="what", **copy.deepcopy(greedy))))
    found["nothing"] = refusal(lambda: pipe(**copy.deepcopy(greedy)))
    return found


ASR = "transformers.pipelines.automatic_speech_recognition"
CALLS: Sequence[Call] = (
    Call("calls", "transformers:AutomaticSpeechRecognitionPipeline", "texts of sounds", _recognized),
    Call("calls", "transformers:AutomaticSpeechRecognitionPipeline", "parts for Whisper", _for_whisper),
    Call("calls", f"{ASR}:rescale_stride", "frames", _strides),
    Call("calls", f"{ASR}:chunk_iter", "parts of a sound", _parts),
    Call("calls", f"{ASR}:_find_longest_common_sequence", "parts that overlap", _longest_common),
    Call("calls", "transformers:AudioClassificationPipeline", "classes of sounds", _sound_classes),
    Call("calls", "transformers:ImageClassificationPipeline", "classes of pictures", _picture_classes),
    Call("calls", "transformers:ImageFeatureExtractionPipeline", "features of pictures", _picture_features),
    Call("calls", "transformers:ZeroShotImageClassificationPipeline", "labels of the caller's own", _picture_labels),
    Call("calls", "transformers:ObjectDetectionPipeline", "objects of pictures", _boxes),
    Call("calls", "transformers:ImageSegmentationPipeline", "masks of pictures", _segments),
    Call("calls", "transformers:DepthEstimationPipeline", "depths of pictures", _depths),
    Call("calls", "transformers:ImageTextToTextPipeline", "texts of pictures", _described),
)  # fmt: skip
PIPE_MEDIA_ROWS = rows_of(CALLS)
