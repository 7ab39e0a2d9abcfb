"""Small configurations of public model classes, with the traits that their kinds have."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from seatrial.targets.common.target import Gone
from seatrial.targets.transformers.any_models import NOISES
from seatrial.targets.transformers.any_records import SECTIONED, SMALL, _set_sections
from seatrial.targets.transformers.families import CausalFamily
from seatrial.targets.transformers.family_table import FAMILIES
from seatrial.targets.transformers.folder_inputs import CLASSES
from seatrial.targets.transformers.folder_table import OF_CLASSES, OF_CONFIGURATIONS
from seatrial.targets.transformers.small_models import START, small_config

OF_SOUNDS: Mapping[str, Any] = {
    "tdnn_dim": [16, 16, 24], "tdnn_kernel": [3, 3, 1], "tdnn_dilation": [1, 2, 1], "xvector_output_dim": 8,
    "classifier_proj_size": 16, "codevector_dim": 16, "proj_codevector_dim": 16, "num_codevectors_per_group": 8,
    "output_hidden_size": 32, "squeeze_factor": 1, "num_ctc_classes": 16,
}  # fmt: skip
"""Small sizes of models of sounds."""

OMNI = ("qwen2_5_omni_t", "qwen3_omni_moe_t")
"""Beginnings of further kinds of text with sections of frequencies."""


def parts_of(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield a configuration and its parts by name."""
    yield "", config
    for name, part in list(vars(config).items()):
        if hasattr(part, "to_dict") and not name.startswith("_"):
            yield name, part


def config_of(model_class: Any) -> Any:
    """Return a small configuration of a class, with what its kind needs.

    Raises:
        Exception: the configuration refuses its sizes.
    """
    config_class, family = model_class.config_class, None
    try:
        family = _of_family(config_class)
        config = family or small_config(config_class)
    except Exception:  # noqa: BLE001  it refuses these sizes, so it keeps its own
        config = config_class()
    for name, part_class in (getattr(config_class, "sub_configs", None) or {}).items():
        if name not in vars(config) and part_class.__name__ != "AutoConfig":
            setattr(config, name, small_config(part_class))  # releases of 4 take some parts as mappings alone
    config.num_labels = 2 if "QuestionAnswering" in model_class.__name__ else CLASSES
    config.tie_word_embeddings = getattr(config_class(), "tie_word_embeddings", True)
    if getattr(config, "is_encoder_decoder", False):
        config.decoder_start_token_id = START
        config.is_decoder = model_class.__name__.endswith("ForCausalLM")
        config.is_encoder_decoder = not config.is_decoder
        if config.is_decoder and hasattr(config, "encoder_layers"):
            config.encoder_layers = config.decoder_layers
    for name, part in parts_of(config):
        for option, value in NOISES.items():
            if isinstance(getattr(part, option, None), (float, bool)):
                setattr(part, option, value)
        for option, value in getattr(FAMILIES.get(part.model_type), "options", {}).items():
            if option in vars(part) and (name or family is None):
                setattr(part, option, copy.deepcopy(value))
        if vars(part).get("kv_lora_rank") and vars(part).get("num_key_value_heads"):
            part.num_key_value_heads = part.num_attention_heads
        if name in ("vision_config", "text_config") or (not name and hasattr(config, "vision_config")):
            _set_small(part)
        attends = all(hasattr(part, one) for one in ("num_attention_heads", "hidden_size"))
        turns = "mrope_section" in str(part.to_dict()) or part.model_type.startswith((*SECTIONED, *OMNI))
        if turns and attends and "vision" not in name and (name or "text_config" not in vars(config)):
            _set_sections(part)
    if hasattr(config, "conv_dim") and hasattr(config, "conv_kernel"):
        config.conv_dim, config.conv_stride, config.conv_kernel = [8, 8], [5, 4], [10, 3]
        config.num_feat_extract_layers, config.num_conv_pos_embeddings = 2, 8
        config.num_conv_pos_embedding_groups = 2
    for option, value in OF_SOUNDS.items():
        if vars(config).get(option) is not None:
            setattr(config, option, copy.deepcopy(value))
    decodes = model_class.__name__.endswith(("ForCausalLM", "LMHeadModel", "Decoder"))
    if not getattr(config, "is_encoder_decoder", False) and isinstance(vars(config).get("is_decoder"), bool):
        config.is_decoder = decodes
    own = {**OF_CONFIGURATIONS.get(config_class.__name__, {}), **OF_CLASSES.get(model_class.__name__, {})}
    for option, value in own.items():
        part, _, last = option.rpartition(".")
        owner = getattr(config, part) if part else config
        if last != "rope_scaling" or last in vars(owner):
            setattr(owner, last, copy.deepcopy(value))
    return config


def _of_family(config_class: Any) -> Any:
    """Return the configuration of a family of causal language models; None of another."""
    row = FAMILIES.get(config_class.model_type)
    if row is None or row.has_parts or row.labels_in_place:
        return None
    try:
        return type("Of", (CausalFamily,), {"family": config_class.model_type})()._config()
    except Gone:
        return None


def _set_small(part: Any) -> None:
    for name, number in SMALL.items():
        known = vars(part).get(name)
        if known is not None and (name != "layer_types" or "linear_attention" in known):
            several = isinstance(known, (list, tuple)) and isinstance(number, int)
            setattr(part, name, [number, number] if several else copy.deepcopy(number))
