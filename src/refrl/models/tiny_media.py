"""Tiny models for images or sounds: a tower and a projector before the language model of `refrl.models.tiny`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from refrl.media import PLACEHOLDER

MEDIA_TOKEN, MEDIA_TOKEN_ID = PLACEHOLDER, 259
"""Its place in a prompt takes a feature of the image or sound."""
WIDTH, INNER, LAYERS, HEADS = 32, 64, 2, 2
"""Of the tower."""
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
