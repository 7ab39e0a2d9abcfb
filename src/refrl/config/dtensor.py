"""`policy.dtensor_cfg`: the policy on DTensor, in NeMo RL's names."""

from __future__ import annotations

from pydantic import Field, model_validator

from refrl.config.base import SwitchedSection


class DTensorConfig(SwitchedSection):
    """The policy on PyTorch's own parallelism (DTensor): any Hugging Face causal language model."""

    key = "policy.dtensor_cfg"
    enabled: bool = False
    """Use this backend; its weights are float32 and sharded over the processes that share rows."""
    tensor_parallel_size: int = Field(default=1, gt=0)
    """Processes that each hold a part of every linear layer and of the attention heads."""
    context_parallel_size: int = Field(default=1, gt=0)
    """Processes that each hold a part of every sequence."""
    expert_parallel_size: int = Field(default=1, gt=0)
    """Processes, among those that share rows or sequences, that each hold a part of the experts."""
    sequence_parallel: bool = False
    """Tensor-parallel processes also share the activations between the layers, each a part of every sequence."""

    @property
    def model_parallel_size(self) -> int:
        """Processes that work on the same rows."""
        return self.tensor_parallel_size * self.context_parallel_size

    @model_validator(mode="after")
    def _sequences_are_shared(self) -> DTensorConfig:
        if self.sequence_parallel and self.tensor_parallel_size == 1:
            raise ValueError(
                "policy.dtensor_cfg.sequence_parallel shares activations among tensor-parallel processes: set "
                "policy.dtensor_cfg.tensor_parallel_size to 2 or more, or leave it out"
            )
        return self
