"""Families of causal language models that the laws judge: options of a tiny model, and what a family does not serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.transformers.family_failures import (
    BEFORE_THE_NORM,
    BEYOND_THE_WINDOW,
    CHUNKS_RESTART,
    COUNTED_PLACES,
    DROPPED_KEYS,
    IN_PASSES,
    MASKED_ZERO,
    NO_CAP,
    NO_ROUTER_LOSS,
    NO_SCALE,
    NO_TUPLE,
    OLD_GOES_ON,
    OLD_PASSES,
    OLD_STATES_STAY,
    OTHER_MASKS,
    PADDED_PASSES,
    PROBABILITIES,
    READ_AGAIN,
    READ_AGAIN_SINCE_5_4,
    SCORES_FOR_LOGITS,
    STATE_RESTARTS,
    STATES_STAY,
    STATIC_PLACES,
    STATIC_WINDOWS,
)

SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "head_dim": 8,
    "sliding_window": 4,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "ffn_dim": 48,
    "is_decoder": True,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "state_size": 8,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "use_cache": True,
}
"""Of a configuration that has an option of the name."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family by the name of its configuration."""

    options: Mapping[str, Any] = field(default_factory=dict)
    not_served: Mapping[str, str] = field(default_factory=dict)
    """By `padding`, `padding on the left`, a form of decoding or of a call: why the family does not serve it."""
    without: Sequence[str] = ()
    """Names in `SIZES` that it is not given."""
    since: str = "4"
    """The first release whose family the adapter fits."""
    quick: bool = False
    """Whether every run judges it."""
    has_parts: bool = False
    """Whether its configuration has those of a vision or audio model and of a text model in it."""
    labels_in_place: bool = False
    """Whether its loss compares the logits of a place with the label of the same place."""
    known: Sequence[KnownFailure] = ()


NO_ROUTERS = ("routers by argument", "routers by configuration", "logits of routers")
STATES_ARE_NOT_CHOSEN = dict.fromkeys(
    ("rows of a cache chosen", "a cache repeated"), "an error is raised: its states stay as they are"
)
PROPORTIONAL = {"places by a factor": "a part of a head is turned with proportional frequencies alone"}
NORMED_QUERIES = {"scale of attention": "its queries are normed, and not scaled"}
NORMED_FIRST = {"the first state": "embeddings are normed before the first layer"}
NO_CHUNKS = {"a chunked prompt": "prompts are not read in chunks"}
STATES = Family(not_served=NO_CHUNKS)
MLA = Family(options={"num_key_value_heads": 4})
"""Latent attention, with as many heads of keys as of queries."""
LINEAR = Family(options={"layer_types": ["linear_attention", "full_attention"]})
"""A linear layer and one with attention."""
DECODINGS = (
    "from the cache",
    "from a static cache",
    "without a cache",
    "a chunked prompt",
    "in two passes",
)
"""Forms of decoding."""
INDEXED = {"num_key_value_heads": 4, "head_dim": 8, "index_head_dim": 16, "index_n_heads": 2}
"""Latent attention to places that an index chooses, all of them in rows of few ids."""
DECODER = Family(
    since="5", not_served={"padding on the left": "places are counted with padding"}, labels_in_place=True
)
"""The decoder of an encoder-decoder, by itself."""
INDEXED_LINEAR = Family(
    options={
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 64,
        "indexer_compress_ratio": 4,
        **LINEAR.options,
    },
    not_served={"the first state": "it has several streams"},
)
"""A linear layer and one with attention to blocks that an index chooses."""
FAMILIES: Mapping[str, Family] = {
    "llama": Family(quick=True),
    "qwen2": Family(quick=True),
    "qwen3": Family(quick=True),
    "gemma3_text": Family(quick=True),
    "gpt2": Family(quick=True),
    "mistral": Family(),
    "qwen3_moe": Family(quick=True, known=(PROBABILITIES,)),
    "gpt_oss": Family(known=(SCORES_FOR_LOGITS,)),
    "mamba": replace(
        STATES,
        not_served={**NO_CHUNKS, "in float16": "states of the tiny model leave the range"},
        known=(STATE_RESTARTS, READ_AGAIN, OLD_STATES_STAY),
    ),
    "falcon_mamba": replace(STATES, known=(STATE_RESTARTS, READ_AGAIN, OLD_STATES_STAY)),
    "mamba2": replace(
        STATES,
        options={"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8},
        known=(READ_AGAIN, OLD_STATES_STAY),
    ),
    "aria_text": Family(known=(NO_TUPLE,)),
    "beam": Family(not_served={"places by a factor": "places scale attention too"}),
    "biogpt": Family(known=(COUNTED_PLACES, BEFORE_THE_NORM)),
    "bloom": Family(),
    "codegen": Family(options={"rotary_dim": 4}),
    "gptj": Family(options={"rotary_dim": 4}),
    "ctrl": Family(options={"dff": 48}, since="5"),
    "gpt_neo": Family(
        options={"attention_types": [[["global", "local"], 1]], "window_size": 4, "num_layers": 2},
        known=(STATIC_WINDOWS,),
    ),
    "modernbert-decoder": Family(
        options={"bos_token_id": 2, "cls_token_id": 2, "sep_token_id": 2}, not_served=NORMED_FIRST
    ),
    "opt": Family(not_served={"scale of attention": "its queries are scaled before attention"}),
    "nanochat": Family(
        not_served={**NORMED_FIRST, "turned queries": "it turns the other way, as the code that it was trained with"}
    ),
    "hy_v4": Family(not_served={"the first state": "it has several streams"}),
    "dots1": Family(known=(MASKED_ZERO,)),
    "glm4_moe": Family(known=(MASKED_ZERO,)),
    "mpt": Family(known=(NO_SCALE,)),
    "cwm": Family(options={"bos_token_id": 2}),
    "deepseek_v2": MLA,
    "deepseek_v3": replace(MLA, known=(MASKED_ZERO,)),
    "glm4_moe_lite": MLA,
    "axk1": MLA,
    "deepseek_v32": MLA,
    "minicpm3": MLA,
    "sarvam_mla": MLA,
    "youtu": MLA,
    "longcat_flash": replace(MLA, since="5"),
    "granitemoehybrid": Family(options={"layer_types": ["mamba", "attention"]}, known=(OLD_GOES_ON,)),
    "jamba": Family(
        options={"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
        known=(CHUNKS_RESTART,),
    ),
    "recurrent_gemma": replace(
        STATES,
        options={"block_types": ("recurrent", "attention")},
        since="5",
        known=(READ_AGAIN_SINCE_5_4, STATES_STAY.of("R5.cached/beams")),
    ),
    "qwen3_next": replace(LINEAR, known=(OLD_PASSES.of(IN_PASSES, PADDED_PASSES), OLD_GOES_ON, PROBABILITIES)),
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": replace(LINEAR, known=(PROBABILITIES,)),
    "falcon_h1": Family(
        options={"mamba_d_ssm": 32, "mamba_n_heads": 4},
        not_served=STATES_ARE_NOT_CHOSEN,
    ),
    "bamba": Family(
        options={"attn_layer_indices": [1]},
        not_served={"turned queries": "its first layer has no attention"},
        known=(OLD_GOES_ON,),
    ),
    "lfm2_moe": Family(options={"layer_types": ["conv", "full_attention"]}),
    "phimoe": Family(known=(BEYOND_THE_WINDOW,)),
    "minimax": Family(
        not_served=NO_CHUNKS,
        known=(OLD_PASSES.of(PADDED_PASSES), STATES_STAY.of("R5.cached/reordered", "R5.cached/beams"), PROBABILITIES),
    ),
    "llama4_text": Family(known=(NO_ROUTER_LOSS,)),
    "flint": Family(
        not_served={
            **dict.fromkeys(NO_ROUTERS, "the tiny model has no experts"),
            "turned queries": "its first layer has no rotary embeddings",
        }
    ),
    "xglm": Family(
        known=(
            OLD_PASSES.of(
                PADDED_PASSES,
                *(
                    f"R5.cached/{law}"
                    for law in ("one by one", "reordered", "rows chosen", "repeated", "copied")
                ),
            ),
            OTHER_MASKS,
        )
    ),
    "doge": Family(not_served=dict.fromkeys(NO_ROUTERS, "the tiny model has no experts")),
    "openai-gpt": Family(not_served=NO_CHUNKS, since="5"),
    "roc_bert": Family(since="5"),
    "xlm-roberta-xl": Family(since="5"),
    "rwkv": Family(not_served={**NO_CHUNKS, "padding": "padding changes the state, as there is no mask"}),
    "axk2": Family(options=INDEXED),
    "glm_moe_dsa": Family(options=INDEXED),
    "bailing_hybrid": Family(
        options={"num_key_value_heads": 4, **LINEAR.options},
        not_served={"yarn by larger queries": "linear layers have projections of queries too"},
    ),
    "kimi_linear": Family(
        options={"num_key_value_heads": 4, "linear_num_heads": 4, "linear_head_dim": 8, **LINEAR.options}
    ),
    "qwen4_exp_text": INDEXED_LINEAR,
    "lfm3": Family(
        options={"layer_types": ["conv", "full_attention"]},
        not_served=PROPORTIONAL,
    ),
    "dory": Family(
        options={
            "num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1,
        },
        not_served={"places in a window": "layers are run several times"},
    ),
    "zamba": Family(
        since="4.57", known=(OLD_GOES_ON,), options={
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
            "num_hidden_layers": 3,
            "attention_hidden_size": 64, "attention_head_dim": 16,
            "use_mamba_kernels": False, "num_key_value_heads": 4,
        },
        without=("head_dim",),
        not_served={"scale of attention": "it scales by half of a head's size"},
    ),
    "zamba2": Family(
        since="5", options={
            "layers_block_type": ["mamba", "hybrid", "hybrid"],
            "num_hidden_layers": 3, "use_mamba_kernels": False, "num_key_value_heads": 4,
            "adapter_rank": 8, "chunk_size": 8, "use_mem_rope": True,
        },
        without=("head_dim",),
        not_served={"scale of attention": "it scales by half of a head's size"},
    ),
    "zaya": Family(
        options={"num_experts_per_tok": 1, "router_hidden_size": 16}, not_served=STATES_ARE_NOT_CHOSEN
    ),
    "moshi": Family(since="5", known=(DROPPED_KEYS,)),
    "xlm": Family(
        since="5", options={"causal": True},
        not_served={
            "padding on the left": "places are counted with padding",
            **dict.fromkeys(DECODINGS, "it predicts the id of a mask that is put after the row"),
        },
        labels_in_place=True,
    ),
    "xmod": Family(since="4.57", options={"languages": ["en_XX"], "default_language": "en_XX"}),
    "deepseek_v4": Family(
        options={
            "layer_types": ["compressed_sparse_attention", "heavily_compressed_attention"],
            "mlp_layer_types": ["moe", "moe"],
        },
        not_served={
            "padding on the left": "ids are compressed in blocks that count padding",
            "from a static cache": "an error is raised",
            "the first state": "it has several streams",
            **dict.fromkeys(
                ("places by a factor", "turned queries"), "compressed places have a base of their own"
            ),
            "logits of routers": "they are scores",
        },
    ),
    "dots3_note_text": Family(
        options={
            **INDEXED, "shared_experts_intermediate_size": 16, "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4, "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_head_dim": 16,
            "swa_qk_nope_head_dim": 8, "swa_v_head_dim": 8,
            "layer_types": ["indexed_attention", "sliding_attention"],
        },
        not_served={"yarn by larger queries": "layers that slide are not scaled"},
    ),
    "gemma4_text": Family(
        options={
            "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 61, "global_head_dim": 16,
        },
        not_served={**NORMED_QUERIES, **PROPORTIONAL, "more ids": "ids have embeddings of each layer too"},
    ),
    "gemma4_unified_text": Family(
        options={"layer_types": ["sliding_attention", "full_attention"], "global_head_dim": 16},
        not_served={**NORMED_QUERIES, **PROPORTIONAL},
    ),
    "cohere_compass_text": Family(
        options={"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}
    ),
    "inkling_text": Family(
        not_served={"scale of attention": "it scales by a head's size", **STATES_ARE_NOT_CHOSEN},
        known=(STATIC_PLACES,),
    ),
    "dbrx": Family(
        since="4.57", options={
            "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64,
            "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        },
    ),
    "gemma3n_text": Family(
        since="5", options={
            "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 61, "laurel_rank": 8,
            "activation_sparsity_pattern": None,
        },
        not_served={
            **dict.fromkeys(("the first state", "the last state"), "it has several streams"),
            **NORMED_QUERIES,
        },
    ),
    **dict.fromkeys(("flex_olmo", "mixtral", "olmoe", "qwen2_moe"), Family(known=(PROBABILITIES,))),
    **dict.fromkeys(
        (
            "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus",
            "plbart", "trocr",
        ),
        DECODER,
    ),
    "whisper": replace(
        DECODER,
        not_served={**DECODER.not_served, "scale of attention": "its queries are scaled before attention"},
    ),
    **{
        name: Family(has_parts=True, since="5")
        for name in ("emu3", "fuyu", "got_ocr2", "mllama", "moss_transcribe_diarize")
    },
    "gemma3": Family(has_parts=True, since="5", known=(NO_CAP,)),
    "llama4": Family(has_parts=True, since="5", known=(NO_ROUTER_LOSS,)),
    **{name: replace(LINEAR, has_parts=True, since="5") for name in ("qwen3_5", "qwen3_5_moe")},
    "qwen4_exp": replace(
        INDEXED_LINEAR,
        options={**INDEXED_LINEAR.options, "layer_types": ["linear_attention", "indexed_attention"]},
        has_parts=True, since="5",
    ),
    **{
        name: Family()
        for name in (
            "apertus", "arcee", "bert", "bitnet", "camembert", "cohere", "cohere2", "diffllama", "electra", "ernie4_5",
            "ernie4_5_moe", "exaone4", "exaone_moe", "falcon", "gemma", "gemma2", "glm", "glm4", "gpt_bigcode",
            "gpt_neox", "gpt_neox_japanese", "granite", "granitemoe", "granitemoeshared", "helium", "hunyuan_v1_dense",
            "hunyuan_v1_moe", "iquestcoder", "jetmoe", "lfm2", "megatron-bert", "mellum", "mimo_v2_flash", "minimax_m2",
            "ministral", "ministral3", "nemotron", "olmo", "olmo2", "olmo3", "olmo_hybrid", "persimmon", "phi", "phi3",
            "rembert", "roberta", "roformer", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2",
            "vaultgemma", "xlm-roberta", "afmoe", "apertus1p5_text", "bert-generation", "big_bird", "cohere2_moe",
            "data2vec-text", "ernie", "exaone", "gpt-sw3", "granite_swa", "granitemoe_swa", "hrm_text", "hy_v3",
            "hyperclovax", "internlm3", "jais2", "kolibri1", "laguna", "lara_mini", "minimax_m3_vl_text", "nemotron_h",
            "roberta-prelayernorm", "sarvam_moe",
        )
    },
}  # fmt: skip
"""By the type of the configuration. Others that a release has are uncovered, and are named so."""
