"""Adapters of a setup's model: PEFT's configuration of them, and the weights of the plain model that they make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from seatrial.targets.common.zoo import ZOO
from seatrial.targets.trl.setup import Setup

VIRTUAL = "prompt_encoder.default.embedding.weight"
"""Embeddings of virtual tokens, which precede every sequence."""
LORA = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "down_proj"], "init_lora_weights": False}
SAVED, ORIGINAL = ".modules_to_save.default.", ".original_module."
"""In names of a module that is trained as a whole: of its copy, and of what the model had before."""
OTHERS = (".lora_", ORIGINAL, ".modules_to_save.ref.")
"""In names of what is no weight of the plain model."""


def adapter_config(setup: Setup) -> Any:
    """Return PEFT's configuration of a setup's adapters, whose dropout is that of the model's trait."""
    from peft import LoraConfig, PromptTuningConfig

    if setup.lora == "virtual tokens":
        return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    task = "SEQ_CLS" if setup.scores else "CAUSAL_LM"
    given: dict[str, Any] = {"task_type": task, "lora_dropout": ZOO[setup.trait].dropout, **LORA}
    if setup.trait == "experts":  # whose down projections are one tensor
        given["target_modules"] = ["q_proj", "o_proj"]
    if setup.head == "adapted":
        given["target_modules"] = [*given["target_modules"], "lm_head"]
    if setup.head == "saved":
        given["modules_to_save"] = ["lm_head"]
    return LoraConfig(**given)


def merged(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the plain model's weights, W + alpha / r B A where there is an adapter (Hu et al. 2021)."""
    found = {
        name.replace(SAVED, "."): value
        for name, value in weights.items()
        if not any(part in name for part in OTHERS)
    }
    for name, down in weights.items():
        if name.endswith(".lora_A.default.weight"):
            up = weights[name.replace(".lora_A.", ".lora_B.")]
            base = f"{name.removesuffix('.lora_A.default.weight')}.weight"
            found[base] = found[base] + LORA["lora_alpha"] / LORA["r"] * (up @ down)  # type: ignore[operator]
    return found


def of_the_reference(setup: Setup, initial: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights of a reference that the policy has before training: without its adapters, or with them."""
    left_out = (".ref.",) if setup.reference == "adapted" else (".lora_", SAVED, VIRTUAL)
    return {
        name if setup.reference == "adapted" else name.replace(ORIGINAL, "."): value
        for name, value in initial.items()
        if not any(part in name for part in left_out)
    }
