"""Values of the options of a model's configuration, other than those of a tiny model, by their names and kinds."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from seatrial.targets.transformers.family_table import SIZES

NOT_OF_THE_MODEL = (
    "architectures", "dtype", "id2label", "is_decoder", "is_encoder_decoder", "label2id", "num_labels",
    "output_attentions", "output_hidden_states", "output_router_logits", "problem_type", "return_dict", "torch_dtype",
    "transformers_version", "use_cache", "attn_config", "init_device", "num_nextn_predict_layers", "num_mtp_layers",
)  # fmt: skip
"""Of inputs, outputs and heads, which laws of their own are about."""
OF_FRESH_WEIGHTS = (
    "classifier_", "embedding_initializer_range", "final_w_init", "init_", "initializer_", "linear_a_log_",
    "linear_dt_",
    "rescale_prenorm", "summary_", "time_step_floor", "time_step_init", "time_step_max", "time_step_min",
    "time_step_scale", "w_init",
)  # fmt: skip
"""Beginnings of the names of options of fresh weights, which the tiny model's are not, and of other heads."""
NUMBERS: Mapping[str, Sequence[Any]] = {
    "attention_chunk_size": [3],
    "attention_window_size": [3],
    "attn_logit_softcapping": [2.0, None],
    "block_size": [3],
    "chunk_size": [4],
    "clip_qkv": [0.5],
    "conv1d_width": [3],
    "conv_kernel": [3],
    "conv_L_cache": [4],
    "decoder_sparse_step": [2],
    "embedding_size": [24],
    "expert_layer_period": [1],
    "final_logit_softcapping": [2.0, None],
    "first_k_dense_replace": [0, 2],
    "floor_scale": [3],
    "full_attn_alpha_factor": [1.7],
    "full_attn_beta_factor": [1.7],
    "head_dim": [12],
    "interleave_moe_layer_step": [2],
    "keep_window_size": [3],
    "linear_attn_alpha_factor": [1.7],
    "linear_attn_beta_factor": [1.7],
    "linear_conv_kernel_dim": [3],
    "linear_num_key_heads": [1],
    "local_attention": [4],
    "logit_scale": [0.4],
    "logits_soft_cap": [2.0],
    "mamba_chunk_size": [4],
    "mamba_d_conv": [3],
    "mamba_expand": [4],
    "mlp_alpha_factor": [1.7],
    "mlp_beta_factor": [1.7],
    "mlp_only_layers": [[0]],
    "n_group": [2],
    "n_inner": [40],
    "n_shared_experts": [2],
    "no_rope_layer_interval": [2],
    "no_rope_layers": [[1, 0]],
    "norm_type": ["layer_norm"],
    "num_dense_layers": [1],
    "num_experts_per_tok": [1, 3],
    "num_key_value_heads": [1, 4],
    "num_kv_heads": [2],
    "num_ln_in_parallel_attn": [1],
    "num_shared_experts": [2],
    "pretraining_tp": [2],
    "q_lora_rank": [None],
    "query_pre_attn_scalar": [20],
    "rescale_every": [1],
    "sliding_window": [3, None],
    "swiglu_limit": [0.3],
    "time_step_limit": [(0.3, 0.7)],
    "topk_method": ["group_limited_greedy"],
    "use_bidirectional_attention": [True],
    "v_head_dim": [12],
    "word_embed_proj_dim": [24],
}
"""Of options whose kind does not say what a tiny model can have."""
STRUCTURE: Mapping[str, Sequence[Any]] = {
    "kv_lora_rank": [12],
    "linear_key_head_dim": [12],
    "linear_value_head_dim": [12],
    "mamba_d_state": [12],
    "mamba_n_groups": [2],
    "mamba_ngroups": [2],
    "mamba_num_heads": [8],
    "moe_intermediate_size": [24],
    "n_groups": [2],
    "n_routed_experts": [6],
    "num_experts": [6],
    "num_local_experts": [6],
    "qk_nope_head_dim": [12],
    "shared_expert_intermediate_size": [24],
    "state_size": [12],
}
"""Sizes that are 1, or equal to another one for which code may take them, in a tiny model."""
SHARED = "num_kv_shared_layers"
"""The number of last layers that have the keys and values of earlier ones."""
WITH: Mapping[str, Mapping[str, Any]] = {
    "n_group": {"topk_group": 1, "num_experts_per_tok": 2},
    "topk_method": {"n_group": 2, "topk_group": 1},
    "attn_scale": {"no_rope_layers": [1, 0], "floor_scale": 3},
    "attn_temperature_tuning": {"no_rope_layers": [1, 0], "floor_scale": 3},
    "floor_scale": {"no_rope_layers": [1, 0]},
    "sliding_window": {"use_sliding_window": True, "max_window_layers": 1, "no_rope_layers": [1, 0]},
    "use_sliding_window": {"max_window_layers": 1, "sliding_window": 3, "no_rope_layers": [1, 0]},
    "num_kv_heads": {"new_decoder_architecture": True},
    "num_ln_in_parallel_attn": {"new_decoder_architecture": True, "num_kv_heads": 2},
}
"""Options that come with another one, where the configuration has them."""
ROTARY: Mapping[str, Mapping[str, Any]] = {
    "linear": {"factor": 3.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8},
    "longrope": {"factor": 4.0, "original_max_position_embeddings": 2},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}
"""Kinds of scaled rotary embeddings, with their options; see `relations.oracles.rotary`."""
OWN_ROTARY: Mapping[str, Mapping[str, Any]] = {"alpha": {"rope_type": "dynamic", "factor": 1.0, "alpha": 8.0}}
"""Options of rotary embeddings that some families alone read, with the kind of scaling that they go with."""
ACTIVATIONS = ("relu", "silu", "gelu_new")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Options of a configuration that differ from the tiny model's."""

    name: str
    """As messages name it."""
    options: Mapping[str, Any]
    trains: bool = False
    """Whether it acts in training mode alone, as dropout does."""


def structures_of(config_class: type[Any], config: Any) -> list[Variant]:
    """Return a variant for each size of `STRUCTURE` that a configuration has at another value, and shared layers."""
    names, known = _annotations(config_class), config.to_dict()
    found = [
        Variant(name=f"{name}={value}", options={name: value})
        for name, values in STRUCTURE.items()
        for value in values
        if name in names and known.get(name) not in (None, value)
    ]
    kinds = known.get("layer_types")
    if SHARED in names and kinds:
        more = {"num_hidden_layers": 2 * len(kinds), "layer_types": [*kinds, *kinds]}
        found.append(Variant(name=f"{SHARED}={len(kinds)}", options={SHARED: len(kinds), **more}))
    return found


def variants_of(config_class: type[Any], config: Any, own: Mapping[str, Any]) -> list[Variant]:
    """Return a variant for each other value that an option of a configuration can have in a tiny model.

    Args:
        config_class: of the configuration.
        config: of the tiny model.
        own: options that the family's tiny model cannot do without, which are not varied.
    """
    known = config.to_dict()
    types_of = _annotations(config_class)
    found = []
    for name in sorted(types_of):
        if name in NOT_OF_THE_MODEL or name in own or name.startswith(("_", *OF_FRESH_WEIGHTS)):
            continue
        if name not in known or name.endswith(("_id", "_ids", "_tp_plan", "_pp_plan")):
            continue
        for value in _values(name, known[name], types_of[name]):
            if value is None and (_slides(config) or "use_sliding_window" in types_of):
                continue  # layers that slide need a window
            if name == "head_dim" and (hasattr(config, "qk_rope_head_dim") or config.model_type == "helium"):
                continue  # it is computed from other sizes
            more = {other: given for other, given in WITH.get(name, {}).items() if other in types_of}
            found.append(
                Variant(
                    name=f"{name}={_short(value)}",
                    options={**more, name: value},
                    trains="drop" in name or "jitter" in name,
                )
            )
    found += structures_of(config_class, config)
    return [*found, *_rotary(config, types_of), *_layers(config, types_of, own)]


def _slides(config: Any) -> bool:
    return "sliding_attention" in (getattr(config, "layer_types", None) or ())


def _annotations(config_class: type[Any]) -> dict[str, Any]:
    """Return the types by the names of a configuration's own options; None where a release gives no types."""
    return {
        name: None if parameter.annotation is inspect.Parameter.empty else parameter.annotation
        for name, parameter in inspect.signature(config_class).parameters.items()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    } | {"tie_word_embeddings": None}


def _values(name: str, value: Any, annotation: Any) -> Iterator[Any]:
    """Yield other values than the tiny model's."""
    if name in NUMBERS:
        yield from (other for other in NUMBERS[name] if other != value)
        return
    choices = _choices(annotation)
    if choices:
        yield from (choice for choice in choices if choice != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, str) and ("act" in name or name == "afn"):
        yield next(one for one in ACTIVATIONS if one != value)
    elif isinstance(value, float):
        if "drop" in name or "jitter" in name or "eps" in name:
            yield 0.5
        elif name in ("partial_rotary_factor", "rotary_pct") and value >= 1:
            yield 0.5  # a share
        elif value and name not in SIZES and name != "rope_theta":
            yield round(1.7 * value, 6)


def _choices(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a `Literal`, also where it is one of several types."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(value for one in get_args(annotation) for value in _choices(one))
    return ()


def _short(value: Any) -> str:
    return str(value).replace(" ", "")


def _rotary(config: Any, names: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield rotary embeddings of every kind of scaling, of another base, and of a part of each head."""
    later = isinstance(getattr(config, "rope_parameters", None), dict)
    if not later and "rope_scaling" not in names and "rope_theta" not in names:
        return
    current: Mapping[str, Any] = config.rope_parameters if later else {}
    # Between them 5.0 to 5.16 set options of no kind of layer, which models do not read.
    current = {key: value for key, value in current.items() if isinstance(value, dict)} or {"": current}

    def with_all(**more: Any) -> dict[str, Any]:
        """Return the parameters of each kind of layer with others."""
        found = {key: {**value, **more} for key, value in current.items()}
        return found.get("", found)

    if _rotated(config) <= 2:
        return  # one frequency, which no base or scaling of low ones changes
    if later:
        yield Variant(name="rope_theta=50", options={"rope_parameters": with_all(rope_theta=50.0)})
        if any("partial_rotary_factor" in value for value in current.values()):
            changed = with_all(partial_rotary_factor=0.5)
            if changed != config.rope_parameters:
                yield Variant(name="partial_rotary_factor=0.5", options={"rope_parameters": changed})
    elif "rope_theta" in names:
        yield Variant(name="rope_theta=50", options={"rope_theta": 50.0})
    if not later and "rope_scaling" not in names:
        return
    for kind, options in ROTARY.items():
        if kind not in ("linear", "dynamic") and not hasattr(config, "max_position_embeddings"):
            continue  # its formula needs the number of positions
        given = {"rope_type": kind, **options}
        if kind == "longrope":
            half = _rotated(config) // 2
            given["short_factor"] = [1.0 + place / 10 for place in range(half)]
            given["long_factor"] = [1.0 + place for place in range(half)]
        given_all = with_all(**given) if later else given
        # Frequencies of `dynamic` are other ones in rows that are longer than the embeddings' limit.
        short = {"max_position_embeddings": 4} if kind == "dynamic" else {}
        yield Variant(
            name=f"rope_type={kind}",
            options={**short, "rope_parameters" if later else "rope_scaling": given_all},
        )

    if later:
        for name in _own_rotary(config):
            yield Variant(name=f"rope_{name}", options={"rope_parameters": with_all(**OWN_ROTARY[name])})


def _own_rotary(config: Any) -> list[str]:
    """Return the options of its own that the rotary embeddings of a family read, by the code of its model."""
    place = type(config).__module__.replace("configuration_", "modeling_")
    try:
        source = inspect.getsource(importlib.import_module(place))
    except ImportError:
        return []
    return [name for name in OWN_ROTARY if f'rope_parameters["{name}"]' in source]


def _rotated(config: Any) -> int:
    """Return the number of places of a head that rotary embeddings turn."""
    if getattr(config, "qk_rope_head_dim", None):
        return int(config.qk_rope_head_dim)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = getattr(config, "rope_parameters", None) or {}
    part = parameters.get("partial_rotary_factor") or getattr(config, "partial_rotary_factor", None) or 1.0
    return int(size * part)


def _layers(config: Any, names: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield layers of other kinds, where a configuration lists them."""
    kinds = getattr(config, "layer_types", None)
    if "layer_types" not in names or "layer_types" in own or not isinstance(kinds, list):
        return
    known = set(kinds) | {"full_attention"}
    if getattr(config, "sliding_window", None) or "sliding_window" in names:
        known.add("sliding_attention")
    if "attention_chunk_size" in names:
        known.add("chunked_attention")
    if not known <= {"full_attention", "sliding_attention", "chunked_attention"}:
        return
    parameters = getattr(config, "rope_parameters", None)
    if isinstance(parameters, dict) and all(isinstance(value, dict) for value in parameters.values()):
        known &= set(parameters)
    others = sorted(known - {"full_attention"})
    for made in [
        ["full_attention"] * 2,
        *[
            pair
            for other in others
            for pair in ([other, "full_attention"], ["full_attention", other], [other] * 2)
        ],
    ]:
        if made != kinds:
            more: dict[str, Any] = {"use_sliding_window": True} if "use_sliding_window" in names else {}
            if not getattr(config, "sliding_window", None) and "sliding_window" in names:
                more["sliding_window"] = 4
            if "attention_chunk_size" in names:
                more["attention_chunk_size"] = 4
            short = ",".join(kind.partition("_")[0] for kind in made)
            yield Variant(name=f"layer_types={short}", options={**more, "layer_types": made})
