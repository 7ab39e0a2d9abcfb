"""Loading and saving any Hugging Face causal language model by path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from refrl.config_loading import ConfigError
from refrl.directories import new_directory

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_directory(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path) -> None:
    """Save weights (safetensors), configuration and tokenizer; the directory appears whole or not at all.

    Args:
        model: what is saved.
        tokenizer: saved beside it.
        output: an empty or missing directory.

    Raises:
        ConfigError: the directory cannot be written.
    """
    _silence_progress_bars()
    with new_directory(output) as folder:
        model.save_pretrained(str(folder))
        tokenizer.save_pretrained(str(folder))


def load_model(directory: Path) -> PreTrainedModel:
    """Load a causal language model with float32 weights; nothing is downloaded.

    Raises:
        ConfigError: the directory, its configuration or its weights are missing or unreadable.
    """
    _check_model_directory(directory)
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    _silence_progress_bars()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(directory), local_files_only=True, dtype=torch.float32, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the model in {directory} cannot be loaded: {reason}") from error
    model: PreTrainedModel
    model, report = loaded
    if report["missing_keys"]:
        missing = ", ".join(sorted(report["missing_keys"])[:3])
        raise ConfigError(
            f"the weights in {directory} lack {len(report['missing_keys'])} parameters of the model ({missing}); "
            "they would be random: copy the whole model"
        )
    return model.eval()


def _check_model_directory(directory: Path) -> None:
    remedy = (
        f"give a Hugging Face directory, or make a tiny one: python -m refrl make-model --output {directory}"
    )
    if not directory.is_dir():
        raise ConfigError(f"policy.model_name={directory} is not a directory; {remedy}")
    if not (directory / "config.json").exists():
        raise ConfigError(f"policy.model_name={directory} holds no config.json; {remedy}")
    weights = [*directory.glob("*.safetensors"), *directory.glob("pytorch_model*.bin")]
    if not weights:
        raise ConfigError(
            f"policy.model_name={directory} holds no weights (*.safetensors); copy the whole model"
        )


def _silence_progress_bars() -> None:
    """A tiny model is there before a bar is drawn."""
    from transformers.utils import logging

    logging.disable_progress_bar()
