"""Tiny models with random weights, made from a shape as ordinary Hugging Face directories.

The files are written directly, with numpy: importing torch and transformers takes ten times as long as everything
here, and a smoke test makes a model before each run. A test holds names, shapes and configuration against
transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from refrl.config.loading import ConfigError
from refrl.directories import new_directory
from refrl.media import PLACEHOLDER
from refrl.models.byte_tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIAL_TOKEN_IDS,
    VOCAB_SIZE,
    byte_tokenizer,
    tokenizer_config,
)

MEDIA_TOKEN, MEDIA_TOKEN_ID = PLACEHOLDER, 259
"""Its place in a prompt takes a feature of the image or sound."""
WIDTH, INNER, LAYERS, HEADS = 32, 64, 2, 2
"""Of the tower."""
SMALL = 1e-3
"""Elements of small norms: bfloat16 holds numbers of this size 4e-6 or 8e-6 apart."""
SPREAD = 0.2
"""Standard deviation of the tower's and the projector's matrices: large enough that what is seen changes the logits."""
IMAGE_SIZE, PATCH_SIZE = 16, 8
MEL_BINS, FRAMES = 8, 16
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def media_config(family: str) -> dict[str, Any]:
    """Return what config.json says of everything but the language model."""
    if family == "llava":
        return {
            "architectures": ["LlavaForConditionalGeneration"],
            "model_type": "llava",
            "image_token_index": MEDIA_TOKEN_ID,
            "image_seq_length": (IMAGE_SIZE // PATCH_SIZE) ** 2,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
            "vision_config": {
                "model_type": "pixtral",
                "hidden_size": WIDTH,
                "intermediate_size": INNER,
                "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS,
                "image_size": IMAGE_SIZE,
                "patch_size": PATCH_SIZE,
            },
        }
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"],
        "model_type": "qwen2_audio",
        "audio_token_index": MEDIA_TOKEN_ID,
        "audio_config": {
            "model_type": "qwen2_audio_encoder",
            "num_mel_bins": MEL_BINS,
            "d_model": WIDTH,
            "encoder_layers": LAYERS,
            "encoder_attention_heads": HEADS,
            "encoder_ffn_dim": INNER,
            "max_source_positions": FRAMES // 2,
        },
    }


def media_shapes(family: str, hidden_size: int) -> Shapes:
    """Yield the names and shapes of the parameters of tower and projector."""
    yield from _vision(hidden_size) if family == "llava" else _audio(hidden_size)


def _vision(hidden_size: int) -> Shapes:
    W = WIDTH
    yield "vision_tower.patch_conv.weight", (W, 3, PATCH_SIZE, PATCH_SIZE)
    yield "vision_tower.ln_pre.weight", (W,)
    for number in range(LAYERS):
        layer = f"vision_tower.transformer.layers.{number}"
        yield f"{layer}.attention_norm.weight", (W,)
        yield f"{layer}.ffn_norm.weight", (W,)
        for name in "qkvo":
            yield f"{layer}.attention.{name}_proj.weight", (W, W)
        yield f"{layer}.feed_forward.gate_proj.weight", (INNER, W)
        yield f"{layer}.feed_forward.up_proj.weight", (INNER, W)
        yield f"{layer}.feed_forward.down_proj.weight", (W, INNER)
    yield "multi_modal_projector.linear_1.weight", (hidden_size, W)
    yield "multi_modal_projector.linear_1.bias", (hidden_size,)
    yield "multi_modal_projector.linear_2.weight", (hidden_size, hidden_size)
    yield "multi_modal_projector.linear_2.bias", (hidden_size,)


def _audio(hidden_size: int) -> Shapes:
    W = WIDTH
    yield "audio_tower.conv1.weight", (W, MEL_BINS, 3)
    yield "audio_tower.conv1.bias", (W,)
    yield "audio_tower.conv2.weight", (W, W, 3)
    yield "audio_tower.conv2.bias", (W,)
    yield "audio_tower.embed_positions.weight", (FRAMES // 2, W)
    for number in range(LAYERS):
        layer = f"audio_tower.layers.{number}"
        yield f"{layer}.self_attn.k_proj.weight", (W, W)
        for name in ("q_proj", "v_proj", "out_proj"):
            yield f"{layer}.self_attn.{name}.weight", (W, W)
            yield f"{layer}.self_attn.{name}.bias", (W,)
        yield f"{layer}.fc1.weight", (INNER, W)
        yield f"{layer}.fc1.bias", (INNER,)
        yield f"{layer}.fc2.weight", (W, INNER)
        yield f"{layer}.fc2.bias", (W,)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            yield f"{layer}.{name}.weight", (W,)
            yield f"{layer}.{name}.bias", (W,)
    yield "audio_tower.layer_norm.weight", (W,)
    yield "audio_tower.layer_norm.bias", (W,)
    yield "multi_modal_projector.linear.weight", (hidden_size, W)
    yield "multi_modal_projector.linear.bias", (hidden_size,)


Family = Literal["qwen3", "qwen3_moe", "llama", "llava", "qwen2_audio"]
ARCHITECTURES: dict[Family, str] = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "llama": "LlamaForCausalLM",
}


@dataclass(frozen=True)
class TinyModelSpec:
    """Shape of a model that is made here."""

    family: Family = "qwen3"
    """`qwen3` normalises queries and keys per head, `llama` does not; `qwen3_moe` has experts in every layer;
    `llava` and `qwen2_audio` are a `qwen3` for images and for sounds."""
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 32
    """At least 32: vLLM's CPU attention takes no less."""
    intermediate_size: int | None = None
    """Width of the feed-forward layer; None takes three times the hidden size."""
    num_experts: int = 12
    """Of each layer of `qwen3_moe`; more than ten, so that names in another order show."""
    experts_per_token: int = 3
    max_positions: int = 512
    tie_word_embeddings: bool = False
    draft_head: bool = False
    """Write a head that guesses the token after next (`refrl.policy.draft`) into `draft/`."""
    initializer_range: float = 0.02
    """Standard deviation of weights; 0.02 is what both families draw them with, more makes peaked distributions."""
    small_norms: bool = False
    """Every fourth element of a norm is `SMALL`, which a step of 1e-5 moves in bfloat16 too, and the others are 1."""
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
        if not 1 <= self.experts_per_token <= self.num_experts:
            raise ConfigError(
                f"experts_per_token={self.experts_per_token} must be 1 to num_experts={self.num_experts}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} must not be negative")

    @property
    def has_tower(self) -> bool:
        """Whether it takes images or sounds."""
        return self.family in ("llava", "qwen2_audio")

    @property
    def feed_forward_size(self) -> int:
        """Width of the feed-forward layer."""
        return self.intermediate_size or 3 * self.hidden_size

    @property
    def expert_size(self) -> int:
        """Width of an expert: all that a token goes through are about as wide as a feed-forward layer."""
        return max(1, self.feed_forward_size // self.experts_per_token)


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
        byte_tokenizer([MEDIA_TOKEN] if spec.has_tower else []).save(str(folder / "tokenizer.json"))
        for name, content in {
            "config.json": model_config(spec),
            "generation_config.json": {"_from_model_config": True, **_token_ids()},
            "tokenizer_config.json": tokenizer_config(),
        }.items():
            (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        if spec.draft_head:
            draft = folder / "draft"
            draft.mkdir()
            save_file(dict(draft_weights(spec)), draft / "model.safetensors", metadata={"format": "pt"})
            sizes = {"hidden_size": spec.hidden_size, "intermediate_size": spec.feed_forward_size}
            (draft / "config.json").write_text(json.dumps(sizes, indent=2) + "\n")


def model_config(spec: TinyModelSpec) -> dict[str, Any]:
    """Return what config.json says of a model; what is left out is transformers' default for the family."""
    if spec.has_tower:
        text = model_config(replace(spec, family="qwen3"))
        inner = {key: value for key, value in text.items() if key not in ("architectures", "dtype")}
        inner["vocab_size"] = MEDIA_TOKEN_ID + 1
        return {**media_config(spec.family), "dtype": "float32", "text_config": inner, **_token_ids()}
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
        **(_expert_config(spec) if spec.family == "qwen3_moe" else {}),
        **_token_ids(),
    }


def _expert_config(spec: TinyModelSpec) -> dict[str, Any]:
    return {
        "num_experts": spec.num_experts,
        "num_experts_per_tok": spec.experts_per_token,
        "moe_intermediate_size": spec.expert_size,
        "norm_topk_prob": True,
    }


def weights(spec: TinyModelSpec) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield every parameter by its name in the model; matrices are normal, norms 1, all drawn from the seed."""
    generator = np.random.default_rng(spec.seed)
    for name, tensor in _drawn(_shapes(spec), spec.initializer_range, generator):
        if spec.small_norms and tensor.ndim == 1:
            tensor[::4] = SMALL
        yield f"language_model.{name}" if spec.has_tower else name, tensor
    if not spec.has_tower:
        return
    yield from _drawn(media_shapes(spec.family, spec.hidden_size), SPREAD, generator)


def draft_weights(spec: TinyModelSpec) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield every parameter of the draft head, drawn as the model's."""
    D, F = spec.hidden_size, spec.feed_forward_size
    shapes: list[tuple[str, tuple[int, ...]]] = [
        ("hidden_proj.weight", (D, D)),
        ("embed_proj.weight", (D, D)),
        ("norm.weight", (D,)),
        ("up_proj.weight", (F, D)),
        ("down_proj.weight", (D, F)),
        ("final_norm.weight", (D,)),
    ]
    yield from _drawn(shapes, spec.initializer_range, np.random.default_rng([spec.seed, 1]))


def _drawn(
    shapes: Iterable[tuple[str, tuple[int, ...]]], spread: float, generator: np.random.Generator
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    for name, shape in shapes:
        if name.endswith("bias"):
            yield name, np.zeros(shape, dtype=np.float32)
        elif len(shape) == 1:
            yield name, np.ones(shape, dtype=np.float32)
        else:
            yield name, spread * generator.standard_normal(shape, dtype=np.float32)


def _shapes(spec: TinyModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of parameters; a linear layer is (outputs, inputs)."""
    D, H = spec.hidden_size, spec.head_dim
    V = MEDIA_TOKEN_ID + 1 if spec.has_tower else VOCAB_SIZE
    yield "model.embed_tokens.weight", (V, D)
    for number in range(spec.num_layers):
        layer = f"model.layers.{number}"
        yield f"{layer}.input_layernorm.weight", (D,)
        yield f"{layer}.self_attn.q_proj.weight", (spec.num_heads * H, D)
        yield f"{layer}.self_attn.k_proj.weight", (spec.num_kv_heads * H, D)
        yield f"{layer}.self_attn.v_proj.weight", (spec.num_kv_heads * H, D)
        yield f"{layer}.self_attn.o_proj.weight", (D, spec.num_heads * H)
        if spec.family != "llama":
            yield f"{layer}.self_attn.q_norm.weight", (H,)
            yield f"{layer}.self_attn.k_norm.weight", (H,)
        yield f"{layer}.post_attention_layernorm.weight", (D,)
        yield from _feed_forward(spec, f"{layer}.mlp")
    yield "model.norm.weight", (D,)
    if not spec.tie_word_embeddings:
        yield "lm_head.weight", (V, D)


def _feed_forward(spec: TinyModelSpec, place: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of a feed-forward layer, or of a router and its experts."""
    parts, width = [place], spec.feed_forward_size
    if spec.family == "qwen3_moe":
        yield f"{place}.gate.weight", (spec.num_experts, spec.hidden_size)
        parts, width = [f"{place}.experts.{number}" for number in range(spec.num_experts)], spec.expert_size
    for part in parts:
        yield f"{part}.gate_proj.weight", (width, spec.hidden_size)
        yield f"{part}.up_proj.weight", (width, spec.hidden_size)
        yield f"{part}.down_proj.weight", (spec.hidden_size, width)


def _token_ids() -> dict[str, int]:
    return {
        f"{role}_token_id": SPECIAL_TOKEN_IDS[token]
        for role, token in {"pad": PAD, "bos": BOS, "eos": EOS}.items()
    }
