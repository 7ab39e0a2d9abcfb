"""From configuration to a policy of this backend."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.config import ConfigError, PolicyConfig
from refrl.distributed import World
from refrl.models.loading import load_model
from refrl.policy.adapter_files import make_adapters
from refrl.policy.auxiliaries import make_auxiliary
from refrl.policy.dtensor.meshes import Meshes, make_meshes
from refrl.policy.dtensor.policy import DTensorPolicy
from refrl.policy.dtensor.scoring import OwnPositions, SharedForward
from refrl.policy.dtensor.spread_model import SpreadModel
from refrl.policy.dtensor.spreading import spread
from refrl.policy.lora import Adapters
from refrl.policy.optimizer import ClippedAdamW, clip_spread_gradients
from refrl.policy.scoring import (
    PROBE_TOLERANCE,
    Scoring,
    assemble_scoring,
    check_window,
    make_scoring,
    padded_forward,
    probe_batch,
)


def make_policy(
    config: PolicyConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    device: torch.device,
    num_updates: int,
    with_reference: bool,
    world: World,
    temperature: float,
) -> DTensorPolicy:
    """Return the policy; before anything is trained it is held against the model as one process scores it.

    Raises:
        ConfigError: the model cannot be loaded, sharded or scored as configured.
    """
    model = load_model(Path(config.model_name))
    _check_language(config, model)
    meshes = make_meshes(config.dtensor_cfg, world, device)
    dtype = getattr(torch, config.precision)
    adapters = make_adapters(model, config.lora_cfg)
    probe = probe_batch(model)
    with torch.no_grad():
        expected_BT = padded_forward(temperature)(model, probe)[0]
    spread_model = _spread(model, config, meshes, device, dtype, adapters)
    optimizer = ClippedAdamW(model, config, num_updates, clip_spread_gradients, precision=torch.float32)
    reference = spread_model if with_reference and adapters is not None else None
    if with_reference and adapters is None:
        frozen = load_model(Path(config.model_name)).requires_grad_(False)
        reference = _spread(frozen, config, meshes, device, dtype)
    positions = OwnPositions(meshes, config.dtensor_cfg.sequence_parallel)
    scoring = _make_scoring(config, model, positions, temperature)
    with torch.no_grad():
        found_BT = scoring.forward(model, probe.to(device))[0].cpu()
    _check_probe(config, found_BT, expected_BT)
    return DTensorPolicy(
        spread_model,
        tokenizer,
        scoring=scoring,
        optimizer=optimizer,
        reference=reference,
        global_batch_size=config.train_global_batch_size,
        world=world,
        auxiliary=make_auxiliary(
            config,
            model,
            num_updates=num_updates,
            temperature=temperature,
            positions=positions,
            read=spread_model.whole,
        ),
    )


def _spread(
    model: PreTrainedModel,
    config: PolicyConfig,
    meshes: Meshes,
    device: torch.device,
    dtype: torch.dtype,
    adapters: Adapters | None = None,
) -> SpreadModel:
    model.eval().to(device=device)
    experts = spread(model, config.dtensor_cfg, meshes, dtype)
    return SpreadModel(model, meshes, experts, dtype, adapters)


def _check_language(config: PolicyConfig, model: PreTrainedModel) -> None:
    """Refuse layouts that are built for models of language alone."""
    sizes = config.dtensor_cfg
    if model.config.get_text_config() is not model.config and sizes.model_parallel_size > 1:
        raise ConfigError(
            f"policy.dtensor_cfg: {type(model).__name__} takes images or sounds; tensor_parallel_size="
            f"{sizes.tensor_parallel_size} and context_parallel_size={sizes.context_parallel_size} are built for "
            "models of language alone: set them to 1 (rows and weights are spread over cluster.num_processes)"
        )


def _make_scoring(
    config: PolicyConfig, model: PreTrainedModel, positions: OwnPositions, temperature: float
) -> Scoring:
    """Return how rows are cut and scored: as one process does it, unless several have parts of a sequence."""
    dtensor = config.dtensor_cfg
    if dtensor.context_parallel_size == 1 and not dtensor.sequence_parallel:
        return make_scoring(config, model, temperature)
    check_window("policy.dtensor_cfg.context_parallel_size and sequence_parallel", config, model)
    forward = SharedForward(
        positions=positions,
        packed=config.sequence_packing.enabled,
        temperature=temperature,
        dtype=getattr(torch, config.precision),
    )
    return assemble_scoring(config, model, forward)


def _check_probe(config: PolicyConfig, found_BT: torch.Tensor, expected_BT: torch.Tensor) -> None:
    difference = float((found_BT - expected_BT).abs().max())
    tolerance = PROBE_TOLERANCE[getattr(torch, config.precision)]
    if not difference <= tolerance:
        raise ConfigError(
            f"policy.dtensor_cfg: log-probabilities of the spread model differ by {difference:.3g} from those of one "
            f"process, more than {tolerance:g}: the architecture does not allow this layout; set its sizes to 1"
        )
