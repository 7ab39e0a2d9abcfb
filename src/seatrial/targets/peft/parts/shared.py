"""What several parts share: layers to which something is added, drawn tensors, a model that was saved and loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.trainers import new_folder

Added = Mapping[str, Callable[[Tensor], Tensor]]
"""What is added to a layer's output, of its input, by its name."""
END = 2
"""The id that ends a row of the tiny models; what is generated here has a least length."""


def drawn(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    """Return random numbers of a seed."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def redraw(model: Any, word: str, seed: int, scale: float = 0.5) -> None:
    """Draw all parameters whose name has a word."""
    with torch.no_grad():
        for number, (name, value) in enumerate(model.named_parameters()):
            if word in name:
                value.copy_(drawn(seed + number, *value.shape, scale=scale))


def logits_of(model: Any, ids_BS: Tensor, **given: Any) -> Tensor:
    """Return logits of a causal model in evaluation mode."""
    model.eval()
    with torch.no_grad():
        found: Tensor = model(input_ids=ids_BS, attention_mask=torch.ones_like(ids_BS), **given).logits
    return found


def with_added(plain: Any, ids_BS: Tensor, added: Added) -> Tensor:
    """Return the logits of a base, with what is added to its layers."""
    handles = [
        plain.get_submodule(name).register_forward_hook(
            lambda layer, given, made, add=add: made + add(given[0])
        )
        for name, add in added.items()
    ]
    try:
        return logits_of(plain, ids_BS)
    finally:
        for handle in handles:
            handle.remove()


def reloaded(model: Any, plain: Any, name: str = "default") -> Any:
    """Return another model of PEFT with the adapter of a model that was saved."""
    import peft

    folder = new_folder()
    model.save_pretrained(folder)
    inner = folder if name == "default" else f"{folder}/{name}"
    return peft.PeftModel.from_pretrained(plain, inner)


def greedy(model: Any, ids_BS: Tensor, number: int, **given: Any) -> Tensor:
    """Return the logits [B, number, V] of ids that are the likeliest ones but the end, a pass over all ids each."""
    found = []
    for _ in range(number):
        found.append(logits_of(model, ids_BS, **given)[:, -1])
        likely_BV = found[-1].clone()
        likely_BV[:, END] = -torch.inf
        ids_BS = torch.cat([ids_BS, likely_BV.argmax(-1, keepdim=True)], dim=1)
    return torch.stack(found, dim=1)
