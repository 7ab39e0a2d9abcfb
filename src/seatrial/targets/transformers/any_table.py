"""Kinds of base models that the laws judge, forms that they lack by design, and known failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seatrial.targets.common.known import KnownFailure, before, since

KINDS: Sequence[str] = (
    "aimv2", "aimv2_vision_model", "albert", "altclip", "aria", "audio-spectrogram-transformer",
    "audioflamingo3", "aya_vision", "bart", "beit", "bigbird_pegasus", "blenderbot", "blenderbot-small", "blip",
    "blip-2", "canary", "canine", "chinese_clip", "chinese_clip_vision_model", "clip", "clip_text_model",
    "clip_vision_model", "clipseg", "cohere2_vision", "cohere_asr", "convbert", "cosmos3_edge",
    "cosmos3_edge_text", "cosmos3_omni", "cpmant", "data2vec-audio", "data2vec-vision", "deberta", "deberta-v2",
    "deepseek_v4", "deepseek_vl", "deepseek_vl_hybrid", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit",
    "dpt", "esm", "eurobert", "evolla", "exaone4_5", "fastspeech2_conformer", "flava", "fnet", "focalnet",
    "fsmt", "funnel", "fuyu", "gemma3", "git", "glmasr", "glmasr_encoder", "glpn", "got_ocr2",
    "granite_docling", "granite_docling_text", "groupvit", "gte", "higgs_audio_v2", "hubert", "hy_v4_vl",
    "hy_v4_vl_text", "hyperclovax_vision_v2", "ibert", "idefics2", "idefics3", "idefics3_vision", "ijepa",
    "imagegpt", "inkling2_loop_text", "inkling2_text", "inkling_text", "internvl", "internvl_vision",
    "jina_embeddings_v3", "kosmos-2.5", "lasr_ctc", "lasr_encoder", "layoutlm", "levit", "lfm2_vl",
    "lighton_ocr", "llava", "llava_next", "llava_next_video", "llava_onevision", "longformer", "longt5",
    "m2m_100", "marian", "markuplm", "mbart", "metaclip_2", "mimi_encoder", "minimax_m3_vl", "mistral3", "mlcd",
    "mlcd_vision_model", "mllama", "mobilebert", "mobilenet_v1", "mobilenet_v2", "mobilevit", "modernbert",
    "modernvbert", "molmo2_text", "moonshine", "moshi", "moss_transcribe_diarize",
    "moss_transcribe_diarize_audio", "mpnet", "mra", "mt5", "muse_glimmer_text", "muse_spark_text",
    "musicflamingo", "mvp", "nemotron3_5_asr", "nemotron3_5_transcribe_asr_audio",
    "nemotron3_diarization_audio", "nemotron_asr_streaming", "nemotron_asr_streaming_encoder", "nllb-moe",
    "nomic_bert", "nystromformer", "omniasr", "omniasr_audio", "omniasr_ctc", "openai_privacy_filter", "ovis2",
    "owlv2", "owlvit", "paligemma", "parakeet_ctc", "parakeet_encoder", "parakeet_rnnt", "parakeet_tdt",
    "patchtsmixer", "patchtst", "pe_audio", "pe_audio_encoder", "pegasus", "pegasus_x", "phi4_multimodal",
    "pixio", "plbart", "pocket_tts_audio_tokenizer_encoder", "poolformer", "pp_ocrv6_small_rec",
    "pp_ocrv6_tiny_rec", "prophetnet", "qianfan_ocr", "qianfan_ocr_vision", "qwen2_audio",
    "qwen2_audio_encoder", "qwen3_asr", "qwen3_omni_moe_thinker", "qwen3_vl", "qwen3_vl_moe",
    "qwen3_vl_moe_text", "qwen3_vl_text", "radio", "sam3_lite_text_text_model", "sam3_vision_model",
    "sam3_vit_model", "sam_hq_vision_model", "sam_vision_model", "sapiens2", "segformer", "sew", "sew-d",
    "siglip", "siglip_vision_model", "smolvlm", "smolvlm_vision", "splinter", "step3p7", "swiftformer",
    "switch_transformers", "t5", "t5gemma", "t5gemma2", "tapas", "textnet", "timesformer",
    "tipsv2", "tipsv2_text_model", "tipsv2_vision_model", "ultrabert", "ultravbert", "umt5", "unispeech",
    "unispeech-sat", "unlimited_ocr", "video_llama_3", "video_llava", "videomae", "vilt", "vipllava",
    "vision-text-dual-encoder", "visual_bert", "vit", "vit_mae", "vit_msn", "vitdet", "voxtral",
    "voxtral_encoder", "voxtral_realtime_encoder", "wav2vec2", "wav2vec2-conformer", "wavlm",
    "wavtokenizer_encoder", "whisper", "xlnet", "yoso",
)  # fmt: skip
"""By the type of the configuration: of base models without a tiny causal model among the families."""
BY_DESIGN: Mapping[tuple[str, str], str] = {
    **dict.fromkeys(
        [
            (kind, "padded")
            for kind in (
                "canine",
                "convbert",
                "fastspeech2_conformer",
                "funnel",
                "mobilebert",
                "nystromformer",
                "yoso",
                "fnet",
            )
        ],
        "its convolutions, parts or neighbours of places reach over the end of a row",
    ),
    ("fsmt", "uncached"): "with a cache its decoder gets one id at a time, and makes no mask",
    **dict.fromkeys(
        [("voxtral", "resized"), ("glmasr", "resized")],
        "its model has a head in early releases, whose logits become more",
    ),
    ("cpmant", "resized"): "ids of its prompts follow those of the vocabulary",
    ("deepseek_v4", "embedded"): "its experts are chosen by ids",
    **dict.fromkeys([("flava", "tuple"), ("poolformer", "tuple")], "its tuple has a place for what is None"),
    **dict.fromkeys(
        [("sapiens2", "training"), ("dinov3_vit", "training")], "positions are drawn in training"
    ),
    ("qwen3_omni_moe_thinker", "padded"): "the small configuration has no ids of pictures",
    ("ibert", "embedded"): "its table gives a scale with each row",
    ("longformer", "embedded"): "its window is longer than the small model's positions",
}
"""Why a kind has no such form, by kind and form."""
AIMV2_SEES_ALL = KnownFailure(
    "a text without a mask is read in both directions", "Transformers: AIMv2 texts without a mask"
).of("R5.base/a mask of ones")
ESM_SCALE = KnownFailure(
    "ids alone are scaled for token dropout", "Transformers: embeddings that ESM is given"
).of("R5.base/embeddings in place of ids")
CANINE_NAN = KnownFailure("a mask overflows float32", "Transformers: CANINE in float64").of("R5.base/float64")
WINDOW = KnownFailure("the model writes into its configuration", "Transformers: the window of Longformer").of(
    "R5.base/inputs and options stay"
)
DOWN_OPS = KnownFailure(
    "making a model appends to an option", "Transformers: an option that LeViT appends to"
).of("R5.base/inputs and options stay")
GIT_CACHE = KnownFailure(
    "the second pass appends to the cache",
    "Transformers: GIT with activations computed again",
    since("transformers", "5"),
).of("R5.base/gradients of activations computed again")
PALIGEMMA_SEES_ALL = KnownFailure(
    "scaled dot-product attention without types of tokens sees later ones",
    "Transformers: PaliGemma's attention",
    since("transformers", "5.9"),
).of("R5.base/scaled dot-product attention")
SMALL = KnownFailure(
    "a crash, or outputs that are left out",
    "Transformers: small functions of older releases",
    before("transformers", "5"),
)
FAILURES: Sequence[tuple[KnownFailure, Sequence[str]]] = (
    (SMALL.of("R5.base/without a cache", "R5.base/gradients of activations computed again"), ("imagegpt",)),
    (SMALL.of("R5.base/outputs as a tuple"), ("patchtsmixer",)),
    (SMALL.of("R5.base/inputs and options stay"), ("vision-text-dual-encoder",)),
    (PALIGEMMA_SEES_ALL, ("paligemma",)),
    (AIMV2_SEES_ALL, ("aimv2",)),
    (ESM_SCALE, ("esm",)),
    (CANINE_NAN, ("canine",)),
    (WINDOW, ("longformer",)),
    (DOWN_OPS, ("levit",)),
    (GIT_CACHE, ("git",)),
)
"""Known failures with the kinds that have them."""
