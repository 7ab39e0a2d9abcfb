"""Kinds of LoRA, by their options."""

from __future__ import annotations

from typing import Any

from seatrial.targets.peft import known as known_failures
from seatrial.targets.peft import known_moves
from seatrial.targets.peft.kinds import CombiningAdapters, PeftAdapters, adapter_of

ATTENTION = ["q_proj", "v_proj"]
LINEAR = ["q_proj", "o_proj", "up_proj", "down_proj"]
TRANSPOSED = ["c_attn", "c_proj"]
MANY = [
    f"model.layers.{layer}.{part}"
    for layer in range(4)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
]
"""Full names, also of layers that a tiny model does not have: from 20 of them PEFT looks for shorter ones."""


def lora(
    *, combining: bool = False, parent: type[PeftAdapters] = PeftAdapters, **options: Any
) -> type[PeftAdapters]:
    """Return the class of LoRA with these options; `combining` says that several can be combined to one."""
    given = {"r": 4, "lora_alpha": 6, "target_modules": LINEAR, "dropout": "lora_dropout", **options}
    if known_failures.embeds(given) or given.get("lora_bias"):
        given["spec"] = {"drops_all": False, **given.get("spec", {})}  # embeddings and biases have no dropout
    given["known"] = [
        *given.get("known", ()),
        *known_failures.in_histories(given),
        *known_moves.of_lora(given),
    ]
    return adapter_of("LoraConfig", parent=CombiningAdapters if combining else parent, **given)
