"""`policy.megatron_cfg`: the policy on Megatron-core, in NeMo RL's names."""

from __future__ import annotations

from pydantic import Field, model_validator

from refrl.config.base import SwitchedSection


class MegatronConfig(SwitchedSection):
    """The policy on Megatron-core's GPTModel: Llama, Qwen2, Qwen3 and Qwen3-MoE, converted from Hugging Face files."""

    key = "policy.megatron_cfg"
    enabled: bool = False
    """Use this backend; needs the extra `megatron`."""
    tensor_model_parallel_size: int = Field(default=1, gt=0)
    """Processes that each hold a part of every linear layer and of the attention heads."""
    pipeline_model_parallel_size: int = Field(default=1, gt=0)
    """Processes that each hold some of the layers."""
    context_parallel_size: int = Field(default=1, gt=0)
    """Processes that each hold a part of every sequence."""
    expert_model_parallel_size: int = Field(default=1, gt=0)
    """Processes, among those that share rows or sequences, that each hold a part of the experts."""
    expert_tensor_parallel_size: int | None = Field(default=None, gt=0)
    """Processes that each hold a part of every linear layer of an expert; None takes `tensor_model_parallel_size`, the
    only allowed size if `expert_model_parallel_size` is 1."""
    sequence_parallel: bool = False
    """Tensor-parallel processes also share the activations between the layers, each a part of every sequence."""

    @property
    def expert_tensor_size(self) -> int:
        """Processes that each hold a part of every linear layer of an expert."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def model_parallel_size(self) -> int:
        """Processes that work on the same rows."""
        return (
            self.tensor_model_parallel_size * self.pipeline_model_parallel_size * self.context_parallel_size
        )

    @model_validator(mode="after")
    def _sizes_fit(self) -> MegatronConfig:
        if (
            self.expert_model_parallel_size == 1
            and self.expert_tensor_size != self.tensor_model_parallel_size
        ):
            raise ValueError(
                f"policy.megatron_cfg.expert_tensor_parallel_size={self.expert_tensor_parallel_size} differs from "
                f"tensor_model_parallel_size={self.tensor_model_parallel_size} with expert_model_parallel_size=1: "
                "Megatron-core 0.16.1 then leaves the experts' gradients unsummed, without an error; set "
                "expert_model_parallel_size to 2 or more, or leave it out"
            )
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise ValueError(
                "policy.megatron_cfg.sequence_parallel shares activations among tensor-parallel processes: set "
                "policy.megatron_cfg.tensor_model_parallel_size to 2 or more, or leave it out"
            )
        return self
