"""What the small models of single classes need, and positions of pictures and films that a family computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from seatrial.targets.transformers.any_inputs import options_of

OF_CONFIGURATIONS: Mapping[str, Mapping[str, Any]] = {
    "LayoutLMv3Config": {"coordinate_size": 6, "shape_size": 4, "input_size": 8, "max_2d_position_embeddings": 64},
    "LiltConfig": {"hidden_size": 48, "max_2d_position_embeddings": 64},
    "SpeechT5Config": {"speaker_embedding_dim": 8, "speech_decoder_prenet_units": 16,
                       "speech_decoder_postnet_units": 16,
                       "speech_decoder_prenet_layers": 2, "speech_decoder_postnet_layers": 2},
    "SpeechT5HifiGanConfig": {"upsample_initial_channel": 32},
    "MimiConfig": {"upsample_groups": 32},
    "MoshiConfig": {"audio_encoder_config.upsample_groups": 32},
    "MoonshineStreamingConfig": {"num_key_value_heads": 4},
    "MllamaTextConfig": {"rope_scaling": {"rope_type": "default"}},
    "MllamaConfig": {"text_config.rope_scaling": {"rope_type": "default"}},
    "Wav2Vec2BertConfig": {"feature_projection_input_dim": 8},
    "Speech2TextConfig": {"input_feat_per_channel": 8, "conv_channels": 16, "conv_kernel_sizes": [3, 3]},
    "XLMConfig": {"vocab_size": 61, "emb_dim": 32, "n_heads": 4, "n_layers": 2, "pad_index": 0, "eos_index": 1,
                  "bos_index": 2, "unk_index": 3, "mask_index": 5, "n_langs": 3, "use_lang_emb": True,
                  "max_position_embeddings": 64},
    "RoCBertConfig": {"pronunciation_vocab_size": 64, "pronunciation_embed_dim": 8, "shape_vocab_size": 64,
                      "shape_embed_dim": 8},
    "SqueezeBertConfig": {"embedding_size": 32},
    "SplinterConfig": {"question_token_id": 49},
    "PerceiverConfig": {"num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2,
                        "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
                        "max_position_embeddings": 64, "vocab_size": 61},
    "VitsConfig": {"upsample_initial_channel": 32, "flow_size": 32, "spectrogram_bins": 16, "noise_scale": 0.0,
                   "noise_scale_duration": 0.0, "duration_predictor_filter_channels": 32},
    **{
        name: {"speech_encoder_intermediate_size": 48, "speech_encoder_layers": 2, "feature_projection_input_dim": 8,
               "speech_encoder_attention_heads": 4, "t2u_vocab_size": 32, "t2u_encoder_ffn_dim": 48,
               "t2u_decoder_ffn_dim": 48, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1,
               "t2u_encoder_attention_heads": 4, "t2u_decoder_attention_heads": 4, "upsample_initial_channel": 32,
               "unit_hifi_gan_vocab_size": 32, "unit_embed_dim": 16, "lang_embed_dim": 8, "spkr_embed_dim": 8,
               "char_vocab_size": 32}
        for name in ("SeamlessM4TConfig", "SeamlessM4Tv2Config")
    },
    "MobileBertConfig": {"embedding_size": 16, "intra_bottleneck_size": 32},
    **{
        f"{name}ThinkerConfig": {"vision_start_token_id": 53, "vision_end_token_id": 54, "audio_start_token_id": 55,
                                 "audio_end_token_id": 56}
        for name in ("Qwen2_5Omni", "Qwen3OmniMoe")
    },
    "LukeConfig": {"entity_vocab_size": 16, "entity_emb_size": 16},
    "LongformerConfig": {"sep_token_id": 49, "attention_window": 4},
    "LEDConfig": {"attention_window": 4, "max_encoder_position_embeddings": 64,
                  "max_decoder_position_embeddings": 64},
    "Llama4Config": {"vision_config.intermediate_size": 128, "vision_config.projector_output_dim": 32},
    "Llama4VisionConfig": {"intermediate_size": 128, "projector_output_dim": 32, "vision_output_dim": 32},
}  # fmt: skip
"""By the configuration's class: options by name, those of a part behind a dot."""
OF_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "LukeForEntityPairClassification": {"use_entity_aware_attention": True},
    "LukeForEntityClassification": {"use_entity_aware_attention": True},
}
"""By the model's class: the same."""
INPUTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "SpeechT5ForTextToSpeech": lambda _: {"input_ids": _ids(9), "decoder_input_values": _drawn(3, 6, 8),
                                          "speaker_embeddings": _drawn(3, 8)},
    "SpeechT5ForSpeechToSpeech": lambda _: {"input_values": _drawn(3, 1600), "decoder_input_values": _drawn(3, 6, 8),
                                            "speaker_embeddings": _drawn(3, 8)},
    **dict.fromkeys(
        ("LxmertForPreTraining", "LxmertForQuestionAnswering", "LxmertModel"),
        lambda model: {"input_ids": _ids(9), "visual_feats": _drawn(3, 5, model.config.visual_feat_dim),
                       "visual_pos": _drawn(3, 5, 4)},
    ),
    **dict.fromkeys(("LukeModel", "LukeForMaskedLM", "LukeForEntityClassification"), lambda _: _entities(1)),
    "LukeForEntityPairClassification": lambda _: _entities(2),
    "LukeForEntitySpanClassification": lambda _: {
        **_entities(3), "entity_start_positions": torch.tensor([[1, 2, 5]] * 3),
        "entity_end_positions": torch.tensor([[1, 3, 6]] * 3),
    },
    **dict.fromkeys(
        ("UdopModel", "UdopForConditionalGeneration"),
        lambda _: {"input_ids": _ids(9), "bbox": _drawn(3, 9, 4).sigmoid().sort(-1).values,
                   "decoder_input_ids": _ids(6)},
    ),
    "SplinterForPreTraining": lambda _: {"input_ids": _with(_ids(9), 49, (3, 6))},
    "VisualBertForQuestionAnswering": lambda _: {"input_ids": _ids(9), "attention_mask": _ids(9) * 0 + 1},
    "LongformerForQuestionAnswering": lambda _: {"input_ids": _with(_ids(9), 49, (3, 4, 8))},
    "SpeechT5HifiGan": lambda _: {"spectrogram": _drawn(3, 6, 80)},
}  # fmt: skip
"""By the model's class: what it takes, where no inputs are found by trying."""
NOT_RECORDED: Sequence[str] = ()
"""Classes that are not made."""


def _drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _ids(length: int) -> torch.Tensor:
    return torch.randint(3, 48, (3, length), generator=torch.Generator().manual_seed(length))


def _with(ids: torch.Tensor, token: int, places: Sequence[int]) -> torch.Tensor:
    ids[:, list(places)] = token
    return ids


def _entities(num: int) -> dict[str, Any]:
    """Return rows of text with entities of two ids each."""
    places = torch.tensor([[[2 * one, 2 * one + 1, -1, -1] for one in range(num)]] * 3)
    return {
        "input_ids": _ids(9),
        "entity_ids": torch.tensor([[2 + one for one in range(num)]] * 3),
        "entity_attention_mask": torch.ones(3, num, dtype=torch.long),
        "entity_position_ids": places,
    }


def _marks(model: Any) -> tuple[int, int, int]:
    """Return the ids of a picture, of a film and of the beginning of both."""
    config = model.config
    picture = next(options_of(config, ["image_token_id"]), 50)
    film = next(options_of(config, ["video_token_id"]), 51)
    begin = next(options_of(config, ["vision_start_token_id", "image_start_token_id"]), 53)
    return picture, film, begin


def _merge(model: Any) -> int:
    found = next(options_of(model.config, ["spatial_merge_size"]), 1)
    return int(found) if isinstance(found, int) else 1


def _rows(model: Any, parts: Sequence[Sequence[tuple[str, tuple[int, int, int]]]]) -> dict[str, Any]:
    """Return rows of text with pictures and films of these grids in merged patches, padded on the left."""
    picture, film, begin = _marks(model)
    merge, rows, kinds = _merge(model), [], []
    grids: dict[str, list[list[int]]] = {"image": [], "video": []}
    for number, row in enumerate(parts):
        ids, of_kind = [7 + number, 9], [0, 0]
        for kind, (t, h, w) in row:
            count = t * h * w
            if kind == "frames":
                for frame in range(t):
                    ids += [15 + frame, begin, *[film] * (count // t), 8]
                    of_kind += [0, 0, *[2] * (count // t), 0]
                ids, of_kind = [*ids, 21], [*of_kind, 0]
            else:
                ids += [begin, *[picture if kind == "image" else film] * count, 8, 21]
                of_kind += [0, *[1 if kind == "image" else 2] * count, 0, 0]
            grids["image" if kind == "image" else "video"].append([t, h * merge, w * merge])
        rows.append([*ids, 30, 11, 12])
        kinds.append([*of_kind, 0, 0, 0])
    size = max(map(len, rows))
    pad = [size - len(row) for row in rows]
    found = {
        "input_ids": torch.tensor([[0] * gap + row for gap, row in zip(pad, rows, strict=True)]),
        "mm_token_type_ids": torch.tensor([[0] * gap + row for gap, row in zip(pad, kinds, strict=True)]),
        "attention_mask": torch.tensor([[0] * gap + [1] * (size - gap) for gap in pad]),
        "second_per_grid_ts": torch.tensor([2.0] * len(grids["video"])) if grids["video"] else None,
    }
    for kind, values in grids.items():
        found[f"{kind}_grid_thw"] = torch.tensor(values) if values else None
    return found


AT_ONCE: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "text": lambda model: _rows(model, [[], []]),
    "pictures": lambda model: _rows(
        model, [[("image", (1, 2, 3)), ("image", (1, 3, 2))], [("image", (1, 1, 4))]]
    ),
    "films": lambda model: _rows(model, [[("video", (3, 2, 2))], [("video", (2, 1, 3))]]),
    "frames": lambda model: _rows(
        model, [[("frames", (3, 2, 2))], [("image", (1, 2, 1)), ("frames", (2, 1, 3))]]
    ),
    "both": lambda model: _rows(
        model, [[("image", (1, 2, 2)), ("video", (2, 2, 3))], [("video", (2, 2, 1)), ("image", (1, 4, 2))]]
    ),
}
"""Rows of which a family computes the positions."""
