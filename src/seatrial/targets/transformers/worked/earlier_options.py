"""Worked examples of options that configurations take by names and in forms of earlier files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.worked_rows import Row

CASES: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any], str]] = (
    ("Beit", {"segmentation_indices": [2, 4], "num_hidden_layers": 4}, {"out_indices": [2, 4]}, "5.24"),
    ("Flaubert", {"n_words": 50}, {"n_words": 50, "vocab_size": 50}, "4.57.6"),
    ("XLM", {"n_words": 50}, {"n_words": 50, "vocab_size": 50}, "4.57.6"),
    ("VideoMAE", {"qkv_bias": False}, {"qv_bias": False}, "5.24"),
    ("LwDetr", {"mask_loss_coefficient": 3}, {"class_loss_coefficient": 3}, "5.24"),
    ("MiMoV2Flash", {"sliding_window_size": 16}, {"sliding_window": 17}, "5.24"),
    (
        "MiniMaxM2",
        {"rotary_dim": 16, "head_dim": 32},
        {"rope_parameters.partial_rotary_factor": 0.5},
        "5.24",
    ),
    ("DeepseekV32", {"num_experts": 6}, {"n_routed_experts": 6}, "5.24"),
    ("GlmMoeDsa", {"num_experts": 6}, {"n_routed_experts": 6}, "5.24"),
    ("MistralLarge4Text", {"num_experts": 6}, {"n_routed_experts": 6}, "5.24"),
    (
        "InklingText",
        {"dense_intermediate_size": 48, "intermediate_size": 24},
        {"intermediate_size": 48, "moe_intermediate_size": 24},
        "5.24",
    ),
    ("Dia", {"pad_token_id": 7}, {"decoder_config.pad_token_id": 7}, "5.24"),
    ("Gemma", {"hidden_act": "gelu"}, {"hidden_act": "gelu_pytorch_tanh"}, "5.18"),
    ("T5", {"feed_forward_proj": "gated-gelu"}, {"dense_act_fn": "gelu_new", "is_gated_act": True}, "4.57.6"),
    ("Deberta", {"pos_att_type": "P2C | c2p"}, {"pos_att_type": ["p2c", "c2p"]}, "4.57.6"),
)
"""Beginnings of the names of configurations, what is given, what is read, and the first release that has it."""


def _read(given: Mapping[str, Any], names: Sequence[str], config_class: Any) -> list[Any]:
    """Return options by name, those of parts behind a dot."""
    found = []
    for name in names:
        value: Any = config_class(**given)
        for part in name.split("."):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        found.append(value)
    return found


# Sources: the documentation of each option, and of what it was called.
EARLIER_OPTION_ROWS: Sequence[Row] = tuple(
    Row(
        "options",
        f"transformers:{name}Config",
        f"what is read of {', '.join(given)}",
        partial(_read, given, [*due]),
        [*due.values()],
        since=since,
    )
    for name, given, due, since in CASES
)
