"""What worked examples of PEFT are made of: a model of two layers, adapters of it, and folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.trainers import new_folder

WIDTH = 8
TYPES: Mapping[str, Mapping[str, Any]] = {
    "LoraConfig": {"r": 2},
    "LoHaConfig": {"r": 2},
    "LoKrConfig": {"r": 2},
    "IA3Config": {"feedforward_modules": []},
    "OFTConfig": {"r": 0, "oft_block_size": 4},
    "VeraConfig": {"r": 2},
}
"""Types of adapters, with options."""


class Text(nn.Module):
    """A layer that is adapted, and one that is trained in whole."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.proj, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x_BD: Tensor) -> Tensor:
        """Return [B, D]."""
        found: Tensor = self.head(torch.tanh(self.proj(x_BD)))
        return found


X_BD = torch.linspace(-1, 1, 3 * WIDTH).reshape(3, WIDTH)


def text() -> Text:
    """Return a model whose weights are the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Text()


def lora(**options: Any) -> Any:
    """Return options of LoRA on the first layer."""
    import peft

    return peft.LoraConfig(**{"r": 2, "target_modules": ["proj"], **options})


def adapted(**options: Any) -> Any:
    """Return a model with an adapter of values that are not those of a start."""
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return moved(peft.get_peft_model(text(), lora(**options)))


def folder() -> Path:
    """Return an empty folder."""
    return Path(new_folder())


def is_refused(call: Callable[[], Any]) -> bool:
    """Return whether a call raises an error of what it is given."""
    try:
        call()
    except (ValueError, TypeError, KeyError, RuntimeError):
        return True
    return False


def same(model: Any, other: Any) -> bool:
    """Return whether two models compute the same."""
    with torch.no_grad():
        return bool(torch.allclose(model.eval()(X_BD), other.eval()(X_BD), atol=1e-6))


def of_method(name: str, call: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a call of a class that gives the method of a name to `call`."""
    return lambda of: call(getattr(of, name))


def config_of(kind: str, **options: Any) -> Any:
    """Return a configuration.

    Raises:
        NotServed: this release has no such type.
    """
    import peft

    made: Any = getattr(peft, kind, None)
    if made is None:
        raise NotServed(f"this release has no {kind}")
    return made(**{"target_modules": ["proj"], **TYPES[kind], **options})


def moved(model: Any) -> Any:
    """Return a model whose trainable weights depend on their place alone, and are not as they are made."""
    with torch.no_grad():
        for number, value in enumerate(one for one in model.parameters() if one.requires_grad):
            generator = torch.Generator().manual_seed(number)
            value.add_(torch.randn(value.shape, generator=generator) * 0.5)
    return model
