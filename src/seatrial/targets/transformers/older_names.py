"""Options of published checkpoints by their older names: which ones a class reads, and what they mean."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.contracts.configurations import OlderForm
from seatrial.relations.laws.options.configurations import other_value

KEYWORD = re.compile(r"""kwargs\.(?:pop|get)\(\s*["'](\w+)["']""")
"""A keyword argument that is no field, where a class reads it."""
WORDS = ("architectures", "dtype", "torch_dtype", "model_type", "out_features", "out_indices")
"""Keywords that do not describe the model."""
VALUES: Sequence[Any] = (
    2, 5, 1, 0.5, 0.75, True, False, "MM*M", [0], [4, 128], {"type": "linear", "factor": 2.0}, {"hidden_size": 96}, 10,
)  # fmt: skip
"""Values of keywords, of which one acts."""
BASE, PART = 5000.0, 0.375
LINEAR = {"type": "linear", "factor": 2.0}
KNOWN_LINEAR = {"rope_type": "linear", "factor": 2.0}
Pair = tuple[Mapping[str, Any], Mapping[str, Any]]
_WINDOWS = {"num_hidden_layers": 4}
_EVERY_SECOND = ["sliding_attention", "full_attention"] * 2
_LOCAL_AND_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    "full_attention": {"rope_type": "default", "rope_theta": BASE},
}
_OF_GPT_NEOX: Sequence[Pair] = (
    ({"rotary_pct": PART}, {"rope_parameters": {"partial_rotary_factor": PART}}),
    ({"rotary_emb_base": BASE}, {"rope_parameters": {"rope_theta": BASE}}),
)
_OF_GEMMA3: Sequence[Pair] = (
    ({**_WINDOWS, "sliding_window_pattern": 2}, {**_WINDOWS, "layer_types": _EVERY_SECOND}),
    ({"rope_local_base_freq": 500.0, "rope_theta": BASE}, {"rope_parameters": _LOCAL_AND_GLOBAL}),
)
_OF_MODERNBERT: Sequence[Pair] = (
    (
        {**_WINDOWS, "global_attn_every_n_layers": 2},
        {**_WINDOWS, "layer_types": ["full_attention", "sliding_attention"] * 2},
    ),
    ({"local_rope_theta": 500.0, "global_rope_theta": BASE}, {"rope_parameters": _LOCAL_AND_GLOBAL}),
)
_OF_HYBRIDS: Sequence[Pair] = (
    (
        {**_WINDOWS, "full_attention_interval": 2},
        {**_WINDOWS, "layer_types": ["linear_attention", "full_attention"] * 2},
    ),
)
_OF_DENSE_LAYERS: Sequence[Pair] = (
    (
        {**_WINDOWS, "first_k_dense_replace": 2},
        {**_WINDOWS, "mlp_layer_types": ["dense", "dense", "sparse", "sparse"]},
    ),
)
_OF_KIMI = {
    "head_dim": 64,
    "num_heads": 16,
    "short_conv_kernel_size": 3,
    "full_attn_layers": [2, 4],
    "kda_layers": [1, 3],
}
_OF_EXPERTS: Sequence[Pair] = (({"num_experts": 16}, {"n_routed_experts": 16}),)
_OF_LFM2: Sequence[Pair] = (({"tie_embedding": False}, {"tie_word_embeddings": False}),)
OLDER: Mapping[str, Sequence[Pair]] = {
    "minimax_m2": (
        ({"rotary_dim": 64, "head_dim": 128}, {"rope_parameters": {"partial_rotary_factor": 0.5}}),
    ),
    "gpt_neox": _OF_GPT_NEOX,
    "gpt_neox_japanese": _OF_GPT_NEOX,
    "gemma3_text": _OF_GEMMA3,
    "gemma3n_text": _OF_GEMMA3[1:],
    "modernbert": _OF_MODERNBERT,
    "modernbert-decoder": _OF_MODERNBERT,
    "cohere2": _OF_GEMMA3[:1],
    "qwen3_next": _OF_HYBRIDS,
    "qwen3_5_text": _OF_HYBRIDS,
    "qwen3_5_moe_text": _OF_HYBRIDS,
    "axk1": _OF_DENSE_LAYERS,
    "kimi_linear": (
        *_OF_DENSE_LAYERS,
        (
            {**_WINDOWS, "linear_attn_config": _OF_KIMI},
            {
                **_WINDOWS,
                "linear_head_dim": 64,
                "linear_num_heads": 16,
                "linear_conv_kernel_dim": 3,
                "layer_types": ["linear_attention", "full_attention"] * 2,
            },
        ),
    ),
    "cohere2_moe": _OF_DENSE_LAYERS,
    "deepseek_v32": _OF_EXPERTS,
    "glm_moe_dsa": _OF_EXPERTS,
    "lfm2": (*_OF_LFM2, ({"block_ff_dim": 640}, {"intermediate_size": 640})),
    "lfm2_moe": _OF_LFM2,
    "falcon": (({"n_embed": 142}, {"hidden_size": 142}),),
    "bloom": (({"n_embed": 96}, {"hidden_size": 96}),),
    "nemotron_h": (
        ({"mamba_d_conv": 3}, {"conv_kernel": 3}),
        ({"mamba_expand": 4}, {"expand": 4}),
        ({"mamba_n_groups": 4}, {"n_groups": 4}),
        ({"mamba_chunk_size": 64}, {"chunk_size": 64}),
        ({"mamba_dt_limit": [0.1, 0.5]}, {"time_step_limit": [0.1, 0.5]}),
        (
            {"hybrid_override_pattern": "M-*E"},
            {"layer_types": ["linear_attention", "mlp", "full_attention", "moe"]},
        ),
    ),
}
"""Older options of published checkpoints' `config.json` by type of model, and the same by the names of today."""


def older_forms(config_class: Any, options: Mapping[str, Any]) -> list[OlderForm]:
    """Return the older names of a class's options: other names of attributes, rotary options, and those of `OLDER`.

    Args:
        config_class: a class of configurations.
        options: its defaults.
    """
    pairs = [
        ({older: value}, {name: value})
        for older, name in getattr(config_class, "attribute_map", {}).items()
        if name in options and (value := other_value(name, options[name])) is not None
    ]
    own = OLDER.get(config_class.model_type, ())
    return [
        OlderForm(older=older, newer=newer)
        for older, newer in (*pairs, *_rotary(config_class, options), *own)
    ]


def _rotary(config_class: Any, options: Mapping[str, Any]) -> list[Pair]:
    """Return options of rotary embeddings as they were before `rope_parameters`, where all layers have the same."""
    current = options.get("rope_parameters")
    written = inspect.signature(config_class).parameters.get("rope_parameters")
    if written is None or not isinstance(current, Mapping):
        return []
    if any(isinstance(one, Mapping) for one in current.values()):
        return []
    scaled = {"rope_parameters": {**KNOWN_LINEAR, "rope_theta": BASE}}
    pairs: list[Pair] = [({"rope_theta": BASE, "rope_scaling": LINEAR}, scaled)]
    if written.default is None:
        pairs += [
            ({"rope_theta": BASE}, {"rope_parameters": {"rope_theta": BASE}}),
            ({"partial_rotary_factor": PART}, {"rope_parameters": {"partial_rotary_factor": PART}}),
        ]
    return pairs


def keywords_of(config_class: Any, options: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return values of the keyword arguments that a class reads and that are no options, by their names."""
    source = "".join(
        inspect.getsource(one)
        for one in config_class.__mro__
        if one.__module__.startswith("transformers.models.")
    )
    judged = {name for older, _ in OLDER.get(config_class.model_type, ()) for name in older}
    return {
        name: VALUES for name in sorted({*KEYWORD.findall(source)} - judged - {*WORDS}) if name not in options
    }
