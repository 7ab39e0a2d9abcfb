"""The architecture of a Hugging Face model as Megatron-core needs it; unsupported features are rejected by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from refrl.config import ConfigError, MegatronConfig
from refrl.models.loading import check_layers

FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""`model_type` of the Hugging Face configurations that are converted."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Shape of a model, and what its layers have."""

    config: PreTrainedConfig
    """The original Hugging Face configuration; exported with the weights."""
    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    """Width of a feed-forward layer without experts."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    norm_eps: float
    tied: bool
    """The output head is the embedding."""
    qkv_bias: bool
    qk_norm: bool
    """Queries and keys are normalised per head."""
    expert_layers: tuple[bool, ...]
    """Of each layer, whether it has experts."""
    num_experts: int = 0
    experts_per_token: int = 0
    expert_hidden_size: int = 0
    norm_topk: bool = True
    """The weights of a token's experts are scaled to add up to 1."""
    fused_experts: bool = False
    """The Hugging Face model in memory holds all experts of a layer in one tensor (transformers 5)."""

    @property
    def family(self) -> str:
        """`model_type` of the Hugging Face configuration."""
        return str(self.config.model_type)


def read_architecture(directory: Path) -> Architecture:
    """Read the `config.json` of a model.

    Raises:
        ConfigError: the Megatron-core policy does not support the model; the message names the feature.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True)
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the configuration in {directory} cannot be read: {reason}") from error
    check_layers(config, directory)
    return architecture_of(config)


def architecture_of(config: PreTrainedConfig) -> Architecture:
    """Return the architecture of a Hugging Face configuration.

    Raises:
        ConfigError: as `read_architecture`.
    """
    if config.model_type not in FAMILIES:
        raise _refusal(f"model_type={config.model_type} (it converts {', '.join(FAMILIES)})")
    _check(config)
    num_experts = int(getattr(config, "num_experts", 0))
    return Architecture(
        config=config,
        num_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.intermediate_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        vocab_size=config.vocab_size,
        norm_eps=config.rms_norm_eps,
        tied=bool(config.tie_word_embeddings),
        qkv_bias=config.model_type == "qwen2",
        qk_norm=config.model_type.startswith("qwen3"),
        expert_layers=tuple(_has_experts(config, layer) for layer in range(config.num_hidden_layers)),
        num_experts=num_experts,
        experts_per_token=int(getattr(config, "num_experts_per_tok", 0)),
        expert_hidden_size=int(getattr(config, "moe_intermediate_size", 0)),
        norm_topk=bool(getattr(config, "norm_topk_prob", True)),
        fused_experts=bool(num_experts) and _fuses_experts(config),
    )


def check_divides(architecture: Architecture, config: MegatronConfig) -> None:
    """Look whether the model divides into the parts that are asked for.

    Raises:
        ConfigError: names the option and the number that it does not divide.
    """
    whole = {
        "tensor_model_parallel_size": ("key heads", architecture.num_kv_heads),
        "pipeline_model_parallel_size": ("layers", architecture.num_layers),
        "expert_model_parallel_size": ("experts", architecture.num_experts),
    }
    for option, (what, number) in whole.items():
        size = getattr(config, option)
        if size > 1 and (number % size or not number):
            raise ConfigError(
                f"policy.megatron_cfg.{option}={size} does not divide the {number} {what} of the model"
            )


def rotary_buffers(architecture: Architecture, device: torch.device | None = None) -> Mapping[str, Tensor]:
    """Return the buffers of the Hugging Face model, all of its rotary embedding, by name.

    Args:
        architecture: of the model.
        device: where they are; None: the CPU.
    """
    make: Any = type(skeleton(architecture.config).base_model.rotary_emb)
    rotary: nn.Module = make(config=architecture.config)
    return {f"model.rotary_emb.{name}": buffer.to(device) for name, buffer in rotary.named_buffers()}


def skeleton(config: PreTrainedConfig) -> PreTrainedModel:
    """Return the Hugging Face model without values: names and shapes."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def _fuses_experts(config: PreTrainedConfig) -> bool:
    names = (name for name, _ in skeleton(config).named_parameters())
    return any(name.endswith("mlp.experts.gate_up_proj") for name in names)


def _has_experts(config: PreTrainedConfig, layer: int) -> bool:
    """Return whether a layer has experts, by the rule of Qwen3-MoE."""
    if not getattr(config, "num_experts", 0):
        return False
    return layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0


def _check(config: PreTrainedConfig) -> None:
    rope: Mapping[str, Any] = (
        getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    )
    kind = rope.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3"):
        raise _refusal(f"rope_type={kind} (it converts default, linear and llama3)")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise _refusal(f"partial_rotary_factor={rope['partial_rotary_factor']}")
    for name in ("attention_bias", "mlp_bias"):
        if getattr(config, name, False):
            raise _refusal(f"{name}=true")
    if config.hidden_act != "silu":
        raise _refusal(f"hidden_act={config.hidden_act} (it converts silu)")
    if getattr(config, "use_sliding_window", False) and config.sliding_window is not None:
        raise _refusal(f"a sliding window of {config.sliding_window} tokens")


def _refusal(what: str) -> ConfigError:
    return ConfigError(
        f"policy.megatron_cfg.enabled: the Megatron-core policy does not convert a model with {what}; "
        "set policy.megatron_cfg.enabled=false to train it with its Hugging Face code"
    )
