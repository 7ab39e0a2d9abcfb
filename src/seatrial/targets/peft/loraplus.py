"""PEFT's optimizer groups of LoRA+; see `contracts.adapters.AdapterGroups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.adapters import OptimizerGroup, Role
from seatrial.targets.common.known import KnowsFailures
from seatrial.targets.common.target import find_name
from seatrial.targets.peft.bases import base


class LoraPlus(KnowsFailures):
    """`create_loraplus_optimizer` of a model with adapters on linear layers and on the embedding."""

    def __init__(self) -> None:
        """Find the function."""
        self._create = find_name("peft", ["peft.optimizers:create_loraplus_optimizer"])

    def optimizer_groups(
        self, *, lr: float, ratio: float, embedding_lr: float, weight_decay: float
    ) -> tuple[Sequence[OptimizerGroup], Mapping[str, Role]]:
        import peft

        config = peft.LoraConfig(r=4, target_modules=["embed_tokens", "q_proj"])
        model = peft.get_peft_model(base("linear", torch.float32), config)
        optimizer = self._create(
            model=model,
            optimizer_cls=torch.optim.AdamW,
            lr=lr,
            loraplus_lr_ratio=ratio,
            loraplus_lr_embedding=embedding_lr,
            loraplus_weight_decay=weight_decay,
        )
        names = {id(value): name for name, value in model.named_parameters()}
        groups = [
            OptimizerGroup(
                names=tuple(names[id(value)] for value in group["params"]),
                lr=float(group["lr"]),
                weight_decay=float(group["weight_decay"]),
            )
            for group in optimizer.param_groups
        ]
        return groups, _roles(model)


def _roles(model: Any) -> dict[str, Role]:
    """Return the role of every trainable tensor by the layer that has it."""
    roles: dict[str, Role] = {}
    for name, value in model.named_parameters():
        if value.requires_grad:
            parts = name.split(".")
            kept: dict[str, Role] = {
                "lora_A": "A",
                "lora_B": "B",
                "lora_embedding_A": "embedding",
                "lora_embedding_B": "embedding",
            }
            found = [role for part, role in kept.items() if part in parts]
            roles[name] = found[0] if found and not name.endswith(".bias") else "other"
    return roles
