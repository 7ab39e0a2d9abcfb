"""The models that layouts of processes train, and the images or sounds of their rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from refrl.algorithms.batching import TrainSample
from refrl.media import pack
from refrl.models.byte_tokenizer import VOCAB_SIZE
from refrl.models.loading import media_token_id
from refrl.models.tiny import FRAMES, IMAGE_SIZE, MEL_BINS, Family, TinyModelSpec, make_model

PAD_ID = 0
"""Of the rows, which have it among their tokens too: its embedding is not trained."""
ADAPTER_RANK, ADAPTER_ALPHA = 3, 6.0
"""Rank and scale of the adapters that some layouts train; the rank is divided by no number of processes."""
MEDIA_FAMILIES: Mapping[str, Family] = {"vlm": "llava", "audio": "qwen2_audio"}
MEDIA_SHAPES = {"llava": (3, IMAGE_SIZE, IMAGE_SIZE), "qwen2_audio": (MEL_BINS, FRAMES)}
NUM_FEATURES = 4
"""That both of those models make of an image or a sound."""


def make_model_of(kind: str, folder: Path) -> Path:
    """Write the model that a layout trains into a folder of its own, once, with an adapter of it; return it.

    Its distributions are peaked, and it has as many heads as tensor parallelism needs.
    """
    model = folder / kind
    if model.exists():
        return model
    if kind.startswith("moe"):
        _make_experts(model, scaled=kind == "moe")
    else:
        shape = TinyModelSpec(
            family=MEDIA_FAMILIES.get(kind, "qwen3"),
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            intermediate_size=48,
            initializer_range=0.1,
            draft_head=kind == "draft",
        )
        make_model(shape, model)
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": PAD_ID}), encoding="utf-8")
    _make_adapter(model)
    return model


def _make_adapter(model: Path) -> None:
    """Write an adapter in PEFT's format into a model's folder: both halves random, so that each has a gradient."""
    stream = torch.Generator().manual_seed(21)
    tensors = {}
    for name, weight in load_file(model / "model.safetensors").items():
        if name.endswith("_proj.weight") and ".experts." not in name:
            layer, (rows, columns) = f"base_model.model.{name.removesuffix('.weight')}", weight.shape
            for part, shape in (("lora_A", (ADAPTER_RANK, columns)), ("lora_B", (rows, ADAPTER_RANK))):
                tensors[f"{layer}.{part}.weight"] = 0.1 * torch.randn(shape, generator=stream)
    config = {"peft_type": "LORA", "r": ADAPTER_RANK, "lora_alpha": ADAPTER_ALPHA}
    (model / "adapter").mkdir()
    (model / "adapter" / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, model / "adapter" / "adapter_model.safetensors")


def _make_experts(directory: Path, scaled: bool) -> None:
    """Write a model of 12 experts, three for a token: more than ten, so that names in another order show.

    Their weights for a token are scaled to add up to 1, or not.
    """
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    shape: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 12,
        "num_experts_per_tok": 3,
        "max_position_embeddings": 128,
        "norm_topk_prob": scaled,
    }
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**shape))
    stream = torch.Generator().manual_seed(20)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(float(weight.ndim == 1), 0.1, generator=stream)
    model.save_pretrained(str(directory))


def with_media(sample: TrainSample, model: Path) -> TrainSample:
    """Return a row with its own image or sound in its prompt, if the model takes one."""
    token = media_token_id(model)
    if token is None:
        return sample
    random = np.random.default_rng([22, *sample.completion_ids])
    shape = MEDIA_SHAPES[json.loads((model / "config.json").read_text(encoding="utf-8"))["model_type"]]
    values = random.uniform(-1, 1, shape).astype(np.float32)
    return replace(sample, prompt_ids=(token,) * NUM_FEATURES + sample.prompt_ids, media=pack(values))
