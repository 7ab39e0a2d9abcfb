"""Small configurations of every class of a model's module, with options at other values; see `class_records`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from seatrial.targets.transformers.any_models import NOISES
from seatrial.targets.transformers.any_records import MORE as OF_PICTURES
from seatrial.targets.transformers.any_records import SECTIONED, SMALL, _set_sections
from seatrial.targets.transformers.families import CausalFamily
from seatrial.targets.transformers.family_table import DECODER, FAMILIES
from seatrial.targets.transformers.option_values import structures_of, variants_of
from seatrial.targets.transformers.small_models import END, OF_PARTS, PAD, START, VOCABULARY, small_config

FURTHER: Mapping[str, Any] = {
    "attention_window": 4,
    "attn_num_classes": 3,
    "conv_dim": [16, 16],
    "conv_kernel": [4, 3],
    "conv_stride": [4, 2],
    "dim": 32,
    "emb_dim": 32,
    "encoder_ffn_dim": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "feature_size": 8,
    "hidden_dim": 48,
    "n_heads": 4,
    "n_layers": 2,
    "num_conv_pos_embedding_groups": 4,
    "num_conv_pos_embeddings": 8,
    "num_feat_extract_layers": 2,
    "num_random_blocks": 1,
    "q_hidden_size": 32,
}
"""Sizes by names that only some kinds have."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "funnel": {"d_head": 8, "d_inner": 48, "block_sizes": [1, 1], "num_decoder_layers": 1},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "canine": {"num_hash_buckets": 64, "local_transformer_stride": 16, "downsampling_rate": 2},
    "mimi": {
        "upsample_groups": 32, "num_filters": 4, "codebook_dim": 16, "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 3, "upsampling_ratios": [4, 2],
    },
    "dia_decoder": {
        "cross_num_attention_heads": 4, "cross_head_dim": 8, "cross_num_key_value_heads": 2, "cross_hidden_size": 32,
    },
    "dia": {"delay_pattern": [0, 1, 2]},
    "florence_vision": {
        "depths": [1, 1, 1, 1], "embed_dim": [16, 16, 32, 32], "num_heads": [2, 2, 4, 4], "num_groups": [2, 2, 4, 4],
        "window_size": 4, "projection_dim": 32,
    },
    "csm_depth_decoder_model": {"backbone_hidden_size": 32},
    "kosmos-2": {"latent_query_num": 4},
    "semantic": {"input_vocab_size": 61, "output_vocab_size": 61},
    "coarse_acoustics": {"input_vocab_size": 61, "output_vocab_size": 61},
    "fine_acoustics": {"input_vocab_size": 61, "output_vocab_size": 61},
    "clvp_decoder": {"max_text_tokens": 64},
    "chameleon": {"vocabulary_map": {"<image>": 50, **{f"IMGIMG{'ABCDEFGH'[one]}Z": 20 + one for one in range(8)}}},
    "chameleon_vqgan": {
        "base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 32, "num_embeddings": 8, "embed_dim": 32,
        "resolution": 16, "num_res_blocks": 1,
    },
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4, "input_size": 8, "max_2d_position_embeddings": 64},
    "lilt": {"hidden_size": 48, "max_2d_position_embeddings": 64},
    "llama4": {"intermediate_size": 48},
    "llama4_vision_model": {"intermediate_size": 128, "projector_output_dim": 32, "vision_output_dim": 32},
    "longformer": {"sep_token_id": 49, "attention_window": 4},
    "led": {"attention_window": 4, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 16},
    "mobilebert": {"embedding_size": 16, "intra_bottleneck_size": 32, "true_hidden_size": 32},
    "perceiver": {
        "num_latents": 8, "d_latents": 32, "d_model": 32, "num_self_attends_per_block": 2, "vocab_size": 61,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4, "max_position_embeddings": 64,
    },
    "reformer": {
        "axial_pos_shape": (8, 8), "axial_pos_embds_dim": (16, 16), "attn_layers": ["local", "lsh"], "num_buckets": 2,
        "feed_forward_size": 48, "attention_head_size": 8, "is_decoder": True, "max_position_embeddings": 64,
        "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4, "hash_seed": 0,
    },
    "roc_bert": {
        "pronunciation_vocab_size": 64, "pronunciation_embed_dim": 8, "shape_vocab_size": 64, "shape_embed_dim": 8,
    },
    **{
        kind: {
            "speech_encoder_intermediate_size": 48, "speech_encoder_layers": 2, "feature_projection_input_dim": 8,
            "speech_encoder_attention_heads": 4, "t2u_vocab_size": 32, "t2u_encoder_ffn_dim": 48,
            "t2u_decoder_ffn_dim": 48, "t2u_encoder_layers": 1, "t2u_decoder_layers": 1,
            "t2u_encoder_attention_heads": 4, "t2u_decoder_attention_heads": 4, "upsample_initial_channel": 32,
            "unit_hifi_gan_vocab_size": 32, "unit_embed_dim": 16, "lang_embed_dim": 8, "spkr_embed_dim": 8,
            "char_vocab_size": 32,
        }
        for kind in ("seamless_m4t", "seamless_m4t_v2")
    },
    "speecht5": {
        "speaker_embedding_dim": 8, "speech_decoder_prenet_units": 16, "speech_decoder_postnet_units": 16,
        "speech_decoder_prenet_layers": 2, "speech_decoder_postnet_layers": 2,
    },
    "splinter": {"question_token_id": 49},
    "squeezebert": {"embedding_size": 32},
    "vits": {
        "upsample_initial_channel": 32, "flow_size": 32, "spectrogram_bins": 16, "noise_scale": 0.0,
        "noise_scale_duration": 0.0, "duration_predictor_filter_channels": 32,
    },
    "wav2vec2-bert": {"feature_projection_input_dim": 8},
    **{
        kind: {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "embedding_size": 8, "groups_width": 4}
        for kind in ("convnext", "convnextv2", "resnet", "regnet")
    },
    "gemma3n_text": {
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 61, "laurel_rank": 8,
        "layer_types": ["sliding_attention", "full_attention"], "activation_sparsity_pattern": [0.5, 0.0],
    },
    "gemma3n_audio": {
        "input_feat_size": 16, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 2,
        "sscp_conv_channel_size": (8, 4), "conf_attention_chunk_size": 4, "conf_attention_context_left": 3,
    },
    "gemma4_text": {"vocab_size_per_layer_input": 61, "hidden_size_per_layer_input": 8, "global_head_dim": 16},
    "gemma4_audio": {
        "subsampling_conv_channels": (8, 4), "output_proj_dims": 32, "attention_chunk_size": 4,
        "attention_context_left": 3,
    },
    "gemma4_vision": {"position_embedding_size": 16, "pooling_kernel_size": 2},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [24, 16], "moe_num_experts": 4, "moe_k": 2, "mlp_layer_types": ["dense", "sparse"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [1, 1, 2]},
    },
    "cohere_compass_text": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 9000.0, "mrope_section": [2, 1, 1]},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 1, 1]},
        },
        "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5,
    },
    "hunyuan_vl_vision": {"num_key_value_heads": 4, "max_image_size": 32, "img_max_token_num": 16},
    "mistral4": {
        "num_key_value_heads": 4, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "head_dim": 16, "v_head_dim": 8,
    },
    "pix2struct_vision_model": {"seq_len": 16, "d_kv": 8, "d_ff": 48, "patch_embed_hidden_size": 48},
    "bros": {"dim_bbox_sinusoid_emb_2d": 32, "dim_bbox_sinusoid_emb_1d": 4, "dim_bbox_projection": 8},
    "lxmert": {"visual_feat_dim": 16, "l_layers": 1, "x_layers": 1, "r_layers": 1},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_encoder": {"dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "xclip_vision_model": {"num_frames": 3},
    "longcat_flash": {"n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 2},
    "zamba2": {
        "layers_block_type": ["mamba", "hybrid", "hybrid"], "hybrid_layer_ids": [1, 2], "num_hidden_layers": 3,
    },
    "qwen2_5_omni_audio_encoder": {"n_window": 4, "output_dim": 32},
    "qwen3_omni_moe_audio_encoder": {
        "n_window": 4, "output_dim": 32, "n_window_infer": 16, "downsample_hidden_size": 8, "conv_chunksize": 4,
    },
    "qwen2_5_omni_talker": {"embedding_size": 32},
    "qwen2_5_omni_vision_encoder": {"window_size": 16},
    "janus_vqgan": {
        "base_channels": 32, "channel_multiplier": [1, 1], "latent_channels": 32, "num_embeddings": 8, "embed_dim": 8,
        "num_res_blocks": 1, "projection_dim": 32, "image_token_embed_dim": 32,
    },
    "emu3": {"vocabulary_map": {"<image>": 50, **{f"<|visual token {one:06d}|>": 20 + one for one in range(8)}}},
    "emu3_vqgan": {
        "codebook_size": 8, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1, 1],
        "num_res_blocks": 1, "attn_resolutions": [4],
    },
}  # fmt: skip
"""Options by the type of the configuration, or of a part."""
FURTHER_SECTIONED = ("glm_image", "qwen2_5_omni_text", "qwen2_5_omni_talker", "qwen2_5_omni_thinker")
"""Further kinds of text whose rotary embeddings are of frames, rows and columns."""
OF_CLASSES: Mapping[str, Mapping[str, Any]] = {
    "Blip2TextModelWithProjection": {"use_qformer_text_input": True},
    "Blip2ForImageTextRetrieval": {"use_qformer_text_input": True},
    "ReformerForMaskedLM": {"is_decoder": False},
    "ReformerForQuestionAnswering": {"is_decoder": False},
    "ReformerForSequenceClassification": {"is_decoder": False},
    "T5GemmaEncoderModel": {"is_encoder_decoder": False},
    "FlaubertForQuestionAnsweringSimple": {"num_labels": 2},
}
"""Options of the parts of a configuration by the name of the class that it is for."""
LARGE, WIDTH = 64, 32
"""A whole number above the first is a size that a smaller configuration has no larger than the second."""
RICH: Mapping[str, Mapping[str, Any]] = {
    "seven layers": {
        "num_hidden_layers": 7, "layer_types": None, "no_rope_layers": None, "sliding_window": 4,
        "attention_chunk_size": 4, "use_sliding_window": True, "max_window_layers": 1, "mlp_layer_types": None,
    },
    "every second layer": {
        "num_hidden_layers": 4, "layer_types": None, "decoder_sparse_step": 2, "first_k_dense_replace": 1,
        "sliding_window_pattern": 2, "full_attention_interval": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1, "cross_attention_frequency": 2,
        "moe_layer_interval": 2, "moe_layer_start_index": 1, "interleave_moe_layer_step": 2, "sparse_step": 2,
        "mlp_layer_types": None, "num_kv_shared_layers": 2,
    },
    "experts in groups": {
        "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 2, "num_shared_experts": 2,
        "norm_topk_prob": True, "routed_scaling_factor": 1.7, "moe_num_shared_experts": 2, "is_moe": True,
        "enable_moe_block": True, "top_k_experts": 2, "num_experts": 4, "num_local_experts": 4, "moe_k": 2,
    },
    "a decoder with an encoder": {"is_decoder": True, "add_cross_attention": True},
    "a decoder": {"is_decoder": True},
    "sparse blocks": {"attention_type": "block_sparse", "block_size": 1, "num_random_blocks": 1},
    "normed after": {
        "normalize_before": False, "do_layer_norm_before": False, "pre_norm": True, "use_parallel_residual": False,
        "parallel_attn": False, "new_decoder_architecture": True, "alibi": True,
    },
}  # fmt: skip
"""Options that give a tiny model traits that the first one does not have; a configuration gets those that it knows."""


def _quiet(config: Any) -> None:
    """Give options of a small model, of every part, values that draw no random numbers."""
    for part in parts_of(config).values():
        own = {**NOISES, **FURTHER, **SMALL}
        for name, value in own.items():
            known = vars(part).get(name)
            if known is None or isinstance(known, bool) != isinstance(value, bool):
                continue
            if name == "layer_types" and "linear_attention" not in known:
                continue
            several = isinstance(known, (list, tuple)) and not isinstance(value, list)
            if not several and isinstance(value, list) != isinstance(known, (list, tuple)):
                continue
            setattr(part, name, [value] * len(known) if several else copy.copy(value))
        for name, value in vars(part).items():
            if isinstance(value, float) and ("drop" in name or "jitter" in name):
                setattr(part, name, 0.0)


def _of_two(config_class: Any) -> Any:
    """Return a configuration of an encoder and a decoder, both of the kind BERT."""
    from transformers.models.bert.configuration_bert import BertConfig

    parts = [small_config(BertConfig) for _ in range(2)]
    return config_class.from_encoder_decoder_configs(*parts)


def _shrink(config: Any) -> None:
    """Give every part of a configuration that refuses small sizes together each of them that it has."""
    renamed = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": START}
    for part in parts_of(config).values():
        for name, value in {**OF_PARTS, **renamed}.items():
            known = vars(part).get(name)
            if (
                isinstance(known, int)
                and isinstance(value, int)
                and isinstance(known, bool) == isinstance(value, bool)
            ):
                setattr(part, name, value)


def parts_of(config: Any) -> dict[str, Any]:
    """Return a configuration by the empty name, and its parts by theirs, those of parts behind a dot."""
    found = {"": config}
    for name, value in vars(config).items():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            found |= {f"{name}.{inner}".rstrip("."): one for inner, one in parts_of(value).items()}
    return found


def class_config(config_class: type[Any]) -> Any:
    """Return a small configuration of a class, that of its family of causal models where the table has one.

    Raises:
        Exception: the configuration refuses these sizes.
    """
    kind = getattr(config_class, "model_type", "")
    row = FAMILIES.get(kind)
    plain_family = (
        row is not None and not row.has_parts and not row.labels_in_place and row.since != DECODER.since
    )
    if plain_family:
        try:
            return type("OfClasses", (CausalFamily,), {"family": kind})()._config()
        except Exception:  # noqa: BLE001  the release has it as no causal model
            pass
    try:
        config = _of_two(config_class) if kind == "encoder-decoder" else small_config(config_class)
    except Exception:  # noqa: BLE001  it refuses these sizes, so it keeps its own
        config = config_class()
        _shrink(config)
    for name, part_class in (getattr(config_class, "sub_configs", None) or {}).items():
        if name not in vars(config) and part_class.__name__ != "AutoConfig":
            setattr(config, name, small_config(part_class))  # releases of 4 take some parts as mappings alone
    _quiet(config)
    if row is not None:
        for name, value in row.options.items():
            text = config.get_text_config()
            setattr(text if hasattr(text, name) else config, name, copy.deepcopy(value))
    for part in parts_of(config).values():
        for name, value in KINDS.get(part.model_type, {}).items():
            setattr(part, name, copy.deepcopy(value))
    if kind.endswith("encoder-decoder"):
        config.decoder.is_decoder, config.decoder.add_cross_attention = True, True
        config.decoder_start_token_id, config.pad_token_id = START, PAD
    text = config.get_text_config()
    rotary = "mrope_section" in str(text.to_dict()) or text.model_type.startswith(
        (*SECTIONED, *FURTHER_SECTIONED)
    )
    if (
        rotary
        and hasattr(text, "num_attention_heads")
        and not kind.endswith(("_vision", "_encoder"))
        and "rope_parameters" not in KINDS.get(text.model_type, {})
    ):
        _set_sections(text)
    return config


def for_class(config: Any, options: Mapping[str, Any]) -> Any:
    """Return a configuration after options were set in each part that has them."""
    for part in parts_of(config).values():
        for name, value in options.items():
            if hasattr(part, name):
                setattr(part, name, value)
    return config


def smaller_configs(config_class: type[Any]) -> Iterator[Any]:
    """Yield further small configurations of a class whose first one makes no model, or too large a one."""
    kind = getattr(config_class, "model_type", "")
    if kind in FAMILIES:
        with suppress(Exception):  # no causal model
            yield type("OfClasses", (CausalFamily,), {"family": kind})()._config()
    config = class_config(config_class)
    for part in parts_of(config).values():
        own = KINDS.get(part.model_type, {})
        for name, value in vars(part).items():
            whole = isinstance(value, int) and not isinstance(value, bool) and value > LARGE
            if (
                name not in own
                and whole
                and not name.endswith(("_id", "_index", "_positions", "_embeddings"))
            ):
                setattr(part, name, VOCABULARY if "vocab" in name else WIDTH)
    yield config


Options = tuple[str, Mapping[str, Any]]
"""The part that has the options, and the options."""


def options_of(config: Any) -> Mapping[str, Options]:
    """Return by name the options at other values of a configuration and its parts."""
    found: dict[str, Options] = {}
    for place, part in parts_of(config).items():
        known = part.to_dict()
        row = FAMILIES.get(part.model_type)
        try:
            variants = variants_of(type(part), part, row.options if row else {})
        except Exception:  # noqa: BLE001  its rotary embeddings are no ordinary ones, or sizes differ by layer
            variants = structures_of(type(part), part)
        for one in variants:
            if not one.trains:
                found[f"{place} {one.name}".strip()] = (place, one.options)
        for name, values in OF_PICTURES.items():
            for value in values:
                if name in known and known[name] != value:
                    found[f"{place} {name}={value}".strip()] = (place, {name: value})
        for name, given in RICH.items():
            own = {option: value for option, value in given.items() if option in known}
            if any(known[option] != value for option, value in own.items() if value is not None):
                found[f"{place} {name}".strip()] = (place, own)
    return found


def with_option(config: Any, option: Options) -> Any:
    """Return a copy of a configuration with options of a part at other values, after what its class computes of them.

    Raises:
        Exception: the configuration refuses them.
    """
    place, options = option
    config = copy.deepcopy(config)
    steps: Sequence[str] = place.split(".") if place else []
    holder, part = None, config
    for step in steps:
        holder, part = part, getattr(part, step)
    given = part.to_dict()
    if any(value is None for value in options.values()) or "num_hidden_layers" in options:
        given = {
            name: value for name, value in given.items() if not name.startswith("_") and name != "model_type"
        }
        for name in ("transformers_version", "torch_dtype", "dtype", "architectures"):
            given.pop(name, None)
        part = type(part)(**{**given, **copy.deepcopy(dict(options))})
        if holder is not None:
            setattr(holder, steps[-1], part)
        return config if holder is not None else part
    for name, value in options.items():
        setattr(part, name, copy.deepcopy(value))
    return config
