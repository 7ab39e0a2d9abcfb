"""Small models of any kind that `generate`: configurations with few layers, parts within parts, and their inputs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.transformers.family_table import SIZES

VOCABULARY, PAD, END, START = 61, 0, 1, 2
OF_PARTS: Mapping[str, Any] = {
    **SIZES,
    "attention_heads": 4,
    "codebook_size": 16,
    "d_ff": 48,
    "d_kv": 8,
    "d_model": 32,
    "deepstack_visual_indexes": [0],
    "depth": 2,
    "embed_dim": 32,
    "encoder_hidden_size": 32,
    "fullatt_block_indexes": [1],
    "image_size": 8,
    "in_channels": 3,
    "intermediate_dim": 48,
    "layers": 2,
    "max_source_positions": 64,
    "max_target_positions": 64,
    "max_window_layers": 2,
    "mlp_dim": 48,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 64,
    "num_channels": 3,
    "num_codebooks": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "num_layers": 2,
    "num_mel_bins": 8,
    "out_hidden_size": 32,
    "patch_size": 4,
    "projection_dim": 32,
}
"""Of a configuration that has an option of the name, that of a part too."""
OF_THE_WHOLE = ("tie_word_embeddings", "num_labels")
"""Options that a configuration of several parts has for all of them."""
MARKS = {"image": 50, "video": 51, "audio": 52, "vision": 53}
"""Ids that stand for pictures and sounds, which no prompt has."""
OF_KINDS: Mapping[str, Mapping[str, Any]] = {
    "higgs_audio_v2": {
        "audio_bos_token_id": 54,
        "audio_delay_token_id": 55,
        "audio_stream_bos_id": 14,
        "audio_stream_eos_id": 15,
    }
}
"""By the type of the configuration: what the names alone do not say."""
MAPPINGS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
)
"""Of models that `generate` and are no plain causal language models."""


def classes_of_release() -> dict[str, str]:
    """Return the model's class by its kind, of all that the installed release maps."""
    module = "transformers.models.auto.modeling_auto"
    found: dict[str, str] = {}
    auto: Any = __import__(module, fromlist=["x"])
    for name in MAPPINGS:
        for kind, given in getattr(auto, name, {}).items():
            found.setdefault(kind, given if isinstance(given, str) else given[0])
    return found


def has_option(config: Any, name: str) -> bool:
    """Return whether a configuration has an option, also one that differs from layer to layer."""
    try:
        return hasattr(config, name)
    except RuntimeError:
        return True


def text_config(model: Any) -> Any:
    """Return the configuration of a model's text, which is the whole where it has no parts."""
    part = getattr(model.config, "get_text_config", None)
    return model.config if part is None else part()


def with_options(config: Any, options: Mapping[str, Any]) -> Any:
    """Return a configuration after options of its text were set, of the whole if the text has no such one."""
    text = config.get_text_config()
    for name, value in options.items():
        setattr(config if name in OF_THE_WHOLE or not has_option(text, name) else text, name, value)
    return config


def small_config(config_class: type[Any]) -> Any:
    """Return a configuration of few and narrow layers, in every part.

    Raises:
        Exception: the configuration refuses these sizes.
    """
    known = config_class()
    renamed = getattr(known, "attribute_map", None) or {}
    parts: dict[str, Any] = {}
    given: dict[str, Any] = {
        name: value
        for name, value in OF_PARTS.items()
        if name not in renamed
        and has_option(known, name)
        and not isinstance(getattr(type(known), name, None), property)
    }
    for name, part_class in (getattr(config_class, "sub_configs", None) or {}).items():
        current = getattr(known, name, None)
        part_class = part_class if current is None or isinstance(current, dict) else type(current)
        if part_class.__name__ != "AutoConfig":
            given[name] = parts[name] = small_config(part_class)
    values = known.to_dict()
    quiet = {
        name: 0.0
        for name, value in values.items()
        if isinstance(value, float) and ("drop" in name or "jitter" in name)
    }
    ids = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": END, "bos_token_id": START}
    ids["decoder_start_token_id"] = START
    marks = {
        name: MARKS[name.partition("_")[0]]
        for name in values
        if name.partition("_")[0] in MARKS and name.endswith(("token_id", "token_index"))
    }
    rotary = getattr(known, "rope_parameters", None)
    if isinstance(rotary, dict) and "mrope_section" in rotary:
        given["rope_parameters"] = {**rotary, "mrope_section": [2, 1, 1]}
    shown = {name: value for name, value in ids.items() if hasattr(known, name)}
    own = OF_KINDS.get(getattr(config_class, "model_type", ""), {})
    config = config_class(**{**shown, **marks, **quiet, **given, **own})
    for name, part in parts.items():
        if not hasattr(config, name):  # some of release 4 keep a part that is given as a mapping alone
            setattr(config, name, part)
    return config


def media(kind: str, num_rows: int) -> dict[str, Tensor]:
    """Return the pictures or sounds without which a kind of model does not generate; the same for every row."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        if kind in ("blip", "blip-2", "instructblip", "git", "kosmos-2"):
            return {"pixel_values": torch.randn(1, 3, 8, 8).expand(num_rows, -1, -1, -1)}
        return {}


def model_class(name: str) -> Any:
    """Return a class of the installed release.

    Raises:
        Gone: it has none of the name.
    """
    return find_name("transformers", [f"transformers:{name}"])


def is_small(model_type: Any, config: Any, largest: int) -> bool:
    """Return whether a configuration makes a model, and one of no more parameters than the largest."""
    try:
        with torch.device("meta"):
            model = model_type(copy.deepcopy(config))
    except Exception:  # noqa: BLE001  the class refuses it, or a package is missing
        return False
    size: int = sum(value.numel() for value in model.parameters())
    return size <= largest


def fresh_model(model_type: Any, config: Any, largest: int, attention: str = "eager", seed: int = 0) -> Any:
    """Return a model of a configuration with the fresh weights of a seed, in float32.

    Raises:
        NotServed: it has more parameters than the largest that is made.
    """
    with torch.device("meta"):
        size = sum(value.numel() for value in model_type(copy.deepcopy(config)).parameters())
    if size > largest:
        raise NotServed(f"{size} parameters: no small model of it is made")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_type._from_config(config, attn_implementation=attention).float()
