"""Transformers' classes of options: configurations of every model, of generation and of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from packaging.version import Version

from seatrial.relations.contracts.configurations import OptionClass
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.option_classes import fields_of, option_class, reloaded
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.trainers import temporary_folder
from seatrial.targets.transformers.older_names import keywords_of, older_forms

NOTED = (
    "transformers_version", "model_type", "architectures", "dtype", "torch_dtype", "_name_or_path",
    "_attn_implementation", "_attn_implementation_internal", "_from_model_config", "_commit_hash",
)  # fmt: skip
"""What an object notes about where it was made."""
OF_OTHERS = (
    "AutoformerConfig.cardinality", "AutoformerConfig.embedding_dimension", "AXK2Config.head_dim",
    "BailingHybridConfig.head_dim", "Blip2Config.is_encoder_decoder",
    "BltGlobalTransformerConfig.tie_word_embeddings", "BltLocalDecoderConfig.tie_word_embeddings",
    "BltPatcherConfig.tie_word_embeddings", "DeepseekOcr2TextConfig.head_dim", "DeepseekV2Config.head_dim",
    "DeepseekV32Config.head_dim", "DoryConfig.num_hidden_layers", "DoryConfig.n_input_layers",
    "DoryConfig.n_output_layers", "Dots3NoteAudioConfig.num_key_value_heads", "Dots3NoteAudioConfig.head_dim",
    "Glm5NextTextConfig.head_dim", "GlmMoeDsaConfig.head_dim", "HrmTextConfig.num_hidden_layers",
    "HunYuanVLConfig.tie_word_embeddings", "HYV4Config.num_key_value_heads", "HYV4Config.head_dim",
    "HYV4VLTextConfig.num_key_value_heads", "HYV4VLTextConfig.head_dim", "InformerConfig.cardinality",
    "InformerConfig.embedding_dimension", "LongT5Config.tie_word_embeddings", "MiniCPM3Config.head_dim",
    "MistralLarge4TextConfig.head_dim", "MT5Config.tie_word_embeddings", "MusicgenConfig.is_encoder_decoder",
    "MusicgenMelodyConfig.is_encoder_decoder", "PaddleOCRVLConfig.tie_word_embeddings",
    "Pop2PianoConfig.tie_word_embeddings", "RadioConfig.patch_dim",
    "Sam3TrackerVideoConfig.memory_attention_rope_feat_sizes", "ShieldGemma2Config.tie_word_embeddings",
    "Step3p7VisionConfig.intermediate_size", "T5Gemma2Config.eoi_token_index",
    "TimeSeriesTransformerConfig.cardinality", "TimeSeriesTransformerConfig.embedding_dimension",
    "UdopConfig.tie_word_embeddings", "UnlimitedOcrTextConfig.head_dim", "ViltConfig.tie_word_embeddings",
)  # fmt: skip
"""Options that a class makes of others, counts, or has one value of."""
WINDOWED = (
    "DeepseekOcr2VisionEncoderConfig", "Qwen2Config", "Qwen2MoeConfig", "Qwen2_5OmniTalkerConfig",
    "Qwen2_5OmniTextConfig", "Qwen2_5_VLTextConfig", "Qwen2VLTextConfig", "Qwen3Config", "Qwen3MoeConfig",
)  # fmt: skip
"""Classes whose window needs a switch."""
OTHER_NAMES = "Transformers: older names of options that are ignored"
WHOLE = (
    "ApertusConfig.rope_theta", "Apertus1p5TextConfig.rope_theta", "CwmConfig.rope_theta",
    "HiggsAudioV2Config.rope_theta", "Ministral3Config.rope_theta", "Mistral4Config.rope_theta",
    "Mistral4Config.partial_rotary_factor", "MistralLarge4TextConfig.rope_theta", "MoonshineStreamingConfig.rope_theta",
    "MoonshineStreamingConfig.partial_rotary_factor", "MuseSparkTextConfig.rope_theta",
    "Nemotron3_5TranscribeAsrAudioConfig.rope_theta", "Nemotron3_5TranscribeAsrAudioConfig.partial_rotary_factor",
    "Nemotron3_5TranscribeWordTimestampConfig.rope_theta",
    "Nemotron3_5TranscribeWordTimestampConfig.partial_rotary_factor",
)  # fmt: skip
"""Older rotary options of classes whose default gives all of them."""
OWN_NAMES = tuple(
    f"{name}.{option}"
    for name in ("GPTNeoXConfig", "GPTNeoXJapaneseConfig")
    for option in ("rope_theta", "rope_theta+rope_scaling", "partial_rotary_factor")
)
"""Older rotary options that files of a class have by other names."""
OWN_FORMS = (
    "BridgeTowerConfig.text_config_dict", "BridgeTowerConfig.vision_config_dict",
    "CohereCompassTextConfig.sliding_window_pattern", "ConditionalDetrConfig.output_stride",
    "CsmDepthDecoderConfig.tie_word_embeddings", "DeepseekV4Config.compress_ratios", "DetrConfig.output_stride",
    "Dots3NoteAudioConfig.whisper_adapter_in_dim", "Dots3NoteAudioConfig.whisper_config",
    "Dots3NoteTextConfig.swa_qk_rope_head_dim", "Dots3NoteVisionConfig.embed_dim", "Dots3NoteVisionConfig.is_causal",
    "DPTConfig.backbone", "FSMTConfig.decoder", "Gemma4TextConfig.num_global_key_value_heads",
    "Gemma4UnifiedTextConfig.num_global_key_value_heads", "Glm5NextTextConfig.linear_attn_config",
    "Inkling2LoopTextConfig.loop_config", "InklingConfig.mtp_config", "MiniMaxM3VLTextConfig.moe_layer_freq",
    "MiniMaxM3VLTextConfig.sparse_attention_config", "SarvamMLAConfig.q_head_dim",
    "Step3p7TextConfig.attention_other_setting", "Step3p7TextConfig.moe_layer_freq",
    "Step3p7TextConfig.sparse_attention_config", "TableTransformerConfig.output_stride",
    "UltrabertConfig.attention_windows",
)  # fmt: skip
"""Arguments that a class drops, or that act in a form of their own."""
IGNORED = (
    *(f"FlaubertConfig.{name}_index" for name in ("bos", "eos", "pad")),
    *(f"CohereCompassTextConfig.{name}" for name in ("rope_theta", "rope_theta+rope_scaling")),
    "Step3p7TextConfig.num_local_experts",
)
DOCUMENTED = "Transformers: documented defaults of models"
OTHERWISE = (
    "AlignVisionConfig.hidden_dim", "BigBirdPegasusConfig.use_bias", "BltConfig.patching_threshold",
    "BltLocalEncoderConfig.cross_attn_all_layers", "Data2VecAudioConfig.num_conv_pos_embeddings",
    "DebertaV2Config.relative_attention", "DeepseekV32Config.n_group", "ElectraConfig.summary_last_dropout",
    "Exaone4_5_VisionConfig.window_size", "FlaubertConfig.embed_init_std", "FlaubertConfig.lang_id",
    "Gemma3nVisionConfig.architecture", "Gemma3nVisionConfig.do_pooling",
    "Gemma4AudioConfig.attention_invalid_logits_value", "GlmOcrVisionConfig.out_hidden_size",
    "GraniteMoeSharedConfig.shared_intermediate_size", "HiggsAudioV2TokenizerConfig.target_bandwidths",
    "KimiLinearConfig.n_group", "LEDConfig.max_decoder_position_embeddings",
    "NllbMoeConfig.normalize_router_prob_before_dropping", "NllbMoeConfig.batch_prioritized_routing",
    "PegasusXConfig.num_global_tokens", "PPOCRV6TinyRecConfig.head_out_channels",
    "Qwen2_5OmniDiTConfig.block_size", "Qwen2_5OmniVisionEncoderConfig.window_size",
    "Qwen2_5_VLVisionConfig.tokens_per_second", "Qwen2_5_VLVisionConfig.window_size",
    "ReformerConfig.local_attention_probs_dropout_prob", "ReformerConfig.lsh_attention_probs_dropout_prob",
    "RegNetConfig.downsample_in_first_stage", "Sapiens2Config.key_bias", "Sapiens2Config.use_gated_mlp",
    "Sapiens2Config.num_register_tokens", "XLMConfig.embed_init_std", "XLMConfig.lang_id",
    "YosoConfig.use_fast_hash",
)  # fmt: skip
"""Options whose documentation names another default; of three it names a rounded one or an expression."""
TRAINING = ("TrainingArguments", "Seq2SeqTrainingArguments")
FIRST = Version("5.20")
FINDING = "Transformers: use_mambapy of FalconMamba"
ALLOWED: Mapping[str, Mapping[str, str]] = {
    "kept": {
        **dict.fromkeys(OF_OTHERS, "the class makes it of other options"),
        **dict.fromkeys((f"{name}.sliding_window" for name in WINDOWED), "off without use_sliding_window"),
        **dict.fromkeys((f"{name}.dataloader_pin_memory" for name in TRAINING), "it is off without a device"),
        **dict.fromkeys(
            (f"{name}.local_rank" for name in TRAINING), "releases of 4 read it from the launcher"
        ),
        **dict.fromkeys((f"{name}.include_num_input_tokens_seen" for name in TRAINING), "True means all"),
        **dict.fromkeys((f"{name}.tpu_metrics_debug" for name in TRAINING), "releases of 4 move it to debug"),
        "FalconMambaConfig.use_mambapy": f"docs/evidence/findings.md, {FINDING}",
    },
    "loaded": {
        **dict.fromkeys(
            ("MoshiConfig.audio_vocab_size", "MoshiConfig.depth_decoder_config"),
            "the first is made of the second in a reload",
        ),
        **dict.fromkeys(
            (f"{name}.rope_parameters" for name in ("CohereCompassTextConfig", "Mistral4Config")),
            f"docs/evidence/findings.md, {OTHER_NAMES}",
        ),
        "DbrxConfig.ffn_config": "a reload makes it of the width by its other name",
    },
    "older": {
        **dict.fromkeys(WHOLE, "the class gives its rotary options as a whole"),
        **dict.fromkeys(OWN_NAMES, "files of the class have other names"),
        **dict.fromkeys(
            (
                "BambaConfig.partial_rotary_factor",
                "CohereCompassTextConfig.partial_rotary_factor",
                "Qwen2VLTextConfig.partial_rotary_factor",
                "Qwen2_5_VLTextConfig.partial_rotary_factor",
            ),
            "the rotated part of a head is fixed",
        ),
        **dict.fromkeys(IGNORED, f"docs/evidence/findings.md, {OTHER_NAMES}"),
    },
    "keywords": dict.fromkeys(OWN_FORMS, "the class drops it, or it acts in a form of its own"),
    "documented": {
        **dict.fromkeys(OTHERWISE, f"docs/evidence/findings.md, {DOCUMENTED}"),
        **dict.fromkeys((f"{name}.optim" for name in TRAINING), "the text has one for each release of torch"),
    },
}
"""Options that a law leaves out, by `Class.option`, with the reason or the finding."""


def _options(value: Any) -> dict[str, Any]:
    return {name: one for name, one in value.to_dict().items() if name not in NOTED}


class ModelConfigurations(KnowsFailures):
    """Configurations of every model of the release."""

    thorough = True

    def __init__(self) -> None:
        """Look at the release: before, options of models are no fields of their classes."""
        if Version(release("transformers")) < FIRST:
            raise Gone(f"options of models are no fields in transformers {release('transformers')}")

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        mapping = find_name("transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"])
        found: dict[str, OptionClass] = {}
        for kind in mapping:
            made: Any = mapping[kind]
            one = option_class(made, options=_options, reload=reloaded)
            if one is not None:
                own = one.options(made())
                older, keywords = older_forms(made, own), keywords_of(made, own)
                found.setdefault(one.name, replace(one, older=older, keywords=keywords))
        return list(found.values())

    def options_allowed(self, law: str) -> Mapping[str, str]:
        return ALLOWED.get(law, {})


class TrainingConfigurations(KnowsFailures):
    """Options of generation and of training."""

    thorough = True

    @cached_property
    def option_classes(self) -> Sequence[OptionClass]:
        import transformers

        folder = temporary_folder()
        arguments: dict[str, Any] = {"output_dir": str(folder), "use_cpu": True, "report_to": "none"}
        made = [
            option_class(transformers.GenerationConfig, options=_options, reload=reloaded),
            option_class(transformers.TrainingArguments, options=fields_of, **arguments),
            option_class(transformers.Seq2SeqTrainingArguments, options=fields_of, **arguments),
        ]
        return [one for one in made if one is not None]

    def options_allowed(self, law: str) -> Mapping[str, str]:
        allowed = ALLOWED.get(law, {})
        if law == "loaded" and Version(release("transformers")) < Version("5"):
            return {**allowed, "GenerationConfig.all": "options that exclude one another are not saved"}
        return allowed


ADAPTERS: dict[str, type[Any]] = {
    "configurations-of-models": ModelConfigurations,
    "configurations-of-training": TrainingConfigurations,
}
