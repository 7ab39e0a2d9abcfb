"""What configurations fill in and compute from other options, on record; see `contracts.recorded`."""

from __future__ import annotations

import copy
import inspect
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from packaging.version import Version

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.transformers.family_records import OLDEST, record

RECORD = Path(__file__).with_name("recorded_configurations.json")
YARN = {"factor": 4.0, "original_max_position_embeddings": 4096}
LONG = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
ACTIVATIONS = (
    "activation", "activation_fn", "activation_function", "dense_act_fn", "hidden_act", "hidden_activation",
    "mlp_hidden_act", "projector_hidden_act", "ffn_act_fn",
)  # fmt: skip
LEFT_OPEN = (
    "attention_hidden_size", "bos_token_id", "codebook_dim", "conv_kernel_size", "dim_feedforward", "embedding_size",
    "eos_token_id", "expand_ratio", "ffn_dim", "ffn_hidden_size", "head_dim", "initializer_range", "intermediate_size",
    "linear_key_head_dim", "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim",
    "mamba_intermediate", "mlp_only_layers", "moe_intermediate_size", "n_inner", "no_rope_layers", "num_kv_heads",
    "num_experts_per_tok", "num_key_value_heads", "pad_token_id", "q_lora_rank", "query_pre_attn_scalar",
    "residual_multiplier", "rope_parameters", "summary_idxs", "tie_word_embeddings", "time_step_rank",
)  # fmt: skip
"""Options that follow from others where they are None."""
CASES: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "old linear": {"rope_theta": 5000.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    "old yarn": {"rope_scaling": {"type": "yarn", **YARN}},
    "yarn": {"rope_theta": 7000.0, "rope_scaling": {"rope_type": "yarn", "mscale": 0.7, **YARN}},
    "mrope": {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "a base alone": {"rope_theta": 20000.0},
    "a base of windows": {"rope_local_base_freq": 500.0, "local_rope_theta": 500.0},
    "a part of heads": {"partial_rotary_factor": 0.25, "rotary_pct": 0.75},
    "seven layers": {"num_hidden_layers": 7},
    "sizes": {"hidden_size": 96, "num_attention_heads": 6},
    "one head of keys": {"num_attention_heads": 8, "num_key_value_heads": None},
    "windows": {
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 1,
        "num_hidden_layers": 5,
    },
    "no window": {"sliding_window": None},
    "a pattern of two": {"sliding_window_pattern": 2, "full_attention_interval": 2, "layer_types": None},
    "a pattern of layers": {"attn_layer_period": 2, "attn_layer_offset": 1, "no_rope_layer_interval": 2},
    "expert layers": {"decoder_sparse_step": 2, "interleave_moe_layer_step": 2, "first_k_dense_replace": 2},
    "labels": {"num_labels": 5},
    "a part of text": {"text_config": {"hidden_size": 96, "num_hidden_layers": 3}},
    "a part of pictures": {"vision_config": {"hidden_size": 96, "num_hidden_layers": 3}},
    "gelu": {**dict.fromkeys(ACTIVATIONS, "gelu"), "feed_forward_proj": "gelu"},
    "relu": {**dict.fromkeys(ACTIVATIONS, "relu"), "feed_forward_proj": "relu"},
    "gated gelu": {"feed_forward_proj": "gated-gelu", "hidden_act": "gelu_new", "activation_function": "gelu_new"},
    "gelu in parts": {name: dict.fromkeys(ACTIVATIONS, "gelu") for name in ("text_config", "vision_config")},
    "words": {
        "mamba_d_head": "auto", "pos_att_type": "P2C | c2p", "global_padding": "same", "n_words": 50,
        "model_type": "vlm",
    },
    "both directions": {"use_bidirectional_attention": True, "sliding_window": 16},
    "both directions, of all": {"use_bidirectional_attention": "all", "sliding_window": 16},
    "nothing": dict.fromkeys(LEFT_OPEN),
    "sparse layers": {
        "num_layers": 12, "num_decoder_layers": 12, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 4
    },
    "no sparse layers": {"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0},
    "tied texts": {"text_config": {"tie_word_embeddings": True}, "tie_word_embeddings": False},
    "old su": {"rope_scaling": {"type": "su", **LONG}},
    "old xdrope": {"rope_scaling": {"type": "xdrope", "factor": 2.0, "alpha": 1000.0}},
}  # fmt: skip
"""Options that a configuration takes and that others follow from; those that it does not have are left out."""
NOTED = (
    "transformers_version", "architectures", "dtype", "torch_dtype", "_name_or_path", "_attn_implementation",
    "_attn_implementation_autoset", "_commit_hash", "return_dict", "output_hidden_states", "output_attentions",
    "_output_attentions", "chunk_size_feed_forward", "problem_type", "use_cache",
    "model_type",
)  # fmt: skip
"""Of every configuration, or of how one was made."""
ATTRIBUTES = (
    "layer_types",
    "head_dim",
    "num_key_value_heads",
    "layers_block_type",
    "rope_theta",
    "num_labels",
)
"""What code reads and may be computed."""
OF_PARTS = "_config."
"""In the names of options of parts, whose classes have defaults of their own on record."""
LONGEST = 60
"""Characters of a value that is on record as it is; of a longer one the checksum is."""


def _value(value: Any) -> Any:
    text = json.dumps(value, sort_keys=True, default=str)
    return json.loads(text) if len(text) <= LONGEST else f"crc {zlib.crc32(text.encode())}"


def _flat(values: Mapping[Any, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield options by name, those of parts and of rotary embeddings behind a dot."""
    for name, value in values.items():
        if name in NOTED or str(name).startswith("_") or (name in ("id2label", "label2id")):
            continue
        if isinstance(value, Mapping) and (str(name).endswith("_config") or str(name).startswith("rope_")):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", _value(value)


@cache
def defaults(config_class: Any) -> Any:
    """Return a configuration without options."""
    return config_class()


def described(config_class: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a configuration by name.

    Raises:
        NotServed: the class has none of the given ones, or refuses them.
    """
    try:
        plain = defaults(config_class)
        known = plain.to_dict()
        given = {name: value for name, value in options.items() if name in known or hasattr(plain, name)}
        given |= {
            name: value
            for name, value in options.items()
            if name.startswith("rope_") and ("rope_parameters" in known or "rope_scaling" in known)
        }
        if options and not given:
            raise NotServed("no such option")
        config = config_class(**copy.deepcopy(given)) if given else plain
        found = dict(_flat(config.to_dict()))
        for name in ATTRIBUTES:
            try:
                found.setdefault(f"{name} as read", _value(getattr(config, name)))
            except (AttributeError, RuntimeError, ValueError):
                continue
    except NotServed:
        raise
    except Exception as error:  # its own check, or a part that is no small class
        raise NotServed(str(error)) from error
    return found


def changed(config_class: Any, case: str) -> dict[str, Any]:
    """Return the options of a case that differ from those of the defaults; of the defaults, all."""
    found = described(config_class, CASES[case])
    if case == "defaults":
        written = inspect.signature(config_class).parameters
        own = {
            name: value
            for name, value in found.items()
            if OF_PARTS not in name
            and value is not None
            and not (name in written and _value(written[name].default) == value)
        }
        return {name: value for name, value in own.items() if not name.endswith(("_token_id", "_dropout"))}
    plain, given = described(config_class, {}), {*_names(CASES[case])}
    return {
        name: value
        for name, value in found.items()
        if name not in plain or plain[name] != value or name.rpartition(".")[2] in given
    }


def _names(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of given options, those of parts too."""
    for name, value in values.items():
        yield name
        yield from _names(value) if isinstance(value, Mapping) else ()


def number(value: Any) -> float:
    """Return a number between 0 and 1000 that other values hardly have."""
    return zlib.crc32(json.dumps(value, sort_keys=True).encode()) % 100_003 / 100


class ConfigurationsRecord(KnowsFailures):
    """Configurations of every kind."""

    thorough = True
    path = RECORD

    def __init__(self) -> None:
        """Find the release's configurations."""
        if Version(release("transformers")) < Version(OLDEST):
            raise Gone(f"the record begins with transformers {OLDEST}")
        mapping: Any = find_name(
            "transformers", ["transformers.models.auto.configuration_auto:CONFIG_MAPPING"]
        )
        self._mapping = mapping
        self._made: dict[tuple[str, str], Mapping[str, Any]] = {}

    @property
    def kinds(self) -> Sequence[str]:
        """The types of configurations of the release."""
        return list(self._mapping)

    @cached_property
    def recorded(self) -> Mapping[str, Sequence[float]]:
        installed = Version(release("transformers"))
        return {
            f"{kind}: {case}: {name}": [number(value), 1.0]
            for kind, cases in record(RECORD).items()
            if kind in self._mapping
            for case, releases in cases.items()
            for oldest, values in releases.items()  # type: ignore[attr-defined]
            if installed >= Version(oldest)
            for name, value in values.items()
        }

    def options_of(self, kind: str, case: str) -> Mapping[str, Any]:
        """Return the options of a kind in a case; empty where the release does not serve it."""
        if (kind, case) not in self._made:
            try:
                config_class = self._mapping[kind]
                self._made[kind, case] = described(config_class, CASES[case])
            except (NotServed, ImportError, AttributeError, KeyError):
                self._made[kind, case] = {}
        return self._made[kind, case]

    def projections(self, name: str) -> Sequence[float]:
        kind, case, option = name.split(": ")
        found = self.options_of(kind, case)
        if option not in found:
            raise NotServed(f"no {option}")
        return [number(found[option]), 1.0]


ADAPTERS: dict[str, type[Any]] = {"recorded-configurations": ConfigurationsRecord}
