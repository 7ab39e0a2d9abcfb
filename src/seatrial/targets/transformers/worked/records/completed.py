"""Small models of texts and media, whose configurations have what published ones have and small ones lack."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.class_configs import class_config
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.small_models import MARKS, fresh_model

MOST = 20_000_000
"""Parameters of a model that is judged."""
AROUND = {
    "vision_start_token_id": 54,
    "vision_end_token_id": 55,
    "audio_start_token_id": 56,
    "audio_end_token_id": 57,
}
"""Ids around media in models of pictures and sounds."""


@lru_cache(maxsize=1)
def small_model(model_class: Any, changes: str = "{}", attention: str = "eager") -> Any:
    """Return a small model of a class in evaluation mode whose weights depend on their names alone.

    Args:
        model_class: of the model.
        changes: values of options as JSON, by the name of the part, a dot, and their own.
        attention: its implementation.

    Raises:
        NotServed: the configuration does not have an option.
    """
    config = class_config(model_class.config_class)
    _complete(config)
    for place, value in json.loads(changes).items():
        part, _, option = place.rpartition(".")
        owner = getattr(config, part, None) if part else config
        if owner is None or option not in vars(owner):
            raise NotServed(f"no option {place}")
        if getattr(owner, option) == value:
            raise NotServed(f"{place} is {value}")
        setattr(owner, option, value)
    model = fresh_model(model_class, config, MOST, attention).eval()
    draw_by_names_alone(model)
    return model


def _complete(config: Any) -> None:
    """Give a configuration what published ones have and small ones lack: ids around media, parts of frequencies."""
    text = config.get_text_config()
    name = "rope_parameters" if hasattr(text, "rope_parameters") else "rope_scaling"
    kind, spare = text.model_type.lower(), iter(range(58, 4 * text.vocab_size))
    for option, value in vars(config).items():
        if (
            option.endswith(("_token_id", "_token_index"))
            and isinstance(value, int)
            and value >= text.vocab_size
        ):
            setattr(config, option, min(next(spare), text.vocab_size - 1))
    vision: Any = getattr(config, "vision_config", None)
    for option in ("image_token_id", "image_token_index"):
        if option in vars(config) and getattr(config, option) is None:
            setattr(config, option, MARKS["image"])
    if config.model_type == "aria":
        config.projector_patch_to_query_dict = {16: 4}
    if "vocab_size_per_layer_input" in vars(text):
        text.vocab_size_per_layer_input = text.vocab_size
    if config.model_type in ("voxtral", "glmasr"):
        config.audio_config.intermediate_size = 4 * config.audio_config.hidden_size  # four moments are one
    if "vision_feature_layers" in vars(config):
        config.vision_feature_layers = [-1, -2]
    if config.model_type == "vipllava" and "vision_feature_layer" in vars(config):
        config.vision_feature_layer = [-1, -2]
    if config.model_type == "gemma4":
        vision.pooling_kernel_size, vision.position_embedding_size = 2, 64
    if config.model_type == "mllama":
        vision.intermediate_layers_indices, vision.vision_output_dim = [0, 1], 3 * vision.hidden_size
        text.cross_attention_layers = [1]
        text.rope_scaling = {
            "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 32, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, **({"rope_theta": 1e4} if hasattr(text, "rope_parameters") else {}),
        }  # fmt: skip
    if hasattr(vision, "projection_hidden_size"):
        vision.projection_hidden_size = vision.hidden_size
    if "lfm3" in kind:
        text.layer_types = [
            "full_attention" if one == 1 else kept for one, kept in enumerate(text.layer_types)
        ]
    if kind.startswith("ernie"):
        setattr(text, name, {**(getattr(text, name, None) or {}), "mrope_section": [1, 1, 2]})
    if kind.startswith(("qwen2_5_omni", "qwen3_omni")):
        for option, value in AROUND.items():
            setattr(config, option, value)
    if kind.startswith(("qwen2_5_omni", "qwen3_omni", "glm4vmoe", "glm4v_moe")):
        half = (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads) // 2
        if kind.startswith("glm4v"):
            half //= 2
        part = max(1, half // 4)
        known = getattr(text, name, None) or {}
        setattr(text, name, {"rope_type": "default", **known, "mrope_section": [half - 2 * part, part, part]})
