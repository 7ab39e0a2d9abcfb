"""A model spread over processes in place: experts, layers, sequences, and last all weights that are left whole."""

from __future__ import annotations

import logging
import warnings

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from refrl.config import DTensorConfig
from refrl.policy.dtensor.context_parallel import share_sequences
from refrl.policy.dtensor.expert_parallel import share_experts
from refrl.policy.dtensor.meshes import Meshes
from refrl.policy.dtensor.tensor_parallel import parallelize


def spread(
    model: PreTrainedModel, config: DTensorConfig, meshes: Meshes, dtype: torch.dtype
) -> list[nn.Parameter]:
    """Spread a model with float32 weights; it computes in `dtype`, and sums gradients in float32.

    Returns:
        The trained weights of shared experts: their gradients are not summed over `meshes.expert_copies`.

    Raises:
        ConfigError: it cannot be spread so.
    """
    _silence_warnings()
    experts = share_experts(model, meshes.experts) if config.expert_parallel_size > 1 else []
    if config.tensor_parallel_size > 1:
        parallelize(model, meshes.tensor, sequence_parallel=config.sequence_parallel)
    if config.context_parallel_size > 1:
        share_sequences(model, meshes.context)
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32
    )
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, model):
        # The outermost too: what it keeps gathered after a pass are copies, and a checkpoint read into them is lost.
        fully_shard(
            module,
            mesh=meshes.shards,
            reshard_after_forward=True,
            mp_policy=precision,
            ignored_params=set(experts),
        )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss divides by the counts of all rows: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return [weight for weight in experts if weight.requires_grad]


def _silence_warnings() -> None:
    """Of gathering along two dimensions in turn, which FSDP needs with tensor parallelism; of views as outputs.

    Nothing here changes logits in place, which is what the second one is about.
    """
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
