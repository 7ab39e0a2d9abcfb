"""How tokens go to experts, by family: scores, groups, biases and norms, from the papers that define them.

Mixtral (Jiang et al. 2024), DeepSeek-V2 (2024, groups by their best expert) and DeepSeek-V3 (2024, groups by their two
best, a bias that chooses and does not weigh), Qwen2 (2024) and ERNIE 4.5 (2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Routing:
    """A definition of the weights of experts."""

    score: Literal["softmax", "sigmoid", "softmax of the chosen", "sparse mixer"]
    normed: Literal["always", "never", "by option"] = "always"
    """Whether the weights of a token's experts sum to 1, before the scale."""
    option: str = "norm_topk_prob"
    """Which says so, where an option does."""
    best_of_group: int = 0
    """How many scores of a group make that of the group; 0 where there are no groups."""
    has_bias: bool = False
    """Whether a bias is added for the choice alone."""
    scale: str = ""
    """The option by which weights are multiplied; empty where there is none."""

    has_clamped_pairs: bool = False
    """Whether gates and values of experts alternate and are clamped, as GPT-OSS has them."""
    weighs_inputs: bool = False
    """Whether weights multiply what experts are given, not what they give."""

    def is_normed(self, config: Any) -> bool:
        """Return whether weights sum to 1 with a configuration."""
        return self.normed == "always" or (self.normed == "by option" and getattr(config, self.option))


MIXTRAL = Routing(score="softmax")
QWEN = Routing(score="softmax", normed="by option")
DEEPSEEK = Routing(
    score="sigmoid", normed="by option", best_of_group=2, has_bias=True, scale="routed_scaling_factor"
)
BIASED = Routing(score="sigmoid", has_bias=True)
ROUTINGS: Mapping[str, Routing] = {
    **dict.fromkeys(("mixtral", "minimax", "qwen3_5_moe_text", "hunyuan_v1_moe"), MIXTRAL),
    **dict.fromkeys(
        ("flex_olmo", "mellum", "olmoe", "qwen2_moe", "qwen3_moe", "qwen3_next", "lara_mini"), QWEN
    ),
    **dict.fromkeys(
        (
            "deepseek_v3", "deepseek_v32", "dots1", "exaone_moe", "glm4_moe", "glm4_moe_lite", "hy_v4",
            "solar_open", "mimo_v2_flash", "sarvam_mla", "glm_moe_dsa", "nemotron_h",
        ),
        DEEPSEEK,
    ),
    **dict.fromkeys(
        ("granitemoe", "granitemoeshared", "granitemoehybrid", "granitemoe_swa"),
        Routing(score="softmax of the chosen"),
    ),
    "gpt_oss": Routing(score="softmax of the chosen", has_clamped_pairs=True),
    **dict.fromkeys(("aria_text", "cohere2_moe"), Routing(score="softmax of the chosen")),
    **dict.fromkeys(("llama4_text", "llama4"), Routing(score="sigmoid", normed="never", weighs_inputs=True)),
    "phimoe": Routing(score="sparse mixer"),
    "deepseek_v2": Routing(score="softmax", normed="never", best_of_group=1, scale="routed_scaling_factor"),
    "jamba": replace(MIXTRAL, normed="never"),
    "ernie4_5_moe": replace(MIXTRAL, has_bias=True),
    "minimax_m2": BIASED,
    "minimax_m3_vl_text": BIASED,
    "hy_v3": replace(BIASED, scale="router_scaling_factor"),
    "afmoe": replace(BIASED, scale="route_scale"),
    "beam": replace(DEEPSEEK, scale=""),
    "laguna": BIASED,
    "lfm2_moe": replace(BIASED, normed="by option", scale="routed_scaling_factor"),
}  # fmt: skip
"""By the type of the configuration. Others are uncovered: their experts are defined in other ways."""
