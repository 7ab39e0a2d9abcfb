"""Adapters in PEFT's format: `adapter_config.json` and `adapter_model.safetensors`, read and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.config import ConfigError, LoraConfig
from refrl.directories import new_directory
from refrl.models.loading import write_model, writing
from refrl.policy.lora import Adapters, add_adapters

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What PEFT puts before the name of every tensor."""

_PLAIN: Mapping[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "use_dora": False,
    "use_rslora": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "layers_to_transform": None,
    "lora_bias": False,
}
"""Options of PEFT that change what an adapter computes or where it is, at the values of a plain LoRA."""


def make_adapters(model: PreTrainedModel, config: LoraConfig) -> Adapters | None:
    """Put adapters into a model, new ones or those of `adapter_path`; None where none are asked for.

    Raises:
        ConfigError: they do not fit the model.
    """
    if not config.enabled:
        return None
    adapters = add_adapters(model, config)
    if config.adapter_path is not None:
        load_adapters(adapters, Path(config.adapter_path))
    return adapters


def save_adapters(weights: Mapping[str, Tensor], config: LoraConfig, base_model: str, output: Path) -> None:
    """Write adapters as a directory that PEFT loads; it appears whole or not at all.

    Args:
        weights: `<layer>.lora_A.weight` and `<layer>.lora_B.weight`, whole, by the Hugging Face names of the layers.
        config: their rank and scale.
        base_model: directory of the model that they belong to; written down, not read.
        output: a missing or empty directory.

    Raises:
        OSError: it cannot be written.
    """
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "inference_mode": True,
        "r": config.dim,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "init_lora_weights": True,
        "target_modules": sorted({name.rpartition(".lora_")[0] for name in weights}),
        "exclude_modules": None,
        **_PLAIN,
    }
    tensors = {f"{PREFIX}{name}": weight.detach().cpu().contiguous() for name, weight in weights.items()}
    with new_directory(output) as folder, writing(output):
        (folder / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def save_merged(
    adapters: Adapters,
    tokenizer: PreTrainedTokenizerBase,
    output: Path,
    *,
    merged: Iterable[tuple[str, Tensor]],
    weights: Mapping[str, Tensor],
) -> None:
    """Export a model with its adapters merged as a Hugging Face directory, and the adapters in `adapter/` within it.

    Args:
        adapters: of the model.
        tokenizer: exported with it.
        output: a missing or empty directory.
        merged: the merged weights of the model, and its buffers, whole.
        weights: the adapters, whole.

    Raises:
        OSError: it cannot be written.
    """
    model = adapters.model
    names = model.state_dict().keys()
    chosen = {name: tensor.detach() for name, tensor in merged if name in names}
    with new_directory(output) as folder, writing(output):
        write_model(model, tokenizer, folder, weights=chosen)
        save_adapters(weights, adapters.config, str(model.config.name_or_path), folder / "adapter")


@torch.no_grad()
def load_adapters(adapters: Adapters, directory: Path) -> None:
    """Give the adapters the values of a PEFT directory.

    Raises:
        ConfigError: as `read_adapters`.
    """
    own = adapters.weights()
    shapes = {name: tuple(weight.shape) for name, weight in own.items()}
    for name, tensor in read_adapters(directory, adapters.config, shapes).items():
        own[name].copy_(tensor)


def read_adapters(
    directory: Path, lora: LoraConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Return the tensors of a PEFT directory.

    Args:
        directory: of the adapter.
        lora: the rank and the scale that it must have.
        shapes: of the tensors that it must hold, and no others.

    Raises:
        ConfigError: it is no adapter, not a plain LoRA, or not of these layers, rank and scale.
    """
    where = f"policy.lora_cfg.adapter_path={directory}"
    try:
        config = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        tensors = load_file(directory / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"{where} holds no adapter in PEFT's format: {error}") from error
    wanted = {"peft_type": "LORA", "r": lora.dim, "lora_alpha": lora.alpha}
    for key, value in {**_PLAIN, **wanted}.items():
        found = config.get(key, value if key in _PLAIN else None)
        if found != value and not (found in (None, {}, []) and value in (None, {})):
            remedy = (
                "set policy.lora_cfg.dim and alpha to the adapter's"
                if key in wanted
                else "it is no plain LoRA"
            )
            raise ConfigError(
                f"{where}: {CONFIG} has {key}={found!r}, and this run needs {value!r}: {remedy}"
            )
    given = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    missing, unknown = sorted(shapes.keys() - given.keys()), sorted(given.keys() - shapes.keys())
    if missing or unknown:
        raise ConfigError(
            f"{where}: it is missing {len(missing)} tensors {missing[:2]} and has {len(unknown)} unknown ones "
            f"{unknown[:2]}: set policy.lora_cfg.target_modules to the adapter's"
        )
    for name, shape in shapes.items():
        if tuple(given[name].shape) != shape:
            raise ConfigError(
                f"{where}: {name} has shape {tuple(given[name].shape)}, and the model needs {shape}"
            )
    return given
