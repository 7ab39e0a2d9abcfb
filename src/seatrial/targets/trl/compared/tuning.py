"""Configurations of PEFT's adapters that a trainer is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LORA: Mapping[str, Any] = {
    "r": 4,
    "lora_alpha": 12,
    "target_modules": ["q_proj", "down_proj"],
    "init_lora_weights": False,
}
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
