"""Options of families that a law is not about, by design, and options whose failures are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.targets.common.known import Releases, before, every_release

NOT_JUDGED = (
    "lfm2", "lfm2_moe", "megatron-bert", "mellum", "mimo_v2_flash", "minimax", "ministral3", "nanochat", "olmo",
    "olmo_hybrid", "persimmon", "rembert", "roformer", "rwkv", "solar_open", "vaultgemma", "xlm-roberta", "afmoe",
    "apertus1p5_text", "axk1", "bert-generation", "big_bird", "cohere2_moe", "data2vec-text", "deepseek_v32", "ernie",
    "exaone", "flint", "gpt-sw3", "granite_swa", "granitemoe_swa", "hrm_text", "hy_v3", "hy_v4", "hyperclovax",
    "internlm3", "jais2", "kolibri1", "laguna", "lara_mini", "minicpm3", "minimax_m3_vl_text", "nemotron_h",
    "roberta-prelayernorm", "roc_bert", "sarvam_mla", "sarvam_moe", "xlm-roberta-xl",
    "axk2", "glm_moe_dsa", "bailing_hybrid", "kimi_linear", "qwen4_exp_text", "qwen4_exp", "qwen3_5", "qwen3_5_moe",
    "lfm3", "dory", "zamba", "zamba2", "zaya", "xlm", "xmod", "deepseek_v4", "dots3_note_text", "gemma4_text",
    "gemma4_unified_text", "cohere_compass_text", "inkling_text", "dbrx", "gemma3n_text", "bart", "bigbird_pegasus",
    "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart", "trocr", "whisper", "emu3",
    "fuyu", "gemma3", "got_ocr2", "llama4", "mllama", "moss_transcribe_diarize", "moshi",
)  # fmt: skip
"""Families of whose options sizes alone are judged: what fails with the others is not known yet."""
OF_SIZES = ("right", "left", "sdpa", "sdpaleft", "from the cache", "saved", "loss", "checkpointed")
"""Laws of these families' sizes."""
BY_LENGTH = ("right", "left", "sdpaleft", "from the cache", "packed eager", "packed sdpa")
PACKED = ("packed eager", "packed sdpa")
RECURRENT = (
    "bamba", "falcon_h1", "granitemoehybrid", "jamba", "lfm2", "lfm2_moe", "minimax", "olmo_hybrid", "qwen3_5_moe_text",
    "qwen3_5_text", "qwen3_next", "recurrent_gemma",
)  # fmt: skip
"""Families whose layers carry a state from one row to the next where rows are laid end to end."""
ACTS_ELSEWHERE: Mapping[str, str] = {
    "add_cross_attention": "there is no encoder",
    "attention_softmax_in_fp32": "float32 already",
    "aux_loss_coef": "acts on the loss of routers, which is off",
    "moe_norm_min": "a floor that no weight reaches",
    "pretraining_tp": "other slices of the same sums, or nothing since it was deprecated",
    "reorder_and_upcast_attn": "float32 already",
    "rescale_every": "scales what is scaled back",
    "residual_in_fp32": "float32 already",
    "router_aux_loss_coef": "acts on the loss of routers, which is off",
    "scale_attention_softmax_in_fp32": "float32 already",
    "slow_but_exact": "another order of the same sums",
    "use_associative_scan": "another order of the same sums",
    "use_mambapy": "another order of the same sums",
    "z_loss_coefficient": "acts on the loss of routers, which is off",
}
"""Options that change no logits in evaluation mode, float32 and one process, by their documentation."""
OF_FAMILIES: Mapping[tuple[str, str], str] = {
    **{
        ("beam", option): "no layer of the tiny model has it"
        for option in (
            "moe_intermediate_size",
            "n_group",
            "norm_topk_prob",
            "num_experts",
            "num_experts_per_tok",
            "rope_theta",
            "rope_type",
            "routed_scaling_factor",
        )
    },
    ("deepseek_v2", "n_group"): "the choice of groups is another option",
    **{
        (family, "mamba_chunk_size"): "another order of the same sums"
        for family in ("bamba", "falcon_h1", "granitemoehybrid")
    },
    ("falcon_h1", "mamba_expand"): "the tiny model's width is given by another option",
    ("falcon_h1", "mamba_norm_before_gate"): "the tiny model has no such norm",
    **{
        ("granitemoehybrid", option): "the tiny model has no rotary embeddings"
        for option in ("rope_theta", "rope_type")
    },
    ("dots1", "sliding_window"): "no layer of the tiny model slides",
    ("doge", "norm_topk_prob"): "the tiny model has no experts",
    ("doge", "num_experts"): "the tiny model has no experts",
    ("doge", "num_experts_per_tok"): "the tiny model has no experts",
    ("gpt_oss", "hidden_act"): "the activation of its experts is fixed",
    ("llama4_text", "layer_types"): "chunks of the tiny model are longer than its rows",
    ("modernbert-decoder", "local_attention"): "the tiny model's window is given by another option",
    ("phimoe", "num_experts_per_tok"): "its router always chooses two",
    ("phimoe", "router_jitter_noise"): "it is a threshold of its router in evaluation too",
    ("recurrent_gemma", "attention_window_size"): "the tiny model's window is given by another option",
}
"""The same of single families."""


@dataclass(frozen=True, kw_only=True)
class OptionFailure:
    """A known failure of an option."""

    families: Sequence[str]
    option: str
    """How the names of its values begin; empty: any option, and the tiny model itself."""
    laws: Sequence[str]
    finding: str
    """The heading in docs/evidence/findings.md."""
    releases: Releases = every_release


PACKED_ROWS = "Transformers: flattened rows in a BERT that decodes"
CHUNKS = "Transformers: chunked attention and flattened rows"
STEP_LIMITS = "Transformers: limits of time steps in the cache"
STATE_BIAS = "Transformers: padding and a bias before the convolution"
NO_PADDING_ROW = "Transformers: the embedding of padding in a loaded Youtu"
TWICE = "Transformers: ALiBi in Falcon's eager attention"
MIXED = "Transformers: the router of Doge mixes tokens"
TEMPERATURES = "Transformers: temperatures of attention in Llama 4"
SCALES = "Transformers: scales of attention in GPT-2"
IGNORED = "Transformers: options that are ignored"
SLIDES = "Transformers: the sliding window of PhiMoE"
SHARED_KEYS = "Transformers: keys that Gemma 3n shares"
COUNTS = "Transformers: losses of heads that ignore the count of items"
SMALL = "Transformers: small functions of older releases"


OLD, TO_5_0 = before("transformers", "5"), before("transformers", "5.1")
OF_SDPA = ("sdpa", "sdpaleft", "from the cache", "sdpa gradient", "packed sdpa", "acts")
WHOLE = (*OF_SIZES, *PACKED, "items", "acts", "sdpa gradient")
"""The laws that a model breaks that cannot be made or called."""


def _fails(
    families: str, option: str, laws: Sequence[str], finding: str, releases: Releases = every_release
) -> OptionFailure:
    return OptionFailure(
        families=tuple(families.split()), option=option, laws=laws, finding=finding, releases=releases
    )


FAILURES: Sequence[OptionFailure] = (
    _fails("gpt_oss xglm openai-gpt", "", ("packed eager",), PACKED_ROWS),
    _fails("opt bert roberta biogpt camembert electra", "", PACKED, PACKED_ROWS),
    _fails("mamba2 granitemoehybrid falcon_h1 bamba", "time_step_limit", ("from the cache",), STEP_LIMITS),
    _fails("mamba falcon_mamba mamba2", "use_bias", ("from the cache",), STATE_BIAS),
    _fails(
        "granitemoehybrid falcon_h1 bamba jamba",
        "mamba_proj_bias",
        ("sdpaleft", "from the cache"),
        STATE_BIAS,
    ),
    _fails("recurrent_gemma", "", ("sdpaleft", "from the cache"), STATE_BIAS),
    _fails("doge", "is_moe", (*BY_LENGTH, "sdpa", "loss"), MIXED),
    _fails("youtu", "tie_word_embeddings", ("saved",), NO_PADDING_ROW),
    _fails("falcon", "alibi", ("sdpa", "sdpaleft", "from the cache", "sdpa gradient", "packed sdpa"), TWICE),
    *(_fails("llama4_text", option, BY_LENGTH, TEMPERATURES) for option in ("attn_scale", "floor_scale")),
    *(
        _fails("llama4_text", option, PACKED, CHUNKS, before("transformers", "5.23"))
        for option in ("attention_chunk_size", "layer_types")
    ),
    _fails(
        "gemma3n_text",
        "num_kv_shared_layers",
        ("from the cache",),
        SHARED_KEYS,
        before("transformers", "5.6"),
    ),
    _fails("gpt2", "scale_attn_", OF_SDPA, SCALES, OLD),
    _fails("mamba2", "rms_norm=", ("acts",), IGNORED, OLD),
    _fails("falcon", "attention_dropout", ("trains",), IGNORED),
    _fails("gemma3_text", "attn_logit_softcapping", ("acts",), IGNORED),
    _fails("gemma3_text", "use_bidirectional_attention", ("saved",), IGNORED, TO_5_0),
    _fails("mamba falcon_mamba", "", ("items",), COUNTS, before("transformers", "5.17")),
    _fails("gemma gemma2", "use_bidirectional_attention", ("acts", "sdpa"), IGNORED),
    _fails("deepseek_v2", "norm_topk_prob", ("acts",), IGNORED),
    _fails("biogpt", "layer_norm_eps", ("acts",), IGNORED),
    _fails("phi3", "embd_pdrop", ("trains",), IGNORED),
    _fails("llama4_text", "router_jitter_noise", ("trains",), IGNORED),
    _fails("mpt", "emb_pdrop", ("trains",), IGNORED),
    _fails("mpt", "resid_pdrop", ("trains",), IGNORED),
    *(
        _fails("mpt", option, ("acts",), IGNORED)
        for option in ("embedding_fraction", "learned_pos_emb", "logit_scale", "no_bias", "norm_type")
    ),
)

OLDER: Sequence[OptionFailure] = (
    _fails(
        "codegen falcon gpt_neo gpt_neox_japanese gptj granitemoe granitemoeshared jetmoe nemotron olmoe phimoe "
        "qwen2_moe stablelm",
        "",
        PACKED,
        PACKED_ROWS,
        OLD,
    ),
    _fails("apertus", "", ("saved",), SMALL, OLD),
    *(_fails("deepseek_v2", option, ("acts",), IGNORED, OLD) for option in ("aux_loss_alpha", "seq_aux")),
    _fails("doge", "is_moe", ("checkpointed", "sdpa gradient", "items", "acts", "saved"), SMALL, OLD),
    _fails("doge", "sliding_window=None", ("sdpa",), SMALL, OLD),
    _fails("falcon_h1", "mamba_rms_norm", ("from the cache",), SMALL, OLD),
    _fails("gemma2", "attn_logit_softcapping", ("acts",), IGNORED, OLD),
    _fails("jamba", "sliding_window", ("acts",), IGNORED, OLD),
    *(
        _fails("jetmoe", option, WHOLE, SMALL, OLD)
        for option in ("num_experts_per_tok", "num_key_value_heads")
    ),
    _fails("modernbert-decoder", "", ("items",), COUNTS, OLD),
    *(
        _fails("modernbert-decoder", option, ("acts",), IGNORED, OLD)
        for option in ("local_rope_theta", "layer_types")
    ),
    _fails("olmo3", "rope_type", ("acts",), IGNORED, OLD),
    _fails("opt", "layer_norm_elementwise_affine", WHOLE, SMALL, OLD),
    _fails("gpt_neox_japanese", "rotary_pct", ("from the cache",), SMALL, OLD),
    _fails("phi", "rope_type=longrope", ("from the cache",), SMALL, OLD),
    _fails("phi", "partial_rotary_factor", ("from the cache",), SMALL, OLD),
    _fails("phimoe", "", ("from the cache",), SLIDES, OLD),
    _fails("phimoe", "rope_type", WHOLE, SMALL, OLD),
    *(
        _fails("qwen2_moe", option, ("from the cache",), SLIDES, OLD)
        for option in ("sliding_window", "use_sliding")
    ),
    *(_fails("stablelm", option, WHOLE, SMALL, OLD) for option in ("partial_rotary_factor", "qk_layernorm")),
)
"""Of 4.57, and not of the newest."""


def why_excluded(family: str, law: str, name: str) -> str | None:
    """Return why a law is not about an option of a family, by the library's design."""
    if "rope_type=dynamic" in name and law in BY_LENGTH:
        return "frequencies are those of the longest row of a batch"
    if family in NOT_JUDGED and law not in OF_SIZES:
        return "sizes are judged by other laws"
    if family in RECURRENT and law in PACKED:
        return "a state continues from row to row"
    if "use_bidirectional_attention=True" in name and law == "from the cache":
        return "an id sees those after it"
    if law in ("acts", "trains"):
        option = name.partition("=")[0]
        if family == "gemma3_text" and option in ("rope_theta", "rope_type") and TO_5_0(None):
            return "layers of the tiny model slide, which have a base of their own"
        return ACTS_ELSEWHERE.get(option) or OF_FAMILIES.get((family, option))
    return None


def failures_of(adapter: Any, law: str) -> Mapping[str, str]:
    """Return the findings by the beginnings of options, of those with which a law fails on the installed release."""
    return {
        known.option: known.finding
        for known in (*FAILURES, *OLDER)
        if adapter.family in known.families and law in known.laws and known.releases(adapter)
    }
