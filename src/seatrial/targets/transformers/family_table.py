"""Families of causal language models that the laws judge: options of a tiny model, and what a family does not serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from seatrial.targets.common.known import KnownFailure, before

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
    """By `padding`, a form of decoding or of a call: why the family does not serve it."""
    without: Sequence[str] = ()
    """Names in `SIZES` that it is not given."""
    since: str = "4"
    """The first release whose family the adapter fits."""
    quick: bool = False
    """Whether every run judges it."""
    known: Sequence[KnownFailure] = ()


NO_ROUTERS = ("routers by argument", "routers by configuration", "logits of routers")
NORMED_FIRST = {"the first state": "embeddings are normed before the first layer"}
NO_CHUNKS = {"a chunked prompt": "prompts are not read in chunks"}
IN_PASSES, PADDED_PASSES = "R5.family/in two passes", "R5.family/in two passes, padded on the left"
CHUNKS_RESTART = KnownFailure(
    "each chunk of a prompt begins with an empty state of the recurrent layers",
    finding="Transformers: chunked prompts of Jamba",
).of(
    "R5.family/decoded after a chunked prompt",
    IN_PASSES,
    PADDED_PASSES,
    "R5.cached/generation that continues",
)
STATE_RESTARTS = KnownFailure(
    "several ids that are given with a state begin with an empty one",
    finding="Transformers: several ids after a state of Mamba",
).of(IN_PASSES, PADDED_PASSES)
OLD_PASSES = KnownFailure(
    "several ids that are given with a cache are computed otherwise than in one pass",
    finding="Transformers: several ids after a state of Mamba",
    releases=before("transformers", "5"),
)
STATIC_WINDOWS = KnownFailure(
    "a mask of other places than those of the keys in a static cache",
    finding="Transformers: a static cache of GPT-Neo",
).of("R5.family/decoded from a static cache")
BEYOND_THE_WINDOW = KnownFailure(
    "a query in the cache sees other keys than in the whole row once a row is longer than the window",
    finding="Transformers: the sliding window of PhiMoE",
    releases=before("transformers", "5"),
).of(
    "R5.family/decoded from the cache",
    "R5.family/decoded from the cache, padded on the left",
    "R5.family/decoded from the cache, scaled dot-product attention",
    "R5.family/decoded after a chunked prompt",
    IN_PASSES,
    *(
        f"R5.cached/{law}"
        for law in ("one by one", "reordered", "rows chosen", "repeated", "copied", "beams")
    ),
    "R5.cached/generation that continues",
)
COUNTED_PLACES = KnownFailure(
    "the place of a row's last id is the number of ids that are no padding, on whichever side padding is",
    finding="Transformers: rows that BioGPT classifies",
    releases=before("transformers", "5.24"),
).of("R5.family/classes of rows padded on the left", "R5.family/classes of rows padded on the right")
NO_TUPLE = KnownFailure(
    "a crash where outputs are to be a tuple",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of("R5.calls/outputs as a tuple")
GOES_ON = "R5.cached/generation that continues"
READ_AGAIN = KnownFailure(
    "`generate` reads the ids that a given state holds again, or begins with an empty state",
    finding="Transformers: generation that continues from a state",
).of(GOES_ON)
OLD_GOES_ON = KnownFailure(
    "`generate` reads the new ids otherwise than in one pass after a cache of its own",
    finding="Transformers: generation that continues from a state",
    releases=before("transformers", "5"),
).of(GOES_ON)
OLD_STATES_STAY = KnownFailure(
    "states stay with their place in the batch while beams change theirs",
    finding="Transformers: beams of MiniMax and RecurrentGemma",
    releases=before("transformers", "5"),
).of("R5.cached/beams")
STATES_STAY = KnownFailure(
    "states stay with their place in the batch while beams change theirs",
    finding="Transformers: beams of MiniMax and RecurrentGemma",
)
NO_ROUTER_LOSS = KnownFailure(
    "the loss of routers is never added",
    finding="Transformers: options that are ignored",
).of("R5.calls/loss of routers", "R5.calls/loss of routers by configuration")
NO_SCALE = KnownFailure(
    "the scale of logits is ignored", finding="Transformers: options that are ignored"
).of("R5.calls/head by definition")
OTHER_MASKS = KnownFailure(
    "a mask of truth values or numbers is taken for another one",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of("R5.calls/masks of other types")
BEFORE_THE_NORM = KnownFailure(
    "the last of all hidden states is the one before the last norm",
    finding="Transformers: small functions of older releases",
    releases=before("transformers", "5"),
).of("R5.calls/the last hidden state")
STATES = Family(not_served=NO_CHUNKS)
MASKED_ZERO = KnownFailure(
    "experts of groups that are not chosen have a score of 0, which is above the negative ones of those chosen",
    finding="Transformers: experts of other groups",
    releases=before("transformers", "5"),
).of("R5.calls/experts by definition")
SCORES_FOR_LOGITS = KnownFailure(
    "weights of experts are given as the logits of routers",
    finding="Transformers: logits of GPT-OSS's routers",
    releases=before("transformers", "5"),
).of("R5.calls/logits of routers")
MLA = Family(options={"num_key_value_heads": 4})
"""Latent attention, with as many heads of keys as of queries."""
LINEAR = Family(options={"layer_types": ["linear_attention", "full_attention"]})
"""A linear layer and one with attention."""
FAMILIES: Mapping[str, Family] = {
    "llama": Family(quick=True),
    "qwen2": Family(quick=True),
    "qwen3": Family(quick=True),
    "gemma3_text": Family(quick=True),
    "gpt2": Family(quick=True),
    "mistral": Family(),
    "qwen3_moe": Family(quick=True),
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
        known=(READ_AGAIN, STATES_STAY.of("R5.cached/beams")),
    ),
    "qwen3_next": replace(LINEAR, known=(OLD_PASSES.of(IN_PASSES, PADDED_PASSES), OLD_GOES_ON)),
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": LINEAR,
    "falcon_h1": Family(
        options={"mamba_d_ssm": 32, "mamba_n_heads": 4},
        not_served=dict.fromkeys(
            ("rows of a cache chosen", "a cache repeated"), "an error is raised: its states stay as they are"
        ),
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
        known=(OLD_PASSES.of(PADDED_PASSES), STATES_STAY.of("R5.cached/reordered", "R5.cached/beams")),
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
    "doge": Family(
        not_served=dict.fromkeys(NO_ROUTERS, "the tiny model has no experts")
    ),
    "openai-gpt": Family(not_served=NO_CHUNKS, since="5"),
    "roc_bert": Family(since="5"),
    "xlm-roberta-xl": Family(since="5"),
    "rwkv": Family(not_served={**NO_CHUNKS, "padding": "padding changes the state, as there is no mask"}),
    **{
        name: Family()
        for name in (
            "apertus", "arcee", "bert", "bitnet", "camembert", "cohere", "cohere2",
            "diffllama", "electra", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon",
            "flex_olmo", "gemma", "gemma2", "glm", "glm4", "gpt_bigcode", "gpt_neox",
            "gpt_neox_japanese", "granite", "granitemoe", "granitemoeshared", "helium", "hunyuan_v1_dense",
            "hunyuan_v1_moe", "iquestcoder", "jetmoe", "lfm2", "megatron-bert", "mellum",
            "mimo_v2_flash", "minimax_m2", "ministral", "ministral3", "mixtral", "nemotron",
            "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "persimmon", "phi", "phi3",
            "qwen2_moe", "rembert", "roberta", "roformer", "seed_oss", "smollm3", "solar_open", "stablelm",
            "starcoder2", "vaultgemma", "xlm-roberta", "afmoe", "apertus1p5_text", "bert-generation",
            "big_bird", "cohere2_moe", "data2vec-text", "ernie", "exaone", "gpt-sw3", "granite_swa",
            "granitemoe_swa", "hrm_text", "hy_v3", "hyperclovax", "internlm3", "jais2", "kolibri1", "laguna",
            "lara_mini", "minimax_m3_vl_text", "nemotron_h", "roberta-prelayernorm", "sarvam_moe",
        )
    },
}  # fmt: skip
"""By the type of the configuration. Others that a release has are uncovered, and are named so."""
