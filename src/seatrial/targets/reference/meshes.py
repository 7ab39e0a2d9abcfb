"""The processes that a configuration of refrl asks for, by the dimensions in which they share the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from refrl.config import GRPORunConfig, SFTRunConfig


def asked_mesh(config: GRPORunConfig | SFTRunConfig) -> dict[str, int]:
    """Return the processes of each dimension, as the policy names them; dimensions of one process are left out."""
    policy, sizes = config.policy, {"data": config.cluster.num_processes // config.policy.model_parallel_size}
    if policy.backend == "dtensor":
        dtensor = policy.dtensor_cfg
        sizes |= {"tensor": dtensor.tensor_parallel_size, "context": dtensor.context_parallel_size}
        sizes |= {"expert": dtensor.expert_parallel_size}
    elif policy.backend == "megatron":
        megatron = policy.megatron_cfg
        sizes |= {"tensor": megatron.tensor_model_parallel_size, "context": megatron.context_parallel_size}
        sizes |= {
            "pipeline": megatron.pipeline_model_parallel_size,
            "expert": megatron.expert_model_parallel_size,
        }
    return {dimension: size for dimension, size in sizes.items() if size > 1}
