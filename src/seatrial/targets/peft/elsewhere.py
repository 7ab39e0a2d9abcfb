"""Options of a second adapter: the same type on other layers, of another size, without what is saved whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.peft.nets import NETS

LEFT_OUT = (
    "modules_to_save",
    "trainable_token_indices",
    "target_parameters",
    "layers_to_transform",
    "layers_pattern",
    "exclude_modules",
    "rank_pattern",
    "alpha_pattern",
    "ensure_weight_tying",
    "bias",
)
"""Options that the first adapter alone has."""
TARGETS: Mapping[str, list[str]] = {
    "conv1d": ["c_attn", "c_fc"],
    "texts classified": ["query", "key"],
    "experts": ["q_proj", "k_proj"],
    "experts of modules": ["down", "gate"],
}
"""Layers by the trait: one that the first adapter is on, and others."""
SHARED = ("VeraConfig", "PveraConfig", "RandLoraConfig")
"""Types whose second adapter has the projections of the first, which fit its layers alone."""
ONE_NAME = ("TinyLoraConfig", "UniLoraConfig", "VBLoRAConfig")
"""Types with tensors that all layers have."""
OF_CONFIG: Mapping[str, Mapping[str, Any]] = {
    "LNTuningConfig": {"target_modules": ["post_attention_layernorm", "input_layernorm"]},
    "TrainableTokensConfig": {"target_modules": ["embed_tokens"], "token_indices": [5, 11]},
    "IA3Config": {"target_modules": ["q_proj", "k_proj", "gate_proj"], "feedforward_modules": ["gate_proj"]},
    "BeftConfig": {"target_modules": ["q_proj", "k_proj"]},
    "C3AConfig": {"block_size": 8},
    "FourierFTConfig": {"n_frequency": 23},
    "WaveFTConfig": {"n_frequency": 33},
}
"""Options by the configuration class, in place of other layers or of another rank."""
SIZES: Mapping[str, tuple[int, int]] = {
    "r": (4, 2),
    "init_r": (4, 8),
    "oft_block_size": (8, 4),
    "num_virtual_tokens": (4, 6),
}
"""A size of the second adapter by the option: the first of these that the first adapter does not have."""


def elsewhere(kind: Any) -> Any:
    """Return the `kinds.Kind` of the second adapter to one of a kind.

    Raises:
        NotServed: its options cannot be those of a second adapter on other layers.
    """
    if kind.options.get("layer_replication"):
        raise NotServed("a second adapter of replicated layers replicates them again")
    if kind.config in ONE_NAME and kind.options.get("layers_to_transform"):
        raise NotServed("a tensor of all layers has the name of the first layer that has it, which changes")
    if kind.config in SHARED:
        raise NotServed("a second adapter has the projections of the first, and is another one alone")
    options = {name: value for name, value in kind.options.items() if name not in LEFT_OUT}
    if "target_modules" in kind.options:
        linear = ["q_proj", "k_proj", "gate_proj"]
        options["target_modules"] = ["layer", "head"] if kind.trait in NETS else linear
        options["target_modules"] = TARGETS.get(kind.trait, options["target_modules"])
        if kind.options.get("lora_bias") and kind.trait not in NETS:
            options["target_modules"] = ["q_proj", "k_proj"]  # a bias is merged into that of the layer
    for name, sizes in SIZES.items():
        if options.get(name):
            options[name] = next(size for size in sizes if size != options[name])
    options |= OF_CONFIG.get(kind.config, {}) if kind.trait not in TARGETS else {}
    return dataclasses.replace(kind, options=options)
