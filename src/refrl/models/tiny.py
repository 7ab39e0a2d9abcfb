"""Tiny models with random weights, made from a shape as ordinary Hugging Face directories.

The files are written directly, with numpy: importing torch and transformers takes ten times as long as everything
here, and a smoke test makes a model before each run. A test holds names, shapes and configuration against
transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from refrl.config.loading import ConfigError
from refrl.directories import new_directory
from refrl.models.byte_tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIAL_TOKEN_IDS,
    VOCAB_SIZE,
    byte_tokenizer,
    tokenizer_config,
)

Family = Literal["qwen3", "llama"]
ARCHITECTURES: dict[Family, str] = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}


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
    initializer_range: float = 0.02
    """Standard deviation of weights; 0.02 is what both families draw them with, more makes peaked distributions."""
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
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must not be negative")

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layer."""
        return self.intermediate_size or 3 * self.hidden_size


def make_model(spec: TinyModelSpec, output: Path) -> None:
    """Make a byte-level model with random float32 weights; the directory appears whole or not at all.

    Raises:
        ConfigError: `output` exists and is not empty, or cannot be written.
    """
    from safetensors.numpy import save_file

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} exists and is not an empty directory; name another one")
    with new_directory(output) as folder:
        save_file(dict(weights(spec)), folder / "model.safetensors", metadata={"format": "pt"})
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        for name, content in {
            "config.json": model_config(spec),
            "generation_config.json": {"_from_model_config": True, **_token_ids()},
            "tokenizer_config.json": tokenizer_config(),
        }.items():
            (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def model_config(spec: TinyModelSpec) -> dict[str, Any]:
    """Return what config.json says of a model; what is left out is transformers' default for the family."""
    return {
        "architectures": [ARCHITECTURES[spec.family]],
        "model_type": spec.family,
        "dtype": "float32",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.feed_forward_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_positions,
        "initializer_range": spec.initializer_range,
        "tie_word_embeddings": spec.tie_word_embeddings,
        **_token_ids(),
    }


def weights(spec: TinyModelSpec) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield every parameter by its name in the model; matrices are normal, norms 1, all drawn from the seed."""
    generator = np.random.default_rng(spec.seed)
    for name, shape in _shapes(spec):
        if len(shape) == 1:
            yield name, np.ones(shape, dtype=np.float32)
        else:
            yield name, spec.initializer_range * generator.standard_normal(shape, dtype=np.float32)


def _shapes(spec: TinyModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of parameters; a linear layer is (outputs, inputs)."""
    D, H = spec.hidden_size, spec.head_dim
    yield "model.embed_tokens.weight", (VOCAB_SIZE, D)
    for number in range(spec.num_layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (D,)
        yield f"{layer}.self_attn.q_proj.weight", (spec.num_heads * H, D)
        yield f"{layer}.self_attn.k_proj.weight", (spec.num_kv_heads * H, D)
        yield f"{layer}.self_attn.v_proj.weight", (spec.num_kv_heads * H, D)
        yield f"{layer}.self_attn.o_proj.weight", (D, spec.num_heads * H)
        if spec.family == "qwen3":
            yield f"{layer}.self_attn.q_norm.weight", (H,)
            yield f"{layer}.self_attn.k_norm.weight", (H,)
        yield f"{layer}.post_attention_layernorm.weight", (D,)
        yield f"{layer}.mlp.gate_proj.weight", (spec.feed_forward_size, D)
        yield f"{layer}.mlp.up_proj.weight", (spec.feed_forward_size, D)
        yield f"{layer}.mlp.down_proj.weight", (D, spec.feed_forward_size)
    yield "model.norm.weight", (D,)
    if not spec.tie_word_embeddings:
        yield "lm_head.weight", (VOCAB_SIZE, D)


def _token_ids() -> dict[str, int]:
    return {
        f"{role}_token_id": SPECIAL_TOKEN_IDS[token]
        for role, token in {"pad": PAD, "bos": BOS, "eos": EOS}.items()
    }
