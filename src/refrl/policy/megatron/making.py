"""From configuration to a policy on Megatron-core."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from refrl.config import ConfigError
from refrl.models.loading import check_model_directory
from refrl.policy.backends import PolicyRequest

if TYPE_CHECKING:
    from refrl.policy.megatron.policy import MegatronPolicy


def make_policy(request: PolicyRequest) -> MegatronPolicy:
    """Return the policy (see `refrl.training.build.build_policy`).

    Raises:
        ConfigError: Megatron-core is not installed; the model cannot be converted, or not be spread as configured.
    """
    check_available("policy.megatron_cfg.enabled", request.device)
    sizes = request.config.megatron_cfg
    if request.device.type == "cpu" and min(sizes.expert_model_parallel_size, sizes.expert_tensor_size) > 1:
        raise ConfigError(
            "policy.megatron_cfg.expert_model_parallel_size with experts that are spread too: ranks then gather parts "
            "of unequal size, which gloo does not; set expert_tensor_parallel_size to 1, or use cluster.device=cuda"
        )
    with warnings.catch_warnings():
        # Megatron-core warns of its own defaults, and at every import that Transformer Engine and Apex are not there.
        warnings.simplefilter("ignore")
        return _make(request)


def check_available(option: str, device: torch.device) -> None:
    """Look whether Megatron-core can compute on a device.

    Args:
        option: the option that needs it, for the message.
        device: where it is to compute.

    Raises:
        ConfigError: it is not installed, or would take another device.
    """
    if importlib.util.find_spec("megatron") is None:
        raise ConfigError(
            f"{option} needs Megatron-core, which is not installed: pip install 'seatrial[megatron]'"
        )
    if device.type == "cpu" and torch.cuda.is_available():
        raise ConfigError(
            f"{option} with cluster.device=cpu: Megatron-core takes the CUDA devices that it finds; "
            "use cluster.device=cuda, or hide them with CUDA_VISIBLE_DEVICES="
        )


def _make(request: PolicyRequest) -> MegatronPolicy:
    from refrl.policy.megatron import cpu
    from refrl.policy.megatron.adapters import add_adapters
    from refrl.policy.megatron.architecture import check_divides, read_architecture
    from refrl.policy.megatron.conversion import ConversionError
    from refrl.policy.megatron.forward import Scorer, sum_gradients
    from refrl.policy.megatron.model import load_model
    from refrl.policy.megatron.optimizer import MegatronOptimizer
    from refrl.policy.megatron.parallel import join_parallel
    from refrl.policy.megatron.policy import MegatronPolicy
    from refrl.policy.megatron.weights import Weights

    config, device = request.config, request.device
    cpu.prepare()
    directory = Path(config.model_name)
    check_model_directory(directory)
    architecture = read_architecture(directory)
    check_divides(architecture, config.megatron_cfg)
    parallel = join_parallel(config.megatron_cfg, request.world)
    precision = getattr(torch, config.precision)
    own_reference = request.with_reference and not config.lora_cfg.enabled
    try:
        local = load_model(directory, architecture, parallel, config, device)
        reference = load_model(directory, architecture, parallel, config, device) if own_reference else None
    except ConversionError as error:
        raise ConfigError(f"policy.model_name={directory}: {error}") from error
    adapters = add_adapters(local, config.lora_cfg) if config.lora_cfg.enabled else None
    weights = Weights(local, precision, adapters)
    optimizer = MegatronOptimizer(weights.trained, config, request.num_updates)
    local.module.to(dtype=precision)
    if reference is not None:
        reference.module.to(dtype=precision).requires_grad_(False)
    kept = None if reference is None else Weights(reference, precision)
    trained = local.trained()
    local.module.config.finalize_model_grads_func = sum_gradients
    return MegatronPolicy(
        weights,
        trained,
        request.tokenizer,
        config,
        scorer=Scorer(
            parallel,
            vocab_size=architecture.vocab_size,
            temperature=request.temperature,
            packs=config.sequence_packing.enabled,
            dtype=precision,
        ),
        optimizer=optimizer,
        reference=weights if request.with_reference and adapters is not None else kept,
    )
