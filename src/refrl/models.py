"""Tiny models made from a configuration, and loading any Hugging Face causal language model by path."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from refrl.config import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Family = Literal["qwen3", "llama"]


@dataclass(frozen=True)
class TinyModelSpec:
    """Shape of a model that is made here."""

    family: Family = "qwen3"
    """`qwen3` normalises queries and keys per head; `llama` does not."""
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    """At least 32: vLLM's CPU attention takes no less."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer; None takes three times the hidden size."""
    max_positions: int = 512
    tie_word_embeddings: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse shapes that no backend takes.

        Raises:
            ConfigError: names the field and its range.
        """
        for name in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "max_positions"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.head_dim < 32 or self.head_dim % 2:
            raise ConfigError(f"head_dim={self.head_dim} must be even and at least 32 (vLLM's CPU attention)")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")


def make_model(spec: TinyModelSpec, output: Path) -> None:
    """Make a byte-level model with random weights and save it as an ordinary Hugging Face directory.

    Raises:
        ConfigError: `output` exists and is not empty, or cannot be written.
    """
    from refrl.tokenization import make_byte_tokenizer

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} exists and is not an empty directory; name another one")
    tokenizer = make_byte_tokenizer()
    save_directory(build_model(spec, tokenizer), tokenizer, output)


def build_model(spec: TinyModelSpec, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return the model with float32 weights drawn from `spec.seed`; torch's global generator is left as it was."""
    sizes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size or 3 * spec.hidden_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_positions,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        if spec.family == "qwen3":
            from transformers import Qwen3Config, Qwen3ForCausalLM

            return Qwen3ForCausalLM(Qwen3Config(**sizes)).float()
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(LlamaConfig(**sizes)).float()


def save_directory(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path) -> None:
    """Save weights (safetensors), configuration and tokenizer; the directory appears whole or not at all.

    Args:
        model: what is saved.
        tokenizer: saved beside it.
        output: an empty or missing directory.

    Raises:
        ConfigError: the directory cannot be written.
    """
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise ConfigError(f"cannot write the model directory {output}: {error}") from error
    try:
        _silence_progress_bars()
        model.save_pretrained(str(temporary))
        tokenizer.save_pretrained(str(temporary))
        temporary.chmod(0o755)
        temporary.replace(output)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


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
