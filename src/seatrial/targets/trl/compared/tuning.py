"""Configurations of PEFT's adapters that a trainer is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

LORA: Mapping[str, Any] = {
    "r": 4,
    "lora_alpha": 12,
    "target_modules": ["q_proj", "down_proj"],
    "init_lora_weights": False,
}
ADAPTER = ".lora_"
SCALE = LORA["lora_alpha"] / LORA["r"]
PREFIX, DOWN, UP = "base_model.model.", ".lora_A.default.weight", ".lora_B.default.weight"
NEUTRAL_ADAPTERS = ("low-rank, from zero", "DoRA", "IA3", "low-rank, with a trained head")
OTHER_ADAPTERS = ("prompt tuning", "p-tuning")


def adapter_configuration(kind: str, task: str) -> Any:
    """Return PEFT's configuration of adapters; those of no kind are low-rank and begin with random weights."""
    import peft

    if kind == "IA3":
        modules = ["q_proj", "v_proj", "down_proj"]
        return peft.IA3Config(task_type=task, target_modules=modules, feedforward_modules=["down_proj"])
    if kind == "prompt tuning":
        return peft.PromptTuningConfig(task_type=task, num_virtual_tokens=3)
    if kind == "p-tuning":
        return peft.PromptEncoderConfig(task_type=task, num_virtual_tokens=3, encoder_hidden_size=16)
    more: dict[str, Any] = {} if not kind else {"init_lora_weights": True, "use_dora": kind == "DoRA"}
    if kind.endswith("trained head"):
        more["modules_to_save"] = ["score" if task == "SEQ_CLS" else "lm_head"]
    return peft.LoraConfig(task_type=task, **{**LORA, **more})


def merged(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a plain model's tensors from those of one with low-rank adapters, W + alpha / r B A (Hu et al. 2021)."""
    found = {_plain(name): value for name, value in tensors.items() if ADAPTER not in name}
    for name, down, up in _pairs(tensors):
        found[name] = found[name] + SCALE * (up @ down)
    return found


def gradients_of(plain: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the gradients of adapters from those of the merged model's tensors; without adapters the latter."""
    found: dict[str, Tensor] = {}
    for name, down, up in _pairs(tensors):
        own = f"{PREFIX}{name.removesuffix('.weight')}"
        found[own + DOWN] = SCALE * (up.double().T @ plain[name])
        found[own + UP] = SCALE * (plain[name] @ down.double().T)
    return found or dict(plain)


def _pairs(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the plain name of each adapted tensor with the two matrices of its adapter."""
    for name, down in tensors.items():
        if name.endswith(DOWN):
            yield _plain(name.removesuffix(DOWN)) + ".weight", down, tensors[name.removesuffix(DOWN) + UP]


def _plain(name: str) -> str:
    return name.removeprefix(PREFIX).replace(".base_layer.", ".")
