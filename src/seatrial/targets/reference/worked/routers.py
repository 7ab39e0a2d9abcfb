"""Worked examples of routers of experts: what is logged of them at each weight of their loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from refrl.policy.routers import make_router_loss
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused

LAYERS = (([math.log(3.0), 0.0], [0, 0, 0, 0]), ([0.0, 0.0], [0, 1, 1, 1]))
"""Logits of each token of a row of four, and the experts that these are sent to, by layer: losses of 1.5 and of 1."""
LOGGED: Sequence[Mapping[str, float]] = (
    {},
    {"moe/router_aux_loss": 0.75, "moe/tokens_per_expert/0": 4.0, "moe/tokens_per_expert/1": 0.0},
    {"moe/router_aux_loss": 0.625, "moe/tokens_per_expert/0": 5.0, "moe/tokens_per_expert/1": 3.0},
)
"""By the number of layers; the row is one of two of its step."""
UNEVEN: Sequence[Mapping[str, float]] = (
    {},
    {"moe/load_max_over_mean": 2.0},
    {"moe/load_max_over_mean": 1.25},
)


def of_routers() -> Iterator[WorkedExample]:
    """Yield the examples."""
    for coefficient in (0.0, 0.001, 0.5):
        for number in (1, 2):
            right = [
                coefficient * LOGGED[number]["moe/router_aux_loss"],
                {**LOGGED[number], **UNEVEN[number]},
            ]
            name = f"what {number} routers log at the weight {coefficient}"
            yield example(name, right, _watched, coefficient, number)
    for packs, number in ((False, 0), (True, 0), (True, 2)):
        words = number, packs
        yield example(
            f"{number} routers that are not watched, packed: {packs}", [0.0, {}], _watched, 0.0, *words
        )
        yield refused("no routers", f"a loss of {number} routers, packed: {packs}", _watched, 0.5, *words)


class MadeTopKRouter(nn.Module):
    """A router with given decisions."""

    num_experts, top_k = 2, 1

    def __init__(self, logits: list[float], chosen: list[int]) -> None:
        super().__init__()
        self._made = torch.tensor([logits] * len(chosen)), torch.tensor(chosen)[:, None]

    def forward(self) -> tuple[Tensor, Tensor, Tensor]:
        logits, chosen = self._made
        return logits, torch.ones(chosen.shape), chosen


def _watched(coefficient: float, number: int, packs: bool = False) -> list[Any]:
    """Return the loss and the metrics of a row of four tokens with so many routers."""
    model: Any = nn.ModuleList(MadeTopKRouter(*layer) for layer in LAYERS[:number])
    config: Any = SimpleNamespace(
        sequence_packing=SimpleNamespace(enabled=packs), router_aux_loss_coef=coefficient
    )
    rows: Any = SimpleNamespace(
        mask_BT=torch.ones(1, 3), attention_mask_BS=torch.ones(1, 4), num_valid_seqs=2.0
    )
    watcher = make_router_loss(config, model)
    with watcher.watching():
        for router in model:
            router()
    loss, shares = watcher.share(rows, rows)
    metrics = watcher.finished({name: float(value) for name, value in shares.items()})
    return [round(float(loss), 6), {name: round(value, 6) for name, value in metrics.items()}]
